"""Many arms at once: Holm's adjustment, tie groups instead of ranks, performance profiles, Friedman's test.

Of m tests with sorted p, Holm's adjusted p is max over j <= i of (m - j + 1) p_j: all together err with alpha at most.
Arms that no test tells apart share a letter; an order of means alone says nothing.
"""

import string
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations

import numpy as np
import pandas as pd
from scipy import stats

from growbench.results import UNSCORED
from growbench.stats.contrasts import contrast
from growbench.stats.pairing import EQUAL, KEY, at_budget, couples, losses, refusal, unequal

PROFILE_SEEDS = 10
"""Below so many seeds a performance profile's bootstrap interval is flagged: it is too narrow."""

FRIEDMAN_TASKS = 8
"""Fewest tasks for Friedman's test, whose p is a large-sample one."""


def holm(p: pd.Series, *, family: int | None = None) -> pd.Series:
    """Adjusted p values (Holm 1979), in the order given; what is missing stays missing.

    family: how many tests were made, where that is more than have a p here.
    """
    known = p.astype("float64").dropna().sort_values()
    tests = len(known) if family is None else family
    assert tests >= len(known)
    adjusted = (known * np.arange(tests, tests - len(known), -1)).cummax().clip(upper=1.0)
    return adjusted.reindex(p.index)


