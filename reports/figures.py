"""The figures: each one function of result tables, returning an inline SVG with its words and its data.

Rows are `summary.annotate`d results, curves `summary.score`d; how anything is drawn stands in drawing.py.
"""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from growbench import stats
from growbench.reports import drawing, saved, summary, words
from growbench.reports.drawing import INK, MUTED, Figure, Look

End = tuple[Look, float, float, str]

# ------------------------------------------------------------------------------------------------ what is drawn


def growth_events(curves: pd.DataFrame) -> pd.DataFrame:
    """The last trunk row before each growth (a step up of the rung), with `loss_after` of the row behind it."""
    trunk = curves[curves["kind"] == "train"].sort_values(["arm", "task", "seed", "tokens", "rung"], kind="stable")
    keys = trunk.groupby(["arm", "task", "seed"], sort=False)
    after = keys[["rung", "loss"]].shift(-1)
    grown = (after["rung"] > trunk["rung"]).fillna(False)
    return trunk.assign(loss_after=after["loss"])[grown.astype(bool)]


def _trunk(curves: pd.DataFrame, cost: str) -> pd.DataFrame:
    """Trunk curves averaged over the seeds that got there: columns arm, rung, tokens, x, score, seeds."""
    rows = curves[(curves["kind"] == "train") & curves["score"].notna() & curves[cost].notna()]
    grouped = rows.groupby(["arm", "rung", "tokens"], sort=True)
    return grouped.agg(x=(cost, "mean"), score=("score", "mean"), seeds=("seed", "nunique")).reset_index()


