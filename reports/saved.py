"""Compute saved: what an arm spends to reach a loss, over what scratch of its shape spends, along a curve of losses.

One idea: the curve and its mean are those of `growbench.stats`, over the losses on which the claims are decided; a loss
that one side never reaches gives a bound and not a ratio. Power laws are drawn for the eye, and decide nothing.
"""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from growbench import comparison, stats
from growbench.reports import drawing, summary, tables, words
from growbench.reports.drawing import INK, Figure, Look
from growbench.reports.tables import Cell, Head, Record, Spec, Table

POINTS = 25
READ = [
    "arm",
    "status",
    "loss",
    *stats.KEY,
    *stats.EQUAL,
    *(column for column, _ in summary.VIEWS.values()),
    "reference",
]
"""What is read of results: a tenth of the table, and of the time."""
COLUMNS = ["arm", "reference", "view", "task", "seed", "target", "log_ratio", "bound"]


def curves(rows: pd.DataFrame, task: str) -> tuple[pd.DataFrame, pd.DataFrame, list[str]]:
    """(curves, means, notes): `stats.compute_saved` of grown arms by view, its contrast, why some have none.

    Of each architecture's arms those that its figures name.
    """
    mine = rows[rows["ranked"] & (rows["task"] == task)]
    grown = mine[(mine["growth_steps"] > 0).fillna(False).astype(bool) & (mine["sterile"].fillna("") == "")]
    kept = [
        arm
        for _, own in mine.groupby("architecture", sort=False)
        for arm in drawing.Shown.of(own, own["arm"].drop_duplicates()).named
    ]
    out = grown.loc[~grown["arm"].isin(kept), "arm"].nunique()
    grown = grown[grown["arm"].isin(kept)]
    read = mine.loc[mine["arm"].isin([*kept, *grown["reference"].dropna()]), READ]
    arms = dict(tuple(read.groupby("arm")))
    found, lacking = list[pd.DataFrame](), dict[tuple[str, str], list[str]]()
    differences = []
    for arm in summary.unique(grown["arm"]):
        own = arms[arm]
        reference = own["reference"].iloc[0]
        theirs = arms.get(reference, mine.iloc[:0]) if isinstance(reference, str) else mine.iloc[:0]
        for view, (column, _) in summary.VIEWS.items():
            curve, why = _curve(rows, own, theirs, column)
            if curve is None:
                lacking.setdefault((view, why), []).append(arm)
                continue
            usable = curve["in_range"] | (not curve["in_range"].any())  # as `stats.saved_by_seed` has it
            of = {"arm": arm, "reference": reference, "view": view}
            found.append(curve[usable].assign(**of)[COLUMNS])
            points = curve.loc[usable, "target"].nunique()
            differences.append(stats.saved_by_seed(curve).assign(arm=arm, view=view, points=points))
    means = pd.DataFrame()
    if differences:
        every = pd.concat(differences, ignore_index=True)
        means = stats.contrast(every, by=("arm", "view", "points"))
    notes = [f"In the view {view}, {why}: {words.listing(arms)}." for (view, why), arms in lacking.items()]
    if out:
        notes.append(f"Left out: {words.plural(out, 'arm')} that the figures do not name.")
    return pd.concat(found) if found else pd.DataFrame(columns=COLUMNS), means, notes


def _curve(rows: pd.DataFrame, own: pd.DataFrame, theirs: pd.DataFrame, column: str) -> tuple[pd.DataFrame | None, str]:
    """The curve over the losses that scratch passes up to the arm's cost, as for the claims; or why there is none."""
    ends = comparison.passed(theirs, own, column) if len(theirs) else None
    if not ends or ends[0] <= ends[1]:
        return None, "scratch has no budget points below the arm’s cost"
    targets = {str(own["task"].iloc[0]): np.geomspace(*ends, POINTS).tolist()}
    try:
        return stats.compute_saved(rows, own, theirs, cost=column, targets=targets), ""
    except ValueError as error:
        return None, str(error)


