"""GradMax: new feed-forward units whose output weights maximise the gradient of their zero input weights."""

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from growbench import axes, maps
from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.shape import Shape
from growbench.state import State, changed
from growbench.strategy import Growth, Probe, Strategy


@dataclass(frozen=True, kw_only=True)
class Gradmax(Strategy):
    """New ffn units that read nothing, and write where their gradient is largest (GradMax, arXiv:2201.05125).

    Their output weights are the top singular vectors of the gradient of a zero linear bypass of the layer.
    scale: length of an output vector, relative to the mean of the old ones; batches: metered, averaged over.
    """

    scale: float = 0.5
    batches: int = 4

    @property
    def probe_batches(self) -> int:
        return self.batches

    def supports(self, source: Shape, target: Shape) -> str:
        if source.nonlinearity not in ("gelu", "l2_gelu"):
            return f"it needs f(0) = 0 and f'(0) != 0, which {source.nonlinearity} does not give"
        if target.layers != source.layers or {axis.name for axis in changed(source, target)} != {"ffn"}:
            return "it adds feed-forward units alone, and the ladder grows more, or nothing"
        most = max(new - old for old, new in changed(source, target).values())
        return f"the bypass has {source.residual} singular vectors, and {most} units are asked for" * (
            most > source.residual
        )

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return maps.zero_pad(old, new)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        return torch.zeros_like(fresh)

    def grow(self, state: State, shape: Shape, probe: Probe, rng: Generator) -> Growth:
        growth = super().grow(state, shape, probe, rng)
        weights = {name: weight.clone() for name, weight in growth.state.weights.items()}
        bypass = self.bypass_gradients(state, growth.maps, probe)
        for axis, m in growth.maps.items():
            vectors = torch.linalg.svd(bypass[axis]).U.T[: m.new - m.old]
            for name, weight in shape.weights.items():
                if weight.reads(axis):
                    rows = axes.rows(weights[name], weight, axis)
                    rows[m.old :] = vectors * self.scale * rows[: m.old].norm(dim=1).mean()
        return replace(growth, state=replace(growth.state, weights=weights))

    def bypass_gradients(self, state: State, grown: Maps, probe: Probe) -> dict[Axis, Tensor]:
        """Gradient (out, in) of a zero bypass of each layer: that of zero-input units which write a coordinate each."""
        width = state.shape.residual
        shape = replace(state.shape, ffn=tuple(n + width for n in state.shape.per_layer("ffn")))
        wide = state.widen(shape, {axis: maps.zero_pad(m.old, m.old + width) for axis, m in grown.items()})
        for name, weight in shape.weights.items():
            for axis, m in grown.items():
                if weight.reads(axis):
                    axes.rows(wide.weights[name], weight, axis)[m.old :] = torch.eye(width)
        total = {axis: torch.zeros(width, width) for axis in grown}
        for _ in range(self.batches):
            found = probe.gradients(wide)
            for name, weight in shape.weights.items():
                for axis, m in grown.items():
                    if weight.writes(axis):
                        total[axis] = total[axis] + axes.rows(found[name], weight, axis)[m.old :]
        return total