def _budget_points(points: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds at each budget point: columns arm, budget, x, score, seeds, unscored, and low, high.

    low, high: the 95 % t interval of the mean, where as many seeds as a test needs all finished.
    """
    grouped = points.assign(unscored=~points["scored"]).groupby(["arm", "budget"], sort=True)
    means = grouped.agg(
        x=("x", "mean"), score=("score", "mean"), seeds=("seed", "nunique"), unscored=("unscored", "sum")
    ).reset_index()
    spread = grouped["score"].std().to_numpy() / np.sqrt(means["seeds"])
    tested = (means["seeds"] >= stats.SEEDS) & (means["unscored"] == 0)
    moments = pd.DataFrame({"effect": means["score"], "se": spread.where(tested), "df": means["seeds"] - 1.0})
    return means.assign(**stats.superiority(moments)[["low", "high"]])


def _paths(curves: pd.DataFrame, mine: pd.DataFrame, view: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Trunks of a task, and where they grow: none in the view ladder, whose cost exists at budget points only."""
    paths = curves[curves["arm"].isin(mine["arm"].unique())]
    source = summary.finals(mine).groupby("arm")["flops_source"].mean()
    free = paths["arm"].map(source).astype("float64").fillna(0.0) if view == "continued" else 0.0
    paths = paths.assign(x=paths["flops"] - free)
    nothing = paths.iloc[:0]
    trunk = _trunk(nothing if view == "ladder" else paths[paths["x"] > 0], "x")
    return trunk, growth_events(paths) if view == "total" else nothing


# ------------------------------------------------------------------------------------------------ loss against compute

TRUNKS = {
    "total": "The thin lines are the trunks at constant rate, mean over the seeds that got there; the dashed upright "
    "marks growth.",
    "continued": "The thin lines are the trunks after the last growth. Growth itself lies at cost 0, outside a "
    "logarithmic axis.",
    "ladder": "There are no trunks in this view: the ladder's cost exists at budget points only.",
}
UNGROWN = (
    " The grey line is no arm at matched size: continue, the source trained on without growing, cooled down at the "
    "same budget points and where its cost meets that of the grown arms."
)


def loss_vs_compute(
    rows: pd.DataFrame,
    curves: pd.DataFrame,
    look: dict[str, Look],
    *,
    task: str,
    architecture: str,
    view: str,
    most: int = drawing.NAMED,
    name: str = "cost",
) -> Figure:
    """Loss against cost (log) at matched size: finished losses at the budget points, the trunk behind, growth marked.

    view is a key of `summary.VIEWS`; total alone also holds the source trained on, which has no part in the others.
    most: how many arms are drawn with their names; name: what the figure's identifier begins with.
    """
    cost, counts = summary.VIEWS[view]
    mine = rows[(rows["task"] == task) & (rows["architecture"] == architecture)]
    mine = mine[mine["ranked"] | (summary.ungrown(mine) & (view == "total"))]
    shown = drawing.Shown.of(mine, mine["arm"].drop_duplicates(), most)
    mine = mine[mine["arm"].isin(shown.arms)]
    beside = summary.ungrown(mine)
    points = mine.assign(x=mine[cost].where(mine[cost] > 0)).sort_values(["arm", "budget", "seed"])
    means, (trunk, growth) = _budget_points(points), _paths(curves, mine, view)
    metric = summary.metric(rows[rows["task"] == task])
    canvas, axes = drawing.plot(len(shown.named))
    ends, law = _cost_lines(axes, look, shown, metric, points, means, trunk, growth), ""
    if ends is None:
        drawing.empty(axes, "no finished run at matched size")
    else:
        law = _law(axes, rows[(rows["task"] == task) & (rows["architecture"] == architecture)], cost)
    axes.set_xlabel(f"cost in FLOPs, view {view} (log scale)")
    axes.set_ylabel(f"validation loss ({metric.unit})")
    bars = " Uprights are 95 % intervals of the mean." if means["low"].notna().any() else ""
    caption = (
        f"Cost view {view}: {counts}. Large markers are losses of finished runs, cooled down at each budget point, "
        f"mean over seeds; small ones the seeds.{bars} Lower and further left is better. {TRUNKS[view]} Runs without a "
        "finished loss count as the uniform predictor: an arm with one is drawn at the upper edge if its mean is above."
    )
    if most < drawing.NAMED:
        caption = f"Cost counts {counts}. Large markers: finished runs, mean over seeds.{bars} Further left is cheaper."
    headings = {"x": f"cost, {view} (FLOPs)", "score": f"mean loss ({metric.unit})", "budget": "budget (tokens)"}
    return drawing.figure(
        canvas,
        name=drawing.slug(name, view, task, architecture),
        title=f"Loss against compute, {drawing.short(architecture)} on {drawing.short(task)}, view {view}",
        reads=_lowest(means, look, metric),
        caption=caption + law + (UNGROWN if beside.any() else "") + shown.said + _limit(metric),
        key=drawing.key(ends or []),
        table=means.dropna(axis=1, how="all").rename(columns=headings | {"low": "95 % from", "high": "95 % to"}),
    )


def _cost_lines(
    axes: Axes,
    look: dict[str, Look],
    shown: drawing.Shown,
    metric: summary.Metric,
    points: pd.DataFrame,
    means: pd.DataFrame,
    trunk: pd.DataFrame,
    growth: pd.DataFrame,
) -> list[End] | None:
    """Every arm's line, and the marks of growth; where the lines end, or None where there is nothing to draw."""
    drawn = points[points["scored"] & points["x"].notna()]
    across, up = drawing.limits(np.log10([*drawn["x"], *growth["x"]]), 0.06), drawing.limits(drawn["score"], 0.1)
    if not (across and up):
        return None
    up = (up[0], up[1] + 0.25 * (up[1] - up[0]))
    drawing.decades(axes, 10 ** across[0], 10 ** across[1])
    axes.set_ylim(*up)
    for x in growth.drop_duplicates(["stage", "tokens", "seed"]).groupby("tokens")["x"].mean():
        drawing.mark_growth(axes, x)
    drawing.mark_limit(axes, metric, up)
    trunks, seeds, ends = dict(tuple(trunk.groupby("arm"))), dict(tuple(drawn.groupby("arm"))), list[End]()
    for arm, mean in means.dropna(subset=["x"]).groupby("arm", sort=True):
        mean = mean.assign(y=mean["score"].clip(upper=up[1]))
        if arm in shown.named:
            behind = trunks.get(arm, trunk.iloc[:0]), seeds.get(arm, drawn.iloc[:0])
            ends.append(_cost_line(axes, look[str(arm)], mean, *behind))
        else:
            _faint_line(axes, look[str(arm)], mean["x"], mean["y"])
    drawing.labels(axes, ends, len(shown.faint))
    return ends


def _lowest(means: pd.DataFrame, look: dict[str, Look], metric: summary.Metric) -> str:
    """How many arms there are, and where the lowest point lies."""
    best = means[means["x"].notna() & (means["unscored"] < means["seeds"])].sort_values("score").head(1)
    if best.empty:
        return "Nothing could be drawn."
    return (
        f"{words.plural(means['arm'].nunique(), 'arm')}. The lowest point is {look[best['arm'].iloc[0]].label} with "
        f"{words.loss(best['score'].iloc[0])} {metric.spoken} at {words.flops(best['x'].iloc[0])}."
    )


def _cost_line(axes: Axes, look: Look, mean: pd.DataFrame, trunk: pd.DataFrame, seeds: pd.DataFrame) -> End:
    """One arm: its trunk, its seeds, and its means (x, y within the plot); returns where its line ends."""
    gid = f"arm-{look.index}"
    axes.plot(trunk["x"], trunk["score"], lw=0.7, alpha=0.45, gid=f"{gid}-trunk", **look.line)
    axes.plot(seeds["x"], seeds["score"], ms=2.2, alpha=0.55, gid=f"{gid}-seeds", **look.point)
    axes.vlines(mean["x"], mean["low"], mean["high"], color=look.colour, lw=1.3, alpha=0.7, gid=f"{gid}-interval")
    axes.plot(mean["x"], mean["y"], lw=1.4, gid=f"{gid}-mean", **look.line)
    axes.plot(mean["x"], mean["y"], ms=6, clip_on=False, gid=f"{gid}-points", **look.point)
    last = mean.iloc[-1]
    off = f" ({int(last['unscored'])}/{int(last['seeds'])} unfinished)" if last["unscored"] else ""
    return look, float(last["x"]), float(last["y"]), look.label + off


def _law(axes: Axes, rows: pd.DataFrame, cost: str) -> str:
    """Scratch's power law as a dashed line, thinner where it is extrapolated; what the caption says of it."""
    fitted = saved.laws(rows[rows["ranked"] & rows["headline"]], cost=cost)
    if fitted.empty:
        return ""
    fit = fitted.iloc[0]
    if not fit["converged"]:
        return f" No power law of scratch is drawn: {fit['why']}."
    low, high = axes.get_xlim()
    line = stats.predict(fit, np.geomspace(max(low, 0.8 * fit["cost_low"]), high, 60).tolist())
    axes.plot(line["cost"], line["loss"], color=MUTED, lw=0.9, ls=(0, (4, 3)), zorder=1.4)
    return " The grey dashed line is a power law through scratch’s means, for the eye."


def _faint_line(axes: Axes, look: Look, x: pd.Series, y: pd.Series) -> None:
    """One arm without a name, behind the others."""
    style = look.point | look.line
    axes.plot(x, y, lw=0.8, alpha=0.3, ms=3, markevery=[-1], zorder=1.5, gid=f"arm-{look.index}-faint", **style)


def _limit(metric: summary.Metric) -> str:
    """What no model can go below, where it is known."""
    if metric.limit is None:
        return ""
    return (
        f" No model can go below the source’s entropy rate, {words.loss(metric.limit)} {metric.spoken}, but by the "
        "sampling error of the validation data; it is drawn where it lies within the axis."
    )


# ------------------------------------------------------------------------------------------------ loss against tokens


def loss_vs_tokens(
    rows: pd.DataFrame, curves: pd.DataFrame, look: dict[str, Look], *, task: str, architecture: str
) -> Figure:
    """Trunk loss against tokens, mean over seeds, for the arms of an architecture; growth as uprights.

    curves: those of the task.
    """
    mine = rows[(rows["task"] == task) & (rows["architecture"] == architecture)]
    metric, full = summary.metric(rows[rows["task"] == task]), summary.full_budget(mine) or 0
    paths = curves[curves["arm"].isin(mine["arm"].unique()) & (curves["tokens"] <= full).fillna(False)]
    shown = drawing.Shown.of(mine, paths["arm"].drop_duplicates())
    paths = paths[paths["arm"].isin(shown.arms)]
    cooled = paths[(paths["kind"] == "cooldown") & (paths["budget"] == full).fillna(False)]
    cooled = cooled.groupby("arm")[["tokens", "score"]].mean().dropna()
    trunk, growth = _trunk(paths, "tokens"), growth_events(paths)
    canvas, axes = drawing.plot(len(shown.named) + 1)
    late = trunk[trunk["tokens"] >= 0.25 * trunk["tokens"].max()] if len(trunk) else trunk
    up, ends = drawing.limits([*late["score"], *cooled["score"]], 0.06), list[End]()
    if up:
        axes.set_xlim(0, full * 1.02)
        axes.set_ylim(*up)
        for tokens in sorted(growth["tokens"].unique()):
            drawing.mark_growth(axes, tokens)
        drawing.mark_limit(axes, metric, up)
        ends = _token_lines(axes, look, shown, paths, trunk, cooled, up)
        axes.xaxis.set_major_formatter(FuncFormatter(drawing.si))
    else:
        drawing.empty(axes, "no curve has been written yet")
    axes.set_xlabel("training tokens along the path, source included")
    axes.set_ylabel(f"validation loss ({metric.unit})")

    table = trunk.pivot_table(index="tokens", columns="arm", values="score", aggfunc="last").reset_index()
    table.columns = [str(c) if c == "tokens" else f"{c} ({metric.unit})" for c in table.columns]
    events = [words.count(tokens) for tokens in sorted(growth["tokens"].unique())]
    grown = f"Growth at {words.listing(events)} tokens." if events else "No growth."
    return drawing.figure(
        canvas,
        name=drawing.slug("tokens", task, architecture),
        title=f"Loss against tokens, {drawing.short(architecture)} on {drawing.short(task)}",
        reads=f"{words.plural(trunk['arm'].nunique(), 'trunk curve')}. {grown}",
        caption="Trunks at constant learning rate, mean over the seeds that got there; the thin last stretch is the "
        "cooldown to the full budget. What several arms share is drawn once, as a broad line. The axis is cut where "
        "the first quarter of training lies above it." + shown.said + _limit(metric),
        key=drawing.key(ends),
        table=table,
    )


def _token_lines(
    axes: Axes,
    look: dict[str, Look],
    shown: drawing.Shown,
    paths: pd.DataFrame,
    trunk: pd.DataFrame,
    cooled: pd.DataFrame,
    up: tuple[float, float],
) -> list[End]:
    """What arms share, once, and every arm's own part; where the lines end."""
    sharing = paths.groupby("stage")["arm"].nunique()
    common = paths["stage"].isin(sharing[sharing > 1].index)
    own, ends = _trunk(paths[~common], "tokens"), list[End]()
    _shared_line(axes, paths[common], up)
    for arm, line in trunk.groupby("arm", sort=True):
        alone = own[own["arm"] == arm]
        before = line.iloc[: len(line) - len(alone)].tail(1)  # an arm's own stages are its last
        path = pd.concat([before, alone]) if len(alone) else line
        if arm not in shown.named:
            _faint_line(axes, look[str(arm)], path["tokens"], path["score"])
            continue
        look_, x, y, label = _token_line(axes, look[str(arm)], path, cooled[cooled.index == arm])
        ends.append((look_, x, float(np.clip(y, *up)), label))
    drawing.labels(axes, ends, len(shown.faint))
    return ends


def _shared_line(axes: Axes, paths: pd.DataFrame, up: tuple[float, float]) -> None:
    """What several arms share, once, named where it enters the plot."""
    pooled = _trunk(paths.drop_duplicates(["stage", "tokens"]).assign(arm="shared"), "tokens")
    inside = pooled[pooled["score"] <= up[1] - 0.04 * (up[1] - up[0])]
    axes.plot(pooled["tokens"], pooled["score"], color=INK, lw=2.4, alpha=0.35)
    if len(inside):
        place = inside.iloc[0]
        drawing.remark(axes, "shared source", (place["tokens"], place["score"]), (6, 1))


def _token_line(axes: Axes, look: Look, path: pd.DataFrame, cooled: pd.DataFrame) -> End:
    """One arm: its own trunk and the cooldown to the full budget; returns where its line ends."""
    gid = f"arm-{look.index}"
    axes.plot(path["tokens"], path["score"], lw=1.3, gid=f"{gid}-trunk", **look.line)
    x, y = float(path["tokens"].iloc[-1]), float(path["score"].iloc[-1])
    for x_end, y_end in cooled[["tokens", "score"]].astype("float64").itertuples(index=False, name=None):
        axes.plot([x, x_end], [y, y_end], lw=0.8, alpha=0.6, gid=f"{gid}-cool", **look.line)
        x, y = x_end, y_end
    axes.plot([x], [y], ms=5, gid=f"{gid}-end", **look.point)
    return look, x, y, look.label


# ------------------------------------------------------------------------------------------------ paired differences

SIDES = (("difference", "at equal tokens"), ("difference_flops", "at equal FLOPs, interpolated"))


def differences(rows: pd.DataFrame, look: dict[str, Look], *, task: str, architecture: str) -> Figure:
    """Paired differences to scratch at the full budget, a point per seed: at equal tokens, and at equal FLOPs."""
    mine = rows[rows["task"] == task]
    metric, compared = summary.metric(mine), summary.against_scratch(mine)
    compared = compared[compared["architecture"] == architecture]
    order = summary.mean_difference(compared, "difference").sort_values(na_position="last")
    out = max(0, len(order) - drawing.ROWS)
    order = order.iloc[: drawing.ROWS]
    compared = compared[compared["arm"].isin(order.index)]
    others = [look[arm].label for arm in summary.unique(compared.loc[compared["other_shape"], "arm"])]
    apart = f", but beside {words.listing(others)}, for whose shape there is no scratch" if others else ""

    canvas, plots = drawing.canvas(1.05 + 0.27 * max(len(order), 3), (0.36, 0.295), (0.685, 0.295))
    means = {column: summary.mean_difference(compared, column) for column, _ in SIDES}
    by_arm = dict(tuple(compared.groupby("arm")))
    scored, bars = compared[compared["scored"]], {c: _intervals(compared, c).assign(mean=means[c]) for c, _ in SIDES}
    ends = [end for found in bars.values() for end in (*found["low"], *found["high"])]
    across = drawing.limits([*scored["difference"], *scored["difference_flops"], *ends, 0.0], 0.1)
    for axes, (column, heading) in zip(plots, SIDES, strict=True):
        axes.set_title(heading, loc="left", color=INK)
        if scored[column].notna().any() and across:
            axes.set_xlim(*across)
            axes.axvline(0, color=INK, lw=1)
            for y, arm in enumerate(order.index):
                _difference_row(axes, look[str(arm)], by_arm[arm], column, y, bars[column].loc[arm])
            axes.xaxis.set_major_locator(MaxNLocator(4))
        else:
            drawing.empty(axes, "nothing to compare")
        axes.set_ylim(len(order) - 0.4, -0.6)
        axes.set_yticks(range(len(order)), [""] * len(order))
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"difference, {metric.unit}")
    plots[0].set_yticks(range(len(order)), [look[str(arm)].label for arm in order.index])

    known = order.dropna()
    reads = "Nothing could be compared." if known.empty else (
        f"At equal tokens mean differences run from {words.signed(known.iloc[0])} ({look[known.index[0]].label}) to "
        f"{words.signed(known.iloc[-1])} ({look[known.index[-1]].label}) {metric.spoken}."
    )  # fmt: skip
    left = f" Of {len(order) + out:,} arms the {len(order)} lowest at equal tokens are drawn." if out else ""
    told = "Points and means" + ("; the line is the 95 % t interval of the mean." if np.isfinite(ends).any() else ".")
    return drawing.figure(
        canvas,
        name=drawing.slug("paired", task, architecture),
        title=f"Difference to scratch, {drawing.short(architecture)} on {drawing.short(task)}",
        reads=reads,
        caption="Loss of an arm minus scratch's, seed by seed, at the full budget, on one scale; the bar is the mean. "
        f"Scratch has the arm's own shape{apart}. Left of zero the arm ends lower than scratch. At equal FLOPs, "
        "scratch's loss is interpolated, linearly in the logarithm of FLOPs, between its own cooled budget points on "
        f"either side of the arm's cost. {told} Tests "
        "are in the tables. Seeds without a finished loss are not "
        f"drawn, but count in the mean at equal tokens; at equal FLOPs an arm with one has no mean.{left}",
        table=_difference_table(compared, metric.unit),
    )


