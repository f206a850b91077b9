"""Claims: named statements that a study's results support, contradict or leave undecided.

A claim is a statement and one function from the evidence to tests, each with a p for the statement and a p against it:

    every(tests)         holds if all do, fails if one does     p for = largest        p against = k x smallest
    some(tests)          holds if one does, fails if all do     p for = k x smallest   p against = largest
    all_or_none(tests)   holds if all do, fails if all do       p for = largest        p against = largest

Where one of the tests has no p, neither has the claim. Over the claims of a study either kind of p is adjusted by Holm,
the claims without a p counted; a verdict is an adjusted p below alpha. Effects are log loss ratios (or log FLOP ratios
where a test says so): below zero the first arm is better.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from growbench import plugins, stats
from growbench.results import PLANNED, UNSCORED

ALPHA = 0.05
RESOLUTION = 1e-7
"""A spread that is float32's rounding."""
KEY = ["task", "seed"]
VIEWS = {"total": "flops", "continued": "flops_continued", "ladder": "flops_ladder"}
"""The columns of the three views of cost: everything counted, the source free, owning every rung."""

Verdict = Literal["supported", "contradicted", "undecided"]


class Lacking(ValueError):
    """What a test needs is not in the evidence; the sentence says what."""


@dataclass(frozen=True, kw_only=True)
class Test:
    """One comparison, for and against a claim.

    rows: the arms it rests on; per_task: statistics of `stats.contrast`, a row per task; effect, low, high: mean over
    the tasks and its 95 % interval; p_for, p_against: NaN where there is none; why: why there is none, or why they say
    nothing; measure: what the effect is a ratio of; parts: the finding that it stands for, `turned` where what speaks
    for that speaks against it.
    """

    name: str
    rows: tuple[str, ...]
    per_task: pd.DataFrame = field(default_factory=pd.DataFrame, compare=False)
    effect: float = np.nan
    low: float = np.nan
    high: float = np.nan
    p_for: float = np.nan
    p_against: float = np.nan
    why: str = ""
    measure: str = "loss"
    parts: "Finding | None" = None
    turned: bool = False


Rule = Literal["every", "some", "all_or_none"]
_ENDS: Mapping[Rule, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "every": (max, min),
    "some": (min, max),
    "all_or_none": (max, max),
}
"""Which of the tests' p for, and which of their p against, is the finding's; the smallest counts k times."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a claim's function found: its tests, joined by a rule, and others that are shown and decide nothing."""

    tests: tuple[Test, ...]
    rule: Rule
    beside: tuple[Test, ...] = ()

    @property
    def p_for(self) -> float:
        return _end([test.p_for for test in self.tests], _ENDS[self.rule][0])

    @property
    def p_against(self) -> float:
        return _end([test.p_against for test in self.tests], _ENDS[self.rule][1])

    @property
    def why(self) -> str:
        """Why there is no p, or why they say nothing, by the tests of which that holds; "" where they do."""
        tests = [test for test in self.tests if np.isnan(test.p_for) or np.isnan(test.p_against)] or self.tests
        whys: dict[str, list[Test]] = {}
        for test in tests:
            if test.why:
                whys.setdefault(test.why, []).append(test)
        single = len(self.tests) == 1
        return "; ".join(why if single or len(of) > 1 else f"{of[0].name}: {why}" for why, of in whys.items())

    def showing(self, *beside: Test) -> "Finding":
        """The finding with tests that decide nothing."""
        return replace(self, beside=(*self.beside, *beside))


def every(*tests: Test) -> Finding:
    """All must hold: supported with the largest p for, contradicted by any (its p times their number)."""
    return Finding(tests=tests, rule="every")


def some(*tests: Test) -> Finding:
    """One must hold: supported by any (its p times their number), contradicted with the largest p against."""
    return Finding(tests=tests, rule="some")


def all_or_none(*tests: Test) -> Finding:
    """All must hold: supported with the largest p for, contradicted where all fail, with the largest p against."""
    return Finding(tests=tests, rule="all_or_none")


