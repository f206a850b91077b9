"""The arms of a study as paths through the graph of stages.

A path is init -> train -> grow -> train -> ... -> cooldown. Two stages are one where parent and identity are equal, so
paths are built arm by arm and what they share is found, not planned.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any, TypeVar

from torch import Generator

from growbench import __version__, ledger, plugins
from growbench.axes import AxisMap, LayerMap
from growbench.settings import Setting, Settings
from growbench.shape import Shape, partial, solve
from growbench.state import changed
from growbench.store import Stage, StageKind, canonical, digest
from growbench.strategy import Strategy
from growbench.study import Schedule, StrategySpec, Study, TaskSpec
from growbench.task import Data, Task, windows

MATCHED = 0.01
"""How far non-embedding parameters may lie from the target's, relative, for sizes to count as matched."""

_CORE = (
    "labels", "axes", "maps", "shape", "parametrization", "model", "state",
    "strategy", "ledger", "checkpoint", "progress", "optimizer", "train", "task", "diagnostics",
)  # fmt: skip
"""Modules that can change a number of any stage. diagnostics changes no loss, but alive_share and all that claims of
scale and capacity rest on; coordinates changes those of its own stages alone, and they alone name it.
"""

T = TypeVar("T")


def _text(value: object) -> str:
    """`canonical`, without its detour for whole numbers and keys."""
    if type(value) is int:
        return str(value)
    return f'"{value}"' if isinstance(value, str) and value.isalnum() and value.isascii() else canonical(value)


_rate = cache(ledger.train_flops)
_sizes = cache(asdict)
"""A shape as an identity has it; what is returned is not to be changed."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """An arm at one budget: its path of stage keys, the stages of owning every rung up to its own, and its size.

    ladder: empty where the path leaves rungs out, and so does not own them.
    """

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
class When:
    """A schedule in tokens: the rungs visited and the positions of growth between them."""

    name: str
    rungs: tuple[int, ...]
    growths: tuple[int, ...]
    decayed: bool
    moments: str
    rewarm: int

    @property
    def suffix(self) -> str:
        return f" @{self.name}" if self.name else ""


@dataclass(frozen=True, kw_only=True)
class Trunk:
    """A path under construction: its stages so far, its shape and position, its place in words, what the identities of
    its stages have in common, and its warm-up after growth, from one position to another.
    """

    common: Mapping[str, Any]
    keys: tuple[str, ...]
    shape: Shape
    tokens: int
    place: str
    grown_at: int = 0
    warm_until: int = 0

    def until(self, tokens: int, key: str) -> "Trunk":
        """The trunk with one more stage, which ends there."""
        return Trunk(
            common=self.common,
            keys=(*self.keys, key),
            shape=self.shape,
            tokens=tokens,
            place=self.place,
            grown_at=self.grown_at,
            warm_until=self.warm_until,
        )


@cache
def core_identity(*more: str) -> str:
    """What of growbench can change a number: its version, and in a development checkout the hash of that source.

    more: modules that a stage rests on besides those of every stage.
    """
    here = Path(__file__).parent
    if not (here.parent / ".git").exists():
        return __version__
    sources = b"".join((here / f"{name}.py").read_bytes() for name in (*_CORE, *more))
    return f"{__version__}+{hashlib.sha256(sources).hexdigest()[:16]}"


def made_strategy(spec: StrategySpec, paths: tuple[Path, ...]) -> Strategy:
    """A study's strategy with its parameters; ValueError where there is none such."""
    plugin = plugins.find("strategy", spec.name, paths)
    plugins.check(plugin, spec.parameters)
    loaded = plugins.load("strategy", spec.name, paths)
    _derived(plugin, loaded, Strategy)
    with plugins.blamed(plugin, "cannot be used"):
        made: Strategy = loaded(**spec.parameters)
        batches = _typed("probe_batches", made.probe_batches, int)
        if isinstance(batches, bool) or batches < 0:
            raise ValueError(f"probe_batches must be 0 or more, not {batches!r}")
        if made.preserves not in ("function", "nothing"):
            raise ValueError(f"preserves must be function or nothing, not {made.preserves!r}")
        _typed("sterile", made.sterile, str)
    return made


