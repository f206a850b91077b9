"""Claims: named statements that a study's results support, contradict or leave undecided.

A claim is a statement and one function from the evidence to tests, each with a p for the statement and a p against it:

    every(tests)   the statement holds if all do     p for = largest               p against = k x smallest
    some(tests)    the statement holds if one does   p for = k x smallest          p against = largest

Over the claims of a study either kind of p is adjusted by Holm; a verdict is an adjusted p below alpha. Effects are log
loss ratios (or log FLOP ratios where a test says so): below zero the first arm is better.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from growbench import stats

ALPHA = 0.05
RESOLUTION = 1e-7
"""A spread that is float32's rounding."""
VIEWS = {"total": "flops", "continued": "flops_continued", "ladder": "flops_ladder"}
"""The columns of the three views of cost: everything counted, the source free, owning every rung."""

Verdict = Literal["supported", "contradicted", "undecided"]


class Lacking(ValueError):
    """What a test needs is not in the evidence; the sentence says what."""


@dataclass(frozen=True, kw_only=True)
class Test:
    """One comparison, for and against a claim.

    rows: the arms it rests on; per_task: statistics of `stats.contrast`, a row per task; effect, low, high: mean over
    the tasks and its 95 % interval; p_for, p_against: NaN where there is none, `why` says why; measure: what the effect
    is a ratio of.
    """

    name: str
    rows: tuple[str, ...]
    per_task: pd.DataFrame = field(default_factory=pd.DataFrame)
    effect: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p_for: float = np.nan
    p_against: float = np.nan
    why: str = ""
    measure: str = "loss"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a claim's function found: its tests, joined, and others that are shown and decide nothing."""

    tests: tuple[Test, ...]
    p_for: float
    p_against: float
    beside: tuple[Test, ...] = ()

    def showing(self, *beside: Test) -> "Finding":
        """The finding with tests that decide nothing."""
        return replace(self, beside=(*self.beside, *beside))


def every(*tests: Test) -> Finding:
    """All must hold: supported with the largest p for, contradicted by any (its p times their number)."""
    _, least = _ends(test.p_against for test in tests)
    most, _ = _ends(test.p_for for test in tests)
    return Finding(tests=tests, p_for=most, p_against=_times(len(tests), least))


def some(*tests: Test) -> Finding:
    """One must hold: supported by any (its p times their number), contradicted with the largest p against."""
    most, _ = _ends(test.p_against for test in tests)
    _, least = _ends(test.p_for for test in tests)
    return Finding(tests=tests, p_for=_times(len(tests), least), p_against=most)


def _times(number: int, p: float) -> float:
    """A p adjusted for the number of tests it is the smallest of; a missing one stays missing."""
    return float(np.minimum(1.0, number * p))


def _ends(values: Iterable[float]) -> tuple[float, float]:
    """(largest, smallest): the largest of an incomplete list is missing, the smallest that of those there are."""
    found = list(values)
    known = [value for value in found if not np.isnan(value)]
    return (max(known) if known and len(known) == len(found) else np.nan), (min(known) if known else np.nan)


@dataclass(frozen=True, kw_only=True)
class Claim(ABC):
    """Base of every claim. The docstring's first line is the statement; `number` is its place in a list of claims."""

    number: ClassVar[int] = 100

    @abstractmethod
    def find(self, evidence: "Evidence") -> Finding:
        """Return the tests of the claim, joined. Lacking where the evidence has not what it needs."""