def _intervals(compared: pd.DataFrame, column: str) -> pd.DataFrame:
    """Columns low, high: the t interval of each arm's mean difference, by arm; NaN where there is none."""
    lost = (~compared["scored"]).astype(int)
    found = compared[["arm", "seed"]].assign(difference=compared[column].to_numpy("float64"), unscored=lost)
    found = stats.contrast(found, by=("arm",)).set_index("arm")
    found.loc[found["missing"] != "", ["low", "high"]] = np.nan
    return found[["low", "high"]]


def _difference_row(
    axes: Axes, look: Look, compared: pd.DataFrame, column: str, y: int, found: "pd.Series[float]"
) -> None:
    """One arm: its finished seeds, the mean of all as a bar with its interval, or why there is none."""
    gid, right = f"arm-{look.index}-{column}", axes.get_xlim()[1]
    seeds, mean, interval = compared.loc[compared["scored"], column], found["mean"], found[["low", "high"]]
    axes.plot(seeds, [y] * len(seeds), ms=5, alpha=0.6, gid=f"{gid}-seeds", **look.point)
    if np.isfinite(interval).all():
        axes.plot(interval, [y + 0.3] * 2, lw=1.2, color=look.colour, gid=f"{gid}-interval")
    if axes.get_xlim()[0] <= mean <= right:
        axes.plot([mean, mean], [y - 0.32, y + 0.32], lw=1.6, color=look.colour, gid=f"{gid}-mean")
    elif mean > right or not compared["scored"].all():
        why = "mean off scale ▸" if mean > right else "a seed has no value"
        drawing.remark(axes, why, (1.0, y), (0, 2), xycoords=("axes fraction", "data"), ha="right", va="bottom")


def _difference_table(compared: pd.DataFrame, unit: str) -> pd.DataFrame:
    shown = {
        "arm": "arm",
        "seed": "seed",
        "status": "status",
        "score": f"loss ({unit})",
        "reference": "scratch arm",
        "scratch": f"scratch at equal tokens ({unit})",
        "difference": f"difference, equal tokens ({unit})",
        "at_flops": f"scratch at equal FLOPs ({unit})",
        "difference_flops": f"difference, equal FLOPs ({unit})",
        "note": "why none",
    }
    return compared[list(shown)].rename(columns=shown)


def draw(
    rows: pd.DataFrame, curves: pd.DataFrame, *, task: str, architecture: str, look: dict[str, Look]
) -> list[Figure]:
    """Every figure of one task and architecture: the three cost views, tokens, differences."""
    curves = curves[(curves["task"] == task).fillna(False)]
    with mpl.rc_context(drawing.style()):
        return [
            *(
                loss_vs_compute(rows, curves, look, view=view, task=task, architecture=architecture)
                for view in summary.VIEWS
            ),
            loss_vs_tokens(rows, curves, look, task=task, architecture=architecture),
            differences(rows, look, task=task, architecture=architecture),
        ]
