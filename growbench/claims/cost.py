"""Cost: does growing reach a loss for less compute, everything counted?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Finding, some
from growbench.claims._grown import mission
from growbench.comparison import below_at_cost, cheaper
from growbench.evidence import VIEWS, Evidence


@dataclass(frozen=True, kw_only=True)
class Cost(Claim):
    """Growing reaches a given loss with less total compute than training the target size from scratch.

    For: one of the mission's strategies ends below scratch at equal FLOPs, the source counted. Against: all end at most
    the margin below. Beside: the FLOPs saved over a curve of losses, which are bounds where one is not reached.
    """

    number: ClassVar[int] = 1

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        arms = mission(evidence)
        found = some(*(below_at_cost(evidence, arm, "total") for arm in arms))
        return found.showing(*(cheaper(evidence, arm, view) for view in VIEWS for arm in arms))