def _end(values: Sequence[float], end: Callable[..., Any]) -> float:
    """The largest p, or the smallest times their number; of an incomplete list it is missing."""
    if not values or np.isnan(values).any():
        return np.nan
    return float(max(values) if end is max else min(1.0, len(values) * min(values)))


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

    memory: names of the tasks that validate on what they train on, and may read it more than once; planned: the rows
    that results are to have (arm, task, seed, budget, probe), so that a study under way is known to be one.
    """

    results: pd.DataFrame
    curves: pd.DataFrame = field(default_factory=pd.DataFrame)
    diagnostics: pd.DataFrame = field(default_factory=pd.DataFrame)
    memory: frozenset[str] = frozenset()
    planned: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=PLANNED))

    def copy(self) -> "Evidence":
        """The same with tables of its own: what is done to them stays in them."""
        names = "results", "curves", "diagnostics", "planned"
        return replace(self, **{name: getattr(self, name).copy() for name in names})

    @cached_property
    def language(self) -> "Evidence":
        """The evidence without the tasks that ask for one capacity alone. Lacking where none is left."""
        left = self.results[~self.results["probe"].fillna(False).astype(bool)]
        if left.empty:
            raise Lacking("a task that is no capacity probe")
        return replace(self, results=left, planned=self.planned[~self.planned["probe"].astype(bool)])

    def task(self, name: str) -> "Evidence":
        """The evidence of the tasks made by one plugin. Lacking where there is none."""
        own, planned = (
            frame[frame["task"].astype(str).str.extract(r"^([^(:]*)", expand=False) == name]
            for frame in (self.results, self.planned)
        )
        if own.empty:
            raise Lacking(f"the task {name}")
        return replace(self, results=own, planned=planned)

    @cached_property
    def budget(self) -> int:
        """The study's full budget, in tokens."""
        return stats.full_budget(self.results)

    @cached_property
    def compared(self) -> pd.DataFrame:
        """The results in the columns that comparisons read: a tenth of the table, and of the time."""
        return self.results[[*KEY, "arm", "rung", "status", "loss", *stats.EQUAL, "tuned", "epochs", *VIEWS.values()]]

    @cached_property
    def made(self) -> pd.DataFrame:
        """How the arms of the study's own schedule are made, a row per arm in the order of the table.

        From scratch, an arm is of the ladder's own shape: those in which restricted growth ends are left out.
        """
        text = ["strategy", "variant", "restriction", "placement", "nonlinearity"]
        rows = self.results[[*text, "arm", "architecture", "shape", "rung", "schedule"]]
        rows = rows[rows["schedule"].fillna("") == ""]
        last = rows.sort_values("rung", kind="stable").drop_duplicates("arm", keep="last").set_index("arm")
        last = last.loc[rows["arm"].drop_duplicates()].reset_index()
        last[text] = last[text].fillna("")
        ends = list(zip(last["architecture"], last["shape"], strict=True))
        restricted = {end for end, parts in zip(ends, last["restriction"], strict=True) if parts}
        own = [s != "scratch" or end not in restricted for s, end in zip(last["strategy"], ends, strict=True)]
        return last[own].assign(top=last[own].groupby("architecture")["rung"].transform("max"))

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
        rows = self.made
        wanted = {"strategy": strategy, "variant": variant, "restriction": restriction}
        for column, value in (wanted | {"placement": placement, "nonlinearity": nonlinearity}).items():
            if value is not None:
                rows = rows[rows[column] == value]
        return [str(name) for name in rows.loc[rows["rung"] == (rows["top"] if rung == "last" else 0), "arm"]]

    def arm(self, strategy: str, **made: str) -> str:
        """The first arm that is so made (see `arms`). Lacking where there is none."""
        (found,) = self.together({"strategy": strategy} | made)
        return found

    def together(self, *made: Mapping[str, str], **common: str) -> list[str]:
        """Arms that are so made (see `arms`), all of one architecture: the first that has them. Lacking where none has.

        common: what holds of each of them.
        """
        each = [self.arms(**{**common, **own}) for own in made]  # type: ignore[arg-type]
        words = [_words({**common, **own}) for own in made]
        if gone := [said for said, found in zip(words, each, strict=True) if not found]:
            raise Lacking(f"an arm of {' and one of '.join(gone)}")
        of = self.made.set_index("arm")["architecture"]
        for architecture in dict.fromkeys(of):
            chosen = [next((arm for arm in found if of[arm] == architecture), "") for found in each]
            if all(chosen):
                return chosen
        raise Lacking(f"one architecture with arms of {', '.join(words)}")

    def scratch(self, arm: str) -> str:
        """The from-scratch arm of an arm's architecture, size and shape. Lacking where there is none."""
        mine = self.rows(arm).iloc[-1]
        same = ["architecture", "shape", "rung"]
        rows = self.results[(self.results["strategy"] == "scratch") & (self.results[same] == mine[same]).all(axis=1)]
        if rows.empty:
            raise Lacking(f"scratch in the shape of {arm}")
        return str(rows["arm"].iloc[0])

    def rows(self, arm: str) -> pd.DataFrame:
        """All rows of an arm at its last rung. Lacking where there is none."""
        rows = self.results[self.results["arm"] == arm]
        if rows.empty:
            raise Lacking(f"the arm {arm}")
        last: pd.DataFrame = rows[rows["rung"] == rows["rung"].max()]
        return last

    def final(self, arm: str) -> pd.DataFrame:
        """The rows of an arm at the study's full budget. Lacking where there is none, or two of one task and seed."""
        rows = self.rows(arm)
        rows = rows[(rows["budget"] == self.budget).fillna(False).astype(bool)]
        if rows.empty:
            raise Lacking(f"{arm} at the full budget of {self.budget:,} tokens")
        try:
            return stats.at_budget(self.results, rows)
        except ValueError as error:
            raise Lacking(f"a fair comparison: {error}") from None

    @cached_property
    def _ahead(self) -> pd.DataFrame:
        """The rows that are planned and not there."""
        if self.planned.empty:
            return self.planned
        planned, there = (
            list(frame[PLANNED[:-1]].itertuples(index=False, name=None)) for frame in (self.planned, self.results)
        )
        done = set(there)
        return self.planned.loc[[row not in done for row in planned]]

    def unmet(self, arms: Collection[str], *, points: bool = False) -> str:
        """Which of a study's rules these arms break at the full budget, or at all budget points; "" where none."""
        rows = self.compared[self.compared["arm"].isin(arms)]
        if not points:
            rows = rows[(rows["budget"] == self.budget).fillna(False).astype(bool)]
        said = []
        if len(ahead := self._ahead[self._ahead["arm"].isin(arms)]):
            first = ahead.iloc[0]
            where = f"{first['arm']} at {first['budget']:,} tokens ({first['task']}, seed {first['seed']})"
            said.append(f"not run yet: {where}" + f" and {len(ahead) - 1} rows more" * (len(ahead) > 1))
        if len(bad := rows[rows["status"].isin(UNSCORED)].drop_duplicates(["arm", "task", "seed"])):
            runs = [f"{r['arm']} {r['status']} ({r['task']}, seed {r['seed']})" for r in bad.to_dict("records")]
            said.append(", ".join(runs[:3]) + f" and {len(runs) - 3} more" * (len(runs) > 3))
        if not rows["tuned"].fillna(False).astype(bool).all():
            said.append("the study is not tuned")
        again = rows[(rows["epochs"] > 1).fillna(False).astype(bool) & ~rows["task"].isin(self.memory)]
        for task, epochs in again.groupby("task", sort=False)["epochs"].max().items():
            said.append(f"{task} was read {epochs:.2g} times")
        return "; ".join(said)


