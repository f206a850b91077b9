"""Advanced knowledge initialisation: new units come from the layer above."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator

from growbench.shape import Shape
from growbench.state import State
from growbench.strategies.fpi import Fpi
from growbench.strategy import Growth, Probe


@dataclass(frozen=True, kw_only=True)
class Aki(Fpi):
    """As FPI, but what new units compute is copied from the next layer (AKI of bert2BERT, arXiv:2110.07143).

    The last layer's comes from itself. Not function-preserving by design.
    """

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "nothing"

    @property
    def sterile(self) -> str:
        return ""

    def supports(self, source: Shape, target: Shape) -> str:
        uneven = any(len(set(target.per_layer(name))) > 1 for name in ("heads", "ffn", "tokens"))
        return "it copies units from layer to layer, so all layers must be of one size" if uneven else ""

    def grow(self, state: State, shape: Shape, probe: Probe, rng: Generator) -> Growth:
        growth = super().grow(state, shape, probe, rng)
        grown, out = growth.state, {}
        for name, weight in shape.weights.items():
            above = weight.at(shape.layers - 1 if weight.layer is None else min(weight.layer + 1, shape.layers - 1))
            new = torch.zeros(weight.sizes, dtype=torch.bool)
            for position, dim in enumerate(weight.dims):
                if dim.role == "writes" and dim.axis in growth.maps and weight.layer is not None:
                    new.index_fill_(position, torch.arange(growth.maps[dim.axis].old, dim.size), True)
            out[name] = (
                torch.where(new, grown.weights[above], grown.weights[name]) if new.any() else grown.weights[name]
            )
        return replace(growth, state=replace(grown, weights=out))