def table(means: pd.DataFrame, task: str) -> Table:
    """A row per arm: the mean ratio of costs in each view."""
    by_arm = {arm: own.set_index("view").to_dict("index") for arm, own in means.groupby("arm", sort=False)}

    def spec(view: str) -> Spec:
        def cell(record: Record) -> Cell:
            row = by_arm[record["arm"]].get(view)
            if row is None:
                return Cell(text=words.DASH)
            shown = tables.formatted(words.change, row["effect"])
            bound = f"{row['bound']} this" if row["bound"] in ("at least", "at most") else ""
            return tables.under(shown, bound or words.interval(row["low"], row["high"]) or _short(row))

        return Head(text=f"cost, {view}", unit="against scratch", number=True), cell

    return tables.make(
        [{"arm": arm} for arm in by_arm],
        [(Head(text="arm"), lambda record: Cell(text=tables.breaking(record["arm"]), value=record["arm"]))]
        + [spec(view) for view in summary.VIEWS],
        lambda record: "",
        name=f"saved-{drawing.slug(task)}",
        title=f"Cost to reach a loss, {task}",
        caption=f"Cost to reach a loss on {task}, against scratch of the arm’s shape: mean log ratio over up to "
        f"{POINTS} losses, without those that the arm is below at its first point unless it is below all, as a change "
        "in percent, with its 95 % interval over seeds. Below zero the arm is cheaper. Where an arm or scratch never "
        "reaches a loss the mean is a bound, and has no interval.",
        sortable=True,
    )


def _short(row: Mapping[Any, Any]) -> str:
    return "bounds on both sides" if row["bound"] else str(row["why"])


# ------------------------------------------------------------------------------------------------ figure


def figure(
    found: pd.DataFrame, rows: pd.DataFrame, look: Mapping[str, Look], *, task: str, architecture: str, view: str
) -> Figure | None:
    """Ratio of costs against the loss to reach, mean over seeds, bounds hollow; None where no arm has a curve."""
    own = rows[(rows["task"] == task) & (rows["architecture"] == architecture)]
    metric = summary.metric(rows[rows["task"] == task])
    mine = found[(found["view"] == view) & found["arm"].isin(own["arm"])]
    mine = mine.dropna(subset=["log_ratio"])
    if mine.empty:
        return None
    mine = mine.assign(target=mine["target"] * metric.scale, exact=mine["bound"] == "")
    means = mine.groupby(["arm", "target"], sort=False)
    points = means.agg(log_ratio=("log_ratio", "mean"), exact=("exact", "all"), seeds=("seed", "nunique")).reset_index()
    points["change"] = 100 * np.expm1(points["log_ratio"])
    with mpl.rc_context(drawing.style()):
        canvas, axes = drawing.plot(points["arm"].nunique())
        ends = _lines(axes, points, look)
        axes.axhline(0, color=INK, lw=1)
        axes.invert_xaxis()
        axes.set_xlabel(f"loss to reach ({metric.unit}), harder to the right")
        axes.set_ylabel("cost against scratch, %")
        drawing.labels(axes, ends)
        lowest = points.sort_values("change").iloc[0]
        return drawing.figure(
            canvas,
            name=drawing.slug("saved", view, task, architecture),
            title=f"Compute saved, {drawing.short(architecture)} on {drawing.short(task)}, view {view}",
            reads=f"The lowest ratio is {words.change(lowest['log_ratio'])}, of {lowest['arm']} at a loss of "
            f"{words.loss(lowest['target'])} {metric.spoken}.",
            caption=f"Cost (view {view}) at which an arm reaches a loss, against the cost at which scratch of its "
            "shape does, mean over seeds; below zero the arm is cheaper. Read off between cooled budget points, never "
            "beyond. Hollow: a bound, since in some seed the arm does not come to that loss (it costs at least this) "
            "or is below it at its first point (at most this).",
            key=drawing.key(ends),
            table=points.drop(columns="log_ratio").rename(columns={"target": f"loss ({metric.unit})", "change": "%"}),
        )


