"""The arms of a study: each is a path through the graph of stages (paths.py) for every budget point."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from typing import Any

from torch import Generator

from growbench import plugins
from growbench.axes import AxisMap, LayerMap
from growbench.paths import MATCHED, Builder, Trunk, When, rate
from growbench.settings import Setting, Settings
from growbench.shape import Shape, partial
from growbench.state import changed
from growbench.strategy import Strategy
from growbench.study import StrategySpec, Study, TaskSpec
from growbench.task import Data, Task


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


def arms_of(builder: Builder, task: TaskSpec) -> Iterator[Arm]:
    """Every arm of a task, by architecture, seed and setting; ValueError where a path cannot be built."""
    identity, loaded, data = builder.load(task)
    ladders = {name: builder.ladder(name, data.vocab) for name in builder.study.ladders}
    builder.matched(ladders)
    for architecture, shapes in ladders.items():
        chosen = [spec for spec in builder.study.strategies if spec.runs(architecture, task.label)]
        made = [(spec, builder.made(spec)) for spec in chosen]
        for seed, settings in product(builder.study.seed_numbers, builder.settings):
            builder.recent.clear()
            tree = Tree(
                builder=builder,
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
                    builder.skipped[f"{architecture}/{name}"] = points
                    continue
                about = {"arm": f"{architecture}/{name}", "architecture": architecture, "seed": seed}
                about |= tree.setting(setting, grown=strategy.source and setting == name)
                about["schedule"] = name.removeprefix(spec.label).removeprefix(" @") if strategy.source else ""
                about |= {} if settings.trial is None else {"trial": settings.trial}
                yield Arm(about=about | _about(builder.study, task, loaded, data, spec, strategy), points=tuple(points))


def _about(
    study: Study, task: TaskSpec, loaded: Task, data: Data, spec: StrategySpec, made: Strategy
) -> dict[str, Any]:
    """What the rows of an arm say of it, whatever its architecture, seed and schedule."""
    variant = {k: str(v).lower() if isinstance(v, bool) else v for k, v in spec.parameters.items()}
    return {
        "study": study.study,
        "strategy": spec.name,
        "variant": ", ".join(f"{key}={value}" for key, value in variant.items()),
        "restriction": spec.restriction,
        "task": task.label,
        "probe": loaded.probe,
        "unit": data.unit,
        "sterile": made.sterile,
        "preserves": made.preserves,
        "from_scratch": not made.source,
        "parametrization": study.parametrization,
        "dtype": study.train.precision,
        "device": study.device.accelerator,
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
        rates = [rate(self.shapes[rung]) for rung in when.rungs]
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
        rates = [rate(shape) for shape in self.shapes]
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
        longer = {b.round(self.spent(when, b.total)[0] / rate(trunk.shape))} if not source and when.growths else set()
        ends = [self.cooled(trunk, budget) for budget in sorted({*b.budgets, *longer})]
        points += [self.point(end, last if source else when.rungs[0], last, source, owned) for end in ends]
        return (trunk.shape if source else None), points

    def target(self, spec: StrategySpec, made: Strategy, source: Shape, rung: int, above: int) -> Shape | str:
        """The shape to which a strategy grows a source, or the reason why it does not apply."""
        known = "target", id(made), source, self.shapes[above]
        if known not in self.builder.found:
            with plugins.blamed(self.builder.strategy(spec.name)[0], f"cannot grow from rung {rung} of {self.place}"):
                goal = self.goal(spec, source, self.shapes[above])
                target: Shape | str = plugins.typed("supports", made.supports(source, goal), str)
                if not target:
                    target = plugins.typed("target", made.target(source, goal), Shape)
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
        source = source.with_layers(plugins.typed("deepen", made.deepen(source.layers, target.layers), LayerMap).source)
    if target.layers != source.layers:
        raise ValueError(f"deepen gives {source.layers} layers where {target.layers} are asked for")
    for axis, (old, new) in changed(source, target).items():
        found = plugins.typed("widen", made.widen(axis, old, new, Generator().manual_seed(0)), AxisMap)
        if (found.old, found.new) != (old, new):
            raise ValueError(f"widen maps axis {axis} from {found.old} to {found.new} units, not {old} to {new}")
