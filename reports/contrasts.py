"""Tests of the tables: every arm beside scratch of its shape, and which arms no test tells apart.

One idea: all statistics are those of `growbench.stats`, of rows at one budget of one task. With too few seeds there are
none; rows that must not be compared become a note that names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from growbench import stats
from growbench.reports import summary


@dataclass(frozen=True, kw_only=True)
class Tested:
    """By arm: statistics beside its reference (columns of `stats.contrast`), and letters; notes: what is not tested.

    p_test: of the t test, or of sign flips where a run did not finish; p_holm: adjusted over the arms of the table;
    low_flops, high_flops: the interval at equal FLOPs.
    """

    arms: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    letters: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.arms or self.letters or self.notes)


def of_table(rows: pd.DataFrame, *, ties: bool = True) -> Tested:
    """The tests of rows of one task and budget (of `summary.beside_scratch`); nothing below the seeds of a test."""
    if rows["seed"].nunique() < stats.SEEDS:
        return Tested()
    found, notes = [], []
    for arm, mine in rows.groupby("arm", sort=False):
        reference = mine["reference"].iloc[0]
        theirs = rows[rows["arm"] == reference] if isinstance(reference, str) else rows.iloc[:0]
        if reference == arm or theirs.empty:
            continue
        try:
            row = stats.paired(rows, mine, theirs).iloc[0].to_dict()
        except ValueError as error:
            notes.append(f"{arm} is not compared with {reference}: {error}.")
            continue
        found.append(row | _at_flops(mine) | {"arm": str(arm)})
    arms = pd.DataFrame(found)
    if len(arms):
        arms["p_test"] = arms["p"].where(arms["unscored"] == 0, arms["p_sign"])
        arms["p_holm"] = stats.holm(arms["p_test"], family=len(arms))
    letters, untied = _letters(rows) if ties else ({}, "")
    by_arm = {str(row["arm"]): row for row in arms.to_dict("records")}
    return Tested(arms=by_arm, letters=letters, notes=(*notes, *filter(None, [untied])))


def _at_flops(mine: pd.DataFrame) -> dict[str, float]:
    """The interval of the log ratio to scratch's loss read off at equal FLOPs; none where a seed has no such value."""
    ratios = np.log(mine["score"].to_numpy("float64") / mine["at_flops"].to_numpy("float64"))
    differences = mine[["task", "seed"]].assign(difference=ratios, unscored=(~mine["scored"]).astype(int).to_numpy())
    row = stats.contrast(differences).iloc[0]
    if row["missing"]:
        return {"low_flops": np.nan, "high_flops": np.nan}
    return {"low_flops": float(row["low"]), "high_flops": float(row["high"])}


def _letters(rows: pd.DataFrame) -> tuple[dict[str, str], str]:
    """Letters of the arms of the study's own schedule, or why there are none."""
    own = rows.loc[rows["schedule"].fillna("") == "", [*stats.EQUAL, "task", "seed", "arm", "status", "loss"]]
    arms = summary.unique(own["arm"])
    if len(arms) < 2:
        return {}, ""
    try:
        table = stats.tie_groups(own, arms, budget=int(own["budget"].max()))
    except ValueError as error:
        return {}, f"Arms are not compared with each other: {error}."
    return {str(arm): str(letters) for arm, letters in zip(table["arm"], table["letters"], strict=True)}, ""
