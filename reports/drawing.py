"""How the figures are drawn: one canvas, one look for each arm, direct labels, and an SVG to inline.

One idea: a figure is a picture, a caption that says how to read it, a text alternative, and a table of what is drawn.
Colours leave here as CSS variables with a fallback, so that one SVG serves a light and a dark page; text stays text.
"""

import hashlib
import io
import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Affine2D

from growbench.reports import summary, words

INK, MUTED, FAINT = "#1d1d20", "#5d5d64", "#d5d3cd"
PALETTE = ("#0067a8", "#b8450b", "#00775a", "#a3407a", "#8a6500", "#5a4fcf", "#a02c3c")
"""Told apart under the common colour deficiencies, 4.5:1 and more on white; markers and dashes repeat it."""
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "h")
GREYS = ("d", "p", "*", "H", "8")
"""Markers of what is not grown."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.4, 1.4)), (0, (6, 1.5, 1.4, 1.5)))
ROWS = 48
"""How many arms a plot with a row for each holds."""
WIDTH, LINE, CHARACTERS = 6.8, 0.2, 32
"""Inches, inches, and how long a label may be. The page shows 490 points on 616 pixels or more: 9 points read as 11."""
SMALL = 9
NAMED, FAINT_ARMS = 18, 30
"""How many arms a plot of lines names, and how many more are drawn faint, without a name; the rest is not drawn."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture that can be read without seeing it. `name` is unique on a page; `table` holds what is drawn.

    key: each arm named beside the plot, in that order, with swatch (SVG) and index: the names where a page is narrow;
    beneath: the plot names none, so that its key always stands there.
    """

    name: str
    title: str
    caption: str
    alt: str
    svg: str
    table: pd.DataFrame
    key: Sequence[tuple[str, str, int]] = ()
    beneath: bool = False


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


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Which arms a plot of lines names, draws faint, and leaves out."""

    named: Sequence[str]
    faint: Sequence[str]
    out: int

    @classmethod
    def of(cls, mine: pd.DataFrame, arms: Iterable[str], most: int = NAMED) -> "Shown":
        """Of the arms that have something to draw."""
        there = set(arms)
        order = [arm for arm in summary.ordered(mine) if arm in there]
        faint = order[most : most + FAINT_ARMS] if most == NAMED else []
        return cls(named=order[:most], faint=faint, out=len(order) - most - len(faint) if len(order) > most else 0)

    @property
    def arms(self) -> list[str]:
        """All that is drawn."""
        return [*self.named, *self.faint]

    @property
    def said(self) -> str:
        """What a caption says of lines without a name."""
        if not self.faint and not self.out:
            return ""
        found = f" {len(self.named)} arms are named: those not grown, then the lowest at the full budget."
        if n := len(self.faint):
            more = words.plural(n, "more arm")
            found += f" {more} {'is' if n == 1 else 'are'} drawn faint; the data below holds all that is drawn."
        if self.out:
            found += f" {words.plural(self.out, 'other arm')} {'is' if self.out == 1 else 'are'} not drawn here."
        return found


