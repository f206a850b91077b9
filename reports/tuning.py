"""Tuning as the report shows it: what was tried, what it cost, how the loss depends on it, and what was chosen.

One idea: a trial is a row of `growbench.settings.Tuned.trials`; an arm's choice is the trial of its lowest mean loss. A
choice at the edge of what was tried says that the best value may lie beyond.
"""

from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from growbench.reports import drawing, summary, tables, words
from growbench.reports.drawing import INK, Figure, Look
from growbench.reports.tables import Cell, Head, Record, Spec, Table
from growbench.results import UNSCORED

NAMES = {"learning_rate": "learning rate", "weight_decay": "weight decay", "warmup": "warm-up"}
"""What can be tuned, as it is called."""
REST = "other architectures"


def tuning(
    provenance: Mapping[str, Any], spec: Mapping[str, Any], rows: pd.DataFrame, look: Mapping[str, Look]
) -> dict[str, Any]:
    """Words, a sensitivity plot per task, the choices, and which of them lie at the edge of what was tried."""
    trials = pd.DataFrame((provenance.get("tuned") or {}).get("trials") or [])
    if trials.empty:
        return {"words": [_untuned(rows)], "figures": [], "choices": None, "edge": []}
    trials = trials.assign(scored=~trials["status"].isin(UNSCORED))
    tuned = [name for name in NAMES if name in trials and trials[name].notna().any()]
    edges = _edges(trials, tuned)
    with mpl.rc_context(drawing.style()):
        drawn = [
            _sensitivity(trials[trials["task"] == task], rows[rows["task"] == task], look)
            for task in summary.unique(trials["task"])
        ]
    return {
        "words": [_words(trials, tuned, provenance, spec, rows)],
        "figures": drawn,
        "choices": _choices(trials, tuned, edges),
        "edge": [_said(task, own) for task, own in edges.groupby("task", sort=False)],
    }


def _untuned(rows: pd.DataFrame) -> str:
    if rows["tuned"].fillna(False).any():
        return "Arms were tuned, but no trial is recorded here."
    rates = rows["learning_rate"].dropna().unique()
    one = f", {words.significant(rates[0])}" if len(rates) == 1 else ""
    return (
        f"This study is not tuned: every arm has the learning rate that the study states{one}. An arm that needs "
        "another is judged by the wrong one, so no claim is decided."
    )


def _words(
    trials: pd.DataFrame, tuned: list[str], provenance: Mapping[str, Any], spec: Mapping[str, Any], rows: pd.DataFrame
) -> str:
    """The space, how many trials on which seeds at which budget, and what they cost."""
    asked = spec.get("tuning") or {}
    spaces = [
        f"{NAMES[name]}{_space(asked.get(name), trials[name])}, {trials[name].nunique()} values" for name in tuned
    ]
    numbers = trials.groupby(["task", "arm"])["trial"].nunique()
    seeds = sorted(int(seed) for seed in trials["seed"].unique())
    cost = rows.drop_duplicates(["task", "arm"])["flops_tuning"].sum()
    budget = f" at {words.count(asked['tokens'])} tokens" if asked.get("tokens") else ""
    return (
        f"Each of {words.plural(len(numbers), 'arm')} (counted by task) was given "
        f"{words.span([*numbers], words.count)} trials{budget}, from one space for all: {words.listing(spaces)}. They "
        f"ran on {'seed' if len(seeds) == 1 else 'seeds'} {words.listing([str(seed) for seed in seeds])}, which no "
        f"result uses, and cost {words.flops(cost)} in all (arms added up), which is in no cost view. Chosen is the "
        "trial of the lowest mean loss. Sources are tuned first, and grown arms from the source that this chose; a "
        f"source trained on has its source’s choice. {int((~trials['scored']).sum())} of {len(trials):,} "
        "trial runs did not finish. "
        f"SHA-256 of choices and trials: {(provenance.get('tuned') or {}).get('digest', 'not recorded')}."
    )


def _space(asked: Any, values: pd.Series) -> str:
    low, high = (asked["low"], asked["high"]) if isinstance(asked, dict) else asked or (values.min(), values.max())
    return f" {low:g} to {high:g}"


def _edges(trials: pd.DataFrame, tuned: list[str]) -> pd.DataFrame:
    """Choices at the smallest or largest value tried: columns task, arm, name, value, side."""
    found = []
    for (task, arm), own in trials.groupby(["task", "arm"], sort=False):
        chosen = own[own["chosen"].astype(bool)]
        for name in tuned:
            if chosen.empty or own[name].nunique() < 2:
                continue
            value = float(chosen[name].iloc[0])
            side = "lowest" if value <= own[name].min() else "highest" if value >= own[name].max() else ""
            if side:
                found.append({"task": task, "arm": arm, "name": name, "value": value, "side": side})
    return pd.DataFrame(found, columns=["task", "arm", "name", "value", "side"])


def _said(task: object, edges: pd.DataFrame) -> str:
    parts = [
        f"the {side} {NAMES[str(name)]}, {words.significant(own['value'].iloc[0])}: {words.listing([*own['arm']])}"
        for (name, side), own in edges.groupby(["name", "side"], sort=False)
    ]
    return f"On {task}, {'; '.join(parts)}."


