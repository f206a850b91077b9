"""The loop: a stage's parent checkpoint in, its own out. It owns optimizer, schedule, data, clock and evaluation.

init      weights drawn by their labels
train     the trunk: warm-up, then a constant rate, up to a position in the data
grow      a strategy's growth, with what it changed measured on fixed batches
cooldown  a branch at a budget point: the rate falls linearly to zero; its loss is the arm's loss at that budget

coordinates, on no arm's path, is the check of an architecture's parametrization (coordinates.py).

A train or cooldown stage is kept on its way (progress.py): stopped or killed, it goes on from there to the same bits.
"""

import hashlib
import json
import math
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast

import pandas as pd
import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torchmetrics import MeanMetric

from growbench import coordinates, diagnostics, ledger, model, optimizer, plugins, progress, state
from growbench.checkpoint import Checkpoint
from growbench.diagnostics import Diagnosis, diagnose
from growbench.model import LanguageModel
from growbench.parametrization import Parametrization
from growbench.progress import Journal, Progress
from growbench.shape import Shape
from growbench.state import State, normed_axes
from growbench.store import (
    CHECKPOINT,
    COORDINATES,
    CURVE,
    DIAGNOSTICS,
    EVENTS,
    Record,
    Stage,
    Status,
    Store,
    Unwritable,
    canonical,
)
from growbench.strategy import Growth, Probe
from growbench.task import Data, Stream, evaluation

Notify = Callable[[int], None]
"""Called with the training tokens done so far in a stage."""

Stop = Callable[[], bool]
"""Asked before every step of training whether to stop there."""

EVAL_WINDOWS = 64
"""Validation windows per forward pass."""
KEEP_SECONDS = 300.0
"""How often a stage under way is kept."""


class Stopped(Exception):
    """A stage was asked to stop: what it came to is kept, and executing it again goes on from there."""


@dataclass(kw_only=True)
class Outcome:
    """What a stage came to, before it is written; without a checkpoint where it did not end well, or trains nothing."""

    checkpoint: Checkpoint | None = None
    status: Status = "ok"
    reason: str = ""
    tokens: int = 0
    flops: dict[str, float] = field(default_factory=dict)
    measures: dict[str, float | None] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)
    diagnostics: list[dict[str, Any]] = field(default_factory=list)
    coordinates: pd.DataFrame | None = None

    def diagnosed(self, when: str, found: Diagnosis) -> None:
        """Add what was found before a growth, after it or at the end of training; it is charged to evaluation."""
        self.diagnostics += [{"when": when} | row for row in found.rows]
        self.flops["eval"] = self.flops.get("eval", 0.0) + found.flops


def generator(seed: int, *role: object) -> torch.Generator:
    """A generator for one role of a seed: what one role draws never shifts another's draws."""
    name = "/".join(map(str, (seed, *role)))
    return torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:15], 16))


