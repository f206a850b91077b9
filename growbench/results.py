"""The result tables: every column, its unit and its definition, stated once.

`results.parquet` has one row per arm, task, seed and budget point; `curves.parquet` one row per evaluation along an
arm's path; `stages.parquet` one row per distinct stage, paid for once however many arms share it.
"""

from dataclasses import dataclass

UNSCORED = ("diverged", "failed", "blocked")
"""Statuses whose loss is the uniform predictor's: the worst score, never a missing row."""


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
    "rung": _count("", "Index of the arm's final shape in the ladder, smallest 0."),
    "shape": _text("Sizes of the final model."),
    "task": _text("Name of the task."),
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
    "tuned": _flag("The learning rate was chosen by a tuning run of equal effort for every arm."),
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
    "flops_tuning": _real("FLOPs", "Tuning trials of this arm; not in flops."),
    "loss": _real("nats/token", "Mean validation cross-entropy on the task's fixed validation batches."),
    "bits_per_byte": _real("bits/byte", "loss / ln 2 / bytes per token; missing where a token has no bytes."),
    "excess_loss": _real("nats/token", "loss - the source's entropy rate, where it is known."),
    "growth_gap": _real(
        "logits", "max |logit after - logit before| over a fixed validation batch, at the last growth."
    ),
    "growth_loss_jump": _real("nats/token", "Validation loss right after the last growth - right before."),
    "alive_share": _real(
        "",
        "Share of the squared gradient norm outside the old model's subspace right after growth; 0 is sterile.",
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
    "kind": _text("init, train, grow or cooldown."),
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
