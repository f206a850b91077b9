"""The figures: each one function of result tables, returning an inline SVG with its words and its data.

One idea: a figure is a picture, a caption that says how to read it, a text alternative, and a table of what is drawn.
Colours leave here as CSS variables with a fallback, so that one SVG serves a light and a dark page; text stays text.
"""

import hashlib
import io
import re
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from growbench.reports import summary, words

INK, MUTED, FAINT = "#1d1d20", "#5d5d64", "#d5d3cd"
PALETTE = ("#0067a8", "#b8450b", "#00775a", "#a3407a", "#8a6500", "#5a4fcf", "#a02c3c")
"""Told apart under the common colour deficiencies, 4.5:1 and more on white; markers and dashes repeat it."""
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.4, 1.4)), (0, (6, 1.5, 1.4, 1.5)))
WIDTH, LINE, CHARACTERS = 6.8, 0.19, 34


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture that can be read without seeing it. `name` is unique on a page; `table` holds what is drawn."""

    name: str
    title: str
    caption: str
    alt: str
    svg: str
    table: pd.DataFrame


@dataclass(frozen=True, kw_only=True)
class Look:
    """How one strategy is drawn, in every figure; `label` names its arm without the architecture."""

    label: str
    colour: str
    marker: str
    dash: Any
    index: int

    @property
    def line(self) -> dict[str, Any]:
        """Keywords of a line."""
        return {"color": self.colour, "linestyle": self.dash}

    @property
    def point(self) -> dict[str, Any]:
        """Keywords of a marker without a line."""
        return {"color": self.colour, "marker": self.marker, "linestyle": "none", "markeredgewidth": 0}


def looks(rows: pd.DataFrame) -> dict[str, Look]:
    """A look for every arm: scratch in ink, its smaller rungs and continue in grey, any other in its own.

    What is the same (strategy, variant) on two architectures looks the same.
    """
    kinds = rows[["strategy", "variant"]].fillna("").drop_duplicates().sort_values(["strategy", "variant"])
    others = [kind for kind in kinds.itertuples(index=False, name=None) if kind[0] not in ("scratch", "continue")]
    found: dict[str, Look] = {}
    distinct = rows.sort_values("top", ascending=False, kind="stable").drop_duplicates("arm").sort_index()
    for arm, strategy, variant, architecture, top in (
        distinct[["arm", "strategy", "variant", "architecture", "top"]].fillna("").itertuples(index=False)
    ):
        if strategy == "scratch":
            colour, marker, dash = (INK, "o", DASHES[0]) if top else (MUTED, "p", DASHES[2])
        elif strategy == "continue":
            colour, marker, dash = MUTED, "d", DASHES[1]
        else:
            k = others.index((strategy, variant))
            colour, marker = PALETTE[k % len(PALETTE)], MARKERS[k % len(MARKERS)]
            dash = DASHES[(k + k // len(PALETTE)) % len(DASHES)]
        label = _short(_without(arm, architecture))
        found[arm] = Look(label=label, colour=colour, marker=marker, dash=dash, index=len(found))
    return found


def _without(arm: str, architecture: str) -> str:
    """The arm's name without its architecture, where that stands at an end and something is left."""
    mark = re.escape(architecture)
    return re.sub(rf"^{mark}[\s/:@·,-]+(?=.)|(?<=.)[\s/:@·,-]+{mark}$", "", arm) if architecture else arm


def _short(text: str) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1]}…"


def slug(*parts: object) -> str:
    """An identifier of letters, digits and hyphens; a digest keeps it unique where the parts lose something in it."""
    text = "-".join(map(str, parts))
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain if plain == text else f"{plain[:40].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


# ------------------------------------------------------------------------------------------------ drawing


def _style() -> Any:  # the stubs want literal keys
    return {
        **sns.axes_style("ticks"),
        **sns.plotting_context("paper"),
        "svg.fonttype": "none",
        "svg.hashsalt": "growbench",
        "text.parse_math": False,
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.labelsize": 9,
        "axes.titlesize": 9,
        "xtick.labelsize": 8.5,
        "ytick.labelsize": 8.5,
        "xtick.minor.size": 2,
        "axes.unicode_minus": True,
        "axes.grid": True,
        "axes.linewidth": 0.8,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    }