def _derived(plugin: plugins.Plugin, loaded: object, base: type) -> None:
    """Raise ValueError for a plugin whose class does not derive from its kind's."""
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        named = f"{base.__module__}.{base.__name__}"
        raise ValueError(f"{plugin.kind} {plugin.name!r} ({plugin.origin}) is no {named}: derive its class from that")


def _typed(name: str, value: object, wanted: type[T]) -> T:
    """What a plugin returned; ValueError where it is of another type."""
    if not isinstance(value, wanted):
        raise ValueError(f"{name} gives {type(value).__name__} where {wanted.__name__} is expected")
    return value


def _reachable(source: Shape, target: Shape) -> None:
    """Raise ValueError where no growth leads from one shape to the other."""
    for name in ("placement", "nonlinearity", "tied", "rank", "vocab", "context"):
        if getattr(source, name) != getattr(target, name):
            raise ValueError(f"they differ in {name}, which no growth changes: keep it equal over a ladder")
    deeper = target.layers > source.layers
    changed(source.with_layers(tuple(i % source.layers for i in range(target.layers))) if deeper else source, target)


@dataclass(kw_only=True)
class Builder:
    """Adds the stages of a study's arms, each once."""

    study: Study
    plugin_paths: tuple[Path, ...]
    cache: Path
    settings: Sequence[Settings] = (Settings(),)
    stages: dict[str, Stage] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    found: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)
    """What seeds and arms ask for again and again; beside each, the object that its key names by id."""
    recent: dict[tuple[Any, ...], Any] = field(default_factory=dict, init=False, repr=False)
    """The same of one tree, whose arms share it."""

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
    def whens(self) -> tuple[When, ...]:
        """The study's own schedule, then the others."""
        rungs = len(self.study.budget.split) + 1
        schedules = {"": Schedule()} | self.study.schedules
        return tuple(self.when(name, schedule, rungs) for name, schedule in schedules.items())

    def when(self, name: str, schedule: Schedule, rungs: int) -> When:
        budget = self.study.scheduled(schedule, rungs)
        return When(
            name=name,
            rungs=schedule.rungs or tuple(range(rungs)),
            growths=tuple(self.round(share * self.total) for share in budget.split),
            decayed=budget.source == "decayed",
            moments=schedule.moments or self.study.train.moments,
            rewarm=self.round(budget.rewarm * self.total) if budget.rewarm else 0,
        )

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

    def strategy(self, name: str) -> tuple[plugins.Plugin, str]:
        """A strategy's plugin and the hash of its source."""
        found: tuple[plugins.Plugin, str] | None = self.found.get(("strategy", name))
        if found is None:
            plugin = plugins.find("strategy", name, self.plugin_paths)
            found = self.found["strategy", name] = plugin, plugins.source_hash(plugin)
        return found

    def made(self, spec: StrategySpec) -> Strategy:
        """A study's strategy with its parameters."""
        if ("made", id(spec)) not in self.found:
            self.found["made", id(spec)] = made_strategy(spec, self.plugin_paths)
        made: Strategy = self.found["made", id(spec)]
        return made

    def add(
        self,
        kind: StageKind,
        trunk: Trunk | None,
        place: str,
        common: Mapping[str, Any],
        own: Mapping[str, Any],
        tokens: int = 0,
        flops: float = 0.0,
    ) -> str:
        """Add a stage, whose identity is what it has in common with others and its own; return its key."""
        stage = Stage(
            kind=kind,
            label=place,
            parent=trunk.keys[-1] if trunk else None,
            identity={**common, **own},
            tokens=tokens,
            flops=flops,
            devices=self.study.device.devices if kind in ("train", "cooldown") else 1,
        )
        texts = self.texts(common) | {name: _text(value) for name, value in own.items()}
        identity = ",".join([f'"{name}":{texts[name]}' for name in sorted(texts)])
        key = digest(f'["{kind}",{_text(stage.parent)},{{{identity}}}]')[:24]
        vars(stage)["key"] = key  # as Stage has it, without writing what is common as text once more
        self.stages.setdefault(key, stage)
        return key

    def texts(self, common: Mapping[str, Any]) -> dict[str, str]:
        """The canonical text of every value that identities have in common."""
        if ("texts", id(common)) not in self.recent:
            self.recent["texts", id(common)] = {name: canonical(value) for name, value in common.items()}, common
        texts: dict[str, str] = self.recent["texts", id(common)][0]
        return texts

    def common(self, task: Mapping[str, Any], seed: int, setting: Setting | None = None) -> dict[str, Any]:
        """What identities have in common; the same object for the same."""
        known = "common", id(task), seed, setting
        if known not in self.recent:
            self.recent[known] = self._common(task, seed, setting), task
        common: dict[str, Any] = self.recent[known][0]
        return common

    @cached_property
    def settings_of_study(self) -> dict[str, Any]:
        return self.study.train.model_dump(mode="json", exclude={"moments"})

    def _common(self, task: Mapping[str, Any], seed: int, setting: Setting | None) -> dict[str, Any]:
        settings = dict(self.settings_of_study)
        settings |= {k: v for k, v in asdict(setting).items() if v is not None} if setting else {}
        warmup = settings.get("warmup", self.study.budget.warmup)
        settings["warmup"] = self.round(warmup * self.total) if warmup else 0
        device = self.study.device
        settings |= {name: True for name in ("compile", "deterministic") if getattr(device, name)}
        return {
            "core": core_identity(),
            "device": device.accelerator,
            "task": dict(task),
            "seed": seed,
            "train": settings,
        }

    def init(self, common: Mapping[str, Any], shape: Shape, base: Shape, place: str) -> Trunk:
        known = "init", id(common), shape, base
        key: str | None = self.recent.get(known)
        if key is None:
            scaling = {"name": self.study.parametrization, "base": _sizes(base)}
            own = {"shape": _sizes(shape), "scaling": scaling}
            key = self.recent[known] = self.add("init", None, f"{place} init", common, own)
        return Trunk(common=common, keys=(key,), shape=shape, tokens=0, place=place)

    def train(self, trunk: Trunk, until: int, cuts: Sequence[int]) -> Trunk:
        """The trunk extended to a position, cut where any arm branches."""
        known = "trained", trunk.keys[-1], id(trunk.common), trunk.place, trunk.warm_until, until
        found: Trunk | None = self.recent.get(known)
        if found is None:
            found = trunk
            for cut in [c for c in cuts if trunk.tokens < c < until] + [until] * (trunk.tokens < until):
                found = self.extend("train", found, cut)
            self.recent[known] = found
        return found

    def cooldown(self, trunk: Trunk, until: int, grows: bool) -> Trunk:
        """The branch of a trunk that ends at a budget; `grows`: a source is grown from its end."""
        return self.extend("cooldown", trunk, until, grows=grows)

    def extend(self, kind: StageKind, trunk: Trunk, until: int, **more: bool) -> Trunk:
        """The trunk with one more stage; the same object for the same."""
        known = kind, trunk.keys[-1], id(trunk.common), trunk.place, trunk.warm_until, until, *more.items()
        extended: Trunk | None = self.recent.get(known)
        if extended is None:
            tokens, place = until - trunk.tokens, f"{trunk.place} {kind} {trunk.tokens:,}-{until:,}"
            own: dict[str, Any] = {**more, "until": until}
            if trunk.tokens < trunk.warm_until:
                own["rewarm"] = [trunk.grown_at, trunk.warm_until]
            key = self.add(kind, trunk, place, trunk.common, own, tokens, tokens * _rate(trunk.shape))
            extended = self.recent[known] = trunk.until(until, key)
        return extended

    def grow(
        self,
        trunk: Trunk,
        common: Mapping[str, Any],
        rewarm: int,
        spec: StrategySpec,
        made: Strategy,
        target: Shape,
        when: When,
    ) -> Trunk:
        """The trunk grown; `common`: of the stages from here on, whose rate rises anew over `rewarm` tokens."""
        plugin, source = self.strategy(spec.name)
        strategy = {"name": spec.name, "parameters": dict(spec.parameters), "plugin": source}
        probes, place = made.probe_batches * self.step, f"{trunk.place} > {spec.label}{when.suffix}"
        own = {"strategy": strategy, "shape": _sizes(target), "moments": when.moments}
        cost = probes * _rate(target)
        key = self.add("grow", trunk, f"{place} grow at {trunk.tokens:,}", common, own, probes, cost)
        self.stages[key] = replace(self.stages[key], isolate=plugin.origin != "built-in")
        start = trunk.tokens + probes
        return Trunk(
            common=common,
            keys=(*trunk.keys, key),
            shape=target,
            tokens=start,
            place=place,
            grown_at=start,
            warm_until=start + rewarm,
        )

    # --- arms -----------------------------------------------------------------------------------------------------

    def load(self, spec: TaskSpec) -> tuple[dict[str, Any], Task, Data]:
        plugin = plugins.find("task", spec.name, self.plugin_paths)
        parameters = dict(spec.parameters)
        loaded = plugins.load("task", spec.name, self.plugin_paths)
        _derived(plugin, loaded, Task)
        if spec.argument is not None:
            if not loaded.argument:
                raise ValueError(f"task {spec.name!r} takes no argument: write it without {':' + spec.argument!r}")
            parameters[loaded.argument] = spec.argument
        plugins.check(plugin, parameters)
        with plugins.blamed(plugin, "cannot be loaded"):
            task: Task = loaded(**parameters)
            lacking = _typed("missing", task.missing(self.cache), str)
        if lacking:
            raise ValueError(lacking)
        with plugins.blamed(plugin, "cannot be loaded"):
            data = _typed("load", task.load(self.cache), Data)
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
                "memory": loaded.memory,
            }
        )
        identity = {
            "name": spec.name,
            "parameters": parameters,
            "plugin": plugins.source_hash(plugin),
            "fingerprint": data.fingerprint,
        }
        return identity, task, data

    def arms(self, task: TaskSpec) -> Iterator[Arm]:
        identity, loaded, data = self.load(task)
        ladders = {name: self.ladder(name, data.vocab) for name in self.study.ladders}
        self.matched(ladders)
        for architecture, shapes in ladders.items():
            chosen = [spec for spec in self.study.strategies if spec.runs(architecture, task.label)]
            made = [(spec, self.made(spec)) for spec in chosen]
            for seed, settings in product(self.study.seed_numbers, self.settings):
                self.recent.clear()
                tree = Tree(
                    builder=self,
                    identity=identity,
                    task=loaded,
                    seed=seed,
                    settings=settings,
                    names=(task.label, architecture),
                    shapes=shapes,
                    from_scratch=next((spec.label for spec, strategy in made if not strategy.source), "scratch"),
                )
                for spec, strategy, name, setting, points in _distinct(tree.arms(made), architecture):
                    if isinstance(points, str):
                        self.skipped[f"{architecture}/{name}"] = points
                        continue
                    about = {"arm": f"{architecture}/{name}", "architecture": architecture, "seed": seed}
                    about |= tree.setting(setting, grown=strategy.source and setting == name)
                    about["schedule"] = name.removeprefix(spec.label).removeprefix(" @") if strategy.source else ""
                    about |= {} if settings.trial is None else {"trial": settings.trial}
                    yield Arm(about=about | self.about(task, loaded, data, spec, strategy), points=tuple(points))

    def about(self, task: TaskSpec, loaded: Task, data: Data, spec: StrategySpec, made: Strategy) -> dict[str, Any]:
        variant = {k: str(v).lower() if isinstance(v, bool) else v for k, v in spec.parameters.items()}
        return {
            "study": self.study.study,
            "strategy": spec.name,
            "variant": ", ".join(f"{key}={value}" for key, value in variant.items()),
            "restriction": spec.restriction,
            "task": task.label,
            "probe": loaded.probe,
            "unit": data.unit,
            "sterile": made.sterile,
            "preserves": made.preserves,
            "from_scratch": not made.source,
            "parametrization": self.study.parametrization,
            "dtype": self.study.train.precision,
            "device": self.study.device.accelerator,
            "data_fingerprint": data.fingerprint,
            "vocab": data.vocab,
            "train_tokens": len(data.train),
            "bytes_per_token": data.bytes_per_token,
            "entropy_rate": data.entropy_rate,
            "bits_at_zero": loaded.bits(0.0),
            "bits_at_one": loaded.bits(1.0),
        }


