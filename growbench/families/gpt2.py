"""GPT-2: learned positions, LayerNorm, tied embedding; projections stored input first (Conv1D), q, k and v in one."""

from growbench.families import Family

LAYER = "transformer.h.{layer}"

GPT2 = Family(
    architecture="GPT2LMHeadModel",
    sizes={
        "layers": "n_layer",
        "residual": "n_embd",
        "heads": "n_head",
        "ffn": "n_inner",
        "vocab": "vocab_size",
        "position": "n_positions",
    },
    norm="layer",
    square=True,
    embedding="transformer.wte.weight",
    readout="lm_head.weight",
    tensors={
        "transformer.wte.weight": "vocab* residual",
        "transformer.wpe.weight": "position* residual",
        f"{LAYER}.attn.c_attn.weight": "residual* (qkv head width)",
        f"{LAYER}.attn.c_attn.bias": "(qkv head width)",
        f"{LAYER}.attn.c_proj.weight": "(head* width*) residual",
        f"{LAYER}.attn.c_proj.bias": "residual",
        f"{LAYER}.mlp.c_fc.weight": "residual* ffn",
        f"{LAYER}.mlp.c_fc.bias": "ffn",
        f"{LAYER}.mlp.c_proj.weight": "ffn* residual",
        f"{LAYER}.mlp.c_proj.bias": "residual",
        "lm_head.weight": "vocab residual*",
    },
    norms={
        f"{LAYER}.ln_1": (f"{LAYER}.attn.c_attn.weight",),
        f"{LAYER}.ln_2": (f"{LAYER}.mlp.c_fc.weight",),
        "transformer.ln_f": ("lm_head.weight",),
    },
    prefix="transformer.",
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(masked_)?bias",),
)
