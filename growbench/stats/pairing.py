"""Pairs: two arms' rows of one task and seed, beside each other, or a ValueError that names the rows that cannot be.

difference = log(loss of the arm / loss of the reference). What must be equal in a pair is the data, the budget, the
tokens spent and, within 1 %, the size. A run that did not finish counts with the loss it is scored with.
"""

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd

from growbench.results import UNSCORED

Side = str | pd.DataFrame
"""An arm's name, which stands for its rows at the full budget, or result rows, at most one per task and seed."""

EQUAL = ("data_fingerprint", "budget", "tokens", "params_non_embedding")
"""Columns of results in which the two rows of a pair must agree."""

SIZE = 0.01
"""How far sizes may lie apart, as a share of the reference's."""

KEY = ["task", "seed"]
_NAMED = 5


def full_budget(results: pd.DataFrame) -> int:
    """The study's full budget in tokens: the largest point of rows at matched size at the top rung, else of all rows.

    A source that is trained on, or a smaller rung, may get more. ValueError without rows.
    """
    if results["budget"].dropna().empty:
        raise ValueError("these results have no row with a budget: run the study first")
    top = results["rung"] == results.groupby("architecture")["rung"].transform("max")
    ranked = results.loc[(top & results["matched"]).fillna(False).astype(bool), "budget"].dropna()
    return int((results["budget"].dropna() if ranked.empty else ranked).max())


def pairs(
    results: pd.DataFrame,
    arm: Side,
    reference: Side,
    *,
    metric: str = "loss",
    budget: int | None = None,
    equal: Collection[str] = EQUAL,
) -> pd.DataFrame:
    """The differences of two arms by seed: one row per task and seed that either of them has.

    metric: a column of results, positive, lower is better. budget: tokens, by default the full budget. equal: the
    columns that must agree; leave out what the comparison is about, such as the size against a source trained on.

    Columns: task, seed, arm, reference (names), arm_loss, reference_loss, difference, unscored (how many of the two
    runs did not finish), missing (who lacks the seed, "" where nobody; the difference is then NaN), data_fingerprint.
    ValueError for an arm that is not there, two rows of one arm, task and seed, and whatever `refuse_unequal` refuses.
    """
    names = [name_of(side) for side in (arm, reference)]
    left, right = (at_budget(results, side, budget) for side in (arm, reference))
    refuse_unequal(left, right, equal=equal)
    both = _side(left, metric).merge(_side(right, metric), on=KEY, how="outer", suffixes=("_l", "_r")).sort_values(KEY)
    found = both[KEY].assign(arm=names[0], reference=names[1])
    found["arm_loss"], found["reference_loss"] = both["loss_l"], both["loss_r"]
    found["difference"] = np.log(both["loss_l"]) - np.log(both["loss_r"])
    found["unscored"] = both[["unscored_l", "unscored_r"]].fillna(0).sum(axis=1).astype(int)
    absent = both[["loss_l", "loss_r"]].isna().to_numpy()
    found["missing"] = [" and ".join(n for n, gone in zip(names, row, strict=True) if gone) for row in absent]
    found["data_fingerprint"] = both["data_fingerprint_l"].fillna(both["data_fingerprint_r"])
    return found.reset_index(drop=True)


def combine(*terms: tuple[float, pd.DataFrame]) -> pd.DataFrame:
    """A contrast of more than two arms, by seed: the weighted sum of the differences of several `pairs`.

    (a - b) - (c - d) is `combine((1, pairs(a, b)), (-1, pairs(c, d)))`. Columns: task, seed, difference, unscored,
    missing, data_fingerprint. ValueError where the terms were measured on different data.
    """
    frames = [frame.set_index(KEY).sort_index() for _, frame in terms]
    every = frames[0].index
    for frame in frames[1:]:
        every = every.union(frame.index)
    aligned = [frame.reindex(every) for frame in frames]
    prints = pd.concat([frame["data_fingerprint"] for frame in aligned], axis=1)
    if len(odd := prints[prints.nunique(axis=1) > 1]):
        raise ValueError(f"these contrasts were measured on different data: {_listing(_places(odd.index))}")
    found = pd.DataFrame(index=every)
    found["difference"] = sum(weight * frame["difference"] for (weight, _), frame in zip(terms, aligned, strict=True))
    unscored = pd.concat([frame["unscored"] for frame in aligned], axis=1)
    found["unscored"] = unscored.fillna(0).sum(axis=1).astype(int)
    lacking = [frame["missing"].fillna("a term").tolist() for frame in aligned]
    found["missing"] = [" and ".join(dict.fromkeys(who for who in row if who)) for row in zip(*lacking, strict=True)]
    found["data_fingerprint"] = prints.bfill(axis=1).iloc[:, 0]
    return found.reset_index()


def couples(rows: pd.DataFrame, named: pd.DataFrame, *, metric: str = "loss") -> pd.DataFrame:
    """`pairs` of many couples of arms in one pass: named has columns arm and reference, rows one row per arm and seed.

    Columns as of `pairs`. Nothing is refused here: ask `unequal` of the same rows first.
    """
    sides = _side(rows, metric).assign(arm=rows["arm"].astype(object))
    sides = sides.drop(columns="data_fingerprint")
    named = named[["arm", "reference"]].astype(object).drop_duplicates()
    left, right = (
        named.merge(sides.rename(columns={"arm": side, "loss": f"{side}_loss"}), on=side)
        for side in ("arm", "reference")
    )
    found = left.merge(right, on=["arm", "reference", *KEY], how="outer", suffixes=("", "_r"))
    found["difference"] = np.log(found["arm_loss"]) - np.log(found["reference_loss"])
    lost = found[["unscored", "unscored_r"]].astype("boolean").fillna(False).astype(int)
    gone = np.select([found["arm_loss"].isna(), found["reference_loss"].isna()], [found["arm"], found["reference"]], "")
    found = found.assign(unscored=lost.sum(axis=1), missing=gone).sort_values(["arm", "reference", *KEY])
    columns = [*KEY, "arm", "reference", "arm_loss", "reference_loss", "difference", "unscored", "missing"]
    return found[columns].reset_index(drop=True)


