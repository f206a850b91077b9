"""The result tables: every column, its unit and its definition, stated once.

`results.parquet` has one row per arm, task, seed and budget point; `curves.parquet` one row per evaluation along an
arm's path; `stages.parquet` one row per distinct stage, paid for once however many arms share it; `diagnostics.parquet`
one row per arm, task, seed, stage and quantity along the path to the full budget; `coordinates.parquet` one row per
architecture, width, activation and step of the coordinate check.
"""

from dataclasses import dataclass

UNSCORED = ("diverged", "failed", "blocked")
"""Statuses whose loss is the uniform predictor's: the worst score, never a missing row."""

PLANNED = ["arm", "task", "seed", "budget", "probe"]
"""What is known of a row of results before it is there."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: its pandas dtype, its unit ("" where it has none) and its definition in one sentence."""

    dtype: str
    unit: str = ""
    meaning: str


def _text(meaning: str) -> Column:
    return Column(dtype="string", meaning=meaning)


def _count(unit: str, meaning: str) -> Column:
    return Column(dtype="Int64", unit=unit, meaning=meaning)


def _real(unit: str, meaning: str) -> Column:
    return Column(dtype="Float64", unit=unit, meaning=meaning)


def _flag(meaning: str) -> Column:
    return Column(dtype="boolean", meaning=meaning)


RESULTS: dict[str, Column] = {
    "study": _text("Name of the study."),
    "arm": _text("The arm: strategy with its parameters, architecture and ladder, as named by the study."),
    "strategy": _text("Name of the strategy's plugin."),
    "variant": _text("The strategy's parameters that differ from its defaults, as key=value."),
    "architecture": _text("Name of the architecture, as in the study's ladder."),
    "restriction": _text("The parts and layers that growth was restricted to, as in [ffn]; empty where to none."),
    "schedule": _text("Name of the schedule by which the arm grew; empty for the study's own."),
    "rung": _count("", "Index of the arm's final shape in the ladder, smallest 0."),
    "shape": _text("Sizes of the final model."),
    "placement": _text("Where parameter attention stands in the model: ffn, or everywhere."),
    "nonlinearity": _text("The nonlinearity of the model's feed-forward and parameter-attention layers."),
    "layers": _count("", "Layers of the final model."),
    "residual": _count("", "Residual width of the final model."),
    "task": _text("Name of the task."),
    "probe": _flag("The task asks for one capacity and not for language: means across tasks leave it out."),
    "unit": _text("What one token is: byte, or symbol for synthetic sources."),
    "seed": _count("", "Seed from which every role (initialisation, data, growth) draws its own generator."),
    "status": _text(
        "ok, or diverged (a loss that is not finite), failed (an error), blocked (a stage it needs did not end)."
    ),
    "reason": _text("Why a row is not ok, and at which token; empty otherwise."),
    "matched": _flag("Final non-embedding parameters lie within 1 % of the target shape's: the row may be ranked."),
    "sterile": _text("Why the strategy's added capacity receives no gradient by design; empty for all others."),
    "preserves": _text("What the strategy declares to preserve at growth: function, or nothing."),
    "growth_steps": _count("", "How often the arm's model grew."),
    "parametrization": _text("mup or standard."),
    "learning_rate": _real("", "Learning rate at the base shape; every matrix derives its own from it by its labels."),
    "weight_decay": _real("", "Weight decay at the base shape."),
    "warmup": _real("", "Warm-up as a fraction of the full budget: from scratch, or after the last growth."),
    "tuned": _flag("Learning rate, and what else was tuned, were chosen by trials of equal number for every arm."),
    "dtype": _text("Arithmetic of training."),
    "device": _text("Kind of device the stages ran on."),
    "data_fingerprint": _text("SHA-256 of the task's token streams."),
    "params": _count("weights", "All weights of the final model."),
    "params_non_embedding": _count("weights", "Weights of the final model without its embedding and readout."),
    "params_added": _count(
        "weights", "Non-embedding weights that growth added to the source, low-rank ones as stored."
    ),
    "params_target": _count("weights", "Non-embedding weights of the rung that the arm was asked to reach."),
    "budget": _count(
        "tokens", "The budget point: training tokens that the arm was given, source and cooldown included."
    ),
    "tokens": _count("tokens", "Training tokens along the arm's path, source, cooldown and probes included."),
    "tokens_source": _count("tokens", "Those spent before the last growth; 0 for arms without a source."),
    "tokens_probe": _count("tokens", "Those handed to the strategy while growing."),
    "tokens_per_param": _real("tokens/weight", "tokens / params_non_embedding."),
    "epochs": _real("passes", "tokens / size of the task's training stream."),
    "flops": _real(
        "FLOPs", "Cost of the whole path: training, cooldown, growth and probes; evaluation and tuning apart."
    ),
    "flops_source": _real("FLOPs", "The part of flops spent before the last growth: the source models'."),
    "flops_continued": _real("FLOPs", "View continued: flops - flops_source; the source is free."),
    "flops_ladder": _real(
        "FLOPs",
        "View ladder: cost of owning every rung up to this one. A grown path counts once, with a cooldown at every "
        "rung; from-scratch runs are summed, each lower rung at the tokens at which grown paths leave it.",
    ),
    "flops_cooldown": _real("FLOPs", "The part of flops in cooldown stages."),
    "flops_growth": _real("FLOPs", "The part of flops in growth operators."),
    "flops_probe": _real("FLOPs", "The part of flops in probes."),
    "flops_eval": _real("FLOPs", "Evaluation and diagnostics; not in flops, equal for all arms of a shape."),
    "flops_tuning": _real("FLOPs", "The arm's tuning trials, each stage of them once; not in flops."),
    "loss": _real("nats/token", "Mean validation cross-entropy on the task's fixed validation batches."),
    "bits_per_byte": _real("bits/byte", "loss / ln 2 / bytes per token; missing where a token has no bytes."),
    "excess_loss": _real("nats/token", "loss - the source's entropy rate, where it is known."),
    "loss_floor": _real("nats/token", "Lowest loss of any model of this residual width, where the task knows it."),
    "bits_per_weight": _real(
        "bits", "Facts that a model of this loss knows, in bits per non-embedding weight, where the task has facts."
    ),
    "growth_gap": _real(
        "logits", "max |logit after - logit before| over a fixed validation batch, at the last growth."
    ),
    "growth_loss_jump": _real("nats/token", "Validation loss right after the last growth - right before."),
    "alive_share": _real(
        "",
        "Share of the squared gradient norm outside the old model's subspace right after growth; 0 is sterile.",
    ),
    "tokens_to_recover": _count(
        "tokens",
        "Training tokens from the last growth to the first evaluation on the trunk whose loss is no higher than right "
        "before it: 0 where growth did not raise it, missing without growth and where the trunk ends before.",
    ),
    "wall_s": _real("s", "Seconds of the path's stages, each as measured where it ran; never the basis of a verdict."),
    "peak_memory_bytes": _count("bytes", "Largest resident memory of a process that ran one of the path's stages."),
}

