"""The result tables, recomputed by hand: every column there, every cost the sum over its path."""

import json
import math
import shutil
from collections.abc import Hashable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import toy

from growbench import ledger
from growbench.launch import local
from growbench.reports import page
from growbench.results import CURVES, RESULTS, STAGES
from growbench.shape import Shape
from growbench.store import RECORD, Record, Status, Store
from growbench.tables import PLAN, RUN, provenance, refuse_foreign, status, tables

HALF, TOTAL = 20 * toy.STEP, 40 * toy.STEP
SMALL, LARGE = (Shape.read(rung | {"context": 16}) for rung in toy.LADDERS["transformer"])


def row(run: toy.Run, arm: str, budget: int = TOTAL) -> dict[Hashable, Any]:
    """The row of an arm of seed 0 at a budget."""
    results, _, _ = tables(run.out)
    chosen = (results["arm"] == arm) & (results["budget"] == budget) & (results["seed"] == 0)
    (found,) = results[chosen].to_dict("records")
    return found


def copied(run: toy.Run, folder: Path) -> Store:
    return Store(shutil.copytree(run.out, folder / "out"))


# --- form ------------------------------------------------------------------------------------------------------------


def test_every_table_has_the_columns_and_dtypes_it_is_said_to_have(toy_run: toy.Run) -> None:
    found = tables(toy_run.out)
    for name, frame, columns in zip(("results", "curves", "stages"), found, (RESULTS, CURVES, STAGES), strict=True):
        assert {column: str(dtype) for column, dtype in frame.dtypes.items()} == {
            column: about.dtype for column, about in columns.items()
        }
        pd.testing.assert_frame_equal(pd.read_parquet(toy_run.out / f"{name}.parquet"), frame)
        assert len(frame)


def test_a_row_per_arm_seed_and_budget_point(toy_run: toy.Run) -> None:
    results, _, stages = tables(toy_run.out)
    planned = [(a.about["arm"], a.about["seed"], p.budget) for a in toy_run.plan.arms for p in a.points]
    assert list(zip(results["arm"], results["seed"], results["budget"], strict=True)) == planned
    assert set(stages["stage"]) == toy_run.plan.stages.keys()
    assert set(results["study"]) == {"toy"}
    assert results["bits_per_byte"].tolist() == pytest.approx((results["loss"] / math.log(2)).tolist())
    assert results["excess_loss"].isna().all()


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_tokens_are_those_of_the_budget_for_every_row(toy_run: toy.Run) -> None:
    results, _, _ = tables(toy_run.out)
    assert (results["tokens"] == results["budget"]).all()
    grown = results["growth_steps"] == 1
    assert (results.loc[grown, "tokens_source"] == HALF).all()
    assert (results.loc[~grown, "tokens_source"] == 0).all()
    probed = results["strategy"] == "probing"
    assert (results.loc[probed, "tokens_probe"] == 2 * toy.STEP).all()
    assert (results.loc[~probed, "tokens_probe"] == 0).all()
    assert results["epochs"].tolist() == pytest.approx((results["budget"] / 7200).tolist())
    assert results["tokens_per_param"].tolist() == pytest.approx(
        (results["tokens"] / results["params_non_embedding"]).tolist()
    )


def test_the_cost_views_of_a_grown_and_of_a_scratch_arm_by_hand(toy_run: toy.Run) -> None:
    small, large = ledger.train_flops(SMALL), ledger.train_flops(LARGE)
    scratch, grown = row(toy_run, "transformer/scratch"), row(toy_run, "transformer/zero_pad")

    assert scratch["flops"] == scratch["flops_continued"] == TOTAL * large
    assert scratch["flops_source"] == 0
    assert scratch["flops_ladder"] == TOTAL * large + HALF * small
    assert scratch["flops_cooldown"] == 4 * toy.STEP * large

    operator = grown["flops_growth"]
    assert operator == 0  # copies go by index: no matrices are multiplied
    assert grown["flops_source"] == HALF * small
    assert grown["flops_continued"] == operator + HALF * large
    assert grown["flops"] == HALF * small + operator + HALF * large
    # The trunk is paid for once; owning the smaller model takes its cooldown of two steps besides.
    assert grown["flops_ladder"] == grown["flops"] + 2 * toy.STEP * small
    assert row(toy_run, "transformer/scratch@0", HALF)["flops"] == HALF * small


