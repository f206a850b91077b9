"""The coordinate check: activations are read right, their slopes are those of the theory, and a wrong rule is seen.

Exponents of the theory are multiples of 1/2, so that a measured slope is told from its neighbours within 1/4.
"""

import itertools
import math
from html import unescape
from statistics import geometric_mean
from typing import Any

import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import batch, random_state, shapes

from growbench.coordinates import GROWN, Observed, measure, multiplied, slopes
from growbench.labels import Weight
from growbench.optimizer import Settings
from growbench.parametrization import Name, Parametrization
from growbench.reports import coordinates as drawn
from growbench.reports import words
from growbench.shape import Shape

NAMES: tuple[Name, ...] = ("mup", "standard")
LENGTH, VOCAB, STEPS = 8, 4, 3
SIZES: dict[str, Any] = {"layers": 2, "heads": 2, "key": 8, "value": 8, "vocab": VOCAB, "context": LENGTH}
BASES = {
    "transformer": Shape(**SIZES, residual=16, ffn=64),
    "tokenformer": Shape(**SIZES, residual=16, ffn=64, tokens=16, placement="everywhere", nonlinearity="l2_gelu"),
}
TOKENS = {f"{p}_token" for p in "qkvo"}
AXES = {"residual", "ffn", "ffn scores", "head", "attention logits", "logits", "next token's logit"}
EXPECTED = {"transformer": AXES, "tokenformer": AXES | TOKENS | {f"{token} scores" for token in TOKENS}}
LOGITS = ["logits", "next token's logit"]
SMALL = Settings(learning_rate=1e-3)
"""So small that the widest `standard` model still moves in proportion to its rate."""


def batches() -> list[torch.Tensor]:
    """Few tokens of few kinds, against which the widths are large: there the slopes are those of infinite width."""
    rng = torch.Generator().manual_seed(7)
    return [torch.randint(VOCAB, (1, LENGTH + 1), generator=rng) for _ in range(STEPS)]


def fitted(
    architecture: str, name: Name, settings_: Settings = SMALL, base: Shape | None = None, **how: Any
) -> pd.DataFrame:
    """Slopes by axis and steps."""
    how = dict[str, Any](architecture=architecture, seeds=range(8), dtype=torch.float64) | how
    return slopes(measure(base or BASES[architecture], name, batches(), settings_, **how)).set_index(["axis", "steps"])


def at(fits: pd.DataFrame, column: str, steps: int) -> pd.Series:
    return fits[column].xs(steps, level="steps")


@given(shapes(), st.integers(0, 1000))
@settings(max_examples=20)
def test_what_is_observed_is_what_the_model_computes(shape: Shape, seed: int) -> None:
    """The logits are the model's own; attention's logits make its heads of the values, scores and units its layers."""
    state, tokens = random_state(shape, seed), batch(seed)
    net = Observed(shape, state.weights, state.norms, state.scaling)
    seen, (size, length) = net.observe(tokens), tokens[:, :-1].shape
    with torch.no_grad():
        assert torch.equal(seen["logits"], state.model()(tokens[:, :-1]))
        last = seen[f"{shape.layers - 1}/residual"]
        readout = net.weights["embed" if shape.tied else "head"]
        assert torch.allclose(seen["logits"], model_norm(last) @ readout.T * net.logit_scale, atol=1e-12)
        x = model_norm(net.weights["embed"][tokens[:, :-1]])
        heads = shape.at("heads", 0)
        full = x.new_full((size, heads, length, length), -math.inf)
        full[..., *torch.tril_indices(length, length)] = seen["0/attention logits"]
        values = net.project(0, "v", x).view(size, length, heads, -1).transpose(1, 2)
        mixed = (full.softmax(-1) @ values).transpose(1, 2)
        assert torch.allclose(seen["0/head"], mixed, atol=1e-12)
        assert torch.allclose(seen["0/residual"], last, atol=0) == (shape.layers == 1)
        if shape.nonlinearity == "relu":
            assert torch.equal(seen["0/ffn"], seen["0/ffn scores"].relu())
    for b, t in ((0, 0), (size - 1, length - 1)):
        assert seen["next token's logit"][b, t] == seen["logits"][b, t, tokens[b, t + 1]]
    assert net.activations is None


def model_norm(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-8).sqrt()