def looks(rows: pd.DataFrame) -> dict[str, Look]:
    """A look for every arm, by its name without the architecture: the same name looks the same on every architecture.

    Scratch in the ladder's shape in ink, in others in ink with dashes; smaller rungs and continue in grey; any other by
    its strategy (colour and dash) and its schedule (marker), which the name ends with: "zero_pad @early".
    """
    about = rows.sort_values("ranked", ascending=False, kind="stable").drop_duplicates("arm").sort_index()
    names = {arm: _without(arm, of) for arm, of in about[["arm", "architecture"]].fillna("").itertuples(index=False)}
    control = about["strategy"].isin(["scratch", "continue"])
    kinds = {
        "ink": about["arm"][control & about["ranked"] & ~about["headline"]],
        "grey": about["arm"][control & ~about["ranked"]],
        "own": about["arm"][~control],
    }
    order = {kind: sorted({names[arm] for arm in arms}) for kind, arms in kinds.items()}
    which = {arm: kind for kind, arms in kinds.items() for arm in arms}
    split = [_split(name) for name in order["own"]]
    slots, schedules = _slots(about[~control], names), sorted({schedule for _, schedule in split})
    styles = {"": (INK, "o", DASHES[0])}
    for colour, kind in ((INK, "ink"), (MUTED, "grey")):
        for k, name in enumerate(order[kind]):
            styles[kind + name] = colour, GREYS[k % len(GREYS)], DASHES[1 + k % 3]
    for name, (strategy, schedule) in zip(order["own"], split, strict=True):
        again, hue = divmod(slots[strategy], len(PALETTE))
        k = schedules.index(schedule) + again * len(schedules)
        dash = DASHES[(hue + again + k // len(MARKERS)) % len(DASHES)]
        styles[f"own{name}"] = PALETTE[hue], MARKERS[(hue + k) % len(MARKERS)], dash
    found: dict[str, Look] = {}
    for arm, name in names.items():
        colour, marker, dash = styles[which[arm] + name if arm in which else ""]
        found[arm] = Look(label=short(name), colour=colour, marker=marker, dash=dash, index=len(found))
    return found


def _split(name: str) -> tuple[str, str]:
    """The strategy and the schedule that a name without its architecture is made of."""
    strategy, _, schedule = name.rpartition(" @") if " @" in name else (name, "", "")
    return strategy, schedule


def _slots(own: pd.DataFrame, names: Mapping[str, str]) -> dict[str, int]:
    """A number for each strategy: the first that none has with which it shares an architecture, so a figure.

    Colours and then dashes are dealt by it; arms of matched size come first, since they meet in most figures.
    """
    arms = own.assign(strategy=[_split(names[arm])[0] for arm in own["arm"]])
    arms = arms.sort_values(["ranked", "strategy"], ascending=[False, True], kind="stable")
    homes = {name: set(group["architecture"]) for name, group in arms.groupby("strategy", sort=False)}
    slots: dict[str, int] = {}
    for name, home in homes.items():
        taken = {slot for other, slot in slots.items() if homes[other] & home}
        slots[str(name)] = next(slot for slot in range(len(homes)) if slot not in taken)
    return slots


def _without(arm: str, architecture: str) -> str:
    """The arm's name without its architecture, where that stands at an end and something is left."""
    mark = re.escape(architecture)
    return re.sub(rf"^{mark}[\s/:@·,-]+(?=.)|(?<=.)[\s/:@·,-]+{mark}$", "", arm) if architecture else arm


def short(text: str) -> str:
    """A name that fits beside a plot: the middle is left out, since parameters at the end tell arms apart."""
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    half = (CHARACTERS - 1) // 2
    return text if len(text) <= CHARACTERS else f"{text[: CHARACTERS - 1 - half]}…{text[-half:]}"


def slug(*parts: object) -> str:
    """An identifier of letters, digits and hyphens; a digest keeps it unique where the parts lose something in it."""
    text = "-".join(map(str, parts))
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain if plain == text else f"{plain[:40].strip('-')}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


# ------------------------------------------------------------------------------------------------ drawing


def style() -> Any:  # the stubs want literal keys
    """Settings under which every figure is drawn."""
    return {
        **sns.axes_style("ticks"),
        **sns.plotting_context("paper"),
        "svg.fonttype": "none",
        "svg.hashsalt": "growbench",
        "text.parse_math": False,
        "font.family": "DejaVu Sans",
        **dict.fromkeys(("font.size", "xtick.labelsize", "ytick.labelsize"), SMALL),
        **dict.fromkeys(("axes.labelsize", "axes.titlesize"), 9.5),
        "xtick.minor.size": 2,
        "axes.unicode_minus": True,
        "axes.grid": True,
        "axes.linewidth": 0.8,
        "grid.color": FAINT,
        "grid.linewidth": 0.6,
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), MUTED),
        **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    }


def canvas(height: float, *places: tuple[float, float]) -> tuple[Canvas, list[Axes]]:
    """A figure of a height in inches, with a plot at each place (left, width: shares of the figure's width)."""
    drawn = Canvas(figsize=(WIDTH, height))
    plots = [drawn.add_axes((left, 0.52 / height, width, 1 - 0.82 / height)) for left, width in places]
    for axes in plots:
        axes.set_axisbelow(True)
        sns.despine(ax=axes)
    return drawn, plots


