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
from matplotlib.ticker import FuncFormatter, MaxNLocator

from growbench.reports import drawing, summary, tables, words
from growbench.reports.drawing import INK, MUTED, Figure, Look
from growbench.reports.tables import Cell, Head, Record, Spec, Table
from growbench.results import DIAGNOSTICS, RESULTS

AXES = ("residual", "ffn", "head", "token")
KEYS = ["arm", "task", "seed"]
ROUNDING = 1e-6
RANKED = ("residual", "ffn")
"""The axes whose effective rank is drawn."""


def growth(diagnostics: pd.DataFrame | None, rows: pd.DataFrame, look: Mapping[str, Look]) -> dict[str, Any]:
    """Per task a table and figures, as far as there are diagnostics."""
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
            drawn = [draw(mine, own, look, task) for draw in (_alive, _ranks)]
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


def _key(arms: list[str], look: Mapping[str, Look]) -> list[tuple[str, str]]:
    named = {look[arm].label: look[arm] for arm in arms if arm in look}
    return [(label, drawing.swatch(one)) for label, one in named.items()]


def _alive(seen: pd.DataFrame, rows: pd.DataFrame, look: Mapping[str, Look], task: str) -> Figure | None:
    """The gradient's share outside the old model's subspace, from growth on, a plot per architecture."""
    matched = rows.loc[rows["ranked"], "arm"]
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
    grown = set(ranked.index[(ranked["growth_steps"] > 0).fillna(False).astype(bool)])
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