# --- evidence --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A study's tables, as claims read them: columns as in `growbench.results`.

    memory: names of the tasks that validate on what they train on, and may read it more than once.
    """

    results: pd.DataFrame
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    diagnostics: pd.DataFrame = field(default_factory=pd.DataFrame)
    memory: frozenset[str] = frozenset()

    @property
    def language(self) -> "Evidence":
        """The evidence without the tasks that ask for one capacity alone. Lacking where none is left."""
        left = self.results[~self.results["probe"].fillna(False).astype(bool)]
        if left.empty:
            raise Lacking("a task that is no capacity probe")
        return replace(self, results=left)

    def task(self, name: str) -> "Evidence":
        """The evidence of the tasks made by one plugin. Lacking where there is none."""
        plugin = self.results["task"].str.extract(r"^([^(:]*)", expand=False)
        if (plugin == name).sum() == 0:
            raise Lacking(f"the task {name}")
        return replace(self, results=self.results[plugin == name])

    def arms(
        self,
        strategy: str,
        *,
        variant: str = "",
        restriction: str = "",
        placement: str | None = None,
        nonlinearity: str | None = None,
        rung: Literal["first", "last"] = "last",
    ) -> list[str]:
        """Names of the arms of the study's own schedule that are so made, in the order of the table."""
        rows = self.results[self.results["schedule"].fillna("") == ""]
        top = int(rows["rung"].max())
        wanted: dict[str, str | None] = {
            "strategy": strategy,
            "variant": variant,
            "restriction": restriction,
            "placement": placement,
        }
        wanted["nonlinearity"] = nonlinearity
        for column, value in wanted.items():
            if value is not None:
                rows = rows[rows[column].fillna("") == value]
        rows = rows[rows["rung"] == (top if rung == "last" else 0)]
        return [str(name) for name in rows["arm"].drop_duplicates()]

    def arm(self, strategy: str, **made: str) -> str:
        """The first arm that is so made (see `arms`). Lacking where there is none."""
        found = self.arms(strategy, **made)  # type: ignore[arg-type]
        if not found:
            words = ", ".join(f"{key} {value}" for key, value in made.items() if value)
            raise Lacking(f"an arm of {strategy}" + f" ({words})" * bool(words))
        return found[0]

    def scratch(self, arm: str) -> str:
        """The from-scratch arm of an arm's architecture, size and shape. Lacking where there is none."""
        mine = self.rows(arm).iloc[-1]
        same = ["architecture", "shape", "rung"]
        rows = self.results[(self.results["strategy"] == "scratch") & (self.results[same] == mine[same]).all(axis=1)]
        if rows.empty:
            raise Lacking(f"scratch in the shape of {arm}")
        return str(rows["arm"].iloc[0])

    def rows(self, arm: str) -> pd.DataFrame:
        """All rows of an arm."""
        return self.results[self.results["arm"] == arm]

    def final(self, arm: str) -> pd.DataFrame:
        """The rows of an arm at the study's full budget."""
        rows = self.rows(arm)
        return rows[rows["budget"] == stats.full_budget(self.results)]

    def unmet(self, arms: Collection[str]) -> str:
        """Which of a study's rules these arms break; "" where none."""
        rows = self.results[self.results["arm"].isin(arms)]
        said = []
        if not rows["tuned"].fillna(False).astype(bool).all():
            said.append("it is not tuned")
        again = rows[(rows["epochs"] > 1).fillna(False) & ~rows["task"].isin(self.memory)]
        if len(again):
            said.append(f"{again['task'].iloc[0]} was read {again['epochs'].max():.2g} times")
        return " and ".join(said)


# --- tests -----------------------------------------------------------------------------------------------------------


def below(evidence: Evidence, arm: str, reference: str, **given: Collection[str]) -> Test:
    """For: the arm ends at a lower loss than the reference (two-sided). Against: at a higher one."""
    return ordered(evidence, f"{arm} ends below {reference}", (arm, reference), _pairs(evidence, arm, reference, given))


def ordered(
    evidence: Evidence,
    name: str,
    rows: Sequence[str],
    differences: pd.DataFrame,
    *,
    side: Literal["below", "above"] = "below",
    measure: str = "loss",
) -> Test:
    """For: the mean difference lies on that side of zero, two-sided. Against: on the other.

    differences: task, seed, difference, as `stats.contrast` takes them. A censored difference is a bound, and speaks in
    the direction in which it bounds alone.
    """
    bounds = set(differences["bound"]) - {""} if "bound" in differences else set()
    exact = differences.drop(columns="bound", errors="ignore")
    test, row = _described(evidence, name, rows, exact, measure)
    if len(bounds) > 1 or "unknown" in bounds:
        return replace(test, why="costs are bounded on both sides: the curves do not meet")
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
    test, row = _described(evidence, name, rows, differences, measure)
    if measured and not test.per_task.empty and (test.per_task["sd"] < RESOLUTION).all():
        inside = (test.per_task["effect"].abs() < stats.MARGIN).all() and not evidence.unmet(rows)
        p_for = float(not inside)
        return replace(test, low=test.effect, high=test.effect, p_for=p_for, p_against=1 - p_for, why="")
    if row is None:
        return test
    outside = min(1.0, 2 * min(_beyond(row, stats.MARGIN, "greater"), _beyond(row, -stats.MARGIN, "less")))
    return replace(test, p_for=_p(stats.equivalence, row), p_against=outside)


def apart(evidence: Evidence, name: str, rows: Sequence[str], differences: pd.DataFrame, **given: Any) -> Test:
    """`equal` the other way round. For: the mean difference lies outside the margin. Against: within."""
    test = equal(evidence, name, rows, differences, **given)
    return replace(test, p_for=test.p_against, p_against=test.p_for)