def _canvas(rows: int) -> tuple[Canvas, Axes]:
    """A figure with room on the right for `rows` direct labels."""
    height = max(3.7, 0.9 + LINE * rows)
    canvas = Canvas(figsize=(WIDTH, height))
    axes = canvas.add_axes((0.105, 0.52 / height, 0.515, 1 - 0.72 / height))
    axes.set_axisbelow(True)
    sns.despine(ax=axes)
    return canvas, axes


def _labels(axes: Axes, ends: Sequence[tuple[Look, float, float, str]]) -> None:
    """Names beside the plot, in the order of the lines' ends (x, y in data units), spread so that none overlaps."""
    if not ends:
        return
    height = axes.get_position().height * axes.figure.get_size_inches()[1]  # type: ignore[union-attr]
    gap, to_axes = LINE / height, axes.transAxes.inverted()
    placed = sorted(
        (
            (float(to_axes.transform(axes.transData.transform((x, y)))[1]), look, x, y, text)
            for look, x, y, text in ends
        ),
        key=lambda end: (-end[0], end[1].label),
    )
    at = [min(1.0, placed[0][0])]
    for end in placed[1:]:
        at.append(min(end[0], at[-1] - gap))
    at[-1] = max(at[-1], 0.0)
    for i in range(len(at) - 2, -1, -1):
        at[i] = max(at[i], at[i + 1] + gap)
    for y_label, (_, look, x, y, text) in zip(at, placed, strict=True):
        gid = f"arm-{look.index}-label"
        axes.annotate(
            text,
            xy=(x, y),
            xytext=(1.085, y_label),
            textcoords="axes fraction",
            va="center",
            fontsize=8.5,
            gid=gid,
            annotation_clip=False,
        )
        axes.annotate(
            "",
            xy=(x, y),
            xytext=(1.035, y_label),
            textcoords="axes fraction",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": look.colour,
                "lw": 0.5,
                "alpha": 0.55,
                "shrinkA": 0,
                "shrinkB": 3,
                "gid": f"{gid}-leader",
            },
        )
        axes.plot([1.055], [y_label], transform=axes.transAxes, clip_on=False, ms=5, gid=f"{gid}-m", **look.point)


def _decades(axes: Axes, low: float, high: float) -> None:
    """A logarithmic cost axis with ticks at 1, 2, 5 (all tenths where the range is short), named with SI prefixes."""
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    ticks: list[float] = []
    for steps in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), tuple(np.arange(1, 10, 0.1))):
        ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(ticks) >= 3:
            break
    apart, kept = np.log(high / low) / 6, ticks[:1]
    for tick in ticks[1:]:
        kept += [tick] if np.log(tick / kept[-1]) >= apart else []
    axes.xaxis.set_major_locator(FixedLocator(kept))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_tick))


def _tick(value: float, position: int | None = None) -> str:
    number, _, prefix = words.scaled(value, "").partition(" ")
    return f"{float(number):g} {prefix}".strip() if value else "0"


def _svg(canvas: Canvas, name: str, title: str, alt: str) -> str:
    """The drawing as an element to inline: ids prefixed by `name`, colours as variables, with title and desc."""
    out = io.StringIO()
    with warnings.catch_warnings():
        # Text is not drawn here: the reader's browser has the glyphs that the layout's font lacks.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        canvas.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="arm-(\d+)-[^"]*">', r'<g class="arm" data-arm="\1">', text)
    text = re.sub(r'(<[^<>]*?\sid=")', rf"\g<1>{name}-", text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = text.replace('xlink:href="#', 'href="#').replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    for colour in {INK, MUTED, FAINT, *PALETTE}:
        text = re.sub(rf"((?:fill|stroke): ){colour}\b", rf"\g<1>var(--{_variable(colour)}, {colour})", text)
    text = text.replace("'DejaVu Sans'", "var(--sans, sans-serif)")
    text = re.sub(r"\n\s*", "\n", text)
    head = (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" class="figure" '
        f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {72 * WIDTH:g} {72 * canvas.get_size_inches()[1]:g}">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(alt)}</desc>'
    )
    return re.sub(r"^<svg[^>]*>", lambda _: head, text).strip()


def _variable(colour: str) -> str:
    names = {INK: "ink", MUTED: "muted", FAINT: "faint"}
    return names.get(colour) or f"hue{PALETTE.index(colour) + 1}"


def _empty(axes: Axes, why: str) -> None:
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color=MUTED)
    axes.set_xticks([])
    axes.set_yticks([])


