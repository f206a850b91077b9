"""Function-preserving initialisation: copies drawn at random, readers divided by the count."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from growbench import maps
from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Fpi(Strategy):
    """New units copy old ones drawn at random, without noise, on every axis (FPI of bert2BERT, arXiv:2110.07143).

    weighted: False, as published, leaves copies on the residual axis unweighted, so that uneven counts change its norm
    and with it the function; True keeps both.
    """

    weighted: bool = False

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "function" if self.weighted else "nothing"

    @property
    def sterile(self) -> str:
        return "equal copies receive equal gradients and stay equal"

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        if axis.normed and not self.weighted:
            return maps.copy(torch.cat([torch.arange(old), torch.randint(old, (new - old,), generator=rng)]), old)
        return maps.net2net(axis, old, new, rng)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        return torch.zeros_like(fresh)
