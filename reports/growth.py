"""What growth does to a model, and what becomes of it: a table per task, and two figures of small plots.

One idea: the part of an activation that the old model spans (old) beside the rest (new), at the last growth and at the
end of the run; new / old is 1 where both are of one size, and 0 where the new part is silent.
"""

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from growbench.reports import drawing, figures, summary, tables, words
from growbench.reports.drawing import INK, MUTED, Figure, Look
from growbench.reports.tables import Cell, Head, Record, Spec, Table
from growbench.results import DIAGNOSTICS, RESULTS

AXES = ("residual", "ffn", "head", "token")
KEYS = ["arm", "task", "seed"]
ROUNDING = 1e-6
RANKED = ("residual", "ffn")
"""The axes whose effective rank is drawn."""


def growth(
    diagnostics: pd.DataFrame | None, curves: pd.DataFrame, rows: pd.DataFrame, look: Mapping[str, Look]
) -> dict[str, Any]:
    """Per task a table and figures, as far as there are diagnostics; curves: `summary.score`d."""
    grown = summary.finals(rows)
    grown = grown[(grown["growth_steps"] > 0).fillna(False).astype(bool)]
    if grown.empty:
        return {"missing": "No arm has grown yet.", "tasks": []}
    seen = summary.tidy(pd.DataFrame() if diagnostics is None else diagnostics, DIAGNOSTICS)
    seen = _placed(seen[seen["arm"].isin(rows["arm"]) & seen["value"].notna()], summary.full_budget(rows) or 0)
    found = []
    for task in summary.unique(grown["task"]):
        mine, own = seen[seen["task"] == task], rows[rows["task"] == task]
        with mpl.rc_context(drawing.style()):
            shock = _recovery(curves[(curves["task"] == task).fillna(False)], own, look, task)
            drawn = [shock, *(draw(mine, own, look, task) for draw in (_alive, _parts, _ranks))]
        found.append(
            {
                "name": task,
                "table": _table(mine, grown[grown["task"] == task], task),
                "figures": [figure for figure in drawn if figure],
            }
        )
    missing = "" if len(seen) else "No diagnostics were recorded: parts, ranks and shares along training are missing."
    return {"missing": missing, "tasks": found}


def _placed(seen: pd.DataFrame, full: int) -> pd.DataFrame:
    """Adds `place`: source (right before the last growth), growth (right after it), end (of the full budget), or ""."""
    grown = seen[seen["kind"] == "grow"].groupby(KEYS)["tokens"].max().rename("last").reset_index()
    seen = seen.merge(grown, on=KEYS, how="left")
    at_growth = (seen["kind"] == "grow") & (seen["tokens"] == seen["last"])
    place = np.select(
        [
            (at_growth & (seen["when"] == "before")).fillna(False).to_numpy(bool),
            (at_growth & (seen["when"] == "after")).fillna(False).to_numpy(bool),
            ((seen["kind"] == "cooldown") & (seen["budget"] == full)).fillna(False).to_numpy(bool),
        ],
        ["source", "growth", "end"],
        "",
    )
    return seen.assign(place=place)


# ------------------------------------------------------------------------------------------------ table


def _table(seen: pd.DataFrame, grown: pd.DataFrame, task: str) -> Table:
    """A row per grown arm: gap, jump, recovery, alive share, and new / old by axis at growth and at the end."""
    shares = seen[seen["quantity"] == "alive_share"].groupby(["arm", "place"])["value"].mean()
    ratios = _ratios(seen)
    specs: list[Spec] = [
        tables.ARM,
        _plain("growth gap", "growth_gap", words.significant, "logits"),
        _plain("loss jump", "growth_loss_jump", words.signed, RESULTS["growth_loss_jump"].unit),
        _plain("tokens to recover", "tokens_to_recover", words.count),
        _two("alive share", "", shares, words.percent),
    ]
    for quantity, word in (("activation_rms", "activations"), ("gradient_rms", "gradients")):
        for axis in AXES:
            if (quantity, axis) in ratios:
                specs.append(_two(f"{word}, {axis}", "new / old", ratios[quantity, axis], _ratio))
    return tables.make(
        summary.by_arm(grown),
        specs,
        lambda record: "bad" if record["unscored"] else "",
        name=f"growth-{drawing.slug(task)}",
        title=f"At growth and after, {task}",
        caption=f"Grown arms on {task}: at the last growth, beneath it at the end of the full budget. Means over "
        "seeds, ratios geometric over layers and seeds too. Tokens to recover: on the trunk, until the loss is back "
        "where it was; a dash where it is not, or where nothing is known.",
        sortable=True,
    )