def _limits(values: Iterable[float], margin: float = 0.08) -> tuple[float, float] | None:
    """The range of finite values with a margin; None without any."""
    known = np.array([v for v in values if np.isfinite(v)])
    if not len(known):
        return None
    low, high = float(known.min()), float(known.max())
    pad = margin * (high - low) or 0.01 * abs(high) or 1.0
    return low - pad, high + pad


def growth_events(curves: pd.DataFrame) -> pd.DataFrame:
    """The last trunk row before each growth (a step up of the rung), with `loss_after` of the row behind it."""
    trunk = curves[curves["kind"] == "train"].sort_values(["arm", "task", "seed", "tokens", "rung"], kind="stable")
    keys = trunk.groupby(["arm", "task", "seed"], sort=False)
    after = keys[["rung", "loss"]].shift(-1)
    grown = (after["rung"] > trunk["rung"]).fillna(False)
    return trunk.assign(loss_after=after["loss"])[grown.astype(bool)]


def _trunk(curves: pd.DataFrame, cost: str) -> pd.DataFrame:
    """Trunk curves averaged over the seeds that got there: columns arm, rung, tokens, x, loss, seeds."""
    rows = curves[(curves["kind"] == "train") & curves["loss"].notna() & curves[cost].notna()]
    grouped = rows.groupby(["arm", "rung", "tokens"], sort=True)
    return grouped.agg(x=(cost, "mean"), loss=("loss", "mean"), seeds=("seed", "nunique")).reset_index()


# ------------------------------------------------------------------------------------------------ figures


