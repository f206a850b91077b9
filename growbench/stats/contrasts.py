"""Tests of one contrast: is the mean over seeds of a per-seed difference away from 0, and by how much?

t = mean / (SD / √n) with n - 1 degrees of freedom, per task; tasks are fixed strata, so across them the mean of the
means has the Welch-Satterthwaite interval. Where a run diverged, differences are anything but normal and only the exact
sign-flip test is shown. What is not shown is missing, with its reason in words. Nothing here is bootstrapped: the
percentile interval of a handful of seeds covers far less than it says.
"""

import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pandas as pd
from scipy import optimize, stats

from growbench.stats.pairing import EQUAL, Side, pairs

SEEDS = 5
"""Fewest seeds for a test; with less, points are shown and nothing else ("screening")."""

MARGIN = math.log1p(0.005)
"""Margin of equivalence and non-inferiority as a log loss ratio: 0.5 % of the loss."""

_ENUMERATED = 20  # seeds: 2^20 sign patterns fit into memory and a moment
_FLAT = 1e-12  # an SD of log ratios that is rounding alone
_T_TEST = dict.fromkeys(("se", "df", "low", "high", "p", "detectable"), np.nan)


def paired(
    results: pd.DataFrame,
    arm: Side,
    reference: Side,
    *,
    metric: str = "loss",
    budget: int | None = None,
    equal: Collection[str] = EQUAL,
    alpha: float = 0.05,
) -> pd.DataFrame:
    """The paired test of two arms: a row per task, the names arm and reference and the columns of `contrast`.

    Arguments and errors are those of `pairs`.
    """
    found = pairs(results, arm, reference, metric=metric, budget=budget, equal=equal)
    tested = contrast(found, alpha=alpha)
    tested.insert(0, "arm", found["arm"].iloc[0])
    tested.insert(1, "reference", found["reference"].iloc[0])
    return tested


def contrast(differences: pd.DataFrame, *, by: Sequence[str] = ("task",), alpha: float = 0.05) -> pd.DataFrame:
    """Statistics of per-seed differences (columns `by`, seed, difference), a row per group in their order.

    Optional columns, as made by `pairs` and `saved_by_seed`: unscored (runs that did not finish), missing (who lacks
    the seed), bound (the difference is but a bound), arm_loss and reference_loss (for their correlation).

    n: seeds with a difference; effect: their mean; sd; se, df, low, high, p: the t interval at level 1 - alpha and the
    two-sided test; p_sign: the exact two-sided sign-flip p, where its least value 2 / 2^n is below alpha; correlation:
    of the two arms' losses over seeds (pairing gains nothing at 0); detectable: the effect seen with 80 % power.
    why: why there is no t test; why_sign: why there is no sign-flip test; both "" where there is one. unscored, missing
    and bound sum up the column of that name; where bound is not "", effect is that bound.
    """
    columns = ["n", "unscored", "missing", "bound", "effect", "sd", "se", "df", "low", "high", "p", "p_sign"]
    columns = [*by, *columns, "correlation", "detectable", "why", "why_sign"]
    if differences.empty:
        return pd.DataFrame(columns=columns)
    rows = differences.reset_index(drop=True)
    groups = rows.groupby(list(by), sort=False, dropna=False)
    found, numbers = groups.size().index.to_frame(index=False), groups.ngroup().to_numpy()
    there = rows["difference"].notna().to_numpy()
    found = _tested(_described(rows, numbers, found), rows, numbers, alpha)
    plain = found["why"] == ""
    t = found[plain]
    t = t.assign(se=t["sd"] / np.sqrt(t["n"]), df=t["n"] - 1.0)  # of `found` it would bring back rows to an empty one
    t[["p", "low", "high"]] = superiority(t, alpha=alpha)[["p", "low", "high"]]
    t["detectable"] = t["se"] * t["df"].map(lambda df: _noncentrality(df, alpha, 0.8)).astype("float64")
    found[[*_T_TEST]] = t[[*_T_TEST]].reindex(found.index)
    known = rows.loc[there, "difference"].to_numpy("float64")
    signs = np.split(known[np.argsort(numbers[there], kind="stable")], np.cumsum(found["n"])[:-1])
    found["p_sign"] = [np.nan if why else sign_flip(own) for why, own in zip(found["why_sign"], signs, strict=True)]
    return found[columns]