def grid(number: int, *, columns: int = 3, height: float = 2.1, shared: bool = True) -> tuple[Canvas, list[Axes]]:
    """A figure of small plots, row by row; on a shared scale only the first of a row has numbers at its side."""
    columns, rows = max(1, min(columns, number)), -(-number // columns)
    whole = rows * height + 0.1
    drawn, width, plots = Canvas(figsize=(WIDTH, whole)), 0.9 / columns, list[Axes]()
    for k in range(number):
        row, column = divmod(k, columns)
        bottom = 1 - ((row + 1) * height - 0.38) / whole
        axes = drawn.add_axes(
            (0.1 + column * width, bottom, width - (0.03 if shared else 0.06), (height - 0.72) / whole)
        )
        axes.set_axisbelow(True)
        sns.despine(ax=axes)
        axes.tick_params(labelleft=column == 0 or not shared)
        plots.append(axes)
    return drawn, plots


def plot(names: int) -> tuple[Canvas, Axes]:
    """A figure with one plot and room on its right for so many names."""
    drawn, (axes,) = canvas(max(3.8, 0.9 + LINE * names), (0.115, 0.475))
    return drawn, axes


def labels(axes: Axes, ends: Sequence[tuple[Look, float, float, str]], more: int = 0) -> None:
    """Names beside the plot, in the order of the lines' ends (x, y in data units), spread so that none overlaps.

    more: how many lines have no name, said beneath.
    """
    if not ends:
        return
    if more:
        faint = f"faint: {words.plural(more, 'more arm')}"
        remark(axes, faint, (1.085, 0.0), (0, -20), xycoords="axes fraction", annotation_clip=False)
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
        _label(axes, look, (x, y), y_label, text)


def _label(axes: Axes, look: Look, end: tuple[float, float], at: float, text: str) -> None:
    """One name at a height of the plot, with its marker and a leader from the line's end."""
    gid = f"arm-{look.index}-label"
    where: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    x, y = axes.transAxes.inverted().transform(axes.transData.transform(end))
    axes.text(1.085, at, text, va="center", fontsize=SMALL, gid=gid, **where)
    axes.plot([x + 0.01, 1.035], [y, at], color=look.colour, lw=0.5, alpha=0.55, gid=f"{gid}-leader", **where)
    axes.plot([1.055], [at], ms=5, gid=f"{gid}-m", **where, **look.point)


def remark(axes: Axes, text: str, xy: tuple[float, float], xytext: tuple[float, float], **how: Any) -> None:
    """A muted word at a point of the plot, moved by `xytext` points."""
    axes.annotate(
        text, xy=xy, xytext=xytext, textcoords="offset points", fontsize=SMALL, color=MUTED, gid="remark", **how
    )


def mark_growth(axes: Axes, x: float) -> None:
    """An upright where arms grow."""
    axes.axvline(x, color=MUTED, lw=0.9, ls=(0, (2, 2)))
    remark(axes, "growth", (x, 1.0), (3, 10), xycoords=("data", "axes fraction"), va="top", annotation_clip=False)


def mark_limit(axes: Axes, metric: summary.Metric, up: tuple[float, float]) -> None:
    """The lowest possible loss, where it is known and lies in the plot."""
    if metric.limit is not None and up[0] <= metric.limit <= up[1]:
        axes.axhline(metric.limit, color=MUTED, lw=0.9, ls=(0, (1, 2)))
        remark(axes, "entropy rate", (0.0, metric.limit), (3, 3), xycoords=("axes fraction", "data"))


def decades(axes: Axes, low: float, high: float) -> None:
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
    axes.xaxis.set_major_formatter(FuncFormatter(si))


def si(value: float, position: int | None = None) -> str:
    """A number on an axis, with an SI prefix."""
    number, _, prefix = words.scaled(value, "").replace("−", "-").partition(" ")
    return f"{float(number):g} {prefix}".strip().replace("-", "−") if value else "0"


def _svg(drawn: Canvas, name: str, title: str, alt: str) -> str:
    """The drawing as an element to inline: ids prefixed by `name`, colours as variables, with title and desc."""
    out = io.StringIO()
    with warnings.catch_warnings():
        # Text is not drawn here: the reader's browser has the glyphs that the layout's font lacks.
        warnings.filterwarnings("ignore", message=r"Glyph .* missing from font")
        drawn.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'<g id="arm-(\d+)-[^"]*seeds">', r'<g class="arm seed" data-arm="\1">', text)
    text = re.sub(r'<g id="arm-(\d+)-[^"]*">', r'<g class="arm" data-arm="\1">', text)
    text = text.replace('<g id="remark">', '<g class="remark">')
    text = re.sub(r'(<[^<>]*?\sid=")', rf"\g<1>{name}-", text)
    text = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", text)
    text = text.replace('xlink:href="#', 'href="#').replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    for colour in {INK, MUTED, FAINT, *PALETTE}:
        text = re.sub(rf"((?:fill|stroke): ){colour}\b", rf"\g<1>{_themed(colour)}", text)
    text = text.replace("'DejaVu Sans'", "var(--sans, sans-serif)")
    text = re.sub(r'(?<=[\s"])(?:d|x|y|x1|x2|y1|y2|transform|points)="[^"]*"', _rounded, text)
    text = re.sub(r"\n\s*", "\n", text)
    head = (
        f'<svg role="img" aria-labelledby="{name}-title {name}-desc" class="figure" '
        f'data-axes="{escape(json.dumps(_axes(drawn)))}" '
        f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {72 * WIDTH:g} {72 * drawn.get_size_inches()[1]:g}">'
        f'<title id="{name}-title">{escape(title)}</title><desc id="{name}-desc">{escape(alt)}</desc>'
    )
    return re.sub(r"^<svg[^>]*>", lambda _: head, text).strip()


