"""The report's numbers: functions of the result tables, each a DataFrame or a plain value.

One idea: an arm is judged by its rows at the full budget, beside the from-scratch rows of the same architecture, task
and seed. `finals` picks those rows, `baseline` their reference, and everything else is a mean over seeds of a value or
of a difference paired by seed. No test is made here: these are points.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from growbench.results import RESULTS, UNSCORED, Column

VIEWS = {
    "total": ("flops", "everything counted, the source model too"),
    "continued": ("flops_continued", "the source model is free"),
    "ladder": ("flops_ladder", "the cost of owning every rung of the ladder"),
}
"""Cost views: name -> (column of results, what it counts)."""

PURPOSES = {
    "flops_train": "training at constant rate",
    "flops_cooldown": "cooldown",
    "flops_growth": "growth operators",
    "flops_probe": "probes",
}
"""What `flops` is spent on: the four add up to it."""

CELL = ["task", "architecture"]


def tidy(frame: pd.DataFrame, columns: Mapping[str, Column]) -> pd.DataFrame:
    """All of `columns`, absent ones as missing values, reals as float64 with NaN for missing and infinite alike."""
    frame = frame.reindex(columns=list(columns)).reset_index(drop=True)
    for name, column in columns.items():
        if column.dtype == "Float64":
            frame[name] = pd.to_numeric(frame[name]).astype("Float64").to_numpy("float64", na_value=np.nan)
            frame[name] = frame[name].replace([np.inf, -np.inf], np.nan)
        else:
            frame[name] = frame[name].astype(column.dtype)  # type: ignore[call-overload]
    return frame


def annotate(results: pd.DataFrame) -> pd.DataFrame:
    """Tidy results with `scored` (the loss was measured), `top` (at the largest rung) and `ranked` (matched and top).

    A row that failed before its size was known is matched where the arm's other rows are.
    """
    rows = tidy(results, RESULTS)
    rows["matched"] = rows["matched"].fillna(rows.groupby("arm")["matched"].transform("first")).fillna(False)
    rows["rung"] = rows["rung"].fillna(rows.groupby("arm")["rung"].transform("first"))
    rows["scored"] = ~rows["status"].isin(UNSCORED)
    rows["top"] = (rows["rung"] == rows.groupby("architecture")["rung"].transform("max")).fillna(False).astype(bool)
    rows["ranked"] = rows["matched"].astype(bool) & rows["top"]
    return rows


def full_budget(rows: pd.DataFrame) -> int | None:
    """The largest budget point at matched size, in tokens (a source trained on may get more); None without rows."""
    budgets = rows.loc[rows["ranked"], "budget"].dropna()
    if budgets.empty:
        budgets = rows.groupby("arm")["budget"].max().dropna()
        return None if budgets.empty else int(budgets.min())
    return int(budgets.max())


def finals(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at the full budget."""
    return rows[(rows["budget"] == full_budget(rows)).fillna(False)] if len(rows) else rows


