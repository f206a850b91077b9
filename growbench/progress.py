"""A stage under way: how far it has come, kept beside the stage folders, and gone on from bit for bit.

    DIR/stages/.KEY.partial/   partial.json   DIGEST.safetensors

No random stream is among what is kept: seed and position decide what is read next, and nothing else is drawn while a
stage trains.
"""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

import torch
from safetensors import SafetensorError

from growbench.checkpoint import Checkpoint
from growbench.store import Stage, Store, canonical


@dataclass(kw_only=True)
class Progress:
    """What a train or cooldown stage came to so far; losses: of the steps since the last row of its curve."""

    checkpoint: Checkpoint
    tokens: int = 0
    flops: dict[str, float] = field(default_factory=dict)
    curve: list[dict[str, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)


@dataclass(kw_only=True)
class Journal:
    """When a stage ran, over all processes that worked on it: seconds and bytes are those of earlier processes."""

    started: str
    events: list[dict[str, Any]] = field(default_factory=list)
    wall_s: float = 0.0
    peak_memory_bytes: int = 0

    def note(self, event: str, **more: Any) -> None:
        """Add an event, at this moment."""
        self.events.append({"event": event, "at": now()} | more)


def now() -> str:
    """The time, to a millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def keep(store: Store, stage: Stage, progress: Progress, journal: Journal) -> None:
    """Keep how far a stage has come, in the place of what was kept before; Unwritable where the disk refuses it."""
    about = {
        "stage": _identified(stage),
        "torch": torch.__version__,
        "progress": {name: getattr(progress, name) for name in ("tokens", "flops", "curve", "losses")},
        "journal": asdict(journal),
    }
    store.keep(stage.key, about, progress.checkpoint.save)


def resume(store: Store, stage: Stage) -> tuple[Progress, Journal] | None:
    """What was kept of a stage, or None; ValueError says why it cannot be gone on from."""
    try:
        if (kept := store.kept(stage.key)) is None:
            return None
        about, path = kept
        if about["stage"] != _identified(stage):
            raise ValueError("it is that of another stage")
        if about["torch"] != torch.__version__:
            raise ValueError(f"it was written under torch {about['torch']}, and this is {torch.__version__}")
        checkpoint = Checkpoint.load(path)
        return Progress(checkpoint=checkpoint, **about["progress"]), Journal(**about["journal"])
    except (ValueError, KeyError, TypeError, OSError, SafetensorError) as error:
        raise ValueError(f"the partial checkpoint is not used: {error}") from error


def _identified(stage: Stage) -> list[Any]:
    """What a stage's key is the hash of, as JSON reads it."""
    found: list[Any] = json.loads(canonical([stage.kind, stage.parent, stage.identity]))
    return found
