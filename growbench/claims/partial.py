"""Partial: is growing one part of a model as good as growing all?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Finding, every
from growbench.comparison import not_above
from growbench.evidence import Evidence, Lacking


@dataclass(frozen=True, kw_only=True)
class Partial(Claim):
    """Growing only one part is not worse than growing all, at equal parameters.

    The parts: feed-forwards, attention, chosen layers, each zero-padded alone. For: each ends at most the margin above
    all (one-sided). Against: one ends further above.
    """

    number: ClassVar[int] = 11

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        padded = evidence.made[evidence.made["strategy"] == "zero_pad"]
        layers = [name for name in padded["restriction"].drop_duplicates() if name.startswith("[layers")]
        if not layers:
            raise Lacking("an arm of zero_pad that grows chosen layers")
        wanted = [{"strategy": "zero_pad", "restriction": parts} for parts in ("", "[ffn]", "[attention]", *layers)]
        whole, *parts = evidence.together(*wanted, placement="ffn", nonlinearity="gelu")
        return every(*(not_above(evidence, part, whole) for part in parts))
