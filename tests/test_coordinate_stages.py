"""The coordinate check as stages of a run: one per architecture, cheap, apart from every arm, and read as a table."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import toy
from hypothesis import given
from hypothesis import strategies as st
from shapes import shapes

from growbench import coordinates, ledger
from growbench.coordinates import GROWN, MULTIPLES, design, flops, multiplied
from growbench.launch import local
from growbench.paths import core_identity
from growbench.plan import Plan
from growbench.reports import coordinates as drawn
from growbench.results import COORDINATES, STAGES
from growbench.shape import Shape
from growbench.store import Stage, Store
from growbench.study import read_study, shipped
from growbench.tables import PLAN, tables, write_tables
from growbench.tables import coordinates as checked
from growbench.tune import Tuner

BOTH = tuple(toy.LADDERS)
SMALL = Shape(layers=2, residual=16, heads=2, key=8, value=8, ffn=64)


def checks(plan: Plan) -> list[Stage]:
    return [stage for stage in plan.stages.values() if stage.kind == "coordinates"]


# --- what is checked -------------------------------------------------------------------------------------------------


def test_what_the_ladder_widens_grows_and_all_where_it_widens_nothing() -> None:
    def grown(first: Shape, last: Shape) -> list[str]:
        found: list[str] = design([first, last], 10**6)["grown"]
        return found

    assert grown(SMALL, replace(SMALL, residual=32, heads=4, ffn=128)) == ["residual", "heads", "ffn"]
    assert grown(SMALL, replace(SMALL, ffn=128)) == ["ffn"]
    assert grown(SMALL, replace(SMALL, layers=4, ffn=(64, 64, 64, 96))) == ["ffn"]
    assert grown(SMALL, replace(SMALL, layers=4)) == ["residual", "heads", "ffn"]
    first = replace(SMALL, placement="everywhere", nonlinearity="l2_gelu", tokens=4)
    assert grown(first, replace(first, tokens=16, ffn=128)) == ["ffn", "tokens"]
    assert grown(first, first) == list(GROWN)


@given(shapes(), st.integers(1, 4), st.integers(1, 3))
def test_its_cost_is_that_of_its_passes(shape: Shape, steps: int, seeds: int) -> None:
    tokens = 2 * shape.context
    expected = 0.0
    for multiple in MULTIPLES:
        wide = multiplied(shape, multiple)
        for _ in range(seeds):
            expected += tokens * ledger.forward_flops(wide)
            expected += steps * tokens * (ledger.train_flops(wide) + ledger.forward_flops(wide))
    assert flops(shape, MULTIPLES, GROWN, 2, steps, seeds) == pytest.approx(expected)


@given(scale=st.integers(1, 64), longer=st.integers(0, 6), budget=st.integers(1, 10**9))
def test_wide_models_are_left_out_where_they_cost_more_time_or_memory_than_they_may(
    scale: int, longer: int, budget: int
) -> None:
    """Two widths always, the third within the share of one run from scratch, or where it is too small to matter."""
    base = replace(multiplied(SMALL, scale), context=64 << longer)
    last = multiplied(base, 2)
    found = design([base, last], budget)
    grown, multiples = found["grown"], tuple(found["multiples"])
    assert multiples in (MULTIPLES[:2], MULTIPLES)
    limit = max(coordinates.FREE, coordinates.SHARE * budget * ledger.train_flops(last))
    cost = flops(base, MULTIPLES, grown, found["windows"], found["steps"], len(found["seeds"]))
    large = multiplied(base, MULTIPLES[-1], grown).params > max(coordinates.LIGHT, last.params)
    assert (multiples == MULTIPLES) == (cost <= limit and not large)


@pytest.mark.parametrize("name", shipped())
def test_in_a_shipped_study_it_costs_a_fiftieth_of_one_run_from_scratch_at_most(name: str) -> None:
    study = read_study(name)
    for ladder in study.ladders.values():
        shapes_ = [Shape.read({"context": study.train.context} | dict(rung)) for rung in ladder if "params" not in rung]
        if len(shapes_) == len(ladder):
            own = design(shapes_, study.budget.tokens)
            assert own["multiples"] == list(MULTIPLES)
            cost = flops(shapes_[0], own["multiples"], own["grown"], own["windows"], own["steps"], len(own["seeds"]))
            assert cost <= study.budget.tokens * ledger.train_flops(shapes_[-1]) / 50


# --- planned ---------------------------------------------------------------------------------------------------------


def test_there_is_one_for_each_architecture_and_it_is_on_no_path(tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch", "zero_pad"], architectures=BOTH, seeds=2)
    found = {check["architecture"]: plan.stages[check["stage"]] for check in plan.coordinates}
    assert tuple(found) == BOTH
    assert list(found.values()) == checks(plan)
    for architecture, stage in found.items():
        base = Shape.read(toy.LADDERS[architecture][0] | {"context": 16})
        assert (stage.parent, stage.tokens, stage.flops, stage.isolate) == (None, 0, 0.0, False)
        assert Shape.read(stage.identity["shape"]) == base
        assert stage.identity["scaling"]["name"] == plan.study.parametrization
        assert stage.label == f"{plan.tasks[0]['name']} {architecture} coordinates"
    assert found["transformer"].identity["grown"] == ["heads", "ffn"]
    assert found["tokenformer"].identity["grown"] == ["ffn", "tokens"]
    paths = {key for arm in plan.arms for point in arm.points for key in (*point.path, *point.ladder)}
    assert plan.stages.keys() - paths == {stage.key for stage in found.values()}


def test_only_drops_those_of_other_architectures(tmp_path: Path) -> None:
    given: dict[str, Any] = {"strategies": ["scratch", "zero_pad"], "architectures": BOTH}
    whole, part = toy.plan(tmp_path, **given), toy.plan(tmp_path, only="tokenformer/zero_pad", **given)
    assert [check["architecture"] for check in part.coordinates] == ["tokenformer"]
    assert [stage.key for stage in checks(part)] == [stage.key for stage in checks(whole)][1:]


def test_tuning_has_none(tmp_path: Path) -> None:
    tuning = {"trials": 2, "tokens": 20 * toy.STEP, "learning_rate": [0.001, 0.1]}
    study = toy.study(tmp_path, strategies=["scratch", "zero_pad"], tuning=tuning)
    trials, _ = Tuner(study=study).known(tmp_path / "out")
    assert {stage.kind for stage in trials.stages.values()} == {"init", "train", "grow", "cooldown"}
    assert (checks(trials), trials.coordinates) == ([], ())


CHANGED: dict[str, dict[str, Any]] = {
    "learning rate": {"train": {"learning_rate": 0.02}},
    "weight decay": {"train": {"weight_decay": 0.1}},
    "optimizer": {"train": {"optimizer": "sgd"}},
    "precision": {"train": {"precision": "64-true"}},
    "parametrization": {"parametrization": "standard"},
    "ladder": {"ladders": {"transformer": [rung | {"ffn": 2 * rung["ffn"]} for rung in toy.LADDERS["transformer"]]}},
}
SAME: dict[str, dict[str, Any]] = {
    "seeds": {"seeds": 2, "first_seed": 7},
    "budget": {"budget": {"tokens": 80 * toy.STEP, "warmup": 0.1}},
    "batch": {"train": {"batch": 2}},
    "clip": {"train": {"clip": None}},
    "an architecture's name": {"ladders": {"other": toy.LADDERS["transformer"]}},
    "another strategy": {"strategies": ["scratch", "net2net"]},
}


@pytest.mark.parametrize("change", [*CHANGED, *SAME])
def test_its_key_changes_when_a_number_can_and_else_not(change: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {"strategies": ["scratch", "zero_pad"]}
    before, after = toy.plan(tmp_path, **given), toy.plan(tmp_path, **given | (CHANGED | SAME)[change])
    same = [stage.key for stage in checks(before)] == [stage.key for stage in checks(after)]
    assert same == (change in SAME)


def test_arms_do_not_depend_on_the_source_of_the_check(tmp_path: Path) -> None:
    """Its module is part of the core that its stages name, and of no other stage's."""
    plan = toy.plan(tmp_path, strategies=["scratch", "zero_pad"])
    assert {stage.identity["core"] for stage in checks(plan)} == {core_identity("coordinates")}
    others = {stage.identity["core"] for stage in plan.stages.values() if stage.kind != "coordinates"}
    assert others == {core_identity()} != {core_identity("coordinates")}


