"""Partial: is growing one part of a model as good as growing all?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Evidence, Finding, Lacking, every, not_above


@dataclass(frozen=True, kw_only=True)
class Partial(Claim):
    """Growing only one part is not worse than growing all, at equal parameters.

    The parts: feed-forwards, attention, chosen layers, each zero-padded alone. For: each ends at most the margin above
    all (one-sided). Against: one ends further above.
    """

    number: ClassVar[int] = 11

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        made = {"placement": "ffn", "nonlinearity": "gelu"}
        whole = evidence.arm("zero_pad", **made)
        layers = sorted({str(r) for r in evidence.results["restriction"].dropna() if str(r).startswith("[layers")})
        if not layers:
            raise Lacking("an arm that grows chosen layers")
        parts = [evidence.arm("zero_pad", restriction=r, **made) for r in ("[ffn]", "[attention]", layers[0])]
        return every(*(not_above(evidence, part, whole) for part in parts))