def _described(rows: pd.DataFrame, numbers: np.ndarray, found: pd.DataFrame) -> pd.DataFrame:
    """What holds of the differences of each group, tested or not."""
    there = rows["difference"].notna()
    values = rows["difference"].astype("float64").groupby(numbers)
    found = found.assign(n=values.count(), effect=values.mean(), sd=values.std(), unscored=0, missing="", bound="")
    if "unscored" in rows:
        found["unscored"] = rows["unscored"].where(there, 0).groupby(numbers).sum().astype(int)
    for k in np.unique(numbers[~there]):
        found.loc[k, "missing"] = _missing(rows[numbers == k])
    bounded = (rows["bound"] != "").to_numpy() if "bound" in rows else np.zeros(len(rows), dtype=bool)
    for k in np.unique(numbers[bounded]):
        bounds = set(rows.loc[(numbers == k) & bounded, "bound"])
        found.loc[k, "bound"] = bounds.pop() if len(bounds) == 1 else "unknown"
    found.loc[found["bound"] == "unknown", "effect"] = np.nan
    return found.assign(correlation=_correlation(rows, numbers, there).reindex(found.index))


def _correlation(rows: pd.DataFrame, numbers: np.ndarray, there: pd.Series) -> pd.Series:
    """Pearson's, of the losses of both sides over the seeds where both finished; NaN below three of them."""
    if not {"arm_loss", "reference_loss"} <= set(rows):
        return pd.Series(dtype="float64")
    both = there & (rows["unscored"] == 0) if "unscored" in rows else there
    sides, where = rows.loc[both, ["arm_loss", "reference_loss"]].astype("float64"), numbers[both]
    apart = sides - sides.groupby(where).transform("mean")
    left, right = apart["arm_loss"], apart["reference_loss"]
    products = pd.DataFrame({"both": left * right, "left": left**2, "right": right**2}).groupby(where).sum()
    spread = (sides.groupby(where).max() - sides.groupby(where).min()).min(axis=1)
    known = (sides.groupby(where).size() > 2) & (spread > 0)
    return (products["both"] / np.sqrt(products["left"] * products["right"])).where(known)


def _missing(group: pd.DataFrame) -> str:
    gone = group[group["difference"].isna()]
    who = gone["missing"] if "missing" in gone else pd.Series("", index=gone.index)
    lacking = gone.groupby(who.replace("", "the difference"), sort=True)["seed"]
    return "; ".join(f"{name} lacks seed {', '.join(str(s) for s in sorted(seeds))}" for name, seeds in lacking)


def _tested(found: pd.DataFrame, rows: pd.DataFrame, numbers: np.ndarray, alpha: float) -> pd.DataFrame:
    """Adds why and why_sign: the reasons for which the groups have no t test and no sign-flip test."""
    said = []
    for k, (n, unscored, bound, sd) in enumerate(found[["n", "unscored", "bound", "sd"]].itertuples(index=False)):
        least = 2.0 / 2**n
        signs = "" if least < alpha else f"the smallest p that {n} seeds allow is {least:.4g}"
        if n > _ENUMERATED:
            signs = f"sign patterns are enumerated up to {_ENUMERATED} seeds"
        why = ""
        if n < SEEDS:
            why = signs = f"screening: {n} {'seed' if n == 1 else 'seeds'}, and a test needs {SEEDS}"
        elif bound:
            at = rows.loc[(numbers == k) & (rows["bound"] != ""), "seed"]
            why = signs = f"only a bound is known at seed {', '.join(str(seed) for seed in at)}"
        elif unscored:
            runs = "1 run" if unscored == 1 else f"{unscored} runs"
            why = f"{runs} did not finish: only the sign-flip test holds"
        elif sd <= _FLAT:
            why = "the seeds do not differ: there is no spread to test against"
        said.append((why, signs))
    return found.assign(why=[why for why, _ in said], why_sign=[signs for _, signs in said])


def _t_test(effect: float, se: float, df: float, alpha: float) -> dict[str, float]:
    tested = superiority(pd.DataFrame({"effect": [effect], "se": [se], "df": [float(df)]}), alpha=alpha).iloc[0]
    interval = {name: float(tested[name]) for name in ("low", "high", "p")}
    return {"se": se, "df": float(df), **interval, "detectable": minimum_detectable(se, df, alpha=alpha)}


def sign_flip(differences: np.ndarray) -> float:
    """Exact two-sided p that the mean is 0: the share of all 2^n sign patterns with a sum as far from 0.

    Valid for differences that are symmetric around 0, of whatever distribution (Fisher 1935). Up to about 20 values.
    """
    sums = np.zeros(1)
    for difference in np.abs(differences):
        sums = np.concatenate([sums + difference, sums - difference])
    return float(np.mean(np.abs(sums) >= abs(differences.sum()) - 1e-12 * np.abs(differences).sum()))


def minimum_detectable(se: float, df: float, *, alpha: float = 0.05, power: float = 0.8) -> float:
    """The effect that the two-sided t test sees with a power: by the noncentral t; 1.7 SD at n = 5, 1.0 at n = 10."""
    return se * _noncentrality(df, alpha, power)