def _choices(trials: pd.DataFrame, tuned: list[str], edges: pd.DataFrame) -> Table:
    """A row per arm, a column per task and tuned value."""
    chosen = trials[trials["chosen"].astype(bool)].drop_duplicates(["task", "arm"])
    held = {(row["task"], row["arm"]): row for row in chosen.to_dict("records")}
    at_edge = set(edges[["task", "arm", "name"]].itertuples(index=False, name=None))

    def spec(task: str, name: str) -> Spec:
        def cell(record: Record) -> Cell:
            row = held.get((task, record["arm"]))
            shown = tables.formatted(words.significant, None if row is None else row[name])
            return tables.under(shown, "edge") if (task, record["arm"], name) in at_edge else shown

        return Head(text=f"{NAMES[name]}, {task}", number=True), cell

    arms = [{"arm": arm} for arm in summary.unique(trials["arm"])]
    specs = [spec(task, name) for task in summary.unique(trials["task"]) for name in tuned]
    return tables.make(
        arms,
        [(Head(text="arm"), lambda record: Cell(text=tables.breaking(record["arm"]))), *specs],
        lambda record: "",
        name="choices",
        title="What was chosen",
        caption="The value chosen for each arm, by task; edge: the lowest or highest that was tried.",
        sortable=True,
    )


# ------------------------------------------------------------------------------------------------ sensitivity


def _sensitivity(trials: pd.DataFrame, rows: pd.DataFrame, look: Mapping[str, Look]) -> Figure:
    """Loss against learning rate, a plot per architecture; those from scratch alone share one."""
    task, metric = str(trials["task"].iloc[0]), summary.metric(rows)
    ranked = rows[rows["ranked"] | ~rows["arm"].isin(rows.loc[rows["ranked"], "arm"])]
    homes = ranked.groupby("architecture", sort=False)
    drawn = {arm for _, own in homes for arm in drawing.Shown.of(own, own["arm"].drop_duplicates()).named}
    trials = trials[trials["arm"].isin(drawn) | ~trials["arm"].isin(rows["arm"])]
    grown = set(rows.loc[(rows["growth_steps"] > 0).fillna(False), "architecture"])
    means = trials.assign(score=trials["loss"] * metric.scale)
    groups = means.groupby(["architecture", "arm", "trial", "learning_rate"], sort=False)
    means = groups.agg(score=("score", "mean"), scored=("scored", "all"), chosen=("chosen", "all")).reset_index()
    means["panel"] = means["architecture"].where(means["architecture"].isin(grown), REST)
    panels = sorted(summary.unique(means["panel"]), key=lambda name: name == REST)
    known = means.loc[means["scored"], "score"]
    up = drawing.limits([*known[known <= known.quantile(0.9) * 1.02]] or [0.0], 0.08) or (0.0, 1.0)

    canvas, plots = drawing.grid(len(panels))
    for axes, panel in zip(plots, panels, strict=True):
        axes.set_title(drawing.short(panel), loc="left", color=INK)
        axes.set_ylim(*up)
        for arm, own in means[means["panel"] == panel].groupby("arm", sort=False):
            _arm_line(axes, look.get(str(arm)), own.sort_values("learning_rate"), up[1])
        _rates(axes, means["learning_rate"])
    plots[0].set_ylabel(f"loss ({metric.unit})")
    plots[-1].set_xlabel("learning rate")
    lost = int((~means["scored"]).sum())
    named = {look[arm].label: look[arm] for arm in summary.unique(means["arm"]) if arm in look}
    return drawing.figure(
        canvas,
        name=drawing.slug("tuning", task),
        title=f"Loss against learning rate, {drawing.short(task)}",
        reads=f"{words.plural(means['arm'].nunique(), 'arm')}, {words.plural(len(means), 'trial')}, "
        f"{lost} without a finished loss.",
        caption="Every trial of every arm, mean over the tuning seeds, a plot for each architecture; filled: the one "
        "chosen. At the upper edge: trials whose loss lies above, and with a cross those that did not finish. A curve "
        "that still falls at its end asks for a wider space.",
        key=[(label, drawing.swatch(one), one.index) for label, one in named.items()],
        beneath=True,
        table=means.drop(columns="panel").rename(columns={"score": f"loss ({metric.unit})", "scored": "finished"}),
    )


def _arm_line(axes: Axes, look: Look | None, own: pd.DataFrame, top: float) -> None:
    """One arm's trials; what is above the plot, or did not finish, at its upper edge."""
    if look is None:  # tuned, and without a result yet
        return
    gid, y = f"arm-{look.index}-tuning", own["score"].where(own["scored"]).clip(upper=top)
    hollow: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 0.8, "markeredgecolor": look.colour}
    axes.plot(own["learning_rate"], y, lw=1, ms=3.5, alpha=0.8, gid=gid, **look.point | look.line | hollow)
    best = own[own["chosen"]]
    axes.plot(best["learning_rate"], y[best.index], ms=5.5, zorder=3, clip_on=False, gid=f"{gid}-best", **look.point)
    lost = own[~own["scored"]]
    axes.plot(lost["learning_rate"], [top] * len(lost), ls="none", marker="x", ms=5, clip_on=False, color=look.colour)


def _rates(axes: Axes, rates: pd.Series) -> None:
    axes.set_xscale("log")
    pad = 0.06 * float(np.log(rates.max() / rates.min()) or 1.0)
    axes.set_xlim(rates.min() * np.exp(-pad), rates.max() * np.exp(pad))
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=8))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
