"""The loop: a stage's parent checkpoint in, its own out. It owns optimizer, schedule, data, clock and evaluation.

init      weights drawn by their labels
train     the trunk: warm-up, then a constant rate, up to a position in the data
grow      a strategy's growth, with what it changed measured on fixed batches
cooldown  a branch at a budget point: the rate falls linearly to zero; its loss is the arm's loss at that budget
"""

import math
import platform
import resource
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from torchmetrics import MeanMetric

from growbench import axes, ledger, model, optimizer, plugins, state
from growbench.checkpoint import Checkpoint
from growbench.model import LanguageModel
from growbench.parametrization import Parametrization
from growbench.shape import Shape
from growbench.store import CHECKPOINT, CURVE, EVENTS, Record, Stage, Store, canonical, digest
from growbench.strategy import Growth, Probe, gradients
from growbench.task import Data, Stream, Task, evaluation

Notify = Callable[[int], None]
"""Called with the training tokens done so far in a stage."""

EVAL_WINDOWS = 64
"""Validation windows per forward pass."""


class Diverged(Exception):
    """A loss that is not finite, at a position in the data."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"the loss was not finite at token {tokens:,}")
        self.tokens = tokens


@dataclass
class Outcome:
    """What a stage made, before it is written."""

    checkpoint: Checkpoint
    tokens: int = 0
    flops: dict[str, float] = field(default_factory=dict)
    measures: dict[str, float | None] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)


def generator(seed: int, role: str, *more: object) -> torch.Generator:
    """A generator for one role of a seed: what one role draws never shifts another's draws."""
    return torch.Generator().manual_seed(int(digest(canonical([seed, role, *more]))[:15], 16))


