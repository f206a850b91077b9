"""Gradual stacking: one block of layers repeated, the last or the middle one."""

from dataclasses import dataclass
from typing import Literal

from growbench.axes import LayerMap
from growbench.shape import Shape
from growbench.strategy import Deepening


@dataclass(frozen=True, kw_only=True)
class GradualStack(Deepening):
    """The last block of layers repeated on top, or the middle one in place (MIDAS, arXiv:2409.19044).

    where: `last`, or `middle`. A block has as many layers as are added; the middle one of n is number n/2, rounded up.
    """

    where: Literal["last", "middle"] = "last"

    def supports(self, source: Shape, target: Shape) -> str:
        far = target.layers > 2 * source.layers
        return "it at most doubles the layers in one growth" if far else super().supports(source, target)

    def deepen(self, old: int, new: int) -> LayerMap:
        block = new - old
        end = old if self.where == "last" else (old // block + 1) // 2 * block
        return LayerMap(source=(*range(end), *range(end - block, old)))
