"""From scratch: the target shape trained from its first token, the baseline of every comparison."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Scratch(Strategy):
    """The whole budget goes to the target shape: the baseline that growth must beat (arXiv:2307.06440)."""

    source: ClassVar[bool] = False

    @property
    def preserves(self) -> Literal["function", "nothing"]:
        return "nothing"
