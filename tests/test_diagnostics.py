"""Diagnostics: what the parts of an activation are, by the laws of growing; then in the tables of a study."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import CONTEXT, KINDS, VOCAB, batch, larger, random_state, shapes
from torch import Tensor

from growbench import model, plugins
from growbench.axes import AxisMap, LayerMap, Maps
from growbench.checkpoint import Checkpoint
from growbench.diagnostics import TOKENS, Diagnosis, alive_share, diagnose, effective_rank, parts, windows
from growbench.labels import Axis
from growbench.maps import insert, stack
from growbench.results import DIAGNOSTICS as COLUMNS
from growbench.shape import Shape
from growbench.state import State
from growbench.store import CHECKPOINT, CURVE, DIAGNOSTICS, Record, Store
from growbench.strategy import Growth, Probe, Ramp, gradients
from growbench.tables import PLAN, diagnostics, tables, write_tables

EXACT = 1e-10
seeds = st.integers(0, 10_000)


def activations(state: State, tokens: Tensor) -> dict[str, Tensor]:
    net, seen = state.model(), dict[str, Tensor]()
    net.activations = seen
    with torch.no_grad():
        net(tokens[:, :-1])
    return seen


def values(found: Diagnosis) -> dict[tuple[str, str | None, int | None, str], float]:
    return {(row["quantity"], row["axis"], row["layer"], row["part"]): row["value"] for row in found.rows}


def grown(name: str, state: State, target: Shape, seed: int, **parameters: Any) -> Growth:
    strategy = plugins.load("strategy", name)(**parameters)
    growth: Growth = strategy.grow(state, target, Probe(batch, 0), torch.Generator().manual_seed(seed))
    return growth


def axes_of(place: str) -> list[Axis]:
    """The axes of a recorded activation's last dimensions."""
    layer, _, name = place.partition("/")
    names = ["head", "value"] if name == "head" else [name]
    return [Axis(name=n, layer=None if n == "residual" else int(layer)) for n in names]


def along(x: Tensor, place: str, matrices: Mapping[Axis, Tensor]) -> Tensor:
    """One matrix per axis of an activation, on its last dimensions."""
    axes = axes_of(place)
    for position, axis in enumerate(axes, start=-len(axes)):
        if axis in matrices:
            x = torch.tensordot(x, matrices[axis], dims=([position], [1])).movedim(-1, position)
    return x


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Shape, Shape]:
    """A shape, and one twice as large in every width, to which all kinds grow exactly."""
    source = draw(shapes())
    return source, draw(larger(source, factor=2))


# --- what is recorded ------------------------------------------------------------------------------------------------


def test_activations_and_their_gradients_are_those_of_a_layer_by_hand() -> None:
    shape = Shape(layers=1, residual=6, heads=2, key=4, value=3, ffn=5, vocab=VOCAB, context=CONTEXT)
    state, tokens = random_state(shape, 1), batch(2)
    w, x, y = state.weights, tokens[:, :-1], tokens[:, 1:]

    def normed(h: Tensor) -> Tensor:
        return h / (h.square().mean(-1, keepdim=True) + model.EPS).sqrt()

    def turned(h: Tensor) -> Tensor:
        """Rotary positions as complex numbers."""
        angle = torch.arange(CONTEXT)[:, None] * torch.tensor([1.0, model.ROTARY_BASE**-0.5], dtype=torch.float64)
        z = torch.complex(h[..., :2], h[..., 2:]) * torch.polar(torch.ones_like(angle), angle)[None, :, None]
        return torch.cat([z.real, z.imag], -1)

    stream = w["embed"][x]
    q, k, v = (torch.einsum("btr,hkr->bthk", normed(stream), w[f"0/{p}"]) for p in "qkv")
    scores = torch.einsum("bthk,bshk->bhts", turned(q), turned(k)) * state.model().score_scale
    causal = torch.full((CONTEXT, CONTEXT), -math.inf, dtype=torch.float64).triu(1)
    head = torch.einsum("bhts,bshv->bthv", (scores + causal).softmax(-1), v)
    stream = stream + torch.einsum("bthv,rhv->btr", head, w["0/o"])
    ffn = torch.nn.functional.gelu(normed(stream) @ w["0/ffn/keys"].T)
    stream = (stream + ffn @ w["0/ffn/values"].T).requires_grad_()
    logits = normed(stream) @ w["head"].T * state.model().logit_scale
    total = torch.nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
    (gradient,) = torch.autograd.grad(total, [stream])

    seen = activations(state, tokens)
    assert set(seen) == {"0/head", "0/ffn", "0/residual"}
    for name, expected in (("head", head), ("ffn", ffn), ("residual", stream)):
        assert torch.allclose(seen[f"0/{name}"], expected, atol=1e-12, rtol=0), name
    found = values(diagnose(Growth(state=state), tokens, {}))
    for name, expected in (("head", head), ("ffn", ffn), ("residual", stream)):
        rms = expected.square().mean().sqrt().item()
        assert found["activation_rms", name, 0, "all"] == pytest.approx(rms, rel=1e-12)
    assert found["gradient_rms", "residual", 0, "all"] == pytest.approx(gradient.square().mean().sqrt().item())
    singular = torch.linalg.svd(stream.detach().flatten(0, 1)).S
    p = singular / singular.sum()
    assert found["effective_rank", "residual", 0, "all"] == pytest.approx((-(p * p.log()).sum()).exp().item())


