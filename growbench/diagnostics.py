"""Diagnostics: how much of a model lives where the old model does, and how many directions it uses.

    old, new          the span of E on an axis (E: how the old model lies in it, axes.py), and its orthogonal complement
    rms(part)         |P x| / sqrt(dim part) over tokens:   dim_old rms_old^2 + dim_new rms_new^2 = dim_all rms_all^2
    effective rank    exp(-sum p log p),   p = singular values / their sum
    alive share       |gradient outside the old model's tangent space|^2 / |gradient|^2

All are measured on the same few validation windows, forward and backward once: train_flops(shape) per token, and twice
that while a ramp is under way. Projections and singular values are not counted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from growbench import axes, ledger, model
from growbench.axes import AxisMap
from growbench.labels import Axis
from growbench.strategy import Growth, gradients

TOKENS = 768
"""At most so many tokens are looked at, one window at least; no effective rank is larger."""

Row = dict[str, Any]
"""quantity, axis, layer, part and value, as results.DIAGNOSTICS defines them."""


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The rows of one model, its alive share where it has one, and what measuring took, in FLOPs."""

    rows: tuple[Row, ...]
    alive_share: float | None
    flops: float


def windows(valid: Tensor) -> Tensor:
    """Evenly spaced ones of the validation windows (k, T + 1), of at most TOKENS tokens together."""
    count = min(len(valid), max(1, TOKENS // (valid.shape[1] - 1)))
    return valid[torch.arange(count) * len(valid) // count]


def diagnose(growth: Growth, batch: Tensor, masks: Mapping[str, Tensor]) -> Diagnosis:
    """Diagnose a model on a batch (B, T + 1); a growth without maps and layers has no old part to tell apart.

    masks: the multipliers of ramps under way, as its activations feel them; the alive share is that at their end.
    """
    net, seen = growth.state.model(), dict[str, Tensor]()
    net.masks, net.activations = dict(masks), seen
    loss, weights = model.loss(net, batch), dict(net.weights)
    found = torch.autograd.grad(loss, [*seen.values(), *weights.values()])
    upstream = dict(zip(seen, found, strict=False))
    own = dict(zip(weights, found[len(seen) :], strict=True))
    alive = alive_share(growth, gradients(growth.state, batch) if masks else own)
    rows: list[Row] = []
    with torch.no_grad():
        rows += _rms_rows("activation_rms", growth, seen, 1.0)
        rows += _rms_rows("gradient_rms", growth, upstream, float(batch[:, 1:].numel()))
        rows += _rank_rows(seen)
    if alive is not None:
        rows.append(_row("alive_share", None, None, "new", alive))
    passes = 2 if masks else 1
    flops = passes * ledger.train_flops(growth.state.shape) * batch[:, 1:].numel()
    return Diagnosis(rows=tuple(rows), alive_share=alive, flops=flops)


def _row(quantity: str, axis: str | None, layer: int | None, part: str, value: float) -> Row:
    return {"quantity": quantity, "axis": axis, "layer": layer, "part": part, "value": value}


def _rms_rows(quantity: str, growth: Growth, tensors: Mapping[str, Tensor], factor: float) -> Iterator[Row]:
    """Root mean squares of what lies on each kind of axis in each layer; the token axes of a layer count as one."""
    sums: dict[tuple[str, int], dict[str, Sequence[float]]] = {}
    for place, x in tensors.items():
        number, _, name = place.partition("/")
        layer, kind = int(number), "token" if name.endswith("_token") else name
        own = sums.setdefault((kind, layer), {})
        for part, found in parts(growth, name, layer, x).items():
            own[part] = [a + b for a, b in zip(own.get(part, (0.0, 0)), found, strict=True)]
    for (kind, layer), own in sums.items():
        for part, (squares, count) in own.items():
            yield _row(quantity, kind, layer, part, factor * math.sqrt(squares / count))


def parts(growth: Growth, name: str, layer: int, x: Tensor) -> dict[str, tuple[float, int]]:
    """Of each part of what lies on an axis of a layer, its squared norm, and of how many numbers that is the sum.

    x: (..., units), on the axis head (..., heads, value). An axis that did not grow is old, one of a muted or fresh
    layer new, and a part without units is left out.
    """
    maps = [growth.maps.get(Axis(name=n, layer=None if n == "residual" else layer)) for n in _dimensions(name)]
    squares = _rotated(x, maps).square().sum(tuple(range(x.ndim - len(maps))), dtype=torch.float64)
    each = x.numel() // squares.numel()
    out = {"all": (squares.sum().item(), x.numel())}
    if growth.maps or growth.layers is not None:
        added = growth.layers is not None and name != "residual" and not growth.layers.copies(layer)
        inside = squares[tuple(slice(0 if added else m.old if m else None) for m in maps)]
        old = (inside.sum().item(), inside.numel() * each)
        inside.zero_()
        new = (squares.sum().item(), x.numel() - old[1])
        out |= {part: found for part, found in (("old", old), ("new", new)) if found[1]}
    return out


def _dimensions(name: str) -> tuple[str, ...]:
    return ("head", "value") if name == "head" else (name,)


def _rotated(x: Tensor, maps: Sequence[AxisMap | None]) -> Tensor:
    """The last dimensions of x in orthonormal coordinates of which the first m.old span the old part."""
    for m in maps:
        x = x.movedim(-len(maps), -1)
        if m is not None:
            x = x @ torch.linalg.qr(m.expand, mode="complete").Q.to(x)
    return x


def _rank_rows(tensors: Mapping[str, Tensor]) -> Iterator[Row]:
    for place, x in tensors.items():
        number, _, name = place.partition("/")
        if name in ("residual", "ffn"):
            yield _row("effective_rank", name, int(number), "all", effective_rank(x.flatten(0, -2)))


def effective_rank(matrix: Tensor) -> float:
    """exp of the entropy of the normalised singular values (Roy & Vetterli, EUSIPCO 2007): from 1 to the rank.

    The matrix (n, d) is taken as it is, not centred. 0 where it is zero, not a number where an entry is not finite.
    """
    if not bool(matrix.isfinite().all()):
        return math.nan
    values = torch.linalg.svdvals(matrix.double())
    if not (total := values.sum().item()):
        return 0.0
    return math.exp(torch.special.entr(values / total).sum().item())


def alive_share(growth: Growth, found: Mapping[str, Tensor]) -> float | None:
    """Share of the squared gradient norm outside the old model's subspace; frozen entries receive none.

    In depth the old model is one in which the copies of a layer stay equal and muted or fresh ones stay as they are.
    None where the strategy states no maps, nothing was added, or a gradient is not finite.
    """
    if not growth.maps and growth.layers is None:
        return None
    outside = total = 0.0
    for name, weight in growth.state.shape.weights.items():
        gradient = found[name] if name not in growth.frozen else found[name].masked_fill(growth.frozen[name], 0.0)
        out, all_ = axes.outside_share(gradient, weight, growth.maps)
        copies = growth.layers.copies(weight.layer) if growth.layers and weight.layer is not None else (weight.layer,)
        if not copies:
            out = all_
        elif len(copies) > 1 and not any(dim.axis in growth.maps for dim in weight.dims):
            together = torch.stack([found[weight.at(layer)] for layer in copies]).mean(0)
            out = (gradient - together).double().square().sum().item()
        outside, total = outside + out, total + all_
    if not math.isfinite(total):
        return None
    return outside / total if total > 0 else 0.0