def test_growth_is_charged_the_matrices_that_it_multiplies(tmp_path: Path) -> None:
    small, large = toy.LADDERS["transformer"]
    ladders = {"transformer": [small, large | {"residual": 12}]}
    records = toy.work(toy.plan(tmp_path, strategies=["orthogonal"], ladders=ladders), tmp_path / "out").values()
    (grown,) = (record for record in records if record.kind == "grow")
    spent = HALF * sum(ledger.train_flops(Shape.read(rung | {"context": 16})) for rung in ladders["transformer"])
    assert 0 < grown.flops["growth"] < 0.01 * spent


def test_probes_and_frozen_weights_are_charged_as_they_are(toy_run: toy.Run) -> None:
    small, large = ledger.train_flops(SMALL), ledger.train_flops(LARGE)
    probing = row(toy_run, "transformer/probing")
    assert probing["flops_probe"] == toy.STEP * small  # gradients of the source on one of its two probes
    spent = HALF * small + toy.STEP * small + probing["flops_growth"] + (HALF - 2 * toy.STEP) * large
    assert probing["flops"] == spent

    lora = row(toy_run, "transformer/lora")
    shape = replace(SMALL, rank=4)
    base = [name for name in shape.weights if name in SMALL.weights]
    assert lora["flops_continued"] - lora["flops_growth"] == HALF * ledger.train_flops(shape, base)
    assert lora["flops_continued"] < HALF * ledger.train_flops(shape)


def test_evaluation_is_apart_and_counts_every_forward_pass(toy_run: toy.Run) -> None:
    tokens = 15 * 16 + 16  # 256 tokens asked for, in windows of 16
    _, _, stages = tables(toy_run.out)
    scratch = row(toy_run, "transformer/scratch")
    arm = next(a for a in toy_run.plan.arms if a.about["arm"] == "transformer/scratch" and a.about["seed"] == 0)
    curves = [len(pd.read_parquet(Store(toy_run.out).folder(key) / "curve.parquet")) for key in arm.points[-1].path[1:]]
    once = tokens * ledger.train_flops(LARGE)  # diagnostics, on windows of which there are no more than 256 tokens
    assert scratch["flops_eval"] == sum(curves) * tokens * ledger.forward_flops(LARGE) + len(curves) * once
    assert stages["flops_eval"].sum() == pytest.approx(
        sum(record.flops.get("eval", 0.0) for record in toy_run.records.values())
    )


def test_sizes_and_what_is_matched(toy_run: toy.Run) -> None:
    results, _, _ = tables(toy_run.out)
    for _, found in results.iterrows():
        rung = Shape.read(toy.LADDERS[found["architecture"]][found["rung"]] | {"context": 16})
        goal = found["params_target"]
        assert found["matched"] == (abs(found["params_non_embedding"] - goal) <= 0.01 * goal)
        if found["strategy"] != "lora":
            assert (found["params"], found["params_non_embedding"]) == (rung.params, rung.params_non_embedding)
    matched = results.groupby("strategy")["matched"].agg(["all", "any"])
    assert matched["all"].to_dict() == matched["any"].to_dict()
    assert {s for s, ranked in matched["all"].items() if ranked} == {"scratch", "zero_pad", "probing"}
    lora = row(toy_run, "transformer/lora")
    assert lora["params_non_embedding"] == SMALL.params_non_embedding  # merged
    assert lora["params_added"] == replace(SMALL, rank=4).params_non_embedding - SMALL.params_non_embedding
    zero_pad = row(toy_run, "transformer/zero_pad")
    assert zero_pad["params_added"] == LARGE.params_non_embedding - SMALL.params_non_embedding
    assert row(toy_run, "transformer/continue")["params_added"] == 0


def test_growth_is_described_on_the_rows_that_grew(toy_run: toy.Run) -> None:
    results, _, _ = tables(toy_run.out)
    grown = results["growth_steps"] == 1
    for name in ("growth_gap", "growth_loss_jump", "alive_share"):
        assert results.loc[~grown, name].isna().all()
        assert results.loc[grown, name].notna().all()
    assert (results.loc[grown, "growth_gap"] < 1e-4).all()
    assert (results.loc[grown, "alive_share"] > 0.01).all()