@given(shape=shapes(), seed=seeds)
def test_recording_is_off_and_changes_nothing(shape: Shape, seed: int) -> None:
    state, tokens = random_state(shape, seed), batch(seed)
    plain, recording = state.model(), state.model()
    assert plain.activations is None
    recording.activations = {}
    assert torch.equal(model.loss(plain, tokens), model.loss(recording, tokens))
    projections = [f"{p}_token" for p in "qkvo"] if shape.placement == "everywhere" else []
    names = ["residual", "ffn", "head", *projections]
    assert set(recording.activations) == {f"{i}/{name}" for i in range(shape.layers) for name in names}
    for place, x in recording.activations.items():
        assert x.shape == (3, CONTEXT, *(shape.axes[axis] for axis in axes_of(place)))


# --- old and new -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["zero_pad", "net2net", "orthogonal", "hyperclone"])
@settings(max_examples=20)
@given(pair=pairs(), seed=seeds)
def test_right_after_a_preserving_growth_the_old_part_is_the_source(
    name: str, pair: tuple[Shape, Shape], seed: int
) -> None:
    (source, target), tokens = pair, batch(seed)
    if plugins.load("strategy", name)().supports(source, target):
        return
    state = random_state(source, seed)
    growth = grown(name, state, target, seed)
    before, after = activations(state, tokens), activations(growth.state, tokens)
    assert before.keys() == after.keys()
    for place, x in after.items():
        collapsed = along(x, place, {axis: m.collapse for axis, m in growth.maps.items()})
        assert torch.allclose(collapsed, before[place], atol=EXACT, rtol=0), place
        layer, _, kind = place.partition("/")
        projected = along(x, place, {axis: m.expand @ torch.linalg.pinv(m.expand) for axis, m in growth.maps.items()})
        found = parts(growth, kind, int(layer), x)
        assert found["old"][0] == pytest.approx(projected.square().sum().item(), rel=1e-9)
        assert found["new"][0] == pytest.approx((x - projected).square().sum().item(), rel=1e-9, abs=EXACT)
        assert found["old"][1] == before[place].numel()
    one, other = values(diagnose(Growth(state=state), tokens, {})), values(diagnose(growth, tokens, {}))
    for layer_ in range(source.layers):
        place_ = ("effective_rank", "residual", layer_, "all")
        assert other[place_] == pytest.approx(one[place_], rel=1e-6)
        ratio = other["activation_rms", "residual", layer_, "old"] / one["activation_rms", "residual", layer_, "all"]
        assert ratio == pytest.approx(math.sqrt(target.residual / source.residual), rel=1e-9)
        # the rms over all units is that of the source; the new ones hold nothing
        assert other["activation_rms", "residual", layer_, "all"] == pytest.approx(
            one["activation_rms", "residual", layer_, "all"], rel=1e-9
        )
        assert other["activation_rms", "residual", layer_, "new"] < 1e-8