CURVES: dict[str, Column] = {
    "arm": RESULTS["arm"],
    "task": RESULTS["task"],
    "seed": RESULTS["seed"],
    "kind": _text("train for the trunk at constant rate, cooldown for the branch at a budget point."),
    "stage": _text("Identity of the stage that measured the point."),
    "rung": _count("", "Rung of the model at this point; a step up between two rows is a growth."),
    "budget": _count("tokens", "Budget point of a cooldown row; missing on the trunk."),
    "tokens": _count("tokens", "Training tokens along the path so far."),
    "flops": _real("FLOPs", "Cost of the path so far, as in results."),
    "loss": RESULTS["loss"],
    "train_loss": _real("nats/token", "Mean training cross-entropy since the previous point."),
    "learning_rate": _real("", "Learning rate at the base shape at this point of the schedule."),
}

STAGES: dict[str, Column] = {
    "stage": _text("Identity: hash of parent, specification, plugin source, data, dtype, device kind and core."),
    "kind": _text("init, train, grow, cooldown, or coordinates: a coordinate check, on no arm's path."),
    "status": RESULTS["status"],
    "reason": RESULTS["reason"],
    "task": RESULTS["task"],
    "seed": RESULTS["seed"],
    "arms": _count("arms", "How many arms share the stage."),
    "tokens": _count("tokens", "Training tokens of this stage alone."),
    "flops": _real("FLOPs", "Training, growth and probe cost of this stage alone."),
    "flops_eval": RESULTS["flops_eval"],
    "wall_s": _real("s", "Seconds the stage took."),
    "restarts": _count("", "How often the stage was started again after an infrastructure failure."),
    "started": _text("UTC time at which the stage started, ISO 8601."),
}

DIAGNOSTICS: dict[str, Column] = {
    "arm": RESULTS["arm"],
    "task": RESULTS["task"],
    "seed": RESULTS["seed"],
    "budget": _count("tokens", "Budget of the arm where its last cooldown was diagnosed; missing on the trunk."),
    "tokens": _count("tokens", "Training tokens along the path so far."),
    "kind": _text("Kind of the stage: train, grow or cooldown."),
    "when": _text("before or after a growth, or at the end of the stage."),
    "quantity": _text(
        "activation_rms, root mean square of an activation's projection on the part, over tokens and dimensions; "
        "gradient_rms, the same of the gradient of the summed loss by the activation, in nats; effective_rank, "
        "exp(entropy of the normalised singular values) of the tokens' activations, not centred; alive_share, as in "
        "results."
    ),
    "axis": _text(
        "What is looked at: residual, the stream after a layer, before its norm; ffn, feed-forward activations; token, "
        "those of the projections' parameter tokens; head, attention outputs; missing where all is (alive_share)."
    ),
    "layer": _count("", "Index of the layer; missing where all is looked at."),
    "part": _text(
        "old, the subspace that the last growth mapped the model into (the span of E); new, its orthogonal complement; "
        "all, both: dim_old old^2 + dim_new new^2 = dim_all all^2. An axis that did not grow is old, one of a muted or "
        "fresh layer new; without a growth, or where the strategy states no maps, there is all alone."
    ),
    "value": _real("", "The value, on the same few fixed validation windows for every arm and seed of a task."),
    "stage": STAGES["stage"],
}

COORDINATES: dict[str, Column] = {
    "architecture": RESULTS["architecture"],
    "task": _text("The task whose data are read: the study's first."),
    "parametrization": RESULTS["parametrization"],
    "multiple": _count(
        "", "How many times as large as the ladder's smallest rung the sizes are that the ladder widens."
    ),
    "width": _count("", "Residual width of the model."),
    "axis": _text(
        "What is looked at: residual, the stream after a layer; ffn, q_token, k_token, v_token, o_token, units after "
        "the nonlinearity, with the word scores before it; head, attention outputs; attention logits; logits; next "
        "token's logit, of them the one of the token that follows."
    ),
    "layer": _count("", "Index of the layer; missing for logits."),
    "steps": _count("steps", "Steps of training so far, at the study's learning rate; 0 is before training."),
    "rms": _real("", "Root mean square over tokens, coordinates and seeds, on the same tokens at every step."),
    "rms_change": _real("", "The same of the difference to before training; missing there, and where it is no number."),
    "stage": STAGES["stage"],
}