def test_curves_go_up_to_what_the_results_say(toy_run: toy.Run) -> None:
    results, curves, _ = tables(toy_run.out)
    for (arm, seed), curve in curves.groupby(["arm", "seed"]):
        own = results[(results["arm"] == arm) & (results["seed"] == seed)]
        trunk, ends = curve[curve["kind"] == "train"], curve[curve["kind"] == "cooldown"]
        assert trunk["budget"].isna().all()
        assert (trunk["learning_rate"] == 0.01).all()
        assert trunk["tokens"].is_monotonic_increasing
        assert trunk["flops"].is_monotonic_increasing
        assert trunk["rung"].is_monotonic_increasing
        assert trunk["rung"].max() == own["rung"].iloc[0]
        assert trunk["rung"].max() - trunk["rung"].min() == own["growth_steps"].iloc[0]
        assert (
            ends[["budget", "tokens", "flops", "loss"]].values.tolist()
            == own[["budget", "tokens", "flops", "loss"]].values.tolist()
        )
        steps = (ends["budget"].astype(float) * 0.1 / toy.STEP).round()
        assert ends["learning_rate"].tolist() == pytest.approx((0.01 / (steps + 1)).tolist())
    trunk = curves.query("arm == 'transformer/scratch' and seed == 0 and kind == 'train'")
    assert (trunk["flops"] == trunk["tokens"] * ledger.train_flops(LARGE)).all()
    assert (trunk["train_loss"] > 0).all()


def test_a_decayed_source_s_cooldown_is_part_of_the_trunk(tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["zero_pad"], budget={"source": "decayed"})
    local.run(plan, tmp_path / "out", workers=1, progress=lambda event: None)
    results, curves, _ = tables(tmp_path / "out")
    small, large = ledger.train_flops(SMALL), ledger.train_flops(LARGE)
    assert curves.query("kind == 'cooldown'")["budget"].tolist() == results["budget"].tolist() == [30 * 64, TOTAL]
    trunk = curves.query("kind == 'train'")
    assert not trunk.duplicated(["tokens", "rung"]).any()
    assert trunk[trunk["rung"] == 0]["tokens"].max() == HALF
    last = results.iloc[-1]
    assert last["flops_cooldown"] == 2 * toy.STEP * small + 4 * toy.STEP * large
    assert last["flops_ladder"] == last["flops"]


def test_a_stage_is_counted_once_however_many_arms_share_it(toy_run: toy.Run) -> None:
    results, _, stages = tables(toy_run.out)
    assert stages["tokens"].sum() == sum(stage.tokens for stage in toy_run.plan.stages.values())
    assert stages["flops"].sum() < results["flops"].sum()
    source = next(a for a in toy_run.plan.arms if a.about["arm"] == "transformer/zero_pad").points[0].path[0]
    (shared,) = stages[stages["stage"] == source]["arms"]
    assert shared == 5  # the small scratch arm, continue, zero_pad, lora, probing
    assert set(stages["task"]) == set(results["task"])


# --- what has not ended well -----------------------------------------------------------------------------------------


def spoilt(store: Store, run: toy.Run, key: str, how: Status) -> Record:
    """Put a bad end in a stage's place, and take away all that builds on it."""
    below = {key}
    for name, stage in run.plan.stages.items():
        if stage.parent in below:
            below.add(name)
            store.discard(name)
    record = Record.of(run.plan.stages[key], status=how, reason="it was told to", tokens=64, flops={"train": 1.0})
    return store.write(record)


def test_an_arm_that_does_not_end_well_scores_the_uniform_loss(toy_run: toy.Run, tmp_path: Path) -> None:
    store = copied(toy_run, tmp_path)
    arm = next(a for a in toy_run.plan.arms if a.about["arm"] == "transformer/zero_pad" and a.about["seed"] == 1)
    path = arm.points[-1].path
    grow = next(i for i, key in enumerate(path) if toy_run.plan.stages[key].kind == "grow")
    before, _, _ = tables(store.out)

    spoilt(store, toy_run, path[grow + 1], "diverged")
    results, curves, _ = tables(store.out)
    own = (results["arm"] == "transformer/zero_pad") & (results["seed"] == 1)
    pd.testing.assert_frame_equal(results[~own], before[~own])
    assert (results.loc[own, "status"] == "diverged").all()
    assert (results.loc[own, "reason"] == "it was told to").all()
    assert results.loc[own, "loss"].tolist() == pytest.approx([math.log(256)] * own.sum())
    assert (results.loc[own, "tokens"] == HALF + 64).all()
    assert results.loc[own, "flops_ladder"].isna().all()
    kept = curves.query("arm == 'transformer/zero_pad' and seed == 1")
    assert set(kept["kind"]) == {"train"}
    assert kept["tokens"].max() == HALF

    spoilt(store, toy_run, path[grow], "failed")
    results, _, _ = tables(store.out)
    assert (results.loc[own, "status"] == "failed").all()

    spoilt(store, toy_run, path[grow - 1], "diverged")
    results, _, _ = tables(store.out)
    assert (results.loc[own, "status"] == "blocked").all()
    assert set(results.loc[own, "reason"]) == {"its source diverged: it was told to"}
    assert set(results.query("status == 'blocked'")["arm"]) >= {"transformer/zero_pad", "transformer/lora"}