def refuse_unequal(left: pd.DataFrame, right: pd.DataFrame, *, equal: Collection[str] = EQUAL) -> None:
    """Raise ValueError that names the rows of one task and seed that differ in one of the columns `equal`.

    Sizes may be 1 % apart. What a row does not state is not compared, nor are the tokens of a run that did not finish.
    """
    if len(found := unequal(left, right, equal=equal)):
        raise ValueError(refusal(found["said"].tolist(), equal))


def refusal(said: Sequence[str], equal: Collection[str] = EQUAL) -> str:
    """The sentence of `refuse_unequal` for rows of `unequal`."""
    return f"these rows cannot be compared: {_listing(said)}; compare rows that agree in {list(equal)}"


def unequal(
    left: pd.DataFrame, right: pd.DataFrame, *, equal: Collection[str] = EQUAL, on: Sequence[str] = KEY
) -> pd.DataFrame:
    """The rows that `refuse_unequal` refuses: columns task, seed, arm (of the left) and said, by column of `equal`.

    on: what joins the two sides, task and seed among it.
    """
    columns = [*dict.fromkeys([*on, "arm", "status", *equal])]
    both = left[columns].merge(right[columns], on=list(on), suffixes=("_l", "_r"))
    finished = ~(both["status_l"].isin(UNSCORED) | both["status_r"].isin(UNSCORED))
    found: list[dict[str, object]] = []
    for column in equal:
        if column in on:
            continue
        mine, other = both[f"{column}_l"], both[f"{column}_r"]
        apart = (mine - other).abs() > SIZE * other if column == "params_non_embedding" else mine != other
        differ = (apart & mine.notna() & other.notna()).fillna(False).astype(bool)
        differ &= finished | (column != "tokens")
        for row in both[differ].to_dict("records") if differ.any() else ():
            a, b = row[f"{column}_l"], row[f"{column}_r"]
            where = f"{row['task']}, seed {row['seed']}"
            arm, other_arm = (row.get(f"arm_{side}", row.get("arm")) for side in "lr")
            said = f"{arm} has {column} {a}, {other_arm} has {b} ({where})"
            found.append({"task": row["task"], "seed": row["seed"], "arm": arm, "said": said})
    return pd.DataFrame(found, columns=["task", "seed", "arm", "said"])


def at_budget(results: pd.DataFrame, side: Side, budget: int | None = None) -> pd.DataFrame:
    """A side's rows: given ones as they are; of a named arm, per task those at the budget, or the last ones before it.

    So an arm that never comes to the budget is seen to differ in it, and one that lacks it for some seeds lacks those.
    """
    if isinstance(side, pd.DataFrame):
        rows = side
    else:
        budget = full_budget(results) if budget is None else budget
        rows = of_arm(results, side)
        rows = rows[(rows["budget"] <= budget).fillna(False).astype(bool)]
        if rows.empty:
            raise ValueError(f"{side} has no row at or below {budget:,} tokens: compare it at a budget that it has")
        rows = rows[(rows["budget"] == rows.groupby("task")["budget"].transform("max")).astype(bool)]
    if (twice := rows.duplicated(KEY)).any():
        where = _listing(_places(pd.MultiIndex.from_frame(rows.loc[twice, KEY])))
        raise ValueError(f"{name_of(side)} has more than one row at its budget: {where}; give the rows of one study")
    return rows


def of_arm(results: pd.DataFrame, arm: str) -> pd.DataFrame:
    """All rows of an arm by its name. ValueError where there is none."""
    rows = results[(results["arm"] == arm).fillna(False).astype(bool)]
    if rows.empty:
        there = ", ".join(sorted(results["arm"].dropna().unique()))
        raise ValueError(f"no row is of the arm {arm}: name one of {there or 'a study that has run'}")
    return rows


def losses(rows: pd.DataFrame, metric: str) -> pd.Series:
    """A column of results as float64. ValueError that names the rows where it is not positive, or not finite."""
    found = pd.Series(rows[metric].astype("Float64").to_numpy("float64", na_value=np.nan), index=rows.index)
    if len(bad := rows[~(found > 0) | np.isinf(found)]):
        where = _listing([f"{r['arm']}, {r['task']}, seed {r['seed']}" for r in bad.to_dict("records")])
        raise ValueError(f"{metric} has no logarithm in these rows: {where}; use a metric that is positive in all")
    return found


def _side(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    own = rows[[*KEY, "data_fingerprint"]].astype({"task": object, "seed": "int64", "data_fingerprint": object})
    return own.assign(loss=losses(rows, metric), unscored=rows["status"].isin(UNSCORED).astype(bool))


def name_of(side: Side) -> str:
    """What messages call a side: its arm, or the arms of its rows."""
    return side if isinstance(side, str) else " or ".join(dict.fromkeys(side["arm"].astype(str)))


def _places(index: pd.Index) -> list[str]:
    return [f"{task}, seed {seed}" for task, seed in index]


def _listing(found: Sequence[str]) -> str:
    more = f"; and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return "; ".join(found[:_NAMED]) + more