def _ratios(seen: pd.DataFrame) -> dict[tuple[str, str], pd.Series]:
    """New over old root mean squares by quantity and axis: a series over (arm, place)."""
    parts = seen[seen["quantity"].isin(["activation_rms", "gradient_rms"]) & seen["part"].isin(["old", "new"])]
    parts = parts[parts["place"].isin(["growth", "end"])]
    if parts.empty:
        return {}
    index = ["quantity", "axis", "arm", "place", "seed", "layer"]
    table = parts.pivot_table(index=index, columns="part", values="value", aggfunc="last")
    table = table.reindex(columns=["old", "new"]).dropna()
    table = table[table["old"] > 0]
    found = {}
    for (quantity, axis), own in table.groupby(level=["quantity", "axis"]):
        with np.errstate(divide="ignore"):
            logs = pd.Series(np.log((own["new"] / own["old"]).to_numpy()), index=own.index)
        found[str(quantity), str(axis)] = logs.groupby(level=["arm", "place"]).mean().map(np.exp)
    return found


def _plain(text: str, name: str, form: Callable[[Any], str], unit: str = "") -> Spec:
    return Head(text=text, unit=unit, number=True), lambda record: tables.formatted(form, record[name])


def _ratio(value: float) -> str:
    """A ratio that is no more than float32's rounding reads as 0."""
    return "0×" if abs(value) < ROUNDING else words.ratio(value)


def _two(text: str, unit: str, values: pd.Series, form: Callable[[Any], str]) -> Spec:
    """A value at growth, and beneath it the one at the end."""

    def cell(record: Record) -> Cell:
        at, end = (values.get((record["arm"], place)) for place in ("growth", "end"))
        shown = tables.formatted(form, None if at is None else float(at))
        return shown if end is None else tables.under(shown, f"{form(float(end))} at the end")

    return Head(text=text, unit=unit, number=True), cell


# ------------------------------------------------------------------------------------------------ figures


def _panels(rows: pd.DataFrame) -> list[str]:
    return [name for _, name in summary.cells(rows)]


def _named(rows: pd.DataFrame) -> list[str]:
    """Of each architecture's arms those that plots of lines name."""
    homes = rows.groupby("architecture", sort=False)
    return [arm for _, own in homes for arm in drawing.Shown.of(own, own["arm"].drop_duplicates()).named]


def _key(arms: list[str], look: Mapping[str, Look]) -> list[tuple[str, str, int]]:
    named = {look[arm].label: look[arm] for arm in arms if arm in look}
    return [(label, drawing.swatch(one), one.index) for label, one in named.items()]


def _recovery(curves: pd.DataFrame, rows: pd.DataFrame, look: Mapping[str, Look], task: str) -> Figure | None:
    """Trunk loss after the last growth minus that right before it, against tokens since, a plot per architecture."""
    matched = rows[rows["ranked"] & (rows["growth_steps"] > 0).fillna(False).astype(bool)]
    trunk = curves[curves["arm"].isin(_named(matched)) & (curves["kind"] == "train").fillna(False)]
    events = figures.growth_events(trunk).sort_values("tokens").drop_duplicates(KEYS, keep="last")
    events = events[[*KEYS, "tokens", "score", "rung"]].rename(
        columns={"tokens": "at", "score": "before", "rung": "source"}
    )
    after = trunk.merge(events, on=KEYS)
    after = after[(after["tokens"] >= after["at"]) & (after["rung"] > after["source"])]
    after = after.assign(since=after["tokens"] - after["at"], change=after["score"] - after["before"])
    means = after.groupby(["arm", "since"])["change"].mean().reset_index().dropna()
    homes = matched.drop_duplicates("arm").set_index("arm")["architecture"]
    means["architecture"] = means["arm"].map(homes)
    panels = [name for name in _panels(rows) if name in set(means["architecture"])]
    if not panels:
        return None
    metric, top = summary.metric(rows), float(means["change"].quantile(0.98))
    canvas, plots = drawing.grid(len(panels), columns=min(2, len(panels)), height=2.6)
    up = drawing.limits([0.0, *means["change"].clip(upper=top)], 0.06) or (-1.0, 1.0)
    for axes, panel in zip(plots, panels, strict=True):
        axes.set_title(drawing.short(panel), loc="left", color=INK)
        axes.set_ylim(*up)
        axes.set_xlim(*(drawing.limits(means["since"].astype(float), 0.03) or (0, 1)))
        axes.axhline(0, color=INK, lw=1)
        for arm, own in means[means["architecture"] == panel].groupby("arm", sort=False):
            one = look[str(arm)]
            style = one.point | one.line
            gid = f"arm-{one.index}-recovery"
            axes.plot(own["since"], own["change"].clip(upper=up[1]), lw=1.1, ms=3, alpha=0.85, gid=gid, **style)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(FuncFormatter(drawing.si))
    plots[0].set_ylabel(f"change of loss ({metric.unit})")
    plots[-1].set_xlabel("tokens since the last growth")
    first = means.sort_values("since").drop_duplicates("arm").sort_values("change")
    ends = [f"{words.signed(first['change'].iloc[k])} ({first['arm'].iloc[k]})" for k in (0, -1)]
    return drawing.figure(
        canvas,
        name=drawing.slug("recovery", task),
        title=f"Shock of growth and recovery, {drawing.short(task)}",
        reads=f"Right after growth the loss changes by {' to '.join(ends)}.",
        caption="Validation loss on the trunk minus what it was right before the last growth, mean over seeds, arms of "
        "matched size that other figures name. Above 0 what growth broke is not yet made good; the largest shocks are "
        "drawn at the upper edge.",
        key=_key(summary.unique(means["arm"]), look),
        beneath=True,
        table=means.rename(columns={"since": "tokens since growth", "change": f"change ({metric.unit})"}),
    )


