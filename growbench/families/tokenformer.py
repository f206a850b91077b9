"""TokenFormer as published: parameter tokens for every projection, LayerNorm without gains, modules of a pipeline.

Names are those of the published files (github.com/Haiyang-W/TokenFormer): module 0 embeds, module i + 2 is layer i, and
the final norm is module layers + 3; the embedding is the readout. config.json holds the published configuration as
JSON, with architectures ["TokenFormer"] and the padded_vocab_size of the embedding. transformers has no such model, so
`logits` computes it.

    pattention(x) = gelu(s sqrt(n) / |s|) values,   s = x keys'

The factor counts all n tokens, silent ones too, so that this form admits whole copies of the tokens only.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from growbench.families import Family
from growbench.labels import Admits

ATTENTION, MLP = "sequential.{module}.attention", "sequential.{module}.mlp"
TOKENS = ("ffn", "q_token", "k_token", "v_token", "o_token")
_COPIES: Admits = "copies"

TOKENFORMER = Family(
    architecture="TokenFormer",
    sizes={
        "layers": "num_layers",
        "residual": "hidden_size",
        "heads": "num_attention_heads",
        "tokens": "qkv_slot_num",
        "proj_tokens": "proj_slot_num",
        "ffn": "ffn_slot_num",
        "vocab": "padded_vocab_size",
    },
    norm="layer",
    square=True,
    nonlinearity="l2_gelu",
    embedding="sequential.0.word_embeddings.weight",
    readout="",
    tensors={
        "sequential.0.word_embeddings.weight": "vocab* residual",
        f"{ATTENTION}.query.key_param_tokens": "q_token residual*",
        f"{ATTENTION}.query.value_param_tokens": "q_token* (head width)",
        f"{ATTENTION}.key.key_param_tokens": "k_token residual*",
        f"{ATTENTION}.key.value_param_tokens": "k_token* (head width)",
        f"{ATTENTION}.value.key_param_tokens": "v_token residual*",
        f"{ATTENTION}.value.value_param_tokens": "v_token* (head width)",
        f"{ATTENTION}.proj.key_param_tokens": "o_token (head* width*)",
        f"{ATTENTION}.proj.value_param_tokens": "o_token* residual",
        f"{MLP}.key_param_tokens": "ffn residual*",
        f"{MLP}.value_param_tokens": "ffn* residual",
    },
    norms={"sequential.{last}.norm": ()},
    ignored=(r"sequential\.\d+\.attention\.rotary_emb\.inv_freq",),
    admits=dict.fromkeys(TOKENS, _COPIES),
)


def pattention(x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """The published layer: x (..., in), keys (n, in), values (n, out) to (..., out)."""
    scores = x @ keys.T
    return F.gelu(scores / scores.norm(dim=-1, keepdim=True) * math.sqrt(len(keys))) @ values


def logits(config: Mapping[str, Any], weights: Mapping[str, Tensor], tokens: Tensor) -> Tensor:
    """Logits (B, T, vocab) of a published checkpoint for tokens (B, T), in the weights' dtype."""
    heads, width = config["num_attention_heads"], config["hidden_size"] // config["num_attention_heads"]
    eps = config.get("layernorm_epsilon", 1e-5)
    turned = int(width * config.get("rotary_pct", 1.0))
    embedding = weights["sequential.0.word_embeddings.weight"]
    x = F.embedding(tokens, embedding)

    def through(name: str, x: Tensor) -> Tensor:
        return pattention(x, weights[f"{name}.key_param_tokens"], weights[f"{name}.value_param_tokens"])

    frequency = 10_000.0 ** (-torch.arange(0, turned, 2, dtype=torch.float64) / turned)
    angle = torch.arange(tokens.shape[1], dtype=torch.float64)[:, None] * frequency
    cos, sin = angle.cos().to(x), angle.sin().to(x)

    def rotated(x: Tensor) -> Tensor:
        a, b = x[..., :turned].chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos, x[..., turned:]], dim=-1)

    for layer in range(config["num_layers"]):
        name = f"sequential.{layer + 2}.attention"
        normed = F.layer_norm(x, x.shape[-1:], eps=eps)
        q, k, v = (
            through(f"{name}.{part}", normed).view(*tokens.shape, heads, width).transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(rotated(q), rotated(k), v, is_causal=True)
        x = x + through(f"{name}.proj", mixed.transpose(1, 2).flatten(2))
        x = x + through(f"sequential.{layer + 2}.mlp", F.layer_norm(x, x.shape[-1:], eps=eps))
    final = f"sequential.{config['num_layers'] + 3}.norm"
    return F.linear(F.layer_norm(x, x.shape[-1:], weights[f"{final}.weight"], weights[f"{final}.bias"], eps), embedding)