# --- run -------------------------------------------------------------------------------------------------------------


def test_a_run_writes_the_table_of_both_architectures(toy_run: toy.Run) -> None:
    found = checked(toy_run.out)
    pd.testing.assert_frame_equal(pd.read_parquet(toy_run.out / "coordinates.parquet"), found)
    assert {name: str(dtype) for name, dtype in found.dtypes.items()} == {n: c.dtype for n, c in COORDINATES.items()}
    assert list(found["architecture"].unique()) == list(BOTH)
    assert set(found["task"]) == {toy_run.plan.tasks[0]["name"]}
    for check in toy_run.plan.coordinates:
        own = found[found["architecture"] == check["architecture"]]
        assert set(own["stage"]) == {check["stage"]}
        assert own.groupby("multiple")["width"].unique().map(list).to_dict() == {m: [8] for m in MULTIPLES}
        assert set(own["steps"]) == set(range(coordinates.STEPS + 1))
        assert (own["rms_change"].isna() == (own["steps"] == 0)).all()
        assert (own["layer"].isna() == own["axis"].isin(["logits", "next token's logit"])).all()


def test_its_stages_cost_evaluation_alone_and_no_arm_has_them(toy_run: toy.Run) -> None:
    results, _, stages = tables(toy_run.out)
    own = stages[stages["kind"] == "coordinates"]
    assert len(own) == len(BOTH)
    assert (own[["tokens", "flops", "arms", "seed"]] == 0).all(axis=None)
    assert set(own["task"]) == set(results["task"])
    assert list(own.columns) == list(STAGES)
    for _, row in own.iterrows():
        identity = toy_run.plan.stages[row["stage"]].identity
        multiples, grown, windows, steps, seeds = (
            identity[name] for name in ("multiples", "grown", "windows", "steps", "seeds")
        )
        cost = flops(Shape.read(identity["shape"]), multiples, grown, windows, steps, len(seeds))
        assert row["flops_eval"] == cost


