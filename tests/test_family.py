"""The family of growth methods against the rules of their papers, each by a case that a pencil can follow."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from shapes import CONTEXT, KINDS, VOCAB, batch, logits, random_state
from test_growth import EXACT, TOKENS, WIDER, grow, make

from growbench.axes import LayerMap
from growbench.checkpoint import Checkpoint
from growbench.diagnostics import alive_share
from growbench.shape import Shape
from growbench.state import State
from growbench.strategy import Growth, Probe, gradients

SHALLOW = Shape(layers=2, residual=6, heads=2, key=4, value=4, ffn=10, vocab=VOCAB, context=CONTEXT)
DEEP = replace(SHALLOW, layers=4)


@pytest.mark.parametrize(
    ("name", "parameters", "old", "new", "source"),
    [
        ("stack", {}, 2, 4, (0, 1, 0, 1)),
        ("stack", {}, 2, 5, (0, 1, 0, 1, 0)),
        ("interleave", {}, 2, 4, (0, 0, 1, 1)),
        ("gradual_stack", {}, 3, 5, (0, 1, 2, 1, 2)),
        ("gradual_stack", {"where": "middle"}, 6, 8, (0, 1, 2, 3, 2, 3, 4, 5)),  # of 3 blocks the 2nd
        ("gradual_stack", {"where": "middle"}, 4, 6, (0, 1, 0, 1, 2, 3)),  # of 2 blocks the 1st
        ("solar", {}, 4, 6, (0, 1, 2, 1, 2, 3)),
        ("solar", {}, 32, 48, (*range(24), *range(8, 32))),  # SOLAR 10.7B: m = 8
    ],
)
def test_depth_maps_are_the_papers(
    name: str, parameters: dict[str, Any], old: int, new: int, source: tuple[int, ...]
) -> None:
    assert make(name, parameters).deepen(old, new) == LayerMap(source=source)


@pytest.mark.parametrize("name", ["identity", "zero_depth"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_muted_layers_keep_the_function_and_are_alive(name: str, kind: str) -> None:
    tokens = 3 if KINDS[kind].get("placement") == "everywhere" else 0
    source = replace(SHALLOW, tokens=tokens, **KINDS[kind])
    state, target = random_state(source, 1), replace(source, layers=5)
    growth = grow(make(name, {}), state, target, 2)
    assert torch.allclose(logits(growth.state, batch(1)), logits(state, batch(1)), atol=EXACT, rtol=0)
    share = alive_share(growth, gradients(growth.state, batch(3)))
    assert share is not None
    assert share > 1e-3
    copied = torch.equal(
        growth.state.weights["1/q" if not tokens else "1/q/keys"], state.weights["0/q" if not tokens else "0/q/keys"]
    )
    assert copied == (name == "zero_depth")


def test_depth_alone_says_what_else_grows() -> None:
    assert make("stack", {}).supports(SHALLOW, DEEP) == ""
    assert "adds no layers" in make("stack", {}).supports(*WIDER["gelu"])
    assert "residual grows too" in make("stack", {}).supports(SHALLOW, replace(DEEP, residual=12))
    assert "twice" in make("solar", {}).supports(SHALLOW, replace(SHALLOW, layers=6))


def test_hyperclone_noise_is_as_loud_as_stated() -> None:
    """ffn doubled at 10 dB: a reader W becomes [W/2 + N, W/2 - N], mean N^2 a tenth of mean (W/2)^2; still exact."""
    source, target = WIDER["gelu"]
    state, tokens = random_state(source, 4), batch(4)
    quiet, noisy = (grow(make("hyperclone", {"snr_db": snr}), state, target, 5).state for snr in (None, 10.0))
    for grown in (quiet, noisy):
        assert torch.allclose(logits(grown, tokens), logits(state, tokens), atol=EXACT, rtol=0)
    tiled, name = state.weights["1/ffn/values"].repeat(2, 2) / 2, "1/ffn/values"
    assert torch.allclose(quiet.weights[name], tiled)
    noise = noisy.weights[name] - tiled
    assert torch.allclose(noise[:, :10], -noise[:, 10:])
    assert noise.square().mean().item() == pytest.approx(0.1 * tiled.square().mean().item(), rel=0.25)
    assert "whole factor" in make("hyperclone", {}).supports(source, replace(target, ffn=21))


def test_lemon_splits_readers_around_their_fresh_initialisation() -> None:
    """D_k = R_k - (sum R - W) / K over the K copies of a unit: the copies differ and sum to W. Uneven ffn 2 -> 5."""
    source = Shape(layers=1, residual=2, heads=1, key=2, value=2, ffn=2, vocab=VOCAB, context=CONTEXT)
    state = random_state(source, 6)
    grown = grow(make("lemon", {}), state, replace(source, ffn=5), 7).state.weights["0/ffn/values"]
    for unit, copies in ((0, [0, 2, 4]), (1, [1, 3])):
        assert torch.allclose(grown[:, copies].sum(1), state.weights["0/ffn/values"][:, unit], atol=EXACT)
        assert not torch.allclose(grown[:, copies[0]], grown[:, copies[1]], atol=1e-3)


def test_lemon_pads_the_residual_after_whole_copies() -> None:
    """Residual 2 -> 5: x becomes eta (x1, x2, x1, x2, 0) with eta^2 = D / (d floor(D/d)) = 5/4."""
    source = Shape(layers=1, residual=2, heads=1, key=2, value=2, ffn=2, vocab=VOCAB, context=CONTEXT)
    state = random_state(source, 8)
    x, grown = state.weights["embed"], grow(make("lemon", {}), state, replace(source, residual=5), 9).state
    expected = torch.cat([x, x, torch.zeros_like(x[:, :1])], 1) * (5 / 4) ** 0.5
    assert torch.allclose(grown.weights["embed"], expected)
    assert torch.allclose(logits(grown, batch(8)), logits(state, batch(8)), atol=EXACT, rtol=0)


def test_fpi_is_exact_where_its_counts_are_even() -> None:
    source, target = WIDER["gelu"]
    state, tokens = random_state(source, 10), batch(10)
    gaps = {
        weighted: (
            logits(grow(make("fpi", {"weighted": weighted}), state, target, 11).state, tokens) - logits(state, tokens)
        )
        for weighted in (True, False)
    }
    assert gaps[True].abs().max() < EXACT
    assert gaps[False].abs().max() > 1e-3
    narrow = replace(source, ffn=15)
    gap = logits(grow(make("fpi", {}), state, narrow, 12).state, tokens) - logits(state, tokens)
    assert gap.abs().max() < EXACT  # without the residual axis the published form is exact as well


def test_aki_takes_new_units_from_the_layer_above() -> None:
    """Rows of new units equal those of FPI one layer up, the top layer's its own; old rows are FPI's."""
    source, target = WIDER["gelu"]
    state = random_state(source, 13)
    fpi, aki = (grow(make(name, {}), state, target, 14).state.weights for name in ("fpi", "aki"))
    assert torch.equal(aki["0/ffn/keys"][10:], fpi["1/ffn/keys"][10:])
    assert torch.equal(aki["0/ffn/keys"][:10], fpi["0/ffn/keys"][:10])
    assert torch.equal(aki["0/o"][6:], fpi["1/o"][6:])
    assert torch.equal(aki["1/ffn/keys"], fpi["1/ffn/keys"])
    assert torch.equal(aki["embed"], fpi["embed"])


@pytest.mark.parametrize(
    "pair", [WIDER["gelu"], WIDER["ffn_l2"], TOKENS, (SHALLOW, DEEP)], ids=["wide", "l2", "tokens", "deep"]
)
def test_masks_hide_what_is_new_and_then_open(pair: tuple[Shape, Shape]) -> None:
    """Behind masks of zero MSG's model is the source, norms included; behind masks of one it is that of `random`."""
    source, target = pair
    state, tokens = random_state(source, 15), batch(15)
    growth = grow(make("msg", {"ramp_tokens": 100}), state, target, 16)
    checkpoint = Checkpoint(state=growth.state, ramps=growth.ramps, ramp_start=50)
    at = {tokens_: masked(growth.state, checkpoint, tokens_, tokens) for tokens_ in (50, 100, 150)}
    assert torch.allclose(at[50], logits(state, tokens), atol=EXACT, rtol=0)
    assert torch.equal(at[150], logits(grow(make("random", {}), state, target, 16).state, tokens))
    assert not torch.allclose(at[100], at[50], atol=1e-3)
    assert not torch.allclose(at[100], at[150], atol=1e-3)


