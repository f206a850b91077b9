"""Same operation: are zero-init parameter tokens and zero-padded columns one thing?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench import stats
from growbench.claim import Claim, Evidence, Finding, Lacking, equal, every


@dataclass(frozen=True, kw_only=True)
class SameOperation(Claim):
    """Zero-initialised parameter tokens and zero-padded feed-forward columns end at the same loss, all else equal.

    Both widen the feed-forward layers of one GELU transformer alone, to one size: tokens with zero keys and random
    values, columns with random keys and zero values. For: they end within the margin. Against: outside it.
    """

    number: ClassVar[int] = 4

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        arms = [
            evidence.arm(name, restriction="[ffn]", placement="ffn", nonlinearity="gelu")
            for name in ("zero_tokens", "zero_pad")
        ]
        pairs = stats.pairs(evidence.results, *arms)
        found = every(equal(evidence, f"{arms[0]} and {arms[1]} end at one loss", arms, pairs))
        try:  # across placements, each beside scratch of its own shape: what a user of either architecture would see
            tokens = evidence.arm("zero_tokens", placement="everywhere", nonlinearity="gelu")
            own = [stats.pairs(evidence.results, arm, evidence.scratch(arm)) for arm in (tokens, arms[1])]
        except Lacking:
            return found
        name = f"{tokens} and {arms[1]} lose as much against scratch"
        return found.showing(equal(evidence, name, (tokens, arms[1]), stats.combine((1, own[0]), (-1, own[1]))))
