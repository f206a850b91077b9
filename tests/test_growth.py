"""What growth preserves and what it leaves alive: every built-in strategy, over random shapes, in float64."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from shapes import CONTEXT, KINDS, VOCAB, batch, larger, logits, random_state, shapes

from growbench import maps, plugins
from growbench.axes import AxisMap, Copies
from growbench.diagnostics import alive_share
from growbench.shape import Shape
from growbench.state import State, changed
from growbench.strategy import Growth, Probe, Strategy, gradients

EXACT = 1e-10
STRATEGIES: list[tuple[str, dict[str, Any]]] = [
    ("continue", {}),
    ("lora", {}),
    ("lora", {"rank": 1, "frozen": False}),
    ("net2net", {}),
    ("net2net", {"noise": 0.0}),
    ("orthogonal", {}),
    ("orthogonal", {"units": "random"}),
    ("zero_pad", {}),
    ("zero_pad", {"scaled": False}),
    ("zero_pad", {"two_sided": True}),
    ("zero_tokens", {}),
    ("zero_tokens", {"factor": "rescaled"}),
    ("zero_tokens", {"zero": "values"}),
    ("zero_tokens", {"zero": "both"}),
    ("zero_tokens", {"zero": "neither", "factor": "rescaled"}),
]
named = pytest.mark.parametrize(
    ("name", "parameters"), STRATEGIES, ids=[f"{n}({', '.join(map(str, p.values()))})" for n, p in STRATEGIES]
)
seeds = st.integers(0, 10_000)


def make(name: str, parameters: dict[str, Any]) -> Strategy:
    made: Strategy = plugins.load("strategy", name)(**parameters)
    return made


declared = pytest.mark.parametrize(
    ("name", "parameters"), [(n, p) for n, p in STRATEGIES if make(n, p).preserves == "function"]
)


def grow(strategy: Strategy, state: State, target: Shape, seed: int) -> Growth:
    probe = Probe(lambda used: batch(used), 0)
    rng = torch.Generator().manual_seed(seed)
    return strategy.grow(state, strategy.target(state.shape, target), probe, rng)


@declared
@settings(max_examples=25)
@given(data=st.data(), seed=seeds)
def test_what_is_declared_is_preserved(name: str, parameters: dict[str, Any], data: st.DataObject, seed: int) -> None:
    """Growing twice, to any larger shape and in either parametrization, keeps the logits of a strategy that says so."""
    strategy, shape = make(name, parameters), data.draw(shapes())
    middle = data.draw(larger(shape, deeper=True))
    target = data.draw(larger(middle))
    parametrization = data.draw(st.sampled_from(["mup", "standard"]))
    assume(not strategy.supports(shape, target))
    state, tokens = random_state(shape, seed, parametrization), batch(seed)
    before = logits(state, tokens)
    for goal in (middle, target):
        state = grow(strategy, state, goal, seed).state
        assert state.shape == strategy.target(state.shape, goal) or name == "lora"
        assert {n: w.shape for n, w in state.weights.items()} == {n: w.sizes for n, w in state.shape.weights.items()}
        assert torch.allclose(logits(state, tokens), before, atol=EXACT, rtol=0)


L2 = KINDS["tokenformer"]
WIDER = {
    kind: (
        Shape(layers=2, residual=6, heads=2, key=4, value=4, ffn=10, vocab=VOCAB, context=CONTEXT, **more),
        Shape(layers=2, residual=12, heads=4, key=4, value=4, ffn=20, vocab=VOCAB, context=CONTEXT, **more),
    )
    for kind, more in KINDS.items()
    if more.get("placement") != "everywhere"
}
TOKENS = (
    Shape(layers=2, residual=6, heads=2, key=4, value=4, ffn=10, tokens=4, vocab=VOCAB, context=CONTEXT, **L2),
    Shape(layers=2, residual=6, heads=2, key=4, value=4, ffn=40, tokens=16, vocab=VOCAB, context=CONTEXT, **L2),
)


@named
def test_what_is_not_declared_is_not_preserved(name: str, parameters: dict[str, Any]) -> None:
    """`preserves` is tight: a strategy that says `nothing` changes the logits where its maps do not commute."""
    strategy = make(name, parameters)
    source, target = WIDER["gelu"] if name == "zero_pad" else TOKENS
    state, tokens = random_state(source, 1), batch(1)
    gap = (logits(grow(strategy, state, target, 2).state, tokens) - logits(state, tokens)).abs().max().item()
    assert (gap < EXACT) == (strategy.preserves == "function"), gap


@named
@pytest.mark.parametrize("pair", [*WIDER.values(), TOKENS], ids=[*WIDER, "tokenformer"])
def test_new_capacity_is_alive_unless_declared_sterile(
    name: str, parameters: dict[str, Any], pair: tuple[Shape, Shape]
) -> None:
    strategy, (source, target) = make(name, parameters), pair
    if name == "continue" or strategy.supports(source, target):
        return
    growth = grow(strategy, random_state(source, 3), target, 4)
    share = alive_share(growth, gradients(growth.state, batch(5)))
    assert share is not None
    if strategy.sterile:
        assert share < 1e-20
    else:
        assert share > 1e-3


@named
def test_growth_is_a_function_of_its_arguments(name: str, parameters: dict[str, Any]) -> None:
    """Same seed, same weights; another seed, others, unless the method draws nothing; the source is left untouched."""
    strategy = make(name, parameters)
    source, target = TOKENS
    state = random_state(source, 6)
    kept = {n: w.clone() for n, w in state.weights.items()}
    one, same, other = (grow(strategy, state, target, seed).state.weights for seed in (7, 7, 8))
    assert all(torch.equal(one[n], same[n]) for n in one)
    draws = not strategy.sterile and name != "continue"
    assert any(not torch.equal(one[n], other[n]) for n in one) == draws or name == "net2net"
    assert all(torch.equal(state.weights[n], kept[n]) for n in kept)


@given(data=st.data(), seed=seeds)
@settings(max_examples=25)
def test_isometries_transport_gradients_exactly(data: st.DataObject, seed: int) -> None:
    """The gradient of the grown model is the transported gradient of the small one, where every map is an isometry."""
    shape = data.draw(shapes())
    target = data.draw(larger(shape, factor=2))
    rng, state = torch.Generator().manual_seed(seed), random_state(shape, seed)
    copied = {axis: maps.clone(axis, old, new) for axis, (old, new) in changed(shape, target).items()}
    grown_maps = copied | {a: maps.isometry(m.old, m.new, rng) for a, m in copied.items() if a.admits == "isometry"}
    small, tokens = gradients(state, batch(seed)), batch(seed)
    large = gradients(state.widen(target, grown_maps), tokens)
    carried = replace(state, first=small).widen(target, grown_maps).first
    assert all(torch.allclose(large[n], carried[n], atol=EXACT, rtol=1e-8) for n in large)


def test_zero_tokens_is_zero_pad_on_parameter_tokens() -> None:
    """On the token axes the two are one rule: silent keys, values open, the factor held."""
    source, target = TOKENS
    state = random_state(source, 9)
    one, two = (grow(make(name, {}), state, target, 10).state for name in ("zero_tokens", "zero_pad"))
    assert all(torch.equal(one.weights[n], two.weights[n]) for n in one.weights)
    assert one.norms == two.norms == state.norms


def test_the_factor_is_held_or_rescaled() -> None:
    source, target = TOKENS
    state = random_state(source, 11)
    assert set(grow(make("zero_tokens", {}), state, target, 1).state.norms.values()) == {4.0, 10.0}
    assert set(grow(make("zero_tokens", {"factor": "rescaled"}), state, target, 1).state.norms.values()) == {16.0, 40.0}
    assert set(grow(make("net2net", {}), state, target, 1).state.norms.values()) == {16.0, 40.0}


def test_orthogonal_units_are_orthogonal_to_the_old() -> None:
    """ffn 3 -> 5 at residual 6: two new rows in the complement of the old three, at their mean norm, and silent."""
    source = Shape(layers=1, residual=6, heads=1, key=2, value=2, ffn=3, vocab=VOCAB, context=CONTEXT)
    state = grow(make("orthogonal", {}), random_state(source, 12), replace(source, ffn=5), 13).state
    keys, values = state.weights["0/ffn/keys"], state.weights["0/ffn/values"]
    assert (keys[3:] @ keys[:3].T).abs().max() < EXACT
    length = keys[:3].norm(dim=1).mean()
    assert torch.allclose(keys[3:] @ keys[3:].T, torch.eye(2, dtype=torch.float64) * length**2, atol=EXACT)
    assert values[:, 3:].abs().max() == 0


def test_lora_freezes_the_base_and_reports_its_size() -> None:
    source, target = WIDER["gelu"]
    strategy = make("lora", {"rank": 2})
    growth = grow(strategy, random_state(source, 14), target, 15)
    trained = set(growth.state.weights) - set(growth.frozen)
    assert trained == {n for n in growth.state.weights if n.endswith(("/up", "/down"))}
    assert all(bool(mask.all()) for mask in growth.frozen.values())
    assert growth.state.shape == replace(source, rank=2)
    assert not set(growth.state.first) & trained  # new weights start without moments, as a fresh optimizer would


def test_shrinking_and_fixed_axes_are_refused() -> None:
    source, target = WIDER["gelu"]
    with pytest.raises(ValueError, match="would shrink from 12 to 6"):
        changed(target, source)
    with pytest.raises(ValueError, match="grow heads, not key"):
        changed(source, replace(target, key=8))


def test_probes_are_metered() -> None:
    state = random_state(TOKENS[0], 16)
    probe = Probe(lambda used: batch(used, 2), 1)
    assert set(probe.gradients(state)) == set(state.weights)
    assert probe.tokens == 2 * CONTEXT
    assert probe.flops > 0
    with pytest.raises(ValueError, match="probe_batches"):
        probe.batch()


def test_copies_that_a_strategy_states_as_matrices_go_by_index_too() -> None:
    class Matrices(Strategy):
        def widen(self, axis: Any, old: int, new: int, rng: torch.Generator) -> Any:
            m = maps.clone(axis, old, new)
            return AxisMap(m.expand, m.collapse)

    class Indices(Strategy):
        def widen(self, axis: Any, old: int, new: int, rng: torch.Generator) -> Any:
            return maps.clone(axis, old, new)

    source, target = TOKENS
    state = random_state(source, 17)
    one, other = grow(Matrices(), state, target, 18), grow(Indices(), state, target, 18)
    assert one.maps
    assert all(isinstance(m, Copies) for m in one.maps.values())
    for name, weight in one.state.weights.items():
        assert torch.equal(weight, other.state.weights[name])


def test_a_widen_alone_makes_a_working_strategy() -> None:
    class Doubled(Strategy):
        def widen(self, axis: Any, old: int, new: int, rng: torch.Generator) -> Any:
            return maps.clone(axis, old, new)

    source, target = TOKENS
    state, tokens = random_state(source, 17), batch(17)
    grown = grow(Doubled(), state, target, 18)
    assert torch.allclose(logits(grown.state, tokens), logits(state, tokens), atol=EXACT)
    share = alive_share(grown, gradients(grown.state, tokens))
    assert share is not None
    assert share > 1e-3
    with pytest.raises(ValueError, match="override widen"):
        grow(Strategy(), state, target, 19)

    class Short(Doubled):
        def fill(self, weight: Any, grown: Any, grown_maps: Any, fresh: Any) -> Any:
            return fresh[:1]

    with pytest.raises(
        ValueError, match=r"fill returned sizes .* for 0/q/values \(head key q_token\*\): return \(2, 4, 16\)"
    ):
        grow(Short(), state, target, 20)