def masked(state: State, checkpoint: Checkpoint, position: int, tokens: torch.Tensor) -> torch.Tensor:
    net = state.model()
    net.masks = checkpoint.multipliers(position)
    with torch.no_grad():
        out: torch.Tensor = net(tokens[:, :-1])
    return out


def test_shrink_and_perturb() -> None:
    """lambda pad(W) + sigma R: at (1, 0) the plain zero pad, at (0, 1) a fresh model, and linear in between."""
    source, target = WIDER["gelu"]
    state = random_state(source, 17)

    def weights(shrink: float, perturb: float) -> dict[str, torch.Tensor]:
        return dict(
            grow(make("shrink_perturb", {"shrink": shrink, "perturb": perturb}), state, target, 18).state.weights
        )

    pad, fresh, both = weights(1, 0), weights(0, 1), weights(0.4, 0.5)
    reference = grow(make("zero_pad", {"scaled": False, "two_sided": True}), state, target, 18).state.weights
    for name in pad:
        assert torch.equal(pad[name], reference[name])
        assert torch.allclose(both[name], 0.4 * pad[name] + 0.5 * fresh[name])
    assert not grow(make("shrink_perturb", {}), state, target, 18).state.first


def probed(name: str, parameters: dict[str, Any], state: State, target: Shape, seed: int) -> tuple[Growth, Probe]:
    strategy = make(name, parameters)
    probe = Probe(lambda used: batch(used + seed), strategy.probe_batches)
    return strategy.grow(state, target, probe, torch.Generator().manual_seed(seed)), probe


