"""Stacking: the whole stack repeated, layer i copies i mod L."""

from dataclasses import dataclass

from growbench.axes import LayerMap
from growbench.strategy import Deepening


@dataclass(frozen=True, kw_only=True)
class Stack(Deepening):
    """The whole stack of layers repeated (G_stack, arXiv:2405.15319)."""

    def deepen(self, old: int, new: int) -> LayerMap:
        return LayerMap(source=tuple(i % old for i in range(new)))
