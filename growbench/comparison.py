"""Comparisons of arms: from the evidence to a test, with a p for a statement and one against it.

Effects are log loss ratios, or log FLOP ratios where a test says so: below zero the first arm is better.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from growbench import stats
from growbench.claim import Test
from growbench.evidence import VIEWS, Evidence, Lacking

RESOLUTION = 1e-7
"""A spread that is float32's rounding."""


def below(evidence: Evidence, arm: str, reference: str, **given: Collection[str]) -> Test:
    """For: the arm ends at a lower loss than the reference (two-sided). Against: at a higher one."""
    return ordered(
        evidence, f"{arm} ends below {reference}", (arm, reference), pairs(evidence, arm, reference, **given)
    )


def ordered(
    evidence: Evidence,
    name: str,
    rows: Sequence[str],
    differences: pd.DataFrame,
    *,
    side: Literal["below", "above"] = "below",
    measure: str = "loss",
    points: bool = False,
) -> Test:
    """For: the mean difference lies on that side of zero, two-sided. Against: on the other.

    differences: task, seed, difference, as `stats.contrast` takes them. A censored difference is a bound, and speaks in
    the direction in which it bounds alone. points: they rest on the arms' rows at all budget points.
    """
    bounds = set(differences["bound"]) - {""} if "bound" in differences else set()
    exact = differences.drop(columns="bound", errors="ignore")
    test, row = _described(evidence, name, rows, exact, measure, points)
    if len(bounds) > 1 or "unknown" in bounds:
        why = "costs are bounded on both sides: the curves do not meet"
        return replace(test, why="; ".join(filter(None, (evidence.unmet(rows, points=points), why))))
    if row is None:
        return test
    sign, p = (1 if side == "below" else -1), float(row["p"])
    lower = p if row["effect"] < 0 and bounds <= {"at most"} else 1.0
    higher = p if row["effect"] > 0 and bounds <= {"at least"} else 1.0
    why = f"the mean is a bound ({bounds.pop()})" if bounds and min(lower, higher) == 1.0 else ""
    return replace(test, p_for=(lower, higher)[sign < 0], p_against=(higher, lower)[sign < 0], why=why)


def differs(evidence: Evidence, name: str, rows: Sequence[str], differences: pd.DataFrame) -> Test:
    """For: the mean difference is not zero. Against: it lies within the margin (two one-sided tests)."""
    test, row = _described(evidence, name, rows, differences)
    return test if row is None else replace(test, p_for=float(row["p"]), p_against=_p(stats.equivalence, row))


def equal(
    evidence: Evidence,
    name: str,
    rows: Sequence[str],
    differences: pd.DataFrame,
    *,
    measure: str = "loss",
    measured: bool = False,
) -> Test:
    """For: the mean difference lies within the margin (two one-sided tests). Against: it lies outside.

    measured: the differences are read off a model and have no noise, so that seeds which agree decide alone.
    """
    test, row = _described(evidence, name, rows, differences, measure, measured=measured)
    if row is None:
        return test
    if _flat(test.per_task):
        p_for = float(not abs(test.effect) < stats.MARGIN)
        return replace(test, low=test.effect, high=test.effect, p_for=p_for, p_against=1 - p_for)
    outside = min(1.0, 2 * min(_beyond(row, stats.MARGIN, "greater"), _beyond(row, -stats.MARGIN, "less")))
    return replace(test, p_for=_p(stats.equivalence, row), p_against=outside)


def apart(evidence: Evidence, name: str, rows: Sequence[str], differences: pd.DataFrame, **given: Any) -> Test:
    """`equal` the other way round. For: the mean difference lies outside the margin. Against: within."""
    test = equal(evidence, name, rows, differences, **given)
    return replace(test, p_for=test.p_against, p_against=test.p_for)


def not_above(evidence: Evidence, arm: str, reference: str, **given: Collection[str]) -> Test:
    """For: the arm ends at most the margin above the reference (one-sided). Against: further above."""
    name = f"{arm} ends no further above {reference} than the margin"
    test, row = _described(evidence, name, (arm, reference), pairs(evidence, arm, reference, **given))
    if row is None:
        return test
    return replace(test, p_for=_p(stats.noninferiority, row), p_against=_beyond(row, stats.MARGIN, "greater"))


def below_at_cost(evidence: Evidence, arm: str, view: str) -> Test:
    """For: the arm ends below scratch of its own shape at equal FLOPs (two-sided). Against: at most the margin below.

    The FLOPs are what the arm spent in this view, and scratch's loss is read off its budget points there.
    """
    reference, column = evidence.scratch(arm), VIEWS[view]
    name = f"{arm} ends below {reference} at equal FLOPs, view {view}"
    pairs(evidence, arm, reference)  # equal tokens, size and data at the full budget, or refused
    mine, theirs = evidence.final(arm), evidence.rows(reference)
    try:
        differences = stats.at_equal_cost(evidence.results, mine, theirs, cost=column)
    except ValueError as error:
        raise Lacking(f"a fair comparison: {error}") from None
    test, row = _described(evidence, name, (arm, reference), differences, points=True)
    if row is None:
        return test
    lower = float(row["p"]) if row["effect"] < 0 else 1.0
    return replace(test, p_for=lower, p_against=_beyond(row, -stats.MARGIN, "greater"))


