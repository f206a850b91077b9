"""LiGO: one learned linear operator per axis, and one over the layers; W' = E_w (sum_j d_j W_j) E_r'."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.func import functional_call

from growbench import axes
from growbench.labels import Axis, Weight
from growbench.shape import Shape
from growbench.state import State, changed
from growbench.strategy import Growth, Probe, Strategy


@dataclass(frozen=True, kw_only=True)
class Ligo(Strategy):
    """A linear map from the source's weights to the target's, trained for some metered steps (LiGO, arXiv:2303.00980).

    The source's weights stay as they are, and the optimizer then starts afresh.
    steps: metered batches, one each; learning_rate: Adam's, on the operators.
    """

    steps: int = 100
    learning_rate: float = 1e-3

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "nothing"

    @property
    def probe_batches(self) -> int:
        return self.steps

    @property
    def sterile(self) -> str:
        return "axes that only matmuls and the norm touch stay in the operator's image, and so do their gradients"

    def supports(self, source: Shape, target: Shape) -> str:
        grows = target.layers > source.layers or changed(source, target)
        return "" if grows else "it learns how to grow, and the ladder adds nothing"

    def grow(self, state: State, shape: Shape, probe: Probe, rng: Generator) -> Growth:
        maps, mixes = operators(state.shape, shape, rng)
        grown = replace(state.reset(), shape=shape, weights=materialised(state, shape, maps, mixes)).recount()
        net, adam = grown.model(), torch.optim.Adam([*maps.values(), *mixes.values()], lr=self.learning_rate)
        for _ in range(self.steps):
            batch = probe.batch()
            weights = materialised(state, shape, maps, mixes)
            logits = functional_call(net, {f"weights.{name}": w for name, w in weights.items()}, (batch[:, :-1],))
            adam.zero_grad()
            torch.autograd.backward(F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))
            adam.step()
        with torch.no_grad():
            return Growth(state=replace(grown, weights=materialised(state, shape, maps, mixes)))


def operators(source: Shape, target: Shape, rng: Generator) -> tuple[dict[Axis, Tensor], dict[Weight, Tensor]]:
    """B of every axis that grows, with positive rows of sum one; over layers a mix for each part, near a stack."""
    maps, mixes = {}, {}
    for axis, new in target.axes.items():
        old = source.axes[axis if axis.layer is None else replace(axis, layer=axis.layer % source.layers)]
        if new > old:
            maps[axis] = normalised(torch.rand(new - old, old, generator=rng, dtype=torch.float64))
    for weight in target.weights.values():
        if weight.layer is not None and target.layers > source.layers:
            stacked = F.one_hot(torch.tensor(weight.layer % source.layers), source.layers)
            mixes[weight] = normalised(stacked + 0.03 * torch.rand(source.layers, generator=rng, dtype=torch.float64))
    return maps, mixes


def normalised(rows: Tensor) -> Tensor:
    """Rows of sum one, to be learned."""
    return (rows / rows.sum(-1, keepdim=True)).requires_grad_()


def materialised(
    state: State, shape: Shape, maps: Mapping[Axis, Tensor], mixes: Mapping[Weight, Tensor]
) -> dict[str, Tensor]:
    """The target's weights, differentiable in the operators."""
    matrices = {axis: torch.cat([torch.eye(b.shape[1], dtype=b.dtype), b]) for axis, b in maps.items()}
    out = {}
    for name, weight in shape.weights.items():
        if weight in mixes:
            stack = torch.stack([state.weights[weight.at(layer)] for layer in range(state.shape.layers)])
            source = torch.tensordot(mixes[weight].to(stack.dtype), stack, dims=1)
        else:
            source = state.weights[name]
        out[name] = axes.operate(source, weight, matrices)
    return out
