"""The shipped studies, whole but for their budgets: every ladder, strategy and growth step runs and is scored."""

from pathlib import Path

import pandas as pd
import pytest
import toy

from growbench.launch import local
from growbench.plan import make_plan
from growbench.study import Study, read_study, shipped
from growbench.tables import tables

STEPS = 40


def small(name: str) -> Study:
    """A shipped study on its last task, which needs no download, with small steps and few of them, untuned."""
    written = read_study(name).model_dump()
    written["train"] |= {"context": 16, "batch": 2, "eval_every": 16 * 2 * STEPS, "eval_tokens": 64}
    written["budget"] |= {"tokens": 16 * 2 * STEPS}
    written["tasks"], written["strategies"] = written["tasks"][-1:], toy.everywhere(read_study(name))
    written |= {"seeds": 1, "tuning": None}
    return Study.model_validate(written)


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_study_runs(name: str, tmp_path: Path) -> None:
    study = small(name)
    plan = make_plan(study, cache=tmp_path)
    summary = local.run(plan, tmp_path / name, workers=2, listener=lambda event: None)
    assert (summary.failed, summary.blocked, summary.interrupted) == (0, 0, False)
    results, _, _ = tables(tmp_path / name)
    assert set(results["status"]) == {"ok"}
    assert len(results) == sum(len(arm.points) for arm in plan.arms)
    assert set(results["task"]) == {task.label for task in study.tasks}
    final = results[results["budget"] == study.budget.tokens]
    assert (final["tokens"] == study.budget.tokens).all()
    ranked = final[final["matched"] & (final["growth_steps"] > 0)]
    assert (ranked["growth_steps"] == len(study.budget.split)).all()
    assert (ranked["rung"] == len(study.budget.split)).all()
    assert pd.Series(plan.describe()["skipped"]).empty


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_study_is_matched_and_under_one_epoch(name: str, tmp_path: Path) -> None:
    """At its real size: rungs of one size across architectures, and 20 tokens a weight, without repeating data."""
    study = read_study(name)
    tasks = [task for task in study.model_dump()["tasks"] if task["name"] != "shakespeare"]
    written = study.model_dump() | {"tasks": tasks, "strategies": toy.everywhere(study)}
    plan = make_plan(Study.model_validate(written).at(seeds=1), cache=tmp_path)
    top = {
        point.size["params_target"]
        for arm in plan.arms
        for point in arm.points
        if point.size["rung"] == len(study.budget.split)
    }
    assert max(top) <= 1.01 * min(top)
    assert study.budget.tokens == pytest.approx(20 * max(top), rel=0.02)
    assert all(study.budget.tokens < task["train_tokens"] for task in plan.tasks)
