"""How initial scale, learning rate, weight decay and Adam's eps follow from a weight's label.

With r = size/base of an axis, and every product over a weight's dimensions of the role named (mup, arXiv:2203.03466):

    Adam   rate ~ 1 / prod(r read)               eps ~ 1 / prod(r written or averaged)      decay * rate constant
    SGD    rate ~ prod(r written or averaged) / prod(r read)

These are the rules under which a grown clone, its moments transported, trains on exactly as the small model would
have. At the base shape, and everywhere under `standard`, all factors are one.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from growbench.labels import Weight
from growbench.shape import Shape

Name = Literal["mup", "standard"]


@dataclass(frozen=True, kw_only=True)
class Parametrization:
    """`mup` or `standard`, relative to a base shape: the smallest rung of an architecture's ladder."""

    name: Name
    base: Shape

    def _ratio(self, weight: Weight, *roles: str) -> float:
        """Product of size/base over the dimensions of these roles; an axis the base lacks (a rank) counts as one."""
        if self.name == "standard" or (weight.lookup and "reads" in roles):
            return 1.0
        base = {axis.name: size for axis, size in self.base.axes.items()}
        return math.prod(d.size / base.get(d.axis.name, d.size) for d in weight.dims if d.role in roles)

    def std(self, weight: Weight) -> float:
        """Initial standard deviation: 1/sqrt(fan-in); a muP readout keeps the base's; an embedding has 1."""
        return math.sqrt(self._ratio(weight, "averages") / weight.fan_in)

    def rate(self, weight: Weight, optimizer: str) -> float:
        """Factor on the learning rate."""
        if optimizer == "sgd":
            return self._ratio(weight, "writes", "averages") / self._ratio(weight, "reads")
        return 1.0 / self._ratio(weight, "reads")

    def eps(self, weight: Weight) -> float:
        """Factor on Adam's eps: that of the size of a clone's gradients."""
        return 1.0 / self._ratio(weight, "writes", "averages")

    def reads(self, weight: Weight) -> Weight:
        """The weight as its model reads it: under `standard` a readout sums where under `mup` it averages."""
        if self.name == "mup":
            return weight
        dims = tuple(replace(dim, role="reads") if dim.role == "averages" else dim for dim in weight.dims)
        return replace(weight, dims=dims)

    def logit_scale(self, shape: Shape) -> float:
        """Factor on the readout's product; a tied embedding has it in either parametrization, or it could not grow."""
        return self.base.residual / shape.residual if self.name == "mup" or shape.tied else 1.0

    def score_scale(self, shape: Shape) -> float:
        """Factor on q.k: 1/key under mup, equal to standard's 1/sqrt(key) at the base."""
        return math.sqrt(self.base.key) / shape.key if self.name == "mup" else 1.0 / math.sqrt(shape.key)
