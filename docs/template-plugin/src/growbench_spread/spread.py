"""Spread: every old unit keeps its share of new ones beside it. W' = E_w W C_r, E one-hot in blocks."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.maps import fitted_copy
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Spread(Strategy):
    """Copies of a unit lie beside it, as in an image that is enlarged (Net2Wider, arXiv:1511.05641, draws them at random).

    noise: what the readers of copies receive, relative to a fresh initialisation.
    """

    noise: float = 1.0

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        """Unit i of the new axis copies unit i old/new, or where copies must be even, unit i mod old."""
        beside = torch.arange(new) * old // new
        return fitted_copy(axis, torch.arange(new) % old if axis.admits in ("even", "copies") else beside, old)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        """Noise where the old function cannot see it."""
        return self.noise * fresh