@given(data=st.data(), seed=seeds)
def test_the_parts_squares_sum_to_the_whole_for_any_weights(data: st.DataObject, seed: int) -> None:
    source = data.draw(shapes())
    target = data.draw(larger(source))
    rng = torch.Generator().manual_seed(seed)
    maps = _any_maps(source, target, rng)
    state, tokens = random_state(target, seed), batch(seed)
    growth, counted = Growth(state=state, maps=maps), 0
    found = values(diagnose(growth, tokens, {}))
    for quantity in ("activation_rms", "gradient_rms"):
        for kind, size in _sizes(target).items():
            for layer in range(target.layers):
                whole, old = size(target, layer), size(source, layer)
                total = whole * found[quantity, kind, layer, "all"] ** 2
                sides = {"old": old, "new": whole - old} if maps else {}
                there = {part: dim for part, dim in sides.items() if dim}
                assert {p for q, k, i, p in found if (q, k, i) == (quantity, kind, layer)} == {"all", *there}
                if maps:
                    parted = sum(dim * found[quantity, kind, layer, part] ** 2 for part, dim in there.items())
                    assert parted == pytest.approx(total, rel=1e-9)
                    counted += 1
    assert bool(counted) == bool(maps)


def _any_maps(source: Shape, target: Shape, rng: torch.Generator) -> Maps:
    """A map that no built-in has, neither isometric nor a selection, for every axis that grows."""
    out = {}
    for axis, new in target.axes.items():
        if new > (old := source.axes[axis]):
            expand = torch.randn(new, old, generator=rng, dtype=torch.float64) + 3 * torch.eye(new, old).double()
            out[axis] = AxisMap(expand, torch.linalg.pinv(expand))
    return out


def _sizes(shape: Shape) -> dict[str, Any]:
    """How many units lie on each kind of axis, in a layer of a shape."""
    sizes: dict[str, Any] = {
        "residual": lambda s, i: s.residual,
        "ffn": lambda s, i: s.at("ffn", i),
        "head": lambda s, i: s.at("heads", i) * s.value,
    }
    return sizes | ({"token": lambda s, i: 4 * s.at("tokens", i)} if shape.placement == "everywhere" else {})


def test_a_muted_layer_is_new_and_a_copied_one_old() -> None:
    shape = Shape(layers=2, residual=4, heads=2, key=2, value=2, ffn=3, vocab=VOCAB, context=CONTEXT)
    for layers, added in ((insert(2, 4), {1, 3}), (stack(2, 4), set[int]())):
        state, tokens = random_state(shape, 1).deepen(layers, torch.Generator().manual_seed(0)), batch(3)
        found = values(diagnose(Growth(state=state, layers=layers), tokens, {}))
        for layer in range(4):
            for axis in ("residual", "ffn", "head"):
                there = {p for q, a, i, p in found if (q, a, i) == ("activation_rms", axis, layer)}
                assert there == {"all", "new" if layer in added and axis != "residual" else "old"}
        if added:
            before = activations(random_state(shape, 1), tokens)
            after = activations(state, tokens)
            assert all(torch.equal(after[f"{i}/residual"], before[f"{i // 2}/residual"]) for i in range(4))


# --- effective rank --------------------------------------------------------------------------------------------------


