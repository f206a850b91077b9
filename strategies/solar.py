"""Depth up-scaling: two overlapping copies of the stack."""

from dataclasses import dataclass

from growbench.axes import LayerMap
from growbench.shape import Shape
from growbench.strategy import Deepening


@dataclass(frozen=True, kw_only=True)
class Solar(Deepening):
    """The stack without its last m layers, then without its first m: 2 (L - m) layers (SOLAR, arXiv:2312.15166)."""

    def supports(self, source: Shape, target: Shape) -> str:
        if target.layers % 2 or target.layers > 2 * source.layers:
            return "it needs an even number of layers, at most twice the source's"
        return super().supports(source, target)

    def deepen(self, old: int, new: int) -> LayerMap:
        return LayerMap(source=(*range(new // 2), *range(old - new // 2, old)))
