"""Net2Net: new units copy old ones, whose readers share the weight: E one-hot, C = E' / count."""

from dataclasses import dataclass

from torch import Generator, Tensor

from growbench import maps
from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Net2Net(Strategy):
    """New units copy old ones drawn at random (Net2Wider, arXiv:1511.05641); copies on the residual axis keep its norm.

    noise: how much of a fresh initialisation the readers of copies receive, in the directions that equal copies cancel,
    so that the function is exact and the copies part. The paper's own noise on all weights changes the function.
    """

    noise: float = 1.0

    @property
    def sterile(self) -> str:
        return "" if self.noise else "equal copies receive equal gradients and stay equal"

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return maps.net2net(axis, old, new, rng)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        return self.noise * fresh
