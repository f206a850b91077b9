"""Random units: the old model in a corner of a fresh one."""

from dataclasses import dataclass
from typing import Literal

from torch import Generator

from growbench.axes import AxisMap, LayerMap, Side
from growbench.labels import Axis
from growbench.maps import zero_pad
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Random(Strategy):
    """New units and layers at random initialisation: the control that preserves nothing (arXiv:2405.15319)."""

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "nothing"

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return zero_pad(old, new)

    def opens(self, axis: Axis, axis_map: AxisMap) -> Side:
        return "both"

    def deepen(self, old: int, new: int) -> LayerMap:
        return LayerMap(source=(*range(old), *[old - 1] * (new - old)), fresh=frozenset(range(old, new)))
