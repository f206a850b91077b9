"""The optimizer of every arm: torch's AdamW or SGD, each weight with the rates that its label gives it.

rate = learning_rate * scaling.rate(weight)      decay * rate = constant      eps = eps * scaling.eps(weight)
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer

from growbench.model import LanguageModel
from growbench.state import State


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a study says of the optimizer; learning rate, decay and eps at the base shape."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: float
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8


def build(state: State, model: LanguageModel, settings: Settings) -> Optimizer:
    """The optimizer over the model's trainable weights, going on from the state's moments."""
    groups = []
    for name, parameter in model.weights.items():
        if parameter.requires_grad:
            weight = state.shape.weights[name]
            rate = state.scaling.rate(weight, settings.optimizer)
            group: dict[str, Any] = {
                "params": [parameter],
                "name": name,
                "factor": rate,
                "lr": settings.learning_rate * rate,
            }
            group["weight_decay"] = settings.weight_decay / rate
            if settings.optimizer == "adamw":
                group["eps"] = settings.eps * state.scaling.eps(weight)
            groups.append(group)
    if settings.optimizer == "sgd":
        return SGD(_merged(groups), lr=settings.learning_rate)
    adamw = AdamW(_merged(groups), lr=settings.learning_rate, betas=settings.betas, fused=True)
    for name, parameter in model.weights.items():
        if name in state.first and parameter.requires_grad:
            adamw.state[parameter] = {
                "step": torch.tensor(float(state.steps[name]), device=parameter.device),
                "exp_avg": state.first[name].to(parameter.device, copy=True),
                "exp_avg_sq": state.second[name].to(parameter.device, copy=True),
            }
    return adamw


def _merged(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One group for all weights of equal rates: fewer, larger updates."""
    merged: dict[tuple[float, ...], dict[str, Any]] = {}
    for group in groups:
        own = merged.setdefault((group["lr"], group["weight_decay"], group.get("eps", 0.0)), group | {"params": []})
        own["params"] += group["params"]
        own.pop("name", None)
    return list(merged.values())


def set_rate(optimizer: Optimizer, learning_rate: float) -> None:
    """Set the learning rate at the base shape; the decay of a step, decay * rate, follows it as in torch's AdamW."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group["factor"]


def collect(state: State, model: LanguageModel, optimizer: Optimizer, tokens: int) -> State:
    """The state after training: the model's weights and the optimizer's moments, at a position in the data."""
    first, second, steps = dict(state.first), dict(state.second), dict(state.steps)
    for name, parameter in model.weights.items():
        if (moments := optimizer.state.get(parameter)) and "exp_avg" in moments:
            first[name], second[name] = _copy(moments["exp_avg"]), _copy(moments["exp_avg_sq"])
            steps[name] = int(moments["step"].item())
    weights: Mapping[str, Tensor] = {name: _copy(parameter) for name, parameter in model.weights.items()}
    return replace(state, weights=weights, first=first, second=second, steps=steps, tokens=tokens)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().clone()
