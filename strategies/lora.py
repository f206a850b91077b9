"""Low-rank addition: W + up down, with down random and up zero."""

from dataclasses import dataclass, replace

import torch
from torch import Generator

from growbench.axes import AxisMap
from growbench.labels import Axis
from growbench.maps import zero_pad
from growbench.shape import Shape
from growbench.state import State
from growbench.strategy import Growth, Probe, Strategy


@dataclass(frozen=True, kw_only=True)
class Lora(Strategy):
    """Every matrix of the blocks gains a low-rank addition, zero at first (LoRA, arXiv:2106.09685).

    rank: that of each addition, which no alpha scales; frozen: train the additions alone. As growth it is a zero pad of
    the rank axis. It cannot reach a larger shape, so it is scored at its own merged size, outside the ranking.
    """

    rank: int = 4
    frozen: bool = True

    def target(self, source: Shape, target: Shape) -> Shape:
        return replace(source, rank=source.rank + self.rank)

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return zero_pad(old, new)

    def grow(self, state: State, shape: Shape, probe: Probe, rng: Generator) -> Growth:
        growth = super().grow(state, shape, probe, rng)
        if not self.frozen:
            return growth
        kept = {name: weight for name, weight in growth.state.weights.items() if name in state.weights}
        frozen = {name: w for name, w in kept.items() if w.shape == state.weights[name].shape}
        return replace(growth, frozen={name: torch.ones_like(w, dtype=torch.bool) for name, w in frozen.items()})
