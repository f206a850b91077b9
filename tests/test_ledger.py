"""The FLOP ledger against torch's own counter on the meta device: equal, whatever the shape and whatever is frozen."""

from collections.abc import Collection
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from shapes import CONTEXT, shapes
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from growbench import ledger, model
from growbench.model import LanguageModel
from growbench.parametrization import Parametrization
from growbench.shape import Shape

BATCH = 3
any_shape = st.builds(
    lambda shape, rank, tied: replace(shape, rank=rank, tied=tied), shapes(), st.sampled_from([0, 2]), st.booleans()
)


def counted(shape: Shape, *, backward: bool, frozen: Collection[str] = ()) -> float:
    """FLOPs per token as FlopCounterMode sees them."""
    weights = {name: torch.empty(weight.sizes, device="meta") for name, weight in shape.weights.items()}
    norms = {str(axis): float(size) for axis, size in shape.axes.items()}
    net = LanguageModel(shape, weights, norms, Parametrization(name="mup", base=shape))
    for name in frozen:
        net.weights[name].requires_grad_(False)
    batch = torch.zeros(BATCH, shape.context + 1, dtype=torch.long, device="meta")
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss = model.loss(net, batch)
        if backward:
            loss.backward()  # type: ignore[no-untyped-call]
    return float(counter.get_total_flops()) / (BATCH * shape.context)


@given(shape=any_shape)
def test_forward_and_training_are_what_torch_counts(shape: Shape) -> None:
    assert ledger.forward_flops(shape) == counted(shape, backward=False)
    assert ledger.train_flops(shape) == counted(shape, backward=True) == 3 * ledger.forward_flops(shape)


@given(shape=any_shape, data=st.data())
def test_what_frozen_weights_save_is_what_torch_does_not_compute(shape: Shape, data: st.DataObject) -> None:
    share = data.draw(st.sampled_from([0.2, 0.5, 0.95]))
    frozen = [name for name in shape.weights if data.draw(st.floats(0, 1)) < share]
    assume(len(frozen) < len(shape.weights))
    assert ledger.train_flops(shape, frozen) == counted(shape, backward=True, frozen=frozen)


@given(shape=any_shape)
def test_a_frozen_base_below_low_rank_additions_is_what_torch_counts(shape: Shape) -> None:
    shape = replace(shape, rank=2)
    frozen = [name for name in shape.weights if not name.endswith(("/up", "/down"))]
    assert ledger.train_flops(shape, frozen) == counted(shape, backward=True, frozen=frozen)


@pytest.mark.parametrize(("layers", "width", "heads"), [(2, 16, 2), (4, 64, 8)])
def test_a_standard_block_costs_6n_plus_12ldt(layers: int, width: int, heads: int) -> None:
    each = width // heads
    shape = Shape(
        layers=layers, residual=width, heads=heads, key=each, value=each, ffn=4 * width, vocab=100, context=CONTEXT
    )
    blocks = 12 * layers * width**2
    assert shape.params_non_embedding == blocks
    assert ledger.train_flops(shape) == 6 * (blocks + 100 * width) + 12 * layers * width * CONTEXT
