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
from dataclasses import dataclass, replace
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
class Pick:
    """A matrix with one entry in a row at most, by index: factor[i] in column source[i], none where that is -1.

    A product with it reads and writes each number once; `T` is the transposed matrix.
    """

    source: Tensor
    factor: Tensor
    columns: int
    transposed: bool = False

    @property
    def T(self) -> "Pick":
        return replace(self, transposed=not self.transposed)

    def square(self) -> "Pick":
        """With its entries squared."""
        return replace(self, factor=self.factor.square())

    def __mul__(self, scale: float) -> "Pick":
        return replace(self, factor=self.factor * scale)

    def times(self, tensor: Tensor, position: int) -> Tensor:
        """The matrix times a tensor, along one of its dimensions."""
        out = self.columns if self.transposed else len(self.source)
        sizes = [out if i == position else size for i, size in enumerate(tensor.shape)]
        if not self.columns:
            return tensor.new_zeros(sizes)
        factor = self.factor.view([-1 if i == position else 1 for i in range(tensor.dim())])
        column = self.source.clamp_min(0)
        if self.transposed:
            return tensor.new_zeros(sizes).index_add_(position, column, tensor * factor)
        return tensor.index_select(position, column).mul_(factor)


Operator = Tensor | Pick | tuple[Tensor | Pick, ...]
"""What is applied along a dimension: a matrix, or a product of several."""


class AxisMap:
    """A pair of float64 matrices (E: new x old, C: old x new) with C E = I."""

    def __init__(self, expand: Tensor, collapse: Tensor) -> None:
        new, old = expand.shape
        if collapse.shape != (old, new) or new < old:
            raise ValueError(
                f"an axis map needs E (new x old, new >= old) and C (old x new), not {tuple(expand.shape)} "
                f"and {tuple(collapse.shape)}"
            )
        _check_inverse(collapse @ expand - torch.eye(old, dtype=torch.float64))
        self.new, self.old, self._expand, self._collapse = new, old, expand, collapse

    @property
    def expand(self) -> Tensor:
        """E, a matrix."""
        return self._expand

    @property
    def collapse(self) -> Tensor:
        """C, a matrix."""
        return self._collapse

    @property
    def writer(self) -> Tensor | Pick:
        """E, as it is applied."""
        return self._expand

    @property
    def reader(self) -> Tensor | Pick:
        """C', as it is applied."""
        return self._collapse.T

    @cached_property
    def image(self) -> Operator:
        """E C, the projector onto what the old model occupies, as it is applied; I - E C is free."""
        return self._expand @ self._collapse

    @property
    def image_back(self) -> Operator:
        """(E C)', as it is applied."""
        assert isinstance(self.image, Tensor)
        return self.image.T

    @cached_property
    def lengths(self) -> Tensor:
        """Squared lengths of E's columns: how often each old unit is copied."""
        return self._expand.square().sum(0)

    @property
    def silent(self) -> Tensor:
        """Boolean over the new units: those to which nothing is mapped."""
        return self._expand.abs().sum(1) == 0

    @property
    def multiplicity(self) -> float:
        """Mean squared length of E's columns: how often an old unit is copied, on average."""
        return self.lengths.mean().item() if self.old else 1.0

    @property
    def even(self) -> bool:
        """Whether E'E is a multiple of I."""
        apart = self._expand.T @ self._expand - self.multiplicity * torch.eye(self.old, dtype=torch.float64)
        return bool((apart.abs() <= TOLERANCE * self.multiplicity).all())

    @property
    def onehot(self) -> bool:
        """Whether every new unit is an old one as it is, or silent."""
        entries = self._expand
        return bool(((entries == 0) | (entries == 1)).all() and (entries.sum(1) <= 1).all())

    def commutes(self, admits: Admits) -> bool:
        """Whether the map commutes with what happens on an axis that admits such maps."""
        match admits:
            case "any":
                return True
            case "isometry":
                full = math.isclose(self.multiplicity, self.new / max(self.old, 1), rel_tol=TOLERANCE)
                return self.even and full
            case "selection":
                return self.onehot
            case "even":
                return self.onehot and self.even
            case "copies":
                return self.onehot and self.even and not bool(self.silent.any())
            case "fixed":
                return self.new == self.old and torch.equal(self.expand, torch.eye(self.old, dtype=torch.float64))

    def __matmul__(self, first: "AxisMap") -> "AxisMap":
        """The map that grows by `first`, then by this one."""
        return AxisMap(self.expand @ first.expand, first.collapse @ self.collapse)


