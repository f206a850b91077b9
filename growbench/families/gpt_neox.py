"""GPT-NeoX and Pythia: LayerNorm, partial rotary positions, parallel residual; q, k and v in one, head by head."""

from growbench.families import Family

LAYER = "gpt_neox.layers.{layer}"
BIASES = {f"{LAYER}.attention.query_key_value.bias": "(head qkv width)", f"{LAYER}.attention.dense.bias": "residual"}

GPT_NEOX = Family(
    architecture="GPTNeoXForCausalLM",
    sizes={
        "layers": "num_hidden_layers",
        "residual": "hidden_size",
        "heads": "num_attention_heads",
        "ffn": "intermediate_size",
        "vocab": "vocab_size",
    },
    norm="layer",
    square=True,
    embedding="gpt_neox.embed_in.weight",
    readout="embed_out.weight",
    tensors={
        "gpt_neox.embed_in.weight": "vocab* residual",
        f"{LAYER}.attention.query_key_value.weight": "(head qkv width) residual*",
        f"{LAYER}.attention.dense.weight": "residual (head* width*)",
        **BIASES,
        f"{LAYER}.mlp.dense_h_to_4h.weight": "ffn residual*",
        f"{LAYER}.mlp.dense_h_to_4h.bias": "ffn",
        f"{LAYER}.mlp.dense_4h_to_h.weight": "residual ffn*",
        f"{LAYER}.mlp.dense_4h_to_h.bias": "residual",
        "embed_out.weight": "vocab residual*",
    },
    norms={
        f"{LAYER}.input_layernorm": (f"{LAYER}.attention.query_key_value.weight",),
        f"{LAYER}.post_attention_layernorm": (f"{LAYER}.mlp.dense_h_to_4h.weight",),
        "gpt_neox.final_layer_norm": ("embed_out.weight",),
    },
    optional=dict.fromkeys(BIASES, "attention_bias"),
    ignored=(r"gpt_neox\.layers\.\d+\.attention\.(masked_bias|bias|rotary_emb\.inv_freq)",),
)
