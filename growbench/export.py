"""An arm's final model as files that other tools load: safetensors, a configuration in JSON, a loader of one file.

    OUT/model.safetensors   config.json   model.py (loader.py, without growbench)
    OUT/transformers/       where an architecture of transformers computes the same function

A model without parameter tokens beyond its feed-forward layer, and of equal layers, is a LlamaForCausalLM (swiglu) or
an ArceeForCausalLM (relu, gelu: the same without a gate). Its scales go into weights: that of the scores into the
queries, that of the logits into the final norm's gain; low-rank additions are merged.
"""

import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from growbench import loader, model, tables
from growbench.checkpoint import Checkpoint
from growbench.plugins import nearest
from growbench.shape import Shape
from growbench.shards import SINGLE, write_json
from growbench.store import CHECKPOINT, Store

ARCHITECTURES = {"swiglu": "LlamaForCausalLM", "relu": "ArceeForCausalLM", "gelu": "ArceeForCausalLM"}
"""The architecture of transformers that a nonlinearity of the feed-forward layer asks for."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """What was written: of which arm, task, seed and budget; the architecture of transformers, or why there is none."""

    arm: str
    task: str
    seed: int
    budget: int
    params: int
    architecture: str
    reason: str


def export(folder: Path, arm: str, out: Path, *, task: str | None = None, seed: int | None = None) -> Exported:
    """Write an arm's final model, at its largest budget, to `out`, which must not exist.

    task, seed: which run of the arm; the study's only task, and the first seed, if not given.
    """
    if out.exists():
        raise ValueError(f"{out} exists: give a folder that does not")
    about, budget, key = _final(folder, arm, task, seed)
    store = Store(folder)
    record = store.read(key)
    if record is None or record.status != "ok":
        state = "has not run" if record is None else f"{record.status}: {record.reason}"
        raise ValueError(
            f"the last stage of {arm} of seed {about['seed']} ({about['task']}) {state}: run the study again"
        )
    checkpoint = Checkpoint.load(store.folder(key) / CHECKPOINT)
    shape, masks = checkpoint.state.shape, checkpoint.multipliers(checkpoint.state.tokens)
    weights = merged(checkpoint)
    reason = inexpressible(shape, masks)
    beside = out.with_name(f".{out.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        source = {name: about[name] for name in ("arm", "architecture", "task", "seed")} | {"budget": budget}
        _plain(checkpoint, weights, masks, source, beside)
        if not reason:
            _for_transformers(checkpoint, weights, beside / "transformers")
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return Exported(
        arm=arm,
        task=about["task"],
        seed=about["seed"],
        budget=budget,
        params=sum(weight.numel() for weight in weights.values()),
        architecture="" if reason else ARCHITECTURES[shape.nonlinearity],
        reason=reason,
    )


def _final(folder: Path, arm: str, task: str | None, seed: int | None) -> tuple[Mapping[str, Any], int, str]:
    """What is known of the arm that is asked for, its largest budget, and the stage that ends there."""
    arms = tables.read_plan(folder)["arms"]
    found = [one for one in arms if one["about"]["arm"] == arm]
    if not found:
        raise ValueError(f"{folder} has no arm {arm!r}{nearest(arm, sorted({one['about']['arm'] for one in arms}))}")
    tasks = sorted({one["about"]["task"] for one in found})
    if task is None and len(tasks) > 1:
        raise ValueError(f"the arm {arm} has run on {', '.join(tasks)}: choose one with --task")
    if task is not None and task not in tasks:
        raise ValueError(f"the arm {arm} has not run on {task!r}{nearest(task, tasks)}")
    found = [one for one in found if task in (None, one["about"]["task"])]
    seeds = sorted({int(one["about"]["seed"]) for one in found})
    if seed is not None and seed not in seeds:
        raise ValueError(f"the arm {arm} has no seed {seed}: its seeds are {', '.join(map(str, seeds))}")
    one = next(one for one in found if one["about"]["seed"] == (seeds[0] if seed is None else seed))
    point = max(one["points"], key=lambda point: int(point["budget"]))
    return one["about"], int(point["budget"]), point["path"][-1]


def merged(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Weights by name as matrices (written x read), low-rank additions merged; embed and head as they are."""
    shape, state = checkpoint.state.shape, checkpoint.state
    out = {}
    for name, weight in shape.weights.items():
        if name.endswith(("/down", "/up")):
            continue
        matrix = state.weights[name] if weight.lookup else state.weights[name].reshape(-1, weight.fan_in)
        if f"{name}/up" in state.weights:
            up, down = (state.weights[f"{name}/{end}"] for end in ("up", "down"))
            matrix = matrix + up.reshape(len(matrix), -1) @ down.reshape(-1, matrix.shape[1])
        out[name] = matrix.contiguous()
    return out


