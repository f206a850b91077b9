"""Tuning: equally many trials for every arm, from one space that knows no strategy, on seeds that no result uses.

    setting of an arm = the trial whose mean loss over the tuning seeds, at the proxy budget, is lowest

The from-scratch arms are tuned first. Grown arms are tuned on the sources that these choices make, one source for all
trials and strategies; what a trial sets is their training from the first growth on. An arm that never grows is its
source trained on, and has the source's setting.
"""

import fnmatch
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import qmc

from growbench.paths import Arm, Builder
from growbench.plan import Plan, matches, used_stages
from growbench.settings import Chosen, Setting, Settings, Tuned
from growbench.store import Store
from growbench.study import Study
from growbench.tables import flops_spent, tables

Run = Callable[[Plan, Path], object]
"""Runs what is left of a plan into a folder, and writes its tables."""


def trial_settings(study: Study) -> tuple[Setting, ...]:
    """The settings that are tried: a Halton sequence over the logarithms of the space, three digits each."""
    assert study.tuning is not None
    space = {name: r for name in Setting.__dataclass_fields__ if (r := getattr(study.tuning, name)) is not None}
    points = qmc.Halton(d=len(space), scramble=False).random(study.tuning.trials + 1)[1:]  # its first point is a corner
    drawn = (
        {name: r.low * (r.high / r.low) ** float(share) for (name, r), share in zip(space.items(), point, strict=True)}
        for point in points
    )
    return tuple(Setting(**{name: float(f"{value:.3g}") for name, value in own.items()}) for own in drawn)


@dataclass(frozen=True, kw_only=True)
class Tuner:
    """Plans and runs a study's trials.

    only: a glob over arm names; the arms that match are tuned, and the sources that they grow from.
    """

    study: Study
    plugin_paths: tuple[Path, ...] = ()
    only: str | None = None
    cache: Path = Path()

    def plan(self, chosen: Chosen | None = None) -> Plan:
        """The trials of the from-scratch arms; given what was chosen for those, the trials of the grown ones."""
        settings = [
            Settings(common=own, chosen=chosen or {}, trial=number)
            for number, own in enumerate(trial_settings(self.study))
        ]
        proxy = self.study.proxy()
        builder = Builder(study=proxy, plugin_paths=self.plugin_paths, cache=self.cache, settings=settings)
        found = [arm for task in proxy.tasks for arm in builder.arms(task)]
        wanted = [arm for arm in found if self.only is None or matches(arm.about["arm"], self.only)]
        sources = {arm.about["architecture"] for arm in wanted if _grows(arm, builder)}
        if chosen is None:
            below = [a for a in found if a.about["architecture"] in sources and fnmatch.fnmatch(a.about["arm"], "*@?")]
            kept = [arm for arm in found if (arm in wanted or arm in below) and arm.about["from_scratch"]]
        else:
            kept = [arm for arm in wanted if _grows(arm, builder)]
        arms = tuple(_at(arm, builder.total) for arm in kept)
        return Plan(
            study=proxy,
            stages=used_stages(builder.stages, arms),
            arms=arms,
            skipped=builder.skipped,
            tasks=tuple(builder.tasks),
            plugin_paths=self.plugin_paths,
            cache=self.cache,
        )

    def plans(self, tuned: Tuned | None) -> tuple[Plan, Plan]:
        """The trials of the from-scratch arms and of the grown ones, as to size; the very ones once it is `tuned`."""
        first, any_ = self.plan(), trial_settings(self.study)[0]
        chosen: dict[str, dict[str, Setting]] = {}
        for arm in first.arms:
            chosen.setdefault(arm.about["task"], {})[arm.about["arm"]] = any_
        return first, self.plan(tuned.chosen if tuned else chosen)

    def known(self, out: Path) -> Tuned | None:
        """What was chosen in `out` before, None while trials are left."""
        left: list[str] = []

        def look(plan: Plan, folder: Path) -> None:
            left.extend(plan.stages.keys() - Store(folder).records().keys())
            if left:
                raise LookupError

        try:
            return self.run(out, look)
        except LookupError:
            return None

    def run(self, out: Path, run: Run) -> Tuned:
        """Run all trials into `out`, resuming those that are there, and choose."""
        chosen: dict[str, dict[str, Setting]] = {}
        trials: list[dict[str, Any]] = []
        flops: dict[str, dict[str, float]] = {}
        for grown in (False, True):
            plan = self.plan(chosen if grown else None)
            if not plan.arms:
                continue
            run(plan, out)
            rows = self._rows(plan, out)
            for row in rows:
                if row["chosen"]:
                    own = {name: row[name] for name in self._tuned_names}
                    chosen.setdefault(row["task"], {})[row["arm"]] = Setting(**own)
            trials += rows
            for (task, arm), cost in _costs(plan, out):
                flops.setdefault(task, {})[arm] = cost
        return Tuned(chosen=chosen, trials=trials, flops=flops)

    @property
    def _tuned_names(self) -> list[str]:
        return [name for name, value in asdict(trial_settings(self.study)[0]).items() if value is not None]

    def _rows(self, plan: Plan, out: Path) -> list[dict[str, Any]]:
        """A row per trial and seed; the trial of the lowest mean loss is marked, of equal ones the first."""
        results, _, _ = tables(out, plan.to_dict())
        names = self._tuned_names
        number = {tuple(getattr(own, n) for n in names): k for k, own in enumerate(trial_settings(self.study))}
        results["trial"] = [number[values] for values in results[names].itertuples(index=False, name=None)]
        means = results.groupby(["task", "arm", "trial"])["loss"].mean().reset_index()
        best = means.sort_values(["loss", "trial"]).drop_duplicates(["task", "arm"])
        keys = set(best[["task", "arm", "trial"]].itertuples(index=False, name=None))
        results["chosen"] = [
            key in keys for key in results[["task", "arm", "trial"]].itertuples(index=False, name=None)
        ]
        columns = ["task", "arm", "architecture", "trial", "seed", *names, "status", "loss", "flops", "chosen"]
        return [{str(name): value for name, value in row.items()} for row in results[columns].to_dict("records")]


def _grows(arm: Arm, builder: Builder) -> bool:
    return any(builder.stages[key].kind == "grow" for key in arm.points[-1].path)


def _at(arm: Arm, budget: int) -> Arm:
    """The arm at one budget point alone."""
    (point,) = (point for point in arm.points if point.budget == budget)
    return replace(arm, points=(replace(point, ladder=()),))


def _costs(plan: Plan, out: Path) -> Iterator[tuple[tuple[str, str], float]]:
    """FLOPs of each task's and arm's trials, every distinct stage once."""
    paths: dict[tuple[str, str], set[str]] = {}
    for arm in plan.arms:
        paths.setdefault((arm.about["task"], arm.about["arm"]), set()).update(arm.points[0].path)
    records = Store(out).records()
    for place, keys in paths.items():
        yield place, flops_spent([records[key] for key in keys if key in records])
