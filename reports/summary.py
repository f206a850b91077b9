"""The report's numbers: functions of the result tables, each a DataFrame or a plain value.

One idea: an arm is judged by its rows at the full budget, beside the from-scratch rows of the same architecture, rung,
shape, task and seed. `finals` picks those rows, `annotate` names their reference, and everything else is a mean over
seeds of a value or of a difference paired by seed. What a task is judged by is its `metric`, and `score` is a row's
loss in it. These are points; tests are made in contrasts.py.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from growbench import stats
from growbench.reports import words
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


def cells(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """Each task with the architectures that grow on it, or with all of them where none does.

    An architecture that is trained from scratch alone has nothing to compare with by itself: it is in the tables.
    """
    found = []
    for task, own in rows.dropna(subset=CELL).groupby("task", sort=False):
        growing = own[(own["growth_steps"] > 0).fillna(False).astype(bool)]
        found += [(str(task), name) for name in unique((own if growing.empty else growing)["architecture"])]
    return found


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


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What a task is judged by: `scale` times a loss in nats per token, in `unit`; `limit` is its least possible value.

    The limit is the entropy rate of the source where that is known.
    """

    unit: str
    spoken: str
    scale: float
    limit: float | None


def metric(rows: pd.DataFrame) -> Metric:
    """The primary metric of one task's rows: bits per byte of text, nats per token where tokens are no bytes."""
    both, known = rows[["loss", "bits_per_byte"]].dropna().sum(), rows[["loss", "excess_loss"]].dropna().mean()
    column, spoken, scale = "loss", "nats per token", 1.0
    if both["bits_per_byte"] > 0:
        column, spoken, scale = "bits_per_byte", "bits per byte", float(both["bits_per_byte"] / both["loss"])
    rate = float(known["loss"] - known["excess_loss"])
    limit = None if np.isnan(rate) else scale * rate
    return Metric(unit=RESULTS[column].unit, spoken=spoken, scale=scale, limit=limit)


