"""A grown clone trained on is the small model trained on: weights, moments, rates, decay and eps are carried as one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import KINDS, batch, larger, logits, random_state, shapes

from growbench import maps, model, optimizer
from growbench.axes import AxisMap
from growbench.labels import Axis
from growbench.shape import Shape
from growbench.state import State, changed

STEPS = 5


def train(state: State, settings_: optimizer.Settings, start: int = 0, steps: int = STEPS) -> State:
    net = state.model()
    opt = optimizer.build(state, net, settings_)
    for step in range(start, start + steps):
        optimizer.set_rate(opt, settings_.learning_rate * (1 - step / 20))
        weights = list(net.weights.values())
        for weight, gradient in zip(
            weights, torch.autograd.grad(model.loss(net, batch(1000 + step)), weights), strict=True
        ):
            weight.grad = gradient
        opt.step()
    return optimizer.collect(state, net, opt, state.tokens)


def grown(state: State, target: Shape, widen: Callable[[Axis, int, int], AxisMap]) -> State:
    return state.widen(target, {axis: widen(axis, *sizes) for axis, sizes in changed(state.shape, target).items()})


ADAMW = optimizer.Settings(learning_rate=0.01, weight_decay=0.1, eps=1e-3, betas=(0.9, 0.95))
SGD = optimizer.Settings(optimizer="sgd", learning_rate=0.1, weight_decay=0.05)


@pytest.mark.parametrize("settings_", [ADAMW, SGD], ids=["adamw", "sgd"])
@given(data=st.data(), seed=st.integers(0, 1000))
@settings(max_examples=20)
def test_a_clone_trained_on_is_the_small_model(settings_: optimizer.Settings, data: st.DataObject, seed: int) -> None:
    """With decay, an eps that matters, carried moments and a schedule; residual, heads, ffn, tokens and value grown."""
    shape = data.draw(shapes())
    target = data.draw(larger(shape, factor=data.draw(st.integers(2, 3))))
    state = train(replace(random_state(shape, seed), first={}, second={}, steps={}), settings_)
    large = grown(state, target, maps.clone)
    small, large = train(state, settings_, STEPS), train(large, settings_, STEPS)
    assert torch.allclose(logits(large, batch(seed)), logits(small, batch(seed)), atol=1e-9, rtol=0)
    expected = grown(small, target, maps.clone)
    assert all(torch.allclose(large.weights[n], expected.weights[n], atol=1e-10, rtol=0) for n in large.weights)
    assert all(torch.allclose(large.second[n], expected.second[n], atol=1e-12, rtol=1e-8) for n in large.second)


@pytest.mark.parametrize("kind", ["gelu", "relu_tied", "tokenformer"])
def test_an_isometry_under_sgd_is_the_small_model(kind: str) -> None:
    """SGD knows no coordinates, so a rotated residual stream trains as the small one did."""
    shape = _shape(kind)
    target = replace(shape, residual=9)
    state, rng = random_state(shape, 5), torch.Generator().manual_seed(6)
    rotated = grown(state, target, lambda axis, old, new: maps.isometry(old, new, rng))
    plain = replace(SGD, weight_decay=0.0)
    small, large = train(state, plain), train(rotated, plain)
    assert torch.allclose(logits(large, batch(7)), logits(small, batch(7)), atol=1e-10, rtol=0)


def _shape(kind: str) -> Shape:
    tokens = 4 if KINDS[kind].get("placement") == "everywhere" else 0
    sizes: dict[str, Any] = {"layers": 2, "residual": 6, "heads": 2, "key": 4, "value": 3, "ffn": 8, "tokens": tokens}
    return Shape(**sizes, vocab=11, context=7, **KINDS[kind])


def test_what_the_law_needs() -> None:
    """It fails, measurably, with moments reset, with the rate unscaled, and without the muP rule."""
    shape = _shape("gelu")
    target = replace(shape, residual=12, heads=4, ffn=16)
    state = train(replace(random_state(shape, 8), first={}, second={}, steps={}), ADAMW)
    reference = logits(train(state, ADAMW, STEPS), batch(9))

    def gap(large: State) -> float:
        return (logits(train(large, ADAMW, STEPS), batch(9)) - reference).abs().max().item()

    clone = grown(state, target, maps.clone)
    assert gap(clone) < 1e-10
    assert gap(clone.reset()) > 1e-3
    unscaled = replace(clone, scaling=replace(clone.scaling, base=target))
    assert gap(replace(unscaled, weights=clone.weights)) > 1e-3


def test_rates_at_the_base_are_the_study_s() -> None:
    state = random_state(_shape("tokenformer"), 1)
    opt = optimizer.build(state, state.model(), ADAMW)
    assert len(opt.param_groups) == 1
    assert (opt.param_groups[0]["lr"], opt.param_groups[0]["eps"]) == (ADAMW.learning_rate, ADAMW.eps)


def test_moments_continue_bit_for_bit() -> None:
    """Ten steps are five steps, collected, and five more."""
    state = replace(random_state(_shape("gelu"), 2), first={}, second={}, steps={})
    twice, once = train(train(state, ADAMW), ADAMW, STEPS), train(state, ADAMW, steps=2 * STEPS)
    assert all(torch.equal(twice.weights[n], once.weights[n]) for n in once.weights)
    assert twice.steps == once.steps == dict.fromkeys(state.weights, 10)
