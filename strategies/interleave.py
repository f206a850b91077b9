"""Interleaving: each layer repeated in place, layer i copies i L / M."""

from dataclasses import dataclass

from growbench.axes import LayerMap
from growbench.strategy import Deepening


@dataclass(frozen=True, kw_only=True)
class Interleave(Deepening):
    """Each layer repeated in place (the interleaved variant in arXiv:2405.15319)."""

    def deepen(self, old: int, new: int) -> LayerMap:
        return LayerMap(source=tuple(i * old // new for i in range(new)))
