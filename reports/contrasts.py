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
    named = rows[["arm", "reference"]].dropna().drop_duplicates()
    named = named[(named["arm"] != named["reference"]) & named["reference"].isin(rows["arm"])]
    refused, of = _refused(rows, named), dict(named.itertuples(index=False, name=None))
    notes = [f"{arm} is not compared with {of[arm]}: {why}." for arm, why in refused.items() if arm in of]
    named = named[~named["arm"].isin(refused)]
    arms = _against(rows, named) if len(named) else pd.DataFrame()
    letters, untied = _letters(rows) if ties else ({}, "")
    by_arm = {str(row["arm"]): row for row in arms.to_dict("records")}
    return Tested(arms=by_arm, letters=letters, notes=(*notes, *filter(None, [untied])))


def _refused(rows: pd.DataFrame, named: pd.DataFrame) -> dict[str, str]:
    """Why some of these arms are not tested: as in `stats.pairs`."""
    found = {str(arm): why for (_, arm), why in summary.refusals(rows).items()}
    twice = rows[rows.duplicated([*stats.KEY, "arm"], keep=False)]
    odd = rows[~(rows["loss"] > 0)]
    for arm, reference in named.itertuples(index=False, name=None):
        bad = [side for side in (arm, reference) if side in set(twice["arm"]) | set(odd["arm"])]
        if bad and arm not in found:
            try:
                stats.pairs(rows, *(rows[rows["arm"] == side] for side in (arm, reference)))
            except ValueError as error:
                found[arm] = str(error)
    return found


def _against(rows: pd.DataFrame, named: pd.DataFrame) -> pd.DataFrame:
    """A row per arm: `stats.contrast` to its reference, p_test, p_holm, and the interval at equal FLOPs."""
    both = rows[rows["arm"].isin(named["arm"]) | rows["arm"].isin(named["reference"])]
    arms = stats.contrast(stats.couples(both, named), by=("task", "arm", "reference"))
    arms["p_test"] = arms["p"].where(arms["unscored"] == 0, arms["p_sign"])
    arms["p_holm"] = stats.holm(arms["p_test"], family=len(arms))
    return arms.merge(_at_flops(rows[rows["arm"].isin(named["arm"])]), on="arm", how="left")


def _at_flops(mine: pd.DataFrame) -> pd.DataFrame:
    """The interval of the log ratio to scratch's loss read off at equal FLOPs; none where a seed has no such value."""
    ratios = np.log(mine["score"].to_numpy("float64") / mine["at_flops"].to_numpy("float64"))
    differences = mine[["arm", "seed"]].assign(difference=ratios, unscored=(~mine["scored"]).astype(int).to_numpy())
    found = stats.contrast(differences, by=("arm",))
    found.loc[found["missing"] != "", ["low", "high"]] = np.nan
    return found[["arm", "low", "high"]].rename(columns={"low": "low_flops", "high": "high_flops"})


TIED = 48
"""Most arms that are set against each other: the number of pairs is its square, half of it."""


def _letters(rows: pd.DataFrame) -> tuple[dict[str, str], str]:
    """Letters of the arms of the study's own schedule, or why there are none, or for which."""
    own = rows.loc[rows["schedule"].fillna("") == "", [*stats.EQUAL, "task", "seed", "arm", "status", "loss"]]
    arms, said = summary.unique(own["arm"]), ""
    if len(arms) < 2:
        return {}, ""
    if len(arms) > TIED:
        said = f"Of {len(arms):,} arms, the {TIED} of lowest mean loss are compared with each other, and have letters."
        arms = [str(arm) for arm in own.groupby("arm")["loss"].mean().sort_values(kind="stable").index[:TIED]]
        own = own[own["arm"].isin(arms)]
    try:
        table = stats.tie_groups(own, arms, budget=int(own["budget"].max()))
    except ValueError as error:
        return {}, f"Arms are not compared with each other: {error}."
    return {str(arm): str(letters) for arm, letters in zip(table["arm"], table["letters"], strict=True)}, said
