"""Tuning: equally many trials for every arm, from one space that knows no strategy, on seeds that no result uses.

    setting of an arm = the trial whose mean loss over the tuning seeds, at the proxy budget, is lowest

Of equal ones it is the first. One of which a seed diverged or failed is chosen only where that is so of all.

The from-scratch arms are tuned first. Grown arms are tuned on the sources that these choices make, one source for all
trials and strategies; what a trial sets is their training from the first growth on. An arm that never grows is its
source trained on, and has the source's setting.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from scipy.stats import qmc

from growbench.arms import Arm, arms_of
from growbench.paths import Builder
from growbench.plan import Plan, selected, used_stages
from growbench.settings import Chosen, Setting, Settings, Tuned
from growbench.store import Record, Store
from growbench.study import Range, Study
from growbench.tables import flops_spent, tables

Run = Callable[[Plan, Path], object]
"""Runs what is left of a plan into a folder, and writes its tables."""


def trial_settings(study: Study) -> tuple[Setting, ...]:
    """The settings that are tried: a Halton sequence over the logarithms of the space, three digits each.

    ValueError where two are equal then.
    """
    assert study.tuning is not None
    space = {name: r for name in Setting.__dataclass_fields__ if (r := getattr(study.tuning, name)) is not None}
    points = qmc.Halton(d=len(space), scramble=False).random(study.tuning.trials + 1)[1:]  # its first point is a corner
    settings = tuple(
        Setting(**{name: _drawn(r, float(share)) for (name, r), share in zip(space.items(), point, strict=True)})
        for point in points
    )
    if len(set(settings)) < len(settings):
        raise ValueError("two trials of tuning are equal at three digits: give fewer, or widen a range")
    return settings


def _drawn(space: Range, share: float) -> float:
    value = float(f"{space.low * (space.high / space.low) ** share:.3g}")
    return min(max(value, space.low), space.high)


def choice(results: pd.DataFrame) -> dict[tuple[str, str], int]:
    """The number of the trial chosen by (task, arm), of rows with task, arm, trial, status and loss, one per seed."""
    bad = results["status"] != "ok"
    means = results.assign(bad=bad).groupby(["task", "arm", "trial"]).agg({"bad": "any", "loss": "mean"}).reset_index()
    best = means.sort_values(["bad", "loss", "trial"]).drop_duplicates(["task", "arm"])
    return {(task, arm): trial for task, arm, trial in best[["task", "arm", "trial"]].itertuples(index=False)}


class _Unfinished(Exception):
    """Trials are left."""


@dataclass(frozen=True, kw_only=True)
class Tuner:
    """Plans and runs a study's trials.

    only: a glob over arm names; the arms that match are tuned, and the from-scratch arms of the rungs below theirs.
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
        found = [arm for task in proxy.tasks for arm in arms_of(builder, task)]
        wanted = selected(found, self.only)
        names, architectures = ({arm.about[name] for arm in wanted} for name in ("arm", "architecture"))
        _has_sources(wanted, found)
        if chosen is None:
            last = len(proxy.budget.split)
            below = [a for a in found if a.points[0].size["rung"] < last and a.about["architecture"] in architectures]
            names |= {arm.about["arm"] for arm in below}
            kept = [arm for arm in found if arm.about["from_scratch"] and arm.about["arm"] in names]
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

    def known(self, out: Path) -> tuple[Plan, Tuned | None]:
        """All trials, and what was chosen in `out` before, None while some are left.

        As long as sources are not chosen, the first trial's stand for them: grown arms cost the same on any.
        """
        found: list[Plan] = []

        def look(plan: Plan, folder: Path) -> None:
            found.append(plan)
            records = Store(folder).records()
            if plan.stages.keys() - records.keys() - plan.above(records, "diverged", "failed"):
                raise _Unfinished

        try:
            tuned = self.run(out, look)
        except _Unfinished:
            tuned = None
            if len(found) == 1:
                found.append(self.plan(self._assumed(found[0])))
        stages = {key: stage for plan in found for key, stage in plan.stages.items()}
        return replace(found[0], stages=stages, arms=tuple(arm for plan in found for arm in plan.arms)), tuned

    def _assumed(self, plan: Plan) -> Chosen:
        chosen: dict[str, dict[str, Setting]] = {}
        for arm in plan.arms:
            chosen.setdefault(arm.about["task"], {})[arm.about["arm"]] = trial_settings(self.study)[0]
        return chosen

    def run(self, out: Path, run: Run) -> Tuned:
        """Run all trials into `out`, resuming those that are there, and choose."""
        chosen: dict[str, dict[str, Setting]] = {}
        trials: list[dict[str, Any]] = []
        flops: dict[str, dict[str, float]] = {}
        spent: dict[str, Record] = {}
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
            spent |= {key: record for key, record in Store(out).records().items() if key in plan.stages}
        return Tuned(chosen=chosen, trials=trials, flops=flops, flops_total=flops_spent([*spent.values()]))

    @property
    def _tuned_names(self) -> list[str]:
        return [name for name, value in asdict(trial_settings(self.study)[0]).items() if value is not None]

    def _rows(self, plan: Plan, out: Path) -> list[dict[str, Any]]:
        """A row per trial and seed; the chosen trial is marked."""
        results, _, _ = tables(out, plan.to_dict())
        names = self._tuned_names
        number = {tuple(getattr(own, n) for n in names): k for k, own in enumerate(trial_settings(self.study))}
        results["trial"] = [number[values] for values in results[names].itertuples(index=False, name=None)]
        best = choice(results)
        places = zip(results["task"], results["arm"], results["trial"], strict=True)
        results["chosen"] = [best[task, arm] == trial for task, arm, trial in places]
        columns = ["task", "arm", "architecture", "trial", "seed", *names, "status", "loss", "flops", "chosen"]
        return [{str(name): value for name, value in row.items()} for row in results[columns].to_dict("records")]


def _has_sources(wanted: Sequence[Arm], found: Sequence[Arm]) -> None:
    """Raise ValueError where an arm has a source that no from-scratch arm tunes on its task."""
    scratch = {(arm.about["task"], arm.about["architecture"]) for arm in found if arm.about["from_scratch"]}
    for arm in wanted:
        if (arm.about["task"], arm.about["architecture"]) not in scratch:
            raise ValueError(
                f"the source of {arm.about['arm']} would not be tuned on {arm.about['task']}: add the strategy scratch "
                "there, or leave tuning out"
            )


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