def _parts(seen: pd.DataFrame, rows: pd.DataFrame, look: Mapping[str, Look], task: str) -> Figure | None:
    """New over old norms of activations, a plot per axis, a row per arm: hollow at growth, filled at the end."""
    found = [
        own.rename("ratio").reset_index().assign(axis=axis)
        for (quantity, axis), own in _ratios(seen).items()
        if quantity == "activation_rms"
    ]
    table = pd.concat(found) if found else pd.DataFrame(columns=["arm", "place", "ratio", "axis"])
    table = table[table["arm"].isin(_named(rows[rows["ranked"]]))]
    if table.empty:
        return None
    axes_, arms = summary.unique(table["axis"]), summary.unique(table["arm"])
    width = 0.62 / len(axes_)
    canvas, plots = drawing.canvas(
        1.05 + 0.25 * max(len(arms), 3), *((0.36 + k * (width + 0.01), width - 0.02) for k in range(len(axes_)))
    )
    known = table.loc[table["ratio"] > ROUNDING, "ratio"]
    low, high = drawing.limits(np.log10([*known, 1.0]), 0.08) or (-1.0, 1.0)
    for axes, axis in zip(plots, axes_, strict=True):
        axes.set_title(axis, loc="left", color=INK)
        axes.set_xscale("log")
        axes.set_xlim(10**low, 10**high)
        axes.axvline(1, color=INK, lw=1)
        for row in table[table["axis"] == axis].to_dict("records"):
            one, y = look[row["arm"]], arms.index(row["arm"])
            hollow = {"markerfacecolor": "none", "markeredgewidth": 1, "markeredgecolor": one.colour}
            style = one.point | (hollow if row["place"] == "growth" else {})
            gid = f"arm-{one.index}-{row['place']}"
            axes.plot([max(row["ratio"], 10**low)], [y], ms=5, clip_on=False, gid=gid, **style)
        axes.set_ylim(len(arms) - 0.4, -0.6)
        axes.set_yticks(range(len(arms)), [""] * len(arms))
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("new / old")
    plots[0].set_yticks(range(len(arms)), [look[arm].label for arm in arms])
    return drawing.figure(
        canvas,
        name=drawing.slug("parts", task),
        title=f"Norms of new and old parts, {drawing.short(task)}",
        reads=f"{words.plural(len(arms), 'arm')}; axes: {words.listing(axes_)}.",
        caption="Root mean square of activations on the new part over that on the old one, geometric mean over layers "
        "and seeds: hollow right after the last growth, filled at the end of the full budget. At 1 both parts are of "
        "one size; a part that is silent lies at the left edge.",
        table=table[["arm", "axis", "place", "ratio"]].rename(columns={"ratio": "new / old"}),
    )


