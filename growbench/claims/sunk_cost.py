"""Sunk cost: does the verdict on cost turn with what is counted?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Finding, every, joined, some
from growbench.claims._grown import mission
from growbench.comparison import below_at_cost
from growbench.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class SunkCost(Claim):
    """The verdict on cost turns with the view: contradicted with everything counted, supported with a free source.

    For: both, as `cost` reads them. Against: growing ends below even when everything is counted, or not even with a
    free source.
    """

    number: ClassVar[int] = 3

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        arms = mission(evidence)
        total, continued = (
            some(*(below_at_cost(evidence, arm, view) for arm in arms)) for view in ("total", "continued")
        )
        return every(
            joined("growing saves nothing, everything counted", total, turned=True),
            joined("growing saves, the source free", continued),
        )
