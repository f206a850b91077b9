"""Orthogonal: does a rotation into the larger space end better than a zero pad?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Finding, every
from growbench.comparison import below
from growbench.evidence import Evidence, Lacking


@dataclass(frozen=True, kw_only=True)
class Orthogonal(Claim):
    """Orthogonal-projection expansion ends better than zero padding, scaled and plain, with the same fill.

    For: it ends below both. Against: above one of them.
    """

    number: ClassVar[int] = 7

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        pads, made = (
            ({"strategy": "zero_pad"}, {"strategy": "zero_pad", "variant": "scaled=false"}),
            {"placement": "ffn", "nonlinearity": "gelu"},
        )
        rotated, *padded = evidence.together({"strategy": "orthogonal", "variant": "units=random"}, *pads, **made)
        found = every(*(below(evidence, rotated, pad) for pad in padded))
        try:
            own_fill, *padded = evidence.together({"strategy": "orthogonal"}, *pads, **made)
            return found.showing(*(below(evidence, own_fill, pad) for pad in padded))
        except Lacking:
            return found