def pairwise(
    results: pd.DataFrame,
    arms: Sequence[str],
    *,
    metric: str = "loss",
    budget: int | None = None,
    equal: Collection[str] = EQUAL,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """`paired` of every two arms, with p_test (the t test's, or the sign-flip test's where a run did not finish) and
    p_holm, adjusted over the pairs of a task."""
    sides = pd.concat([at_budget(results, arm, budget) for arm in arms]).drop(columns="reference", errors="ignore")
    named = pd.DataFrame(combinations(arms, 2), columns=["arm", "reference"])
    mine, theirs = named.merge(sides, on="arm"), sides.assign(reference=sides["arm"])
    if len(refused := unequal(mine, theirs, equal=equal, on=(*KEY, "reference"))):
        raise ValueError(refusal(refused["said"].tolist(), equal))
    rows = contrast(couples(sides, named, metric=metric), by=("task", "arm", "reference"), alpha=alpha)
    rows["p_test"] = rows["p"].where(rows["unscored"] == 0, rows["p_sign"])
    rows["p_holm"] = rows.groupby("task", group_keys=False)["p_test"].transform(holm)
    return rows


def tie_groups(
    results: pd.DataFrame,
    arms: Sequence[str],
    *,
    metric: str = "loss",
    budget: int | None = None,
    equal: Collection[str] = EQUAL,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Which arms no test tells apart: those that share a letter. Not ranks: an arm may be in several groups.

    Per task, by mean loss: task, arm, loss (mean over seeds), n, unscored, letters, why (where tests of the arm with
    another are not there and so tell nothing apart). Two arms differ where the Holm-adjusted p of their pair is below
    alpha; a letter is a largest set of arms none of which differ (Piepho 2004).
    """
    tested = pairwise(results, arms, metric=metric, budget=budget, equal=equal, alpha=alpha)
    scored = pd.concat([at_budget(results, arm, budget) for arm in arms])
    scored = scored[["task", "arm"]].assign(loss=losses(scored, metric), unscored=scored["status"].isin(UNSCORED))
    found = []
    for task, rows in tested.groupby("task", sort=False):
        table = _means(scored[scored["task"] == task], arms)
        differ = rows[rows["p_holm"] < alpha]
        groups = _largest_alike(table["arm"], zip(differ["arm"], differ["reference"], strict=True))
        table["letters"] = [
            "".join(_letter(i) for i, group in enumerate(groups) if arm in group) for arm in table["arm"]
        ]
        lost = rows[rows["p_test"].isna()]
        untested = [lost[(lost["arm"] == arm) | (lost["reference"] == arm)] for arm in table["arm"]]
        table["why"] = ["; ".join(dict.fromkeys(_reasons(own))) for own in untested]
        found.append(table)
    return pd.concat(found, ignore_index=True)


def _reasons(rows: pd.DataFrame) -> list[str]:
    reasons = rows["why"].where(rows["unscored"] == 0, rows["why_sign"].where(rows["why_sign"] != "", rows["why"]))
    return reasons.tolist()


def _means(rows: pd.DataFrame, arms: Sequence[str]) -> pd.DataFrame:
    """Of one task: a row per arm, lowest mean loss first."""
    by_arm = rows.groupby("arm")
    table = pd.DataFrame({"loss": by_arm["loss"].mean(), "n": by_arm.size(), "unscored": by_arm["unscored"].sum()})
    table = table.reindex(list(arms)).fillna({"n": 0, "unscored": 0}).astype({"n": int, "unscored": int})
    table.insert(0, "task", rows["task"].iloc[0])
    table.insert(1, "arm", list(arms))
    return table.sort_values("loss", kind="stable", ignore_index=True)


def _largest_alike(arms: Iterable[str], differ: Iterable[tuple[str, str]]) -> list[frozenset[str]]:
    """The largest sets of arms without a pair that differs, by the places of their members in `arms`."""
    place = {arm: i for i, arm in enumerate(arms)}
    groups = {frozenset(place)}
    for a, b in differ:
        split = {group - {arm} for group in groups for arm in (a, b) if {a, b} <= group}
        groups = {group for group in groups if not {a, b} <= group} | split
        groups = {group for group in groups if not any(group < other for other in groups)}
    return sorted(groups, key=lambda group: sorted(place[arm] for arm in group))


def _letter(number: int) -> str:
    letters = string.ascii_letters
    return letters[number] if number < len(letters) else f"({number + 1})"


def performance_profile(
    differences: pd.DataFrame,
    *,
    by: str = "arm",
    thresholds: Sequence[float] | None = None,
    draws: int = 2000,
    seed: int = 0,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """Share of runs whose difference is at most a threshold, the mean over tasks of the share over seeds, per arm.

    differences: columns task, seed, difference and `by`, as of `pairs`. The pointwise interval is a percentile
    bootstrap stratified by task (Agarwal et al. 2021, arXiv:2108.13264), seeded. Columns: `by`, threshold, share, low,
    high, seeds (fewest of a task), few (fewer than 10: the interval is too narrow).
    """
    known = differences.dropna(subset=["difference"])
    if thresholds is None:
        thresholds = np.linspace(known["difference"].min(), known["difference"].max(), 50).tolist()
    rng, found = np.random.default_rng(seed), []
    for name, group in known.groupby(by, sort=False):
        strata = [own["difference"].to_numpy()[:, None] <= np.array(thresholds) for _, own in group.groupby("task")]
        share = np.mean([reached.mean(axis=0) for reached in strata], axis=0)
        drawn = np.zeros((draws, len(thresholds)))
        for reached in strata:
            counts = rng.multinomial(len(reached), np.full(len(reached), 1 / len(reached)), size=draws)
            drawn += counts @ reached / len(reached) / len(strata)
        low, high = np.quantile(drawn, [alpha / 2, 1 - alpha / 2], axis=0)
        rows = pd.DataFrame({by: name, "threshold": thresholds, "share": share, "low": low, "high": high})
        seeds = min(len(reached) for reached in strata)
        found.append(rows.assign(seeds=seeds, few=seeds < PROFILE_SEEDS))
    return pd.concat(found, ignore_index=True)


def friedman(scores: pd.DataFrame) -> pd.DataFrame:
    """Friedman's test that arms (columns task, arm, loss; seeds are averaged) do not differ over tasks: one row.

    Columns: tasks, arms, statistic, p, why: why there is no test, as with fewer than 8 tasks.
    """
    table = scores.pivot_table(index="task", columns="arm", values="loss", aggfunc="mean")
    tasks, arms = table.shape
    why = f"{tasks} tasks, and the test needs {FRIEDMAN_TASKS}" if tasks < FRIEDMAN_TASKS else ""
    if arms < 3:
        why = why or f"{arms} arms, and the test needs 3"
    if lacking := sorted(map(str, table.columns[table.isna().any()])):
        why = why or f"not every task has {', '.join(lacking)}"
    statistic, p = (np.nan, np.nan) if why else stats.friedmanchisquare(*table.to_numpy().T)
    return pd.DataFrame([{"tasks": tasks, "arms": arms, "statistic": statistic, "p": p, "why": why}])
