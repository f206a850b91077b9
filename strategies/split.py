"""Splitting steepest descent: w becomes w + e v and w - e v, along the most negative curvature v'Sv."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Generator, Tensor

from growbench import axes, maps
from growbench.labels import Axis
from growbench.shape import Shape
from growbench.state import State, changed
from growbench.strategy import Growth, Probe, Strategy

Rows = Mapping[Axis, Tensor]


@dataclass(frozen=True, kw_only=True)
class Split(Strategy):
    """Feed-forward units of lowest curvature become two, moved apart, at half the output (arXiv:1910.02366).

    v is the lowest eigenvector of a unit's splitting matrix S, by power iteration: where every unit stands twice, moved
    by e v and -e v, the gradients of the two differ by e S v to first order.
    distance: e, relative to the mean length of a unit's input weights; iterations: one metered batch each.
    """

    distance: float = 0.05
    iterations: int = 8

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "nothing"

    @property
    def probe_batches(self) -> int:
        return self.iterations

    def supports(self, source: Shape, target: Shape) -> str:
        if source.nonlinearity not in ("gelu", "relu"):
            return f"it splits units of an elementwise nonlinearity, not of {source.nonlinearity}"
        if target.layers != source.layers or any(axis.name != "ffn" for axis in changed(source, target)):
            return "it splits feed-forward units alone, and the ladder grows more"
        twice = all(new <= 2 * old for old, new in changed(source, target).values())
        return "" if twice else "it at most doubles the units in one growth"

    def grow(self, state: State, shape: Shape, probe: Probe, rng: Generator) -> Growth:
        sizes = changed(state.shape, shape)
        doubled = state.widen(
            replace(state.shape, ffn=tuple(2 * n for n in state.shape.per_layer("ffn"))),
            {a: maps.clone(a, n, 2 * n) for a, n in state.shape.axes.items() if a.name == "ffn"},
        )
        rows = {axis: input_rows(state, axis) for axis in sizes}
        start = {axis: torch.randn(own.shape, generator=rng, dtype=torch.float64) for axis, own in rows.items()}
        unit = {axis: v / v.norm(dim=1, keepdim=True) for axis, v in start.items()}
        step = {axis: self.distance * own.double().norm(dim=1).mean() for axis, own in rows.items()}
        curvature = {axis: torch.zeros(len(own)) for axis, own in rows.items()}
        largest = {axis: torch.zeros(len(own), 1, dtype=torch.float64) for axis, own in rows.items()}
        for _ in range(self.iterations):
            found = probe.gradients(
                moved(doubled, {a: torch.cat([step[a] * v, -step[a] * v]) for a, v in unit.items()})
            )
            for axis, v in unit.items():
                one, other = input_rows(replace(doubled, weights=found), axis).double().chunk(2)
                pushed = (one - other) / step[axis]
                curvature[axis] = (pushed * v).sum(1)
                largest[axis] = largest[axis].maximum(pushed.norm(dim=1, keepdim=True))
                turned = largest[axis] * v - pushed
                unit[axis] = turned / turned.norm(dim=1, keepdim=True).clamp_min(1e-30)
        chosen = {axis: curvature[axis].argsort()[: new - old].sort().values for axis, (old, new) in sizes.items()}
        copies = {a: maps.copy(torch.cat([torch.arange(old), chosen[a]]), old) for a, (old, _) in sizes.items()}
        apart = {axis: torch.zeros(new, rows[axis].shape[1], dtype=torch.float64) for axis, (_, new) in sizes.items()}
        for axis, (old, _) in sizes.items():
            apart[axis][chosen[axis]] = step[axis] * unit[axis][chosen[axis]]
            apart[axis][old:] = -apart[axis][chosen[axis]]
        return Growth(state=moved(state.widen(shape, copies), apart), maps=copies)


def input_rows(state: State, axis: Axis) -> Tensor:
    """The input weights of an axis' units, a row each."""
    (name,) = (name for name, weight in state.shape.weights.items() if weight.writes(axis))
    return axes.rows(state.weights[name], state.shape.weights[name], axis)


def moved(state: State, by: Rows) -> State:
    """The state with its units' input weights moved."""
    weights = dict(state.weights)
    for axis, shift in by.items():
        (name,) = (name for name, weight in state.shape.weights.items() if weight.writes(axis))
        weights[name] = weights[name] + shift.view(weights[name].shape).to(weights[name].dtype)
    return replace(state, weights=weights)