def inexpressible(shape: Shape, masks: Mapping[str, Tensor]) -> str:
    """Why no architecture of transformers computes a model's function; empty where one does."""
    if shape.placement == "everywhere":
        return "projections are parameter tokens"
    if shape.nonlinearity not in ARCHITECTURES:
        return f"the nonlinearity {shape.nonlinearity} runs over all units of the feed-forward layer"
    if masks:
        return f"masks over {', '.join(sorted(masks))} are not open yet"
    if any(len(set(shape.per_layer(name))) > 1 for name in ("heads", "ffn")):
        return "layers differ in size"
    return "" if shape.key == shape.value else "keys and values of a head differ in width"


def _plain(
    checkpoint: Checkpoint,
    weights: Mapping[str, Tensor],
    masks: Mapping[str, Tensor],
    source: Mapping[str, Any],
    out: Path,
) -> None:
    state, shape = checkpoint.state, checkpoint.state.shape
    config = asdict(shape) | {
        "heads": shape.per_layer("heads"),
        "ffn": shape.per_layer("ffn"),
        "tokens": shape.per_layer("tokens"),
        "rank": 0,
        "norms": dict(state.norms),
        "logit_scale": state.scaling.logit_scale(shape),
        "score_scale": state.scaling.score_scale(shape),
        "rotary_base": model.ROTARY_BASE,
        "norm_eps": model.EPS,
        "trained_tokens": state.tokens,
        "source": source,
    }
    write_json(out / "config.json", config)
    tensors = dict(weights) | {f"mask:{axis}": mask.contiguous() for axis, mask in masks.items()}
    save_file(tensors, out / SINGLE, metadata={"format": "pt"})
    shutil.copy(str(loader.__file__), out / "model.py")


def _for_transformers(checkpoint: Checkpoint, weights: Mapping[str, Tensor], out: Path) -> None:
    state, shape = checkpoint.state, checkpoint.state.shape
    gated = shape.nonlinearity == "swiglu"
    like = weights["embed"]
    ones = torch.ones(shape.residual).to(like)
    named = {"embed": "model.embed_tokens.weight", "head": "lm_head.weight"}
    for layer in range(shape.layers):
        place = f"model.layers.{layer}"
        named |= {f"{layer}/{p}": f"{place}.self_attn.{p}_proj.weight" for p in "qkvo"}
        named |= {
            f"{layer}/ffn/keys": f"{place}.mlp.{'gate' if gated else 'up'}_proj.weight",
            f"{layer}/ffn/gate": f"{place}.mlp.up_proj.weight",
            f"{layer}/ffn/values": f"{place}.mlp.down_proj.weight",
        }
    tensors = {named[name]: weight for name, weight in weights.items()}
    scale = state.scaling.score_scale(shape) * math.sqrt(shape.key)
    for layer in range(shape.layers):
        place = f"model.layers.{layer}"
        tensors[f"{place}.self_attn.q_proj.weight"] = tensors[f"{place}.self_attn.q_proj.weight"] * scale
        tensors |= {f"{place}.{norm}.weight": ones.clone() for norm in ("input_layernorm", "post_attention_layernorm")}
    tensors["model.norm.weight"] = ones * state.scaling.logit_scale(shape)
    config = {
        "architectures": [ARCHITECTURES[shape.nonlinearity]],
        "model_type": "llama" if gated else "arcee",
        "hidden_act": {"swiglu": "silu"}.get(shape.nonlinearity, shape.nonlinearity),
        "vocab_size": shape.vocab,
        "hidden_size": shape.residual,
        "intermediate_size": shape.at("ffn", 0),
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.at("heads", 0),
        "num_key_value_heads": shape.at("heads", 0),
        "head_dim": shape.key,
        "max_position_embeddings": shape.context,
        "rope_theta": model.ROTARY_BASE,
        "rms_norm_eps": model.EPS,
        "tie_word_embeddings": shape.tied,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": str(like.dtype).removeprefix("torch."),
    }
    out.mkdir()
    write_json(out / "config.json", config)
    save_file({name: t.contiguous() for name, t in tensors.items()}, out / SINGLE, metadata={"format": "pt"})
