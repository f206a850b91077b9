"""Masked structural growth: random new units, heard from 0 to 1 over a ramp."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator

from growbench.shape import Shape
from growbench.state import State
from growbench.strategies.random import Random
from growbench.strategy import Growth, Probe, Ramp


@dataclass(frozen=True, kw_only=True)
class Msg(Random):
    """New units and layers at random initialisation behind masks that open after growth (MSG, arXiv:2305.02869).

    ramp_tokens: over how many tokens the masks rise from 0 to 1; at 0 they hide all that is new, norms included. New
    weights are drawn as the target's initialisation is, where the published code has N(0, 0.02^2).
    """

    ramp_tokens: int = 100_000

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "function"

    def supports(self, source: Shape, target: Shape) -> str:
        wider = source.tied and target.residual > source.residual
        return "a tied embedding is the readout too, whose scale follows the width before the masks open" * wider

    def grow(self, state: State, shape: Shape, probe: Probe, rng: Generator) -> Growth:
        growth = super().grow(state, shape, probe, rng)
        new = {str(axis): torch.arange(m.new) >= m.old for axis, m in growth.maps.items()}
        if growth.layers:
            new["layer"] = torch.arange(shape.layers) >= state.shape.layers
        ramps = tuple(Ramp(axis=axis, new=units, tokens=self.ramp_tokens) for axis, units in new.items())
        return replace(growth, ramps=ramps)
