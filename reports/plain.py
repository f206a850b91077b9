"""A sentence for each strategy: what it saves, and where it ends, beside scratch; generated from the numbers.

One idea: a sentence has two halves, compute to reach a loss and loss at equal tokens, and each half says that it is
not told apart where its 95 % interval holds 0. With too few seeds there is no interval, and the sentence says so.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from growbench import stats
from growbench.reports import summary, tables, words

MOST = 8
"""How many sentences of a task stand open; the others are folded."""


def strategies(rows: pd.DataFrame, saved: Mapping[str, tuple[pd.DataFrame, pd.DataFrame, Any]]) -> list[dict[str, Any]]:
    """Per task its sentences, those that save most first: grown arms at matched size by the study's own schedule.

    saved: by task, of `saved.curves`.
    """
    found = []
    for task in summary.unique(rows["task"]):
        mine = rows[rows["task"] == task]
        compared = summary.contenders(summary.against_scratch(mine))
        compared = compared[compared["schedule"].fillna("") == ""]
        curves = saved[task][0] if task in saved else pd.DataFrame(columns=["arm", "view"])
        reached = _reached(curves[curves["view"] == "total"])
        ended = _ended(compared)
        order = ended.join(reached["effect"].rename("saved")).sort_values(["saved", "effect"], na_position="last")
        metric = summary.metric(mine)
        said = [
            _sentence(str(arm), reached.loc[arm] if arm in reached.index else None, ended.loc[arm], metric)
            for arm in order.index
        ]
        if said:
            found.append({"name": task, "sentences": said[:MOST], "more": said[MOST:]})
    return found


def _reached(curves: pd.DataFrame) -> pd.DataFrame:
    """By arm: the hardest loss (`target`) that it and scratch both reach in every seed, and the contrast of the costs.

    Where there is none, target is missing and bound says in which direction the costs are known.
    """
    if curves.empty:
        return pd.DataFrame(columns=["target", "effect", "low", "high", "n", "bound"])
    points = curves.assign(exact=curves["bound"] == "").groupby(["arm", "target"])["exact"].all()
    hardest = points[points].reset_index().groupby("arm")["target"].min()
    at = curves[curves["target"] == curves["arm"].map(hardest)]
    found = stats.contrast(at.rename(columns={"log_ratio": "difference"}), by=("arm",)).set_index("arm")
    without = (
        curves[~curves["arm"].isin(hardest.index)].groupby("arm")["bound"].agg(lambda own: "|".join(sorted({*own})))
    )
    found = found[["effect", "low", "high", "n", "bound"]].assign(target=hardest)
    return found.reindex([*found.index, *without.index]).assign(bound=lambda own: without.reindex(own.index).fillna(""))


def _ended(compared: pd.DataFrame) -> pd.DataFrame:
    """By arm: the contrast of the differences to scratch at equal tokens, in the task's metric, and `own_shape`."""
    differences = compared[["arm", "seed", "difference"]].assign(unscored=(~compared["scored"]).astype(int))
    found = stats.contrast(differences, by=("arm",)).set_index("arm")
    known = compared.drop_duplicates("arm").set_index("arm")
    return found.assign(own_shape=known["own_shape"], refused=known["refused"])


def _sentence(arm: str, reached: "pd.Series[Any] | None", ended: "pd.Series[Any]", metric: summary.Metric) -> Markup:
    cost, cheaper = _cost(reached, metric)
    end, above = _end(ended, metric)
    joint = "but" if cheaper is not None and above is not None and cheaper == above else "and"
    parts = [half for half in (cost, end) if half]
    few = int(ended["n"]) < stats.SEEDS
    note = f" ({words.plural(int(ended['n']), 'seed')}: a mean, no interval)" if few and ended["n"] else ""
    told = (
        f", {joint} ".join(parts) if parts else f"has no value beside scratch: {ended['refused'] or 'no seed has one'}"
    )
    return Markup("<strong>{}</strong> {}{}.").format(tables.breaking(arm), told, note)


def _cost(reached: "pd.Series[Any] | None", metric: summary.Metric) -> tuple[str, bool | None]:
    """The half about compute, and whether the arm is cheaper (None: not told apart, or not known)."""
    if reached is None:
        return "", None
    if words.missing(reached["target"]):
        known = {"at least": "does not come to the losses that scratch reaches for its cost"}
        known["at most"] = "is below every loss that scratch reaches for its cost when it is first scored"
        return known.get(str(reached["bound"]), "has no loss that it and scratch both reach in every seed"), None
    to = f"to reach {words.fixed(metric.scale * float(reached['target']), 2)} {metric.spoken}"
    change = 100 * np.expm1([float(reached[name]) for name in ("effect", "low", "high")])
    if np.isnan(change[1]):
        value = f"{words.fixed(abs(change[0]), 0)} %"
        return (f"saves {value} of the compute {to}" if change[0] < 0 else f"needs {value} more compute {to}"), None
    if change[2] < 0:
        value, ends = words.estimate(-change[0], -change[2], -change[1])
        return f"saves {value} % {ends} of the compute {to}", True
    if change[1] > 0:
        value, ends = words.estimate(*change)
        return f"needs {value} % {ends} more compute {to}", False
    value, ends = words.estimate(*change, signed=True)
    return f"is not told apart from scratch in the compute {to} ({value} % {ends})", None


def _end(ended: "pd.Series[Any]", metric: summary.Metric) -> tuple[str, bool | None]:
    """The half about the loss at equal tokens, and whether the arm is above scratch (None: not told apart)."""
    mean, low, high = (float(ended[name]) for name in ("effect", "low", "high"))
    scratch = f"scratch{' of its own shape' if ended['own_shape'] else ''}"
    if np.isnan(mean) or ended["missing"]:
        return "", None
    if np.isnan(low):
        return f"ends {words.fixed(abs(mean), 3)} {'above' if mean > 0 else 'below'} {scratch} at equal tokens", None
    if low > 0 or high < 0:
        value, ends = words.estimate(abs(mean), *sorted((abs(low), abs(high))))
        return f"ends {value} {ends} {'above' if low > 0 else 'below'} {scratch} at equal tokens", low > 0
    value, ends = words.estimate(mean, low, high, signed=True)
    return f"its end is not told apart from that of {scratch} at equal tokens ({value} {ends} {metric.unit})", None
