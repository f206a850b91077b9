"""Capacity: what does growing each part let a model do that it could not?"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import pandas as pd

from growbench.claim import Claim, Finding, Test, every
from growbench.comparison import below, ordered, pairs
from growbench.evidence import Evidence

UNSIZED = ("data_fingerprint", "budget", "tokens")
"""What must be equal beside a source that is trained on: all but the size."""


@dataclass(frozen=True, kw_only=True)
class Capacity(Claim):
    """Growing feed-forwards or tokens raises what is stored between layers, not what the residual stream can carry.

    On `rank` the residual width sets a floor. For: growing the residual stream alone ends below the floor of the
    source's width, growing feed-forwards alone does not, and on `facts` growing feed-forwards alone ends below the
    source trained on. Against: one of these is the other way round.
    """

    number: ClassVar[int] = 8

    def find(self, evidence: Evidence) -> Finding:
        rank, facts = evidence.task("rank"), evidence.task("facts")
        ffn, residual, source = evidence.together(
            {"strategy": "zero_pad", "restriction": "[ffn]"},
            {"strategy": "zero_pad", "restriction": "[residual]"},
            {"strategy": "continue", "rung": "first"},
            placement="ffn",
            nonlinearity="gelu",
        )
        found = every(
            beside_floor(rank, residual, source, "below"),
            beside_floor(rank, ffn, source, "above"),
            named("facts", below(facts, ffn, source, equal=UNSIZED)),
        )
        return found.showing(
            named("rank", below(rank, residual, ffn)),
            named("rank", below(rank, ffn, source, equal=UNSIZED)),
            named("facts", below(facts, residual, ffn)),
        )


def named(task: str, test: Test) -> Test:
    """The test with its task in its name: the same arms meet on both."""
    return replace(test, name=f"{test.name} on {task}")


def beside_floor(evidence: Evidence, arm: str, source: str, side: Literal["below", "above"]) -> Test:
    """For: the arm's loss lies on that side of the lowest possible at the source's residual width."""
    pairs(evidence, arm, source, equal=UNSIZED)  # equal tokens and data, and losses that have a logarithm, or refused
    floors = evidence.rows(source).drop_duplicates("task").set_index("task")["loss_floor"]
    rows = evidence.final(arm)
    losses, limits = (
        column.astype("Float64").to_numpy("float64", na_value=np.nan)
        for column in (rows["loss"], rows["task"].map(floors))
    )
    unscored = (rows["status"] != "ok").astype(int).to_numpy()
    found = pd.DataFrame({"task": rows["task"], "seed": rows["seed"], "unscored": unscored})
    name = f"{arm} ends {side} the floor of the source's width"
    return ordered(evidence, name, (arm,), found.assign(difference=np.log(losses / limits)), side=side)
