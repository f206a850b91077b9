"""The loop, growth within it and the workers: what a stage computes, and that nothing but its identity changes it."""

import ast
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import toy
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from shapes import random_state, shapes

from growbench import model, train
from growbench.axes import LayerMap
from growbench.checkpoint import Checkpoint
from growbench.labels import Axis
from growbench.launch import Event, local
from growbench.maps import isometry, zero_pad
from growbench.model import LanguageModel
from growbench.shape import Shape
from growbench.store import CHECKPOINT, COORDINATES, CURVE, DIAGNOSTICS, EVENTS, RECORD, Stage, Store
from growbench.strategy import Growth, Ramp
from growbench.task import order, windows


def checkpoint(run: toy.Run, key: str) -> Checkpoint:
    return Checkpoint.load(Store(run.out).folder(key) / CHECKPOINT)


def stages(run: toy.Run, arm: str) -> list[Stage]:
    """The path of an arm of seed 0 to its full budget."""
    points = next(a for a in run.plan.arms if a.about["arm"] == arm and a.about["seed"] == 0).points
    path = max(points, key=lambda point: point.budget).path
    return [run.plan.stages[key] for key in path]


# --- nothing but the identity changes a number -----------------------------------------------------------------------


def test_a_run_ends_well_and_its_rerun_does_nothing(toy_run: toy.Run, tmp_path: Path) -> None:
    assert toy_run.summary.finished == len(toy_run.plan.stages) == len(toy_run.records)
    assert {record.status for record in toy_run.records.values()} == {"ok"}
    out = shutil.copytree(toy_run.out, tmp_path / "out")
    before = {path: path.stat().st_mtime_ns for path in (out / "stages").rglob("*")}
    events: list[Event] = []
    summary = local.run(toy_run.plan, out, workers=2, listener=events.append)
    assert (summary.finished, summary.cached) == (0, len(toy_run.plan.stages))
    assert {event.kind for event in events} == {"cached"}
    assert (events[-1].done, events[-1].tokens_done) == (events[-1].total, events[-1].tokens_total)
    assert {path: path.stat().st_mtime_ns for path in (out / "stages").rglob("*")} == before


