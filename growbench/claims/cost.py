"""Cost: does growing reach a loss for less compute, everything counted?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Evidence, Finding, cheaper, some
from growbench.claims._grown import mission


@dataclass(frozen=True, kw_only=True)
class Cost(Claim):
    """Growing reaches a given loss with less total compute than training the target size from scratch.

    For: one of the mission's strategies does, over a curve of losses, the source counted. Against: all need more.
    """

    number: ClassVar[int] = 1

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        arms = mission(evidence)
        found = some(*(cheaper(evidence, arm, "total") for arm in arms))
        return found.showing(*(cheaper(evidence, arm, view) for view in ("continued", "ladder") for arm in arms))
