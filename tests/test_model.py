"""The models: golden numbers of the published layer, laws of the parts, sizes and labels."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from shapes import CONTEXT, KINDS, VOCAB, batch, logits, random_state, shapes

from growbench import model
from growbench.parametrization import Parametrization
from growbench.shape import Shape, solve
from growbench.state import initial

GOLDEN = json.loads((Path(__file__).parent / "pattention.json").read_text())["cases"]


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("case", GOLDEN, ids=[f"{len(case['keys'])} tokens" for case in GOLDEN])
def test_pattention_is_the_published_layer(case: dict[str, list[float]]) -> None:
    """Outputs, and gradients of sum(y^2)/2, of the layer published with TokenFormer, as the model file computes it."""
    keys, values, x = (tensor(case[name]) for name in ("keys", "values", "x"))
    n, inner, out = len(keys), keys.shape[1], values.shape[1]  # a model's feed-forward has one width: pad the values
    shape = Shape(layers=1, residual=inner, heads=1, key=2, value=2, ffn=n, nonlinearity="l2_gelu", vocab=2, context=3)
    weights = {name: torch.zeros(w.sizes, dtype=torch.float64) for name, w in shape.weights.items()}
    padded = torch.cat([values, torch.zeros(n, inner - out, dtype=torch.float64)], 1)
    weights |= {"0/ffn/keys": keys, "0/ffn/values": padded.T.contiguous()}
    net = model.LanguageModel(shape, weights, {"0/ffn": float(n)}, Parametrization(name="mup", base=shape))
    x.requires_grad_(True)
    y = net.pattention("0/ffn", "0/ffn", x)
    inputs = [x, net.weights["0/ffn/keys"], net.weights["0/ffn/values"]]
    grad_x, grad_keys, grad_values = torch.autograd.grad(y.square().sum() / 2, inputs)
    found = {"y": y[..., :out], "grad_x": grad_x, "grad_keys": grad_keys, "grad_values": grad_values.T[:, :out]}
    for name, value in found.items():
        assert torch.allclose(value, tensor(case[name]), atol=1e-12, rtol=0), name


@given(shapes(), st.integers(0, 1000))
@settings(max_examples=20)
def test_the_future_is_not_seen(shape: Shape, seed: int) -> None:
    state, tokens = random_state(shape, seed), batch(seed)
    changed = tokens.clone()
    changed[:, CONTEXT - 2] = (changed[:, CONTEXT - 2] + 1) % VOCAB
    one, two = logits(state, tokens), logits(state, changed)
    assert torch.equal(one[:, : CONTEXT - 2], two[:, : CONTEXT - 2])
    assert not torch.equal(one[:, CONTEXT - 2 :], two[:, CONTEXT - 2 :])


def test_attention_by_hand() -> None:
    """One head, two positions, key rotated by one radian: softmax of the two scaled products, value mixed."""
    shape = Shape(layers=1, residual=2, heads=1, key=2, value=1, ffn=1, vocab=2, context=2)
    state = random_state(shape, 3)
    x = tensor([[[0.3, -1.2], [0.7, 0.4]]])
    q, k, v, o = (
        state.weights[f"0/{p}"].flatten(0, -2) if p != "o" else state.weights["0/o"].flatten(1) for p in "qkvo"
    )
    turn = tensor([[math.cos(1), -math.sin(1)], [math.sin(1), math.cos(1)]])
    query, keys = turn @ q @ x[0, 1], [k @ x[0, 0], turn @ k @ x[0, 1]]
    share = F.softmax(torch.stack([query @ key for key in keys]) / math.sqrt(2), dim=0)
    expected = o @ (share[0] * (v @ x[0, 0]) + share[1] * (v @ x[0, 1]))
    assert torch.allclose(state.model().attention(0, x)[0, 1], expected, atol=1e-12)


def test_norm_and_masks() -> None:
    """rms(x) = 1 after the norm; a mask of zeros and ones is the model without those units."""
    x = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(model.norm(x).square().mean(-1), torch.ones(5, dtype=torch.float64), atol=1e-6)
    mask = tensor([1, 1, 1, 1, 1, 0, 0, 0])
    assert torch.allclose(model.norm(x, mask)[:, :5], model.norm(x[:, :5]), atol=1e-8)
    assert model.norm(x, mask)[:, 5:].abs().max() == 0
    for nonlinearity in ("relu", "gelu", "softmax", "l2_gelu"):
        masked = model.activate(x, nonlinearity, 5.0, mask)
        assert torch.allclose(masked[:, :5], model.activate(x[:, :5], nonlinearity, 5.0), atol=1e-12)
        assert masked[:, 5:].abs().max() == 0


@pytest.mark.parametrize("name", ["mup", "standard"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_initial_scale_follows_the_labels(kind: str, name: str) -> None:
    """Weights have the standard deviation 1/sqrt(fan-in), a muP readout the base's; activations are of order one."""
    everywhere = KINDS[kind].get("placement") == "everywhere"
    sizes: dict[str, Any] = {
        "layers": 1,
        "residual": 64,
        "heads": 4,
        "key": 16,
        "value": 16,
        "ffn": 256,
        "tokens": 32 * everywhere,
    }
    shape = Shape(**sizes, **KINDS[kind])
    base = replace(shape, residual=16, heads=1, ffn=64)
    scaling = Parametrization(name=name, base=base)  # type: ignore[arg-type]
    state = initial(shape, scaling, torch.Generator().manual_seed(1), torch.float64)
    for weight in shape.weights.values():
        fan_in = {"embed": 1, "head": 16 if name == "mup" else 64}.get(weight.name, weight.fan_in)
        expected = 1 / math.sqrt(fan_in)
        assert state.weights[weight.name].std().item() == pytest.approx(expected, rel=5 / math.sqrt(2 * weight.count))


