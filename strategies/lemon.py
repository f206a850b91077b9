"""LEMON: lossless growth to any width; whole copies, and a silent rest."""

from dataclasses import dataclass

from torch import Generator

from growbench import maps
from growbench.axes import AxisMap
from growbench.labels import Axis
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Lemon(Strategy):
    """Lossless expansion with uneven copies (LEMON, arXiv:2310.07999), in depth by muted copies.

    The residual stream is copied as often as it fits, the rest stays silent, at the norm that RMSNorm needs. Readers of
    copies split the old weight unequally, around their own fresh initialisation: its part that equal copies cancel.
    """

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return maps.even_copies(axis, old, new) if axis.normed else maps.clone(axis, old, new)
