"""The coordinate check as figures: activations against width, before training, and how far steps of training move them.

One figure for each architecture and parametrization, from `growbench.coordinates.measure`; where maximal update holds,
the lines of the right half lie flat.
"""

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
from scipy.stats import gmean

from growbench import coordinates
from growbench.reports import drawing, words
from growbench.reports.drawing import DASHES, INK, MARKERS, MUTED, PALETTE, Figure, Look

HUES = dict(zip(("residual", "head", "ffn", "q_token", "k_token", "v_token", "o_token"), PALETTE, strict=True))
LOGITS = {"attention logits": MUTED, "logits": INK, "next token's logit": INK}
LAWS = {
    "mup": "Under mup lines lie flat, but for the logits before training, which fall with slope −1/2. While the width "
    "is below the size of vocabulary or batch, the change of most logits falls too; that of the next token’s does not.",
    "standard": "Under standard, sizes before training lie flat. The change in the first steps grows with slope 1, "
    "that of logits with up to 3/2; later with less, once activations are as far from their start as they get.",
    "inner": "Only sizes inside the layers grow here, the residual stream does not: sizes before training lie flat, "
    "while the change grows under mup too, with a slope of up to 1/2.",
}


def draw(measured: pd.DataFrame) -> list[Figure]:
    """One figure for each architecture and parametrization, in their order of appearance."""
    with mpl.rc_context(drawing.style()):
        return [_figure(rows) for _, rows in measured.groupby(["architecture", "parametrization"], sort=False)]


def _figure(measured: pd.DataFrame) -> Figure:
    """Two plots: sizes before training, and the change after the last step."""
    architecture, parametrization = measured[["architecture", "parametrization"]].iloc[0]
    after = words.plural(int(measured["steps"].max()), "step")
    table = _means(measured)
    looks = {axis: _look(axis, k) for k, axis in enumerate(table["axis"].unique())}
    canvas, plots = drawing.canvas(max(3.8, 0.9 + drawing.LINE * len(looks)), (0.085, 0.26), (0.43, 0.26))
    _lines(plots[0], table, "rms", looks)
    ends = _lines(plots[1], table, "rms_change", looks)
    plots[0].set_title("before training", loc="left", color=INK)
    plots[1].set_title(f"change after {after}", loc="left", color=INK)
    plots[0].set_ylabel("root mean square per coordinate")
    drawing.labels(plots[1], ends)

    ranked = table.dropna(subset=["slope_change"]).sort_values("slope_change")
    extremes = ranked.iloc[[0, -1] if len(ranked) else []][["slope_change", "axis"]]
    told = [f"{words.fixed(slope, 2)} ({axis})" for slope, axis in extremes.to_numpy()]
    law = LAWS["inner" if measured["width"].nunique() == 1 else str(parametrization)]
    return drawing.figure(
        canvas,
        name=drawing.slug("coordinates", architecture, parametrization),
        title=f"Coordinate check, {drawing.short(str(architecture))}, {parametrization}",
        reads=f"Slopes of the change run from {' to '.join(told)}." if told else "No slope could be fitted.",
        caption="Size of activations on fixed tokens against width, both logarithmic, and so averaged over layers. "
        "Right, how far training has moved them, each name with the slope of its line. Scores are units and parameter "
        f"tokens before their nonlinearity. {law}",
        key=drawing.key(ends),
        table=table.rename(
            columns={
                "rms": "rms before training",
                "rms_change": f"rms of the change after {after}",
                "slope": "slope before training",
                "slope_change": "slope of the change",
            }
        ),
    )


def _means(measured: pd.DataFrame) -> pd.DataFrame:
    """Columns axis, multiple, width; rms and slope before training, rms_change and slope_change after the last step.

    Sizes are geometric means over layers, missing where one is.
    """
    keys, last = ["axis", "multiple", "width"], measured["steps"].max()
    fits = coordinates.slopes(measured).set_index(["axis", "steps"])
    parts = [
        measured[measured["steps"] == steps].groupby(keys, sort=False)[size].agg(lambda sizes: float(gmean(sizes)))
        for size, steps in (("rms", 0), ("rms_change", last))
    ]
    table = pd.concat(parts, axis=1).reset_index()
    for slope, steps in (("slope", 0), ("slope_change", last)):
        table[slope] = table["axis"].map(fits[slope].xs(steps, level="steps"))
    return table


def _lines(axes: Axes, table: pd.DataFrame, size: str, looks: dict[str, Look]) -> list[tuple[Look, float, float, str]]:
    """One line for each axis of the model; returns where they end, with names and slopes."""
    drawn, ends = table[np.isfinite(table[size]) & (table[size] > 0)], []
    axes.set_xlabel("multiple of the base")
    if drawn.empty:
        drawing.empty(axes, "nothing finite was measured")
        return []
    _scales(axes, drawn["multiple"], drawn[size])
    for axis, rows in drawn.groupby("axis", sort=False):
        look, last = looks[str(axis)], rows.iloc[-1]
        axes.plot(rows["multiple"], rows[size], lw=1.2, ms=4, gid=f"arm-{look.index}-{size}", **look.point | look.line)
        ends.append(
            (look, float(last["multiple"]), float(last[size]), f"{axis} {words.fixed(last['slope_change'], 2)}")
        )
    return ends


def _look(axis: str, index: int) -> Look:
    """Scores and the next token's logit have the colour of their units and logits, with dashes."""
    of = axis.removesuffix(" scores")
    colour = HUES.get(of) or LOGITS.get(axis, INK)
    dashed = of != axis or axis == "next token's logit"
    return Look(label=axis, colour=colour, marker=MARKERS[index % len(MARKERS)], dash=DASHES[dashed], index=index)


def _scales(axes: Axes, multiples: pd.Series, sizes: pd.Series) -> None:
    """Logarithmic scales, ticks at what was measured and at 1, 2, 5; at least one decade, so that flat looks flat."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(sorted(multiples.unique())))
    low, high = np.log10(sizes.min()), np.log10(sizes.max())
    pad = max(0.08 * (high - low), (1 - (high - low)) / 2)
    axes.set_ylim(10 ** (low - pad), 10 ** (high + pad))
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high - low > 2 else (1.0, 2.0, 5.0)))
    for scale in (axes.xaxis, axes.yaxis):
        scale.set_minor_locator(NullLocator())
        scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