def test_numbers_do_not_depend_on_workers_order_or_process(toy_run: toy.Run, tmp_path: Path) -> None:
    only = toy.plan(toy_run.out.parent, plugins=toy_run.plan.plugin_paths, strategies=["scratch", "probing"])
    assert only.stages.keys() < toy_run.plan.stages.keys()
    local.run(only, tmp_path / "one", workers=1, listener=lambda event: None)
    assert Store(tmp_path / "one").records().keys() == only.stages.keys()
    assert toy.unchanged(Store(tmp_path / "one").records(), toy_run.records)
    assert toy.unchanged(toy.work(toy_run.plan, tmp_path / "here"), toy_run.records)


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("kind", ["init", "grow"])
def test_a_trunk_in_two_stages_is_the_trunk_in_one(kind: str, precision: str, optimizer: str, tmp_path: Path) -> None:
    probing = toy.plugin(tmp_path, "probing", toy.PROBING)
    settings = {"precision": precision, "optimizer": optimizer, "weight_decay": 0.1}
    plan = toy.plan(tmp_path, plugins=[probing], strategies=["probing"], train=settings)
    store = Store(tmp_path / "out")
    toy.work(plan, store.out)
    parent = next(stage for stage in plan.stages.values() if stage.kind == kind)
    position = Checkpoint.load(store.folder(parent.key) / CHECKPOINT).state.tokens

    def extended(parent: Stage, steps: int) -> Stage:
        identity = {name: parent.identity[name] for name in ("core", "device", "task", "seed", "train")}
        until = position + steps * toy.STEP
        return Stage(kind="train", label=f"to {until}", parent=parent.key, identity=identity | {"until": until})

    whole, half = extended(parent, 13), extended(parent, 6)
    rest = extended(half, 13)
    records = toy.work(plan, store.out, [whole, half, rest])
    assert records[half.key].files[CHECKPOINT] != records[whole.key].files[CHECKPOINT]
    assert records[rest.key].files[CHECKPOINT] == records[whole.key].files[CHECKPOINT]
    assert records[rest.key].measures == records[whole.key].measures


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("arm", ["transformer/scratch", "tokenformer/zero_pad", "transformer/continue"])
def test_every_arm_of_a_seed_reads_the_same_windows_in_the_same_order(
    arm: str, seed: int, toy_run: toy.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[np.ndarray[Any, Any]] = []
    loss = model.loss

    def recorded(net: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and not isinstance(net, LanguageModel):  # training goes through Fabric's wrapper
            read.append(batch.numpy())
        return loss(net, batch)

    monkeypatch.setattr(model, "loss", recorded)
    point = next(a for a in toy_run.plan.arms if a.about["arm"] == arm and a.about["seed"] == seed).points[-1]
    toy.work(toy_run.plan, tmp_path, [toy_run.plan.stages[key] for key in point.path])
    text = (toy_run.out.parent / "words.txt").read_bytes()
    stream = np.frombuffer(text, np.uint8)[: len(text) - len(text) // 10]
    count = point.budget // 16
    n = windows(stream, 16)
    sequence = np.concatenate([order(n, seed, epoch) for epoch in range(count // n + 1)])[:count]
    assert np.array_equal(np.concatenate(read), np.stack([stream[i * 16 : i * 16 + 17] for i in sequence]))


# --- the loop, once more in plain torch ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["train", "cooldown"])
def test_a_stage_is_adamw_under_warm_up_stable_decay(kind: str, toy_run: toy.Run) -> None:
    stage = next(s for s in stages(toy_run, "transformer/scratch") if s.kind == kind)
    assert stage.parent is not None
    before, after = checkpoint(toy_run, stage.parent).state, checkpoint(toy_run, stage.key).state
    until, warmup = stage.identity["until"], 2 * toy.STEP
    bench = train.Bench(identity=stage.identity, plugin_paths=(), cache=Path())
    net = before.model()
    groups = [
        {"params": [net.weights[name]], "lr": 0.0, "factor": before.scaling.rate(weight, "adamw"),
         "eps": 1e-8 * before.scaling.eps(weight)}
        for name, weight in before.shape.weights.items()
    ]  # fmt: skip
    adamw = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    for name, moment in before.first.items():
        moments = {"exp_avg": moment.clone(), "exp_avg_sq": before.second[name].clone()}
        adamw.state[net.weights[name]] = {"step": torch.tensor(float(before.steps[name]))} | moments
    losses = []
    for position in range(before.tokens, until, toy.STEP):
        batch, end = bench.batch(position), position + toy.STEP
        share = min(end / warmup, 1.0) if kind == "train" else (until - end + 64) / (until - before.tokens + 64)
        for group in adamw.param_groups:
            group["lr"] = 0.01 * share * group["factor"]
        loss = F.cross_entropy(net(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        losses.append(loss.item())
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
    for name, weight in net.weights.items():
        assert torch.allclose(after.weights[name], weight, atol=1e-6), name
    curve = pd.read_parquet(Store(toy_run.out).folder(stage.key) / CURVE)
    assert curve["tokens"].iloc[-1] == until
    counts = np.diff([before.tokens, *curve["tokens"]]) / toy.STEP
    assert np.dot(curve["train_loss"], counts) == pytest.approx(sum(losses), rel=1e-5)
    with torch.no_grad():
        valid = F.cross_entropy(net(bench.valid[:, :-1]).flatten(0, 1), bench.valid[:, 1:].flatten())
    assert toy_run.records[stage.key].measures["loss"] == pytest.approx(valid.item(), rel=1e-5)


@given(shape=shapes(), seed=st.integers(0, 99), moments=st.booleans())
def test_a_checkpoint_reads_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, shape: Shape, seed: int, moments: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / CHECKPOINT
    state, rng = random_state(shape, seed), torch.Generator().manual_seed(seed)
    frozen = {name: weight > 0 for name, weight in state.weights.items() if len(name) % 2}
    ramps = (Ramp(axis="residual", new=torch.arange(shape.residual) > 0, tokens=5),)
    shared = isometry(1, shape.residual, rng)
    maps = {axis: shared for axis in shape.axes if shape.axes[axis] == shape.residual}
    layers = LayerMap(source=(0,) * shape.layers, muted=frozenset({1}), fresh=frozenset({0})) if seed % 2 else None
    saved = Checkpoint(state=state, frozen=frozen, ramps=ramps, ramp_start=3, maps=maps, layers=layers)
    saved.save(path, moments=moments)
    read = Checkpoint.load(path)
    kept = saved if moments else replace(saved, state=state.reset())
    for one, other in (
        (kept.state.weights, read.state.weights),
        (kept.state.first, read.state.first),
        (kept.state.second, read.state.second),
        (kept.frozen, read.frozen),
    ):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert all(one[name].dtype == other[name].dtype for name in one)
    assert (read.state.shape, read.state.scaling) == (shape, state.scaling)
    assert (read.state.norms, dict(read.state.steps), read.state.tokens) == (state.norms, kept.state.steps, 100)
    assert read.ramp_start == 3
    assert [(ramp.axis, ramp.tokens) for ramp in read.ramps] == [("residual", 5)]
    assert torch.equal(read.ramps[0].new, ramps[0].new)
    assert read.maps.keys() == maps.keys()
    assert all(torch.equal(m.expand, shared.expand) for m in read.maps.values())
    assert all(torch.equal(m.collapse, shared.collapse) for m in read.maps.values())
    assert all(axis.admits == next(a for a in shape.axes if a == axis).admits for axis in read.maps)
    assert read.layers == layers


def test_stage_folders_hold_safetensors_parquet_and_text_and_nothing_is_pickled(toy_run: toy.Run) -> None:
    for record in toy_run.records.values():
        folder = Store(toy_run.out).folder(record.key)
        found = {path.name for path in folder.iterdir()} - {RECORD, EVENTS}
        if record.kind == "coordinates":
            assert found == {COORDINATES}
            continue
        assert found == {CHECKPOINT} | ({CURVE, DIAGNOSTICS} if record.kind != "init" else set())
        assert load_file(folder / CHECKPOINT)
    for path in Path(train.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
            assert not {"pickle", "cloudpickle", "dill", "joblib"} & set(names), path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in {("torch", "load"), ("torch", "save")}, path


def test_a_cooldown_that_nothing_is_grown_from_keeps_no_moments(toy_run: toy.Run) -> None:
    path = stages(toy_run, "transformer/zero_pad")
    assert not checkpoint(toy_run, path[-1].key).state.first
    assert checkpoint(toy_run, path[-2].key).state.first


# --- growth ----------------------------------------------------------------------------------------------------------


def test_what_growth_changed_is_measured_on_fixed_batches(toy_run: toy.Run, tmp_path: Path) -> None:
    ladder = [{**toy.LADDERS["transformer"][0]}, {**toy.LADDERS["transformer"][1], "residual": 12}]
    plan = toy.plan(
        toy_run.out.parent,
        strategies=[{"name": "zero_pad", "scaled": False}, "net2net"],
        ladders={"transformer": ladder},
    )
    records = toy.work(plan, tmp_path)
    store = Store(tmp_path)
    for record in [record for record in records.values() if record.kind == "grow"]:
        assert record.parent is not None
        before, after = (Checkpoint.load(store.folder(key) / CHECKPOINT).state for key in (record.parent, record.key))
        bench = train.Bench(identity=record.identity, plugin_paths=(), cache=Path())
        x, y = bench.valid[:, :-1], bench.valid[:, 1:].flatten()
        with torch.no_grad():
            old, new = before.model()(x), after.model()(x)
        jump = F.cross_entropy(new.flatten(0, 1), y) - F.cross_entropy(old.flatten(0, 1), y)
        assert record.measures["growth_gap"] == pytest.approx((new - old).abs().max().item(), rel=1e-4, abs=1e-5)
        assert record.measures["growth_loss_jump"] == pytest.approx(jump.item(), rel=1e-3, abs=1e-5)
        exact = record.identity["strategy"]["name"] == "net2net"
        assert (new - old).abs().max().item() < 1e-4 if exact else (new - old).abs().max().item() > 1e-3
        assert (before.tokens, after.tokens) == (20 * toy.STEP, 20 * toy.STEP)


def test_a_strategy_that_writes_into_its_source_hides_no_gap(tmp_path: Path) -> None:
    source = toy.PROBING.replace('scale=(new / old) ** 0.5 if axis.admits == "isometry" else 1.0', "scale=2.0")
    gaps: list[Mapping[str, float | None]] = []
    for line in ("pass", "[w.zero_() for w in state.weights.values()]"):
        written = source.replace("        probe.batch()\n        growth = super().grow(state, shape, probe, rng)",
                                 "        probe.batch()\n        growth = super().grow(state, shape, probe, rng)\n"
                                 f"        with torch.no_grad():\n            {line}")  # fmt: skip
        assert line in written
        plan = toy.plan(tmp_path, plugins=[toy.plugin(tmp_path, "probing", written)], strategies=["probing"])
        records = toy.work(plan, tmp_path / str(len(gaps)))
        gaps.append(next(record.measures for record in records.values() if record.kind == "grow"))
    assert gaps[0]["growth_gap"]
    assert gaps[0] == gaps[1]


def test_growth_is_refused_while_an_earlier_ramp_has_not_ended(tmp_path: Path) -> None:
    probing = toy.plugin(tmp_path, "probing", toy.PROBING)
    ladder = [toy.LADDERS["transformer"][0] | {"ffn": 16 * times} for times in (1, 2, 3)]
    told = {}
    for fade in (toy.STEP * 8, toy.STEP * 14):
        plan = toy.plan(
            tmp_path, plugins=[probing], strategies=[{"name": "probing", "fade": fade}],
            ladders={"transformer": ladder}, budget={"split": [0.3, 0.6]},
        )  # fmt: skip
        records = toy.work(plan, tmp_path / str(fade))
        told[fade] = [record.reason for record in records.values() if record.kind == "grow"]
    assert told == {
        toy.STEP * 8: ["", ""],
        toy.STEP * 14: [
            "",
            f"ValueError: an earlier growth's ramp of 0/ffn has not ended at token {24 * toy.STEP:,}, where the next "
            "growth is: shorten the ramp, or grow later",
        ],
    }


@pytest.mark.parametrize("moments", ["carried", "reset"])
def test_moments_are_carried_or_reset_as_the_study_says(moments: str, tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["zero_pad"], train={"moments": moments})
    records = toy.work(plan, tmp_path / "out")
    grow = next(record for record in records.values() if record.kind == "grow")
    state = Checkpoint.load(Store(tmp_path / "out").folder(grow.key) / CHECKPOINT).state
    assert bool(state.first) == bool(state.second) == bool(state.steps) == (moments == "carried")


def test_frozen_entries_stay_and_a_ramp_goes_from_nothing_to_all_over_stages(toy_run: toy.Run) -> None:
    path = stages(toy_run, "transformer/probing")
    grown = next(i for i, stage in enumerate(path) if stage.kind == "grow")
    start = checkpoint(toy_run, path[grown].key)
    mask = start.frozen["embed"]
    assert 0 < mask.float().mean() < 1
    assert len(path[grown + 1 :]) >= 3
    shares = []
    for stage in path[grown + 1 :]:
        later = checkpoint(toy_run, stage.key)
        moved = later.state.weights["embed"] != start.state.weights["embed"]
        assert not bool(moved[mask].any())
        assert bool(moved[~mask].any())
        new = later.ramps[0].new
        (share,) = set(later.multipliers(later.state.tokens).get("0/ffn", torch.ones(len(new)))[new].tolist())
        assert later.ramp_start == start.state.tokens
        assert share == min((later.state.tokens - start.state.tokens) / 512, 1)
        shares.append(share)
    assert 0 < shares[0] < shares[-1] == 1
    assert set(start.multipliers(start.state.tokens)["0/ffn"].tolist()) == {0.0, 1.0}
    assert start.multipliers(start.state.tokens + 512) == {}


def test_frozen_entries_add_nothing_to_the_norm_that_gradients_are_clipped_to(toy_run: toy.Run, tmp_path: Path) -> None:
    settings = {"optimizer": "sgd", "clip": 0.01, "learning_rate": 1.0}
    plan = toy.plan(toy_run.out.parent, plugins=toy_run.plan.plugin_paths, strategies=["probing"], train=settings)
    toy.work(plan, tmp_path)
    store = Store(tmp_path)
    grow = next(stage for stage in plan.stages.values() if stage.kind == "grow")
    begun = Checkpoint.load(store.folder(grow.key) / CHECKPOINT)
    position = begun.state.tokens
    identity = {name: grow.identity[name] for name in ("core", "device", "task", "seed", "train")}
    step = Stage(kind="train", label="a step", parent=grow.key, identity=identity | {"until": position + toy.STEP})
    toy.work(plan, tmp_path, [step])
    after = Checkpoint.load(store.folder(step.key) / CHECKPOINT).state

    net = begun.state.model()
    net.masks = begun.multipliers(position)
    batch = train.Bench(identity=identity, plugin_paths=plan.plugin_paths, cache=Path()).batch(position)
    model.loss(net, batch).backward()  # type: ignore[no-untyped-call]
    found = {name: weight.grad for name, weight in net.weights.items() if weight.grad is not None}
    found["embed"].masked_fill_(begun.frozen["embed"], 0.0)
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in found.values()))
    for name, gradient in found.items():
        rate = begun.state.scaling.rate(begun.state.shape.weights[name], "sgd")
        moved = after.weights[name].double() - begun.state.weights[name].double()
        assert torch.allclose(moved, -rate * gradient.double() * 0.01 / norm, rtol=1e-3, atol=1e-6), name


def test_a_ramp_makes_the_first_step_function_preserving(toy_run: toy.Run, tmp_path: Path) -> None:
    gaps: dict[int, float | None] = {}
    for fade in (0, 512):
        strategy = {"name": "probing", "fade": fade}
        plan = toy.plan(toy_run.out.parent, plugins=toy_run.plan.plugin_paths, strategies=[strategy])
        records = toy.work(plan, tmp_path / str(fade))
        gaps[fade] = next(record.measures["growth_gap"] for record in records.values() if record.kind == "grow")
    assert gaps[0] is not None
    assert gaps[0] > 0.01
    assert gaps[512] == pytest.approx(0, abs=1e-5)


def growths() -> dict[str, tuple[Growth, str]]:
    shape = Shape(layers=1, residual=4, heads=1, key=2, value=2, ffn=3)
    state = random_state(shape, 0)
    good = Growth(state=state)
    embed = torch.zeros(256, 4, dtype=torch.bool)
    short = {**state.weights, "0/q": state.weights["0/q"][:, :1]}
    new = torch.ones(3, dtype=torch.bool)
    return {
        "another shape": (
            replace(good, state=replace(state, shape=replace(shape, ffn=4))),
            "returned the shape .*ffn=4.* its target says .*ffn=3",
        ),
        "another size": (replace(good, state=replace(state, weights=short)), r"the weight 0/q with sizes \(1, 1, 4\)"),
        "an unknown mask": (replace(good, frozen={"embd": embed}), r"frozen\['embd'\] must be a boolean mask"),
        "a mask of numbers": (replace(good, frozen={"embed": embed.float()}), "must be a boolean mask"),
        "a mask of another size": (replace(good, frozen={"embed": embed[1:]}), "of its sizes"),
        "an unknown ramp": (
            replace(good, ramps=(Ramp(axis="ffn", new=new, tokens=1),)),
            "no ramp acts on the axis 'ffn': did you mean 0/ffn?",
        ),
        "a short ramp": (replace(good, ramps=(Ramp(axis="0/ffn", new=new[1:], tokens=1),)), "each of its 3 units"),
        "a ramp in no time": (replace(good, ramps=(Ramp(axis="0/ffn", new=new, tokens=0),)), "tokens > 0"),
        "a weight too many": (
            replace(good, state=replace(state, weights={**state.weights, "extra": embed})),
            "a weight extra that the shape does not have",
        ),
        "an unknown norm": (replace(good, state=replace(state, norms={"0/ffn": 3.0})), "does not name the normed axes"),
        "a map to another size": (
            replace(good, maps={Axis(name="ffn", layer=0): zero_pad(1, 2)}),
            r"maps\[0/ffn\] ends in 2 units, and the target has 3",
        ),
        "layers too many": (
            replace(good, layers=LayerMap(source=(0, 0))),
            "layers names 2 layers, and the target has 1",
        ),
        "nothing to train": (
            replace(good, frozen={name: torch.ones_like(w, dtype=torch.bool) for name, w in state.weights.items()}),
            "every weight is frozen: leave the new ones out",
        ),
    }


@pytest.mark.parametrize("case", growths())
def test_a_strategy_s_return_value_is_checked(case: str) -> None:
    growth, sentence = growths()[case]
    shape = Shape(layers=1, residual=4, heads=1, key=2, value=2, ffn=3)
    train.check(Growth(state=random_state(shape, 0)), shape)
    with pytest.raises(ValueError, match=sentence):
        train.check(growth, shape)


STATE = random_state(Shape(layers=1, residual=4, heads=1, key=2, value=2, ffn=3), 0)


@pytest.mark.parametrize(
    ("group", "changed", "sentence"),
    [
        (
            "weights",
            STATE.weights["0/q"].float(),
            "the weight 0/q is torch.float32, and the source's torch.float64",
        ),
        (
            "first",
            STATE.first["0/q"].half(),
            "the first moment 0/q is torch.float16, and the source's torch.float64",
        ),
        ("second", STATE.second["0/q"].bfloat16(), "the second moment 0/q is torch.bfloat16, and the source's"),
        ("first", STATE.first["0/q"][:, :1], "the first moment 0/q has not its sizes: carry it with state.widen"),
        ("second", STATE.second["0/q"][..., :1], "the second moment 0/q has not its sizes"),
        ("first", torch.full_like(STATE.first["0/q"], torch.nan), "the moments of 0/q are not finite"),
        ("second", torch.full_like(STATE.second["0/q"], torch.inf), "the moments of 0/q are not finite"),
        ("second", -STATE.second["0/q"], "or a second one is negative: carry them with state.widen"),
        ("first", None, "first, second and steps do not name the same weights: carry or reset all three"),
        ("second", None, "do not name the same weights"),
        ("steps", None, "do not name the same weights"),
    ],
)
def test_tensors_of_another_type_and_impossible_moments_are_refused(
    group: str, changed: torch.Tensor | None, sentence: str
) -> None:
    values = dict(getattr(STATE, group)) | {"0/q": changed}
    if changed is None:
        del values["0/q"]
    changes: dict[str, Any] = {group: values}
    train.check_tensors(STATE, torch.float64)
    train.check_tensors(STATE.reset(), torch.float64)
    with pytest.raises(ValueError, match=sentence):
        train.check_tensors(replace(STATE, **changes), torch.float64)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("probe.batch()", "probe.batch(), probe.batch()", "asked for probe batch 3 and declares 2: raise"),
        ("return replace(growth, state", "return None and replace(growth, state", "AttributeError: "),
        (
            "state=replace(growth.state, weights=weights)",
            "state=replace(growth.state, weights={name: w.double() for name, w in weights.items()})",
            "ValueError: strategy probing: the weight embed is torch.float64, and the source's torch.float32",
        ),
        (
            "state=replace(growth.state, weights=weights)",
            "state=replace(growth.state, weights=weights, first=growth.state.second)",  # which no checkpoint can hold
            "RuntimeError: ",
        ),
        ("return replace(growth, state", "raise SystemExit(3)\n        return replace(growth, state", "SystemExit: 3"),
    ],
)
def test_a_strategy_that_errs_ends_its_stage_with_the_reason(old: str, new: str, reason: str, tmp_path: Path) -> None:
    probing = toy.plugin(tmp_path, "probing", toy.PROBING.replace(old, new))
    records = toy.work(toy.plan(tmp_path, plugins=[probing], strategies=["probing"]), tmp_path / "out")
    (grow,) = [record for record in records.values() if record.kind == "grow"]
    assert grow.status == "failed"
    assert reason in grow.reason
    assert "Traceback" in (Store(tmp_path / "out").folder(grow.key) / EVENTS).read_text()


def test_data_or_a_plugin_that_changes_after_planning_is_refused(tmp_path: Path) -> None:
    probing = toy.plugin(tmp_path, "probing", toy.PROBING)
    plan = toy.plan(tmp_path, plugins=[probing], strategies=["probing"])
    toy.plugin(tmp_path, "probing", toy.PROBING + "# later\n")
    records = toy.work(plan, tmp_path / "one")
    (grow,) = [record for record in records.values() if record.kind == "grow"]
    assert grow.reason == "ValueError: the source of strategy probing changed since the run was planned: run it again"
    toy.text(tmp_path, seed=5)
    plan = toy.plan(tmp_path, strategies=["scratch"])
    toy.text(tmp_path, seed=6)
    reasons = {record.reason for record in toy.work(plan, tmp_path / "two").values() if record.kind == "train"}
    assert reasons == {"ValueError: the data of task text changed since the run was planned: run it again"}


# --- what goes wrong -------------------------------------------------------------------------------------------------

WRONG = """
from dataclasses import dataclass, replace
import os, signal, sys
from pathlib import Path
import torch
from growbench.maps import zero_pad
from growbench.strategy import Strategy

@dataclass(frozen=True, kw_only=True)
class Wrong(Strategy):
    how: str = ""
    marker: str = ""

    def widen(self, axis, old, new, rng):
        return zero_pad(old, new)

    def grow(self, state, shape, probe, rng):
        growth = super().grow(state, shape, probe, rng)
        if not Path(self.marker).exists():
            return growth
        match self.how:
            case "nan":
                weights = {name: torch.full_like(w, torch.nan) for name, w in growth.state.weights.items()}
                return replace(growth, state=replace(growth.state, weights=weights))
            case "raise":
                raise RuntimeError("out of ideas")
            case "exit once":
                Path(self.marker).unlink()
                os._exit(7)
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_goes_wrong_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    wrong = toy.plugin(tmp_path, "wrong", WRONG)
    markers = {how: tmp_path / f"{how}.marker" for how in ("nan", "raise", "exit once", "kill")}
    for marker in markers.values():
        marker.touch()
    strategies = [{"name": "wrong", "how": how, "marker": str(marker), "arm": how} for how, marker in markers.items()]
    plan = toy.plan(tmp_path, plugins=[wrong], strategies=["scratch", *strategies])
    out, events = tmp_path / "out", list[Event]()
    first = local.run(plan, out, workers=2, listener=events.append)

    results = statuses(out)
    assert results.pop("scratch@0") == results.pop("scratch") == results.pop("exit once") == ("ok", "")
    at = 21 * toy.STEP
    assert results["nan"] == ("diverged", f"the loss was not finite at token {at:,}")
    line = 1 + WRONG[: WRONG.index("raise RuntimeError")].count("\n")
    assert results["raise"] == ("failed", f"RuntimeError: out of ideas (wrong.py, line {line})")
    assert results["kill"] == ("failed", "its worker was killed by SIGKILL, 3 times")
    rows = pd.read_parquet(out / "results.parquet").query("status != 'ok'")
    assert (rows["loss"] == math.log(256)).all()
    assert rows["bits_per_byte"].tolist() == pytest.approx([8.0] * len(rows))
    assert set(rows.query("status == 'diverged'")["tokens"]) == {at}  # what it spent counts
    restarts = {record.label.split(" > ")[1].split(" grow")[0]: record.restarts
                for record in Store(out).records().values() if record.kind == "grow"}  # fmt: skip
    assert restarts == {"nan": 0, "raise": 0, "exit once": 1, "kill": 2}
    assert first.failed == 3
    assert first.finished + first.failed + first.blocked == len(plan.stages)
    assert first.blocked > 0
    assert (events[-1].done, events[-1].tokens_done) == (events[-1].total, events[-1].tokens_total)
    said = [event.text for event in events if event.kind == "log"]
    assert sorted(said) == [
        "its worker ended with exit code 7; started again (1 of 2)",
        "its worker was killed by SIGKILL; started again (1 of 2)",
        "its worker was killed by SIGKILL; started again (2 of 2)",
    ]

    for marker in markers.values():
        marker.unlink(missing_ok=True)
    second = local.run(plan, out, workers=2, listener=lambda event: None)
    assert second.cached == first.finished
    assert second.failed == 1  # a divergence is a result: it stays
    after = statuses(out)
    assert after.pop("nan") == results["nan"]
    assert set(after.values()) == {("ok", "")}


def statuses(out: Path) -> dict[str, tuple[str, str]]:
    rows = pd.read_parquet(out / "results.parquet")
    assert (rows.groupby("arm")[["status", "reason"]].nunique() == 1).all(axis=None)
    first = rows.drop_duplicates("arm")
    return {
        arm.removeprefix("transformer/"): (status, reason)
        for arm, status, reason in zip(first["arm"], first["status"], first["reason"], strict=True)
    }


POISON = """
from dataclasses import dataclass, replace
import os
import torch
import torch.nn.functional as F
from growbench.maps import zero_pad
from growbench.strategy import Strategy

@dataclass(frozen=True, kw_only=True)
class Poison(Strategy):
    def widen(self, axis, old, new, rng):
        return zero_pad(old, new)

    def grow(self, state, shape, probe, rng):
        growth = super().grow(state, shape, probe, rng)
        print("a word from a plugin")
        os.system("echo a word from its child")
        F.gelu = F.relu
        torch.set_default_dtype(torch.float64)
        os.chdir("/")
        return growth
"""


def test_what_a_strategy_leaves_in_its_process_reaches_no_other_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    poison = toy.plugin(tmp_path, "poison", POISON)
    strategies = ["poison", {"name": "zero_pad", "scaled": False}]
    clean = toy.work(toy.plan(tmp_path, strategies=strategies[1:]), tmp_path / "clean")
    plan = toy.plan(tmp_path, plugins=[poison], strategies=strategies)
    isolated = {stage.label.split(" > ")[1].split(" grow")[0] for stage in plan.stages.values() if stage.isolate}
    assert isolated == {"poison"}
    monkeypatch.chdir(tmp_path)
    plan = replace(plan, plugin_paths=(Path("poison.py"),), cache=Path("cache"))
    summary = local.run(plan, Path("out"), workers=1, listener=lambda event: None)
    assert (summary.finished, summary.failed) == (len(plan.stages), 0)
    assert clean.keys() < plan.stages.keys()
    assert toy.unchanged(Store(tmp_path / "out").records(), clean)
    results = pd.read_parquet(tmp_path / "out" / "results.parquet").groupby("arm")["loss"].agg(list)
    assert results["transformer/poison"] == results["transformer/zero_pad(scaled=false)"]  # the same growth
    said = capfd.readouterr()
    assert said.out == ""  # it is the command's, for its result
    assert "a word from a plugin" in said.err
    assert "a word from its child" in said.err


def test_a_source_that_diverges_blocks_what_is_grown_from_it(tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch", "zero_pad"], train={"learning_rate": 1e30})
    events: list[Event] = []
    summary = local.run(plan, tmp_path / "out", workers=1, listener=events.append)
    assert summary.failed == 2  # one trunk of each rung
    assert summary.failed + summary.blocked + summary.finished == len(plan.stages)
    assert statuses(tmp_path / "out")["scratch"][0] == "diverged"
    status, reason = statuses(tmp_path / "out")["zero_pad"]
    assert (status, reason.split(" at token ")[0]) == ("blocked", "its source diverged: the loss was not finite")
    failed = [event.text for event in events if event.kind == "failed"]
    assert all("diverged: the loss was not finite at token" in text for text in failed)
    assert all("stages that build on it are not run" in text for text in failed)


def test_a_damaged_stage_is_named_and_redone_and_no_other(toy_run: toy.Run, tmp_path: Path) -> None:
    out = shutil.copytree(toy_run.out, tmp_path / "out")
    path = stages(toy_run, "transformer/zero_pad")
    train_, grow = next(s for s in path if s.kind == "train"), next(s for s in path if s.kind == "grow")
    truncated = Store(out).folder(train_.key) / CHECKPOINT
    os.truncate(truncated, truncated.stat().st_size // 2)
    flip(Store(out).folder(grow.key) / RECORD, 300)
    flip(Store(out).folder(path[-1].key) / CURVE, 40)
    hurt = {train_.key, grow.key, path[-1].key}
    kept = {key: (Store(out).folder(key) / RECORD).stat().st_mtime_ns for key in toy_run.records if key not in hurt}
    events: list[Event] = []
    summary = local.run(toy_run.plan, out, workers=1, listener=events.append)
    assert (summary.finished, summary.cached, summary.failed) == (3, len(toy_run.plan.stages) - 3, 0)
    named = {event.stage: event.text for event in events if event.kind == "log"}
    assert named.keys() == hurt
    assert all(str(Store(out).folder(key)) in text and "computed again" in text for key, text in named.items())
    assert {key: (Store(out).folder(key) / RECORD).stat().st_mtime_ns for key in kept} == kept
    assert Store(out).records().keys() == toy_run.records.keys()
    assert toy.unchanged(Store(out).records(), toy_run.records)


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)
