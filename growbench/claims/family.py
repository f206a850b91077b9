"""Family: is anything better than the two methods that papers compare?"""

from dataclasses import dataclass
from typing import ClassVar

from growbench import stats
from growbench.claim import Claim, Finding, Test, every, joined, some
from growbench.claims._grown import tokens
from growbench.comparison import ordered, pairs
from growbench.evidence import Evidence, Lacking

COMPARED = ("zero_pad", "zero_tokens", "net2net", "scratch", "continue")
"""What is compared with, and what is no growth."""


@dataclass(frozen=True, kw_only=True)
class Family(Claim):
    """Beating Net2Net is not beating the family: a method is better than the best of Net2Net and zero-init tokens.

    Every arm counts beside scratch of its own shape. For: some arm beyond zero padding gains more than both do.
    Against: each of them gains less than one of the two.
    """

    number: ClassVar[int] = 10

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        best = evidence.arm("net2net", placement="ffn", nonlinearity="gelu"), tokens(evidence)
        rows = evidence.results[
            (evidence.results["matched"] == True)  # noqa: E712
            & (evidence.results["growth_steps"] > 0)
            & (evidence.results["restriction"].fillna("") == "")
            & (evidence.results["schedule"].fillna("") == "")
            & (evidence.results["sterile"].fillna("") == "")
            & ~evidence.results["strategy"].isin(COMPARED)
        ]
        members = [str(arm) for arm in rows["arm"].drop_duplicates()]
        if not members:
            raise Lacking("an arm of matched size beyond Net2Net and zero padding")
        scratch = {arm: evidence.scratch(arm) for arm in (*members, *best)}
        gains = {arm: pairs(evidence, arm, own) for arm, own in scratch.items()}

        def gains_more(arm: str, other: str) -> Test:
            name = f"{arm} gains more than {other}"
            rows = tuple(dict.fromkeys((arm, other, scratch[arm], scratch[other])))
            return ordered(evidence, name, rows, stats.combine((1, gains[arm]), (-1, gains[other])))

        return some(
            *(
                joined(f"{arm} gains more than both", every(*(gains_more(arm, other) for other in best)))
                for arm in members
            )
        )
