"""Figures across arms and tasks: the forest of effects at matched size, which arms are tied, and what paths cost.

One idea: a row is an arm. Statistics are those of contrasts.py and `growbench.stats`; nothing is tested here.
"""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from growbench import stats
from growbench.reports import contrasts, drawing, summary, words
from growbench.reports.drawing import FAINT, INK, MUTED, PALETTE, Figure, Look

SIDE = 24
"""Most arms on a side of the tie matrix."""


def _rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_yticks(range(len(names)), [""] * len(names))
    axes.tick_params(axis="y", length=0)


def forest(
    tests: Mapping[str, contrasts.Tested], rows: pd.DataFrame, look: Mapping[str, Look], architecture: str
) -> Figure | None:
    """Change of the loss against scratch at equal tokens, by arm, a plot per task; None where nothing is tested."""
    mine = set(rows.loc[(rows["architecture"] == architecture) & rows["ranked"], "arm"])
    found = [
        {"task": task, "arm": arm, **{name: test[name] for name in ("effect", "low", "high", "n", "p_holm")}}
        for task, own in tests.items()
        for arm, test in own.arms.items()
        if arm in mine
    ]
    table = pd.DataFrame(found)
    if table.empty or table["low"].isna().all():
        return None
    tasks = list(dict.fromkeys(table["task"]))[:4]
    table = table[table["task"].isin(tasks)]
    order = [str(arm) for arm in table.groupby("arm")["effect"].mean().sort_values().index]
    out, order = len(order[drawing.ROWS :]), order[: drawing.ROWS]
    table = table[table["arm"].isin(order)]
    percents = table.assign(**{name: 100 * np.expm1(table[name]) for name in ("effect", "low", "high")})
    width = 0.62 / len(tasks)
    with mpl.rc_context(drawing.style()):
        height = 1.05 + 0.25 * max(len(order), 3)
        canvas, plots = drawing.canvas(height, *((0.36 + k * (width + 0.01), width - 0.02) for k in range(len(tasks))))
        across = drawing.limits([*percents["low"], *percents["high"], *percents["effect"], 0.0], 0.06) or (-1.0, 1.0)
        for axes, task in zip(plots, tasks, strict=True):
            axes.set_title(drawing.short(task), loc="left", color=INK)
            axes.axvspan(*(100 * np.expm1([-stats.MARGIN, stats.MARGIN])), color=FAINT, alpha=0.6, lw=0)
            axes.axvline(0, color=INK, lw=1)
            for row in percents[percents["task"] == task].to_dict("records"):
                y, one = order.index(row["arm"]), look[row["arm"]]
                if np.isfinite(row["low"]):
                    gid = f"arm-{one.index}-interval"
                    axes.plot([row["low"], row["high"]], [y, y], lw=1.4, color=one.colour, gid=gid)
                axes.plot([row["effect"]], [y], ms=5, gid=f"arm-{one.index}-effect", **one.point)
            axes.set_xlim(*across)
            axes.xaxis.set_major_locator(MaxNLocator(3))
            _rows(axes, order)
            axes.set_xlabel("change of loss, %")
        plots[0].set_yticks(range(len(order)), [look[arm].label for arm in order])
        lower = int((percents["high"] < 0).sum())
        higher = int((percents["low"] > 0).sum())
        left = f" {words.plural(out, 'other arm')} {'is' if out == 1 else 'are'} in the tables alone." if out else ""
        return drawing.figure(
            canvas,
            name=drawing.slug("forest", architecture),
            title=f"Loss against scratch at equal tokens, {drawing.short(architecture)}",
            reads=f"Of {words.plural(len(percents), 'interval')}, {lower} below 0, {higher} above; the rest holds 0.",
            caption="Mean change of the loss against scratch of the arm’s own shape, at matched size and equal tokens, "
            "with its 95 % interval over seeds, not adjusted for their number: p in the tables are. Left of 0 the arm "
            f"ends lower. The grey band is within {words.percent(np.expm1(stats.MARGIN))} of no change.{left}",
            table=percents.rename(columns={"effect": "change, %", "low": "95 % from", "high": "95 % to", "n": "seeds"}),
        )


