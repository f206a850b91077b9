"""Warm-starting: W' = shrink pad(W) + perturb W_init."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor

from growbench import model
from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.maps import zero_pad
from growbench.shape import Shape
from growbench.state import State
from growbench.strategy import Growth, Probe, Strategy


@dataclass(frozen=True, kw_only=True)
class ShrinkPerturb(Strategy):
    """The source shrunk, zero-padded and added to a fresh initialisation (warm-starting under muP, arXiv:2411.07340).

    shrink, perturb: factors on the padded source and on the initialisation; the optimizer starts afresh.
    """

    shrink: float = 0.4
    perturb: float = 1.0

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "nothing"

    def supports(self, source: Shape, target: Shape) -> str:
        return "" if target.layers == source.layers else "it grows width alone"

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return zero_pad(old, new)

    def grow(self, state: State, shape: Shape, probe: Probe, rng: Generator) -> Growth:
        growth = super().grow(state, shape, probe, rng)
        padded, labels, scaling = growth.state.weights, shape.weights, state.scaling
        fresh = {name: model.draw(weight, scaling, rng, torch.float64) for name, weight in labels.items()}
        weights = {n: self.shrink * padded[n] + self.perturb * fresh[n].to(padded[n].dtype) for n in labels}
        return replace(growth, state=replace(growth.state.reset(), weights=weights))

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        return torch.zeros_like(fresh)
