"""Trials: a strategy's growth of a small random state, watched, on every kind of growth that a ladder may ask for."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from growbench import model, train
from growbench.checkpoint import Checkpoint
from growbench.conformance.traces import Snapshot
from growbench.parametrization import Name, Parametrization
from growbench.shape import Shape
from growbench.state import State, initial, normed_axes
from growbench.strategy import Growth, Probe, Strategy
from growbench.task import Data
from growbench.train import Bench, generator

EXACT = 1e-8
"""The largest change of a float64 logit, relative to the largest logit, that counts as none."""

DRAWS = 10_000
"""Probe batches after which a strategy is stopped, whatever it declares."""

_SIZES: dict[str, Any] = {
    "layers": 2,
    "residual": 8,
    "heads": 2,
    "key": 4,
    "value": 4,
    "ffn": 8,
    "vocab": 13,
    "context": 8,
}
TRANSFORMER = Shape(**_SIZES)
GATED = Shape(**_SIZES, nonlinearity="swiglu", tied=True)
TOKENFORMER = Shape(**_SIZES, nonlinearity="l2_gelu", placement="everywhere", tokens=4)


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """One kind of growth: sizes times `times`, plus `plus`; it can be asked for again and again.

    scaling: the parametrization; under `standard` a head is grown otherwise (Parametrization.reads).
    """

    architecture: str
    grows: str
    source: Shape
    times: Mapping[str, int] = field(default_factory=dict)
    plus: Mapping[str, int] = field(default_factory=dict)
    scaling: Name = "mup"

    def __str__(self) -> str:
        return f"{self.architecture}, {self.grows}" + (", standard" if self.scaling == "standard" else "")

    def larger(self, shape: Shape) -> Shape:
        sizes = {name: getattr(shape, name) * self.times.get(name, 1) + self.plus.get(name, 0) for name in _SIZES}
        tokens = shape.at("tokens", 0)
        more = tokens * self.times.get("tokens", 1) + self.plus.get("tokens", 0)
        return replace(shape, **sizes, tokens=more if tokens else 0)


_WIDTH = {"residual": 2, "heads": 2, "ffn": 2, "tokens": 2}
_UNEVEN = {"residual": 3, "heads": 1, "value": 1, "ffn": 5, "tokens": 3}
_TIED = "gated transformer with tied embedding"
CASES = (
    Case(architecture="transformer", grows="width", source=TRANSFORMER, times=_WIDTH),
    Case(architecture="transformer", grows="width", source=TRANSFORMER, times=_WIDTH, scaling="standard"),
    Case(architecture="transformer", grows="uneven width", source=TRANSFORMER, plus=_UNEVEN),
    Case(architecture="transformer", grows="feed-forward alone", source=TRANSFORMER, plus={"ffn": 8}),
    Case(architecture="transformer", grows="heads alone", source=TRANSFORMER, times={"heads": 2}),
    Case(architecture="transformer", grows="values alone", source=TRANSFORMER, times={"value": 2}),
    Case(architecture="transformer", grows="residual alone", source=TRANSFORMER, times={"residual": 2}),
    Case(architecture="transformer", grows="depth", source=TRANSFORMER, plus={"layers": 2}),
    Case(architecture="transformer", grows="depth and width", source=TRANSFORMER, times=_WIDTH, plus={"layers": 1}),
    Case(architecture=_TIED, grows="width", source=GATED, times=_WIDTH),
    Case(architecture=_TIED, grows="width", source=GATED, times=_WIDTH, scaling="standard"),
    Case(architecture=_TIED, grows="uneven width", source=GATED, plus=_UNEVEN),
    Case(architecture=_TIED, grows="depth", source=GATED, plus={"layers": 2}),
    Case(architecture="tokenformer", grows="width", source=TOKENFORMER, times=_WIDTH),
    Case(architecture="tokenformer", grows="width", source=TOKENFORMER, times=_WIDTH, scaling="standard"),
    Case(architecture="tokenformer", grows="uneven width", source=TOKENFORMER, plus=_UNEVEN),
    Case(architecture="tokenformer", grows="all tokens", source=TOKENFORMER, times={"ffn": 2, "tokens": 2}),
    Case(architecture="tokenformer", grows="tokens of the projections alone", source=TOKENFORMER, times={"tokens": 2}),
    Case(architecture="tokenformer", grows="feed-forward alone", source=TOKENFORMER, plus={"ffn": 8}),
    Case(architecture="tokenformer", grows="depth", source=TOKENFORMER, plus={"layers": 2}),
)


# --- a place to practise: the engine's own bench, on random tokens ----------------------------------------------------


class _Watched(Data):
    """Data that notes when its validation stream is read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "valid":
            PEEKS.append("the validation stream of the data")
        return super().__getattribute__(name)


