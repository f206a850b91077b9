"""Destination: where does growing end, compared with scratch?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Finding, every
from growbench.claims._grown import mission
from growbench.comparison import below
from growbench.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class Destination(Claim):
    """At the same size and the same total tokens, from-scratch ends at a lower loss.

    For: scratch ends below each of the mission's strategies. Against: one of them ends below scratch.
    """

    number: ClassVar[int] = 2

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        return every(*(below(evidence, evidence.scratch(arm), arm) for arm in mission(evidence)))
