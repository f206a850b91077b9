"""Scale: what do the residual stream's three maps do to the model at the moment of growth?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from growbench.claim import Claim, Evidence, Finding, Lacking, Test, apart, equal, every


@dataclass(frozen=True, kw_only=True)
class Scale(Claim):
    """Zero padding disturbs scale at growth; an isometric expansion does not.

    Measured right after growth, with one fill and three residual maps (plain pad, pad scaled by sqrt(D/d), isometry):
    the log ratio of the loss to that before, and of the residual stream's root mean square per unit, in
    the layer where it moves most. For: the plain pad
    moves both by more than the margin and the isometry neither. Against: one of these is otherwise.
    """

    number: ClassVar[int] = 6

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        made = {"placement": "ffn", "nonlinearity": "gelu"}
        plain = evidence.arm("zero_pad", variant="scaled=false", **made)
        isometry = evidence.arm("orthogonal", variant="units=random", **made)
        tests = [
            rule(evidence, f"{what} {moves} by {arm}", (arm,), values(evidence, arm), measure=what, measured=True)
            for arm, rule, moves in ((plain, apart, "moved"), (isometry, equal, "kept"))
            for what, values in (("loss", loss_moved), ("norm", norm_moved))
        ]
        return every(*tests).showing(*self._others(evidence, made))

    @staticmethod
    def _others(evidence: Evidence, made: dict[str, str]) -> list[Test]:
        """The scaled pad, and on parameter tokens the factor held and rescaled."""
        everywhere = {"placement": "everywhere", "nonlinearity": "l2_gelu"}
        wanted: list[tuple[str, dict[str, str], list[tuple[str, Callable[[Evidence, str], pd.DataFrame]]]]] = [
            ("zero_pad", made, [("loss", loss_moved), ("norm", norm_moved)]),
            ("zero_tokens", everywhere, [("loss", loss_moved)]),
            ("zero_tokens", everywhere | {"variant": "factor=rescaled"}, [("loss", loss_moved)]),
        ]
        tests = []
        for strategy, own, measured in wanted:
            try:
                arm = evidence.arm(strategy, **own)
            except Lacking:
                continue
            for what, values in measured:
                name, differences = f"{what} kept by {arm}", values(evidence, arm)
                tests.append(equal(evidence, name, (arm,), differences, measure=what, measured=True))
        return tests


def loss_moved(evidence: Evidence, arm: str) -> pd.DataFrame:
    """By task and seed: log of the loss right after the last growth over that right before."""
    curves = evidence.curves[(evidence.curves["arm"] == arm) & (evidence.curves["kind"] == "train")]
    grown = curves[curves["train_loss"].isna()].drop_duplicates(["task", "seed"], keep="last")
    rows = evidence.final(arm)[["task", "seed", "growth_loss_jump", "data_fingerprint"]]
    found = rows.merge(grown[["task", "seed", "loss"]], on=["task", "seed"], how="left")
    after, jump = (
        found[name].astype("Float64").to_numpy("float64", na_value=np.nan) for name in ("loss", "growth_loss_jump")
    )
    return found[["task", "seed"]].assign(difference=np.log(after / (after - jump)))


def norm_moved(evidence: Evidence, arm: str) -> pd.DataFrame:
    """By task and seed: |log| of the residual stream's RMS per unit after growth over before, where it is largest."""
    rows = evidence.final(arm)
    below = evidence.results[
        (evidence.results["architecture"] == rows["architecture"].iloc[0])
        & (evidence.results["strategy"] == "scratch")
        & (evidence.results["rung"] == rows["rung"].iloc[0] - 1)
    ]
    if below.empty or evidence.diagnostics.empty:
        raise Lacking("scratch at the source's size, and diagnostics")
    wide, narrow = int(rows["residual"].iloc[0]), int(below["residual"].iloc[0])
    d = evidence.diagnostics
    d = d[(d["arm"] == arm) & (d["kind"] == "grow") & (d["quantity"] == "activation_rms") & (d["axis"] == "residual")]
    table = d.pivot_table(index=["task", "seed", "layer"], columns=["when", "part"], values="value", aggfunc="last")
    old, new = table["after", "old"], table["after", "new"].fillna(0.0)
    after = np.sqrt((narrow * old**2 + (wide - narrow) * new**2) / wide)
    moved = np.log(after / table["before", "all"]).abs().groupby(["task", "seed"]).max()
    return rows[["task", "seed"]].merge(moved.rename("difference").reset_index(), on=["task", "seed"], how="left")
