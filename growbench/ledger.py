"""The FLOP ledger in closed form, derived from labels, per token.

    forward  = 2 N_matmul + 2 L T heads (key + value)            training = 3 forward

N_matmul counts every weight but a lookup (a tied embedding once more, as the readout); attention is counted over the
full T x T square, as torch's FlopCounterMode counts it. A frozen weight saves its own gradient's product.
"""

from collections.abc import Collection

from growbench.shape import Shape


def _matmul(shape: Shape) -> int:
    lookup = sum(weight.count for weight in shape.weights.values() if weight.lookup)
    return shape.params - lookup + (lookup if shape.tied else 0)


def _attention(shape: Shape) -> int:
    heads = sum(shape.at("heads", layer) for layer in range(shape.layers))
    return 2 * shape.context * heads * (shape.key + shape.value)


def forward_flops(shape: Shape) -> float:
    """FLOPs per token of one forward pass at the shape's context."""
    return 2 * _matmul(shape) + _attention(shape)


def train_flops(shape: Shape, frozen: Collection[str] = ()) -> float:
    """FLOPs per token of a forward and a backward pass, with the weights named in `frozen` wholly frozen."""
    weights = shape.weights
    saved = sum(2 * weights[name].count for name in frozen if not weights[name].lookup)
    if "embed" in frozen:
        # Nothing below the first layer is trained, so no gradient flows into what reads the embedding there.
        saved += sum(2 * w.count for w in weights.values() if w.layer == 0 and _reads_embedding(w.part))
    return 3 * forward_flops(shape) - saved


def _reads_embedding(part: str) -> bool:
    """Whether a first-layer part is multiplied with the embedding itself: what reads the residual in the attention."""
    return part in ("q", "k", "v") or part.removesuffix("/down") in ("q", "k", "v", "q/keys", "k/keys", "v/keys")
