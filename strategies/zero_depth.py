"""Muted copies: each layer repeated in place, the copies writing nothing at first."""

from dataclasses import dataclass
from typing import Literal

from growbench.axes import LayerMap
from growbench.maps import insert
from growbench.strategy import Deepening


@dataclass(frozen=True, kw_only=True)
class ZeroDepth(Deepening):
    """Copies of the old layers, each after its own, writing zero to the residual stream (G_zero, arXiv:2405.15319)."""

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "function"

    def deepen(self, old: int, new: int) -> LayerMap:
        return insert(old, new)
