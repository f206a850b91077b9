"""Loss by size: what each rung of the ladder reaches from scratch, and where the best grown arm ends."""

from dataclasses import dataclass

import pandas as pd
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import MaxNLocator

from growbench import stats
from growbench.figure import Figure


@dataclass(frozen=True)
class SizeLadder(Figure):
    """The ladder of sizes, from scratch, and the lowest grown arm at each.

    Mean loss at the full budget against the non-embedding weights of the final model, a plot per task. Dots: from
    scratch in the ladder's own shapes, a line per architecture; crosses: of the grown arms of that size the one with
    the lowest mean, which is picked after looking. Lower is better.
    """

    def data(self, results: pd.DataFrame) -> pd.DataFrame:
        """Columns task, architecture, kind, weights, arm, loss (nats per token), seeds; a row per point."""
        if results["budget"].dropna().empty:
            return pd.DataFrame()
        last = results[(results["budget"] == stats.full_budget(results)).fillna(False).astype(bool)]
        scratch = (last["strategy"] == "scratch") & (last["variant"].fillna("") == "")
        grown = (last["growth_steps"] > 0).fillna(False).astype(bool) & (last["sterile"].fillna("") == "")
        keys, found = ["task", "architecture", "arm"], []
        for kind, own in (("scratch", last[scratch]), ("lowest grown", last[grown])):
            means = own.groupby(keys, sort=False).agg(
                weights=("params_non_embedding", "first"), loss=("loss", "mean"), seeds=("seed", "nunique")
            )
            means = means.reset_index().assign(kind=kind).sort_values("loss", kind="stable")
            found.append(means.drop_duplicates(["task", "architecture", "weights"]))
        table = pd.concat(found).sort_values(["task", "architecture", "kind", "weights"], kind="stable")
        return table[["task", "architecture", "kind", "weights", "arm", "loss", "seeds"]].reset_index(drop=True)

    def draw(self, results: pd.DataFrame) -> Canvas | None:
        """A small plot per task; None where no rung has an arm from scratch at the full budget."""
        points = self.data(results)
        if points.empty or points["weights"].nunique() < 2:
            return None
        tasks = list(points["task"].unique())
        canvas = Canvas(figsize=(6.8, 2.9), layout="constrained")
        plots = canvas.subplots(1, len(tasks), squeeze=False)[0]
        for axes, task in zip(plots, tasks, strict=True):
            mine = points[points["task"] == task]
            for k, (_, own) in enumerate(mine.groupby("architecture", sort=False)):
                rungs, best = own[own["kind"] == "scratch"], own[own["kind"] != "scratch"]
                weights, loss = rungs["weights"].astype(float), rungs["loss"].astype(float)
                axes.plot(weights, loss, marker="o", ms=4, lw=1.2, color=f"C{k}")
                axes.plot(best["weights"].astype(float), best["loss"].astype(float), "x", ms=6, color=f"C{k}")
            axes.set_title(str(task)[:24], loc="left", fontsize=9)
            axes.set_xscale("log")
            axes.yaxis.set_major_locator(MaxNLocator(5))
            axes.set_xlabel("weights, non-embedding")
        plots[0].set_ylabel("loss (nats/token)")
        return canvas
