"""Launchers: given a plan, run its ready stages somewhere. The stage folders are the only truth about what was done."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Event:
    """What a launcher reports while it runs: stages and tokens done, of the totals; `text` says what went wrong."""

    kind: Literal["started", "progress", "finished", "cached", "failed", "log"]
    stage: str
    label: str
    done: int
    total: int
    tokens_done: int
    tokens_total: int
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run came to, in stages: finished now, found done, ended badly, not run because of those."""

    finished: int
    cached: int
    failed: int
    blocked: int
    interrupted: bool