def not_above(evidence: Evidence, arm: str, reference: str, **given: Collection[str]) -> Test:
    """For: the arm ends at most the margin above the reference (one-sided). Against: further above."""
    name, pairs = f"{arm} ends no further above {reference} than the margin", _pairs(evidence, arm, reference, given)
    test, row = _described(evidence, name, (arm, reference), pairs)
    if row is None:
        return test
    return replace(test, p_for=_p(stats.noninferiority, row), p_against=_beyond(row, stats.MARGIN, "greater"))


def joined(name: str, finding: Finding, *, turned: bool = False) -> Test:
    """A finding as one test of another; turned: for becomes against."""
    chosen = headline(finding, "contradicted" if turned else "supported")
    p_for, p_against = (finding.p_against, finding.p_for) if turned else (finding.p_for, finding.p_against)
    rows = tuple(dict.fromkeys(row for test in finding.tests for row in test.rows))
    return replace(chosen, name=name, rows=rows, p_for=p_for, p_against=p_against)


def cheaper(evidence: Evidence, arm: str, view: str) -> Test:
    """For: the arm reaches losses at fewer FLOPs than scratch of its own shape, over a curve. Against: at more.

    The curve: 25 losses, evenly in log loss, from scratch's first budget point, in the seed where that is lowest, to
    scratch's loss at the arm's own cost, in the seed where that is highest. An arm that does not reach one counts with
    all that it spent.
    """
    reference, column = evidence.scratch(arm), VIEWS[view]
    name = f"{arm} reaches losses for less than {reference}, view {view}"
    mine, theirs = evidence.rows(arm), evidence.rows(reference)
    targets: dict[str, Sequence[float]] = {}
    for task in mine["task"].unique():
        ends = _passed(theirs[theirs["task"] == task], mine[mine["task"] == task], column)
        if not ends or ends[0] <= ends[1]:
            why = f"scratch has no budget points below the arm's cost on {task}"
            return Test(name=name, rows=(arm, reference), why=why, measure="FLOPs")
        targets[str(task)] = np.geomspace(*ends, 25).tolist()
    curve = stats.compute_saved(evidence.results, mine, theirs, cost=column, targets=targets)
    return ordered(evidence, name, (arm, reference), stats.saved_by_seed(curve), measure="FLOPs")


def _passed(scratch: pd.DataFrame, arm: pd.DataFrame, column: str) -> tuple[float, float] | None:
    """(easiest, hardest) loss that scratch passes in every seed, up to what the arm costs."""
    cost = float(arm[column].max())
    ends = []
    for _, points in scratch[scratch["status"] == "ok"].groupby("seed"):
        known = points.dropna(subset=[column]).sort_values(column)
        costs, losses = known[column].to_numpy("float64"), known["loss"].to_numpy("float64")
        if len(costs) < 2 or not costs[0] < cost:
            return None
        ends.append((losses[0], float(np.interp(np.log(cost), np.log(costs), np.minimum.accumulate(losses)))))
    return (min(e for e, _ in ends), max(h for _, h in ends)) if ends else None


def _pairs(evidence: Evidence, arm: str, reference: str, given: Mapping[str, Collection[str]]) -> pd.DataFrame:
    try:
        return stats.pairs(evidence.results, arm, reference, **given)  # type: ignore[arg-type]
    except ValueError as error:
        raise Lacking(f"a fair comparison: {error}") from None


def _described(
    evidence: Evidence, name: str, rows: Sequence[str], differences: pd.DataFrame, measure: str = "loss"
) -> tuple[Test, pd.Series | None]:
    """A test without p, and the row of statistics that its p come from; None where there may be none."""
    per_task = stats.contrast(differences)
    total = stats.across_tasks(per_task).iloc[0]
    test = Test(name=name, rows=tuple(rows), per_task=per_task, measure=measure)
    test = replace(test, effect=float(total["effect"]), low=float(total["low"]), high=float(total["high"]))
    unmet, missing = evidence.unmet(rows), str(total["missing"] or "")
    why = (
        str(total["why"] or "") or missing or (f"a verdict needs a study whose rules are met: {unmet}" if unmet else "")
    )
    return replace(test, why=why), None if why else total


def _p(rule: object, row: pd.Series) -> float:
    assert callable(rule)
    return float(rule(row.to_frame().T.astype({"effect": float, "se": float, "df": float})).iloc[0]["p"])


def _beyond(row: pd.Series, bound: float, side: Literal["greater", "less"]) -> float:
    """One-sided p that the mean lies beyond a bound."""
    shifted = pd.DataFrame(
        {"effect": [float(row["effect"]) - bound], "se": [float(row["se"])], "df": [float(row["df"])]}
    )
    return float(stats.superiority(shifted, alternative=side).iloc[0]["p"])


