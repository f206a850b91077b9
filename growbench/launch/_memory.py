"""How much memory a stage takes, from its shape: what to ask a scheduler for where the user does not say.

    bytes = base + 10 N b + max(B T (A + 4 V), E T (A / L + 4 V)) b

N is the number of weights and b the bytes of a number. Of each weight there are ten: weight, gradient and AdamW's two
moments; weight and moments of the parent, which stays, and of a checkpoint as it is written. B windows of T tokens are
a device's share of a batch: a token leaves A numbers in L layers for the backward pass, and logits over V symbols with
what the loss makes of them. An evaluation has E windows at a time, and one layer's numbers. base is the interpreter
with its packages. Every device has its process, with all of this.
"""

from collections.abc import Mapping

from growbench.shape import Shape
from growbench.store import Stage

BASE = 2**30
"""Measured: 0.75 GiB on Linux, of which half is there before anything is computed."""


def memory_gb(stage: Stage, stages: Mapping[str, Stage]) -> float:
    """GiB that a stage takes on a machine with all its devices, at most; `stages` has what it builds on."""
    from growbench.train import EVAL_WINDOWS  # heavy, and no command that only looks needs it

    shape, train = shape_of(stage, stages), stage.identity.get("train", {})
    if shape is None:
        return BASE / 2**30
    number = 8 if train["precision"] == "64-true" else 4
    share, kept = max(int(train.get("batch", 1)) // stage.devices, 1), kept_per_token(shape)
    backward = share * (kept + 4 * shape.vocab)
    forward = EVAL_WINDOWS * (kept / shape.layers + 4 * shape.vocab)
    passing = shape.context * max(backward, forward)
    return stage.devices * (BASE + number * (10 * shape.params + passing)) / 2**30


def shape_of(stage: Stage, stages: Mapping[str, Stage]) -> Shape | None:
    """The shape that a stage has at its end: its own, or that of the nearest stage before it that states one."""
    found: Stage | None = stage
    while found is not None and "shape" not in found.identity:
        found = stages.get(found.parent or "")
    return None if found is None else Shape.read(dict(found.identity["shape"]))


def kept_per_token(shape: Shape) -> int:
    """Numbers per token that a forward pass keeps for the backward one, in all layers; with no kernel fused."""
    total = 0
    for layer in range(shape.layers):
        heads, width = shape.at("heads", layer), 2 * shape.key + shape.value
        total += 8 * shape.residual + 3 * shape.at("ffn", layer) + 12 * shape.at("tokens", layer)
        total += heads * (3 * width + 3 * shape.context)
    return total