def _words(made: Mapping[str, str]) -> str:
    """zero_pad (restriction [ffn], placement ffn)."""
    own = ", ".join(f"{key} {value}" for key, value in made.items() if value and key != "strategy")
    return made["strategy"] + f" ({own})" * bool(own)


# --- tests -----------------------------------------------------------------------------------------------------------


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


def joined(name: str, finding: Finding, *, turned: bool = False) -> Test:
    """A finding as one test of another; turned: what speaks for it speaks against the test."""
    shown = headline(finding, "contradicted" if turned else "supported")
    p_for, p_against = (finding.p_against, finding.p_for) if turned else (finding.p_for, finding.p_against)
    rows = tuple(dict.fromkeys(row for test in finding.tests for row in test.rows))
    return replace(
        shown, name=name, rows=rows, p_for=p_for, p_against=p_against, why=finding.why, parts=finding, turned=turned
    )


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


# --- verdicts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A claim's verdict: adjusted p for and against it, what it rests on, what is missing where it is undecided."""

    claim: str
    statement: str
    verdict: Verdict
    p_for: float = np.nan
    p_against: float = np.nan
    finding: Finding | None = None
    missing: str = ""

    @property
    def headline(self) -> Test | None:
        """The test that the verdict hangs on."""
        return headline(self.finding, self.verdict) if self.finding else None