# --- verdicts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A claim's verdict: adjusted p for and against it, what it rests on, what is missing where it is undecided."""

    claim: str
    statement: str
    verdict: Verdict
    p_for: float
    p_against: float
    finding: Finding | None
    missing: str = ""

    @property
    def headline(self) -> Test | None:
        """The test that the verdict hangs on."""
        return headline(self.finding, self.verdict) if self.finding else None


def headline(finding: Finding, verdict: Verdict) -> Test:
    """The test with the smallest p against for a contradiction, else the one whose p for is the finding's own."""
    key = "p_against" if verdict == "contradicted" else "p_for"
    joined_p = finding.p_against if verdict == "contradicted" else finding.p_for
    known = [test for test in finding.tests if not np.isnan(getattr(test, key))]
    return min(known, key=lambda test: abs(getattr(test, key) - joined_p), default=finding.tests[0])


def decide(claims: Mapping[str, Claim], evidence: Evidence, alpha: float = ALPHA) -> list[Decision]:
    """The verdict on every claim, by name, in their order."""
    found: dict[str, Finding | str] = {}
    for name, claim in sorted(claims.items(), key=lambda item: (item[1].number, item[0])):
        try:
            found[name] = claim.find(evidence)
        except Lacking as lacking:
            found[name] = f"it needs {lacking}"
    known = {name: finding for name, finding in found.items() if isinstance(finding, Finding)}
    p_for = stats.holm(pd.Series({name: finding.p_for for name, finding in known.items()}, dtype=float))
    p_against = stats.holm(pd.Series({name: finding.p_against for name, finding in known.items()}, dtype=float))
    decisions = []
    for name, finding in found.items():
        statement = " ".join((type(claims[name]).__doc__ or name).split("\n\n")[0].split())
        if isinstance(finding, str):
            decision = Decision(
                claim=name, statement=statement, verdict="undecided", p_for=np.nan, p_against=np.nan,
                finding=None, missing=finding,
            )  # fmt: skip
        else:
            decision = _decided(name, statement, finding, float(p_for[name]), float(p_against[name]), alpha)
        decisions.append(decision)
    return decisions


def _decided(name: str, statement: str, finding: Finding, p_for: float, p_against: float, alpha: float) -> Decision:
    verdict: Verdict = "supported" if p_for < alpha else "contradicted" if p_against < alpha else "undecided"
    missing = ""
    if verdict == "undecided":
        reasons = dict.fromkeys(test.why for test in finding.tests if test.why)
        missing = "; ".join(reasons) or f"a clearer effect: neither adjusted p is below {alpha:g}"
    return Decision(
        claim=name, statement=statement, verdict=verdict, p_for=p_for, p_against=p_against,
        finding=finding, missing=missing,
    )  # fmt: skip


TESTS = (
    "claim", "decides", "test", "task", "rows", "measure", "n", "effect", "low", "high", "p_for", "p_against", "why",
)  # fmt: skip
CLAIMS = ("claim", "statement", "verdict", "effect", "low", "high", "measure", "test", "p_for", "p_against", "missing")


def tabulate(decisions: Sequence[Decision]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(claims, tests): a row per claim, its effect and interval those of the test that the verdict hangs on; and a row
    per test and task, after one for the mean over tasks (task ""). `decides`: whether the verdict rests on the test.
    """
    claims, tests = [], []
    for decision in decisions:
        row: dict[str, Any] = {name: getattr(decision, name) for name in CLAIMS if hasattr(decision, name)}
        if shown := decision.headline:
            own = ("effect", "low", "high", "measure")
            row |= {name: getattr(shown, name) for name in own} | {"test": shown.name}
        claims.append(row)
        finding = decision.finding
        for test in (*finding.tests, *finding.beside) if finding else ():
            common = {
                "claim": decision.claim,
                "decides": finding is not None and any(test is own for own in finding.tests),
            }
            common |= {"test": test.name, "rows": ", ".join(test.rows), "measure": test.measure}
            whole = {name: getattr(test, name) for name in ("effect", "low", "high", "p_for", "p_against", "why")}
            tests.append(common | whole | {"task": "", "n": test.per_task["n"].min() if len(test.per_task) else 0})
            each = test.per_task.to_dict("records")
            tests += [common | {k: r[k] for k in ("task", "n", "effect", "low", "high", "why")} for r in each]
    return pd.DataFrame(claims, columns=list(CLAIMS)), pd.DataFrame(tests, columns=list(TESTS))
