"""The FLOP ledger in closed form, derived from labels, per token.

    forward  = 2 N_matmul + 2 L T heads (key + value)            training = 3 forward, where nothing is frozen

N_matmul counts every weight but a lookup (a tied embedding once more, as the readout); attention is counted over the
full T x T square, as torch's FlopCounterMode counts it. Going backward each product is multiplied twice: for its
weight, unless that is frozen, and for its input, unless nothing that the input depends on is trained.
"""

from collections.abc import Collection

from growbench.labels import Axis
from growbench.shape import Shape


def forward_flops(shape: Shape) -> float:
    """FLOPs per token of one forward pass at the shape's context."""
    products = sum(weight.count for weight in shape.weights.values() if not weight.lookup or shape.tied)
    return 2 * products + sum(sum(_attention(shape, layer)) for layer in range(shape.layers))


def train_flops(shape: Shape, frozen: Collection[str] = ()) -> float:
    """FLOPs per token of a forward and a backward pass, with the weights named in `frozen` wholly frozen."""
    live: set[Axis] = set()  # axes whose activations depend on a trained weight
    heads: dict[int | None, set[str]] = {}  # the projections q, k, v of each layer of which that is so
    total = forward_flops(shape)
    for name, weight in shape.weights.items():  # in the order of the forward pass
        trained, reached = name not in frozen, any(d.axis in live for d in weight.dims if d.role != "writes")
        if not weight.lookup:
            total += 2 * weight.count * (trained + reached)
        if trained or reached:
            written = {d.axis for d in weight.dims if d.role == "writes"}
            live |= written
            if any(axis.name == "head" for axis in written):
                heads.setdefault(weight.layer, set()).add(weight.part[0])
    if shape.tied:
        readout = shape.weights["embed"]
        total += 2 * readout.count * (("embed" not in frozen) + any(axis.name == "residual" for axis in live))
    return total + sum(_attention_backward(shape, layer, heads.get(layer, set())) for layer in range(shape.layers))


def _attention(shape: Shape, layer: int) -> tuple[int, int]:
    """Forward FLOPs per token of q.k and of mixing the values."""
    each = 2 * shape.context * shape.at("heads", layer)
    return each * shape.key, each * shape.value


def _attention_backward(shape: Shape, layer: int, live: Collection[str]) -> int:
    """The gradients of q, of k, of v, and of the mixing weights, which lead to q and k."""
    scores, mixing = _attention(shape, layer)
    return scores * (("q" in live) + ("k" in live)) + mixing * (("v" in live) + ("q" in live or "k" in live))
