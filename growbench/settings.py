"""What is tuned, and what tuning chose: the setting of every arm, by task."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from growbench.store import canonical, digest


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The learning rate at the base shape and, where they are not the study's, weight decay and warm-up.

    warmup: a fraction of the full budget, from scratch or after the last growth.
    """

    learning_rate: float
    weight_decay: float | None = None
    warmup: float | None = None


Chosen = Mapping[str, Mapping[str, Setting]]
"""Settings by task and arm, the arm named with its architecture."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The setting of every arm: the one chosen for it, else the same for all (None: the study's own).

    trial: the number of the trial that these are; None outside tuning.
    """

    common: Setting | None = None
    chosen: Chosen = field(default_factory=dict)
    trial: int | None = None

    def of(self, task: str, arm: str) -> Setting | None:
        """The setting of an arm, named with its architecture; None for the study's own."""
        return self.chosen.get(task, {}).get(arm, self.common)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What tuning chose and what it rests on.

    trials: a row per task, arm, trial and seed (task, arm, trial, seed, its setting, status, loss in nats per token,
    flops, chosen); flops: what an arm's trials cost, each distinct stage once, by task and arm; flops_total: what all
    cost, the sources that arms share once.
    """

    chosen: Chosen
    trials: Sequence[Mapping[str, Any]]
    flops: Mapping[str, Mapping[str, float]]
    flops_total: float

    @property
    def digest(self) -> str:
        """SHA-256 over the choice and all trials."""
        return digest(canonical(self._content()))

    def _content(self) -> dict[str, Any]:
        chosen = {task: {arm: asdict(own) for arm, own in arms.items()} for task, arms in self.chosen.items()}
        return {"chosen": chosen, "trials": [dict(row) for row in self.trials]}

    def to_dict(self) -> dict[str, Any]:
        """As JSON, the digest included."""
        return self._content() | {"digest": self.digest}