def others(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at another size than the ranked ones, at the full budget or beyond it."""
    return rows[~rows["ranked"] & (rows["budget"] >= full_budget(rows)).fillna(False)] if len(rows) else rows


def baseline(rows: pd.DataFrame) -> pd.DataFrame:
    """From-scratch rows at the largest rung: one arm per architecture, the one with the strategy's defaults."""
    scratch = rows[(rows["strategy"] == "scratch").fillna(False) & rows["ranked"]]
    if scratch.empty:
        return scratch
    order = scratch.assign(plain=(scratch["variant"].fillna("") != "")).sort_values(["plain", "arm"], kind="stable")
    return scratch[scratch["arm"] == order.groupby("architecture")["arm"].transform("first").reindex(scratch.index)]


def paired(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds `scratch` (the loss from scratch: same architecture, task, seed, budget), `difference` and `ratio` to it."""
    reference = baseline(rows)[[*CELL, "seed", "budget", "loss"]].rename(columns={"loss": "scratch"})
    joined = rows.merge(reference, on=[*CELL, "seed", "budget"], how="left")
    joined["difference"] = joined["loss"] - joined["scratch"]
    joined["ratio"] = joined["loss"] / joined["scratch"]
    return joined


def read_off(flops: float, points: pd.DataFrame) -> tuple[float, str]:
    """Loss of cooled budget points (columns flops, loss, scored) at a cost, linear in log FLOPs between neighbours.

    Returns (loss in nats/token, "") or (NaN, why there is none): never an extrapolation.
    """
    points = points.dropna(subset=["flops"]).sort_values("flops")
    if points.empty:
        return np.nan, "no from-scratch run"
    costs, losses = points["flops"].to_numpy(), points["loss"].to_numpy()
    if np.isnan(flops):
        return np.nan, "cost not known"
    if flops < costs[0] * (1 - 1e-9):
        return np.nan, "cheaper than the first budget point from scratch"
    if flops > costs[-1] * (1 + 1e-9):
        return np.nan, "dearer than the last budget point from scratch"
    right = min(int(np.searchsorted(costs, flops)), len(costs) - 1)
    left = max(right - 1, 0)
    if not points["scored"].to_numpy()[[left, right]].all():
        return np.nan, "from scratch did not finish next to this cost"
    return float(np.interp(np.log(flops), np.log(costs), losses)), ""


def against_scratch(rows: pd.DataFrame) -> pd.DataFrame:
    """Matched grown rows at the full budget, with scratch at equal tokens and read off at equal FLOPs, per seed.

    Adds to `paired`: `at_flops` (scratch's loss at the row's flops), `difference_flops` and `note` (why there is none).
    """
    reference = dict(tuple(baseline(rows).groupby([*CELL, "seed"])))
    own = set(baseline(rows)["arm"])
    last = paired(rows)
    last = finals(last[last["ranked"]])
    last = last[~last["arm"].isin(own)].copy()
    nothing = pd.DataFrame({"flops": [], "loss": [], "scored": []})
    keys = last[[*CELL, "seed"]].itertuples(index=False, name=None)
    read = [
        read_off(flops, reference.get(key, nothing)) if scored else (np.nan, "a seed did not finish")
        for key, flops, scored in zip(keys, last["flops"], last["scored"], strict=True)
    ]
    last["at_flops"] = np.array([loss for loss, _ in read], dtype="float64")
    last["note"] = [note for _, note in read]
    last["difference_flops"] = last["loss"] - last["at_flops"]
    return last


def mean_difference(compared: pd.DataFrame, column: str) -> pd.Series:
    """Mean over seeds of a difference, per arm; NaN where a seed that did not finish has none: it is not dropped."""
    lost = (compared[column].isna() & ~compared["scored"]).groupby(compared["arm"]).any()
    return compared.groupby("arm")[column].mean().where(~lost)


SCORES = ("loss", "bits_per_byte", "excess_loss", "scratch", "difference", "ratio")


def by_arm(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """One record per task, architecture, arm and budget, best first.

    Scores are means over all seeds. Other reals are means, and the rest the first, over the seeds that finished, where
    any did: half a path has no cost. With `seeds`, `losses` (in the order of seeds), `unscored` and `status`.
    """
    records = []
    for _, group in rows.sort_values("seed", kind="stable").groupby([*CELL, "arm", "budget"], sort=True, dropna=False):
        record: dict[str, Any] = {}
        good, bad = group[group["scored"]], group[~group["scored"]]
        for name in group.columns:
            values = (group if name in SCORES or good.empty else good)[name].dropna()
            real = isinstance(group[name].dtype, np.dtype) and group[name].dtype.kind == "f"
            record[name] = None if values.empty else float(values.mean()) if real else values.iloc[0]
        record["seeds"] = [int(seed) for seed in group["seed"].dropna()]
        record["losses"] = [float(loss) for loss in group["loss"]]
        record["unscored"] = len(bad)
        counts = bad["status"].value_counts().sort_index()
        record["status"] = ", ".join(f"{n} of {len(group)} {status}" for status, n in counts.items()) or "ok"
        records.append(record)
    return sorted(records, key=lambda r: (r["loss"] is None, r["loss"] or 0.0, str(r["arm"])))


def ledger(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at the full budget with `flops_train`: what is left of flops after cooldown, growth and probes."""
    rows = finals(rows).copy()
    other = rows[["flops_cooldown", "flops_growth", "flops_probe"]].fillna(0.0).sum(axis=1)
    rows["flops_train"] = rows["flops"] - other
    return rows


def spent(stages: pd.DataFrame) -> pd.DataFrame:
    """Per kind of stage: how many, what they cost, and `flops_unshared`: the cost had every arm paid for its own."""
    stages = stages.assign(flops_unshared=stages["flops"] * stages["arms"].fillna(1).astype("float64"))
    sums = ["tokens", "flops", "flops_eval", "wall_s", "flops_unshared"]
    grouped = stages.groupby("kind", sort=False)
    return grouped[sums].sum().assign(stages=grouped.size()).reset_index()


def gaps(rows: pd.DataFrame, spec: Mapping[str, Any], planned: int | None = None) -> list[str]:
    """What the study asks for and the results lack, in sentences.

    spec: the parsed study file ({} if unknown); planned: how many rows the whole study has.
    """
    if rows.empty:
        return ["No result has been written yet: every table and figure below is empty."]
    found = [f"{len(rows):,} of {planned:,} planned rows are there."] if planned and len(rows) < planned else []
    asked, full = (spec.get("budget") or {}).get("tokens"), full_budget(rows)
    if asked and full and full < 0.98 * asked:
        found.append(f"No run has reached the full budget of {asked:,} tokens: what is shown stands at {full:,}.")
    for key, column, word in (("ladders", "architecture", "architecture"), ("tasks", "task", "task")):
        names = {str(entry["name"] if isinstance(entry, dict) else entry) for entry in spec.get(key) or ()}
        present = unique(rows[column])
        lacking = [name for name in sorted(names) if not any(p.startswith(name) for p in present)]
        found += [f"The {word} {name} has no result." for name in lacking]
    wanted = {str(entry["name"] if isinstance(entry, dict) else entry) for entry in spec.get("strategies") or ()}
    found += [f"The strategy {name} has no result." for name in sorted(wanted - set(unique(rows["strategy"])))]
    seeds = set(range(spec["seeds"])) if isinstance(spec.get("seeds"), int) else {int(s) for s in rows["seed"].dropna()}
    for (task, arm, budget), group in rows.groupby(["task", "arm", "budget"], sort=True):
        lacking_seeds = sorted(seeds - {int(seed) for seed in group["seed"].dropna()})
        if lacking_seeds:
            listed = f"seed{'s' * (len(lacking_seeds) > 1)} {', '.join(map(str, lacking_seeds))}"
            found.append(f"{arm} on {task} lacks {listed} at {budget:,} tokens.")
    for (task, architecture), group in rows.groupby(CELL, sort=True):
        if baseline(group).empty:
            found.append(f"No from-scratch run of {architecture} on {task}: nothing can be compared with it.")
    return found


def unique(values: Iterable[Any]) -> list[str]:
    """Distinct values in the order of the tables, which is the study's."""
    return list(dict.fromkeys(str(value) for value in values if not pd.isna(value)))