@pytest.mark.parametrize("kind", ["gelu", "ffn_l2"])
def test_gradmax_maximises_the_gradient(kind: str) -> None:
    """Exact, metered; no other silent units with output vectors of the same lengths receive a larger gradient."""
    source = replace(SHALLOW, **KINDS[kind])
    target, state = replace(source, ffn=13), random_state(source, 19)
    growth, probe = probed("gradmax", {"batches": 1}, state, target, 20)
    assert torch.allclose(logits(growth.state, batch(0)), logits(state, batch(0)), atol=EXACT, rtol=0)
    assert probe.tokens == 3 * CONTEXT
    old, new = growth.state.weights["0/ffn/values"][:, :10], growth.state.weights["0/ffn/values"][:, 10:]
    assert torch.allclose(new.norm(dim=0), old.norm(dim=0).mean() / 2 * torch.ones(3, dtype=torch.float64))

    def reached(weights: dict[str, torch.Tensor]) -> float:
        found = gradients(replace(growth.state, weights=weights), batch(20))
        return float(found["0/ffn/keys"][10:].norm())

    best = reached(dict(growth.state.weights))
    rng = torch.Generator().manual_seed(21)
    for _ in range(20):
        q = torch.linalg.qr(torch.randn(6, 3, generator=rng, dtype=torch.float64)).Q
        other = torch.cat([old, q * old.norm(dim=0).mean() / 2], 1)
        assert reached(dict(growth.state.weights) | {"0/ffn/values": other}) < best
    assert "singular vectors" in make("gradmax", {}).supports(source, replace(source, ffn=17))
    assert "grows more" in make("gradmax", {}).supports(*WIDER["gelu"])


@pytest.mark.parametrize("pair", [WIDER["gelu"], TOKENS, (SHALLOW, replace(DEEP, residual=12, heads=3))])
def test_ligo_learns_its_operator(pair: tuple[Shape, Shape]) -> None:
    """Every step is metered, the operator's loss falls, and what comes out is E W E' of the source."""
    source, target = pair
    state = random_state(source, 22)
    short, probe = probed("ligo", {"steps": 1, "learning_rate": 0.0}, state, target, 23)
    assert probe.tokens == 3 * CONTEXT
    long, probe = probed("ligo", {"steps": 60, "learning_rate": 0.03}, state, target, 23)
    assert probe.tokens == 60 * 3 * CONTEXT

    def mean(growth: Growth) -> float:
        out = torch.cat([logits(growth.state, batch(23 + i * 21)) for i in range(60)])
        target_ = torch.cat([batch(23 + i * 21)[:, 1:] for i in range(60)])
        return torch.nn.functional.cross_entropy(out.flatten(0, 1), target_.flatten()).item()

    assert mean(long) < mean(short) - 0.01
    assert not long.state.first
    if target.layers == source.layers:
        rows = short.state.weights["embed"]
        assert torch.allclose(rows[:, : source.residual], state.weights["embed"])


def test_split_moves_units_apart_along_negative_curvature() -> None:
    """Two halves sum to their unit; the curvature along v is lower than along random directions, and e parts them."""
    target, state = replace(SHALLOW, ffn=13), random_state(SHALLOW, 24)
    growth, probe = probed("split", {"distance": 1e-3, "iterations": 60}, state, target, 25)
    assert probe.batches == 60
    keys, old = growth.state.weights["0/ffn/keys"], state.weights["0/ffn/keys"]
    parents = growth.maps[next(a for a in growth.maps if a.layer == 0)].expand[10:].argmax(1)
    assert torch.allclose((keys[10:] + keys[parents]) / 2, old[parents], atol=1e-12)
    length = 1e-3 * old.norm(dim=1).mean()
    assert torch.allclose((keys[10:] - keys[parents]).norm(dim=1) / 2, length.expand(3))
    assert torch.allclose(growth.state.weights["0/ffn/values"][:, 10:], state.weights["0/ffn/values"][:, parents] / 2)

    def loss(directions: torch.Tensor) -> float:
        shifted = keys.clone()
        shifted[10:], shifted[parents] = old[parents] - directions, old[parents] + directions
        weights = dict(growth.state.weights) | {"0/ffn/keys": shifted}
        tokens = torch.cat([batch(25 + 21 * i) for i in range(60)])
        out = logits(replace(growth.state, weights=weights), tokens)
        return torch.nn.functional.cross_entropy(out.flatten(0, 1), tokens[:, 1:].flatten()).item()

    rng = torch.Generator().manual_seed(26)
    random = [torch.randn(3, 6, generator=rng, dtype=torch.float64) for _ in range(10)]
    best = loss((keys[parents] - keys[10:]) / 2 * 100)
    assert all(best < loss(v / v.norm(dim=1, keepdim=True) * length * 100) for v in random)
    assert "doubles" in make("split", {}).supports(SHALLOW, replace(SHALLOW, ffn=21))
    assert "elementwise" in make("split", {}).supports(*TOKENS)