@lru_cache
def _noncentrality(df: float, alpha: float, power: float) -> float:
    cut = float(stats.t.isf(alpha / 2, df))

    def gap(shift: float) -> float:
        other_tail = np.nan_to_num(stats.nct.cdf(-cut, df, shift))  # scipy has NaN where it is below 1e-19
        return float(stats.nct.sf(cut, df, shift) + other_tail) - power

    return float(optimize.brentq(gap, 0.0, 4.0 * cut))


def across_tasks(per_task: pd.DataFrame, *, alpha: float = 0.05) -> pd.DataFrame:
    """One contrast over all its tasks, from its rows of `contrast`: the mean of their effects, each task counting once.

    se² = Σ se² / k², df = (Σ se²)² / Σ(se⁴ / df) (Welch 1938, Satterthwaite 1946). One row: tasks, unscored, missing,
    effect, se, df, low, high, p, detectable, why. No test where a task has none: `why` names the task and its reason.
    """
    k = len(per_task)
    why = "" if k else "no task has a difference"
    untested = per_task[per_task["why"] != ""]
    if len(untested):
        why = "; ".join(f"{task}: {reason}" for task, reason in zip(untested["task"], untested["why"], strict=True))
    missing = per_task[per_task["missing"] != ""]
    row: dict[str, Any] = {
        "tasks": k,
        "unscored": int(per_task["unscored"].sum()),
        "missing": "; ".join(f"{task}: {who}" for task, who in zip(missing["task"], missing["missing"], strict=True)),
        "effect": per_task["effect"].mean(skipna=False) if k else np.nan,
    }
    if not why:
        variance = per_task["se"].to_numpy() ** 2
        df = variance.sum() ** 2 / (variance**2 / per_task["df"].to_numpy()).sum()
        row |= _t_test(row["effect"], math.sqrt(variance.sum()) / k, df, alpha)
    return pd.DataFrame([_T_TEST | row | {"why": why}])[["tasks", "unscored", "missing", "effect", *_T_TEST, "why"]]


def superiority(
    tested: pd.DataFrame, *, alternative: Literal["two-sided", "less", "greater"] = "two-sided", alpha: float = 0.05
) -> pd.DataFrame:
    """t test that the effect is not 0, below 0 ("less": the arm is better) or above, of rows with effect, se and df.

    Columns: effect, p, low, high, level; the interval excludes 0 where p < alpha. Missing where se is.
    """
    effect, se, df = _moments(tested)
    share = alpha / 2 if alternative == "two-sided" else alpha
    below, above, half = stats.t.cdf(effect / se, df), stats.t.sf(effect / se, df), stats.t.isf(share, df) * se
    p = {"two-sided": 2 * np.minimum(below, above), "less": below, "greater": above}[alternative]
    low = effect - half if alternative != "less" else np.where(np.isnan(half), np.nan, -np.inf)
    high = effect + half if alternative != "greater" else np.where(np.isnan(half), np.nan, np.inf)
    found = {"effect": effect, "p": p, "low": low, "high": high, "level": 1 - alpha}
    return pd.DataFrame(found, index=tested.index)


def equivalence(tested: pd.DataFrame, *, margin: float = MARGIN, alpha: float = 0.05) -> pd.DataFrame:
    """Two one-sided tests that the effect is within ± margin (Schuirmann 1987), of rows with effect, se and df.

    Columns: effect, p (the larger of the two), low, high, level (1 - 2 alpha), margin; p < alpha just where the
    interval lies within the margin.
    """
    effect, se, df = _moments(tested)
    p = np.maximum(stats.t.cdf((effect - margin) / se, df), stats.t.sf((effect + margin) / se, df))
    half = stats.t.isf(alpha, df) * se
    found = {"effect": effect, "p": p, "low": effect - half, "high": effect + half, "level": 1 - 2 * alpha}
    return pd.DataFrame(found | {"margin": margin}, index=tested.index)


def noninferiority(tested: pd.DataFrame, *, margin: float = MARGIN, alpha: float = 0.05) -> pd.DataFrame:
    """One-sided test that the arm is worse by less than the margin, of rows with effect, se and df.

    Columns: effect, p, low (-inf), high, level, margin; p < alpha just where high is below the margin.
    """
    shifted = tested.assign(effect=tested["effect"] - margin)
    found = superiority(shifted, alternative="less", alpha=alpha)
    return found.assign(effect=tested["effect"], high=found["high"] + margin, margin=margin)


def _moments(tested: pd.DataFrame) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    effect, se, df = (tested[name].to_numpy("float64") for name in ("effect", "se", "df"))
    return effect, se, df