def widening(folder: Path, **changes: Any) -> Plan:
    """A toy whose ladder doubles all sizes."""
    rungs = [{"layers": 1, "residual": r, "ffn": 4 * r, "heads": r // 8, "key": 8, "value": 8} for r in (16, 32)]
    given: dict[str, Any] = {"strategies": ["scratch"], "ladders": {"wide": rungs}, "train": {"learning_rate": 0.001}}
    return toy.plan(folder, **given | changes)


@pytest.mark.parametrize("parametrization", ["mup", "standard"])
def test_slopes_of_a_run_are_those_of_its_parametrization(parametrization: str, tmp_path: Path) -> None:
    plan, out = widening(tmp_path, parametrization=parametrization), tmp_path / "out"
    toy.work(plan, out, checks(plan))
    write_plan(plan, out)
    found = checked(out)
    assert found.groupby("multiple")["width"].first().to_dict() == {1: 16, 2: 32, 4: 64}
    fits = coordinates.slopes(found).set_index(["axis", "steps"])
    inner = ["residual", "ffn", "ffn scores", "head", "attention logits"]
    start, change = fits["slope"].xs(0, level="steps"), fits["slope_change"].xs(1, level="steps")
    assert (start[inner].abs() < 1 / 4).all(), start
    expected, most = (0, 0) if parametrization == "mup" else (1, 3 / 2)
    assert ((change[inner] - expected).abs() < 1 / 4).all(), change
    assert expected - 1 / 4 < change["next token's logit"] < most + 1 / 4


def write_plan(plan: Plan, out: Path) -> None:
    (out / PLAN).write_text(json.dumps(plan.to_dict()), encoding="utf-8")


def svgs(measured: pd.DataFrame) -> list[str]:
    return [figure.svg for figure in drawn.draw(measured)]


def test_the_table_is_drawn_and_fitted_as_what_was_measured(toy_run: toy.Run) -> None:
    """Its missing values are read as those of `measure`, which are not numbers."""
    found = checked(toy_run.out)
    measured = found.astype({"rms": "float64", "rms_change": "float64", "multiple": "int64", "steps": "int64"})
    assert svgs(found) == svgs(measured)
    pd.testing.assert_frame_equal(coordinates.slopes(found), coordinates.slopes(measured), check_dtype=False)


def test_a_rerun_runs_none_and_a_folder_without_them_runs_them_alone(tmp_path: Path) -> None:
    plan, out = toy.plan(tmp_path, strategies=["scratch"]), tmp_path / "out"
    toy.work(plan, out)
    (check,) = checks(plan)
    Store(out).discard(check.key)
    again = [local.run(plan, out, workers=1, listener=lambda event: None) for _ in range(2)]
    assert [(summary.finished, summary.failed) for summary in again] == [(1, 0), (0, 0)]


def test_two_names_of_one_architecture_share_a_stage_and_both_are_in_the_table(tmp_path: Path) -> None:
    ladders = dict.fromkeys(("one", "other"), toy.LADDERS["transformer"])
    plan, out = toy.plan(tmp_path, strategies=["scratch"], ladders=ladders), tmp_path / "out"
    (check,) = checks(plan)
    toy.work(plan, out, [check])
    write_plan(plan, out)
    found = checked(out)
    assert found["architecture"].value_counts().to_dict() == dict.fromkeys(ladders, len(found) / 2)


def test_a_check_that_diverges_is_a_table_and_one_that_fails_blocks_no_arm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, out = widening(tmp_path, train={"learning_rate": 1e30}), tmp_path / "out"
    (check,) = checks(plan)
    assert toy.work(plan, out, [check])[check.key].status == "ok"
    write_plan(plan, out)
    found = checked(out)
    last = found[found["steps"] == coordinates.STEPS]
    assert not last["rms_change"].map(lambda size: size is not pd.NA and math.isfinite(size)).any()
    assert "nothing finite was measured" in svgs(found)[0]

    def exhausted(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(coordinates, "measure", exhausted)
    plan = toy.plan(tmp_path, strategies=["scratch"])
    records = toy.work(plan, tmp_path / "other")
    assert {record.kind for record in records.values() if record.status != "ok"} == {"coordinates"}
    write_plan(plan, tmp_path / "other")
    results, _, stages = write_tables(tmp_path / "other")
    assert set(results["status"]) == {"ok"}
    (reason,) = stages.query("status == 'failed'")["reason"]
    assert reason.startswith("MemoryError: no room")
    assert checked(tmp_path / "other").empty


def test_a_folder_without_coordinates_has_an_empty_table(tmp_path: Path) -> None:
    plan, out = toy.plan(tmp_path, strategies=["scratch"]), tmp_path / "out"
    (check,) = checks(plan)
    toy.work(plan, out, [stage for stage in plan.stages.values() if stage is not check])
    old = plan.to_dict()
    del old["coordinates"], old["stages"][check.key]
    for written in (plan.to_dict(), old):
        (out / PLAN).write_text(json.dumps(written), encoding="utf-8")
        results, _, stages = write_tables(out)
        assert (set(results["status"]), "coordinates" in set(stages["kind"])) == ({"ok"}, False)
        found = pd.read_parquet(out / "coordinates.parquet")
        pd.testing.assert_frame_equal(found, checked(out))
        assert (list(found.columns), len(found)) == (list(COORDINATES), 0)