def _lines(axes: Axes, points: pd.DataFrame, look: Mapping[str, Look]) -> list[tuple[Look, float, float, str]]:
    """A line per arm, its exact points filled; returns where they end."""
    ends: list[tuple[Look, float, float, str]] = []
    up = drawing.limits([0.0, *points["change"]], 0.06)
    if up:
        axes.set_ylim(*up)
    for arm, line in points.groupby("arm", sort=False):
        one, line = look[str(arm)], line.sort_values("target", ascending=False)
        gid = f"arm-{one.index}-saved"
        axes.plot(line["target"], line["change"], lw=1.2, gid=gid, **one.line)
        hollow: dict[str, Any] = {"markerfacecolor": "none", "markeredgecolor": one.colour, "markeredgewidth": 0.8}
        for exact, how in ((True, {}), (False, hollow)):
            some = line[line["exact"] == exact]
            axes.plot(some["target"], some["change"], ms=3, gid=f"{gid}-{exact}", **one.point | how)
        ends.append((one, float(line["target"].iloc[-1]), float(line["change"].iloc[-1]), one.label))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:+.0f}".replace("-", "−") if value else "0"))
    return ends


# ------------------------------------------------------------------------------------------------ power laws


def laws(rows: pd.DataFrame, *, cost: str = "flops") -> pd.DataFrame:
    """`stats.power_law` through seed means of the arms that start from scratch or are trained on, in their metric."""
    control = rows["strategy"].isin(["scratch", "continue"]).fillna(False) & (rows["headline"] | summary.ungrown(rows))
    means = rows[control & rows["scored"]].groupby(["task", "architecture", "arm", "budget"], sort=False)
    points = means.agg(**{cost: (cost, "mean"), "score": ("score", "mean")}).reset_index()
    if points.empty:
        return pd.DataFrame()
    return stats.power_law(points, by=("task", "architecture", "arm"), cost=cost, metric="score")


def fits(rows: pd.DataFrame, task: str) -> Table:
    """The power laws of a task, and where each crosses scratch of the target size."""
    mine = rows[rows["task"] == task]
    metric, fitted = summary.metric(mine), laws(mine)
    top = set(summary.baseline(mine[mine["ranked"]])["arm"])
    records = []
    for record in fitted.to_dict("records") if len(fitted) else ():
        large = fitted[fitted["arm"].isin(top) & (fitted["architecture"] == record["architecture"])]
        crossed: dict[Any, Any] = {"cost": np.nan, "why": "" if record["arm"] in top else "no scratch to cross"}
        if record["arm"] not in top and len(large):
            crossed = stats.crossing(large.iloc[0], pd.Series(record)).iloc[0].to_dict()
        records.append({**record, "crossed": crossed})
    specs: list[Spec] = [
        (Head(text="arm"), lambda record: Cell(text=tables.breaking(record["arm"]), value=record["arm"])),
        (Head(text="budget points", number=True), lambda record: tables.plain(record["n"])),
        (Head(text="limit", unit=metric.unit, number=True), _estimate("limit", 3)),
        (Head(text="exponent", number=True), _estimate("exponent", 2)),
        (Head(text="crosses scratch at", unit="for the eye", number=True), _crossed),
    ]
    return tables.make(
        records,
        specs,
        lambda record: "" if record["converged"] else "part",
        name=f"laws-{drawing.slug(task)}",
        title=f"Power laws, {task}",
        caption="loss = limit + scale × cost^−exponent through the means of cooled budget points, total cost, with "
        "95 % intervals. A fit that did not converge is not drawn. Crossings with scratch of the target size are "
        "extrapolated where so marked, and decide nothing.",
    )


def _estimate(name: str, digits: int) -> Any:
    def cell(record: Record) -> Cell:
        if not record["converged"]:
            return tables.under(Cell(text=words.DASH), f"not drawn: {record['why']}" if name == "limit" else "")
        ends = [words.fixed(record[f"{name}_{end}"], digits) for end in ("low", "high")]
        return tables.under(tables.formatted(lambda v: words.fixed(v, digits), record[name]), " to ".join(ends))

    return cell


def _crossed(record: Record) -> Cell:
    found = record["crossed"]
    if words.missing(found["cost"]):
        return tables.under(Cell(text=words.DASH), str(found["why"]))
    high = words.flops(found["high"]) if np.isfinite(found["high"]) else "never"
    flag = ", extrapolated" if found["extrapolated"] else ""
    below = f"{words.flops(found['low'])} to {high}{flag}; {words.percent(found['share'])} of draws cross"
    return tables.under(tables.formatted(words.flops, found["cost"]), below)
