"""The algebra of growing: one map per axis, W' = E_w W C_r.

An axis map is a pair (E: new x old, C: old x new) with C E = I. Apply E where a weight writes the axis and C where it
reads it, and by induction every activation x of the grown model is E x, as far as what happens on the axis commutes
with E (labels.Admits). From the same pair follow

    weights          W' = E_w W C_r
    gradients        G' = C_w^T G E_r^T        covectors: the roles swap; first moments likewise
    second moments   v' = (C_w^T)^2 v (E_r^T)^2  entries squared: exact for selections, positive always
    shrinking        exchange E and C; shrink(grow(W)) = W
    free directions  P = I - E C               noise through P, on one side of an axis, is invisible to the old function
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from growbench.labels import Admits, Axis, Dim, Weight

Maps = Mapping[Axis, "AxisMap"]
Side = Literal["writers", "readers", "both"]
TOLERANCE = 1e-9
"""How far a float64 map may be from commuting, relative, to count as exact."""


@dataclass(frozen=True, eq=False)
class AxisMap:
    """A pair of float64 matrices (E: new x old, C: old x new) with C E = I."""

    expand: Tensor
    collapse: Tensor

    def __post_init__(self) -> None:
        new, old = self.expand.shape
        if self.collapse.shape != (old, new) or new < old:
            raise ValueError(
                f"an axis map needs E (new x old, new >= old) and C (old x new), not {tuple(self.expand.shape)} "
                f"and {tuple(self.collapse.shape)}"
            )
        if not torch.allclose(self.collapse @ self.expand, torch.eye(old, dtype=torch.float64), atol=TOLERANCE, rtol=0):
            raise ValueError("an axis map needs C E = I: give C as the left inverse of E, as torch.linalg.pinv(E) is")

    @property
    def old(self) -> int:
        return self.expand.shape[1]

    @property
    def new(self) -> int:
        return self.expand.shape[0]

    @cached_property
    def image(self) -> Tensor:
        """E C, the projector onto what the old model occupies; I - E C is free."""
        return self.expand @ self.collapse

    @cached_property
    def gram(self) -> Tensor:
        return self.expand.T @ self.expand

    @property
    def silent(self) -> Tensor:
        """Boolean over the new units: those to which nothing is mapped."""
        return self.expand.abs().sum(1) == 0

    @property
    def multiplicity(self) -> float:
        """Mean squared length of E's columns: how often an old unit is copied, on average."""
        return self.gram.diagonal().mean().item() if self.old else 1.0

    def commutes(self, admits: Admits) -> bool:
        """Whether the map commutes with what happens on an axis that admits such maps."""
        eye = torch.eye(self.old, dtype=torch.float64)
        apart = (self.gram - self.multiplicity * eye).abs()
        even = bool((apart <= TOLERANCE * self.multiplicity).all())
        onehot = bool(((self.expand == 0) | (self.expand == 1)).all() and (self.expand.sum(1) <= 1).all())
        match admits:
            case "any":
                return True
            case "isometry":
                return even and math.isclose(self.multiplicity, self.new / max(self.old, 1), rel_tol=TOLERANCE)
            case "selection":
                return onehot
            case "even":
                return onehot and even
            case "copies":
                return onehot and even and not bool(self.silent.any())
            case "fixed":
                return self.new == self.old and torch.equal(self.expand, eye)

    def __matmul__(self, first: "AxisMap") -> "AxisMap":
        """The map that grows by `first`, then by this one."""
        return AxisMap(self.expand @ first.expand, first.collapse @ self.collapse)


def _along(tensor: Tensor, operators: Sequence[Tensor | None]) -> Tensor:
    """Apply one matrix per dimension (None: leave it), in float64, back in the tensor's dtype."""
    out = tensor.to(torch.float64, copy=True)  # what is grown never shares memory with the source, or with a copy
    for position, operator in enumerate(operators):
        if operator is not None:
            out = torch.tensordot(operator, out, dims=([1], [position])).movedim(0, position)
    return out.to(tensor.dtype).contiguous()


def _vector(dim: Dim, m: AxisMap) -> Tensor:
    """What a weight's dimension is multiplied by: E where written, C where read, C new/old where averaged."""
    if dim.role == "writes":
        return m.expand
    return m.collapse.T * (m.new / m.old if dim.role == "averages" else 1.0)


def _covector(dim: Dim, m: AxisMap) -> Tensor:
    """What a gradient's dimension is multiplied by: the roles swap."""
    if dim.role == "writes":
        return m.collapse.T
    return m.expand * (m.old / m.new if dim.role == "averages" else 1.0)


def grow(tensor: Tensor, weight: Weight, maps: Maps) -> Tensor:
    """W' = E_w W C_r. The tensor has the old sizes of `weight`'s dimensions; axes without a map stay."""
    return _along(tensor, [_vector(d, maps[d.axis]) if d.axis in maps else None for d in weight.dims])


def operate(tensor: Tensor, weight: Weight, matrices: Mapping[Axis, Tensor]) -> Tensor:
    """One matrix (new x old) per axis, applied wherever the axis is written or read; differentiable in the matrices."""
    return _along(tensor, [matrices.get(dim.axis) for dim in weight.dims])


