"""Tuning: one space and as many trials for every arm, seeds of its own, the lowest mean loss, and its cost stated."""

import hashlib
import json
import math
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import test_faults
import toy
from hypothesis import given
from hypothesis import strategies as st

from growbench.arms import Arm
from growbench.plan import Plan, make_plan
from growbench.settings import Chosen, Tuned
from growbench.store import Stage, Store
from growbench.study import TUNING_SEED, Study, Tuning
from growbench.tables import tables
from growbench.tune import Tuner, choice, trial_settings

STRATEGIES = ["scratch", "continue", "zero_pad", "net2net"]
TUNING = {"trials": 3, "tokens": 10 * toy.STEP, "learning_rate": [0.002, 0.05], "warmup": [0.1, 0.17]}
SMALL = {"trials": 2, "tokens": 10 * toy.STEP, "learning_rate": [0.002, 0.05]}


def tuned_study(folder: Path, tuning: Mapping[str, Any], strategies: Sequence[Any] = STRATEGIES, **more: Any) -> Study:
    return toy.study(folder, strategies=strategies, tuning=dict(tuning), **{"budget": {"tokens": 20 * toy.STEP}} | more)


def work(plan: Plan, out: Path) -> set[str]:
    """Run what is left of a plan; its keys."""
    store, done = Store(out), set[str]()
    for stage in plan.stages.values():
        if stage.key not in store.records():
            done |= toy.work(plan, out, [stage]).keys() & {stage.key}
    return done


@dataclass(frozen=True, kw_only=True)
class Done:
    """A study, tuned in `out`, with its results beside."""

    study: Study
    out: Path
    tuned: Tuned
    chosen: tuple[None, Chosen]
    """What the two parts of tuning rest on: nothing, and the choice for from-scratch arms."""
    trials: tuple[Plan, Plan]
    plan: Plan
    results: pd.DataFrame


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("tuned")
    study = tuned_study(folder, TUNING, budget={"tokens": 20 * toy.STEP, "points": [1.0]})
    tuner = Tuner(study=study)
    tuned = tuner.run(folder / "tuning", work)
    first = tuner.plan()
    scratch = {arm.about["arm"] for arm in first.arms}
    chosen = {task: {arm: own for arm, own in arms.items() if arm in scratch} for task, arms in tuned.chosen.items()}
    plan = make_plan(study, tuned=tuned)
    work(plan, folder / "out")
    return Done(
        study=study,
        out=folder / "tuning",
        tuned=tuned,
        chosen=(None, chosen),
        trials=(first, tuner.plan(chosen)),
        plan=plan,
        results=tables(folder / "out", plan.to_dict())[0],
    )


def about(arm: Arm) -> tuple[str, float, float]:
    return arm.about["arm"], arm.about["learning_rate"], arm.about["warmup"]


def rows(tuned: Tuned) -> pd.DataFrame:
    return pd.DataFrame([dict(row) for row in tuned.trials])


def path(plan: Plan, arm: Arm) -> list[Stage]:
    return [plan.stages[key] for key in arm.points[-1].path]


# --- what is tried ---------------------------------------------------------------------------------------------------


def radical_inverse(number: int, base: int) -> Fraction:
    """The digits of a number, mirrored at the point: the Halton sequence in one dimension."""
    value, unit = Fraction(0), Fraction(1, base)
    while number:
        value, number, unit = value + number % base * unit, number // base, unit / base
    return value


spaces = st.builds(
    lambda low, ratio: [low, low * ratio], st.floats(1e-4, 1e-2).map(lambda x: round(x, 7)), st.floats(10, 90)
)