def loss_vs_compute(
    rows: pd.DataFrame, curves: pd.DataFrame, look: dict[str, Look], *, task: str, architecture: str, view: str
) -> Figure:
    """Loss against cost (log) at matched size: finished losses at the budget points, the trunk behind, growth marked.

    rows are `summary.annotate`d results, curves tidy; view is a key of `summary.VIEWS`.
    """
    cost, counts = summary.VIEWS[view]
    mine = rows[(rows["task"] == task) & (rows["architecture"] == architecture) & rows["ranked"]]
    points = mine.assign(x=mine[cost].where(mine[cost] > 0)).sort_values(["arm", "budget", "seed"])
    means = points.groupby(["arm", "budget"], sort=True).agg(
        x=("x", "mean"),
        loss=("loss", "mean"),
        seeds=("seed", "nunique"),
        unscored=("scored", lambda s: int((~s).sum())),
    )
    means = means.reset_index()
    source = summary.finals(mine).groupby("arm")["flops_source"].mean()
    paths = curves[(curves["task"] == task) & curves["arm"].isin(mine["arm"])]
    paths = paths.assign(
        x=paths["flops"] - (paths["arm"].map(source).astype("float64").fillna(0.0) if view == "continued" else 0.0)
    )
    trunk = _trunk(paths[paths["x"] > 0] if view != "ladder" else paths.iloc[:0], "x")
    growth = growth_events(paths) if view == "total" else paths.iloc[:0]

    canvas, axes = _canvas(means["arm"].nunique())
    drawn = points[points["scored"] & points["x"].notna()]
    across = _limits(np.log10([*drawn["x"], *growth["x"]]), 0.06)
    up = _limits(drawn["loss"], 0.1)
    if across and up:
        up = (up[0], up[1] + 0.25 * (up[1] - up[0]))
        _decades(axes, 10 ** across[0], 10 ** across[1])
        axes.set_ylim(*up)
        ends = []
        for arm, mean in means.groupby("arm", sort=True):
            style, gid = look[str(arm)], f"arm-{look[str(arm)].index}"
            behind = trunk[trunk["arm"] == arm]
            axes.plot(behind["x"], behind["loss"], lw=0.7, alpha=0.45, gid=f"{gid}-trunk", **style.line)
            one = drawn[drawn["arm"] == arm]
            axes.plot(one["x"], one["loss"], ms=2.2, alpha=0.55, gid=f"{gid}-seeds", **style.point)
            seen = mean[mean["x"].notna()]
            if seen.empty:
                continue
            inside = seen.assign(y=seen["loss"].clip(upper=up[1]))
            axes.plot(inside["x"], inside["y"], lw=1.4, gid=f"{gid}-mean", **style.line)
            axes.plot(inside["x"], inside["y"], ms=6, clip_on=False, gid=f"{gid}-points", **style.point)
            last = inside.iloc[-1]
            off = f" ({int(last['unscored'])}/{int(last['seeds'])} unfinished)" if last["unscored"] else ""
            ends.append((style, last["x"], last["y"], style.label + off))
        marks = growth.drop_duplicates(["stage", "tokens", "seed"]).groupby("tokens")[["x", "loss"]].mean()
        for x, loss in marks.itertuples(index=False, name=None):
            axes.axvline(x, color=MUTED, lw=0.9, ls=(0, (2, 2)))
            axes.annotate(
                "growth",
                xy=(x, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -2),
                textcoords="offset points",
                va="top",
                fontsize=8,
                color=MUTED,
            )
            if up[0] <= loss <= up[1]:
                axes.plot([x], [loss], marker="|", ms=9, color=MUTED, ls="none")
        _labels(axes, ends)
    else:
        _empty(axes, "no finished run at matched size")
    axes.set_xlabel(f"cost in FLOPs, view {view} (log scale)")
    axes.set_ylabel("validation loss (nats/token)")

    title = _short(f"Loss against compute, {architecture}") + f" on {_short(task)}, view {view}"
    best = means.dropna(subset=["x"]).sort_values("loss").head(1)
    reads = (
        "Nothing could be drawn."
        if best.empty
        else (
            f"{len(means['arm'].unique())} arms. The lowest point is {look[best['arm'].iloc[0]].label} with "
            f"{words.loss(best['loss'].iloc[0])} nats per token at {words.flops(best['x'].iloc[0])}."
        )
    )
    parts = {
        "total": "The thin lines are the trunks at constant rate, mean over the seeds that got there; the dashed "
        "upright marks growth.",
        "continued": "The thin lines are the trunks after the last growth. Growth itself lies at cost 0, outside a "
        "logarithmic axis.",
        "ladder": "There are no trunks in this view: the ladder's cost exists at budget points only.",
    }
    caption = (
        f"Cost view {view}: {counts}. Large markers are losses of finished runs, cooled down at each budget point, "
        f"mean over seeds; small ones the seeds. Lower and further left is better. {parts[view]} Runs without a "
        "finished loss count as the uniform predictor: an arm with one is drawn at the upper edge if its mean is above."
    )
    table = means.assign(arm=means["arm"].astype(str)).rename(
        columns={"x": f"cost, {view} (FLOPs)", "loss": "mean loss (nats/token)", "budget": "budget (tokens)"}
    )
    name = slug("cost", view, task, architecture)
    return Figure(
        name=name,
        title=title,
        caption=caption,
        alt=f"{title}. {reads}",
        svg=_svg(canvas, name, title, f"{title}. {reads}"),
        table=table,
    )