@cache
def _data(task: Task, folder: Path) -> Data:
    return task.load(folder)


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What a stage runs on: its identity's data, batches and evaluation, and Fabric."""

    identity: Mapping[str, Any]
    plugin_paths: tuple[Path, ...]
    cache: Path

    @property
    def context(self) -> int:
        return int(self.identity["train"]["context"])

    @property
    def step(self) -> int:
        """Tokens per step."""
        return self.context * int(self.identity["train"]["batch"])

    @cached_property
    def data(self) -> Data:
        task = self.identity["task"]
        return _data(plugins.load("task", task["name"], self.plugin_paths)(**task["parameters"]), self.cache)

    @cached_property
    def stream(self) -> Stream:
        return Stream(self.data.train, context=self.context, seed=self.identity["seed"])

    @cached_property
    def valid(self) -> Tensor:
        """Fixed validation windows (k, T + 1), the same for every arm and seed."""
        return torch.from_numpy(evaluation(self.data.valid, self.context, self.identity["train"]["eval_tokens"]))

    @cached_property
    def fabric(self) -> Fabric:
        return Fabric(accelerator="cpu", devices=1, precision=self.identity["train"]["precision"])

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.identity["train"]["precision"] == "64-true" else torch.float32

    def batch(self, tokens: int) -> Tensor:
        """The training batch at a position in the data, (B, T + 1)."""
        return torch.from_numpy(self.stream.batch(tokens // self.context, self.step // self.context))


def execute(
    stage: Stage, store: Store, plugin_paths: tuple[Path, ...], cache: Path, notify: Notify, restarts: int = 0
) -> Record:
    """Run one stage and put its folder in place. Divergence and errors end in a record too, with their reason."""
    started, clock = datetime.now(UTC), time.monotonic()
    bench = Bench(identity=stage.identity, plugin_paths=plugin_paths, cache=cache)
    events = [{"event": "started", "at": started.isoformat(timespec="milliseconds")}]
    outcome, status, reason = None, "ok", ""
    try:
        parent = Checkpoint.load(store.folder(stage.parent) / CHECKPOINT) if stage.parent else None
        outcome = run(stage, bench, parent, notify)
    except Diverged as error:
        status, reason = "diverged", str(error)
    except Exception as error:
        status, reason = "failed", f"{type(error).__name__}: {error}"
        events.append({"event": "error", "text": "".join(traceback.format_exception(error))})
    events.append({"event": status, "at": datetime.now(UTC).isoformat(timespec="milliseconds")})
    done = outcome or Outcome(checkpoint=None)  # type: ignore[arg-type]
    record = Record(
        **{name: getattr(stage, name) for name in ("key", "kind", "label", "parent", "identity")},
        status=status,  # type: ignore[arg-type]
        reason=reason,
        tokens=done.tokens,
        flops=done.flops,
        measures=done.measures,
        started=started.isoformat(timespec="seconds"),
        wall_s=time.monotonic() - clock,
        peak_memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        * (1 if sys.platform == "darwin" else 1024),
        restarts=restarts,
        environment=environment(),
    )

    def fill(folder: Path) -> None:
        (folder / EVENTS).write_text("".join(canonical(event) + "\n" for event in events), encoding="utf-8")
        if outcome:
            decayed = stage.kind == "cooldown" and not stage.identity["grows"]
            outcome.checkpoint.save(folder / CHECKPOINT, moments=not decayed)
            if outcome.curve:
                pd.DataFrame(outcome.curve).to_parquet(folder / CURVE, index=False)

    return store.write(record, fill)


def environment() -> dict[str, Any]:
    """Where a stage ran."""
    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def run(stage: Stage, bench: Bench, parent: Checkpoint | None, notify: Notify) -> Outcome:
    """The stage itself: from its parent's checkpoint to its outcome."""
    match stage.kind:
        case "init":
            return initialise(bench)
        case "grow":
            assert parent is not None
            return grow(bench, parent)
        case "train" | "cooldown":
            assert parent is not None
            return train(stage.kind, bench, parent, notify)


def initialise(bench: Bench) -> Outcome:
    """A fresh model of the identity's shape."""
    identity = bench.identity
    scaling = Parametrization(name=identity["scaling"]["name"], base=Shape.read(identity["scaling"]["base"]))
    rng = generator(identity["seed"], "init")
    return Outcome(checkpoint=Checkpoint(state=state.initial(Shape.read(identity["shape"]), scaling, rng, bench.dtype)))


def schedule(kind: str, tokens: int, start: int, until: int, warmup: int) -> float:
    """The learning rate, as a share of the full one, of the step that ends at `tokens`."""
    if kind == "cooldown":
        return (until - tokens + 1) / (until - start)
    return min(tokens / warmup, 1.0) if warmup else 1.0


def train(kind: str, bench: Bench, parent: Checkpoint, notify: Notify) -> Outcome:
    """Train from the parent's position to the identity's `until`, evaluating on the way and at the end."""
    settings, until = bench.identity["train"], int(bench.identity["until"])
    start = parent.state.tokens
    net = parent.state.model()
    masks = {name: mask for name, mask in parent.frozen.items() if bool(mask.any())}
    for name, mask in masks.items():
        net.weights[name].requires_grad_(not bool(mask.all()))
    adam = optimizer.Settings(
        **{k: settings[k] for k in ("optimizer", "learning_rate", "weight_decay", "betas", "eps")}
    )
    inner = optimizer.build(parent.state, net, adam)
    module, wrapped = bench.fabric.setup(net, inner)
    partly = {name: (mask, net.weights[name].detach().clone()) for name, mask in masks.items() if not bool(mask.all())}
    whole = [name for name in masks if name not in partly]
    cost, out = ledger.train_flops(parent.state.shape, whole), Outcome(checkpoint=parent)
    losses: list[float] = []
    next_eval = (start // settings["eval_every"] + 1) * settings["eval_every"]

    def evaluate(tokens: int) -> None:
        loss, flops = validate(bench, net, parent.multipliers(tokens))
        out.flops["eval"] = out.flops.get("eval", 0.0) + flops
        rate = settings["learning_rate"] * schedule(kind, tokens, start, until, settings["warmup"])
        mean = math.fsum(losses) / len(losses) if losses else math.nan
        out.curve.append({"tokens": tokens, "loss": loss, "train_loss": mean, "learning_rate": rate})
        losses.clear()

    tokens = start
    while tokens < until:
        net.masks = parent.multipliers(tokens)
        batch = bench.batch(tokens)
        tokens += bench.step
        optimizer.set_rate(inner, settings["learning_rate"] * schedule(kind, tokens, start, until, settings["warmup"]))
        loss = model.loss(module, batch)
        if not math.isfinite(value := loss.item()):
            raise Diverged(tokens)
        losses.append(value)
        bench.fabric.backward(loss)
        if settings["clip"]:
            bench.fabric.clip_gradients(module, wrapped, max_norm=settings["clip"], error_if_nonfinite=False)
        wrapped.step()
        wrapped.zero_grad()
        with torch.no_grad():
            for name, (mask, kept) in partly.items():
                net.weights[name].copy_(torch.where(mask, kept, net.weights[name]))
        notify(tokens - start)
        if tokens >= next_eval and tokens < until:
            evaluate(tokens)
            next_eval += settings["eval_every"]
    evaluate(tokens)
    if not math.isfinite(out.curve[-1]["loss"]):
        raise Diverged(tokens)
    out.checkpoint = replace(parent, state=optimizer.collect(parent.state, net, inner, tokens))
    out.tokens = tokens - start
    out.flops["train" if kind == "train" else "cooldown"] = cost * out.tokens
    out.measures["loss"] = out.curve[-1]["loss"]
    return out


@torch.no_grad()
def validate(bench: Bench, net: LanguageModel, masks: Mapping[str, Tensor]) -> tuple[float, float]:
    """Mean loss in nats per token on the fixed validation windows, and its FLOPs."""
    net.masks = dict(masks)
    mean = MeanMetric()
    for windows in bench.valid.split(EVAL_WINDOWS):
        mean.update(model.loss(net, windows).double(), weight=len(windows))
    return mean.compute().item(), ledger.forward_flops(net.shape) * bench.valid[:, 1:].numel()


def grow(bench: Bench, parent: Checkpoint) -> Outcome:
    """Grow the parent by the identity's strategy, and measure what that changed."""
    identity = bench.identity
    spec, source = identity["strategy"], parent.state
    strategy = plugins.load("strategy", spec["name"], bench.plugin_paths)(**spec["parameters"])
    probe = Probe(lambda used: bench.batch(source.tokens + used), strategy.probe_tokens)
    rng = generator(identity["seed"], "grow", source.tokens)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        growth = strategy.grow(source, Shape.read(identity["shape"]), probe, rng)
    counted = float(counter.get_total_flops())
    grown = growth.state if identity["train"]["moments"] == "carried" else growth.state.reset()
    growth = replace(growth, state=replace(grown, tokens=source.tokens + probe.tokens))
    out = Outcome(
        checkpoint=Checkpoint(
            state=growth.state, frozen=growth.frozen, ramps=growth.ramps, ramp_start=growth.state.tokens
        ),
        tokens=probe.tokens,
        flops={"growth": max(counted - probe.flops, 0.0), "probe": probe.flops},
    )
    measure_growth(bench, parent, growth, out)
    return out


def measure_growth(bench: Bench, parent: Checkpoint, growth: Growth, out: Outcome) -> None:
    """Largest logit change, loss jump and alive share, right after growth; charged to evaluation."""
    before, after = parent.state.model(), growth.state.model()
    start = growth.state.tokens
    loss_before, flops_before = validate(bench, before, parent.multipliers(parent.state.tokens))
    loss_after, flops_after = validate(bench, after, out.checkpoint.multipliers(start))
    with torch.no_grad():
        windows = bench.valid[:EVAL_WINDOWS, :-1]
        gap = (after(windows) - before(windows)).abs().max().item()
    batch = bench.batch(start)
    out.flops["eval"] = flops_before + flops_after + ledger.train_flops(growth.state.shape) * batch[:, 1:].numel()
    out.measures |= {
        "growth_gap": gap if math.isfinite(gap) else None,
        "growth_loss_jump": loss_after - loss_before if math.isfinite(loss_after) else None,
        "alive_share": alive_share(growth, gradients(growth.state, batch)),
    }
    rate = bench.identity["train"]["learning_rate"]
    out.curve.append({"tokens": start, "loss": loss_after, "train_loss": math.nan, "learning_rate": rate})


def alive_share(growth: Growth, found: Mapping[str, Tensor]) -> float | None:
    """Share of the squared gradient norm outside the old model's subspace; frozen entries receive none.

    None where the strategy states no maps, or nothing was added.
    """
    if not growth.maps and growth.layers is None:
        return None
    muted = growth.layers.muted if growth.layers else frozenset()
    outside = total = 0.0
    for name, weight in growth.state.shape.weights.items():
        gradient = found[name] if name not in growth.frozen else found[name].masked_fill(growth.frozen[name], 0.0)
        out, all_ = axes.outside_share(gradient, weight, growth.maps)
        outside, total = outside + (all_ if weight.layer in muted else out), total + all_
    return outside / total if total > 0 else 0.0
