"""Zero padding: E = s [I; 0]."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.maps import zero_pad
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class ZeroPad(Strategy):
    """Old units first, then silent ones that read at random and write nothing (arXiv:2308.06103).

    scaled: the residual stream is padded with sqrt(new/old), so that its norm, and with it the function, is kept.
    two_sided: new units neither read nor write; a control, since no gradient reaches them.
    """

    scaled: bool = True
    two_sided: bool = False

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "function" if self.scaled else "nothing"

    @property
    def sterile(self) -> str:
        return "zeros on both sides of a new unit: what it computes and what it receives are both zero" * self.two_sided

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        normed = self.scaled and axis.admits == "isometry"
        return zero_pad(old, new, scale=math.sqrt(new / old) if normed else 1.0)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        return torch.zeros_like(fresh) if self.two_sided else fresh