def test_sizes_are_what_a_pencil_says() -> None:
    """12 d^2 a layer at ffn = 4 d; a Pattention layer of n tokens has n (in + out); embedding and readout apart."""
    plain = Shape(layers=2, residual=32, heads=4, key=8, value=8, ffn=128)
    assert plain.params_non_embedding == 2 * 12 * 32**2
    assert plain.params == plain.params_non_embedding + 2 * 256 * 32
    assert replace(plain, tied=True).params == plain.params_non_embedding + 256 * 32
    tokens = replace(plain, placement="everywhere", tokens=16, nonlinearity="l2_gelu")
    assert tokens.params_non_embedding == plain.params_non_embedding
    assert replace(plain, nonlinearity="swiglu").params_non_embedding == 2 * 16 * 32**2
    assert replace(plain, rank=2).params - plain.params == 2 * 2 * (4 * (32 + 32) + 2 * (32 + 128))
    assert plain.weights["0/q"].label == "head key residual*"
    assert tokens.weights["1/o/keys"].label == "o_token head* value*"
    assert plain.weights["head"].label == "vocab residual/"


@given(st.integers(20_000, 200_000), st.sampled_from([16, 32]), st.booleans())
def test_the_solver_matches_sizes(params: int, residual: int, everywhere: bool) -> None:
    rung: dict[str, Any] = {"layers": 2, "residual": residual, "heads": residual // 8, "key": 8, "value": 8}
    rung |= {"placement": "everywhere", "nonlinearity": "l2_gelu"} if everywhere else {}
    shape = solve(rung, params)
    assert abs(shape.params_non_embedding - params) <= 0.01 * params
    with pytest.raises(ValueError, match="the nearest gives"):
        solve(rung, 1000)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"residul": 3}, "did you mean residual"),
        ({"residual": 0}, "whole numbers of at least 1"),
        ({"key": 3}, "even width"),
        ({"nonlinearity": "tanh"}, "choose one of"),
        ({"tokens": 4}, "placement everywhere"),
        ({"ffn": [3, 4, 5]}, "one size for each"),
        ({"placement": "everywhere", "tokens": 4, "nonlinearity": "swiglu"}, "swiglu gates"),
    ],
)
def test_bad_rungs_are_refused_in_a_sentence(change: dict[str, object], sentence: str) -> None:
    rung = {"layers": 2, "residual": 8, "heads": 2, "key": 4, "value": 4, "ffn": 8}
    with pytest.raises(ValueError, match=sentence):
        Shape.read(rung | change)
    with pytest.raises(ValueError, match="a rung lacks ffn"):
        Shape.read({k: v for k, v in rung.items() if k != "ffn"})