@given(trials=st.integers(2, 32), rate=spaces, decay=st.none() | spaces, warmup=st.none() | spaces)
def test_trials_are_a_halton_sequence_in_the_logarithms_of_the_space(
    trials: int, rate: list[float], decay: list[float] | None, warmup: list[float] | None, done: Done
) -> None:
    written = {"learning_rate": rate, "weight_decay": decay, "warmup": warmup}
    space = {name: ends for name, ends in written.items() if ends}
    tuning = Tuning.model_validate({"trials": trials, "tokens": 64} | written)
    study = done.study.model_copy(update={"tuning": tuning})
    settings = trial_settings(study)
    assert len(set(settings)) == trials
    for number, setting in enumerate(settings, start=1):
        for base, (name, ends) in zip((2, 3, 5), space.items(), strict=False):
            (low, high), value = ends, getattr(setting, name)
            exact = low * (high / low) ** float(radical_inverse(number, base))
            assert low <= value <= high
            assert value == pytest.approx(exact, rel=5.01e-3)
            assert value == float(f"{value:.3g}") or value in (low, high)
        assert all((getattr(setting, name) is None) != (name in space) for name in ("weight_decay", "warmup"))


def test_trials_that_would_be_equal_are_refused(tmp_path: Path) -> None:
    study = tuned_study(tmp_path, SMALL | {"learning_rate": [0.01, 0.010001]})
    with pytest.raises(ValueError, match=r"^two trials of tuning are equal at three digits: give fewer, or widen a"):
        Tuner(study=study).plan()


def test_every_arm_gets_the_same_trials_on_seeds_that_no_result_uses(done: Done) -> None:
    tried = rows(done.tuned)
    space = [(own.learning_rate, own.warmup) for own in trial_settings(done.study)]
    assert set(tried["arm"]) == {f"transformer/{name}" for name in ("scratch@0", "scratch", "zero_pad", "net2net")}
    for _, own in tried.groupby("arm"):
        assert list(own[["learning_rate", "warmup"]].itertuples(index=False, name=None)) == space
        assert own["trial"].tolist() == [0, 1, 2]
        assert own["chosen"].sum() == 1
    seeds = {stage.identity["seed"] for plan in done.trials for stage in plan.stages.values()}
    assert seeds == set(tried["seed"]) == {TUNING_SEED}
    assert max(done.study.at(first_seed=TUNING_SEED - 1).seed_numbers) < TUNING_SEED
    two = done.study.model_copy(update={"tuning": done.study.tuning.model_copy(update={"seeds": 2})})  # type: ignore[union-attr]
    assert {stage.identity["seed"] for stage in Tuner(study=two).plan().stages.values()} == {1_000_000, 1_000_001}


def test_a_strategy_more_changes_no_trial_of_another_arm(done: Done) -> None:
    folder = done.out.parent
    more = tuned_study(folder, TUNING, [*STRATEGIES, "lora"], budget={"tokens": 20 * toy.STEP, "points": [1.0]})
    assert trial_settings(more) == trial_settings(done.study)
    for chosen, before in zip(done.chosen, done.trials, strict=True):
        after = Tuner(study=more).plan(chosen)
        assert before.stages.keys() <= after.stages.keys()
        assert {arm.about["arm"] for arm in after.arms} - {arm.about["arm"] for arm in before.arms} <= {
            "transformer/lora"
        }


def test_grown_arms_are_tried_on_one_source_with_the_setting_chosen_for_it(done: Done) -> None:
    plan, sources = done.trials[1], set[tuple[str, ...]]()
    (own,) = (arms["transformer/scratch@0"] for arms in done.tuned.chosen.values())
    for arm in plan.arms:
        stages = path(plan, arm)
        grown = next(i for i, stage in enumerate(stages) if stage.kind == "grow")
        sources.add(tuple(stage.key for stage in stages[:grown]))
        assert {stage.identity["train"]["learning_rate"] for stage in stages[:grown]} == {own.learning_rate}
        assert {stage.identity["train"]["learning_rate"] for stage in stages[grown:]} == {arm.about["learning_rate"]}
        warm_from, warm_until = stages[grown + 1].identity["rewarm"]
        assert (warm_from, warm_until - warm_from) == (5 * toy.STEP, round(arm.about["warmup"] * 10) * toy.STEP)
    (source,) = sources
    assert source[0] in done.trials[0].stages
    assert {about(arm)[1:] for arm in plan.arms} == {(s.learning_rate, s.warmup) for s in trial_settings(done.study)}