@dataclass(frozen=True, kw_only=True)
class _Practice(Bench):
    """The engine's bench on random tokens; it notes when its validation windows are read."""

    def __getattribute__(self, name: str) -> Any:
        if name == "valid":
            PEEKS.append("the bench's validation windows")
        return super().__getattribute__(name)

    @cached_property
    def data(self) -> Data:
        return _data()


@cache
def _data() -> Data:
    rng = np.random.default_rng(0)
    train, valid = (rng.integers(_SIZES["vocab"], size=n, dtype=np.uint8) for n in (4000, 400))
    return _Watched(train=train, valid=valid, vocab=_SIZES["vocab"], unit="symbol")


PEEKS: list[str] = []
"""What was read of validation data since the list was cleared."""


def practice(dtype: torch.dtype, until: int = 0) -> Bench:
    """A bench of batches of three windows."""
    settings = {
        **{"context": _SIZES["context"], "batch": 3, "eval_tokens": 64, "eval_every": 10**9, "warmup": 0, "clip": 1.0},
        **{"optimizer": "adamw", "learning_rate": 0.01, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8},
        "precision": "64-true" if dtype == torch.float64 else "32-true",
    }
    return _Practice(identity={"seed": 0, "train": settings, "until": until}, plugin_paths=(), cache=Path())


@contextmanager
def _watching() -> Iterator[list[str]]:
    """Collect what is read of validation data meanwhile; data of any task that is made meanwhile counts."""
    _data()
    inner = Data.__post_init__

    def noted(self: Data) -> None:
        PEEKS.append("the data of a task that it loaded itself")
        inner(self)

    PEEKS.clear()
    found: list[str] = []
    Data.__post_init__ = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Data.__post_init__ = inner  # type: ignore[method-assign]
        found += sorted(set(PEEKS))


# --- trials -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One growth: what went in, what came out, and what was seen meanwhile; `error` where it raised.

    touched: what of the source changed; left: what changed in the process; peeked: what was read of validation data;
    drawn: batches that were taken from the training data, whatever the probe says.
    """

    case: Case
    source: State
    target: Shape
    growth: Growth
    probe: Probe
    drawn: int
    touched: list[str]
    left: list[str]
    peeked: list[str]
    error: str = ""

    def __str__(self) -> str:
        return str(self.case)

    @cached_property
    def misshapen(self) -> str:
        """What is wrong with the grown state's sizes, in words; empty where nothing is."""
        state = self.growth.state
        try:
            train.check(replace(self.growth, frozen={}, ramps=()), self.target)
        except ValueError as error:
            return str(error)
        if extra := sorted(state.weights.keys() - self.target.weights.keys()):
            return f"the strategy returned a weight {extra[0]} that the shape does not have"
        if state.norms.keys() != {str(axis) for axis in normed_axes(self.target)}:
            return "norms does not name the normed axes of the target: keep those of state.widen or state.recount"
        if state.scaling != self.source.scaling:
            return "the strategy returned another parametrization: keep the source's scaling"
        return ""

    @cached_property
    def unmaskable(self) -> str:
        """What is wrong with frozen masks or ramps, in words; empty where nothing is."""
        try:
            train.check(self.growth, self.target)
        except ValueError as error:
            return str(error)
        if all(name in self.growth.frozen and self.growth.frozen[name].all() for name in self.target.weights):
            return "every weight is frozen: leave the new ones out of frozen"
        return ""

    @property
    def mistyped(self) -> str:
        """The first tensor that has not the source's dtype, in words; empty where all have it."""
        wanted, state = self.source.weights["embed"].dtype, self.growth.state
        for group, named in (("weight", state.weights), ("first moment", state.first), ("second moment", state.second)):
            for name, tensor in named.items():
                if tensor.dtype != wanted:
                    return f"the {group} {name} is {tensor.dtype} and the source {wanted}"
        return ""

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """What the engine would go on from; without masks and ramps where they are wrong."""
        frozen, ramps = ({}, ()) if self.unmaskable else (self.growth.frozen, self.growth.ramps)
        return Checkpoint(state=self.growth.state, frozen=frozen, ramps=ramps, ramp_start=self.growth.state.tokens)

    @cached_property
    def masks(self) -> dict[str, Tensor]:
        """The multipliers right after growth."""
        return self.checkpoint.multipliers(self.checkpoint.ramp_start)

    @cached_property
    def gap(self) -> float:
        """The largest change of a logit, relative to the largest logit; ramps stand at their beginning."""
        before, after = logits(self.source, {}), logits(self.growth.state, self.masks)
        return ((after - before).abs().max() / before.abs().max()).item()

    @cached_property
    def opened(self) -> dict[str, Tensor]:
        """The grown state's gradients, ramps at their end."""
        return gradients(self.growth.state, {})

    @property
    def exact(self) -> bool:
        return self.gap <= EXACT

    @property
    def deepens(self) -> bool:
        return self.target.layers > self.source.shape.layers

    @property
    def adds(self) -> bool:
        return self.target.params > self.source.shape.params


