"""Paths through the graph of stages: what lengthens a path adds a stage, each once.

A path is init -> train -> grow -> train -> ... -> cooldown. Two stages are one where parent and identity are equal, so
paths are built arm by arm (arms.py) and what they share is found, not planned.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from growbench import __version__, ledger, plugins
from growbench.settings import Setting, Settings
from growbench.shape import Shape, solve
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


def _text(value: object) -> str:
    """`canonical`, without its detour for whole numbers and keys."""
    if type(value) is int:
        return str(value)
    return f'"{value}"' if isinstance(value, str) and value.isalnum() and value.isascii() else canonical(value)


rate = cache(ledger.train_flops)
"""FLOPs per training token of a shape."""
_sizes = cache(asdict)
"""A shape as an identity has it; what is returned is not to be changed."""


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
    plugins.derived(plugin, loaded, Strategy)
    with plugins.blamed(plugin, "cannot be used"):
        made: Strategy = loaded(**spec.parameters)
        batches = plugins.typed("probe_batches", made.probe_batches, int)
        if isinstance(batches, bool) or batches < 0:
            raise ValueError(f"probe_batches must be 0 or more, not {batches!r}")
        if made.preserves not in ("function", "nothing"):
            raise ValueError(f"preserves must be function or nothing, not {made.preserves!r}")
        plugins.typed("sterile", made.sterile, str)
    return made


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
            key = self.add(kind, trunk, place, trunk.common, own, tokens, tokens * rate(trunk.shape))
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
        cost = probes * rate(target)
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

    # --- tasks ----------------------------------------------------------------------------------------------------

    def load(self, spec: TaskSpec) -> tuple[dict[str, Any], Task, Data]:
        plugin = plugins.find("task", spec.name, self.plugin_paths)
        parameters = dict(spec.parameters)
        loaded = plugins.load("task", spec.name, self.plugin_paths)
        plugins.derived(plugin, loaded, Task)
        if spec.argument is not None:
            if not loaded.argument:
                raise ValueError(f"task {spec.name!r} takes no argument: write it without {':' + spec.argument!r}")
            parameters[loaded.argument] = spec.argument
        plugins.check(plugin, parameters)
        with plugins.blamed(plugin, "cannot be loaded"):
            task: Task = loaded(**parameters)
            lacking = plugins.typed("missing", task.missing(self.cache), str)
        if lacking:
            raise ValueError(lacking)
        with plugins.blamed(plugin, "cannot be loaded"):
            data = plugins.typed("load", task.load(self.cache), Data)
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