def loss_vs_tokens(
    rows: pd.DataFrame, curves: pd.DataFrame, look: dict[str, Look], *, task: str, architecture: str
) -> Figure:
    """Trunk loss against tokens, mean over seeds, for every arm of an architecture; growth as uprights."""
    mine = rows[(rows["task"] == task) & (rows["architecture"] == architecture)]
    full = summary.full_budget(mine) or 0
    paths = curves[
        (curves["task"] == task) & curves["arm"].isin(mine["arm"]) & (curves["tokens"] <= full).fillna(False)
    ]
    cooled = paths[(paths["kind"] == "cooldown") & (paths["budget"] == full).fillna(False)]
    cooled = cooled.groupby("arm")[["tokens", "loss"]].mean().dropna()
    trunk, growth = _trunk(paths, "tokens"), growth_events(paths)
    shared = paths.groupby("stage")["arm"].nunique()
    common = paths[paths["stage"].isin(shared[shared > 1].index)]
    pooled = _trunk(common.drop_duplicates(["stage", "tokens"]).assign(arm="shared source"), "tokens")
    own = paths[~paths["stage"].isin(shared[shared > 1].index)]

    canvas, axes = _canvas(trunk["arm"].nunique() + 1)
    late = trunk[trunk["tokens"] >= 0.25 * trunk["tokens"].max()] if len(trunk) else trunk
    up = _limits([*late["loss"], *cooled["loss"]], 0.06)
    if up:
        axes.set_xlim(0, full * 1.02)
        axes.set_ylim(*up)
        for tokens in sorted(growth["tokens"].unique()):
            axes.axvline(tokens, color=MUTED, lw=0.9, ls=(0, (2, 2)))
            axes.annotate(
                "growth",
                xy=(tokens, 1.0),
                xycoords=("data", "axes fraction"),
                xytext=(3, -2),
                textcoords="offset points",
                va="top",
                fontsize=8,
                color=MUTED,
            )
        axes.plot(pooled["tokens"], pooled["loss"], color=INK, lw=2.4, alpha=0.35)
        ends = []
        if len(pooled) and pooled["loss"].min() < up[1] - 0.04 * (up[1] - up[0]):
            place = pooled[pooled["loss"] <= up[1] - 0.04 * (up[1] - up[0])].iloc[0]
            axes.annotate(
                "shared source",
                xy=(place["tokens"], place["loss"]),
                xytext=(6, 1),
                textcoords="offset points",
                fontsize=8,
                color=MUTED,
            )
        averaged = _trunk(own, "tokens")
        for arm, line in trunk.groupby("arm", sort=True):
            style, gid = look[str(arm)], f"arm-{look[str(arm)].index}"
            mine_only = averaged[averaged["arm"] == arm]
            before = line.iloc[: len(line) - len(mine_only)].tail(1)  # an arm's own stages are its last
            path = pd.concat([before, mine_only]) if len(mine_only) else line
            axes.plot(path["tokens"], path["loss"], lw=1.3, gid=f"{gid}-trunk", **style.line)
            x, y = float(path["tokens"].iloc[-1]), float(path["loss"].iloc[-1])
            if arm in cooled.index:
                end = cooled.loc[[str(arm)]]
                x_end, y_end = float(end["tokens"].iloc[0]), float(end["loss"].iloc[0])
                axes.plot([x, x_end], [y, y_end], lw=0.8, alpha=0.6, gid=f"{gid}-cool", **style.line)
                x, y = x_end, y_end
            axes.plot([x], [y], ms=5, gid=f"{gid}-end", **style.point)
            ends.append((style, x, float(np.clip(y, *up)), style.label))
        _labels(axes, ends)
        axes.xaxis.set_major_formatter(FuncFormatter(_tick))
    else:
        _empty(axes, "no curve has been written yet")
    axes.set_xlabel("training tokens along the path, source included")
    axes.set_ylabel("validation loss (nats/token)")

    title = _short(f"Loss against tokens, {architecture}") + f" on {_short(task)}"
    table = trunk.pivot_table(index="tokens", columns="arm", values="loss", aggfunc="last").reset_index()
    table.columns = [str(c) for c in table.columns]
    events = sorted(int(t) for t in growth["tokens"].unique())
    grown = f"Growth at {words.listing([words.count(t) for t in events])} tokens." if events else "No growth."
    alt = f"{title}. {trunk['arm'].nunique()} trunk curves. {grown}"
    caption = (
        "Trunks at constant learning rate, mean over the seeds that got there; the thin last stretch is the cooldown "
        "to the full budget. What several arms share is drawn once, as a broad line. The first quarter lies above."
    )
    name = slug("tokens", task, architecture)
    return Figure(name=name, title=title, caption=caption, alt=alt, svg=_svg(canvas, name, title, alt), table=table)


