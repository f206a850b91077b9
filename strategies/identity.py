"""Identity insertion: new layers that write nothing at first."""

from dataclasses import dataclass, replace
from typing import Literal

from growbench.axes import LayerMap
from growbench.maps import insert
from growbench.strategy import Deepening


@dataclass(frozen=True, kw_only=True)
class Identity(Deepening):
    """New layers drawn afresh between the old ones, with zero writers to the residual stream (arXiv:2308.06103)."""

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "function"

    def deepen(self, old: int, new: int) -> LayerMap:
        layers = insert(old, new)
        return replace(layers, fresh=layers.muted)