@given(k=st.integers(1, 8), extra=st.integers(0, 5), scale=st.floats(1e-3, 1e3), seed=seeds)
def test_effective_rank_counts_directions_of_equal_size(k: int, extra: int, scale: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    q = torch.linalg.qr(torch.randn(8 + extra, k, generator=rng, dtype=torch.float64)).Q
    turn = torch.linalg.qr(torch.randn(k + extra, k, generator=rng, dtype=torch.float64)).Q
    assert effective_rank(scale * q) == pytest.approx(k, rel=1e-9)
    assert effective_rank(scale * q @ turn.T) == pytest.approx(k, rel=1e-9)
    assert effective_rank(scale * q[:, :1] @ turn[:, :1].T) == pytest.approx(1, rel=1e-9)


def test_effective_rank_of_known_spectra() -> None:
    assert effective_rank(torch.diag(torch.tensor([2.0, 1.0, 1.0]))) == pytest.approx(2**1.5)  # H = 1.5 bits
    assert effective_rank(torch.diag(torch.tensor([4.0, 2.0, 1.0, 1.0, 0.0]))) == pytest.approx(2**1.75)
    assert effective_rank(torch.zeros(4, 3)) == 0
    assert math.isnan(effective_rank(torch.tensor([[1.0, math.inf]])))


# --- alive share, masks, windows, cost -------------------------------------------------------------------------------


def test_a_ramp_mutes_the_activations_and_not_the_alive_share() -> None:
    source = Shape(layers=1, residual=4, heads=2, key=2, value=2, ffn=3, vocab=VOCAB, context=CONTEXT)
    growth = grown("zero_pad", random_state(source, 1), replace(source, ffn=6), 2)
    ramp = Ramp(axis="0/ffn", new=torch.arange(6) >= 3, tokens=10)
    held = Checkpoint(state=growth.state, ramps=(ramp,), ramp_start=100, maps=growth.maps)
    tokens = batch(3)
    plain = diagnose(growth, tokens, {})
    begun = diagnose(held.growth, tokens, held.multipliers(100))
    assert values(begun)["activation_rms", "ffn", 0, "new"] == 0 < values(plain)["activation_rms", "ffn", 0, "new"]
    share = alive_share(growth, gradients(growth.state, tokens))
    assert begun.alive_share == plain.alive_share == share == values(begun)["alive_share", None, None, "new"]
    assert begun.flops == 2 * plain.flops
    assert diagnose(held.growth, tokens, held.multipliers(110)) == plain


def test_without_a_growth_there_is_the_whole_alone() -> None:
    shape = Shape(layers=1, residual=4, heads=2, key=2, value=2, ffn=3, vocab=VOCAB, context=CONTEXT)
    found = diagnose(Growth(state=random_state(shape, 1)), batch(1), {})
    assert found.alive_share is None
    assert {row["part"] for row in found.rows} == {"all"}


@pytest.mark.parametrize(("count", "context", "kept"), [(256, 64, 12), (3, 64, 3), (500, 1, 500), (9, 2000, 1)])
def test_windows_are_few_and_evenly_spaced(count: int, context: int, kept: int) -> None:
    valid = torch.arange(count)[:, None].expand(-1, context + 1)
    found = windows(valid)
    assert found.shape == (kept, context + 1)
    assert found[:, 0].tolist() == [i * count // kept for i in range(kept)]
    assert kept == 1 or kept * context <= TOKENS


# --- in a study ------------------------------------------------------------------------------------------------------


def arm_path(run: toy.Run, arm: str) -> list[str]:
    found = next(a for a in run.plan.arms if a.about["arm"] == arm and a.about["seed"] == 0)
    return list(max(found.points, key=lambda point: point.budget).path)


def expected(arm: str, kind: str) -> set[tuple[str, str, str | None, int | None, str]]:
    """(when, quantity, axis, layer, part) of every row of a stage on zero_pad's path; kind source: before growth."""
    axes = ["residual", "ffn", "head"] + ["token"] * arm.startswith("tokenformer")
    out = set[tuple[str, str, str | None, int | None, str]]()
    for when, growing in {"source": [("end", False)], "grow": [("before", False), ("after", True)]}.get(
        kind, [("end", True)]
    ):
        out |= {(when, "alive_share", None, None, "new")} if growing else set()
        for layer in range(2 if growing else 1):
            out |= {(when, "effective_rank", axis, layer, "all") for axis in ("residual", "ffn")}
            for axis in axes:
                grew = {"all", "old"} if axis == "residual" else {"all", "new"} if layer else {"all", "old", "new"}
                if arm.startswith("tokenformer") and axis == "head" and not layer:
                    grew = {"all", "old"}  # heads do not grow
                for part in grew if growing else {"all"}:
                    out |= {(when, q, axis, layer, part) for q in ("activation_rms", "gradient_rms")}
    return out


@pytest.mark.parametrize("arm", ["transformer/zero_pad", "tokenformer/zero_pad"])
def test_every_stage_of_a_study_is_diagnosed(arm: str, toy_run: toy.Run) -> None:
    table = pd.read_parquet(toy_run.out / "diagnostics.parquet")
    pd.testing.assert_frame_equal(table, diagnostics(toy_run.out))
    assert {name: str(dtype) for name, dtype in table.dtypes.items()} == {n: c.dtype for n, c in COLUMNS.items()}
    own = table[(table["arm"] == arm) & (table["seed"] == 0)]
    names, grew, position = ["when", "quantity", "axis", "layer", "part"], False, 0
    for key in arm_path(toy_run, arm)[1:]:
        record = toy_run.records[key]
        assert DIAGNOSTICS in record.files
        grew |= record.kind == "grow"
        stage = own[own["stage"] == key]
        rows = [tuple(None if pd.isna(v) else v for v in row) for row in stage[names].itertuples(index=False)]
        assert len(rows) == len(set(rows))
        assert set(rows) == expected(arm, record.kind if grew else "source")
        position += record.tokens
        assert set(stage["tokens"]) == {position}
        assert stage["budget"].isna().all() == (record.kind != "cooldown")
        assert (stage["value"].dropna() >= 0).all()
        assert stage["value"].notna().all()
    assert set(own["stage"]) == set(arm_path(toy_run, arm)[1:])
    assert own["kind"].nunique() == 3


def test_the_alive_share_of_the_results_is_the_one_after_growth(toy_run: toy.Run) -> None:
    results, _, _ = tables(toy_run.out)
    table = diagnostics(toy_run.out)
    after = table[(table["quantity"] == "alive_share") & (table["when"] == "after")]
    for row in results[results["growth_steps"] == 1].itertuples():
        (found,) = after[(after["arm"] == row.arm) & (after["seed"] == row.seed)]["value"]
        assert found == row.alive_share
    later = table[(table["quantity"] == "alive_share") & (table["when"] == "end")]
    assert later.groupby(["arm", "seed"]).size().min() >= 2
    assert later["value"].between(0, 1).all()


def test_probes_lie_between_before_and_after(toy_run: toy.Run) -> None:
    own = diagnostics(toy_run.out).query("arm == 'transformer/probing' and seed == 0 and kind == 'grow'")
    places = own.groupby("when")["tokens"].unique()
    assert places["before"].tolist() == [20 * toy.STEP]
    assert places["after"].tolist() == [22 * toy.STEP]


def test_maps_stay_in_the_checkpoints_after_growth(toy_run: toy.Run) -> None:
    store, held = Store(toy_run.out), list[Checkpoint]()
    for key in arm_path(toy_run, "transformer/zero_pad"):
        read = Checkpoint.load(store.folder(key) / CHECKPOINT)
        if held or toy_run.records[key].kind == "grow":
            held.append(read)
        else:
            assert (dict(read.maps), read.layers) == ({}, None)
    assert len(held) >= 3
    assert {read.layers for read in held} == {LayerMap(source=(0, 0), muted=frozenset({1}))}
    assert {str(axis) for axis in held[0].maps} == {"0/ffn", "1/ffn", "0/head", "1/head"}
    for read in held:
        assert all(torch.equal(read.maps[axis].expand, m.expand) for axis, m in held[0].maps.items())


def test_a_run_that_is_resumed_has_the_same_diagnostics(toy_run: toy.Run, tmp_path: Path) -> None:
    store, before = Store(shutil.copytree(toy_run.out, tmp_path / "out")), diagnostics(toy_run.out)
    path = arm_path(toy_run, "transformer/zero_pad")
    for key in path[-2:]:
        store.discard(key)
    (store.out / "diagnostics.parquet").unlink()
    partial = diagnostics(store.out)
    gone = before["stage"].isin(path[-2:])
    pd.testing.assert_frame_equal(partial, before[~gone].reset_index(drop=True))
    toy.work(toy_run.plan, store.out, [toy_run.plan.stages[key] for key in path[-2:]])
    write_tables(store.out)
    pd.testing.assert_frame_equal(pd.read_parquet(store.out / "diagnostics.parquet"), before)


def planted(
    run: toy.Run, store: Store, jump: float | None, after: float, losses: Sequence[Sequence[float]]
) -> dict[int, Any]:
    """tokens_to_recover by budget of an arm whose growth and trunk stages after it are given these losses."""
    path = arm_path(run, "transformer/zero_pad")
    start = next(i for i, key in enumerate(path) if run.records[key].kind == "grow")
    position, known = 20 * toy.STEP, zip(path[start:], [[after], *losses], strict=False)
    for key, measured in known:
        record, folder = run.records[key], store.folder(key)
        kept = {name: (folder / name).read_bytes() for name in record.files if name != CURVE}
        step = record.tokens / len(measured)
        curve = pd.DataFrame(
            [{"tokens": round(position + step * (i + 1)), "loss": loss} for i, loss in enumerate(measured)]
        ).assign(train_loss=1.0, learning_rate=0.1)
        measures = dict(record.measures) | ({"growth_loss_jump": jump} if record.kind == "grow" else {})

        def fill(beside: Path, kept: dict[str, bytes] = kept, curve: pd.DataFrame = curve) -> None:
            for name, content in kept.items():
                (beside / name).write_bytes(content)
            curve.to_parquet(beside / CURVE, index=False)

        store.write(replace(record, measures=measures), fill)
        position += record.tokens
    results, _, _ = tables(store.out)
    own = results[(results["arm"] == "transformer/zero_pad") & (results["seed"] == 0)]
    return dict(zip(own["budget"], own["tokens_to_recover"], strict=True))


def test_tokens_to_recover_are_those_to_the_loss_before_growth(toy_run: toy.Run, tmp_path: Path) -> None:
    store, path = Store(tmp_path / "out"), arm_path(toy_run, "transformer/zero_pad")
    points = next(a.points for a in toy_run.plan.arms if path[-1] in a.points[-1].path)
    for key in {key for point in points for key in point.path}:
        shutil.copytree(Store(toy_run.out).folder(key), store.folder(key))
    shutil.copy(toy_run.out / PLAN, store.out)
    start = next(i for i, key in enumerate(path) if toy_run.records[key].kind == "grow")
    trunk: list[Record] = [toy_run.records[key] for key in path[start + 1 : -1]]
    assert [record.kind for record in trunk] == ["train", "train"]
    first, second = (record.tokens for record in trunk)
    half, full = 30 * toy.STEP, 40 * toy.STEP

    found = planted(toy_run, store, 0.5, 3.5, [[3.4, 3.0], [2.9, 2.8]])  # back at 3.0 at the end of the first
    assert found == {half: first, full: first}
    found = planted(toy_run, store, 0.5, 3.5, [[3.2, 3.1], [3.1, 2.9]])  # the shorter path ends before
    assert pd.isna(found[half])
    assert found[full] == first + second
    found = planted(toy_run, store, 0.5, 3.5, [[3.2, 3.1], [3.1, 3.01], [2.0]])  # the cooldown is not the trunk
    assert all(pd.isna(value) for value in found.values())
    assert planted(toy_run, store, 1e-7, 3.5, [[9.0], [9.0]]) == {half: 0, full: 0}
    assert planted(toy_run, store, -0.5, 3.5, [[9.0], [9.0]]) == {half: 0, full: 0}
    assert all(pd.isna(value) for value in planted(toy_run, store, None, 3.5, [[1.0], [1.0]]).values())
    results, _, _ = tables(toy_run.out)
    assert results.loc[results["growth_steps"] == 0, "tokens_to_recover"].isna().all()


def test_every_kind_of_model_is_looked_at() -> None:
    for kind in KINDS.values():
        everywhere = kind.get("placement") == "everywhere"
        shape = Shape(layers=1, residual=4, heads=1, key=2, value=2, ffn=3, tokens=2 if everywhere else 0, vocab=VOCAB,
                      context=CONTEXT, **kind)  # fmt: skip
        found = diagnose(Growth(state=random_state(shape, 1)), batch(1), {})
        axes = {"residual", "ffn", "head"} | ({"token"} if everywhere else set())
        assert {row["axis"] for row in found.rows if row["quantity"] == "activation_rms"} == axes
