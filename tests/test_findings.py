"""docs/findings.md says what the tables in tests/claims_small/ say: the verdicts of the first run of `claims-small`."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from growbench import stats
from growbench.claim import CLAIMS, Evidence, decide, known, tabulate
from growbench.results import RESULTS

ROOT = Path(__file__).parents[1]
HERE = ROOT / "tests" / "claims_small"
FULL = 491_520


def table(name: str) -> pd.DataFrame:
    return pd.read_parquet(HERE / f"{name}.parquet")


@pytest.fixture(scope="module")
def results() -> pd.DataFrame:
    return table("results")


@pytest.fixture(scope="module")
def claims(results: pd.DataFrame) -> pd.DataFrame:
    evidence = Evidence(
        results=results, curves=table("curves"), diagnostics=table("diagnostics"), memory=frozenset({"facts"})
    )
    found, _ = tabulate(decide(known(()), evidence))
    assert tuple(found.columns) == CLAIMS
    return found.set_index("claim")


def percent(ratio: float) -> str:
    return f"{100 * math.expm1(ratio):+.2f} %".replace("-", "−")


def test_the_document_states_the_verdicts_that_the_tables_give(claims: pd.DataFrame) -> None:
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^\| `([a-z-]+)` \| \*\*(\w+)\*\* \|", text, flags=re.MULTILINE))
    assert stated == claims["verdict"].to_dict()
    for name, row in claims.iterrows():
        shown = f"{percent(row['effect'])} [{percent(row['low'])}, {percent(row['high'])}] {row['measure']}"
        (line,) = re.findall(rf"^\| `{name}` \| \*\*.*$", text, flags=re.MULTILINE)
        assert shown in line
        assert line.endswith(f"| {row['p_for']:.2g} / {row['p_against']:.2g} |")


def test_destination_by_hand(results: pd.DataFrame, claims: pd.DataFrame) -> None:
    """The largest of four paired t tests, times the eleven claims of which it is the smallest p for."""
    rows = results[(results["task"] == "shakespeare") & (results["budget"] == FULL)]
    losses = rows.pivot_table(index="seed", columns="arm", values="loss").astype("float64").apply(np.log)
    pairs = {f"transformer/{name}": "transformer/scratch" for name in ("zero_pad", "net2net", "orthogonal")}
    pairs["tokenformer/zero_tokens"] = "tokenformer/scratch"
    p = max(scipy_stats.ttest_rel(losses[arm], losses[scratch]).pvalue for arm, scratch in pairs.items())
    assert claims.loc["destination", "p_for"] == pytest.approx(11 * p, rel=1e-6)


def test_the_study_met_its_rules(results: pd.DataFrame) -> None:
    assert set(results.columns) <= set(RESULTS)
    assert set(results["seed"]) == set(range(5))
    assert set(results["status"]) == {"ok"}
    assert results["tuned"].all()
    final = results[results["budget"] == FULL]
    assert (final["tokens"] == FULL).all()
    assert (final["epochs"] < 1).all()
    ranked = final[final["matched"] & (final["growth_steps"] > 0)]
    assert ((ranked["params_non_embedding"] / ranked["params_target"] - 1).abs() <= 0.01).all()
    assert stats.full_budget(results) == FULL


def test_every_arm_had_the_same_trials() -> None:
    tuned = json.loads((HERE / "provenance.json").read_text(encoding="utf-8"))["tuned"]
    trials = pd.DataFrame(tuned["trials"])
    rates = {tuple(sorted(arm["learning_rate"])) for _, arm in trials.groupby(["task", "arm"])}
    assert [len(tried) for tried in rates] == [8]
    assert trials["seed"].min() >= 1_000_000
