"""Orthogonal: does a rotation into the larger space end better than a zero pad?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Evidence, Finding, Lacking, below, every


@dataclass(frozen=True, kw_only=True)
class Orthogonal(Claim):
    """Orthogonal-projection expansion ends better than zero padding, scaled and plain, with the same fill.

    For: it ends below both. Against: above one of them.
    """

    number: ClassVar[int] = 7

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        made = {"placement": "ffn", "nonlinearity": "gelu"}
        pads = [evidence.arm("zero_pad", **made), evidence.arm("zero_pad", variant="scaled=false", **made)]
        rotated = evidence.arm("orthogonal", variant="units=random", **made)
        found = every(*(below(evidence, rotated, pad) for pad in pads))
        try:
            own_fill = evidence.arm("orthogonal", **made)
        except Lacking:
            return found
        return found.showing(*(below(evidence, own_fill, pad) for pad in pads))
