"""Llama, Qwen2 and Qwen3: RMSNorm, rotary positions, grouped-query attention, a gated feed-forward layer."""

from dataclasses import replace

from growbench.families import Family

LAYER = "model.layers.{layer}"
ATTENTION, MLP = f"{LAYER}.self_attn", f"{LAYER}.mlp"
QKV = {
    f"{ATTENTION}.q_proj.bias": "(group query width)",
    f"{ATTENTION}.k_proj.bias": "(group width)",
    f"{ATTENTION}.v_proj.bias": "(group width)",
}
O = {f"{ATTENTION}.o_proj.bias": "residual"}  # noqa: E741
GATED = {
    f"{MLP}.gate_proj.bias": "ffn",
    f"{MLP}.up_proj.bias": "ffn",
    f"{MLP}.down_proj.bias": "residual",
}

_PLAIN = Family(
    architecture="",
    sizes={
        "layers": "num_hidden_layers",
        "residual": "hidden_size",
        "heads": "num_attention_heads",
        "groups": "num_key_value_heads",
        "width": "head_dim",
        "ffn": "intermediate_size",
        "vocab": "vocab_size",
    },
    norm="rms",
    nonlinearity="swiglu",
    embedding="model.embed_tokens.weight",
    readout="lm_head.weight",
    tensors={
        "model.embed_tokens.weight": "vocab* residual",
        f"{ATTENTION}.q_proj.weight": "(group query width) residual*",
        f"{ATTENTION}.k_proj.weight": "(group width) residual*",
        f"{ATTENTION}.v_proj.weight": "(group width) residual*",
        f"{ATTENTION}.o_proj.weight": "residual (group* query* width*)",
        f"{MLP}.gate_proj.weight": "ffn residual*",
        f"{MLP}.up_proj.weight": "ffn residual*",
        f"{MLP}.down_proj.weight": "residual ffn*",
        "lm_head.weight": "vocab residual*",
    },
    norms={
        f"{LAYER}.input_layernorm": tuple(f"{ATTENTION}.{p}_proj.weight" for p in "qkv"),
        f"{LAYER}.post_attention_layernorm": (f"{MLP}.gate_proj.weight", f"{MLP}.up_proj.weight"),
        "model.norm": ("lm_head.weight",),
    },
    ignored=(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq",),
)

LLAMA = replace(
    _PLAIN,
    architecture="LlamaForCausalLM",
    tensors={**_PLAIN.tensors, **QKV, **O, **GATED},
    optional=dict.fromkeys([*QKV, *O], "attention_bias") | dict.fromkeys(GATED, "mlp_bias"),
)
QWEN2 = replace(_PLAIN, architecture="Qwen2ForCausalLM", tensors={**_PLAIN.tensors, **QKV})
QWEN3 = replace(
    _PLAIN,
    architecture="Qwen3ForCausalLM",
    tensors={
        **_PLAIN.tensors,
        **QKV,
        **O,
        f"{ATTENTION}.q_norm.weight": "=width",
        f"{ATTENTION}.k_norm.weight": "=width",
    },
    optional=dict.fromkeys([*QKV, *O], "attention_bias"),
)