@pytest.mark.parametrize("architecture", BASES)
def test_maximal_update_keeps_every_coordinate(architecture: str) -> None:
    """Slope 0 before training and for the change, on every axis; logits start as a mean of independent terms: -1/2."""
    fits = fitted(architecture, "mup")
    start, expected = at(fits, "slope", 0), pd.Series(0.0, index=sorted(EXPECTED[architecture]))
    expected[LOGITS] = -0.5
    assert set(start.index) == EXPECTED[architecture]
    assert ((start - expected).abs() < 1 / 4).all(), start
    for steps in range(1, STEPS + 1):
        change = at(fits, "slope_change", steps)
        assert set(change.index) == EXPECTED[architecture]
        assert (change.abs() < 1 / 4).all(), (steps, change)
        inner = at(fits, "slope", steps).drop(LOGITS)
        assert (inner.abs() < 1 / 4).all(), (steps, inner)


@pytest.mark.parametrize("architecture", BASES)
def test_standard_moves_further_the_wider(architecture: str) -> None:
    """Slope 0 before training; in the first step 1 for what reads a grown axis, logits from 1 (readout) to 3/2."""
    fits = fitted(architecture, "standard")
    start, change = at(fits, "slope", 0), at(fits, "slope_change", 1)
    assert (start.abs() < 1 / 4).all(), start
    assert ((change.drop(LOGITS) - 1).abs() < 1 / 4).all(), change
    assert change[LOGITS].between(1 - 1 / 4, 3 / 2 + 1 / 4).all(), change