def score(losses: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Adds `score` to rows with a task and a loss: the loss in the primary metric that the task has in `rows`."""
    scales = {task: metric(own).scale for task, own in rows.groupby("task")}
    return losses.assign(score=losses["loss"] * losses["task"].map(scales).astype("float64"))


def annotate(results: pd.DataFrame) -> pd.DataFrame:
    """Tidy results with `score`, `scored` (it was measured), `top` (at the largest rung), `ranked` (matched and top).

    Also what each is compared with (see `_refer`). A row that failed before its size was known is matched where the
    arm's other rows are.
    """
    rows = tidy(results, RESULTS)
    rows["matched"] = rows["matched"].fillna(rows.groupby("arm")["matched"].transform("first")).fillna(False)
    rows["rung"] = rows["rung"].fillna(rows.groupby("arm")["rung"].transform("first"))
    rows["scored"] = ~rows["status"].isin(UNSCORED)
    rows["top"] = (rows["rung"] == rows.groupby("architecture")["rung"].transform("max")).fillna(False).astype(bool)
    rows["ranked"] = rows["matched"].astype(bool) & rows["top"]
    return score(_refer(rows), rows)


def _refer(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds `headline`, `reference`, `own_shape` and `other_shape`.

    headline: from scratch in the ladder's own shape, one arm per architecture and rung (strategy's defaults, and the
    name that scratch of other shapes adds to). reference: the from-scratch arm of the row's own shape at its rung, or
    without one the headline. own_shape: that is another arm than the headline. other_shape: the reference is known to
    have another shape than the row.
    """
    scratch = rows[(rows["strategy"] == "scratch").fillna(False) & rows["matched"].astype(bool) & rows["rung"].notna()]
    scratch = scratch.assign(plain=scratch["variant"].fillna("") != "").sort_values(["plain", "arm"], kind="stable")
    first = scratch.groupby(["architecture", "rung"])["arm"].transform("first")
    headline = rows.index.isin(scratch.index[scratch["arm"] == first])

    def arms(found: pd.DataFrame, *on: str) -> pd.Series:
        names = found.dropna(subset=[*on]).drop_duplicates([*on])[[*on, "arm"]].rename(columns={"arm": "found"})
        return rows[[*on]].merge(names, on=[*on], how="left")["found"].set_axis(rows.index)

    # Headline rows first: where two arms from scratch share a shape, it is the ladder's.
    order = pd.concat([rows[headline], scratch])
    same, rung = arms(order, *CELL, "rung", "shape"), arms(rows[headline], "architecture", "rung")
    own = (same.notna() & (same != rung)).fillna(True).astype(bool)
    other = same.isna() & rung.notna() & rows["shape"].notna()
    return rows.assign(headline=headline, reference=same.fillna(rung), own_shape=own, other_shape=other)


def full_budget(rows: pd.DataFrame) -> int | None:
    """The largest budget point at matched size, in tokens (a source trained on may get more); None without rows."""
    return None if rows["budget"].dropna().empty else stats.full_budget(rows)


def finals(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at the full budget."""
    return rows[(rows["budget"] == full_budget(rows)).fillna(False)] if len(rows) else rows


def others(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at another size than the ranked ones, at the full budget or beyond it; midway, those grown unmatched."""
    late = (rows["budget"] >= (full_budget(rows) or 0)).fillna(False)
    return rows[~rows["ranked"] & (late | (_midway(rows) & ~rows["matched"].astype(bool)))]


def stops(rows: pd.DataFrame) -> list[tuple[int, int, pd.DataFrame]]:
    """Where grown arms grow further: (rung, budget, matched rows of arms there), smallest first."""
    there = rows[_midway(rows) & rows["matched"].astype(bool)]
    return [
        (int(rows["rung"].iloc[0]), int(rows["budget"].iloc[0]), rows)
        for _, rows in there.groupby(["rung", "budget"], sort=True)
    ]


def _midway(rows: pd.DataFrame) -> pd.Series:
    return (rows["growth_steps"] > 0).fillna(False) & ~rows["top"]


def baseline(rows: pd.DataFrame) -> pd.DataFrame:
    """From-scratch rows in the ladder's own shapes: one arm per architecture and rung."""
    return rows[rows["headline"]]


def references(rows: pd.DataFrame) -> pd.DataFrame:
    """From-scratch rows that others of their shape are compared with, the ladder's own among them."""
    return rows[(rows["arm"] == rows["reference"]).fillna(False)]


def paired(rows: pd.DataFrame) -> pd.DataFrame:
    """Adds `scratch` (the score of the row's reference: same task, seed, budget), `difference`, `ratio`.

    Also `refused`: why rows of matched size must not be compared with it; they have no difference then.
    """
    on = ["task", "reference", "seed", "budget"]
    joined = rows.merge(references(rows)[[*on, "score"]].rename(columns={"score": "scratch"}), on=on, how="left")
    reasons = refusals(rows)
    joined["refused"] = ""
    if reasons:
        keys = joined[["task", "arm"]].itertuples(index=False, name=None)
        joined["refused"] = [reasons.get(key, "") for key in keys]
    joined["scratch"] = joined["scratch"].where(joined["refused"] == "")
    joined["difference"] = joined["score"] - joined["scratch"]
    joined["ratio"] = joined["score"] / joined["scratch"]
    return joined


def refusals(rows: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Why arms of matched size must not be compared with their reference, by task and arm: data, tokens, size."""
    mine = rows[rows["matched"].astype(bool) & (rows["arm"] != rows["reference"]).fillna(False)]
    theirs, on = references(rows).assign(reference=lambda found: found["arm"]), ["task", "reference", "seed", "budget"]
    found = stats.unequal(mine, theirs, on=on)
    return {
        (str(task), str(arm)): stats.refusal(own["said"].tolist())
        for (task, arm), own in found.groupby(["task", "arm"], sort=False)
    }


@dataclass(frozen=True, kw_only=True)
class Points:
    """Cooled budget points of one run, by cost: arrays of equal length."""

    costs: np.ndarray
    scores: np.ndarray
    scored: np.ndarray

    @classmethod
    def of(cls, rows: pd.DataFrame) -> "Points":
        """From columns flops, score and scored, in any order."""
        known = rows[["flops", "score", "scored"]].dropna(subset=["flops"]).sort_values("flops", kind="stable")
        return cls(
            costs=known["flops"].to_numpy("float64"),
            scores=known["score"].to_numpy("float64"),
            scored=known["scored"].to_numpy(bool),
        )


def read_off(flops: float, points: Points) -> tuple[float, str]:
    """Score of budget points at a cost, linear in log FLOPs between neighbours.

    Returns (score, "") or (NaN, why there is none): never an extrapolation.
    """
    costs = points.costs
    if not len(costs):
        return np.nan, "no from-scratch run"
    if np.isnan(flops):
        return np.nan, "cost not known"
    if flops < costs[0] * (1 - 1e-9):
        return np.nan, "cheaper than the first budget point from scratch"
    if flops > costs[-1] * (1 + 1e-9):
        return np.nan, "dearer than the last budget point from scratch"
    right = min(int(np.searchsorted(costs, flops)), len(costs) - 1)
    left = max(right - 1, 0)
    if not (points.scored[left] and points.scored[right]):
        return np.nan, "from scratch did not finish next to this cost"
    return float(np.interp(np.log(flops), np.log(costs), points.scores)), ""


def beside_scratch(rows: pd.DataFrame) -> pd.DataFrame:
    """`paired` rows at the full budget or below the top, with their reference read off at equal FLOPs, by seed.

    Adds `at_flops` (the reference's score at the row's flops), `difference_flops` and `note` (why there is none).
    """
    on = ["task", "reference", "seed"]
    reference = {key: Points.of(own) for key, own in references(rows).groupby(on)}
    nothing = Points(costs=np.empty(0), scores=np.empty(0), scored=np.empty(0, dtype=bool))
    found = paired(rows)
    found = found[(found["budget"] == full_budget(rows)).fillna(False) | ~found["top"]].copy()
    read = [
        (np.nan, "must not be compared") if refused
        else read_off(flops, reference.get(key, nothing)) if scored
        else (np.nan, "a seed did not finish")
        for key, flops, scored, refused in zip(
            found[on].itertuples(index=False, name=None), found["flops"], found["scored"], found["refused"], strict=True
        )
    ]  # fmt: skip
    found["at_flops"] = np.array([score for score, _ in read], dtype="float64")
    found["note"] = [note for _, note in read]
    found["difference_flops"] = found["score"] - found["at_flops"]
    return found


def against_scratch(rows: pd.DataFrame) -> pd.DataFrame:
    """Matched grown rows at the full budget, beside scratch at equal tokens and at equal FLOPs: no row from scratch."""
    last = finals(beside_scratch(rows))
    return last[last["ranked"] & (last["strategy"] != "scratch").fillna(True)]


def contenders(compared: pd.DataFrame) -> pd.DataFrame:
    """Rows of arms that are no controls: whose added capacity can learn."""
    return compared[compared["sterile"].fillna("") == ""]


def ungrown(rows: pd.DataFrame) -> pd.Series:
    """Which rows are of a source trained on without growing."""
    return (rows["strategy"] == "continue").fillna(False).astype(bool)


def grown(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at the full budget of grown arms at matched size."""
    last = finals(rows)
    return last[last["ranked"] & (last["growth_steps"] > 0).fillna(False)]


def rivals(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Where a source trained on ends below the lowest contender of its task and architecture: a record each.

    arm, `best` (that contender) and its `score`; the arm's mean `at_tokens` and, read off at the cost of the
    contender's run of the same seed, `at_flops`: NaN where a seed has none.
    """
    found, last = [], contenders(grown(rows))
    for (task, _), cell in rows.groupby(CELL, sort=False):
        group = last[last.index.isin(cell.index)]
        if not group["scored"].any():
            continue
        best = by_arm(group)[0]
        runs = group[group["arm"] == best["arm"]].set_index("seed")
        for arm, points in cell[ungrown(cell)].groupby("arm", sort=True):
            cooled = {seed: Points.of(own) for seed, own in points.groupby("seed")}
            if not runs["scored"].all() or not set(runs.index) <= set(cooled):
                continue
            ends = points[points["budget"].isin(runs["budget"]) & points["seed"].isin(runs.index)]
            tokens = float(ends["score"].mean()) if len(ends) == len(runs) else np.nan
            flops = float(np.mean([read_off(cost, cooled[seed])[0] for seed, cost in runs["flops"].items()]))
            record = {"task": task, "arm": arm, "best": best["arm"], "score": best["score"]}
            found.append(record | {"at_tokens": tokens, "at_flops": flops})
    return [r for r in found if r["at_tokens"] < r["score"] or r["at_flops"] < r["score"]]


def mean_difference(compared: pd.DataFrame, column: str) -> pd.Series:
    """Mean over seeds of a difference, per arm; NaN where a seed that did not finish has none: it is not dropped."""
    lost = (compared[column].isna() & ~compared["scored"]).groupby(compared["arm"]).any()
    return compared.groupby("arm")[column].mean().where(~lost)


def ordered(mine: pd.DataFrame) -> list[str]:
    """The arms of a plot by what it shows first: those not grown, then the lowest means at the full budget."""
    last = finals(mine)
    means = last.groupby("arm").agg(score=("score", "mean"), strategy=("strategy", "first"))
    means["grown"] = ~means["strategy"].isin(["scratch", "continue"])
    means = means.reindex(unique([*means.index, *mine["arm"].drop_duplicates()]))
    return [str(arm) for arm in means.sort_values(["grown", "score"], kind="stable").index]


SCORES = ("score", "loss", "bits_per_byte", "excess_loss", "bits_per_weight", "scratch", "difference", "ratio")


def by_arm(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """One record per task, architecture, arm and budget, best first.

    Scores are means over all seeds. Other reals are means, and the rest the first, over the seeds that finished, where
    any did: half a path has no cost. With `seeds`, `scores` (in the order of seeds), `unscored` and `status`.
    `difference_flops` is missing where any seed has none, with the reason in `note`.
    """
    if rows.empty:
        return []
    rows = rows.sort_values("seed", kind="stable").reset_index(drop=True)
    key = rows.groupby([*CELL, "arm", "budget"], sort=True, dropna=False).ngroup()
    any_scored = rows["scored"].groupby(key).transform("any")
    own = rows[rows["scored"] | ~any_scored]
    real = [name for name in rows if isinstance(rows[name].dtype, np.dtype) and rows[name].dtype.kind == "f"]
    means = own[[name for name in real if name not in SCORES]].groupby(key[own.index]).mean()
    scores = rows[[name for name in real if name in SCORES]].groupby(key).mean()
    first = own[[name for name in rows if name not in real]].groupby(key[own.index]).first()
    table = pd.concat([means, scores, first], axis=1)[list(rows.columns)].astype(object)
    table = table.where(table.notna(), None)
    bad = rows[~rows["scored"]]
    lost = bad.groupby([key[bad.index], bad["status"]]).size()
    sizes, said = key.value_counts(), dict[int, list[str]]()
    for number, status, n in lost.reset_index().itertuples(index=False, name=None):
        said.setdefault(number, []).append(f"{n} of {sizes[number]} {status}")
    table["seeds"] = rows["seed"].dropna().astype(int).groupby(key).agg(list)
    table["scores"] = rows["score"].groupby(key).agg(list)
    table["unscored"] = (~rows["scored"]).groupby(key).sum()
    table["status"] = [", ".join(said.get(number, [])) or "ok" for number in table.index]
    if "note" in rows:  # half a difference is none
        notes = rows.loc[rows["note"] != "", "note"].groupby(key).first()
        table["note"] = notes.reindex(table.index).fillna("")
        table.loc[table["note"] != "", "difference_flops"] = None
    records: list[dict[Any, Any]] = table.to_dict("records")
    return sorted(records, key=lambda r: (r["score"] is None, r["score"] or 0.0, str(r["arm"])))


def ledger(rows: pd.DataFrame) -> pd.DataFrame:
    """Rows at the full budget with `flops_train`: what is left of flops after cooldown, growth and probes."""
    rows = finals(rows).copy()
    other = rows[["flops_cooldown", "flops_growth", "flops_probe"]].fillna(0.0).sum(axis=1)
    rows["flops_train"] = rows["flops"] - other
    return rows


def spent(stages: pd.DataFrame) -> pd.DataFrame:
    """Per kind of stage: how many, what they cost, and `flops_unshared`: each stage once for every arm that passes it.

    An arm's budget points share its trunk there; summing every point's path instead, as a plan does, gives more.
    """
    stages = stages.assign(flops_unshared=stages["flops"] * stages["arms"].fillna(1).astype("float64"))
    sums = ["tokens", "flops", "flops_eval", "wall_s", "flops_unshared"]
    grouped = stages.groupby("kind", sort=False)
    return grouped[sums].sum().assign(stages=grouped.size()).reset_index()


LISTED = 60
"""How many gaps are listed one by one."""


def gaps(rows: pd.DataFrame, spec: Mapping[str, Any], planned: int | None = None) -> list[str]:
    """What the study asks for and the results lack, in sentences.

    spec: the parsed study file ({} if unknown); planned: how many rows the whole study has.
    """
    if rows.empty:
        return ["No result has been written yet: every table and figure below is empty."]
    found = (
        [f"{len(rows):,} of {planned:,} planned rows {'is' if len(rows) == 1 else 'are'} there."]
        if planned and len(rows) < planned
        else []
    )
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
    found += _lacking_seeds(rows, spec)
    found += [f"{arm} on {task} is not compared with scratch: {why}." for (task, arm), why in refusals(rows).items()]
    for (task, architecture), group in rows.groupby(CELL, sort=True):
        if baseline(group[group["ranked"]]).empty:
            found.append(f"No from-scratch run of {architecture} on {task}: nothing can be compared with it.")
    return found if len(found) <= LISTED else [*found[:LISTED], f"{len(found) - LISTED:,} more are not listed here."]


def _lacking_seeds(rows: pd.DataFrame, spec: Mapping[str, Any]) -> list[str]:
    """Seeds that a whole task lacks, then those that an arm lacks at some budget points."""
    count, first = spec.get("seeds"), spec.get("first_seed") or 0
    asked = {first + i for i in range(count)} if isinstance(count, int) else {int(s) for s in rows["seed"].dropna()}
    found = []
    for task, of_task in rows.groupby("task", sort=True):
        present = {int(seed) for seed in of_task["seed"].dropna()}
        if asked - present:
            found.append(f"{task} lacks {_seeds(asked - present)}.")
        complete = of_task.groupby(["arm", "budget"])["seed"].nunique() >= len(asked & present)
        partial = complete.index[~complete].get_level_values("arm").unique()
        for arm, of_arm in of_task[of_task["arm"].isin(partial)].groupby("arm", sort=True):
            lacking: dict[str, list[str]] = {}
            for budget, group in of_arm.groupby("budget", sort=True):
                if gone := (asked & present) - {int(seed) for seed in group["seed"].dropna()}:
                    lacking.setdefault(_seeds(gone), []).append(f"{budget:,}")
            found += [
                f"{arm} on {task} lacks {seeds} at {words.listing(budgets)} tokens."
                for seeds, budgets in lacking.items()
            ]
    return found


def _seeds(seeds: Iterable[int]) -> str:
    listed = sorted(seeds)
    return f"seed{'s' * (len(listed) > 1)} {words.listing([str(seed) for seed in listed])}"


def unique(values: Iterable[Any]) -> list[str]:
    """Distinct values in the order of the tables, which is the study's."""
    return list(dict.fromkeys(str(value) for value in values if not pd.isna(value)))