def test_a_run_under_way_shows_the_rows_that_are_there(toy_run: toy.Run, tmp_path: Path) -> None:
    store = copied(toy_run, tmp_path)
    before, _, _ = tables(store.out)
    missing = next(a for a in toy_run.plan.arms if a.about["arm"] == "transformer/scratch").points[-1].path[-1]
    store.discard(missing)
    results, _, stages = tables(store.out)
    assert len(results) == len(before) - 1
    assert missing not in set(stages["stage"])
    said = status(store.out)
    assert (said["stages"], said["ok"]) == (len(toy_run.plan.stages), len(toy_run.plan.stages) - 1)
    shutil.rmtree(store.out / "stages")
    assert [len(frame) for frame in tables(store.out)] == [0, 0, 0]
    assert [list(frame.columns) for frame in tables(store.out)] == [list(RESULTS), list(CURVES), list(STAGES)]


def test_status_counts_and_names_what_went_wrong(toy_run: toy.Run, tmp_path: Path) -> None:
    store, count = copied(toy_run, tmp_path), len(toy_run.plan.stages)
    counts = {"stages": count, "ok": count, "diverged": 0, "failed": 0, "damaged": 0, "left": 0}
    assert status(store.out) == {"study": "toy", "out": str(store.out), "problems": []} | counts
    first, second, third = [a.points[-1].path[-1] for a in toy_run.plan.arms][:3]
    spoilt(store, toy_run, first, "diverged")
    spoilt(store, toy_run, second, "failed")
    (store.folder(third) / RECORD).write_text("{")
    said = status(store.out)
    assert (said["ok"], said["diverged"], said["failed"], said["damaged"]) == (count - 3, 1, 1, 1)
    reasons = {problem["stage"]: (problem["status"], problem["reason"]) for problem in said["problems"]}
    assert reasons[toy_run.plan.stages[first].label] == ("diverged", "it was told to")
    assert reasons[toy_run.plan.stages[third].label][0] == "damaged"
    assert str(store.folder(third)) in reasons[toy_run.plan.stages[third].label][1]


def test_a_folder_without_a_study_is_refused(tmp_path: Path) -> None:
    for asked in (tables, status, provenance):
        with pytest.raises(ValueError, match="holds no study: name a folder that `growbench run --out` wrote"):
            asked(tmp_path)


GARBAGE = ["", "{", "[]", "null", "{}", '{"growbench": "0.1.0"}', "\xff", '{"study": 3, "resources": []}']


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_record_of_the_run_that_is_missing_or_garbage_is_written_anew(
    garbage: str, toy_run: toy.Run, tmp_path: Path
) -> None:
    store, said = copied(toy_run, tmp_path), provenance(toy_run.out)
    (store.out / RUN).unlink()
    missing = provenance(store.out)
    assert missing.keys() == said.keys()
    assert missing["growbench"] == said["growbench"]  # of the stages, by their identity
    (store.out / RUN).write_bytes(garbage.encode("latin-1"))
    assert provenance(store.out) == missing
    if garbage in GARBAGE[:2]:
        page.render(*tables(store.out), missing)
        local.run(toy_run.plan, store.out, 1, lambda event: None, "growbench run again")
        assert json.loads((store.out / RUN).read_text())["command"] == "growbench run again"
        assert provenance(store.out)["cpu"] == said["cpu"]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_a_plan_that_is_garbage_is_one_sentence_and_written_anew_where_there_are_stages(
    garbage: str, toy_run: toy.Run, tmp_path: Path
) -> None:
    store = copied(toy_run, tmp_path)
    (store.out / PLAN).write_bytes(garbage.encode("latin-1"))
    for asked in (tables, status, provenance):
        with pytest.raises(
            ValueError, match=r"plan\.json is no plan of growbench: run the study into .* its stages stay"
        ):
            asked(store.out)
    refuse_foreign(store.out)
    if garbage in GARBAGE[:1]:
        summary = local.run(toy_run.plan, store.out, 1, lambda event: None)
        assert (summary.finished, summary.cached) == (0, len(toy_run.plan.stages))
        assert (store.out / PLAN).read_bytes() == (toy_run.out / PLAN).read_bytes()
        return
    shutil.rmtree(store.out / "stages")
    with pytest.raises(ValueError, match="no study of growbench"):
        refuse_foreign(store.out)