def shrink(tensor: Tensor, weight: Weight, maps: Maps) -> Tensor:
    """The left inverse of `grow`: shrink(grow(W)) = W."""
    return _along(tensor, [_covector(d, maps[d.axis]).T if d.axis in maps else None for d in weight.dims])


def transport(gradient: Tensor, weight: Weight, maps: Maps) -> Tensor:
    """G' = C_w^T G E_r^T: gradients, and Adam's first moments."""
    return _along(gradient, [_covector(d, maps[d.axis]) if d.axis in maps else None for d in weight.dims])


def transport_square(second: Tensor, weight: Weight, maps: Maps) -> Tensor:
    """Adam's second moments: `transport` with squared entries; new units take the mean of the old.

    Zero second moments under a step count that is kept would make a new unit's first update
    (1 - beta1) / sqrt(1 - beta2) times the learning rate: 3.2 times at betas (0.9, 0.999).
    """
    grown = _along(second, [_covector(d, maps[d.axis]).square() if d.axis in maps else None for d in weight.dims])
    known = grown > 0
    return torch.where(known, grown, grown[known].mean()) if known.any() else grown


def unseen(axis: Axis, m: AxisMap) -> Side:
    """The side of an axis whose noise the old function cannot see.

    Where new units are silent and no norm runs over the axis, its writers: random in, zero out. Elsewhere (copies,
    rotations, normed axes) its readers, whose noise meets only zeros or differences of equal copies.
    """
    return "writers" if bool(m.silent.any()) and not axis.normed else "readers"


def open_dims(weight: Weight, maps: Maps, sides: Mapping[Axis, Side]) -> list[bool]:
    """Which dimensions of a weight carry noise into free directions, given the open side of every growing axis."""
    role = {"writers": (True,), "readers": (False,), "both": (True, False)}
    return [d.axis in maps and (d.role == "writes") in role[sides[d.axis]] for d in weight.dims]


def free(noise: Tensor, weight: Weight, maps: Maps, sides: Mapping[Axis, Side]) -> Tensor:
    """The part of `noise` (new sizes) that goes into free directions of the open sides.

    What is written may be anything in new directions of an open written axis: nobody reads them. The rest may read the
    new directions of an open axis, in which nothing was written, but only within E C of the closed axes beside it,
    whose new units are not silent. With the unseen side open on every axis the function stays as it was.
    """
    opened = open_dims(weight, maps, sides)
    if not any(opened):
        return torch.zeros_like(noise)
    image = [_image(d, maps[d.axis]) if d.axis in maps else None for d in weight.dims]
    each = list(zip(weight.dims, image, opened, strict=True))
    written = [p if is_open and d.role == "writes" else None for d, p, is_open in each]
    read = [p if is_open and d.role != "writes" else None for d, p, is_open in each]
    beside = [p if not is_open and d.role != "writes" else None for d, p, is_open in each]
    whole = noise.double()
    old = _along(whole, written)
    inside = _along(old, beside)
    out = whole - old + (inside - _along(inside, read) if any(p is not None for p in read) else 0.0)
    return out.to(noise.dtype)


def _image(dim: Dim, m: AxisMap) -> Tensor:
    return m.image if dim.role == "writes" else m.image.T


def outside_share(gradient: Tensor, weight: Weight, maps: Maps) -> tuple[float, float]:
    """Squared norms of a gradient: outside the tangent space {E_w dW C_r} of the old model, and in all."""
    gradient = gradient.double()
    inside = _along(gradient, [_span(_vector(d, maps[d.axis])) if d.axis in maps else None for d in weight.dims])
    return (gradient - inside).square().sum().item(), gradient.square().sum().item()


def _span(operator: Tensor) -> Tensor:
    """Orthogonal projector onto the columns of a matrix."""
    q: Tensor = torch.linalg.qr(operator).Q
    return q @ q.T


def rows(tensor: Tensor, weight: Weight, axis: Axis) -> Tensor:
    """A weight as a matrix with one row, or several in a block, for each unit of an axis; a view.

    Where the weight writes the axis, a unit's rows are its input weights; where it reads the axis, its output weights.
    """
    roles = {dim.axis: dim.role for dim in weight.dims}
    matrix = tensor.view(-1, weight.fan_in)
    return matrix if roles[axis] == "writes" else matrix.T


@dataclass(frozen=True, kw_only=True)
class LayerMap:
    """Depth: layer i copies the old layer source[i]; a muted one writes nothing to the residual stream.

    fresh: layers that are drawn anew, but for what muting sets to zero.
    """

    source: tuple[int, ...]
    muted: frozenset[int] = frozenset()
    fresh: frozenset[int] = frozenset()

    @property
    def exact(self) -> bool:
        """Whether the function is preserved: every old layer once, in order, all others muted."""
        heard = [i for i in range(len(self.source)) if i not in self.muted]
        return [self.source[i] for i in heard] == sorted(set(self.source)) and not self.fresh.intersection(heard)

    def copies(self, layer: int) -> tuple[int, ...]:
        """The layers in which the old model lives as it does in `layer`, itself included; none where that is new."""
        new = self.muted | self.fresh
        same = (i for i in range(len(self.source)) if i not in new and self.source[i] == self.source[layer])
        return () if layer in new else tuple(same)