@cache
def _data(task: str, plugin_paths: tuple[Path, ...], folder: Path) -> Data:
    """The data of a task, by its identity as text; loaded once in a worker's life."""
    identity = json.loads(task)
    loaded: Data = plugins.load("task", identity["name"], plugin_paths)(**identity["parameters"]).load(folder)
    if loaded.fingerprint != identity["fingerprint"]:
        raise ValueError(f"the data of task {identity['name']} changed since the run was planned: run it again")
    return loaded


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a stage runs on: its identity's data, batches and evaluation, and Fabric.

    devices: how many processes train it, machines: on how many; each process has the whole model, and every one of them
    its own share of a batch.
    """

    identity: Mapping[str, Any]
    plugin_paths: tuple[Path, ...]
    cache: Path
    devices: int = 1
    machines: int = 1

    @property
    def context(self) -> int:
        return int(self.identity["train"]["context"])

    @property
    def step(self) -> int:
        """Tokens per step."""
        return self.context * int(self.identity["train"]["batch"])

    @cached_property
    def data(self) -> Data:
        return _data(canonical(self.identity["task"]), self.plugin_paths, self.cache)

    @cached_property
    def stream(self) -> Stream:
        return Stream(self.data.train, context=self.context, seed=self.identity["seed"])

    @cached_property
    def valid(self) -> Tensor:
        """Fixed validation windows (k, T + 1), the same for every arm and seed."""
        return torch.from_numpy(evaluation(self.data.valid, self.context, self.identity["train"]["eval_tokens"]))

    @cached_property
    def diagnosed(self) -> Tensor:
        """The few validation windows of the diagnostics, the same for every arm and seed."""
        return diagnostics.windows(self.valid)

    @cached_property
    def fabric(self) -> Fabric:
        """Fabric, set up; of several devices, this process being one of them (devices.py starts them)."""
        # Stated, or Fabric looks for a scheduler and takes the job's tasks for its own processes.
        environment = LightningEnvironment()
        assert self.devices == 1 or environment.creates_processes_externally, "several devices: devices.execute"
        fabric = Fabric(
            accelerator=self.identity.get("device", "cpu"),
            devices=self.devices // self.machines,
            num_nodes=self.machines,
            strategy="ddp" if self.devices > 1 else "auto",
            precision=self.identity["train"]["precision"],
            plugins=[environment],
        )
        fabric.launch()
        return fabric

    def share(self, windows: Tensor) -> Tensor:
        """This process' part of some windows (B, T + 1), on its device; together the parts are all of them."""
        rank, world = self.fabric.global_rank, self.fabric.world_size
        return windows.tensor_split(world)[rank].to(self.fabric.device)

    def on_device(self, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {axis: mask.to(self.fabric.device) for axis, mask in masks.items()}

    def mean(self, value: Tensor) -> float:
        """The mean of a number over the processes, the same in each."""
        mean = self.fabric.all_reduce(value.detach().clone(), reduce_op="mean")
        assert isinstance(mean, Tensor)
        return float(mean.item())

    def any(self, flag: bool) -> bool:
        """Whether it is so in any of the processes."""
        return flag if self.devices == 1 else self.mean(torch.tensor(float(flag), device=self.fabric.device)) > 0

    @property
    def optimizer_settings(self) -> optimizer.Settings:
        settings = self.identity["train"]
        return optimizer.Settings(**{own.name: settings[own.name] for own in fields(optimizer.Settings)})

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.identity["train"]["precision"] == "64-true" else torch.float32

    def batch(self, tokens: int) -> Tensor:
        """The training batch at a position in the data, (B, T + 1)."""
        return torch.from_numpy(self.stream.batch(tokens // self.context, self.step // self.context))


def execute(
    stage: Stage,
    store: Store,
    plugin_paths: tuple[Path, ...],
    cache: Path,
    notify: Notify,
    restarts: int = 0,
    *,
    keep_every: float = KEEP_SECONDS,
    stop: Stop = lambda: False,
    machines: int = 1,
) -> Record:
    """Run one stage, or what is left of it, and put its folder in place.

    Divergence and errors end in a record too, with their reason. A stage that trains is kept every `keep_every`
    seconds. Stopped where `stop` said so before a step; OSError where the folder cannot be written.
    """
    bench = _bench(stage, plugin_paths, cache, machines)
    under_way = _UnderWay(stage, store, bench, keep_every, stop)
    journal = under_way.journal

    def write(outcome: Outcome) -> Record:
        record = Record.of(
            stage,
            **{name: getattr(outcome, name) for name in ("status", "reason", "tokens", "flops", "measures")},
            started=journal.started,
            wall_s=under_way.spent.wall_s,
            peak_memory_bytes=under_way.spent.peak_memory_bytes,
            restarts=restarts,
            environment=environment(bench),
        )
        ended = {"event": outcome.status, "at": progress.now()}

        def fill(folder: Path) -> None:
            text = "".join(canonical(event) + "\n" for event in (*journal.events, ended))
            (folder / EVENTS).write_text(text, encoding="utf-8")
            if outcome.checkpoint:
                trained_on = stage.kind != "cooldown" or stage.identity["grows"]
                outcome.checkpoint.save(folder / CHECKPOINT, moments=trained_on)
            if outcome.curve:
                pd.DataFrame(outcome.curve).to_parquet(folder / CURVE, index=False)
            if outcome.diagnostics:
                frame = pd.DataFrame(outcome.diagnostics).astype({"axis": "string", "layer": "Int64"})
                frame.to_parquet(folder / DIAGNOSTICS, index=False)
            if outcome.coordinates is not None:
                outcome.coordinates.to_parquet(folder / COORDINATES, index=False)

        return store.write(record, fill)

    def failed(error: BaseException) -> Record:
        journal.note("error", text="".join(traceback.format_exception(error)))
        return write(Outcome(status="failed", reason=f"{type(error).__name__}: {error}{_where(error)}"))

    try:
        outcome = run(stage, bench, under_way, notify)
    except (Stopped, Unwritable):
        raise
    except (Exception, SystemExit) as error:  # a plugin's sys.exit ends its stage, not the worker
        return failed(error)
    try:
        return write(outcome)
    except (RuntimeError, TypeError, ValueError) as error:  # a strategy returned what no checkpoint can hold
        return failed(error)


def assist(
    stage: Stage, store: Store, plugin_paths: tuple[Path, ...], cache: Path, *, stop: Stop, machines: int
) -> None:
    """Compute one process' share of a stage on several devices; the first of them executes it, and alone writes."""
    bench = _bench(stage, plugin_paths, cache, machines)
    run(stage, bench, _UnderWay(stage, store, bench, math.inf, stop), lambda tokens: None)


def _bench(stage: Stage, plugin_paths: tuple[Path, ...], cache: Path, machines: int) -> Bench:
    return Bench(
        identity=stage.identity, plugin_paths=plugin_paths, cache=cache, devices=stage.devices, machines=machines
    )


class _UnderWay:
    """A stage in its store: where it starts from, and when it is kept and stops."""

    def __init__(self, stage: Stage, store: Store, bench: Bench, keep_every: float, stop: Stop) -> None:
        self._stage, self._store, self._bench, self._every, self._stop = stage, store, bench, keep_every, stop
        self._clock = self._last = time.monotonic()
        self.journal, self._kept = Journal(started=progress.now()), 0
        self._resumed: Progress | None = None
        try:
            found = progress.resume(store, stage)
        except ValueError as error:
            self.journal.note("started")
            self.journal.note("discarded", text=str(error))
            if self._writes:
                store.forget(stage.key)
        else:
            if found:
                self._resumed, self.journal = found
                self._kept = self._resumed.tokens
            self.journal.note("resumed" if found else "started", **({"tokens": self._kept} if found else {}))

    @property
    def _writes(self) -> bool:
        return self._bench.devices == 1 or self._bench.fabric.is_global_zero

    @property
    def parent(self) -> Checkpoint:
        """The checkpoint that the stage starts from."""
        assert self._stage.parent is not None
        return Checkpoint.load(self._store.folder(self._stage.parent) / CHECKPOINT)

    @property
    def progress(self) -> Progress:
        """What the stage came to before: where it was kept, or its parent's end."""
        return self._resumed or Progress(checkpoint=self.parent)

    @property
    def spent(self) -> Journal:
        """The journal, with the time of this process and the memory it took."""
        wall, peak = self.journal.wall_s + time.monotonic() - self._clock, _peak_memory()
        return replace(self.journal, wall_s=wall, peak_memory_bytes=max(peak, self.journal.peak_memory_bytes))

    def pause(self, loop: "_Loop") -> None:
        """Between two steps: keep what the stage came to, if it is time; Stopped if it is to stop."""
        stopping, tokens = self._bench.any(self._stop()), loop.progress.tokens
        due = stopping or time.monotonic() - self._last >= self._every
        if due and tokens > self._kept and self._writes:
            if stopping:
                self.journal.note("stopped", tokens=tokens)
            progress.keep(self._store, self._stage, loop.so_far(), self.spent)
            self._kept, self._last = tokens, time.monotonic()
        if stopping:
            raise Stopped(f"{self._stage.label} stopped after {tokens:,} tokens")


def _where(error: BaseException) -> str:
    """The last line outside growbench's core and libraries that an error passed through: a plugin's, if any."""
    core, libraries = str(Path(__file__).parent), ("site-packages", sys.base_prefix)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if str(Path(frame.filename).parent) != core and not any(part in frame.filename for part in libraries):
            return f" ({Path(frame.filename).name}, line {frame.lineno})"
    return ""


def _peak_memory() -> int:
    """Largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def environment(bench: Bench) -> dict[str, Any]:
    """Where a stage ran."""
    cuda = bench.identity.get("device") == "cuda"
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "devices": bench.devices,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
    }


def run(stage: Stage, bench: Bench, under_way: _UnderWay, notify: Notify) -> Outcome:
    """The stage itself: from its parent's checkpoint, or where it was kept, to its outcome."""
    match stage.kind:
        case "init":
            return initialise(bench)
        case "grow":
            return grow(bench, under_way.parent)
        case "train" | "cooldown":
            return train(stage.kind, bench, under_way.progress, notify, under_way.pause)
        case "coordinates":
            return check_coordinates(bench)


def initialise(bench: Bench) -> Outcome:
    """A fresh model of the identity's shape."""
    identity = bench.identity
    scaling = Parametrization(name=identity["scaling"]["name"], base=Shape.read(identity["scaling"]["base"]))
    rng = generator(identity["seed"], "init")
    return Outcome(checkpoint=Checkpoint(state=state.initial(Shape.read(identity["shape"]), scaling, rng, bench.dtype)))


def check_coordinates(bench: Bench) -> Outcome:
    """The coordinate check of the identity's shape, on the first windows that a training run of its seed reads."""
    own, base = bench.identity, Shape.read(bench.identity["shape"])
    multiples, grown, steps, windows, seeds = (own[n] for n in ("multiples", "grown", "steps", "windows", "seeds"))
    batches = [torch.from_numpy(bench.stream.batch(step * windows, windows)) for step in range(steps)]
    measured = coordinates.measure(
        base,
        own["scaling"]["name"],
        batches,
        bench.optimizer_settings,
        architecture="",
        multiples=multiples,
        grown=grown,
        seeds=seeds,
        dtype=bench.dtype,
    )
    cost = coordinates.flops(base, multiples, grown, windows, steps, len(seeds))
    # Equal architectures of two names share the stage: which it is, the plan knows.
    return Outcome(coordinates=measured.drop(columns="architecture"), flops={"eval": cost})


def schedule(kind: str, tokens: int, step: int, start: int, until: int, rises: Sequence[tuple[int, int]]) -> float:
    """The learning rate, as a share of the full one, of the step that ends at `tokens`.

    rises: warm-ups, from a position to a position. A cooldown falls linearly, and reaches zero one step after its end.
    """
    if kind == "cooldown":
        return (until - tokens + step) / (until - start + step)
    return min([1.0, *((tokens - low) / (high - low) for low, high in rises if high > low)])


def train(kind: str, bench: Bench, before: Progress, notify: Notify, pause: "Pause" = lambda loop: None) -> Outcome:
    """Train from where a stage has come to the identity's `until`, evaluating on the way and at the end.

    pause: called before every step.
    """
    with _deterministic() if bench.identity["train"].get("deterministic", False) else nullcontext():
        return _train(_Loop(kind, bench, before), notify, pause)


def _train(loop: "_Loop", notify: Notify, pause: "Pause") -> Outcome:
    bench, every = loop.bench, loop.settings["eval_every"]
    while loop.tokens < loop.until:
        pause(loop)
        if not math.isfinite(loop.step()):
            return loop.diverged()
        notify(loop.progress.tokens)
        if loop.tokens // every > (loop.tokens - bench.step) // every or loop.tokens == loop.until:
            loop.evaluate()
    loss = loop.progress.curve[-1]["loss"]
    if not math.isfinite(loss):
        return loop.diverged()
    trained = loop.so_far().checkpoint
    out = loop.outcome(checkpoint=trained, measures={"loss": loss})
    out.diagnosed("end", diagnose(trained.growth, bench.diagnosed, trained.multipliers(loop.tokens)))
    return out


@contextmanager
def _deterministic() -> Iterator[None]:
    """Meanwhile, torch uses no kernel that may round differently from one run to the next."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


class _Loop:
    """A train or cooldown stage under way: its model, its optimizer, and what it came to so far."""

    def __init__(self, kind: str, bench: Bench, before: Progress) -> None:
        self.kind, self.bench, self.progress = kind, bench, before
        self.settings: Mapping[str, Any] = bench.identity["train"]
        self.parent = parent = before.checkpoint
        self.start, self.until = parent.state.tokens - before.tokens, int(bench.identity["until"])
        self.net = parent.state.model().to(bench.fabric.device)
        frozen = {name for name, mask in parent.frozen.items() if bool(mask.all())}
        for name in frozen:
            self.net.weights[name].requires_grad_(False)
        self.kept = [
            (weight, mask.to(weight.device), weight.detach().clone())
            for name, mask in parent.frozen.items()
            if name not in frozen and bool(mask.any())
            for weight in [self.net.weights[name]]
        ]
        self.cost = ledger.train_flops(parent.state.shape, frozen) * bench.step
        self.inner = optimizer.build(parent.state, self.net, bench.optimizer_settings)
        module = cast(nn.Module, torch.compile(self.net)) if self.settings.get("compile", False) else self.net
        self.module, self.wrapped = bench.fabric.setup(module, self.inner)

    @property
    def tokens(self) -> int:
        """The position in the data."""
        return self.start + self.progress.tokens

    @property
    def rate(self) -> float:
        """The learning rate, at the base shape, of the step that ends at the position."""
        rises = [(0, self.settings["warmup"]), self.bench.identity.get("rewarm", (0, 0))]
        share = schedule(self.kind, self.tokens, self.bench.step, self.start, self.until, rises)
        return float(self.settings["learning_rate"] * share)

    def step(self) -> float:
        """One step; returns its loss, and leaves the weights as they were where that is not finite."""
        self.net.masks = self.bench.on_device(self.parent.multipliers(self.tokens))
        batch = self.bench.share(self.bench.batch(self.tokens))
        self.progress.tokens += self.bench.step
        self._count("train" if self.kind == "train" else "cooldown", self.cost)
        loss = model.loss(self.module, batch)
        if not math.isfinite(value := self.bench.mean(loss)):
            return value
        self.progress.losses.append(value)
        self.bench.fabric.backward(loss)
        self._update()
        return value

    def _update(self) -> None:
        """Step the optimizer; frozen entries add nothing to the gradient's norm and stay where they are."""
        for weight, mask, _ in self.kept:
            assert weight.grad is not None
            weight.grad.masked_fill_(mask, 0.0)
        if self.settings["clip"]:
            self.bench.fabric.clip_gradients(
                self.module, self.wrapped, max_norm=self.settings["clip"], error_if_nonfinite=False
            )
        optimizer.set_rate(self.inner, self.rate)
        self.wrapped.step()
        self.wrapped.zero_grad()
        with torch.no_grad():
            for weight, mask, before in self.kept:
                weight.copy_(torch.where(mask, before, weight))

    def evaluate(self) -> None:
        loss, flops = validate(self.bench, self.net, self.parent.multipliers(self.tokens))
        self._count("eval", flops)
        losses = self.progress.losses
        mean = math.fsum(losses) / len(losses)
        losses.clear()
        self.progress.curve.append(
            {"tokens": self.tokens, "loss": loss, "train_loss": mean, "learning_rate": self.rate}
        )

    def so_far(self) -> Progress:
        """What the stage came to, with a checkpoint of this position."""
        state = optimizer.collect(self.parent.state, self.net, self.inner, self.tokens)
        return replace(self.progress, checkpoint=replace(self.parent, state=state))

    def outcome(self, **more: Any) -> Outcome:
        """What the stage spent and its curve, with whatever else it came to."""
        return Outcome(tokens=self.progress.tokens, flops=self.progress.flops, curve=self.progress.curve, **more)

    def diverged(self) -> Outcome:
        """The outcome of a loop whose last loss was not finite: no checkpoint, but what it spent."""
        return self.outcome(status="diverged", reason=f"the loss was not finite at token {self.tokens:,}")

    def _count(self, purpose: str, flops: float) -> None:
        self.progress.flops[purpose] = self.progress.flops.get(purpose, 0.0) + flops


Pause = Callable[[_Loop], None]


@torch.no_grad()
def validate(bench: Bench, net: LanguageModel, masks: Mapping[str, Tensor]) -> tuple[float, float]:
    """Mean loss in nats per token on the fixed validation windows, and its FLOPs; shared by the processes."""
    net.masks, mean = bench.on_device(masks), MeanMetric().to(bench.fabric.device)
    for windows in torch.split(bench.share(bench.valid), EVAL_WINDOWS):
        mean.update(model.loss(net, windows).double(), weight=len(windows))
    return mean.compute().item(), ledger.forward_flops(net.shape) * bench.valid[:, 1:].numel()


def grow(bench: Bench, parent: Checkpoint) -> Outcome:
    """Grow the parent by the identity's strategy, and measure what that changed."""
    identity, source, start = bench.identity, parent.state, parent.state.tokens
    if masks := parent.multipliers(start):
        raise ValueError(
            f"an earlier growth's ramp of {', '.join(sorted(masks))} has not ended at token {start:,}, where the next "
            "growth is: shorten the ramp, or grow later"
        )
    spec, shape = identity["strategy"], Shape.read(identity["shape"])
    if plugins.source_hash(plugins.find("strategy", spec["name"], bench.plugin_paths)) != spec["plugin"]:
        raise ValueError(f"the source of strategy {spec['name']} changed since the run was planned: run it again")
    strategy = plugins.load("strategy", spec["name"], bench.plugin_paths)(**spec["parameters"])
    probe = Probe(lambda used: bench.batch(start + used), strategy.probe_batches)
    rng = generator(identity["seed"], "grow", start)
    before = measure(bench, Growth(state=source), {})  # now: a strategy may write into its source
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        growth = strategy.grow(source, shape, probe, rng)
    counted = float(counter.get_total_flops())
    try:
        check(growth, shape)
        check_tensors(growth.state, bench.dtype)
        if growth.state.scaling != source.scaling:
            raise ValueError("it returned another parametrization: keep the source's scaling")
    except ValueError as error:
        raise ValueError(f"strategy {spec['name']}: {error}") from None
    grown = growth.state if identity["moments"] == "carried" else growth.state.reset()
    growth = replace(growth, state=replace(grown, tokens=start + probe.tokens))
    out = Outcome(
        checkpoint=Checkpoint(
            state=growth.state,
            frozen=growth.frozen,
            ramps=growth.ramps,
            ramp_start=growth.state.tokens,
            maps=growth.maps,
            layers=growth.layers,
        ),
        tokens=probe.tokens,
        flops={"growth": max(counted - probe.flops, 0.0), "probe": probe.flops},
    )
    measure_growth(bench, before, growth, out)
    return out


def check(growth: Growth, shape: Shape) -> None:
    """Raise ValueError where a strategy returned what the engine cannot train: other sizes, names, masks or ramps."""
    state = growth.state
    if state.shape != shape:
        raise ValueError(f"the strategy returned the shape {state.shape}, and its target says {shape}")
    for name, weight in shape.weights.items():
        found = tuple(state.weights[name].shape) if name in state.weights else None
        if found != weight.sizes:
            raise ValueError(f"the strategy returned the weight {name} with sizes {found}, not {weight.sizes}")
    if extra := sorted(state.weights.keys() - shape.weights.keys()):
        raise ValueError(f"the strategy returned a weight {extra[0]} that the shape does not have")
    if state.norms.keys() != {str(axis) for axis in normed_axes(shape)}:
        raise ValueError(
            "norms does not name the normed axes of the target: keep those of state.widen or state.recount"
        )
    for name, mask in growth.frozen.items():
        if name not in shape.weights or mask.dtype != torch.bool or tuple(mask.shape) != shape.weights[name].sizes:
            raise ValueError(f"frozen[{name!r}] must be a boolean mask of the weight {name!r}, of its sizes")
    if all(name in growth.frozen and bool(growth.frozen[name].all()) for name in shape.weights):
        raise ValueError("every weight is frozen: leave the new ones out of frozen")
    for axis, m in growth.maps.items():
        if m.new != shape.axes.get(axis):
            raise ValueError(
                f"maps[{axis}] ends in {m.new} units, and the target has {shape.axes.get(axis, 0)}: state the maps by "
                "which the source grew to it, or none"
            )
    if growth.layers is not None and len(growth.layers.source) != shape.layers:
        raise ValueError(
            f"layers names {len(growth.layers.source)} layers, and the target has {shape.layers}: state the source of "
            "each of these, or leave layers out"
        )
    ramped = {str(axis): size for axis, size in shape.axes.items() if not axis.name.endswith(("key", "vocab", "_rank"))}
    ramped["layer"] = shape.layers
    for ramp in growth.ramps:
        if ramp.axis not in ramped:
            raise ValueError(f"no ramp acts on the axis {ramp.axis!r}{plugins.nearest(ramp.axis, ramped)}")
        if ramp.new.dtype != torch.bool or tuple(ramp.new.shape) != (ramped[ramp.axis],) or ramp.tokens < 1:
            raise ValueError(
                f"the ramp of {ramp.axis} needs a boolean for each of its {ramped[ramp.axis]} units, and tokens > 0"
            )


def check_tensors(state: State, dtype: torch.dtype) -> None:
    """Raise ValueError where a grown state's tensors have another dtype, or its moments are none that Adam can have."""
    if not state.first.keys() == state.second.keys() == state.steps.keys() <= state.weights.keys():
        raise ValueError("first, second and steps do not name the same weights: carry or reset all three")
    groups = {"weight": state.weights, "first moment": state.first, "second moment": state.second}
    for group, named in groups.items():
        for name, tensor in named.items():
            if tensor.dtype != dtype:
                raise ValueError(f"the {group} {name} is {tensor.dtype}, and the source's {dtype}: keep the source's")
            if tensor.shape != state.weights[name].shape:
                raise ValueError(f"the {group} {name} has not its sizes: carry it with state.widen, or reset")
    for name, second in state.second.items():
        if not (state.first[name].isfinite().all() and second.isfinite().all() and (second >= 0).all()):
            raise ValueError(
                f"the moments of {name} are not finite, or a second one is negative: carry them with state.widen "
                "(axes.transport_square squares the maps), or return state.reset()"
            )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A model on fixed validation windows: logits on the first, loss on all and its FLOPs, diagnosis on a few."""

    logits: Tensor
    loss: float
    flops: float
    diagnosis: Diagnosis


def measure(bench: Bench, measured: Growth, masks: Mapping[str, Tensor]) -> Measured:
    """What growth is to be compared by; of the source, as a growth that says nothing of an old model."""
    net = measured.state.model().to(bench.fabric.device)
    loss, flops = validate(bench, net, masks)
    with torch.no_grad():
        logits = net(bench.share(bench.valid)[:EVAL_WINDOWS, :-1])
    return Measured(logits=logits, loss=loss, flops=flops, diagnosis=diagnose(measured, bench.diagnosed, masks))


def measure_growth(bench: Bench, before: Measured, growth: Growth, out: Outcome) -> None:
    """Largest logit change, loss jump and diagnostics, right after growth; charged to evaluation."""
    assert out.checkpoint is not None
    start = growth.state.tokens
    after = measure(bench, growth, out.checkpoint.multipliers(start))
    gap = (after.logits - before.logits).abs().max().item()
    out.flops["eval"] = before.flops + after.flops
    out.diagnosed("before", before.diagnosis)
    out.diagnosed("after", after.diagnosis)
    out.measures |= {
        "growth_gap": gap if math.isfinite(gap) else None,
        "growth_loss_jump": after.loss - before.loss if math.isfinite(after.loss) else None,
        "alive_share": after.diagnosis.alive_share,
    }
    rate = bench.identity["train"]["learning_rate"]
    out.curve.append({"tokens": start, "loss": after.loss, "train_loss": math.nan, "learning_rate": rate})