def headline(finding: Finding, verdict: Verdict) -> Test:
    """The test that gives a finding its p, followed into what it stands for: p against if contradicted, else p for."""
    against = verdict == "contradicted"
    key, end = "p_against" if against else "p_for", _ENDS[finding.rule][against]
    known = [test for test in finding.tests if not np.isnan(getattr(test, key))]
    chosen: Test = end(known or finding.tests, key=lambda test: getattr(test, key))
    if chosen.parts is None:
        return chosen
    return headline(chosen.parts, "contradicted" if against != chosen.turned else "supported")


def known(extra: Sequence[Path] = ()) -> dict[str, Claim]:
    """Every claim by name, built in, installed, or of the files and folders given. ValueError for a broken one."""
    for name, plugin in plugins.discover("strategy", extra).items():
        if plugin.error and plugin.origin.startswith("file"):  # a file that cannot be read may be a claim's
            raise ValueError(f"the plugin {name!r} ({plugin.origin}) cannot be read: {plugin.error}")
    found: dict[str, Claim] = {}
    for name, plugin in plugins.discover("claim", extra).items():
        loaded = plugins.load("claim", name, extra)
        with plugins.blamed(plugin, "cannot be used"):
            if not issubclass(loaded, Claim):
                raise ValueError("derive its class from growbench.claim.Claim")
            if type(loaded.number) is not int:
                raise ValueError(f"its number, a place in a list of claims, must be an integer, not {loaded.number!r}")
            found[name.replace("_", "-")] = loaded()
    return found


def decide(claims: Mapping[str, Claim], evidence: Evidence, alpha: float = ALPHA) -> list[Decision]:
    """The verdict on every claim, by name, in their order. One that fails is undecided, and said to have failed."""
    found: dict[str, Finding | str] = {}
    for name, claim in sorted(claims.items(), key=lambda item: (item[1].number, item[0])):
        found[name] = _found(name, claim, evidence.copy())
    p = pd.DataFrame(
        {name: (f.p_for, f.p_against) if isinstance(f, Finding) else (np.nan, np.nan) for name, f in found.items()},
        index=["for", "against"],
        dtype=float,
    )
    p_for, p_against = (stats.holm(p.loc[kind], family=len(claims)) for kind in p.index)
    decisions = []
    for name, finding in found.items():
        statement = " ".join((type(claims[name]).__doc__ or name).split("\n\n")[0].split())
        if isinstance(finding, str):
            decision = Decision(claim=name, statement=statement, verdict="undecided", missing=finding)
        else:
            decision = _decided(name, statement, finding, float(p_for[name]), float(p_against[name]), alpha)
        decisions.append(decision)
    return decisions