def cheaper(evidence: Evidence, arm: str, view: str) -> Test:
    """For: the arm reaches losses at fewer FLOPs than scratch of its own shape, over a curve. Against: at more.

    The curve: 25 losses, evenly in log loss, from scratch's first budget point, in the seed where that is lowest, to
    scratch's loss at all that the arm costs in this view, in the seed where that is highest; without those that the arm
    is below when it is first scored, since what they cost it is not known, unless it is below all of them. An arm that
    does not reach one counts with all that it spent.
    """
    reference, column = evidence.scratch(arm), VIEWS[view]
    name = f"{arm} reaches losses for less than {reference}, view {view}"
    pairs(evidence, arm, reference)  # equal tokens, size and data at the full budget, or refused
    mine, theirs = (evidence.rows(side)[evidence.compared.columns] for side in (arm, reference))
    targets: dict[str, Sequence[float]] = {}
    for task in pd.concat([mine, theirs])["task"].unique():
        ends = passed(theirs[theirs["task"] == task], mine[mine["task"] == task], column)
        if not ends or ends[0] <= ends[1]:
            why = f"{reference} has no budget points below what {arm} costs on {task}"
            return Test(name=name, rows=(arm, reference), why=why, measure="FLOPs")
        targets[str(task)] = np.geomspace(*ends, 25).tolist()
    try:
        curve = stats.compute_saved(evidence.results, mine, theirs, cost=column, targets=targets)
    except ValueError as error:
        raise Lacking(f"a fair comparison: {error}") from None
    return ordered(evidence, name, (arm, reference), stats.saved_by_seed(curve), measure="FLOPs", points=True)


def passed(scratch: pd.DataFrame, arm: pd.DataFrame, column: str) -> tuple[float, float] | None:
    """(easiest, hardest) loss that scratch passes in every seed up to what the arm costs; None where there is none."""
    if (spent := arm[column].dropna()).empty:
        return None
    cost, ends = float(spent.max()), []
    for _, points in scratch[scratch["status"] == "ok"].groupby("seed"):
        known = points.dropna(subset=[column]).sort_values(column)
        costs, losses = known[column].to_numpy("float64"), known["loss"].to_numpy("float64")
        if len(costs) < 2 or not costs[0] < cost:
            return None
        ends.append((losses[0], float(np.interp(np.log(cost), np.log(costs), np.minimum.accumulate(losses)))))
    return (min(e for e, _ in ends), max(h for _, h in ends)) if ends else None


def pairs(evidence: Evidence, arm: str, reference: str, *, equal: Collection[str] = stats.EQUAL) -> pd.DataFrame:
    """`stats.pairs` at the full budget. Lacking, with the rows named, where they cannot be compared."""
    try:
        return stats.pairs(evidence.compared, arm, reference, budget=evidence.budget, equal=equal)
    except ValueError as error:
        raise Lacking(f"a fair comparison: {error}") from None


def _described(
    evidence: Evidence,
    name: str,
    rows: Sequence[str],
    differences: pd.DataFrame,
    measure: str = "loss",
    points: bool = False,
    measured: bool = False,
) -> tuple[Test, pd.Series | None]:
    """A test without p, and the row of statistics that its p come from; None where there may be none.

    measured: tasks whose seeds agree need no statistics.
    """
    per_task = stats.contrast(differences)
    flat = _agreeing(per_task) & measured
    spread = {"se": (per_task["sd"] / np.sqrt(per_task["n"])).where(flat, per_task["se"])}
    spread |= {"df": (per_task["n"] - 1.0).where(flat, per_task["df"]), "why": per_task["why"].mask(flat, "")}
    total = stats.across_tasks(per_task if flat.all() else per_task.assign(**spread)).iloc[0]
    untested = "" if len(flat) and flat.all() else str(total["why"])
    why = "; ".join(filter(None, (evidence.unmet(rows, points=points), str(total["missing"]), untested)))
    effect, low, high = (float(total[column]) for column in ("effect", "low", "high"))
    test = Test(
        name=name, rows=tuple(rows), per_task=per_task, effect=effect, low=low, high=high, why=why, measure=measure
    )
    return test, None if why else total


def _flat(per_task: pd.DataFrame) -> bool:
    """Whether the seeds agree in every task, and are as many as a test needs."""
    return bool(len(per_task) and _agreeing(per_task).all())


def _agreeing(per_task: pd.DataFrame) -> pd.Series:
    """In which tasks the seeds agree, and are as many as a test needs."""
    enough = (per_task["n"] >= stats.SEEDS) & (per_task["unscored"] == 0) & (per_task["bound"] == "")
    return enough & (per_task["sd"] < RESOLUTION)


def _p(rule: object, row: pd.Series) -> float:
    assert callable(rule)
    return float(rule(row.to_frame().T.astype({"effect": float, "se": float, "df": float})).iloc[0]["p"])


def _beyond(row: pd.Series, bound: float, side: Literal["greater", "less"]) -> float:
    """One-sided p that the mean lies beyond a bound."""
    shifted = pd.DataFrame(
        {"effect": [float(row["effect"]) - bound], "se": [float(row["se"])], "df": [float(row["df"])]}
    )
    return float(stats.superiority(shifted, alternative=side).iloc[0]["p"])
