"""From a study to a graph of stages, each paid for once, and to the arms that are paths through it.

An arm's trunk runs init -> train -> grow -> train -> ...; at each budget point a cooldown branches off. Trunks are cut
at the same positions for all arms, so that arms with a common past share its stages: their identities are equal.
"""

import fnmatch
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Generator

from growbench import __version__, ledger, plugins
from growbench.shape import Shape, solve
from growbench.state import changed
from growbench.store import Record, Stage, StageKind, Store
from growbench.strategy import Strategy
from growbench.study import StrategySpec, Study, TaskSpec
from growbench.task import Data, windows

MATCHED = 0.01
"""How far non-embedding parameters may lie from the target's, relative, for sizes to count as matched (PROTOCOL)."""

ASSUMED_RATE = 5e9
"""FLOPs per second and worker that a time is estimated with while no stage of the study has been measured."""

_CORE = (
    "labels", "axes", "maps", "shape", "parametrization", "model", "state",
    "strategy", "ledger", "checkpoint", "optimizer", "train", "task",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Point:
    """An arm at one budget: its path of stage keys, the stages of owning every rung up to its own, and its size."""

    budget: int
    path: tuple[str, ...]
    ladder: tuple[str, ...]
    size: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """An arm of one task and seed: what is known of it before it runs (columns of results.RESULTS), and its points."""

    about: Mapping[str, Any]
    points: tuple[Point, ...]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Stages by key, parents first; arms; arms left out with the reason; and what the run needs besides."""

    study: Study
    stages: Mapping[str, Stage]
    arms: tuple[Arm, ...]
    skipped: Mapping[str, str]
    tasks: tuple[Mapping[str, Any], ...]
    plugin_paths: tuple[Path, ...]
    cache: Path

    def to_dict(self) -> dict[str, Any]:
        """As JSON: what the tables need besides the stage folders."""
        return {
            "study": self.study.to_yaml(),
            "name": self.study.study,
            "arms": [asdict(arm) for arm in self.arms],
            "stages": {key: [stage.kind, stage.parent, stage.label] for key, stage in self.stages.items()},
            "skipped": dict(self.skipped),
            "strategies": list(self._strategies()),
            "tasks": list(self.tasks),
        }

    def _strategies(self) -> Iterator[dict[str, str]]:
        for name in dict.fromkeys(spec.name for spec in self.study.strategies):
            found = plugins.find("strategy", name, self.plugin_paths)
            source = inspect.getdoc(plugins.load("strategy", name, self.plugin_paths)) or ""
            yield {"name": name, "origin": found.origin, "summary": found.summary, "source": source}

    def describe(self, out: Path | None = None) -> dict[str, Any]:
        """Stages, tokens, FLOPs, estimated seconds; given an output folder, what is cached and why the rest is not."""
        records = Store(out).records() if out else {}
        places = {record.label: record for record in records.values()}
        rows = []
        for key, stage in self.stages.items():
            cached = key in records and records[key].status != "failed"
            own = {name: getattr(stage, name) for name in ("kind", "label", "tokens", "flops")}
            why = "" if cached else _why(stage, places.get(stage.label))
            rows.append({"stage": key} | own | {"cached": cached, "why": why})
        left = sum(stage.flops for stage, row in zip(self.stages.values(), rows, strict=True) if not row["cached"])
        rate = _rate(records.values())
        return {
            "study": self.study.study,
            "arms": len({arm.about["arm"] for arm in self.arms}),
            "rows": sum(len(arm.points) for arm in self.arms),
            "stages": rows,
            "cached": sum(bool(row["cached"]) for row in rows),
            "tokens": sum(stage.tokens for stage in self.stages.values()),
            "flops": sum(stage.flops for stage in self.stages.values()),
            "flops_unshared": sum(self.stages[key].flops for a in self.arms for p in a.points for key in p.path),
            "flops_left": left,
            "seconds_per_worker_left": left / (rate or ASSUMED_RATE),
            "rate_measured": rate is not None,
            "skipped": dict(self.skipped),
            "unmatched": sorted({a.about["arm"] for a in self.arms for p in a.points if not p.size["matched"]}),
        }


def _rate(records: Iterable[Record]) -> float | None:
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


def make_plan(study: Study, plugin_paths: Sequence[Path] = (), only: str | None = None, cache: Path = Path()) -> Plan:
    """The plan of a study. Whatever cannot be met is a ValueError here, before anything is trained.

    only: a glob over arm names, with or without their architecture; cache: the folder of fetched data.
    """
    builder = _Builder(study=study, plugin_paths=tuple(plugin_paths), cache=cache)
    arms = [arm for task in study.tasks for arm in builder.arms(task)]
    if only is not None:
        names = sorted({arm.about["arm"] for arm in arms})
        arms = [arm for arm in arms if _matches(arm.about["arm"], only)]
        if not arms:
            raise ValueError(f"no arm matches {only!r}: the arms are {', '.join(names)}")
    used = {key for arm in arms for point in arm.points for key in (*point.path, *point.ladder)}
    return Plan(
        study=study,
        stages={key: stage for key, stage in builder.stages.items() if key in used},
        arms=tuple(arms),
        skipped=builder.skipped,
        tasks=tuple(builder.tasks),
        plugin_paths=tuple(plugin_paths),
        cache=cache,
    )


def _matches(arm: str, pattern: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for name in (arm, arm.partition("/")[2]))


@cache
def core_identity() -> str:
    """What of growbench can change a number: its version, and in a development checkout the hash of that source."""
    here = Path(__file__).parent
    if not (here.parent / ".git").exists():
        return __version__
    sources = b"".join((here / f"{name}.py").read_bytes() for name in _CORE)
    return f"{__version__}+{hashlib.sha256(sources).hexdigest()[:16]}"


def _strategy(spec: StrategySpec, paths: tuple[Path, ...]) -> Strategy:
    plugins.check(plugins.find("strategy", spec.name, paths), spec.parameters)
    made = plugins.load("strategy", spec.name, paths)(**spec.parameters)
    if not isinstance(made, Strategy):
        raise ValueError(f"strategy {spec.name!r} is no growbench.strategy.Strategy: derive its class from that")
    return made


def _reachable(source: Shape, target: Shape) -> None:
    """Raise ValueError where no growth leads from one shape to the other."""
    for name in ("placement", "nonlinearity", "tied", "rank", "vocab", "context"):
        if getattr(source, name) != getattr(target, name):
            raise ValueError(f"they differ in {name}, which no growth changes: keep it equal over a ladder")
    deeper = target.layers > source.layers
    changed(source.with_layers(tuple(i % source.layers for i in range(target.layers))) if deeper else source, target)


@dataclass(frozen=True, kw_only=True)
class _Trunk:
    """The state of a path under construction: its stages so far, its shape and position, and its place in words."""

    keys: tuple[str, ...]
    shape: Shape
    tokens: int
    place: str


@dataclass(kw_only=True)
class _Builder:
    study: Study
    plugin_paths: tuple[Path, ...]
    cache: Path
    stages: dict[str, Stage] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    tasks: list[dict[str, Any]] = field(default_factory=list)

    # --- positions ------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        return self.study.train.batch * self.study.train.context

    def round(self, tokens: float) -> int:
        """The nearest position at which a step ends."""
        return max(round(tokens / self.step), 1) * self.step

    @cached_property
    def total(self) -> int:
        total = self.study.budget.tokens
        if total % self.step:
            below = total // self.step * self.step
            raise ValueError(
                f"a budget of {total:,} tokens cannot be met in steps of {self.step:,} (batch x context): "
                f"give {below:,} or {below + self.step:,}"
            )
        return total

    @cached_property
    def growths(self) -> tuple[int, ...]:
        return tuple(self.round(share * self.total) for share in self.study.budget.split)

    @cached_property
    def budgets(self) -> tuple[int, ...]:
        return tuple(self.round(share * self.total) for share in self.study.budget.points)

    def branch(self, budget: int) -> int:
        """Where the cooldown of a budget point leaves the trunk."""
        return budget - self.round(self.study.budget.cooldown * budget)

    # --- shapes ---------------------------------------------------------------------------------------------------

    def ladder(self, architecture: str, vocab: int) -> list[Shape]:
        shapes = []
        for number, rung in enumerate(self.study.ladders[architecture]):
            try:
                full = {"context": self.study.train.context, "vocab": vocab} | dict(rung)
                params = full.pop("params", None)
                shapes.append(solve(full, params) if isinstance(params, int) else Shape.read(full))
            except ValueError as error:
                raise ValueError(f"rung {number} of {architecture}: {error}") from None
        for number, (source, target) in enumerate(pairwise(shapes)):
            try:
                _reachable(source, target)
            except ValueError as error:
                raise ValueError(f"rungs {number} and {number + 1} of {architecture}: {error}") from None
        return shapes

    def matched(self, ladders: Mapping[str, Sequence[Shape]]) -> None:
        """Refuse rungs whose sizes differ between architectures."""
        for number in range(len(self.study.budget.split) + 1):
            sizes = {name: shapes[number].params_non_embedding for name, shapes in ladders.items()}
            if max(sizes.values()) > (1 + MATCHED) * min(sizes.values()):
                stated = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
                raise ValueError(
                    f"rung {number} is not of one size across architectures (non-embedding weights: {stated}; "
                    f"{MATCHED:.0%} is allowed): give `params` in place of ffn and tokens, and a solver picks them"
                )

    # --- stages ---------------------------------------------------------------------------------------------------

    def add(
        self, kind: StageKind, trunk: _Trunk | None, place: str, identity: dict[str, Any], tokens: int, flops: float
    ) -> str:
        stage = Stage(
            kind=kind,
            label=place,
            parent=trunk.keys[-1] if trunk else None,
            identity=identity,
            tokens=tokens,
            flops=flops,
        )
        self.stages.setdefault(stage.key, stage)
        return stage.key

    def common(self, task: Mapping[str, Any], seed: int) -> dict[str, Any]:
        settings = self.study.train.model_dump(mode="json")
        settings["warmup"] = self.round(self.study.budget.warmup * self.total) if self.study.budget.warmup else 0
        return {"core": core_identity(), "device": "cpu", "task": dict(task), "seed": seed, "train": settings}

    def init(self, common: dict[str, Any], shape: Shape, base: Shape, place: str) -> _Trunk:
        scaling = {"name": self.study.parametrization, "base": asdict(base)}
        key = self.add("init", None, f"{place} init", common | {"shape": asdict(shape), "scaling": scaling}, 0, 0.0)
        return _Trunk(keys=(key,), shape=shape, tokens=0, place=place)

    def train(self, common: dict[str, Any], trunk: _Trunk, until: int, cuts: Sequence[int]) -> _Trunk:
        """The trunk extended to a position, cut where any arm branches."""
        for cut in [c for c in cuts if trunk.tokens < c < until] + [until] * (trunk.tokens < until):
            trunk = self.extend("train", trunk, cut, common)
        return trunk

    def cooldown(self, common: dict[str, Any], trunk: _Trunk, until: int, grows: bool) -> _Trunk:
        """The branch of a trunk that ends at a budget; `grows`: a source is grown from its end."""
        return self.extend("cooldown", trunk, until, common | {"grows": grows})

    def extend(self, kind: StageKind, trunk: _Trunk, until: int, identity: dict[str, Any]) -> _Trunk:
        tokens, place = until - trunk.tokens, f"{trunk.place} {kind} {trunk.tokens:,}-{until:,}"
        cost = tokens * ledger.train_flops(trunk.shape)
        key = self.add(kind, trunk, place, identity | {"until": until}, tokens, cost)
        return replace(trunk, keys=(*trunk.keys, key), tokens=until)

    def grow(self, common: dict[str, Any], trunk: _Trunk, spec: StrategySpec, made: Strategy, target: Shape) -> _Trunk:
        plugin = plugins.find("strategy", spec.name, self.plugin_paths)
        strategy = {"name": spec.name, "parameters": dict(spec.parameters), "plugin": plugins.source_hash(plugin)}
        place = f"{trunk.place} > {spec.label}"
        probes = made.probe_batches * self.step
        identity = common | {"strategy": strategy, "shape": asdict(target)}
        cost = probes * ledger.train_flops(target)
        key = self.add("grow", trunk, f"{place} grow at {trunk.tokens:,}", identity, probes, cost)
        return _Trunk(keys=(*trunk.keys, key), shape=target, tokens=trunk.tokens + probes, place=place)

    # --- arms -----------------------------------------------------------------------------------------------------

    def load(self, spec: TaskSpec) -> tuple[dict[str, Any], Data]:
        plugin = plugins.find("task", spec.name, self.plugin_paths)
        parameters = dict(spec.parameters)
        loaded = plugins.load("task", spec.name, self.plugin_paths)
        if spec.argument is not None:
            if not loaded.argument:
                raise ValueError(f"task {spec.name!r} takes no argument: write it without {':' + spec.argument!r}")
            parameters[loaded.argument] = spec.argument
        plugins.check(plugin, parameters)
        task = loaded(**parameters)
        if lacking := task.missing(self.cache):
            raise ValueError(lacking)
        data: Data = task.load(self.cache)
        for stream in (data.train, data.valid):
            windows(stream, self.study.train.context)
        about = {
            "name": spec.label,
            "fingerprint": data.fingerprint,
            "train_tokens": len(data.train),
            "valid_tokens": len(data.valid),
        }
        self.tasks.append(
            about
            | {
                "entropy_rate": data.entropy_rate,
                "unit": data.unit,
                "vocab": data.vocab,
                "bytes_per_token": data.bytes_per_token,
            }
        )
        identity = {
            "name": spec.name,
            "parameters": parameters,
            "plugin": plugins.source_hash(plugin),
            "fingerprint": data.fingerprint,
        }
        return identity, data

    def arms(self, task: TaskSpec) -> Iterator[Arm]:
        identity, data = self.load(task)
        ladders = {name: self.ladder(name, data.vocab) for name in self.study.ladders}
        self.matched(ladders)
        for architecture, shapes in ladders.items():
            chosen = [s for s in self.study.strategies if architecture in (s.architectures or self.study.ladders)]
            made = [(spec, _strategy(spec, self.plugin_paths)) for spec in chosen]
            for seed in range(self.study.seeds):
                common = self.common(identity, seed)
                place = f"{task.label} seed {seed} {architecture}"
                tree = _Tree(builder=self, common=common, place=place, shapes=shapes)
                for spec, strategy in made:
                    for name, points in tree.paths(spec, strategy):
                        if isinstance(points, str):
                            self.skipped[f"{architecture}/{name}"] = points
                            continue
                        about = {"arm": f"{architecture}/{name}", "architecture": architecture, "seed": seed}
                        yield Arm(about=about | self.about(task, data, spec, strategy), points=tuple(points))

    def about(self, task: TaskSpec, data: Data, spec: StrategySpec, made: Strategy) -> dict[str, Any]:
        variant = {k: str(v).lower() if isinstance(v, bool) else v for k, v in spec.parameters.items()}
        return {
            "study": self.study.study,
            "strategy": spec.name,
            "variant": ", ".join(f"{key}={value}" for key, value in variant.items()),
            "task": task.label,
            "unit": data.unit,
            "sterile": made.sterile,
            "preserves": made.preserves,
            "parametrization": self.study.parametrization,
            "learning_rate": self.study.train.learning_rate,
            "tuned": False,
            "dtype": self.study.train.precision,
            "device": "cpu",
            "data_fingerprint": data.fingerprint,
            "vocab": data.vocab,
            "train_tokens": len(data.train),
            "bytes_per_token": data.bytes_per_token,
            "entropy_rate": data.entropy_rate,
        }


@dataclass(kw_only=True)
class _Tree:
    """All paths of one task, architecture and seed."""

    builder: _Builder
    common: dict[str, Any]
    place: str
    shapes: Sequence[Shape]

    @cached_property
    def equal_flops(self) -> tuple[int, int, int]:
        """Budgets that cost what a path does that grows on schedule.

        In turn: from scratch, all of its cost; from scratch, that after its last growth; the source trained on.
        """
        b, rates = self.builder, [ledger.train_flops(shape) for shape in self.shapes]
        edges = (0, *b.growths, b.total)
        spent = [rate * (end - start) for rate, start, end in zip(rates, edges, edges[1:], strict=False)]
        return b.round(sum(spent) / rates[-1]), b.round(spent[-1] / rates[-1]), b.round(sum(spent) / rates[0])

    @cached_property
    def scratch_budgets(self) -> list[list[int]]:
        """Budget points of the scratch arm of each rung.

        They are the study's; for lower rungs the tokens at which grown paths leave them; for the last those of equal
        FLOPs.
        """
        b = self.builder
        lower = [sorted({*b.budgets, left}) for left in b.growths]
        total, continued, _ = self.equal_flops
        return [*lower, sorted({*b.budgets, *((total, continued) if b.growths else ())})]

    @cached_property
    def cuts(self) -> list[int]:
        b = self.builder
        every = {*b.growths, *(budget for budgets in self.scratch_budgets for budget in budgets)}
        return sorted({*b.growths, *(b.branch(budget) for budget in every)})

    def cooled(self, trunk: _Trunk, budget: int) -> _Trunk:
        """The path from a trunk to a budget point. ValueError where the trunk is beyond the start of its cooldown."""
        b = self.builder
        if trunk.tokens > b.branch(budget):
            raise ValueError(
                f"the budget of {budget:,} tokens of {trunk.place} cannot be met: its cooldown begins at "
                f"{b.branch(budget):,}, and growth, probes included, ends at {trunk.tokens:,}; raise the budget, "
                "grow earlier, or shorten the cooldown"
            )
        grows = b.study.budget.source == "decayed" and budget in b.growths
        return b.cooldown(self.common, b.train(self.common, trunk, b.branch(budget), self.cuts), budget, grows)

    def start(self, rung: int) -> _Trunk:
        return self.builder.init(self.common, self.shapes[rung], self.shapes[0], f"{self.place} rung {rung}")

    def point(self, trunk: _Trunk, rung: int, target: int, source: Shape | None, owned: Sequence[_Trunk]) -> Point:
        """The arm's size at the end of a cooled path, and the stages of owning the rungs below as well."""
        merged, goal = replace(trunk.shape, rank=0), self.shapes[target].params_non_embedding
        size = {
            "rung": rung,
            "matched": abs(merged.params_non_embedding - goal) <= MATCHED * goal,
            "params": merged.params,
            "params_non_embedding": merged.params_non_embedding,
            "params_added": trunk.shape.params_non_embedding - source.params_non_embedding if source else 0,
            "params_target": goal,
        }
        ladder = {key for below in (*owned, trunk) for key in below.keys}
        return Point(budget=trunk.tokens, path=trunk.keys, ladder=tuple(sorted(ladder)), size=size)

    def paths(self, spec: StrategySpec, made: Strategy) -> Iterator[tuple[str, list[Point] | str]]:
        """The arms of a strategy: (name, points), or (name, the reason why it does not apply)."""
        if made.source:
            yield spec.label, self.grown(spec, made)
            return
        below = [self.cooled(self.start(rung), left) for rung, left in enumerate(self.builder.growths)]
        for rung, budgets in enumerate(self.scratch_budgets):
            ends = [self.cooled(self.start(rung), budget) for budget in budgets]
            name = spec.label if rung == len(self.shapes) - 1 else f"{spec.label}@{rung}"
            yield name, [self.point(end, rung, rung, None, below[:rung]) for end in ends]

    def grown(self, spec: StrategySpec, made: Strategy) -> list[Point] | str:
        """The points of a path that grows at every growth of the budget, each rung that it leaves among them."""
        b, trunk = self.builder, self.start(0)
        owned: list[_Trunk] = []
        points: list[Point] = []
        last, decayed = len(self.shapes) - 1, b.study.budget.source == "decayed"
        source: Shape | None = None
        for rung, left in enumerate(b.growths):
            if reason := made.supports(trunk.shape, self.shapes[rung + 1]):
                return reason
            target = self.target(spec, made, trunk.shape, rung)
            if target == trunk.shape and type(made).grow is Strategy.grow:
                continue
            cooled = self.cooled(trunk, left)
            if source:
                points.append(self.point(cooled, rung, rung, source, owned))
            owned.append(cooled)
            trunk = cooled if decayed else b.train(self.common, trunk, left, self.cuts)
            source = trunk.shape
            trunk = b.grow(self.common, trunk, spec, made, target)
        longer = set() if source else {self.equal_flops[2]}
        ends = [self.cooled(trunk, budget) for budget in sorted({*b.budgets, *longer})]
        return points + [self.point(end, last if source else 0, last, source, owned) for end in ends]

    def target(self, spec: StrategySpec, made: Strategy, source: Shape, rung: int) -> Shape:
        try:
            target = made.target(source, self.shapes[rung + 1])
            self.try_maps(made, source, target)
        except ValueError as error:
            raise ValueError(f"{spec.label} cannot grow from rung {rung} of {self.place}: {error}") from None
        return target

    def try_maps(self, made: Strategy, source: Shape, target: Shape) -> None:
        """Ask a strategy for the map of every axis that changes: what it cannot reach is said now."""
        if type(made).grow is not Strategy.grow and type(made).widen is Strategy.widen:
            return  # it grows without maps
        if target.layers > source.layers:
            source = source.with_layers(made.deepen(source.layers, target.layers).source)
        if target.layers != source.layers:
            raise ValueError(f"deepen gives {source.layers} layers where {target.layers} are asked for")
        for axis, (old, new) in changed(source, target).items():
            found = made.widen(axis, old, new, Generator().manual_seed(0))
            if (found.old, found.new) != (old, new):
                raise ValueError(f"widen maps axis {axis} from {found.old} to {found.new} units, not {old} to {new}")