def source(shape: Shape, dtype: torch.dtype, scaling: Name = "mup") -> State:
    """A state with random weights and, as if trained, random moments; the same on every call."""
    rng = generator(0, "conformance", shape)
    state = initial(shape, Parametrization(name=scaling, base=shape), rng, dtype)
    first = {name: torch.randn(w.shape, generator=rng, dtype=dtype) for name, w in state.weights.items()}
    second = {name: 0.1 + torch.rand(w.shape, generator=rng, dtype=dtype) for name, w in state.weights.items()}
    return replace(state, first=first, second=second, steps=dict.fromkeys(first, 7), tokens=240)


def attempt(
    strategy: Strategy,
    case: Case,
    state: State,
    asked: Shape,
    *,
    seed: int = 0,
    before: Callable[[], None] | None = None,
) -> Trial:
    """Grow a state to the strategy's target for `asked`, watched; what `before`, run first, changes is undone."""
    bench = practice(state.weights["embed"].dtype)
    drawn = 0

    def draw(used: int) -> Tensor:
        nonlocal drawn
        drawn += 1
        return bench.batch(state.tokens + used)

    original, state, kept = state, _copy(state), _frozen(state)
    probe, outer = Probe(draw, DRAWS), Snapshot.take()
    target, growth, error = asked, Growth(state=state), ""
    if before:
        before()
    inner = Snapshot.take() if before else outer
    with _watching() as peeked:
        try:
            target = strategy.target(state.shape, asked) if asked != state.shape else asked
            growth = strategy.grow(state, target, probe, generator(seed, "grow"))
            if not isinstance(growth, Growth):
                raise TypeError(f"grow returned a {type(growth).__name__}, not a Growth")
        except (Exception, SystemExit) as raised:
            growth, error = Growth(state=state), f"{type(raised).__name__}: {raised}"
    left = inner.restore()
    if before:
        outer.restore()
    now = _frozen(state)
    touched = [name for name in kept | now if name not in now or name not in kept or kept[name] != now[name]]
    return Trial(
        case=case,
        source=original,
        target=target,
        growth=growth,
        probe=probe,
        drawn=drawn,
        touched=touched,
        left=left,
        peeked=peeked,
        error=error,
    )


def _copy(state: State) -> State:
    """The state on tensors and mappings of its own."""
    weights, first, second = ({n: t.clone() for n, t in g.items()} for g in (state.weights, state.first, state.second))
    norms, steps = dict(state.norms), dict(state.steps)
    return replace(state, weights=weights, first=first, second=second, norms=norms, steps=steps)


def _frozen(state: State) -> dict[str, object]:
    """The content of a state by name, comparable."""
    groups = {"weights": state.weights, "first": state.first, "second": state.second}
    found: dict[str, object] = {f"{g}[{n!r}]": bits(t) for g, named in groups.items() for n, t in named.items()}
    return found | {"norms": dict(state.norms), "steps": dict(state.steps)}


def bits(tensor: Tensor) -> bytes:
    """A tensor's content, so that equal is equal to the last bit, not-a-numbers too."""
    return str((tensor.dtype, tuple(tensor.shape))).encode() + tensor.detach().contiguous().numpy().tobytes()


def alike(one: State, other: State) -> bool:
    """Whether two states agree to the last bit."""
    return one.shape == other.shape and _frozen(one) == _frozen(other)


def _batch(state: State) -> Tensor:
    batch: Tensor = practice(torch.float64).batch(0)
    return batch


def logits(state: State, masks: Mapping[str, Tensor]) -> Tensor:
    """Logits of a fixed batch."""
    net = state.model()
    net.masks = dict(masks)
    with torch.no_grad():
        out: Tensor = net(_batch(state)[:, :-1])
    return out


def gradients(state: State, masks: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Gradients of the loss of a fixed batch, by weight name."""
    net = state.model()
    net.masks = dict(masks)
    weights = dict(net.weights)
    found = torch.autograd.grad(model.loss(net, _batch(state)), list(weights.values()))
    return dict(zip(weights, found, strict=True))