def _alive(seen: pd.DataFrame, rows: pd.DataFrame, look: Mapping[str, Look], task: str) -> Figure | None:
    """The gradient's share outside the old model's subspace, from growth on, a plot per architecture."""
    ranked = rows[rows["ranked"] & (rows["growth_steps"] > 0).fillna(False).astype(bool)]
    matched = _named(ranked)
    trunk = seen[(seen["quantity"] == "alive_share") & (seen["kind"] != "cooldown") & seen["arm"].isin(matched)]
    means = trunk.groupby(["arm", "tokens"])["value"].mean().reset_index()
    homes = rows.drop_duplicates("arm").set_index("arm")["architecture"]
    means["architecture"] = means["arm"].map(homes)
    panels = [name for name in _panels(rows) if name in set(means["architecture"])]
    if not panels:
        return None
    canvas, plots = drawing.grid(len(panels))
    for axes, panel in zip(plots, panels, strict=True):
        axes.set_title(drawing.short(panel), loc="left", color=INK)
        axes.set_ylim(*(drawing.limits([0.0, *means["value"]], 0.05) or (0.0, 1.0)))
        axes.set_xlim(*(drawing.limits(means["tokens"].astype(float), 0.03) or (0, 1)))
        for arm, own in means[means["architecture"] == panel].groupby("arm", sort=False):
            if one := look.get(str(arm)):
                style = one.point | one.line
                axes.plot(own["tokens"], own["value"], lw=1.1, ms=3, alpha=0.85, gid=f"arm-{one.index}-alive", **style)
        axes.xaxis.set_major_locator(MaxNLocator(3))
        axes.xaxis.set_major_formatter(FuncFormatter(drawing.si))
    plots[0].set_ylabel("alive share")
    plots[-1].set_xlabel("training tokens")
    last = means.sort_values("tokens").drop_duplicates("arm", keep="last").sort_values("value")
    ends = [f"{words.percent(last['value'].iloc[k])} ({last['arm'].iloc[k]})" for k in (0, -1)]
    reads = f"At the last point of the trunk shares run from {' to '.join(ends)}."
    return drawing.figure(
        canvas,
        name=drawing.slug("alive", task),
        title=f"Alive share along training, {drawing.short(task)}",
        reads=reads,
        caption="Share of the squared gradient norm outside the old model’s subspace, from growth on, mean over seeds, "
        "arms of matched size: at 0 what was added does not learn.",
        key=_key(summary.unique(means["arm"]), look),
        beneath=True,
        table=means.rename(columns={"value": "alive share"}),
    )


def _ranks(seen: pd.DataFrame, rows: pd.DataFrame, look: Mapping[str, Look], task: str) -> Figure | None:
    """Effective rank by depth: the source before growth, grown arms and scratch at the end."""
    ranked = rows[rows["ranked"]].drop_duplicates("arm").set_index("arm")
    scratch = set(summary.baseline(rows[rows["ranked"]])["arm"])
    growing = ranked.index[(ranked["growth_steps"] > 0).fillna(False).astype(bool)]
    grown = set(_named(rows[rows["arm"].isin(growing) & rows["ranked"]]))
    mine = seen[(seen["quantity"] == "effective_rank") & seen["axis"].isin(RANKED) & (seen["part"] == "all")]
    mine = mine[mine["place"].isin(["source", "end"]) & mine["arm"].isin(grown | scratch)]
    mine = mine.assign(architecture=mine["arm"].map(ranked["architecture"]), who=mine["arm"])
    mine.loc[mine["place"] == "source", "who"] = "source"
    means = mine.groupby(["architecture", "axis", "who", "layer"], sort=False)["value"].mean().reset_index()
    panels = [(name, axis) for name in _panels(rows) for axis in RANKED if (means["architecture"] == name).any()]
    if not panels:
        return None
    canvas, plots = drawing.grid(len(panels), columns=2 if len(panels) < 6 else 4, height=2.1, shared=False)
    for axes, (panel, axis) in zip(plots, panels, strict=True):
        axes.set_title(f"{drawing.short(panel)}\n{axis}", loc="left", color=INK, fontsize=drawing.SMALL)
        for who, own in means[(means["architecture"] == panel) & (means["axis"] == axis)].groupby("who", sort=False):
            _rank_line(axes, look.get(str(who)), own.sort_values("layer"))
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        axes.margins(x=0.12)
    plots[-1].set_xlabel("layer")
    plots[0].set_ylabel("effective rank")
    return drawing.figure(
        canvas,
        name=drawing.slug("rank", task),
        title=f"Effective rank by depth, {drawing.short(task)}",
        reads=f"{words.plural(means['who'].nunique(), 'line')} in {words.plural(len(panels), 'plot')}.",
        caption="exp(entropy of the normalised singular values) of the activations behind each layer (residual) and in "
        "its feed-forward (ffn), mean over seeds. The thick grey line is the source right before growth; grown arms "
        "and scratch are at the end of the full budget. Each plot has its own scale.",
        key=_key(summary.unique(means["who"]), look),
        beneath=True,
        table=means.rename(columns={"value": "effective rank"}),
    )


def _rank_line(axes: Axes, look: Look | None, own: pd.DataFrame) -> None:
    if look is None:
        axes.plot(own["layer"], own["value"], lw=3.5, color=MUTED, alpha=0.4, marker="o", ms=4, markeredgewidth=0)
        return
    style = look.point | look.line
    axes.plot(own["layer"], own["value"], lw=1.1, ms=3.5, alpha=0.85, gid=f"arm-{look.index}-rank", **style)
