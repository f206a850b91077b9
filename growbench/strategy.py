"""The plugin class: a strategy turns a trained source into a larger state, and says what that preserves.

    grow = deepen, then W' = E_w W C_r with one `widen` map per axis, then `fill` into the directions that stay free

A strategy knows axes and maps. When to grow, how far, at which learning rate and budget is the study's business.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from growbench import axes, ledger, maps, model
from growbench.axes import AxisMap, Copies, LayerMap, Maps, Side
from growbench.labels import Axis, Weight
from growbench.shape import Shape
from growbench.state import State, changed


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """Masked growth: the units `new` (boolean over an axis) count from 0 to 1, linearly over `tokens` after growth."""

    axis: str
    new: Tensor
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What a strategy returns: the grown state, frozen entries (boolean masks by weight name) and ramps.

    maps, layers: how the old model lies in the new one, from which the alive share is measured; empty where unknown.
    """

    state: State
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    ramps: tuple[Ramp, ...] = ()
    maps: Maps = field(default_factory=dict)
    layers: LayerMap | None = None


class Probe:
    """Training batches for a strategy that looks at data while growing; what it draws is metered and charged.

    batches, tokens, flops: what was drawn so far, and spent on gradients. More than `allowance` batches: ValueError.
    """

    def __init__(self, draw: Callable[[int], Tensor], allowance: int) -> None:
        self._draw = draw
        self.allowance = allowance
        self.batches = self.tokens = 0
        self.flops = 0.0

    def batch(self) -> Tensor:
        """The next training batch, (B, T + 1) tokens, charged as B T tokens."""
        if self.batches == self.allowance:
            raise ValueError(
                f"the strategy asked for probe batch {self.batches + 1} and declares {self.allowance}: "
                "raise its probe_batches or draw fewer"
            )
        batch = self._draw(self.tokens)
        self.batches += 1
        self.tokens += batch[:, 1:].numel()
        return batch

    def gradients(self, state: State) -> dict[str, Tensor]:
        """Gradients of the loss on the next batch by weight name, charged as one training step."""
        batch = self.batch()
        self.flops += ledger.train_flops(state.shape) * batch[:, 1:].numel()
        return gradients(state, batch)


def gradients(state: State, batch: Tensor) -> dict[str, Tensor]:
    """Gradients of the mean loss on a batch, by weight name; nothing is charged."""
    net = state.model()
    weights = dict(net.weights)
    found = torch.autograd.grad(model.loss(net, batch), list(weights.values()))
    return dict(zip(weights, found, strict=True))


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Base of every strategy; fields of the subclass are its parameters, each with a default.

    Override `widen` at least. Optional: `fill`, `opens`, `deepen`, `target`, `supports`, `preserves`,
    `sterile`; `grow` only where growth is not one linear map per axis.
    """

    source: ClassVar[bool] = True
    """False: the arm is trained from its first token at the target shape, without a source to grow from."""

    @property
    def probe_batches(self) -> int:
        """The most training batches that `grow` draws from its probe at one growth; they count towards the budget."""
        return 0

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        """What growth leaves as it was, verified both ways: the logits, or nothing."""
        return "function"

    @property
    def sterile(self) -> str:
        """Why, by design, no gradient reaches the new capacity; empty where it does."""
        return ""

    def supports(self, source: Shape, target: Shape) -> str:
        """Empty, or the reason why the strategy does not apply to a growth: its arm is then left out, and listed."""
        return ""

    def target(self, source: Shape, target: Shape) -> Shape:
        """The shape that growth ends in: the one asked for, unless the method has its own."""
        return target

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        """The map of one axis from `old` to `new` units."""
        raise ValueError(f"{type(self).__name__} has no map for axis {axis}: override widen(self, axis, old, new, rng)")

    def deepen(self, old: int, new: int) -> LayerMap:
        """Which layer each new layer copies, and which are muted: by default function-preserving insertion."""
        return maps.insert(old, new)

    def opens(self, axis: Axis, axis_map: AxisMap) -> Side:
        """The side of an axis that `fill` may write to: by default the one that the old function cannot see."""
        return axes.unseen(axis, axis_map)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        """What to write into a grown weight's free directions: by default `fresh`, an initialisation of that weight.

        weight: label and sizes; grown: W', read only; grown_maps: the maps of its growing axes; fresh: float64.
        Returns a tensor of these sizes, of which the part in the free directions of the open sides is added
        (axes.free).
        """
        return fresh

    def grow(self, state: State, shape: Shape, probe: Probe, rng: Generator) -> Growth:
        """The source grown to `shape`: a function of its arguments, which it leaves untouched."""
        layers = self.deepen(state.shape.layers, shape.layers) if shape.layers > state.shape.layers else None
        state = state.deepen(layers, rng) if layers else state
        sizes = changed(state.shape, shape)
        stated = {axis: self.widen(axis, old, new, rng) for axis, (old, new) in sizes.items()}
        grown_maps = {axis: Copies.of(m) or m for axis, m in stated.items()}
        grown = state.widen(shape, grown_maps)
        filled = replace(grown, weights=self._filled(grown, grown_maps, rng))
        return Growth(state=filled, maps=grown_maps, layers=layers)

    def _filled(self, grown: State, grown_maps: Maps, rng: Generator) -> dict[str, Tensor]:
        out = dict(grown.weights)
        sides = {axis: self.opens(axis, m) for axis, m in grown_maps.items()}
        for name, weight in grown.shape.weights.items():
            own = {dim.axis: grown_maps[dim.axis] for dim in weight.dims if dim.axis in grown_maps}
            if any(axes.open_dims(weight, own, sides)):
                fresh = model.draw(weight, grown.scaling, rng, torch.float64)
                noise = self.fill(weight, out[name], own, fresh)
                if tuple(noise.shape) != weight.sizes:
                    raise ValueError(
                        f"fill returned sizes {tuple(noise.shape)} for {name} ({weight.label}): return {weight.sizes}"
                    )
                out[name] = out[name] + axes.free(noise, weight, own, sides).to(out[name].dtype)
        return out


@dataclass(frozen=True, kw_only=True)
class Deepening(Strategy):
    """Base of strategies that grow depth alone: override `deepen`. Repeated layers change the function."""

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "nothing"

    def supports(self, source: Shape, target: Shape) -> str:
        if target.layers == source.layers:
            return "it grows depth alone, and the ladder adds no layers"
        layers = self.deepen(source.layers, target.layers)
        wider = changed(source.with_layers(layers.source), target)
        return f"it grows depth alone, and axis {next(iter(wider))} grows too" if wider else ""