@pytest.mark.parametrize(
    ("architecture", "axis", "moved"),
    [
        ("transformer", "residual", "ffn scores"),
        ("transformer", "head", "residual"),
        ("transformer", "ffn", "residual"),
        ("tokenformer", "residual", "v_token scores"),
        ("tokenformer", "q_token", "attention logits"),
        ("tokenformer", "v_token", "head"),
        ("tokenformer", "o_token", "residual"),
        ("tokenformer", "ffn", "residual"),
    ],
)
def test_a_rate_that_forgets_an_axis_is_seen(
    architecture: str, axis: str, moved: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were one axis' readers trained at the base's rate at any width, what they write would leave the bound of 1/4."""
    rule = Parametrization.rate

    def forgetful(self: Parametrization, weight: Weight, name: str) -> float:
        return 1.0 if any(d.axis.name == axis and d.role == "reads" for d in weight.dims) else rule(self, weight, name)

    monkeypatch.setattr(Parametrization, "rate", forgetful)
    change = at(fitted(architecture, "mup", seeds=range(4)), "slope_change", 1)
    assert change[moved] > 1 / 4, change


@pytest.mark.parametrize(
    ("architecture", "grown"),
    [("tokenformer", ("tokens", "ffn")), ("transformer", ("ffn",)), ("transformer", ("heads",))],
)
def test_inner_sizes_alone_learn_faster_the_more_there_are(architecture: str, grown: tuple[str, ...]) -> None:
    """n units of initial size 1/sqrt(n) push a residual stream of d together by sqrt(n/d): slope 1/2, not 0."""
    fits = fitted(architecture, "mup", grown=grown, multiples=(16, 64, 256), seeds=range(4))
    start, change = at(fits, "slope", 0)["residual"], at(fits, "slope_change", 1)["residual"]
    assert abs(start) < 1 / 4
    assert abs(change - 1 / 2) < 1 / 4


@pytest.mark.slow
@pytest.mark.parametrize("architecture", BASES)
def test_wider_models_come_closer_to_the_exponents(architecture: str) -> None:
    """Four times as wide, half the distance is allowed: interference falls as 1/sqrt(width)."""
    wide = multiplied(BASES[architecture], 4)
    mup = fitted(architecture, "mup", base=wide)
    assert (at(mup, "slope_change", 1).abs() < 1 / 8).all(), mup
    assert (at(mup, "slope", 0).drop(LOGITS).abs() < 1 / 8).all(), mup
    standard = fitted(architecture, "standard", Settings(learning_rate=1e-5), base=wide)
    assert ((at(standard, "slope_change", 1).drop(LOGITS) - 1).abs() < 1 / 8).all(), standard


@given(st.floats(-2, 2), st.floats(-2, 2))
def test_slopes_are_those_of_planted_powers(slope: float, slope_change: float) -> None:
    """Two layers of different size; one axis that diverged and one that never moved have no slope."""
    same = {"architecture": "a", "parametrization": "mup", "steps": 1}
    rows = [
        same
        | {"axis": axis, "layer": layer, "multiple": m, "width": 16 * m}
        | {"rms": (layer + 1) * m**slope * (math.inf if axis == "gone" and m == 4 else 1)}
        | {"rms_change": 0.0 if axis == "still" else 3.0**layer * m**slope_change}
        for axis, layer, m in itertools.product(("ffn", "gone", "still"), (0, 1), (1, 2, 4))
    ]
    fits = slopes(pd.DataFrame(rows)).set_index("axis")
    assert [fits["slope"]["ffn"], fits["slope_change"]["ffn"]] == pytest.approx([slope, slope_change], abs=1e-9)
    assert fits["slope"].isna().to_dict() == {"ffn": False, "gone": True, "still": False}
    assert fits["slope_change"].isna().to_dict() == {"ffn": False, "gone": False, "still": True}


def test_measured_alike_twice_and_nothing_else_is_touched() -> None:
    """Rows for every width, axis, layer and step; the same again; the global generator and the batches as before."""
    data, before = batches(), torch.get_rng_state()
    copies = [one.clone() for one in data]
    first, again = (
        measure(BASES["tokenformer"], "mup", data, SMALL, architecture="t", multiples=(1, 2), seeds=(0, 5))
        for _ in range(2)
    )
    pd.testing.assert_frame_equal(first, again)
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(one, copy) for one, copy in zip(data, copies, strict=True))
    layered, plain = EXPECTED["tokenformer"] - set(LOGITS), len(LOGITS)
    assert len(first) == 2 * (STEPS + 1) * (2 * len(layered) + plain)
    assert (first["rms_change"].isna() == (first["steps"] == 0)).all()
    assert (first["layer"].isna() == first["axis"].isin(LOGITS)).all()
    assert first["width"].unique().tolist() == [16, 32]


def test_rms_pools_seeds_by_their_squares() -> None:
    one, two, both = (
        measure(BASES["transformer"], "mup", batches(), SMALL, architecture="t", multiples=(1,), seeds=seeds)
        for seeds in ((0,), (1,), (0, 1))
    )
    for size in ("rms", "rms_change"):
        pooled = ((one[size] ** 2 + two[size] ** 2) / 2) ** 0.5
        pd.testing.assert_series_equal(both[size], pooled, rtol=1e-12)


def test_a_multiple_grows_what_it_should() -> None:
    base = BASES["tokenformer"]
    wide = multiplied(base, 4)
    assert (wide.residual, wide.per_layer("heads"), wide.per_layer("ffn")) == (64, (8, 8), (256, 256))
    assert (wide.per_layer("tokens"), wide.key, wide.value, wide.layers) == ((64, 64), 8, 8, 2)
    inner = multiplied(base, 2, ("tokens",))
    assert (inner.residual, inner.per_layer("tokens"), inner.per_layer("ffn")) == (16, (32, 32), (64, 64))
    assert multiplied(base, 1, GROWN).params == base.params


def test_the_figures_draw_what_was_measured() -> None:
    """A figure for each parametrization; its table holds sizes and slopes, a label beside it names each axis."""
    measured = pd.concat(
        measure(BASES["tokenformer"], name, batches(), SMALL, architecture="tokenformer", multiples=(1, 2), seeds=(0,))
        for name in NAMES
    )
    figures = drawn.draw(measured)
    assert [figure.name for figure in figures] == ["coordinates-tokenformer-mup", "coordinates-tokenformer-standard"]
    for name, figure in zip(NAMES, figures, strict=True):
        rows, fits = measured[measured["parametrization"] == name], figure.table.set_index(["axis", "multiple"])
        change = at(slopes(rows).set_index(["axis", "steps"]), "slope_change", STEPS)
        for axis in EXPECTED["tokenformer"]:
            assert f">{axis} {words.fixed(change[axis], 2)}<" in unescape(figure.svg)
            assert fits["slope of the change"][axis, 1] == change[axis]
            own = rows[(rows["axis"] == axis) & (rows["multiple"] == 2)]
            before, after = own[own["steps"] == 0]["rms"].to_list(), own[own["steps"] == STEPS]["rms_change"].to_list()
            assert fits["rms before training"][axis, 2] == pytest.approx(geometric_mean(before))
            assert fits["rms of the change after 3 steps"][axis, 2] == pytest.approx(geometric_mean(after))
        assert len(figure.key) == len(EXPECTED["tokenformer"])


def test_a_figure_of_inner_sizes_alone_says_so() -> None:
    """Where residual stays, flat lines are not what to expect under mup, and the caption does not say so."""
    how: dict[str, Any] = {"architecture": "t", "multiples": (1, 2), "seeds": (0,)}
    for grown, inner in (({"ffn"}, True), ({"ffn", "residual"}, False)):
        (figure,) = drawn.draw(measure(BASES["transformer"], "mup", batches(), SMALL, grown=sorted(grown), **how))
        assert ("residual stream does not" in figure.caption, "lines lie flat" in figure.caption) == (inner, not inner)


def test_a_figure_of_what_diverged_says_so() -> None:
    measured = measure(BASES["transformer"], "mup", batches(), SMALL, architecture="t", multiples=(1, 2), seeds=(0,))
    measured["rms_change"] = math.nan
    (figure,) = drawn.draw(measured)
    assert "nothing finite was measured" in figure.svg
    assert "No slope could be fitted." in figure.alt
