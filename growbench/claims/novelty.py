"""Novelty: what remains of the TokenFormer once its nonlinearity and its placement are accounted for?"""

from dataclasses import dataclass
from itertools import product
from typing import ClassVar

from growbench import stats
from growbench.claim import Claim, Finding, Test, every
from growbench.comparison import differs, equal, pairs
from growbench.evidence import Evidence, Lacking

GRID = tuple(product(("relu", "gelu", "softmax", "l2_gelu"), ("ffn", "everywhere")))


@dataclass(frozen=True, kw_only=True)
class Novelty(Claim):
    """Nonlinearity and placement explain the difference between TokenFormer and transformer.

    All from scratch at the target size. With D the log loss ratio of (L2-GELU, everywhere) to (GELU, feed-forward), N
    that of the nonlinearity alone and P that of the placement alone: D - N - P is what neither explains. For: it is
    within the margin. Against: outside it.
    """

    number: ClassVar[int] = 5

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language

        def arm(nonlinearity: str, placement: str) -> str:
            return evidence.arm("scratch", placement=placement, nonlinearity=nonlinearity)

        base = arm("gelu", "ffn")
        both, only_n, only_p = arm("l2_gelu", "everywhere"), arm("l2_gelu", "ffn"), arm("gelu", "everywhere")
        parts = [pairs(evidence, other, base) for other in (both, only_n, only_p)]
        left = stats.combine((1, parts[0]), (-1, parts[1]), (-1, parts[2]))
        rows = (both, base, only_n, only_p)
        found = every(
            equal(evidence, "what nonlinearity and placement, each alone, leave of the difference", rows, left)
        )
        return found.showing(*self._grid(evidence, base))

    @staticmethod
    def _grid(evidence: Evidence, base: str) -> list[Test]:
        """Every cell of the grid beside the transformer."""
        places = {"ffn": "feed-forwards", "everywhere": "all layers"}
        tests = []
        for nonlinearity, placement in GRID:
            try:
                other = evidence.arm("scratch", placement=placement, nonlinearity=nonlinearity)
                found = pairs(evidence, other, base)
            except Lacking:
                continue
            if other != base:
                name = f"{nonlinearity} in {places[placement]} beside gelu in feed-forwards"
                tests.append(differs(evidence, name, (other, base), found))
        return tests
