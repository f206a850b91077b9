"""TokenFormer growth: parameter tokens appended with zero keys."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor

from growbench.axes import AxisMap, Maps, Side
from growbench.labels import Axis, Weight
from growbench.maps import zero_pad
from growbench.shape import Shape
from growbench.state import State
from growbench.strategy import Growth, Probe, Strategy


@dataclass(frozen=True, kw_only=True)
class ZeroTokens(Strategy):
    """New parameter tokens with zero keys and random values (TokenFormer, arXiv:2410.23168).

    The units of a feed-forward layer are such tokens in any model: there it differs from zero_pad in the side that is
    zero.
    factor: `held` keeps the square root of n in the layer's norm at the source's token count, so that zero keys change
    nothing; `rescaled` counts all tokens, as the published code does, and changes the function.
    zero: `keys`, as the paper says; `neither`, as the published code has it, and `values`, with random keys, which
    enter the norm and change the function; `both`, a control without gradient.
    """

    factor: Literal["held", "rescaled"] = "held"
    zero: Literal["keys", "values", "both", "neither"] = "keys"

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "function" if self.factor == "held" and self.zero in ("keys", "both") else "nothing"

    @property
    def sterile(self) -> str:
        return "gelu(0) = 0: zero keys silence the values, zero values the keys" if self.zero == "both" else ""

    def supports(self, source: Shape, target: Shape) -> str:
        normed = any(axis.admits == "even" for axis in source.axes)
        if not normed and (self.factor == "rescaled" or self.zero in ("values", "neither")):
            return (
                "no norm runs over the tokens of this architecture, so that this variant is zero_pad or no growth of it"
            )
        dead = source.nonlinearity == "relu" and self.zero == "keys"
        return "relu passes no gradient at zero: tokens with zero keys would never wake" if dead else ""

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return zero_pad(old, new, scale=(new / old) ** 0.5 if axis.admits == "isometry" else 1.0)

    def opens(self, axis: Axis, axis_map: AxisMap) -> Side:
        sides: dict[str, Side] = {"values": "writers", "neither": "both", "keys": "readers"}
        chosen = sides.get(self.zero) if axis.admits in ("even", "selection") else None
        return chosen or super().opens(axis, axis_map)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        return torch.zeros_like(fresh) if self.zero == "both" else fresh

    def grow(self, state: State, shape: Shape, probe: Probe, rng: Generator) -> Growth:
        growth = super().grow(state, shape, probe, rng)
        return growth if self.factor == "held" else replace(growth, state=growth.state.recount())
