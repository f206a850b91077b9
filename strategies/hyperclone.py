"""HyperCloning: the whole model tiled, W' = tile(W) / (copies read)."""

import math
from dataclasses import dataclass

from torch import Generator, Tensor

from growbench import maps
from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.shape import Shape
from growbench.state import changed
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Hyperclone(Strategy):
    """Every unit cloned a whole number of times (HyperCloning, arXiv:2409.12903).

    snr_db: None, the published default, leaves the clones equal; a number adds noise that cancels between clones, so
    many decibels below the tiled weight (mean square, expected); the readout gets none. The noise of a weight sums to
    zero over all blocks that one clone reads, where the published code has pairs of blocks cancel.
    """

    snr_db: float | None = None

    @property
    def sterile(self) -> str:
        return "equal clones receive equal gradients and stay equal" if self.snr_db is None else ""

    def supports(self, source: Shape, target: Shape) -> str:
        if target.layers != source.layers:
            return "it clones width, not depth"
        uneven = [str(axis) for axis, (old, new) in changed(source, target).items() if not old or new % old]
        return f"it clones whole axes, and {uneven[0]} does not grow by a whole factor" if uneven else ""

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return maps.clone(axis, old, new)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        if self.snr_db is None or any(dim.role == "averages" for dim in weight.dims):
            return fresh * 0
        free = math.prod(m.old / m.new for axis, m in grown_maps.items() if weight.reads(axis))
        power = grown.double().square().mean() * 10 ** (-self.snr_db / 10) / (1 - free)
        return fresh * (power / fresh.square().mean()).sqrt()
