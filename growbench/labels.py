"""Labels: what each dimension of a weight is, said once.

A label names a weight's dimensions in order, `"ffn residual*"`: plain, the weight *writes* that axis; `*`, it *reads*
it; `/`, it reads the mean over it (the sum divided by the axis' size), as a muP readout does. Growth, initialisation,
learning rates, parameter and FLOP counts are all derived from labels; nothing else says what a dimension means.
"""

from dataclasses import dataclass, field
from typing import Literal

Admits = Literal["any", "isometry", "selection", "even", "copies", "fixed"]
"""The maps E that commute with what happens on an axis, from the freest to the strictest:

any        matmuls only: every injective E (value, rank)
isometry   a gain-free RMSNorm: E'E = (new/old) I (residual)
selection  an elementwise nonlinearity, or separate softmaxes: every row of E one-hot or zero (ffn, head)
even       an L2 norm over the axis: selections that copy every old unit equally often (parameter tokens)
copies     a softmax over the axis: even, and no unit silent
fixed      nothing but the identity (vocab; key, whose rotary frequencies depend on its width)
"""

Role = Literal["writes", "reads", "averages"]
_SUFFIX: dict[str, Role] = {"*": "reads", "/": "averages"}


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A named axis, in one layer or (layer None) shared by all; equal by name and layer."""

    name: str
    layer: int | None = None
    admits: Admits = field(default="any", compare=False)

    @property
    def normed(self) -> bool:
        """Whether a norm runs over the axis, so that whatever is written to new units disturbs the old ones."""
        return self.admits in ("isometry", "even", "copies")

    def __str__(self) -> str:
        return self.name if self.layer is None else f"{self.layer}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Dim:
    """One dimension of a weight: its axis, its size, and whether the weight writes, reads or averages it."""

    axis: Axis
    size: int
    role: Role


@dataclass(frozen=True, kw_only=True)
class Weight:
    """A labelled weight: which part it is, of which layer (None: of none), and its dimensions, written ones first."""

    part: str
    layer: int | None = None
    dims: tuple[Dim, ...]
    lookup: bool = False
    """Read by index (an embedding): no matmul, and a fan-in of one."""

    @property
    def name(self) -> str:
        return self.part if self.layer is None else f"{self.layer}/{self.part}"

    def at(self, layer: int) -> str:
        """The name of the same part in another layer."""
        return self.part if self.layer is None else f"{layer}/{self.part}"

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self.dims)

    @property
    def count(self) -> int:
        total = 1
        for dim in self.dims:
            total *= dim.size
        return total

    @property
    def fan_in(self) -> int:
        """Product of the sizes that are read, 1 for a lookup."""
        total = 1
        for dim in self.dims:
            total *= 1 if dim.role == "writes" or self.lookup else dim.size
        return total

    def writes(self, axis: Axis) -> bool:
        return any(dim.axis == axis and dim.role == "writes" for dim in self.dims)

    def reads(self, axis: Axis) -> bool:
        return any(dim.axis == axis and dim.role != "writes" for dim in self.dims)

    @property
    def label(self) -> str:
        """The label in the notation of this module's docstring.

        >>> axes = {"ffn": (Axis(name="ffn"), 8), "residual": (Axis(name="residual"), 2)}
        >>> parse("ffn residual*", part="up", axes=axes).label
        'ffn residual*'
        """
        suffix: dict[Role, str] = {role: mark for mark, role in _SUFFIX.items()}
        return " ".join(dim.axis.name + suffix.get(dim.role, "") for dim in self.dims)


def parse(
    label: str, *, part: str, layer: int | None = None, axes: dict[str, tuple[Axis, int]], lookup: bool = False
) -> Weight:
    """The weight that a label describes, given every axis by name with its size.

    >>> axes = {"ffn": (Axis(name="ffn", layer=0), 8), "residual": (Axis(name="residual"), 2)}
    >>> weight = parse("ffn residual*", part="up", layer=0, axes=axes)
    >>> weight.name, weight.sizes, weight.fan_in
    ('0/up', (8, 2), 2)
    """
    dims = []
    for word in label.split():
        role = _SUFFIX.get(word[-1], "writes")
        axis, size = axes[word.rstrip("*/")]
        dims.append(Dim(axis=axis, size=size, role=role))
    return Weight(part=part, layer=layer, dims=tuple(dims), lookup=lookup)
