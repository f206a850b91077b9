"""docs/findings.md says what the tables in tests/claims_small/ say: the verdicts of each published run."""

import json
import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from growbench import stats
from growbench.claim import CLAIMS, Claim, Decision, Finding, decide, every, joined, known, some, tabulate
from growbench.claims._grown import mission
from growbench.comparison import cheaper
from growbench.evidence import Evidence
from growbench.results import RESULTS

ROOT = Path(__file__).parents[1]
HERE = ROOT / "tests" / "claims_small"
FULL = 491_520
RUNS = {"first": range(5), "second": range(5, 15)}
"""The published runs and their seeds."""


PLANNED = (
    "cost", "destination", "sunk-cost", "same-operation", "novelty", "scale", "orthogonal", "capacity", "baseline",
    "family", "partial",
)  # fmt: skip
"""The claims that the published runs were planned for; one that is added later is no part of them."""


# --- what the first run's plan says otherwise ------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class CostOverACurve(Claim):
    """Growing reaches a given loss with less total compute than training the target size from scratch."""

    number = 1

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        return some(*(cheaper(evidence, arm, "total") for arm in mission(evidence)))


@dataclass(frozen=True, kw_only=True)
class SunkCostOverACurve(Claim):
    """The verdict on cost turns with the view: contradicted with everything counted, supported with a free source."""

    number = 3

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        total, continued = (
            some(*(cheaper(evidence, arm, view) for arm in mission(evidence))) for view in ("total", "continued")
        )
        return every(joined("dearer, all counted", total, turned=True), joined("cheaper, the source free", continued))


OTHERWISE: dict[str, dict[str, Claim]] = {
    "first": {"cost": CostOverACurve(), "sunk-cost": SunkCostOverACurve()},
    "second": {},
}


# --- the tables ------------------------------------------------------------------------------------------------------


@cache
def table(run: str, name: str) -> pd.DataFrame:
    return pd.read_parquet(HERE / run / f"{name}.parquet")


@cache
def decisions(run: str) -> list[Decision]:
    evidence = Evidence(
        results=table(run, "results"),
        curves=table(run, "curves"),
        diagnostics=table(run, "diagnostics"),
        memory=frozenset({"facts"}),
    )
    claims = known()
    return decide({name: claims[name] for name in PLANNED} | OTHERWISE[run], evidence)


def claims(run: str) -> pd.DataFrame:
    found, _ = tabulate(decisions(run))
    assert tuple(found.columns) == CLAIMS
    return found.set_index("claim")


def section(run: str) -> str:
    """What the document says of a run."""
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## `claims-small`, {run} run, .*?(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return str(found)


def percent(ratio: float) -> str:
    return f"{100 * math.expm1(ratio):+.2f} %".replace("-", "−")


@pytest.mark.parametrize("run", RUNS)
def test_the_document_states_the_verdicts_that_the_tables_give(run: str) -> None:
    text, decided = section(run), claims(run)
    stated = dict(re.findall(r"^\| `([a-z-]+)` \| \*\*(\w+)\*\* \|", text, flags=re.MULTILINE))
    assert stated == decided["verdict"].to_dict()
    for name, row in decided.iterrows():
        shown = f"{percent(row['effect'])} [{percent(row['low'])}, {percent(row['high'])}] {row['measure']}"
        (line,) = re.findall(rf"^\| `{name}` \| \*\*.*$", text, flags=re.MULTILINE)
        assert shown in line
        assert line.endswith(f"| {row['p_for']:.2g} / {row['p_against']:.2g} |")


@pytest.mark.parametrize("run", RUNS)
def test_destination_by_hand(run: str) -> None:
    """The largest of four paired t tests; adjusted by Holm over the eleven claims."""
    rows = table(run, "results")
    rows = rows[(rows["task"] == "shakespeare") & (rows["budget"] == FULL)]
    losses = rows.pivot_table(index="seed", columns="arm", values="loss").astype("float64").apply(np.log)
    pairs = {f"transformer/{name}": "transformer/scratch" for name in ("zero_pad", "net2net", "orthogonal")}
    pairs["tokenformer/zero_tokens"] = "tokenformer/scratch"
    p = max(scipy_stats.ttest_rel(losses[arm], losses[scratch]).pvalue for arm, scratch in pairs.items())
    assert (losses[list(pairs)].mean().to_numpy() > losses[list(pairs.values())].mean().to_numpy()).all()
    each = {decision.claim: decision.finding.p_for for decision in decisions(run) if decision.finding}
    assert each["destination"] == pytest.approx(p, rel=1e-6)
    smaller = sorted(value for value in each.values() if value <= p * (1 + 1e-6))
    adjusted = max(min(1.0, (11 - place) * value) for place, value in enumerate(smaller))
    assert claims(run).loc["destination", "p_for"] == pytest.approx(adjusted, rel=1e-6)


@pytest.mark.parametrize(("run", "seeds"), RUNS.items())
def test_the_study_met_its_rules(run: str, seeds: range) -> None:
    results = table(run, "results")
    assert set(results.columns) <= set(RESULTS)
    assert set(results["seed"]) == set(seeds)
    assert set(results["status"]) == {"ok"}
    assert results["tuned"].all()
    final = results[results["budget"] == FULL]
    assert (final["tokens"] == FULL).all()
    assert (final["epochs"] < 1).all()
    ranked = final[final["matched"] & (final["growth_steps"] > 0)]
    assert ((ranked["params_non_embedding"] / ranked["params_target"] - 1).abs() <= 0.01).all()
    assert stats.full_budget(results) == FULL


@pytest.mark.parametrize("run", RUNS)
def test_every_arm_had_the_same_trials(run: str) -> None:
    tuned = json.loads((HERE / run / "provenance.json").read_text(encoding="utf-8"))["tuned"]
    trials = pd.DataFrame(tuned["trials"])
    rates = {tuple(sorted(arm["learning_rate"].unique())) for _, arm in trials.groupby(["task", "arm"])}
    assert [len(tried) for tried in rates] == [8]
    assert trials.groupby(["task", "arm"])["seed"].nunique().nunique() == 1
    assert trials["seed"].min() >= 1_000_000
