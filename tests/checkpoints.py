"""Tiny random checkpoints of every family, built with transformers, in float64."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Generator, Tensor

from growbench import shards

SMALL = {"vocab_size": 40, "num_hidden_layers": 2, "max_position_embeddings": 32}
HF: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"vocab_size": 40, "n_layer": 2, "n_positions": 32, "n_embd": 16, "n_head": 4, "n_inner": 24}),
    "gpt2-untied": (
        "gpt2",
        {"vocab_size": 40, "n_layer": 2, "n_positions": 32, "n_embd": 16, "n_head": 4, "tie_word_embeddings": False},
    ),
    "llama": (
        "llama",
        SMALL
        | {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 6,
        },
    ),
    "llama-biases": (
        "llama",
        SMALL
        | {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 4}
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ),
    "qwen2": (
        "qwen2",
        SMALL
        | {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2}
        | {"tie_word_embeddings": True},
    ),
    "qwen3": (
        "qwen3",
        SMALL
        | {
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 6,
        },
    ),
    "pythia": ("gpt_neox", SMALL | {"hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4}),
    "neox-serial": (
        "gpt_neox",
        SMALL
        | {"hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4, "use_parallel_residual": False}
        | {"attention_bias": False, "tie_word_embeddings": True},
    ),
}
"""By a word: the model's type and its configuration. Pythia's rotary positions turn a quarter of a head."""

TOKENFORMER = {
    "architectures": ["TokenFormer"],
    "num_layers": 2,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "qkv_slot_num": 6,
    "proj_slot_num": 5,
    "ffn_slot_num": 10,
    "padded_vocab_size": 40,
    "max_position_embeddings": 32,
    "rotary_pct": 0.5,
    "norm_activation_type": "l2_norm_gelu",
}


def make(word: str, folder: Path, dtype: torch.dtype = torch.float64, **changes: Any) -> Path:
    """A checkpoint of a family whose weights, gains and shifts are all drawn at random."""
    if word == "tokenformer":
        return _tokenformer(folder)
    kind, config = HF[word]
    own = transformers.AutoConfig.for_model(kind, **config | {"bos_token_id": 0, "eos_token_id": 1} | changes)
    model = transformers.AutoModelForCausalLM.from_config(own, dtype=dtype)
    rng = Generator().manual_seed(0)
    for parameter in model.parameters():
        drawn = torch.randn(parameter.shape, generator=rng, dtype=torch.float64)
        parameter.data.copy_(1 + 0.3 * drawn if parameter.dim() == 1 else 0.3 * drawn)
    model.save_pretrained(folder)
    return folder


def _tokenformer(folder: Path) -> Path:
    rng = Generator().manual_seed(0)
    width, counts = TOKENFORMER["hidden_size"], {"attention.proj": "proj_slot_num", "mlp": "ffn_slot_num"}
    tensors: dict[str, Tensor] = {}

    def draw(name: str, *shape: Any) -> None:
        tensors[name] = 0.5 * torch.randn(*shape, generator=rng, dtype=torch.float64)

    draw("sequential.0.word_embeddings.weight", TOKENFORMER["padded_vocab_size"], width)
    for module in (2, 3):
        for part in ("attention.query", "attention.key", "attention.value", "attention.proj", "mlp"):
            for end in ("key", "value"):
                count = TOKENFORMER[counts.get(part, "qkv_slot_num")]
                draw(f"sequential.{module}.{part}.{end}_param_tokens", count, width)
    draw("sequential.5.norm.weight", width)
    draw("sequential.5.norm.bias", width)
    folder.mkdir(parents=True)
    save_file(tensors, folder / shards.SINGLE)
    shards.write_json(folder / "config.json", TOKENFORMER)
    return folder


def tensors(folder: Path) -> Mapping[str, Tensor]:
    """Every tensor of a checkpoint folder."""
    found = shards.read(folder)
    out = {}
    for name in found.files:
        with found.tensor(name) as tensor:
            out[name] = tensor.clone()
    return out