def ties(rows: pd.DataFrame, look: Mapping[str, Look], task: str) -> Figure | None:
    """Every two arms of the study's own schedule: which ends lower at the full budget, where a test tells."""
    own = rows[(rows["task"] == task) & (rows["schedule"].fillna("") == "")]
    order = [str(arm) for arm in own.groupby("arm")["loss"].mean().sort_values(kind="stable").index]
    out, order = len(order[SIDE:]), order[:SIDE]
    own = own[own["arm"].isin(order)]
    if len(order) < 3 or own["seed"].nunique() < stats.SEEDS:
        return None
    try:
        tested = stats.pairwise(own, order, budget=int(own["budget"].max()))
    except ValueError:  # said beside the table of the task
        return None
    place, grid = {arm: k for k, arm in enumerate(order)}, np.zeros((len(order), len(order)))
    for row in tested[tested["p_holm"] < 0.05].to_dict("records"):
        a, b = place[row["arm"]], place[row["reference"]]
        grid[a, b], grid[b, a] = np.sign([row["effect"], -row["effect"]])
    apart = int((grid != 0).sum()) // 2
    with mpl.rc_context(drawing.style()):
        height = 0.9 + 0.23 * len(order)
        canvas, (axes,) = drawing.canvas(height, (0.36, min(0.62, 0.23 * len(order) / drawing.WIDTH)))
        for sign, marker, colour in ((-1, "v", PALETTE[0]), (1, "^", PALETTE[1])):
            y, x = np.nonzero(grid == sign)
            axes.plot(x, y, ls="none", ms=6, marker=marker, color=colour, markeredgewidth=0)
        axes.set_ylim(len(order) - 0.5, -0.5)
        axes.set_xlim(-0.5, len(order) - 0.5)
        axes.set_yticks(range(len(order)), [look[arm].label for arm in order])
        axes.set_xticks(range(len(order)), [str(k + 1) for k in range(len(order))])
        axes.tick_params(length=0)
        axes.set_xlabel("the same arms, in the same order")
        left = f" Of {len(order) + out:,} arms the {len(order)} lowest are set against each other." if out else ""
        return drawing.figure(
            canvas,
            name=drawing.slug("ties", task),
            title=f"Which arms are told apart, {drawing.short(task)}",
            reads=f"{apart} of {words.plural(len(tested), 'pair')} are told apart.",
            caption="A row against a column: ▼, blue, the row’s arm ends lower; ▲, orange, higher, each where "
            "the Holm-adjusted p of their paired test, over the pairs of this figure, is below 0.05. Empty: no test "
            f"tells them apart. Arms stand in the order of their means, which is no verdict.{left}",
            table=tested[["arm", "reference", "n", "effect", "p_test", "p_holm"]].rename(
                columns={"reference": "against", "n": "seeds", "effect": "mean log ratio"}
            ),
        )


BARS = {
    "flops_source": ("the source", MUTED),
    "train": ("training after growth", PALETTE[0]),
    "flops_cooldown": ("cooldown", PALETTE[4]),
    "rest": ("growing and probes", PALETTE[1]),
}


def ledger(rows: pd.DataFrame, look: Mapping[str, Look], task: str) -> Figure | None:
    """What each arm's path costs at the full budget, as stacked bars; None without one."""
    books = summary.ledger(rows[rows["task"] == task])
    books = books[books["ranked"] & books["scored"] & books["flops"].notna()]
    if books.empty:
        return None
    books = books.assign(rest=books[["flops_growth", "flops_probe"]].fillna(0.0).sum(axis=1))
    books["train"] = books["flops"] - books[["flops_source", "flops_cooldown", "rest"]].fillna(0.0).sum(axis=1)
    table = books.groupby("arm")[["flops", *BARS]].mean().fillna(0.0).sort_values("flops")
    out, table = len(table[drawing.ROWS :]), table.iloc[: drawing.ROWS]
    with mpl.rc_context(drawing.style()):
        canvas, (axes,) = drawing.canvas(1.25 + 0.22 * max(len(table), 3), (0.36, 0.6))
        start = np.zeros(len(table))
        for name, (label, colour) in BARS.items():
            axes.barh(range(len(table)), table[name], left=start, height=0.7, color=colour, label=label)
            start += table[name].to_numpy()
        _rows(axes, list(table.index))
        axes.set_yticks(range(len(table)), [look[str(arm)].label for arm in table.index])
        axes.xaxis.set_major_formatter(FuncFormatter(drawing.si))
        axes.set_xlabel("FLOPs along the path")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, borderpad=0, handlelength=1)
        left = f" {words.plural(out, 'dearer arm')} {'is' if out == 1 else 'are'} in the table alone." if out else ""
        return drawing.figure(
            canvas,
            name=drawing.slug("ledger", task),
            title=f"What a path costs, {drawing.short(task)}",
            reads=f"From {words.flops(table['flops'].iloc[0])} to {words.flops(table['flops'].iloc[-1])}.",
            caption="Total cost at matched size and full budget, mean over the seeds that finished, by what it is "
            "spent on; the source’s part is what the view “continued” leaves out. Evaluation and tuning are counted "
            f"apart. The cooldown is that of the last budget point.{left}",
            table=table.reset_index().rename(
                columns={name: f"{label} (FLOPs)" for name, (label, _) in BARS.items()} | {"flops": "sum (FLOPs)"}
            ),
        )
