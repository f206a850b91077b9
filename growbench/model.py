"""The language models: one decoder whose weights are labelled in shape.py, for transformer and TokenFormer alike.

    norm(x)        = x / rms(x), without gains
    attention(x)   = project_o(softmax(q.k scale, causal) v),  q, k rotated by position
    pattention(x)  = act(x K') V                                      keys K, values V: the parameter tokens
    act(s)         = relu(s) | gelu(s) | n softmax(s) | gelu(s sqrt(n) / |s|)      the last two over the tokens

n in `act` is the number of tokens that the factor counts (State.norms): the layer's own, unless growth holds it.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from growbench.labels import Weight
from growbench.parametrization import Parametrization
from growbench.shape import Nonlinearity, Shape

ROTARY_BASE = 10_000.0
EPS = 1e-8


def norm(x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Gain-free RMSNorm (arXiv:1910.07467) over the last dimension; with a mask, of the masked entries alone."""
    if mask is None:
        return F.rms_norm(x, x.shape[-1:], eps=EPS)
    x = x * mask
    return x * (x.square().sum(-1, keepdim=True) / mask.sum() + EPS).rsqrt()


def activate(scores: Tensor, nonlinearity: Nonlinearity, n: float, mask: Tensor | None = None) -> Tensor:
    """act(s) over the last dimension, the units of a Pattention layer; a mask (0 to 1 per unit) mutes units."""
    if nonlinearity == "softmax":
        return F.softmax(scores if mask is None else scores + mask.log(), dim=-1) * n
    if nonlinearity == "l2_gelu":
        scores = scores if mask is None else scores * mask
        return F.gelu(scores * (math.sqrt(n) / scores.norm(dim=-1, keepdim=True).clamp_min(EPS)))
    active = (
        F.relu(scores) if nonlinearity == "relu" else F.silu(scores) if nonlinearity == "swiglu" else F.gelu(scores)
    )
    return active if mask is None else active * mask


def angles(length: int, key: int) -> Tensor:
    """Rotary angles (arXiv:2104.09864), (length, key/2): position t turns coordinate pair i by t base^(-2i/key)."""
    frequency = ROTARY_BASE ** (-torch.arange(key // 2, dtype=torch.float64) * 2 / key)
    return torch.arange(length, dtype=torch.float64)[:, None] * frequency


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn coordinates i and i + key/2 of x (..., T, key) together, by the angles whose cos and sin are (T, key/2)."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class LanguageModel(nn.Module):
    """Byte or symbol tokens (B, T) to logits (B, T, vocab).

    weights: by name, as `shape.weights` labels them; they become the parameters, uncopied.
    norms: the n of `act` for each normalised axis, by its name.
    """

    def __init__(
        self, shape: Shape, weights: Mapping[str, Tensor], norms: Mapping[str, float], scaling: Parametrization
    ) -> None:
        super().__init__()
        assert weights.keys() == shape.weights.keys(), sorted(weights.keys() ^ shape.weights.keys())
        self.shape = shape
        self.norms = dict(norms)
        self.masks: dict[str, Tensor] = {}
        self.activations: dict[str, Tensor] | None = None
        """Where `forward` leaves its activations on each axis, by layer/axis, for diagnostics; None: nowhere."""
        self.logit_scale = scaling.logit_scale(shape)
        self.score_scale = scaling.score_scale(shape)
        self.weights = nn.ParameterDict({name: nn.Parameter(weight) for name, weight in weights.items()})
        turn = angles(shape.context, shape.key)
        self.cos: Tensor
        self.sin: Tensor
        self.register_buffer("cos", turn.cos().to(weights["embed"]), persistent=False)
        self.register_buffer("sin", turn.sin().to(weights["embed"]), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = self.masks.get("residual")
        x = F.embedding(tokens, self.weights["embed"])
        for layer in range(self.shape.layers):
            x = x + self.heard(layer, self.attention(layer, norm(x, mask)))
            x = x + self.heard(layer, self.pattention(f"{layer}/ffn", f"{layer}/ffn", norm(x, mask)))
            self.see(f"{layer}/residual", x)
        readout = self.weights["embed" if self.shape.tied else "head"]
        return F.linear(norm(x, mask), readout) * self.logit_scale

    def see(self, axis: str, x: Tensor) -> None:
        """Leave an activation, whose last dimensions are the axis', in `activations` where that is on."""
        if self.activations is not None:
            self.activations[axis] = x

    def heard(self, layer: int, y: Tensor) -> Tensor:
        """What a layer adds to the residual stream, as far as a mask over the layers lets it."""
        return y if (mask := self.masks.get("layer")) is None else y * mask[layer]

    def attention(self, layer: int, x: Tensor) -> Tensor:
        """Causal attention in one layer: x (B, T, residual) to (B, T, residual)."""
        batch, length, _ = x.shape
        heads = self.shape.at("heads", layer)
        q, k, v = (self.project(layer, p, x).view(batch, length, heads, -1).transpose(1, 2) for p in "qkv")
        q, k = (rotate(z, self.cos[:length], self.sin[:length]) for z in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.score_scale)
        for axis, sizes in (("head", (heads, 1, 1)), ("value", (1, 1, -1))):
            if (mask := self.masks.get(f"{layer}/{axis}")) is not None:
                mixed = mixed * mask.view(sizes)
        mixed = mixed.transpose(1, 2)
        self.see(f"{layer}/head", mixed)
        return self.project(layer, "o", mixed.flatten(2))

    def project(self, layer: int, projection: str, x: Tensor) -> Tensor:
        """One of the projections q, k, v, o: a matrix, or with placement everywhere a Pattention layer."""
        if self.shape.placement == "everywhere":
            return self.pattention(f"{layer}/{projection}", f"{layer}/{projection}_token", x)
        return self.multiply(f"{layer}/{projection}", x)

    def pattention(self, name: str, axis: str, x: Tensor) -> Tensor:
        """act(x K') V: keys and values of `name`, whose units lie on `axis`."""
        n, mask = self.norms.get(axis, 1.0), self.masks.get(axis)
        hidden = activate(self.multiply(f"{name}/keys", x), self.shape.nonlinearity, n, mask)
        if f"{name}/gate" in self.shape.weights:
            hidden = hidden * self.multiply(f"{name}/gate", x)
        self.see(axis, hidden)
        return self.multiply(f"{name}/values", hidden)

    def multiply(self, name: str, x: Tensor) -> Tensor:
        """x W' for a weight and its low-rank addition, the written and the read dimensions each flattened into one."""
        y = F.linear(x, self._matrix(name))
        if self.shape.rank:
            y = y + F.linear(F.linear(x, self._matrix(f"{name}/down")), self._matrix(f"{name}/up"))
        return y

    def _matrix(self, name: str) -> Tensor:
        weight: Tensor = self.weights[name]
        return weight.view(-1, self.shape.weights[name].fan_in)


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean next-token cross-entropy in nats; batch (B, T + 1)."""
    return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


def draw(weight: Weight, scaling: Parametrization, rng: Generator, dtype: torch.dtype) -> Tensor:
    """An initial weight: normal, scaled by its label."""
    return (torch.randn(weight.sizes, generator=rng, dtype=torch.float64) * scaling.std(weight)).to(dtype)
