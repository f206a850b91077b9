"""A language model that growbench exported: this one file, plain torch and safetensors.

    from model import load
    net = load("FOLDER")        # config.json and model.safetensors of the folder that this file lies in
    logits = net(tokens)        # (B, T) whole numbers to (B, T, vocab)

Every layer adds attention and a feed-forward layer to the residual stream x, each of norm(x) = x / rms(x):

    attention(x)   = project_o(softmax(q.k score_scale, causal) v),  q, k rotated by position
    pattention(x)  = act(x K') V            keys K, values V: the feed-forward layer; with placement everywhere the
                                            four projections too, which else are matrices
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn


def load(folder: str | Path, dtype: torch.dtype | None = None) -> "Model":
    """The model of a folder, with its weights' dtype or the one given."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return Model(
        config, {name: t.to(dtype or t.dtype) for name, t in load_file(Path(folder) / "model.safetensors").items()}
    )


class Model(nn.Module):
    """Tokens (B, T) to logits (B, T, vocab). Tensors named mask:AXIS are multipliers of an axis' units."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        super().__init__()
        self.config = config
        self.weights = nn.ParameterDict({n: nn.Parameter(t) for n, t in tensors.items() if not n.startswith("mask:")})
        self.masks = {name.removeprefix("mask:"): t for name, t in tensors.items() if name.startswith("mask:")}

    def forward(self, tokens: Tensor) -> Tensor:
        config = self.config
        x = F.embedding(tokens, self.weights["embed"])
        heard = self.masks.get("layer", torch.ones(config["layers"]).to(x))
        for layer in range(config["layers"]):
            x = x + heard[layer] * self.attention(layer, self.norm(x))
            x = x + heard[layer] * self.pattention(f"{layer}/ffn", f"{layer}/ffn", self.norm(x))
        readout = self.weights["embed" if config["tied"] else "head"]
        scale: float = config["logit_scale"]
        return F.linear(self.norm(x), readout) * scale

    def norm(self, x: Tensor) -> Tensor:
        eps: float = self.config["norm_eps"]
        if (mask := self.masks.get("residual")) is None:
            return F.rms_norm(x, x.shape[-1:], eps=eps)
        x = x * mask
        return x * (x.square().sum(-1, keepdim=True) / mask.sum() + eps).rsqrt()

    def attention(self, layer: int, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        heads = self.config["heads"][layer]
        q, k, v = (self.project(layer, p, x).view(batch, length, heads, -1).transpose(1, 2) for p in "qkv")
        q, k = self.rotate(q), self.rotate(k)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.config["score_scale"])
        if (mask := self.masks.get(f"{layer}/head")) is not None:
            mixed = mixed * mask.view(-1, 1, 1)
        if (mask := self.masks.get(f"{layer}/value")) is not None:
            mixed = mixed * mask
        return self.project(layer, "o", mixed.transpose(1, 2).flatten(2))

    def rotate(self, x: Tensor) -> Tensor:
        """Turn coordinates i and i + key/2 of position t together, by t rotary_base^(-2i/key)."""
        length, key = x.shape[-2:]
        frequency = self.config["rotary_base"] ** (-torch.arange(key // 2, dtype=torch.float64) * 2 / key)
        angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
        cos, sin = angle.cos().to(x), angle.sin().to(x)
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    def project(self, layer: int, projection: str, x: Tensor) -> Tensor:
        if self.config["placement"] == "everywhere":
            return self.pattention(f"{layer}/{projection}", f"{layer}/{projection}_token", x)
        return F.linear(x, self.weights[f"{layer}/{projection}"])

    def pattention(self, name: str, axis: str, x: Tensor) -> Tensor:
        hidden = self.activate(F.linear(x, self.weights[f"{name}/keys"]), axis)
        if f"{name}/gate" in self.weights:
            hidden = hidden * F.linear(x, self.weights[f"{name}/gate"])
        return F.linear(hidden, self.weights[f"{name}/values"])

    def activate(self, scores: Tensor, axis: str) -> Tensor:
        """relu, gelu, silu (swiglu), n softmax, or gelu(s sqrt(n) / |s|); n as the configuration counts an axis."""
        kind, mask = self.config["nonlinearity"], self.masks.get(axis)
        n: float = self.config["norms"].get(axis, 1.0)
        if kind == "softmax":
            return F.softmax(scores if mask is None else scores + mask.log(), dim=-1) * n
        if kind == "l2_gelu":
            scores = scores if mask is None else scores * mask
            length = scores.norm(dim=-1, keepdim=True).clamp_min(self.config["norm_eps"])
            return F.gelu(scores * (math.sqrt(n) / length))
        active = F.relu(scores) if kind == "relu" else F.gelu(scores) if kind == "gelu" else F.silu(scores)
        return active if mask is None else active * mask