def _found(name: str, claim: Claim, evidence: Evidence) -> Finding | str:
    """What a claim finds, or why it does not: its code may be anybody's."""
    try:
        finding = claim.find(evidence)
        if not (isinstance(finding, Finding) and finding.tests):
            raise TypeError(f"find gives {type(finding).__name__}, and no Finding with a test")
        _refuse_nonsense(finding)
    except Lacking as lacking:
        return f"it needs {lacking}"
    except (Exception, SystemExit) as error:
        said = " ".join(str(error).split())
        why = said if isinstance(error, ValueError) and said else f"{type(error).__name__}: {said}".removesuffix(": ")
        return f"the claim {name} failed: {why}"
    return finding


def _refuse_nonsense(finding: Finding) -> None:
    """Raise ValueError for a finding that no verdict can be made of, whoever's tests it holds."""
    if finding.rule not in _ENDS:
        raise ValueError(f"its rule is {finding.rule!r}, and none of {', '.join(_ENDS)}")
    for tests in (finding.tests, finding.beside):
        if not isinstance(tests, tuple) or not all(isinstance(test, Test) for test in tests):
            raise ValueError(f"what it tests must be a tuple of Test, not {tests!r:.80}")
    for test in (*finding.tests, *finding.beside):
        for name in ("name", "why", "measure"):
            if not isinstance(value := getattr(test, name), str):
                raise ValueError(f"the {name} of a test must be text, not {value!r:.80}")
        if not isinstance(test.rows, tuple) or not all(isinstance(row, str) for row in test.rows):
            raise ValueError(f"the rows of {test.name} must be a tuple of arms, not {test.rows!r:.80}")
        for name in ("effect", "low", "high", "p_for", "p_against"):
            value = getattr(test, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ValueError(f"{name} of {test.name} must be a number, not {value!r:.80}")
            if name.startswith("p_") and not (np.isnan(value) or 0 <= value <= 1):
                raise ValueError(f"{name} of {test.name} must lie in 0 ... 1, not {value}")
        columns = {"task", "n", "effect", "low", "high", "why"}
        if not isinstance(test.per_task, pd.DataFrame) or (len(test.per_task) and not columns <= {*test.per_task}):
            raise ValueError(f"per_task of {test.name} must be a table of stats.contrast")
        if test.parts is not None:
            _refuse_nonsense(test.parts)


def _decided(name: str, statement: str, finding: Finding, p_for: float, p_against: float, alpha: float) -> Decision:
    verdict: Verdict = "supported" if p_for < alpha else "contradicted" if p_against < alpha else "undecided"
    clearer = f"a clearer effect: neither adjusted p is below {alpha:g}"
    if p_for < alpha and p_against < alpha:
        verdict, clearer = "undecided", f"a larger effect: it is there, within the margin: both p are below {alpha:g}"
    return Decision(
        claim=name,
        statement=statement,
        verdict=verdict,
        p_for=p_for,
        p_against=p_against,
        finding=finding,
        missing=(finding.why or clearer) if verdict == "undecided" else "",
    )


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
        for test, decides in _listed(decision.finding) if decision.finding else ():
            common = {"claim": decision.claim, "decides": decides, "test": test.name}
            common |= {"rows": ", ".join(test.rows), "measure": test.measure}
            whole = {name: getattr(test, name) for name in ("effect", "low", "high", "p_for", "p_against", "why")}
            tests.append(common | whole | {"task": "", "n": test.per_task["n"].min() if len(test.per_task) else 0})
            each = test.per_task.to_dict("records") if test.parts is None else []
            tests += [common | {k: r[k] for k in ("task", "n", "effect", "low", "high", "why")} for r in each]
    return pd.DataFrame(claims, columns=list(CLAIMS)), pd.DataFrame(tests, columns=list(TESTS))


def _listed(finding: Finding) -> Iterator[tuple[Test, bool]]:
    """Every test, those that it stands for after it, and whether the verdict rests on it."""
    for test in finding.tests:
        yield test, True
        yield from _listed(test.parts) if test.parts else ()
    for test in finding.beside:
        yield test, False
