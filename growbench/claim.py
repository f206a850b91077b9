"""Claims: named statements that a study's results support, contradict or leave undecided.

A claim is a statement and one function from the evidence (evidence.py) to tests (comparison.py), each with a p for the
statement and a p against it, joined by a rule:

    every(tests)         holds if all do, fails if one does     p for = largest        p against = k x smallest
    some(tests)          holds if one does, fails if all do     p for = k x smallest   p against = largest
    all_or_none(tests)   holds if all do, fails if all do       p for = largest        p against = largest

Where one of the tests has no p, neither has the claim. Over the claims of a study either kind of p is adjusted by Holm,
the claims without a p counted; a verdict is an adjusted p below alpha.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from growbench import plugins, stats
from growbench.evidence import Evidence, Lacking

ALPHA = 0.05

Verdict = Literal["supported", "contradicted", "undecided"]


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


def joined(name: str, finding: Finding, *, turned: bool = False) -> Test:
    """A finding as one test of another; turned: what speaks for it speaks against the test."""
    shown = headline(finding, "contradicted" if turned else "supported")
    p_for, p_against = (finding.p_against, finding.p_for) if turned else (finding.p_for, finding.p_against)
    rows = tuple(dict.fromkeys(row for test in finding.tests for row in test.rows))
    return replace(
        shown, name=name, rows=rows, p_for=p_for, p_against=p_against, why=finding.why, parts=finding, turned=turned
    )


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
    def find(self, evidence: Evidence) -> Finding:
        """Return the tests of the claim, joined. Lacking where the evidence has not what it needs."""


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
        plugins.derived(plugin, loaded, Claim)
        with plugins.blamed(plugin, "cannot be used"):
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
            if name.startswith("p_") and not (np.isnan(float(value)) or 0 <= float(value) <= 1):
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
