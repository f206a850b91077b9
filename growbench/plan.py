"""From a study to a graph of stages, each paid for once, and to the arms that are paths through it.

An arm's trunk runs init -> train -> grow -> train -> ...; at each budget point a cooldown branches off. Trunks are cut
at the same positions for all arms, so that arms with a common past share its stages: their identities are equal.
Beside them each architecture has one coordinate check, on no arm's path: the study's parametrization is seen to hold.
"""

import fnmatch
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from growbench import coordinates, optimizer, plugins
from growbench.arms import Arm, arms_of
from growbench.paths import Builder, core_identity
from growbench.settings import Settings, Tuned
from growbench.store import Record, Stage, Store
from growbench.study import Study

ASSUMED_RATE = 15e9
"""FLOPs per second and worker that a time is estimated with while no stage of the study has been measured."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Stages by key, parents first; arms; arms left out with the reason; and what the run needs besides.

    coordinates: the architecture, task and stage key of every coordinate check.
    """

    study: Study
    stages: Mapping[str, Stage]
    arms: tuple[Arm, ...]
    skipped: Mapping[str, str]
    tasks: tuple[Mapping[str, Any], ...]
    plugin_paths: tuple[Path, ...]
    cache: Path
    tuned: Tuned | None = None
    coordinates: tuple[Mapping[str, str], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON: what the tables need besides the stage folders."""
        return {
            "study": self.study.to_yaml(),
            "name": self.study.study,
            "arms": [
                {"about": dict(arm.about), "points": [dict(vars(point)) for point in arm.points]} for arm in self.arms
            ],
            "stages": {key: [stage.kind, stage.parent, stage.label] for key, stage in self.stages.items()},
            "coordinates": list(self.coordinates),
            "skipped": dict(self.skipped),
            "strategies": list(self._strategies()),
            "tasks": list(self.tasks),
            "tuned": self.tuned.to_dict() if self.tuned else None,
        }

    def _strategies(self) -> Iterator[dict[str, str]]:
        for name in dict.fromkeys(spec.name for spec in self.study.strategies):
            found = plugins.find("strategy", name, self.plugin_paths)
            source = inspect.getdoc(plugins.load("strategy", name, self.plugin_paths)) or ""
            yield {"name": name, "origin": found.origin, "summary": found.summary, "source": source}

    def describe(self, out: Path | None = None) -> dict[str, Any]:
        """Stages, tokens, FLOPs, estimated seconds; given an output folder, what is cached and why the rest is not.

        Evaluation is in none of them, nor are the coordinate checks, which are charged to it.
        """
        records = Store(out).records() if out else {}
        places = {record.label: record for record in records.values()}
        rows, given_up = [], self.above(records, "diverged")
        for key, stage in self.stages.items():
            cached = key in records and records[key].status != "failed"
            own = {name: getattr(stage, name) for name in ("kind", "label", "tokens", "flops")}
            why = "" if cached else _why(stage, places.get(stage.label))
            why = "what it builds on diverged" if key in given_up else why
            rows.append({"stage": key} | own | {"cached": cached, "why": why})
        left = sum(float(row["flops"]) for row in rows if not row["cached"] and row["stage"] not in given_up)
        rate = measured_rate(records.values())
        return {
            "study": self.study.study,
            "arms": len({arm.about["arm"] for arm in self.arms}),
            "rows": sum(len(arm.points) for arm in self.arms),
            "stages": rows,
            "cached": sum(bool(row["cached"]) for row in rows),
            "tokens": sum(stage.tokens for stage in self.stages.values()),
            "flops": float(sum(stage.flops for stage in self.stages.values())),
            "flops_unshared": float(sum(self.stages[key].flops for a in self.arms for p in a.points for key in p.path)),
            "flops_left": left,
            "seconds_per_worker_left": left / (rate or ASSUMED_RATE),
            "rate_measured": rate is not None,
            "skipped": dict(self.skipped),
            "unmatched": sorted({a.about["arm"] for a in self.arms for p in a.points if not p.size["matched"]}),
            "notes": self._notes(),
        }

    def above(self, records: Mapping[str, Record], *statuses: str) -> set[str]:
        """The stages that build on one that ended with such a status, and so are not run."""
        found: set[str] = set()
        for key, stage in self.stages.items():
            parent = records.get(stage.parent or "")
            if stage.parent in found or (parent is not None and parent.status in statuses):
                found.add(key)
        return found

    def _notes(self) -> list[str]:
        """What a reader of the results would hold against the study."""
        notes: list[str] = []
        if self.tuned:
            notes += _at_the_edge(self.tuned)
        elif self.study.tuning:
            notes.append("tuning is not done: until it is, stages are those of the study's own learning rate")
        else:
            notes.append("every arm has the study's learning rate: no verdict rests on an untuned study")
        if not any(arm.about["from_scratch"] for arm in self.arms):
            notes.append("no arm is trained from scratch: add the strategy scratch, or growth is compared with nothing")
        for task in self.tasks:
            epochs = max(p.budget for arm in self.arms for p in arm.points) / task["train_tokens"]
            if epochs > 1 and not task["memory"]:
                notes.append(f"{task['name']} is read {epochs:.2g} times: a verdict needs less than one epoch of data")
        if not any(stage.kind == "grow" for stage in self.stages.values()):
            notes.append("nothing grows: no strategy changes a rung, or the ladders' rungs are equal")
        return notes


def _at_the_edge(tuned: Tuned) -> Iterator[str]:
    """Say where the best learning rate may lie beyond those that were tried."""
    tried = {row["learning_rate"] for row in tuned.trials}
    chosen = [own.learning_rate for arms in tuned.chosen.values() for own in arms.values()]
    if count := sum(rate in (min(tried), max(tried)) for rate in chosen):
        yield (
            f"{count} of {len(chosen)} arms, counted by task, chose the smallest or largest learning rate tried: "
            "widen tuning.learning_rate"
        )


def measured_rate(records: Iterable[Record]) -> float | None:
    """FLOPs per second of the training stages that have run, if any has."""
    trained = [record for record in records if record.kind in ("train", "cooldown") and record.wall_s > 0]
    wall = sum(record.wall_s for record in trained)
    return sum(sum(record.flops.values()) for record in trained) / wall if wall else None


def _why(stage: Stage, stored: Record | None) -> str:
    """Why a stage is not cached, against what was last stored at its place in the study."""
    if stored is None:
        return "not run yet"
    if stored.status == "failed":
        return f"failed: {stored.reason}"
    if stored.parent != stage.parent:
        return "its parent changed"
    for name, value in stage.identity.items():
        before = stored.identity.get(name)
        if before != value:
            if isinstance(value, Mapping) and isinstance(before, Mapping):
                parts = [part for part in value if value[part] != before.get(part)]
                return f"{name}: {', '.join(parts)} changed"
            return f"{name} changed"
    return "not run yet"


def make_plan(
    study: Study,
    plugin_paths: Sequence[Path] = (),
    only: str | None = None,
    cache: Path = Path(),
    tuned: Tuned | None = None,
) -> Plan:
    """The plan of a study. Whatever cannot be met is a ValueError here, before anything is trained.

    only: a glob over arm names, with or without their architecture; cache: the folder of fetched data; tuned: what
    tuning chose for the arms, without which all have the study's own setting.
    """
    settings = Settings(chosen=tuned.chosen) if tuned else Settings()
    builder = Builder(study=study, plugin_paths=tuple(plugin_paths), cache=cache, settings=(settings,))
    arms = [_costed(arm, tuned) for task in study.tasks for arm in arms_of(builder, task)]
    arms = selected(arms, only)
    first = {arm.about["architecture"]: arm for arm in reversed(arms)}
    checks = {name: _check(builder, first[name]) for name in study.ladders if name in first}
    return Plan(
        study=study,
        stages=used_stages(builder.stages, arms) | {stage.key: stage for stage in checks.values()},
        arms=tuple(arms),
        skipped=builder.skipped,
        tasks=tuple(builder.tasks),
        plugin_paths=tuple(plugin_paths),
        cache=cache,
        tuned=tuned,
        coordinates=tuple(
            {"architecture": name, "task": first[name].about["task"], "stage": stage.key}
            for name, stage in checks.items()
        ),
    )


def _check(builder: Builder, arm: Arm) -> Stage:
    """The coordinate check of an arm's architecture, on its task and with the study's own setting.

    Its seeds are the same in every study, so that folders of other seeds share it. It plans no training tokens.
    """
    architecture, start = arm.about["architecture"], builder.stages[arm.points[0].path[0]].identity
    base = start["scaling"]["base"]
    ladder = builder.ladder(architecture, base["vocab"])
    common = builder.common(start["task"], seed=0)
    names = ("context", "precision", *(field.name for field in fields(optimizer.Settings)))
    own = {
        "core": core_identity("coordinates"),
        "device": "cpu",  # wherever the study trains: only how the numbers change with width is asked
        "train": {name: common["train"][name] for name in names},
        "shape": base,
        "scaling": start["scaling"],
    }
    return Stage(
        kind="coordinates",
        label=f"{arm.about['task']} {architecture} coordinates",
        parent=None,
        identity=common | own | coordinates.design(ladder, builder.total),
    )


def _costed(arm: Arm, tuned: Tuned | None) -> Arm:
    """The arm with what its tuning cost."""
    cost = tuned.flops.get(arm.about["task"], {}).get(arm.about["set_as"], 0.0) if tuned else 0.0
    return replace(arm, about={**arm.about, "flops_tuning": cost})


def used_stages(stages: Mapping[str, Stage], arms: Iterable[Arm]) -> dict[str, Stage]:
    """The stages that arms' points rest on, parents first."""
    used = {key for arm in arms for point in arm.points for key in (*point.path, *point.ladder)}
    return {key: stage for key, stage in stages.items() if key in used}


def selected(arms: Sequence[Arm], only: str | None) -> list[Arm]:
    """The arms that a glob names, with or without their architecture, or all; ValueError where it names none."""
    names = [arm.about["arm"] for arm in arms]
    if only is None:
        return list(arms)
    found = [
        arm
        for arm, name in zip(arms, names, strict=True)
        if any(fnmatch.fnmatchcase(word, only) for word in (name, name.partition("/")[2]))
    ]
    if not found:
        raise ValueError(f"no arm matches {only!r}: the arms are {', '.join(sorted(set(names)))}")
    return found
