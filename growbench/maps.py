"""Axis maps: pad, copy, rotate; each a choice of E and its left inverse C (see axes.py)."""

import math
from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from growbench.axes import AxisMap, Copies, LayerMap
from growbench.labels import Axis


def identity(size: int) -> Copies:
    """E = C = I."""
    return zero_pad(size, size)


def zero_pad(old: int, new: int, scale: float = 1.0) -> Copies:
    """E = scale [I; 0]: old units first, then silent ones. On the residual axis scale sqrt(new/old) keeps the norm."""
    units = torch.arange(new)
    source, written = torch.where(units < old, units, -1), torch.full((new,), scale, dtype=torch.float64)
    return Copies(source=source, old=old, written=written, read=written / scale**2)


def copy(source: Sequence[int] | Tensor, old: int, *, isometric: bool = False) -> Copies:
    """Unit i of the new axis copies unit source[i] (-1: silent); its readers share the weight equally.

    isometric: copies are weighted by sqrt(new/old / count), so that uneven ones keep a norm (E'E = new/old I).
    """
    index = torch.as_tensor(source)
    count = torch.bincount(index[index >= 0], minlength=old).double()
    if (count == 0).any():
        raise ValueError(f"old unit {int((count == 0).nonzero()[0])} is copied nowhere: every old unit needs a copy")
    written = (len(index) / old / count).sqrt() if isometric else torch.ones(old, dtype=torch.float64)
    read, unit = written / (count * written.square()), index.clamp_min(0)
    return Copies(source=index, old=old, written=written[unit], read=read[unit])


def even_copies(axis: Axis, old: int, new: int) -> Copies:
    """As many whole copies of the axis as fit, the rest silent; weighted where the axis admits isometries."""
    copies = torch.arange(new) % old
    copies[new // old * old :] = -1
    return copy(copies, old, isometric=axis.admits == "isometry")


def clone(axis: Axis, old: int, new: int) -> Copies:
    """The whole axis repeated, units 0..old-1, 0..old-1, ... (HyperCloning, arXiv:2409.12903), as the axis admits."""
    return fitted_copy(axis, torch.arange(new) % old, old)


def net2net(axis: Axis, old: int, new: int, rng: Generator) -> Copies:
    """New units copy old ones drawn at random (Net2Wider, arXiv:1511.05641), as the axis admits.

    Under a norm over the units uneven copies would change the function, so there the draws are permutations.
    """
    if axis.admits in ("even", "copies"):
        rounds = [torch.randperm(old, generator=rng) for _ in range(math.ceil(new / old) - 1)]
        extra = torch.cat(rounds)[: new - old] if rounds else torch.arange(0)
    else:
        extra = torch.randint(old, (new - old,), generator=rng)
    return fitted_copy(axis, torch.cat([torch.arange(old), extra]), old)


def fitted_copy(axis: Axis, source: Tensor, old: int) -> Copies:
    """`copy`, weighted where the axis admits isometries; where copies must be even, an incomplete round is silent."""
    if axis.admits == "even":
        source = source.clone()
        source[len(source) // old * old :] = -1
    return copy(source, old, isometric=axis.admits == "isometry")


def isometry(old: int, new: int, rng: Generator) -> AxisMap:
    """E = sqrt(new/old) Q, Q (new x old) with orthonormal columns drawn from the Haar measure; C = E' old/new."""
    q, r = torch.linalg.qr(torch.randn(new, old, generator=rng, dtype=torch.float64))
    expand = q * r.diagonal().sign() * math.sqrt(new / old)
    return AxisMap(expand, expand.T * (old / new))


def rotate(first: AxisMap, rng: Generator) -> AxisMap:
    """A map followed by a Haar rotation of the new axis."""
    return isometry(first.new, first.new, rng) @ first


def stack(old: int, new: int) -> LayerMap:
    """The whole stack repeated: layer i copies i mod old (G_stack, arXiv:2405.15319). Not function-preserving."""
    return LayerMap(source=tuple(i % old for i in range(new)))


def insert(old: int, new: int) -> LayerMap:
    """Identity insertion: muted copies, spread evenly, each after the layer it copies (LEMON, arXiv:2310.07999)."""
    source = tuple(i * old // new for i in range(new))
    return LayerMap(source=source, muted=frozenset(i for i in range(1, new) if source[i] == source[i - 1]))
