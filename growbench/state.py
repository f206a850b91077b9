"""A training state, and how it grows: weights, Adam's moments and norms are carried by the same axis maps."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Generator, Tensor

from growbench import axes
from growbench.axes import LayerMap, Maps
from growbench.labels import Axis, Weight
from growbench.model import LanguageModel, draw
from growbench.parametrization import Parametrization
from growbench.shape import Shape

Tensors = Mapping[str, Tensor]
T = TypeVar("T")
RESIDUAL = Axis(name="residual")


@dataclass(frozen=True, kw_only=True)
class State:
    """Everything that training goes on from.

    weights by name; first and second moments and the steps behind them, of the weights that have been trained; norms:
    the n that a normalised axis' factor counts, by axis; tokens: position in the data.
    """

    shape: Shape
    scaling: Parametrization
    weights: Tensors
    norms: Mapping[str, float]
    first: Tensors = field(default_factory=dict)
    second: Tensors = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)
    tokens: int = 0

    def model(self) -> LanguageModel:
        """The model of this state, on copies of its weights."""
        return LanguageModel(self.shape, {n: w.clone() for n, w in self.weights.items()}, self.norms, self.scaling)

    def reset(self) -> "State":
        """Without moments, as a fresh optimizer starts."""
        return replace(self, first={}, second={}, steps={})

    def recount(self) -> "State":
        """With every norm's factor counting all units of its axis, as the published TokenFormer layer does."""
        return replace(self, norms={str(axis): float(self.shape.axes[axis]) for axis in normed_axes(self.shape)})

    def widen(self, shape: Shape, maps: Maps) -> "State":
        """The state grown to `shape`, by one map for each axis that changes; the same function where maps commute."""
        assert all(m.new == shape.axes[axis] for axis, m in maps.items())
        dtype = self.weights["embed"].dtype

        def source(name: str, weight: Weight) -> Tensor:
            blank = [maps[dim.axis].old if dim.axis in maps else dim.size for dim in weight.dims]
            return self.weights[name] if name in self.weights else torch.zeros(blank, dtype=dtype)

        labels = {name: self.scaling.reads(weight) for name, weight in shape.weights.items()}
        return replace(
            self,
            shape=shape,
            weights={name: axes.grow(source(name, weight), weight, maps) for name, weight in labels.items()},
            first={name: axes.transport(m, labels[name], maps) for name, m in self.first.items()},
            second={name: axes.transport_square(v, labels[name], maps) for name, v in self.second.items()},
            norms={name: n * _multiplicity(name, maps) for name, n in self.norms.items()},
        )

    def deepen(self, layers: LayerMap, rng: Generator) -> "State":
        """The state with the layers of `layers`, copied with their moments; muted ones write zero to the residual."""
        shape = self.shape.with_layers(layers.source)
        origin = {
            name: weight.part if weight.layer is None else f"{layers.source[weight.layer]}/{weight.part}"
            for name, weight in shape.weights.items()
        }
        muted = {name for name, w in shape.weights.items() if w.layer in layers.muted and w.writes(RESIDUAL)}
        fresh = {name for name, w in shape.weights.items() if w.layer in layers.fresh and name not in muted}
        dtype = self.weights["embed"].dtype
        drawn = {name: draw(w, self.scaling, rng, dtype) for name, w in shape.weights.items() if name in fresh}

        def carry(values: Mapping[str, T]) -> dict[str, T]:
            return {name: values[old] for name, old in origin.items() if old in values}

        return replace(
            self,
            shape=shape,
            weights={n: torch.zeros_like(w) if n in muted else w for n, w in carry(self.weights).items()} | drawn,
            first={n: torch.zeros_like(m) if n in muted | fresh else m for n, m in carry(self.first).items()},
            second=carry(self.second),
            steps=carry(self.steps),
            norms={str(a): self.norms[str(replace(a, layer=layers.source[a.layer or 0]))] for a in normed_axes(shape)},
        )


def _multiplicity(name: str, maps: Maps) -> float:
    return next((m.multiplicity for axis, m in maps.items() if str(axis) == name), 1.0)


def normed_axes(shape: Shape) -> list[Axis]:
    """The axes whose units a norm with a factor n runs over: those of normalised Pattention layers."""
    return [axis for axis in shape.axes if axis.admits in ("even", "copies")]


def initial(shape: Shape, scaling: Parametrization, rng: Generator, dtype: torch.dtype = torch.float32) -> State:
    """A state before the first step: weights drawn by their labels, each norm counting its axis' own units."""
    return State(
        shape=shape,
        scaling=scaling,
        weights={name: draw(weight, scaling, rng, dtype) for name, weight in shape.weights.items()},
        norms={str(axis): float(shape.axes[axis]) for axis in normed_axes(shape)},
    )


def changed(source: Shape, target: Shape) -> dict[Axis, tuple[int, int]]:
    """Axes of `target` that differ from `source`, as (old, new). ValueError where one shrinks, or cannot change."""
    if target.layers < source.layers:
        raise ValueError(
            f"depth would shrink from {source.layers} to {target.layers}: order a ladder's rungs from small to large"
        )
    out = {}
    for axis, new in target.axes.items():
        old = source.axes.get(axis, 0)
        if new < old:
            raise ValueError(
                f"axis {axis} would shrink from {old} to {new}: order a ladder's rungs from small to large"
            )
        if new > old:
            if axis.admits == "fixed":
                raise ValueError(
                    f"axis {axis} cannot grow from {old} to {new}: keep it equal over a ladder (grow heads, not key)"
                )
            out[axis] = (old, new)
    return out