def _axes(drawn: Canvas) -> list[dict[str, Any]]:
    """Where each plot lies and what its edges stand for, so that a place can be read: [low, high, from, to, log]."""
    wide, tall = 72 * drawn.get_size_inches()
    found = []
    for axes in drawn.axes:
        box = axes.get_position()
        x = [*axes.get_xlim(), wide * box.x0, wide * box.x1, axes.get_xscale() == "log"]
        y = [*axes.get_ylim(), tall * (1 - box.y0), tall * (1 - box.y1), axes.get_yscale() == "log"]
        named = {"xlabel": axes.get_xlabel() or axes.get_title("left"), "ylabel": axes.get_ylabel() or "value"}
        found.append({"x": _plain(x), "y": _plain(y)} | named)
    return found


def _plain(values: Sequence[Any]) -> list[float | bool]:
    return [value if isinstance(value, bool) else float(f"{value:.7g}") for value in values]


def _rounded(attribute: re.Match[str]) -> str:
    """Coordinates to a hundredth of a point: a seventh of the file is digits that no screen shows."""
    return re.sub(r"(\.\d\d)\d+", r"\1", attribute[0])


def _themed(colour: str) -> str:
    """The colour as a variable of the page, with itself as fallback."""
    name = {INK: "ink", MUTED: "muted", FAINT: "faint"}.get(colour) or f"hue{PALETTE.index(colour) + 1}"
    return f"var(--{name}, {colour})"


def key(ends: Sequence[tuple[Look, float, float, str]]) -> list[tuple[str, str, int]]:
    """Name, swatch and index of each arm, in the order of `labels`."""
    ordered = sorted(ends, key=lambda end: (-end[2], end[0].label))
    return [(text, swatch(look), look.index) for look, _, _, text in ordered]


def swatch(look: Look) -> str:
    """A stretch of the arm's line with its marker."""
    style = MarkerStyle(look.marker)
    path = style.get_path().transformed(style.get_transform() + Affine2D().scale(7, -7))
    steps = {path.MOVETO: "M", path.LINETO: "L", path.CURVE3: "Q", path.CURVE4: "C", path.CLOSEPOLY: "Z"}
    drawn = "".join(
        steps[code] + ("" if code == path.CLOSEPOLY else " ".join(f"{v:.2f}" for v in points))
        for points, code in path.iter_segments(simplify=False)
    )
    colour, dashes = _themed(look.colour), "" if look.dash == "-" else " ".join(f"{1.4 * d:g}" for d in look.dash[1])
    return (
        '<svg class="swatch" aria-hidden="true" viewBox="-17 -5 34 10" width="34" height="10">'
        f'<path d="M-17 0H17" style="stroke: {colour}; stroke-width: 1.4; stroke-dasharray: {dashes or "none"}"/>'
        f'<path d="{drawn}" style="fill: {colour}; stroke: {colour}; stroke-width: .5"/></svg>'
    )


def figure(drawn: Canvas, *, name: str, title: str, reads: str, **fields: Any) -> Figure:
    """The finished figure; `reads` is what an eye would read from it."""
    alt = f"{title}. {reads}"
    return Figure(name=name, title=title, alt=alt, svg=_svg(drawn, name, title, alt), **fields)


def empty(axes: Axes, why: str) -> None:
    """A plot of nothing, and why."""
    axes.text(0.5, 0.5, why, ha="center", va="center", transform=axes.transAxes, color=MUTED)
    axes.set_xticks([])
    axes.set_yticks([])


def limits(values: Iterable[float], margin: float = 0.08) -> tuple[float, float] | None:
    """The range of finite values with a margin; None without any."""
    known = np.array([v for v in values if np.isfinite(v)])
    if not len(known):
        return None
    low, high = float(known.min()), float(known.max())
    pad = margin * (high - low) or 0.01 * abs(high) or 1.0
    return low - pad, high + pad
