"""Baseline: do the two architectures differ before anything is grown?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Finding, every
from growbench.comparison import differs, pairs
from growbench.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class Baseline(Claim):
    """At the smallest size, equally tuned TokenFormer and transformer differ.

    For: their losses differ, two-sided. Against: they are equal within the margin.
    """

    number: ClassVar[int] = 9

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        tokenformer = evidence.arm("scratch", placement="everywhere", nonlinearity="l2_gelu", rung="first")
        transformer = evidence.arm("scratch", placement="ffn", nonlinearity="gelu", rung="first")
        name, arms = f"{tokenformer} and {transformer} differ", (tokenformer, transformer)
        return every(differs(evidence, name, arms, pairs(evidence, *arms)))