Planned = tuple[StrategySpec, Strategy, str, str, list[Point] | str]
"""An arm: its strategy, made, its name, the arm whose setting it has, and its points or why it does not apply."""


def _distinct(planned: Iterable[Planned], architecture: str) -> Iterator[Planned]:
    """Refuse two arms of one name."""
    taken: dict[str, str] = {}
    for spec, strategy, name, setting, points in planned:
        if other := taken.get(name):
            raise ValueError(
                f"two arms are named {architecture}/{name}, one of {other} and one of {spec.words}: "
                "give one strategy another `arm` label"
            )
        taken[name] = spec.words
        yield spec, strategy, name, setting, points


@dataclass(kw_only=True)
class Tree:
    """All paths of one task, architecture, seed and choice of settings.

    names: of the task and the architecture; from_scratch: of the arm at the last rung that trains sources and all.
    """

    builder: Builder
    identity: Mapping[str, Any]
    task: Task
    seed: int
    settings: Settings
    names: tuple[str, str]
    shapes: Sequence[Shape]
    from_scratch: str

    # --- settings -------------------------------------------------------------------------------------------------

    @property
    def place(self) -> str:
        task, architecture = self.names
        trial = "" if self.settings.trial is None else f" trial {self.settings.trial}"
        return f"{task} seed {self.seed} {architecture}{trial}"

    def own(self, arm: str) -> Setting | None:
        task, architecture = self.names
        return self.settings.of(task, f"{architecture}/{arm}")

    def common(self, arm: str) -> dict[str, Any]:
        """What the stages trained under an arm's setting have in common."""
        return self.builder.common(self.identity, self.seed, self.own(arm))

    def grown_setting(self, arm: str, when: When) -> tuple[dict[str, Any], int]:
        """What an arm's stages have in common once it has grown, and the tokens of its warm-up then."""
        b, own = self.builder, self.own(arm)
        if own is None or own.warmup is None:
            return self.common(arm), when.rewarm
        return b.common(self.identity, self.seed, replace(own, warmup=None)), b.round(own.warmup * b.total)

    def setting(self, arm: str, *, grown: bool) -> dict[str, Any]:
        """The columns that say how an arm was set, and whether that was tuned; `set_as`: whose setting that is."""
        task, architecture = self.names
        study, own = self.builder.study, self.own(arm) or Setting(learning_rate=self.builder.study.train.learning_rate)
        warmup = study.budget.rewarm if grown else study.budget.warmup
        return {
            "set_as": f"{architecture}/{arm}",
            "learning_rate": own.learning_rate,
            "weight_decay": study.train.weight_decay if own.weight_decay is None else own.weight_decay,
            "warmup": warmup if own.warmup is None else own.warmup,
            "tuned": f"{architecture}/{arm}" in self.settings.chosen.get(task, {}),
        }

    def scratch_name(self, rung: int, label: str | None = None) -> str:
        """The from-scratch arm of a rung."""
        label = label or self.from_scratch
        return label if rung == len(self.shapes) - 1 else f"{label}@{rung}"

    # --- budget points --------------------------------------------------------------------------------------------

    def spent(self, when: When, budget: int) -> tuple[float, float]:
        """FLOPs of a path that grows on schedule, to a budget: all of it, and after its last growth."""
        rates = [_rate(self.shapes[rung]) for rung in when.rungs]
        edges = pairwise((0, *when.growths, budget))
        spent = [rate * (end - start) for rate, (start, end) in zip(rates, edges, strict=True)]
        return sum(spent), spent[-1]

    @cached_property
    def scratch_budgets(self) -> list[list[int]]:
        """Budget points of the scratch arm of each rung.

        They are the study's, and under every schedule the tokens at which grown paths leave the rung, and those that
        cost what a grown path has cost by then; of the last rung those that cost what a grown path does at each of the
        study's points, in total and continued.
        """
        b = self.builder
        rates = [_rate(shape) for shape in self.shapes]
        found = [set(b.budgets) for _ in self.shapes]
        for when in b.whens:
            cost, start = 0.0, 0
            for rung, left in zip(when.rungs, when.growths, strict=False):
                cost, start = cost + rates[rung] * (left - start), left
                found[rung].update((left, b.round(cost / rates[rung])))
            if when.growths:
                found[-1].update(b.round(f / rates[-1]) for point in b.budgets for f in self.spent(when, point))
        return [sorted(budgets) for budgets in found]

    @cached_property
    def cuts(self) -> list[int]:
        """Where trunks are cut: at every growth and at the start of every cooldown; of a trial, of its only one."""
        b = self.builder
        growths = {growth for when in b.whens for growth in when.growths}
        if self.settings.trial is not None:
            return sorted({*growths, b.branch(b.total)})
        every = growths.union(*self.scratch_budgets)
        return sorted(growths | {b.branch(budget) for budget in every})

    # --- trunks and branches --------------------------------------------------------------------------------------

    def start(self, rung: int, label: str | None = None) -> Trunk:
        return self.fresh(self.shapes[rung], f"{self.place} rung {rung}", self.scratch_name(rung, label))

    def fresh(self, shape: Shape, place: str, arm: str) -> Trunk:
        return self.builder.init(self.common(arm), shape, self.shapes[0], place)

    def cooled(self, trunk: Trunk, budget: int, *, grows: bool = False) -> Trunk:
        """The path from a trunk to a budget point. ValueError where the trunk is beyond the start of its cooldown."""
        b = self.builder
        if max(trunk.tokens, trunk.warm_until) > b.branch(budget):
            name = "the budget" if self.settings.trial is None else "tuning.tokens"
            raise ValueError(
                f"the budget of {budget:,} tokens of {trunk.place} cannot be met: its cooldown begins at "
                f"{b.branch(budget):,}, and growth, probes and warm-up included, ends at "
                f"{max(trunk.tokens, trunk.warm_until):,}; raise {name}, grow earlier, or shorten the cooldown"
            )
        return b.cooldown(b.train(trunk, b.branch(budget), self.cuts), budget, grows)

    def size(self, shape: Shape, rung: int, target: Shape, source: Shape | None) -> dict[str, Any]:
        """What is known of a point's model; its low-rank additions count as merged."""
        merged, goal = replace(shape, rank=0), target.params_non_embedding
        return {
            "rung": rung,
            "shape": shape.words,
            **{name: getattr(shape, name) for name in ("placement", "nonlinearity", "layers", "residual")},
            "loss_floor": self.task.floor(shape.residual),
            "matched": abs(merged.params_non_embedding - goal) <= MATCHED * goal,
            "params": merged.params,
            "params_non_embedding": merged.params_non_embedding,
            "params_added": shape.params_non_embedding - source.params_non_embedding if source else 0,
            "params_target": goal,
        }

    def point(self, trunk: Trunk, rung: int, target: int, source: Shape | None, owned: Sequence[Trunk]) -> Point:
        """The arm's size at the end of a cooled path, and the stages of owning the rungs below, where it owns all."""
        found, known = self.builder.found, ("size", id(self.task), trunk.shape, source, rung, self.shapes[target])
        if known not in found:
            found[known] = self.size(trunk.shape, rung, self.shapes[target], source), self.task
        size: dict[str, Any] = found[known][0]
        ladder = {key for below in (*owned, trunk) for key in below.keys}
        return Point(
            budget=trunk.tokens,
            path=trunk.keys,
            ladder=tuple(sorted(ladder)) if len(owned) == rung else (),
            size=size,
        )

    # --- arms -----------------------------------------------------------------------------------------------------

    def arms(self, made: Sequence[tuple[StrategySpec, Strategy]]) -> Iterator[Planned]:
        """Every arm.

        A grown arm of matched size and another shape than the ladder's has a scratch arm of that shape beside it.
        """
        others: dict[Shape, str] = {}
        for spec, strategy in made:
            for when in self.builder.whens if strategy.source else ():
                name, found = spec.label + when.suffix, self.grown(spec, strategy, when)
                if isinstance(found, str):
                    yield spec, strategy, name, name, found
                elif found[0] or not when.name:
                    final, points = found
                    setting = name if final else self.scratch_name(when.rungs[0])
                    if final and final != self.shapes[-1] and points[-1].size["matched"]:
                        free = spec.restriction not in others.values() and spec.restriction
                        others.setdefault(final, free or f"@{name}")
                    yield spec, strategy, name, setting, points
        for spec, strategy in made:
            if not strategy.source:
                for name, points in self.scratch(spec.label, others):
                    yield spec, strategy, name, name, points

    def scratch(self, label: str, others: Mapping[Shape, str]) -> Iterator[tuple[str, list[Point]]]:
        """From scratch: every rung, and every other shape in which a grown arm ends."""
        b, last = self.builder, len(self.shapes) - 1
        below = [
            self.cooled(self.start(r, label), left, grows=b.whens[0].decayed)
            for r, left in enumerate(b.whens[0].growths)
        ]
        for rung, budgets in enumerate(self.scratch_budgets):
            grows = {
                left
                for when in b.whens
                if when.decayed
                for r, left in zip(when.rungs, when.growths, strict=False)
                if r == rung
            }
            start = self.start(rung, label)
            ends = [self.cooled(start, budget, grows=budget in grows) for budget in budgets]
            points = [self.point(end, rung, rung, None, below[:rung]) for end in ends]
            yield self.scratch_name(rung, label), points
        for shape, name in others.items():
            start = self.fresh(shape, f"{self.place} {shape.words}", f"{label}{name}")
            ends = [self.cooled(start, budget) for budget in self.scratch_budgets[-1]]
            yield f"{label}{name}", [self.point(end, last, last, None, below) for end in ends]

    def grown(self, spec: StrategySpec, made: Strategy, when: When) -> tuple[Shape | None, list[Point]] | str:
        """Final shape and points of a path that grows on schedule, each rung that it leaves among them.

        None and the source's own points where the strategy never grows; or the reason why it does not apply.
        """
        b, trunk, name = self.builder, self.start(when.rungs[0]), spec.label + when.suffix
        owned: list[Trunk] = []
        points: list[Point] = []
        source: Shape | None = None
        last = len(self.shapes) - 1
        for rung, above, left in zip(when.rungs, when.rungs[1:], when.growths, strict=False):
            target = self.target(spec, made, trunk.shape, rung, above)
            if isinstance(target, str):
                return target
            if target == trunk.shape and type(made).grow is Strategy.grow:
                continue
            cooled = self.cooled(trunk, left, grows=when.decayed)
            if source:
                points.append(self.point(cooled, rung, rung, source, owned))
            owned.append(cooled)
            trunk = cooled if when.decayed else b.train(trunk, left, self.cuts)
            source = trunk.shape
            trunk = b.grow(trunk, *self.grown_setting(name, when), spec, made, target, when)
        longer = {b.round(self.spent(when, b.total)[0] / _rate(trunk.shape))} if not source and when.growths else set()
        ends = [self.cooled(trunk, budget) for budget in sorted({*b.budgets, *longer})]
        points += [self.point(end, last if source else when.rungs[0], last, source, owned) for end in ends]
        return (trunk.shape if source else None), points

    def target(self, spec: StrategySpec, made: Strategy, source: Shape, rung: int, above: int) -> Shape | str:
        """The shape to which a strategy grows a source, or the reason why it does not apply."""
        known = "target", id(made), source, self.shapes[above]
        if known not in self.builder.found:
            with plugins.blamed(self.builder.strategy(spec.name)[0], f"cannot grow from rung {rung} of {self.place}"):
                goal = self.goal(spec, source, self.shapes[above])
                target: Shape | str = _typed("supports", made.supports(source, goal), str)
                if not target:
                    target = _typed("target", made.target(source, goal), Shape)
                    try_maps(made, source, target)
            self.builder.found[known] = target, made
        found: Shape | str = self.builder.found[known][0]
        return found

    def goal(self, spec: StrategySpec, source: Shape, rung: Shape) -> Shape:
        """The shape that a strategy is asked for: the rung's, or of its size within the parts it is restricted to."""
        if not spec.only and not spec.layers:
            return rung
        layers = spec.layers or tuple(range(source.layers))
        if max(layers) >= source.layers:
            raise ValueError(
                f"it is restricted to layer {max(layers)} of a source with layers 0 to {source.layers - 1}"
            )
        return partial(source, rung.params_non_embedding, spec.only or ("attention", "ffn"), layers)


def try_maps(made: Strategy, source: Shape, target: Shape) -> None:
    """Ask a strategy for the map of every axis that changes: what it cannot reach is said now."""
    if type(made).grow is not Strategy.grow and type(made).widen is Strategy.widen:
        return  # it grows without maps
    if target.layers > source.layers:
        source = source.with_layers(_typed("deepen", made.deepen(source.layers, target.layers), LayerMap).source)
    if target.layers != source.layers:
        raise ValueError(f"deepen gives {source.layers} layers where {target.layers} are asked for")
    for axis, (old, new) in changed(source, target).items():
        found = _typed("widen", made.widen(axis, old, new, Generator().manual_seed(0)), AxisMap)
        if (found.old, found.new) != (old, new):
            raise ValueError(f"widen maps axis {axis} from {found.old} to {found.new} units, not {old} to {new}")
