"""Same operation: are zero-init parameter tokens and zero-padded columns one thing?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench import stats
from growbench.claim import Claim, Finding, every
from growbench.comparison import equal, pairs
from growbench.evidence import Evidence, Lacking


@dataclass(frozen=True, kw_only=True)
class SameOperation(Claim):
    """Zero-initialised parameter tokens and zero-padded feed-forward columns end at the same loss, all else equal.

    Both widen the feed-forward layers of one GELU transformer alone, to one size: tokens with zero keys and random
    values, columns with random keys and zero values. For: they end within the margin. Against: outside it.
    """

    number: ClassVar[int] = 4

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        names = "zero_tokens", "zero_pad"
        made = {"restriction": "[ffn]", "placement": "ffn", "nonlinearity": "gelu"}
        tokens, columns = arms = evidence.together(*({"strategy": name} for name in names), **made)
        found = every(equal(evidence, f"{tokens} and {columns} end at one loss", arms, pairs(evidence, *arms)))
        try:  # across placements, each beside scratch of its own shape: what a user of either architecture would see
            other = evidence.arm("zero_tokens", placement="everywhere", nonlinearity="gelu")
            rows = (other, columns, evidence.scratch(other), evidence.scratch(columns))
            own = [pairs(evidence, arm, scratch) for arm, scratch in zip(rows[:2], rows[2:], strict=True)]
        except Lacking:
            return found
        name = f"{other} and {columns} lose as much against scratch"
        return found.showing(equal(evidence, name, rows, stats.combine((1, own[0]), (-1, own[1]))))
