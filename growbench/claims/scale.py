"""Scale: what do the residual stream's three maps do to the model at the moment of growth?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pandas as pd

from growbench.claim import Claim, Finding, Test, all_or_none, every, joined
from growbench.comparison import apart, equal
from growbench.evidence import Evidence, Lacking
from growbench.results import UNSCORED


@dataclass(frozen=True, kw_only=True)
class Scale(Claim):
    """Zero padding disturbs scale at growth; an isometric expansion does not.

    Measured right after growth, with one fill and three residual maps (plain pad, pad scaled by sqrt(D/d), isometry):
    the log ratio of the loss to that before, and of the residual stream's root mean square per unit, in the layer
    where it moves most. For: the plain pad moves both by more than the margin and the isometry neither. Against: the
    plain pad moves neither, or the isometry one.
    """

    number: ClassVar[int] = 6

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        made = {"placement": "ffn", "nonlinearity": "gelu"}
        plain, isometry = evidence.together(
            {"strategy": "zero_pad", "variant": "scaled=false"},
            {"strategy": "orthogonal", "variant": "units=random"},
            **made,
        )

        def tests(arm: str, moved: bool) -> list[Test]:
            rule, how = (apart, "moved") if moved else (equal, "kept")
            return [
                rule(evidence, f"{what} {how} by {arm}", (arm,), values(evidence, arm), measure=what, measured=True)
                for what, values in MEASURES.items()
            ]

        moves = joined(f"scale disturbed by {plain}", all_or_none(*tests(plain, moved=True)))
        return every(moves, *tests(isometry, moved=False)).showing(*self._others(evidence, made))

    @staticmethod
    def _others(evidence: Evidence, made: dict[str, str]) -> list[Test]:
        """The scaled pad, and on parameter tokens the factor held and rescaled."""
        everywhere = {"placement": "everywhere", "nonlinearity": "l2_gelu"}
        wanted: list[tuple[dict[str, str], list[str]]] = [
            ({"strategy": "zero_pad"} | made, ["loss", "norm"]),
            ({"strategy": "zero_tokens"} | everywhere, ["loss"]),
            ({"strategy": "zero_tokens", "variant": "factor=rescaled"} | everywhere, ["loss"]),
        ]
        tests = []
        for own, measures in wanted:
            try:
                (arm,) = evidence.together(own)
                found = {what: MEASURES[what](evidence, arm) for what in measures}
            except Lacking:
                continue
            for what, differences in found.items():
                name = f"{what} kept by {arm}"
                tests.append(equal(evidence, name, (arm,), differences, measure=what, measured=True))
        return tests


def loss_moved(evidence: Evidence, arm: str) -> pd.DataFrame:
    """By task and seed: log of the loss right after the last growth over that right before."""
    curves = evidence.curves[(evidence.curves["arm"] == arm) & (evidence.curves["kind"] == "train")]
    grown = curves[curves["train_loss"].isna()].drop_duplicates(["task", "seed"], keep="last")
    rows = evidence.final(arm)[["task", "seed", "status", "growth_loss_jump"]]
    found = rows.merge(grown[["task", "seed", "loss"]], on=["task", "seed"], how="left")
    after, jump = (
        found[name].astype("Float64").to_numpy("float64", na_value=np.nan) for name in ("loss", "growth_loss_jump")
    )
    return _by_seed(found, np.log(after / (after - jump)))


def norm_moved(evidence: Evidence, arm: str) -> pd.DataFrame:
    """By task and seed: |log| of the residual stream's RMS per unit after growth over before, where it is largest."""
    d = evidence.diagnostics
    if d.empty:
        raise Lacking("diagnostics")
    d = d[(d["arm"] == arm) & (d["kind"] == "grow") & (d["quantity"] == "activation_rms") & (d["axis"] == "residual")]
    d = d[d["part"] == "all"].drop_duplicates(["task", "seed", "layer", "when"], keep="last")
    table = d.set_index(["task", "seed", "layer", "when"])["value"].astype("float64").unstack("when")
    table = table.reindex(columns=["before", "after"])
    moved = (table["after"] / table["before"]).map(np.log).abs().groupby(["task", "seed"]).max()
    rows = evidence.final(arm)[["task", "seed", "status"]]
    found = rows.merge(moved.rename("difference").reset_index(), on=["task", "seed"], how="left")
    return _by_seed(found, found["difference"].to_numpy("float64", na_value=np.nan))


def _by_seed(rows: pd.DataFrame, differences: np.ndarray) -> pd.DataFrame:
    """Differences of one arm's rows, as `stats.contrast` takes them."""
    unscored = rows["status"].isin(UNSCORED).astype(int)
    return rows[["task", "seed"]].assign(difference=differences, unscored=unscored)


MEASURES: dict[str, Callable[[Evidence, str], pd.DataFrame]] = {"loss": loss_moved, "norm": norm_moved}