class Copies(AxisMap):
    """A map whose new units each copy one old unit at most, by index: never a matrix unless one is asked for.

    E[i, source[i]] = written[i] and C[source[i], i] = read[i], float64; source[i] is -1 where unit i is silent.
    """

    def __init__(self, *, source: Tensor, old: int, written: Tensor, read: Tensor) -> None:
        heard = source >= 0
        self.new, self.old, self.source = len(source), old, source
        self.written, self.read = written.double() * heard, read.double() * heard
        if self.new < old:
            raise ValueError(f"an axis map does not shrink an axis of {old} units to {self.new}")
        _check_inverse(self._summed(self.written * self.read) - 1)

    @staticmethod
    def of(m: AxisMap) -> "Copies | None":
        """A map in this form; None where a unit mixes old ones."""
        if isinstance(m, Copies):
            return m
        entries, backs = m.expand != 0, m.collapse.T != 0
        if bool((entries.sum(1) > 1).any()) or bool((backs & ~entries).any()):
            return None
        source = torch.where(entries.any(1), entries.int().argmax(1), -1) if m.old else torch.full((m.new,), -1)
        rows, columns = torch.arange(m.new), source.clamp_min(0)
        factors = (m.expand[rows, columns], m.collapse[columns, rows]) if m.old else (torch.zeros(m.new),) * 2
        return Copies(source=source, old=m.old, written=factors[0], read=factors[1])

    def _summed(self, values: Tensor) -> Tensor:
        """Values of new units, added up over the copies of each old one."""
        heard = self.source >= 0
        return torch.zeros(self.old, dtype=torch.float64).index_add_(0, self.source[heard], values[heard])

    @cached_property
    def expand(self) -> Tensor:
        return self._matrix(self.written)

    @cached_property
    def collapse(self) -> Tensor:
        return self._matrix(self.read).T

    def _matrix(self, factor: Tensor) -> Tensor:
        heard = (self.source >= 0).nonzero()[:, 0]
        out = torch.zeros(self.new, self.old, dtype=torch.float64)
        out[heard, self.source[heard]] = factor[heard]
        return out

    @property
    def writer(self) -> Pick:
        return Pick(self.source, self.written, self.old)

    @property
    def reader(self) -> Pick:
        return Pick(self.source, self.read, self.old)

    @cached_property
    def image(self) -> Operator:
        return self.writer, self.reader.T

    @property
    def image_back(self) -> Operator:
        return self.reader, self.writer.T

    @cached_property
    def lengths(self) -> Tensor:
        return self._summed(self.written.square())

    @property
    def silent(self) -> Tensor:
        return self.source < 0

    @property
    def even(self) -> bool:
        return bool(((self.lengths - self.multiplicity).abs() <= TOLERANCE * self.multiplicity).all())

    @property
    def onehot(self) -> bool:
        return bool((self.written[self.source >= 0] == 1).all())

    def __matmul__(self, first: AxisMap) -> AxisMap:
        if not isinstance(first, Copies):
            return super().__matmul__(first)
        through = self.source.clamp_min(0)
        return Copies(
            source=torch.where(self.silent, -1, first.source[through]),
            old=first.old,
            written=self.written * first.written[through],
            read=self.read * first.read[through],
        )


def _check_inverse(apart: Tensor) -> None:
    """Raise ValueError where C E - I is not zero."""
    if not bool((apart.abs() <= TOLERANCE).all()):
        raise ValueError("an axis map needs C E = I: give C as the left inverse of E, as torch.linalg.pinv(E) is")


def _along(tensor: Tensor, operators: Sequence[Operator | None]) -> Tensor:
    """Apply one operator per dimension (None: leave it), in float64, back in the tensor's dtype."""
    out = tensor.to(torch.float64, copy=True)  # what is grown never shares memory with the source, or with a copy
    for position, operator in enumerate(operators):
        for factor in reversed(operator if isinstance(operator, tuple) else (operator,)):
            if isinstance(factor, Pick):
                out = factor.times(out, position)
            elif factor is not None:
                out = torch.tensordot(factor, out, dims=([1], [position])).movedim(0, position)
    return out.to(tensor.dtype).contiguous()


def _vector(dim: Dim, m: AxisMap) -> Tensor | Pick:
    """What a weight's dimension is multiplied by: E where written, C where read, C new/old where averaged."""
    if dim.role == "writes":
        return m.writer
    return m.reader * (m.new / m.old) if dim.role == "averages" else m.reader


def _covector(dim: Dim, m: AxisMap) -> Tensor | Pick:
    """What a gradient's dimension is multiplied by: the roles swap."""
    if dim.role == "writes":
        return m.reader
    return m.writer * (m.old / m.new) if dim.role == "averages" else m.writer


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


def _image(dim: Dim, m: AxisMap) -> Operator:
    return m.image if dim.role == "writes" else m.image_back


def outside_share(gradient: Tensor, weight: Weight, maps: Maps) -> tuple[float, float]:
    """Squared norms of a gradient: outside the tangent space {E_w dW C_r} of the old model, and in all."""
    gradient = gradient.double()
    inside = _along(gradient, [_span(_vector(d, maps[d.axis])) if d.axis in maps else None for d in weight.dims])
    return (gradient - inside).square().sum().item(), gradient.square().sum().item()


def _span(operator: Tensor | Pick) -> Operator:
    """Orthogonal projector onto the columns of a matrix."""
    if isinstance(operator, Pick):  # whose columns are orthogonal
        if not operator.columns:
            return operator, operator.T
        squares = torch.zeros(operator.columns, dtype=torch.float64)
        squares.index_add_(0, operator.source.clamp_min(0), operator.factor.square())
        unit = replace(operator, factor=operator.factor / squares.sqrt()[operator.source.clamp_min(0)])
        return unit, unit.T
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