def test_a_folder_with_something_else_in_it_is_refused_and_left_as_it_is(toy_run: toy.Run, tmp_path: Path) -> None:
    for name in ("results.parquet", "plan.json", "stages/.git/HEAD", ".env"):
        out = tmp_path / name.replace("/", " ")
        (out / name).parent.mkdir(parents=True)
        (out / name).write_text('{"resources": []}')
        first = name.partition("/")[0]
        with pytest.raises(ValueError, match=f"{first} and no study of growbench: give a new or an empty folder"):
            local.run(toy_run.plan, out, 1, lambda event: None)
        assert [path for path in out.rglob("*") if path.is_file()] == [out / name]
        assert (out / name).read_text() == '{"resources": []}'
    refuse_foreign(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    refuse_foreign(tmp_path / "empty")
    for name in (".lock", ".plan.json.123"):  # of a run that ended before its plan was written
        (tmp_path / "empty" / name).touch()
    refuse_foreign(tmp_path / "empty")
    refuse_foreign(toy_run.out)


def test_a_folder_whose_tuning_was_killed_before_its_plan_was_written_is_no_one_else_s(tmp_path: Path) -> None:
    tuning = tmp_path / "out" / "tuning"
    tuning.mkdir(parents=True)
    refuse_foreign(tmp_path / "out")
    for name in (".lock", ".plan.json.123"):
        (tuning / name).touch()
        refuse_foreign(tmp_path / "out")
    (tuning / "notes.txt").touch()
    with pytest.raises(ValueError, match="holds tuning and no study of growbench"):
        refuse_foreign(tmp_path / "out")
    (tuning / "notes.txt").rename(tmp_path / "out" / "notes.txt")
    with pytest.raises(ValueError, match=r"holds notes\.txt and no study of growbench"):
        refuse_foreign(tmp_path / "out")


def test_the_command_is_that_of_the_plan_in_the_folder(toy_run: toy.Run, tmp_path: Path) -> None:
    store, before = copied(toy_run, tmp_path), provenance(toy_run.out)
    plan = toy.plan(toy_run.out.parent, strategies=["scratch"])  # one seed, one architecture: all of it is there
    summary = local.run(plan, store.out, 3, lambda event: None, "growbench run fewer")
    assert (summary.finished, summary.cached) == (0, len(plan.stages))
    after = provenance(store.out)
    assert (after["command"], after["seeds"], after["study"]) == ("growbench run fewer", [0], plan.study.to_yaml())
    same = ("workers", "started", "finished", "git_sha")  # the numbers are those of the first run
    assert {name: after[name] for name in same} == {name: before[name] for name in same}


def test_a_ladder_whose_rungs_are_not_known_has_no_cost(toy_run: toy.Run, tmp_path: Path) -> None:
    store = copied(toy_run, tmp_path)
    before, _, _ = tables(store.out)
    plan = json.loads((store.out / PLAN).read_text())
    for arm in plan["arms"]:
        for point in arm["points"]:
            if arm["about"]["strategy"] == "zero_pad":
                point["ladder"] = []
    (store.out / PLAN).write_text(json.dumps(plan))
    after, _, _ = tables(store.out)
    own = before["strategy"] == "zero_pad"
    assert before["flops_ladder"].notna().all()
    assert after.loc[own, "flops_ladder"].isna().all()
    pd.testing.assert_series_equal(after.loc[~own, "flops_ladder"], before.loc[~own, "flops_ladder"])


def test_a_stage_s_task_is_that_of_the_arms_it_is_in(toy_run: toy.Run, tmp_path: Path) -> None:
    store = copied(toy_run, tmp_path)
    plan = json.loads((store.out / PLAN).read_text())
    for named in (*(arm["about"] for arm in plan["arms"]), *plan["coordinates"]):
        named["task"] = "text:a seed 7 file"
    (store.out / PLAN).write_text(json.dumps(plan))
    results, _, stages = tables(store.out)
    assert set(results["task"]) == set(stages["task"]) == {"text:a seed 7 file"}


def test_provenance_says_how_the_numbers_were_made(toy_run: toy.Run) -> None:
    said = provenance(toy_run.out)
    assert said["command"] == "growbench run toy"
    assert (said["workers"], said["threads"], said["seeds"]) == (2, 1, [0, 1])
    assert said["started"] <= said["finished"]
    assert said["packages"]["torch"].startswith("2.")
    assert len(said["git_sha"]) in (0, 40)
    assert said["planned_rows"] == sum(len(arm.points) for arm in toy_run.plan.arms)
    assert {strategy["name"]: strategy["origin"].split()[0] for strategy in said["strategies"]} == {
        "scratch": "built-in", "continue": "built-in", "zero_pad": "built-in", "lora": "built-in", "probing": "file"
    }  # fmt: skip
    assert said["tasks"][0]["train_tokens"] == 7200
    assert said["study"] == toy_run.plan.study.to_yaml()