def test_each_trial_ends_at_the_proxy_budget_and_grows_at_the_study_s_fractions(done: Done) -> None:
    for plan in done.trials:
        for arm in plan.arms:
            stages = path(plan, arm)
            assert sum(stage.tokens for stage in stages) == 10 * toy.STEP
            grown = [stage for stage in stages if stage.kind == "grow"]
            assert all(sum(s.tokens for s in stages[: stages.index(stage)]) == 5 * toy.STEP for stage in grown)


@pytest.mark.parametrize(
    ("only", "scratch", "grown"),
    [
        ("zero_pad", {"scratch@0"}, {"zero_pad"}),
        ("continue", {"scratch@0"}, set()),
        ("scratch", {"scratch@0", "scratch"}, set()),
    ],
)
def test_with_a_pattern_the_sources_are_tuned_too_and_are_the_same_trials(
    only: str, scratch: set[str], grown: set[str], done: Done
) -> None:
    for chosen, arms, whole in zip(done.chosen, (scratch, grown), done.trials, strict=True):
        plan = Tuner(study=done.study, only=only).plan(chosen)
        assert {arm.about["arm"] for arm in plan.arms} == {f"transformer/{name}" for name in arms}
        assert plan.stages.keys() <= whole.stages.keys()


@pytest.mark.parametrize(
    ("changes", "only", "sentence"),
    [
        ({"tuning": SMALL | {"tokens": toy.STEP}}, None, r"cannot be met: .*; raise tuning\.tokens, grow earlier"),
        (
            {"strategies": ["zero_pad"]},
            None,
            "^the source of transformer/zero_pad would not be tuned on text:.*: add the strategy",
        ),
        ({}, "zero_q", r"^no arm matches 'zero_q': the arms are transformer/continue, transformer/net2net, "),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_is_trained(
    changes: dict[str, Any], only: str | None, sentence: str, tmp_path: Path
) -> None:
    study = tuned_study(tmp_path, changes.pop("tuning", SMALL), **changes)
    with pytest.raises(ValueError, match=sentence):
        Tuner(study=study, only=only).plan()


def test_a_source_that_is_tuned_on_another_task_alone_is_not_tuned(tmp_path: Path) -> None:
    first, second = toy.text(tmp_path), tmp_path / "more.txt"
    second.write_bytes(first.read_bytes())
    tasks = [f"text:{path}" for path in (first, second)]
    scratch = {"name": "scratch", "tasks": tasks[:1]}
    Tuner(study=tuned_study(tmp_path, SMALL, [scratch, {"name": "zero_pad", "tasks": tasks[:1]}], tasks=tasks)).plan()
    with pytest.raises(ValueError, match=r"the source of transformer/zero_pad would not be tuned on text:.*more\.txt"):
        Tuner(study=tuned_study(tmp_path, SMALL, [scratch, "zero_pad"], tasks=tasks)).plan()


# --- what is chosen --------------------------------------------------------------------------------------------------

losses = st.tuples(st.sampled_from([1.0, 1.5, 2.0, 7.0]), st.sampled_from(["ok", "ok", "ok", "diverged", "blocked"]))


@given(st.lists(st.lists(losses, min_size=2, max_size=2), min_size=2, max_size=5), st.randoms())
def test_the_lowest_mean_loss_is_chosen_of_trials_that_ended_and_of_equal_ones_the_first(
    trials: list[list[tuple[float, str]]], random: Any
) -> None:
    uniform = math.log(256)  # 5.5, less than the worst loss of a run that ended
    found = [[uniform if status != "ok" else loss for loss, status in seeds] for seeds in trials]
    ended = [all(status == "ok" for _, status in seeds) for seeds in trials]
    candidates = [k for k in range(len(trials)) if ended[k] or not any(ended)]
    means = [sum(seeds) / 2 for seeds in found]
    expected = min(candidates, key=lambda k: means[k])
    written = [
        {"task": task, "arm": "a", "trial": k, "seed": seed, "status": trials[k][seed][1], "loss": found[k][seed]}
        for task, k, seed in product(("one", "other"), range(len(trials)), range(2))
    ]
    random.shuffle(written)
    assert choice(pd.DataFrame(written)) == {("one", "a"): expected, ("other", "a"): expected}


def test_the_choice_is_the_lowest_loss_of_the_real_trials(done: Done) -> None:
    tried = rows(done.tuned)
    (chosen,) = done.tuned.chosen.values()
    assert chosen.keys() == set(tried["arm"])
    for arm, own in tried.groupby("arm"):
        best = own.sort_values("loss").iloc[0]
        assert (chosen[str(arm)].learning_rate, chosen[str(arm)].warmup) == (best["learning_rate"], best["warmup"])
        assert own.loc[own["chosen"], "trial"].tolist() == [best["trial"]]
    records = Store(done.out).records()
    for trial in (*done.trials[0].arms, *done.trials[1].arms):
        same = (tried["arm"] == trial.about["arm"]) & (tried["trial"] == trial.about["trial"])
        assert tried.loc[same, "loss"].tolist() == [records[trial.points[0].path[-1]].measures["loss"]]


@pytest.mark.parametrize(("space", "ended"), [([1e-29, 1e79], [1]), ([1e24, 1e30], [])])
def test_a_diverged_trial_scores_the_uniform_loss_and_is_not_chosen_unless_all_are(
    space: list[float], ended: list[int], tmp_path: Path
) -> None:
    study = tuned_study(tmp_path, SMALL | {"learning_rate": space}, ["scratch", "zero_pad"])
    tuner, out = Tuner(study=study), tmp_path / "tuning"
    tuned = tuner.run(out, work)
    for _, own in rows(tuned).groupby("arm"):
        bad = own[own["status"] != "ok"]
        assert sorted({0, 1} - set(bad["trial"])) == ended
        assert (bad["loss"] == math.log(256)).all()
        assert own.loc[own["chosen"], "trial"].tolist() == (ended or [0])
    trials, known = tuner.known(out)
    assert known == tuned  # what builds on a diverged stage is not waited for
    said = trials.describe(out)
    assert said["flops_left"] == 0
    assert {row["why"] for row in said["stages"] if not row["cached"]} == {"what it builds on diverged"}


# --- what results say ------------------------------------------------------------------------------------------------


def test_results_have_the_chosen_setting_and_say_so(done: Done) -> None:
    (chosen,) = done.tuned.chosen.values()
    assert (done.results["status"] == "ok").all()
    assert done.results["tuned"].all()
    for row in done.results.to_dict("records"):
        own = chosen[row["arm"].replace("continue", "scratch@0")]
        assert (row["learning_rate"], row["warmup"]) == (own.learning_rate, own.warmup)
        assert row["weight_decay"] == done.study.train.weight_decay
    for arm in done.plan.arms:
        stages = path(done.plan, arm)
        last = stages[-1].identity["train"]
        assert last["learning_rate"] == arm.about["learning_rate"]
        if arm.about["from_scratch"]:
            assert last["warmup"] == round(arm.about["warmup"] * 20) * toy.STEP
        elif arm.about["arm"] != "transformer/continue":
            start, end = next(s.identity["rewarm"] for s in stages if "rewarm" in s.identity)
            assert (start, end - start) == (10 * toy.STEP, round(arm.about["warmup"] * 20) * toy.STEP)


def test_the_cost_of_tuning_is_that_of_the_distinct_stages_of_an_arm_s_trials(done: Done) -> None:
    keys: dict[str, set[str]] = {}
    for trial in (*done.trials[0].arms, *done.trials[1].arms):
        keys.setdefault(trial.about["arm"], set()).update(trial.points[0].path)
    for arm, cost in done.results.groupby("arm")["flops_tuning"]:
        own = keys[str(arm).replace("continue", "scratch@0")]
        stages = [json.loads((done.out / "stages" / key / "stage.json").read_text()) for key in own]
        spent = sum(value for stage in stages for purpose, value in stage["flops"].items() if purpose != "eval")
        assert cost.tolist() == [spent] * len(cost)


def test_continue_is_its_source_trained_on_with_the_source_s_setting(done: Done) -> None:
    paths = {
        (arm.about["arm"], point.budget): point.path
        for arm in done.plan.arms
        for point in arm.points
        if arm.about["arm"] in ("transformer/continue", "transformer/scratch@0")
    }
    full = 20 * toy.STEP
    assert paths["transformer/continue", full] == paths["transformer/scratch@0", full]


def test_the_plan_holds_all_trials_and_a_digest_of_them(done: Done) -> None:
    written = json.loads(json.dumps(done.plan.to_dict()))["tuned"]
    assert written["trials"] == [dict(row) for row in done.tuned.trials]
    stated = written.pop("digest")
    text = json.dumps(written, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert stated == hashlib.sha256(text.encode()).hexdigest() == done.tuned.digest
    first, *others = done.tuned.trials
    moved = replace(done.tuned, trials=[{**first, "loss": math.nextafter(first["loss"], 9.0)}, *others])
    assert moved.digest != stated


def test_without_tuning_the_same_study_is_untuned(done: Done) -> None:
    plan = make_plan(done.study.at(untuned=True))
    assert {arm.about["tuned"] for arm in plan.arms} == {False}
    assert {arm.about["learning_rate"] for arm in plan.arms} == {done.study.train.learning_rate}
    assert {arm.about["flops_tuning"] for arm in plan.arms} == {0.0}
    assert "tuning: null" in plan.to_dict()["study"]
    assert any("no verdict rests on an untuned study" in note for note in plan.describe()["notes"])


def test_what_was_chosen_is_known_again_and_what_all_trials_cost(done: Done) -> None:
    trials, known = Tuner(study=done.study).known(done.out)
    assert known == done.tuned
    assert trials.stages.keys() == done.trials[0].stages.keys() | done.trials[1].stages.keys()
    assert trials.stages.keys() == Store(done.out).records().keys()
    stages = [json.loads(path.read_text()) for path in (done.out / "stages").glob("*/stage.json")]
    spent = sum(value for stage in stages for purpose, value in stage["flops"].items() if purpose != "eval")
    assert done.tuned.flops_total == spent < sum(sum(arms.values()) for arms in done.tuned.flops.values())


# --- what is left ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [0, 1])
def test_what_is_said_to_be_left_is_what_is_run_and_the_outcome_is_the_same(
    phase: int, done: Done, tmp_path: Path
) -> None:
    out, tuner = tmp_path / "tuning", Tuner(study=done.study)
    shutil.copytree(done.out, out)
    lost = [stage.key for stage in done.trials[phase].stages.values() if stage.kind == "cooldown"][-2:]
    for key in lost:
        shutil.rmtree(out / "stages" / key)
    trials, known = tuner.known(out)
    left = {row["stage"] for row in trials.describe(out)["stages"] if not row["cached"]}
    assert known is None
    assert len(trials.stages) == len(done.trials[0].stages.keys() | done.trials[1].stages.keys())
    assert left >= set(lost)
    run = set[str]()
    assert tuner.run(out, lambda plan, folder: run.update(work(plan, folder))).digest == done.tuned.digest
    assert run == set(lost)
    assert left == run or not phase  # which source the grown arms stand on is open until the first are done


@pytest.mark.slow
def test_a_run_killed_while_it_tunes_goes_on_to_the_same_digest(tmp_path: Path) -> None:
    study, out = tuned_study(tmp_path, SMALL, ["scratch", "zero_pad"]), tmp_path / "out"
    file = tmp_path / "toy.yaml"
    file.write_text(study.to_yaml(), encoding="utf-8")
    words = [str(word) for word in (test_faults.GROWBENCH, "tune", file, "--out", out, "--workers", "1", "--json")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    try:
        test_faults.until(lambda: len(test_faults.done(out / "tuning")) >= 2, process)  # type: ignore[arg-type]
    finally:
        test_faults.with_group(process.pid, signal.SIGKILL)
        process.communicate()
    there = test_faults.done(out / "tuning")
    again = subprocess.run(words, capture_output=True, text=True, check=True, timeout=test_faults.SECONDS)
    undisturbed = Tuner(study=study).run(tmp_path / "other", work)
    assert json.loads(again.stdout)["digest"] == undisturbed.digest
    assert there < test_faults.done(out / "tuning") == test_faults.done(tmp_path / "other")