def differences(rows: pd.DataFrame, look: dict[str, Look], *, task: str, architecture: str) -> Figure:
    """Paired differences to scratch at the full budget, a point per seed: at equal tokens, and at equal FLOPs."""
    mine = summary.against_scratch(rows)
    mine = mine[(mine["task"] == task) & (mine["architecture"] == architecture)]
    order = summary.mean_difference(mine, "difference").sort_values(na_position="last")

    height = 1.05 + 0.27 * max(len(order), 3)
    canvas = Canvas(figsize=(WIDTH, height))
    scored = mine[mine["scored"]]
    title = _short(f"Difference to scratch, {architecture}") + f" on {_short(task)}"
    sides = (("difference", "at equal tokens"), ("difference_flops", "at equal FLOPs, read off"))
    for k, (column, heading) in enumerate(sides):
        axes = canvas.add_axes((0.36 + 0.325 * k, 0.52 / height, 0.295, 1 - 0.85 / height))
        sns.despine(ax=axes)
        axes.set_axisbelow(True)
        axes.set_title(heading, loc="left", color=INK)
        across = _limits([*scored[column], 0.0], 0.1)
        if scored[column].notna().any() and across:
            axes.set_xlim(*across)
            axes.axvline(0, color=INK, lw=1)
            means = summary.mean_difference(mine, column)
            for y, arm in enumerate(order.index):
                style, values = look[str(arm)], mine[mine["arm"] == arm]
                gid = f"arm-{style.index}-{column}"
                shown = values[values["scored"]]
                axes.plot(shown[column], [y] * len(shown), ms=5, alpha=0.75, gid=gid, **style.point)
                mean = means[arm]
                if across[0] <= mean <= across[1]:
                    axes.plot([mean, mean], [y - 0.32, y + 0.32], lw=1.6, color=style.colour, gid=f"{gid}-mean")
                elif mean > across[1] or not values["scored"].all():
                    axes.annotate(
                        "mean off scale ▸" if mean > across[1] else "a seed has no value",
                        xy=(1.0, y),
                        xycoords=("axes fraction", "data"),
                        xytext=(0, 4),
                        textcoords="offset points",
                        ha="right",
                        va="bottom",
                        fontsize=7.5,
                        color=MUTED,
                    )
            axes.xaxis.set_major_locator(MaxNLocator(4))
        else:
            _empty(axes, "nothing to compare")
        axes.set_ylim(len(order) - 0.4, -0.6)
        axes.set_yticks(range(len(order)))
        axes.set_yticklabels([look[str(arm)].label for arm in order.index] if k == 0 else [""] * len(order))
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("nats/token; below 0 is better")

    known = order.dropna()
    reads = (
        "Nothing could be compared."
        if known.empty
        else (
            f"At equal tokens the mean differences run from {words.signed(known.iloc[0])} "
            f"({look[known.index[0]].label}) to {words.signed(known.iloc[-1])} "
            f"({look[known.index[-1]].label}) nats per token."
        )
    )
    table = mine[
        ["arm", "seed", "status", "loss", "scratch", "difference", "at_flops", "difference_flops", "note"]
    ].rename(
        columns={
            "loss": "loss (nats/token)",
            "scratch": "scratch at equal tokens",
            "difference": "difference, equal tokens",
            "at_flops": "scratch at equal FLOPs",
            "difference_flops": "difference, equal FLOPs",
            "note": "why none",
        }
    )
    caption = (
        "Loss of an arm minus scratch's, seed by seed, at the full budget; the bar is the mean. Left of zero the grown "
        "model ends lower. At equal FLOPs, scratch's loss is read off between its cooled budget points. "
        "Points only: no interval and no test. Seeds without a finished loss are not drawn, but count in the mean."
    )
    name = slug("paired", task, architecture)
    alt = f"{title}. {reads}"
    return Figure(name=name, title=title, caption=caption, alt=alt, svg=_svg(canvas, name, title, alt), table=table)


def draw(
    rows: pd.DataFrame, curves: pd.DataFrame, *, task: str, architecture: str, look: dict[str, Look]
) -> list[Figure]:
    """Every figure of one task and architecture: the three cost views, tokens, differences."""
    where = {"task": task, "architecture": architecture}
    with mpl.rc_context(_style()):
        views = [loss_vs_compute(rows, curves, look, view=view, **where) for view in summary.VIEWS]
        return [*views, loss_vs_tokens(rows, curves, look, **where), differences(rows, look, **where)]
