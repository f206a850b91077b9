"""Claims: planted studies get the verdicts that were planted, at the rates that were promised, and else say why not.

A planted study has every arm of the study claims-small. On its text task a model that has spent C FLOPs has the loss
LEVEL - SLOPE log C; an arm that saves compute reaches every loss at a share of what scratch of its own shape spends.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import toy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from growbench import claim, cli, comparison, stats, tables
from growbench.claim import Claim, Finding
from growbench.claims.capacity import beside_floor
from growbench.evidence import VIEWS, Evidence, Lacking
from growbench.plan import make_plan
from growbench.results import CURVES, DIAGNOSTICS, PLANNED, RESULTS, Column
from growbench.study import read_study

FULL, HALF = 480_000, 240_000
GROWN_POINTS = (300_000, 360_000, FULL)
SCRATCH_POINTS = (24_000, 48_000, 96_000, 144_000, 192_000, HALF, *GROWN_POINTS)
SMALL, LARGE = 6_144, 24_576
LEVEL, SLOPE = 6.0, 0.17
FLOOR = 3.5
"""Of the task rank, at the source's residual width."""
SHAPES = {
    "transformer": ("small", "residual 32, ffn 128"),
    "tokenformer": ("small", "residual 32, tokens 16"),
    "deep": ("one layer", "four layers"),
}
RESTRICTED = ("[ffn]", "[attention]", "[residual]", "[layers 1]")
NAMES = (
    *("cost", "destination", "sunk-cost", "same-operation", "novelty", "scale"),
    *("orthogonal", "capacity", "baseline", "family", "partial"),
)
ALL = {name: built_in for name, built_in in claim.known().items() if name in NAMES}
"""The claims that the planted study is made for; a built-in that is added brings a test of its own."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One arm as the tables describe it."""

    architecture: str
    strategy: str
    variant: str = ""
    restriction: str = ""
    shape: str = ""
    rung: int = 1
    growths: int = 1
    matched: bool = True
    name: str = ""

    @property
    def label(self) -> str:
        variant = f"({self.variant})" if self.variant else ""
        return f"{self.architecture}/{self.name or self.strategy}{variant}{self.restriction}"


def cell(architecture: str) -> tuple[str, str]:
    """Placement and nonlinearity of an architecture."""
    named = {"transformer": ("ffn", "gelu"), "deep": ("ffn", "gelu"), "tokenformer": ("everywhere", "l2_gelu")}
    placement, _, nonlinearity = architecture.partition("-")
    return named.get(architecture, (placement, nonlinearity))


def arms() -> list[Arm]:
    """Those of claims-small."""
    grid = [f"{p}-{n}" for p, n in product(("ffn", "everywhere"), ("relu", "gelu", "softmax", "l2_gelu"))]
    grid = [name for name in grid if name not in ("ffn-gelu", "everywhere-l2_gelu")]
    found = []
    for architecture in ("transformer", "tokenformer", "deep", *grid):
        small, large = SHAPES.get(architecture, ("small", "large"))
        first = Arm(architecture=architecture, strategy="scratch", shape=small, rung=0, growths=0, name="scratch@0")
        found += [first, replace(first, shape=large, rung=1, name="")]
    top = partial(Arm, architecture="transformer", shape=SHAPES["transformer"][1])
    found += [
        Arm(architecture="transformer", strategy="scratch", shape=parts, growths=0, name=f"scratch{parts}")
        for parts in RESTRICTED
    ]
    found += [
        top(strategy="zero_pad"),
        top(strategy="zero_pad", variant="scaled=false"),
        top(strategy="orthogonal", variant="units=random"),
        top(strategy="orthogonal"),
        top(strategy="net2net"),
        top(strategy="hyperclone", variant="snr_db=10.0"),
        Arm(architecture="transformer", strategy="lora", variant="rank=8", shape="small, rank 8", matched=False),
        *(Arm(architecture="transformer", strategy="zero_pad", restriction=p, shape=p) for p in RESTRICTED),
        Arm(architecture="transformer", strategy="zero_tokens", restriction="[ffn]", shape="[ffn]"),
    ]
    tokens = partial(Arm, architecture="tokenformer", shape=SHAPES["tokenformer"][1])
    found += [tokens(strategy=name) for name in ("orthogonal", "net2net", "zero_tokens")]
    found.append(tokens(strategy="zero_tokens", variant="factor=rescaled"))
    found += [Arm(architecture="deep", strategy=name, shape="four layers") for name in ("stack", "zero_depth")]
    found.append(Arm(architecture="everywhere-gelu", strategy="zero_tokens", shape="large"))
    found += [
        Arm(architecture=name, strategy="continue", shape="small", rung=0, growths=0, matched=False)
        for name in ("transformer", "tokenformer")
    ]
    return found


MISSION = (
    *("transformer/zero_pad", "transformer/net2net", "transformer/orthogonal"),
    "tokenformer/zero_tokens",
)


@dataclass(frozen=True, kw_only=True)
class World:
    """What is true of a planted study.

    share: of the FLOPs of scratch at which a grown arm reaches the same loss; offset: added to an arm's log loss, by
    arm and task; jump: log ratio of the loss after growth to that before, and of the norm, by arm; noise: SD of an
    arm's log loss within a seed, beside the luck that all arms of a seed have in common.
    """

    share: Mapping[str, float] = field(default_factory=dict)
    offset: Mapping[tuple[str, str], float] = field(default_factory=dict)
    jump: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    noise: float = 0.0005
    luck: float = 0.003
    seeds: Sequence[int] = range(5)
    draw: int = 0


def text_loss(flops: float) -> float:
    return LEVEL - SLOPE * float(np.log(flops / 1e6))


def spent(arm: Arm, budget: int) -> tuple[float, float]:
    """FLOPs in all and before the growth."""
    source = 6.0 * SMALL * HALF if arm.growths else 0.0
    size = LARGE if arm.rung else SMALL
    return source + 6.0 * size * (budget - (HALF if arm.growths else 0)), source


def evidence(world: World) -> Evidence:
    """The tables of a planted study."""
    rng = np.random.default_rng(world.draw)
    luck = world.luck * rng.standard_normal(1 + max(world.seeds))
    rows: list[dict[str, Any]] = []
    curves: list[dict[str, Any]] = []
    seen: list[dict[str, Any]] = []
    for task, arm, seed in product(("shakespeare", "rank", "facts"), arms(), world.seeds):
        label, off = (
            arm.label,
            luck[seed] + world.noise * rng.standard_normal() + world.offset.get((arm.label, task), 0),
        )
        placement, nonlinearity = cell(arm.architecture)
        own = {"arm": label, "task": task, "seed": seed}
        points = GROWN_POINTS if arm.growths else SCRATCH_POINTS
        if arm.strategy == "continue":
            points = (*points, 900_000)
        jump, norm = world.jump.get(label, (0.0, 0.0))
        for budget in points if task == "shakespeare" else (FULL,):
            flops, source = spent(arm, budget)
            base = {"shakespeare": text_loss(flops / world.share.get(label, 1.0)), "rank": FLOOR, "facts": 2.0}[task]
            rows.append(
                own | {
                    "study": "planted", "strategy": arm.strategy, "variant": arm.variant,
                    "architecture": arm.architecture, "restriction": arm.restriction, "schedule": "", "rung": arm.rung,
                    "shape": arm.shape, "placement": placement, "nonlinearity": nonlinearity,
                    "residual": 32 if arm.rung else 16, "probe": task != "shakespeare", "status": "ok", "reason": "",
                    "matched": arm.matched, "sterile": "", "growth_steps": arm.growths, "tuned": True,
                    "data_fingerprint": f"data of {task}", "params_non_embedding": LARGE if arm.rung else SMALL,
                    "budget": budget, "tokens": budget, "epochs": budget / 1e6 * (20 if task == "facts" else 1),
                    "flops": flops, "flops_source": source, "flops_continued": flops - source,
                    "flops_ladder": flops + (6.0 * SMALL * HALF if arm.rung and not arm.growths else 0.0),
                    "loss": base * np.exp(off), "loss_floor": FLOOR if task == "rank" else None,
                    "growth_loss_jump": 2.5 * np.exp(off) * np.expm1(jump) if arm.growths else None,
                }
            )  # fmt: skip
        if arm.growths:
            for after in (False, True):
                measured = {"loss": 2.5 * np.exp(off + jump * after), "train_loss": None if after else 2.6}
                curves.append(own | {"kind": "train", "stage": "g", "tokens": HALF, "flops": 1.0} | measured)
                for layer in (0, 1):
                    about = {"kind": "grow", "when": "after" if after else "before", "quantity": "activation_rms"}
                    rms = (1 + layer) * np.exp(norm * after * layer)
                    seen.append(own | about | {"axis": "residual", "layer": layer, "part": "all", "value": rms})
    return Evidence(
        results=table(rows, RESULTS),
        curves=table(curves, CURVES),
        diagnostics=table(seen, DIAGNOSTICS),
        memory=frozenset({"facts"}),
    )


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    return frame.astype({name: column.dtype for name, column in columns.items()})


def ffn(what: str, part: str = "[ffn]") -> str:
    return f"transformer/{what}{part}"


HOLDS = World(
    share=dict.fromkeys(MISSION, 1.1),
    offset={
        ("transformer/orthogonal(units=random)", "shakespeare"): -0.02,
        ("transformer/hyperclone(snr_db=10.0)", "shakespeare"): -0.04,
        (ffn("zero_pad", "[residual]"), "rank"): -0.05,
        (ffn("zero_pad"), "rank"): 0.05,
        (ffn("zero_pad"), "facts"): -0.05,
        ("tokenformer/scratch@0", "shakespeare"): 0.02,
        ("tokenformer/scratch", "shakespeare"): -0.03,
        ("ffn-l2_gelu/scratch", "shakespeare"): -0.01,
        ("everywhere-gelu/scratch", "shakespeare"): -0.02,
    },
    jump={"transformer/zero_pad(scaled=false)": (0.1, 0.2)},
)
"""Nine of the claims hold; growing costs more than scratch, unless the source is free."""
FAILS = World(
    share=dict.fromkeys(MISSION, 0.6),
    offset={
        ("transformer/orthogonal(units=random)", "shakespeare"): 0.2,
        ("transformer/hyperclone(snr_db=10.0)", "shakespeare"): 0.2,
        ("tokenformer/orthogonal", "shakespeare"): 0.2,
        ("deep/stack", "shakespeare"): 0.2,
        ("deep/zero_depth", "shakespeare"): 0.2,
        (ffn("zero_pad"), "rank"): -0.05,
        (ffn("zero_tokens"), "shakespeare"): 0.02,
        (ffn("zero_pad", "[attention]"), "shakespeare"): 0.5,
        ("tokenformer/scratch", "shakespeare"): 0.03,
    },
    jump={"transformer/orthogonal(units=random)": (0.0, 0.1)},
)
"""Growing halves the cost, and all claims but that one are wrong."""


def verdicts(decisions: Sequence[claim.Decision]) -> dict[str, str]:
    return {decision.claim: decision.verdict for decision in decisions}


def only(given: Evidence, *names: str) -> dict[str, claim.Decision]:
    found = claim.decide({name: ALL[name] for name in names}, given)
    return {decision.claim: decision for decision in found}


def edited(given: Evidence, column: str, value: Any, **where: Any) -> Evidence:
    """The evidence with a column changed in some rows."""
    results = given.results.copy()
    chosen = np.logical_and.reduce([results[name].isin(np.atleast_1d(v)) for name, v in where.items()])
    assert chosen.any()
    results.loc[chosen, column] = value
    return replace(given, results=results)


@pytest.fixture(scope="module")
def holds() -> Evidence:
    return evidence(HOLDS)


@pytest.fixture(scope="module")
def decided(holds: Evidence) -> list[claim.Decision]:
    return claim.decide(ALL, holds)


# --- planted verdicts ------------------------------------------------------------------------------------------------


def test_the_planted_study_has_the_arms_of_the_shipped_one() -> None:
    study = read_study("claims-small")
    planned = {
        f"{architecture}/{spec.label}"
        for architecture in study.ladders
        for spec in study.strategies
        if spec.architectures is None or architecture in spec.architectures
    }
    assert planned <= {arm.label for arm in arms()}
    assert tuple(sorted(ALL, key=lambda name: ALL[name].number)) == NAMES


def test_what_holds_is_supported(decided: list[claim.Decision]) -> None:
    assert verdicts(decided) == dict.fromkeys(NAMES, "supported") | {"cost": "contradicted"}
    assert not any(decision.missing for decision in decided)


def test_what_fails_is_contradicted() -> None:
    found = verdicts(claim.decide(ALL, evidence(FAILS)))
    assert found == dict.fromkeys(NAMES, "contradicted") | {"cost": "supported"}


def test_the_headline_is_the_test_that_the_p_is_of(decided: list[claim.Decision]) -> None:
    headlines = {d.claim: d.headline for d in decided if d.headline}
    (weakest,) = (max(d.finding.tests, key=lambda t: t.p_for) for d in decided if d.finding and d.claim == "partial")
    assert headlines["partial"] == weakest
    assert headlines["family"].name.startswith("transformer/hyperclone(snr_db=10.0) gains more than")
    claims, tests = claim.tabulate(decided)
    assert not tests.duplicated(["claim", "test", "task"]).any()
    assert list(claims["test"]) == [headlines[name].name for name in NAMES]
    assert tests[tests["decides"]].groupby("claim")["test"].apply(set).map(bool).all()
    assert all(headlines[name].name in set(tests.loc[tests["claim"] == name, "test"]) for name in NAMES)


def paired(given: Evidence, arm: str, reference: str) -> Any:
    """scipy's paired t test of log losses at the full budget, on the text."""
    rows = given.results[(given.results["task"] == "shakespeare") & (given.results["budget"] == FULL)]
    left, right = (
        np.log(rows[rows["arm"] == name].sort_values("seed")["loss"].to_numpy(float)) for name in (arm, reference)
    )
    return left - right, scipy_stats.ttest_rel(left, right)


def step_down(p: Sequence[float]) -> list[float]:
    """Holm's adjustment, by its definition."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    adjusted, largest = [0.0] * len(p), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - place) * p[i]))
        adjusted[i] = largest
    return adjusted


def test_three_verdicts_by_hand(holds: Evidence, decided: list[claim.Decision]) -> None:
    by_hand: dict[str, tuple[float, float]] = {}
    twin = {arm: f"{arm.partition('/')[0]}/scratch" for arm in MISSION}
    tests = [paired(holds, twin[arm], arm) for arm in MISSION]
    assert all(mean.mean() < 0 for mean, _ in tests)
    by_hand["destination"] = (float(max(test.pvalue for _, test in tests)), 1.0)

    parts = [
        paired(holds, ffn("zero_pad", part), "transformer/zero_pad")[0]
        for part in ("[ffn]", "[attention]", "[layers 1]")
    ]
    p_not_above = max(scipy_stats.ttest_1samp(d, np.log(1.005), alternative="less").pvalue for d in parts)
    p_above = min(scipy_stats.ttest_1samp(d, np.log(1.005), alternative="greater").pvalue for d in parts)
    by_hand["partial"] = (float(p_not_above), min(1.0, 3 * float(p_above)))

    results = holds.results[holds.results["task"] == "shakespeare"]
    against = []
    for arm in MISSION:
        differences = []
        for seed in range(5):
            mine, other = (
                results[(results["arm"] == name) & (results["seed"] == seed)].sort_values("flops")
                for name in (arm, twin[arm])
            )
            flops, loss = mine[mine["budget"] == FULL][["flops", "loss"]].to_numpy(float)[0]
            costs, losses = other["flops"].to_numpy(float), other["loss"].to_numpy(float)
            differences.append(np.log(loss) - np.log(np.interp(np.log(flops), np.log(costs), losses)))
        against.append(scipy_stats.ttest_1samp(differences, -np.log(1.005), alternative="greater").pvalue)
    by_hand["cost"] = (1.0, float(max(against)))

    raw = {d.claim: (d.finding.p_for, d.finding.p_against) for d in decided if d.finding}
    for name, expected in by_hand.items():
        assert raw[name] == pytest.approx(expected, rel=1e-6), name
    for k, kind in enumerate(("p_for", "p_against")):
        adjusted = step_down([(raw | by_hand)[name][k] for name in NAMES])
        assert [getattr(d, kind) for d in decided] == pytest.approx(adjusted, rel=1e-6)


# --- what is not decided ---------------------------------------------------------------------------------------------


def test_a_diverged_arm_leaves_undecided_what_rests_on_it_and_nothing_else(
    holds: Evidence, decided: list[claim.Decision]
) -> None:
    where = {"arm": "transformer/net2net", "task": "shakespeare", "seed": 2}
    found = claim.decide(ALL, edited(edited(holds, "status", "diverged", **where), "loss", np.log(256), **where))
    rests = {"cost", "destination", "sunk-cost", "family"}
    assert verdicts(found) == verdicts(decided) | dict.fromkeys(rests, "undecided")
    for decision in found:
        said = "transformer/net2net diverged (shakespeare, seed 2)" in decision.missing
        assert said == (decision.claim in rests), decision.missing


def test_an_arm_that_diverged_before_its_last_point_has_no_cost(holds: Evidence) -> None:
    where = {"arm": "transformer/net2net", "task": "shakespeare", "seed": 2, "budget": 300_000}
    found = only(edited(holds, "status", "diverged", **where), "cost", "destination")
    assert (found["cost"].verdict, found["destination"].verdict) == ("undecided", "supported")


def test_three_seeds_are_points(holds: Evidence) -> None:
    few = replace(holds, results=holds.results[holds.results["seed"] < 3])
    claims, tests = claim.tabulate(claim.decide(ALL, few))
    assert set(claims["verdict"]) == {"undecided"}
    assert claims["missing"].str.contains("screening: 3 seeds, and a test needs 5").all()
    assert claims[["p_for", "p_against"]].isna().all(axis=None)
    assert tests[["p_for", "p_against", "low", "high"]].isna().all(axis=None)
    assert tests["effect"].notna().all()


@pytest.mark.parametrize(
    ("column", "value", "where", "said"),
    [
        ("tuned", False, {}, "the study is not tuned"),
        ("epochs", 1.5, {"task": "shakespeare"}, "shakespeare was read 1.5 times"),
    ],
)
def test_a_study_against_the_rules_decides_nothing(
    holds: Evidence, column: str, value: Any, where: dict[str, Any], said: str
) -> None:
    names = ("same-operation", "scale", "capacity", "baseline", "partial")
    found = only(edited(holds, column, value, **(where or {"study": "planted"})), *names)
    for name, decision in found.items():
        untouched = where and name == "capacity"
        assert (decision.verdict, decision.missing) == (("supported", "") if untouched else ("undecided", said)), name


def test_a_source_trained_on_beyond_an_epoch_does_not_matter_at_the_full_budget(holds: Evidence) -> None:
    where = {"arm": "transformer/continue", "budget": 900_000}
    assert only(edited(holds, "epochs", 2.0, **where), "capacity")["capacity"].verdict == "supported"


@pytest.mark.parametrize(
    ("dropped", "name", "said"),
    [
        (
            {"arm": "transformer/zero_pad(scaled=false)"},
            "orthogonal",
            "zero_pad (placement ffn, nonlinearity gelu, variant scaled=false)",
        ),
        ({"arm": "deep/scratch"}, "family", "it needs scratch in the shape of deep/stack"),
        ({"arm": "transformer/scratch"}, "destination", "it needs scratch in the shape of transformer/zero_pad"),
        ({"task": "rank"}, "capacity", "it needs the task rank"),
        ({"task": "shakespeare"}, "baseline", "it needs a task that is no capacity probe"),
        ({"strategy": "continue"}, "capacity", "it needs an arm of continue"),
        ({"restriction": "[layers 1]"}, "partial", "it needs an arm of zero_pad that grows chosen layers"),
        ({"arm": "transformer/scratch@0", "seed": 4}, "baseline", "transformer/scratch@0 lacks seed 4"),
        ({"arm": "transformer/zero_pad", "budget": FULL}, "partial", "transformer/zero_pad has 360000"),
    ],
)
def test_what_is_missing_is_named(holds: Evidence, dropped: dict[str, Any], name: str, said: str) -> None:
    gone = np.logical_and.reduce([(holds.results[key] == value).to_numpy(bool) for key, value in dropped.items()])
    found = only(replace(holds, results=holds.results[~gone]), name)[name]
    assert found.verdict == "undecided"
    assert said in found.missing


def test_without_diagnostics_or_ladder_costs_nothing_breaks(holds: Evidence) -> None:
    bare = replace(holds, diagnostics=holds.diagnostics.iloc[:0])
    assert only(bare, "scale")["scale"].missing == "it needs diagnostics"
    unknown = replace(
        holds, results=holds.results.assign(flops_ladder=pd.array([None] * len(holds.results), "Float64"))
    )
    found = only(unknown, "cost")["cost"]
    assert found.verdict == "contradicted"
    beside = found.finding.beside if found.finding else ()
    assert [bool(test.why) for test in beside] == [test.name.endswith("ladder") for test in beside]


UNEQUAL = [
    ("budget", 470_000),
    ("tokens", 470_000),
    ("params_non_embedding", 25_000),
    ("data_fingerprint", "other data"),
]


@pytest.mark.parametrize(("column", "value"), UNEQUAL)
def test_unequal_rows_are_refused_by_name(holds: Evidence, column: str, value: Any) -> None:
    rests = ("cost", "destination", "sunk-cost", "orthogonal", "family", "partial")
    where = {"arm": "transformer/zero_pad", "task": "shakespeare", "budget": FULL}
    found = only(edited(holds, column, value, **where), *rests, "novelty")
    assert found.pop("novelty").verdict == "supported"
    found.pop("family")  # zero_pad is what it leaves out
    for name, decision in found.items():
        assert decision.verdict == "undecided", name
        assert "cannot be compared" in decision.missing, name
        assert re.search(rf"transformer/zero_pad has ({column} )?{value}\b", decision.missing), decision.missing
        assert "seed 0" in decision.missing


RANK = {"arm": "transformer/zero_pad[residual]", "task": "rank"}


@pytest.mark.parametrize(
    ("column", "value", "where", "said"),
    [
        ("data_fingerprint", "other data", RANK | {"seed": 2}, r"has data_fingerprint other data, .*\(rank, seed 2\)"),
        ("loss", np.nan, RANK | {"seed": 2}, r"loss has no logarithm in these rows: .*\[residual\], rank, seed 2"),
        ("loss", np.inf, RANK | {"seed": 2}, r"loss has no logarithm in these rows: .*\[residual\], rank, seed 2"),
        ("loss", 0.0, RANK | {"seed": 2}, r"loss has no logarithm in these rows: .*\[residual\], rank, seed 2"),
    ],
)
def test_beside_the_floor_of_a_source_rows_are_held_to_the_same(
    holds: Evidence, column: str, value: Any, where: dict[str, Any], said: str
) -> None:
    changed = edited(holds, column, value, **where).task("rank")
    with pytest.raises(Lacking, match=said):
        beside_floor(changed, RANK["arm"], "transformer/continue", "below")


@pytest.mark.parametrize("name", ALL)
def test_rows_that_stand_twice_are_no_more_seeds(holds: Evidence, name: str) -> None:
    twice = replace(holds, results=pd.concat([holds.results, holds.results], ignore_index=True))
    found = only(twice, name)[name]
    assert found.verdict == "undecided"
    assert "has more than one row at its budget: " in found.missing


def planned(given: Evidence) -> Evidence:
    return replace(given, planned=given.results[PLANNED])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("ahead", ["seed", "budget"])
def test_a_study_under_way_decides_nothing_of_what_is_left(holds: Evidence, name: str, ahead: str) -> None:
    """Neither of the seeds that are there, nor of an earlier budget point, as long as more was planned."""
    whole = planned(holds)
    rows = holds.results
    left = rows[rows["seed"] != 4] if ahead == "seed" else rows[rows["budget"] < FULL]
    found = only(replace(whole, results=left), name)[name]
    assert found.verdict == "undecided"
    if name != "capacity" or ahead == "seed":  # without its budget the rows of rank and facts are gone
        assert re.search(r"not run yet: \S+ at [0-9,]+ tokens \((shakespeare|rank|facts), seed \d\)", found.missing)


def test_what_is_planned_of_other_arms_and_tasks_does_not_matter(holds: Evidence) -> None:
    rows = holds.results
    left = rows[~((rows["seed"] == 4) & ((rows["arm"] == "deep/stack") | (rows["task"] == "facts")))]
    found = only(replace(planned(holds), results=left), "destination", "baseline", "family", "capacity")
    assert [found[name].verdict for name in ("destination", "baseline")] == ["supported"] * 2
    assert [found[name].verdict for name in ("family", "capacity")] == ["undecided"] * 2


def second_task(given: Evidence, draw: int) -> Evidence:
    """The evidence with another language task, of the same effects and other noise."""
    rows = evidence(replace(HOLDS, draw=draw)).results
    rows = rows[rows["task"] == "shakespeare"].assign(task="pycode", data_fingerprint="data of pycode")
    return replace(given, results=pd.concat([given.results, rows], ignore_index=True))


@pytest.mark.parametrize("gone", ["transformer/zero_pad", "transformer/scratch"])
def test_an_arm_that_lacks_a_task_is_not_compared_on_the_others(holds: Evidence, gone: str) -> None:
    both = second_task(holds, 1)
    assert {d.verdict for d in only(both, "destination", "sunk-cost").values()} == {"supported"}
    rows = both.results
    left = replace(both, results=rows[~((rows["arm"] == gone) & (rows["task"] == "pycode"))])
    for name, found in only(left, "cost", "destination", "sunk-cost").items():
        assert found.verdict == "undecided", name
        assert "failed" not in found.missing
        assert re.search(rf"pycode: {gone} (at \S+ FLOPs )?lacks seed 0, 1, 2, 3, 4", found.missing), found.missing


def test_one_unequal_row_is_enough(holds: Evidence) -> None:
    where = {"arm": "tokenformer/scratch@0", "task": "shakespeare", "budget": FULL, "seed": 3}
    found = only(edited(holds, "data_fingerprint", "other data", **where), "baseline")["baseline"]
    assert found.verdict == "undecided"
    assert "data of shakespeare (shakespeare, seed 3)" in found.missing


# --- the arms of a claim ---------------------------------------------------------------------------------------------


def test_arms_of_a_claim_are_of_one_architecture(holds: Evidence) -> None:
    """A second GELU transformer, before the first in the table, with some of the arms."""
    made = holds.results["arm"].isin(["transformer/scratch@0", "transformer/scratch", "transformer/zero_pad"])
    other = holds.results[made].copy()
    other["arm"] = other["arm"].str.replace("transformer", "wide")
    other["architecture"] = "wide"
    more = replace(holds, results=pd.concat([other, holds.results], ignore_index=True))
    assert more.arm("zero_pad", placement="ffn", nonlinearity="gelu") == "wide/zero_pad"
    assert more.scratch("wide/zero_pad") == "wide/scratch"
    found = only(more, "orthogonal", "partial", "destination")
    for decision in found.values():
        assert decision.verdict == "supported"
        assert decision.finding
        assert not any(arm.startswith("wide") for test in decision.finding.tests for arm in test.rows)
    with pytest.raises(Lacking, match="one architecture with arms of zero_depth, net2net"):
        more.together({"strategy": "zero_depth"}, {"strategy": "net2net"})


def test_scratch_is_of_the_own_shape_and_of_no_other_s(holds: Evidence) -> None:
    assert holds.scratch(ffn("zero_pad")) == "transformer/scratch[ffn]"
    assert holds.scratch("transformer/zero_pad") == "transformer/scratch"
    assert holds.scratch("deep/stack") == "deep/scratch"
    gone = replace(holds, results=holds.results[~holds.results["arm"].isin(["transformer/scratch", "deep/scratch"])])
    assert gone.arms("scratch", placement="ffn", nonlinearity="gelu") == []


def three_rungs(given: Evidence) -> Evidence:
    """The same study with a rung below: every grown arm was scored there too, where scratch of that size is."""
    results = given.results.copy()
    results["rung"] = results["rung"] + 1
    below = results[(results["budget"] == 300_000) & (results["growth_steps"] > 0)].copy()
    below["rung"], below["budget"], below["tokens"] = 1, 120_000, 120_000
    below["params_non_embedding"], below["shape"], below["flops"] = SMALL, "small", 1e9
    lowest = results[results["arm"].str.endswith("@0")].copy()
    results["arm"] = results["arm"].str.replace("@0", "@1")
    lowest["rung"] = 0
    sources = results["strategy"] == "continue"
    results.loc[sources, "rung"] = 0
    return replace(given, results=pd.concat([below, results, lowest], ignore_index=True))


def test_the_rungs_between_decide_nothing(holds: Evidence, decided: list[claim.Decision]) -> None:
    names = ("cost", "scale", "capacity", "baseline", "partial")
    found = only(three_rungs(holds), *names)
    assert {name: found[name].verdict for name in names} == {name: verdicts(decided)[name] for name in names}
    before = {d.claim: d.finding for d in decided}
    for name in names:
        mine, other = found[name].finding, before[name]
        assert mine
        assert other
        assert (mine.p_for, mine.p_against) == pytest.approx((other.p_for, other.p_against), rel=1e-9)


# --- the algebra of findings -----------------------------------------------------------------------------------------

chance = st.one_of(st.floats(0, 1), st.just(float("nan")))


def tried(p_for: float, p_against: float, why: str = "", name: str = "t") -> claim.Test:
    return claim.Test(name=name, rows=("a",), p_for=p_for, p_against=p_against, why=why)


RULES: list[Callable[..., Finding]] = [claim.every, claim.some, claim.all_or_none]
EXPECTED: dict[str, Callable[[list[float], list[float]], tuple[float, float]]] = {
    "every": lambda f, a: (max(f), min(1, len(a) * min(a))),
    "some": lambda f, a: (min(1, len(f) * min(f)), max(a)),
    "all_or_none": lambda f, a: (max(f), max(a)),
}


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=40)
@given(st.lists(st.tuples(chance, chance), min_size=1, max_size=5))
def test_joined_p_of_complete_lists_and_none_of_others(
    rule: Callable[..., Finding], p: list[tuple[float, float]]
) -> None:
    found = rule(*(tried(*each) for each in p))
    kinds = [[float(each[k]) for each in p] for k in (0, 1)]
    ends = EXPECTED[found.rule](*kinds)
    expected = tuple(np.nan if np.isnan(kind).any() else end for kind, end in zip(kinds, ends, strict=True))
    assert (found.p_for, found.p_against) == pytest.approx(expected, nan_ok=True)
    turned = claim.joined("turned", found, turned=True)
    again = claim.every(turned)
    for test in (turned, again):
        assert (test.p_against, test.p_for) == pytest.approx(expected, nan_ok=True)
    verdict: claim.Verdict
    other: claim.Verdict
    for verdict, other, key in (("supported", "contradicted", "p_for"), ("contradicted", "supported", "p_against")):
        shown, whole = claim.headline(found, verdict), getattr(found, key)
        assert any(shown is test for test in found.tests)
        assert claim.headline(again, other) is shown
        if not np.isnan(whole):
            assert whole in (getattr(shown, key), min(1.0, len(p) * getattr(shown, key)))


def test_turning_follows_to_the_test_that_speaks() -> None:
    cheap, dear = tried(0.001, 1.0, name="cheap"), tried(0.9, 0.002, name="dear")
    one = claim.some(cheap, dear)
    all_dear = claim.every(claim.joined("none is cheaper", one, turned=True))
    assert claim.headline(all_dear, "contradicted") == cheap
    assert claim.headline(all_dear, "supported") == cheap  # the largest p against is what keeps it from being so
    assert all_dear.p_against == pytest.approx(0.002)


def test_reasons_are_those_of_tests_without_p_and_said_once() -> None:
    bound, gone = tried(1.0, 1.0, why="a bound", name="x"), tried(np.nan, np.nan, why="3 seeds", name="y")
    assert claim.every(bound, gone).why == "y: 3 seeds"
    assert claim.every(gone, replace(gone, name="z")).why == "3 seeds"
    assert claim.every(gone).why == "3 seeds"
    assert claim.some(bound, tried(0.5, 0.5)).why == "x: a bound"
    assert claim.every(claim.joined("both", claim.every(bound, gone))).why == "y: 3 seeds"


@dataclass(frozen=True, kw_only=True)
class Planted(Claim):
    """A claim whose finding is given."""

    finding: Finding | BaseException | None

    def find(self, evidence: Evidence) -> Finding:
        if isinstance(self.finding, BaseException):
            raise self.finding
        return self.finding  # type: ignore[return-value]


NONE = Evidence(results=pd.DataFrame())


@settings(max_examples=30)
@given(st.lists(st.tuples(chance, chance), min_size=1, max_size=11))
def test_claims_without_p_are_counted_by_holm(p: list[tuple[float, float]]) -> None:
    claims = {f"c{i:02d}": Planted(finding=claim.every(tried(*each))) for i, each in enumerate(p)}
    found = claim.decide(claims, NONE)
    for k, kind in enumerate(("p_for", "p_against")):
        raw = [each[k] for each in p]
        adjusted = step_down([np.inf if np.isnan(x) else x for x in raw])
        expected = [np.nan if np.isnan(x) else a for x, a in zip(raw, adjusted, strict=True)]
        assert [getattr(d, kind) for d in found] == pytest.approx(expected, nan_ok=True)
    for decision in found:
        speaks = decision.p_for < 0.05, decision.p_against < 0.05
        known = {(True, False): "supported", (False, True): "contradicted"}
        assert decision.verdict == known.get(speaks, "undecided")
        assert bool(decision.missing) == (decision.verdict == "undecided")


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (KeyError("x"), "the claim odd failed: KeyError: 'x'"),
        (SystemExit(3), "the claim odd failed: SystemExit: 3"),
        (ValueError("rows\ndiffer"), "the claim odd failed: rows differ"),
        (Lacking("an arm of x"), "it needs an arm of x"),
        (None, "the claim odd failed: TypeError: find gives NoneType, and no Finding with a test"),
        (claim.every(), "the claim odd failed: TypeError: find gives Finding, and no Finding with a test"),
    ],
)
def test_a_claim_that_fails_is_blamed_and_the_others_stay(finding: Any, said: str) -> None:
    odd, good = Planted(finding=finding), Planted(finding=claim.every(tried(0.001, 1.0)))
    by_name = {decision.claim: decision for decision in claim.decide({"odd": odd, "good": good}, NONE)}
    assert by_name["good"].verdict == "supported"
    assert (by_name["odd"].verdict, by_name["odd"].missing) == ("undecided", said)
    claims, tests = claim.tabulate(list(by_name.values()))
    assert list(claims["claim"]) == ["good", "odd"]
    assert list(tests["claim"]) == ["good"]


def test_what_both_p_speak_for_is_undecided() -> None:
    """An effect that is there and within the margin: `cost` would be supported, and `sunk-cost`, that it is not."""
    small = {("tokenformer/scratch@0", "shakespeare"): 0.0025}
    given = evidence(replace(HOLDS, share=dict.fromkeys(MISSION, 0.965), offset=dict(HOLDS.offset) | small, noise=2e-4))
    for name, found in only(given, "cost", "sunk-cost", "baseline").items():
        assert max(found.p_for, found.p_against) < 0.05, name
        assert found.verdict == "undecided"
        assert found.missing == "a larger effect: it is there, within the margin: both p are below 0.05"


FINE = tried(0.001, 1.0)


@pytest.mark.parametrize(
    ("finding", "said"),
    [
        (Finding(tests=("x",), rule="every"), "what it tests must be a tuple of Test, not ('x',)"),  # type: ignore[arg-type]
        (Finding(tests=[FINE], rule="every"), "what it tests must be a tuple of Test, not [Test("),  # type: ignore[arg-type]
        (Finding(tests=(FINE,), rule="every", beside=None), "what it tests must be a tuple of Test, not None"),  # type: ignore[arg-type]
        (Finding(tests=(FINE,), rule="most"), "its rule is 'most', and none of every, some, all_or_none"),  # type: ignore[arg-type]
        (claim.every(tried(-1.0, 1.0)), "p_for of t must lie in 0 ... 1, not -1.0"),
        (claim.every(tried(0.1, 2.0)), "p_against of t must lie in 0 ... 1, not 2.0"),
        (claim.every(tried(None, 1.0)), "p_for of t must be a number, not None"),  # type: ignore[arg-type]
        (claim.every(tried("0.1", 1.0)), "p_for of t must be a number, not '0.1'"),  # type: ignore[arg-type]
        (claim.every(tried(np.array([0.1, 0.2]), 1.0)), "p_for of t must be a number, not array("),  # type: ignore[arg-type]
        (claim.every(replace(FINE, effect="big")), "effect of t must be a number, not 'big'"),  # type: ignore[arg-type]
        (claim.every(replace(FINE, rows="ab")), "the rows of t must be a tuple of arms, not 'ab'"),  # type: ignore[arg-type]
        (claim.every(replace(FINE, name=None)), "the name of a test must be text, not None"),  # type: ignore[arg-type]
        (claim.every(replace(FINE, why=None)), "the why of a test must be text, not None"),  # type: ignore[arg-type]
        (claim.every(replace(FINE, per_task=None)), "per_task of t must be a table of stats.contrast"),  # type: ignore[arg-type]
        (
            claim.every(replace(FINE, per_task=pd.DataFrame({"x": [1]}))),
            "per_task of t must be a table of stats.contrast",
        ),
        (claim.every(FINE).showing(tried(7.0, 1.0)), "p_for of t must lie in 0 ... 1, not 7.0"),
        (claim.every(replace(FINE, parts=claim.some(tried(7.0, 1.0)))), "p_for of t must lie in 0 ... 1, not 7.0"),
    ],
)
def test_a_finding_that_is_nonsense_is_blamed_and_the_others_stay(finding: Finding, said: str) -> None:
    claims = {"odd": Planted(finding=finding), "good": Planted(finding=claim.every(FINE))}
    by_name = {decision.claim: decision for decision in claim.decide(claims, NONE)}
    assert by_name["good"].verdict == "supported"
    assert by_name["odd"].verdict == "undecided"
    assert by_name["odd"].missing.startswith(f"the claim odd failed: {said}")
    claim.tabulate(list(by_name.values()))


def test_a_claim_that_changes_the_tables_changes_no_other(holds: Evidence, decided: list[claim.Decision]) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Vandal(Claim):
        """It writes into what it is given."""

        number = 0

        def find(self, evidence: Evidence) -> Finding:
            for frame in (evidence.results, evidence.curves, evidence.diagnostics, evidence.language.results):
                frame[frame.columns[0]] = "gone"
            evidence.results["loss"] = 1.0
            evidence.diagnostics["value"] = 0.0
            return claim.every(FINE)

    before = [frame.copy() for frame in (holds.results, holds.curves, holds.diagnostics)]
    found = claim.decide({"vandal": Vandal()} | ALL, holds)
    assert verdicts(found) == verdicts(decided) | {"vandal": "supported"}
    for frame, same in zip((holds.results, holds.curves, holds.diagnostics), before, strict=True):
        pd.testing.assert_frame_equal(frame, same)


def test_an_interrupt_is_no_finding() -> None:
    with pytest.raises(KeyboardInterrupt):
        claim.decide({"odd": Planted(finding=KeyboardInterrupt())}, NONE)


# --- single tests ----------------------------------------------------------------------------------------------------


def differences(values: Sequence[float] | np.ndarray, **columns: Any) -> pd.DataFrame:
    return pd.DataFrame({"task": "shakespeare", "seed": range(len(values)), "difference": values}).assign(**columns)


RULED = ("transformer/scratch",)


@pytest.mark.parametrize(
    ("bound", "speaks"), [("", "both"), ("at most", "below"), ("at least", "above"), ("unknown", "")]
)
@pytest.mark.parametrize("mean", [-0.1, 0.1])
@pytest.mark.parametrize("side", ["below", "above"])
def test_a_bound_speaks_where_it_bounds(holds: Evidence, bound: str, speaks: str, mean: float, side: Any) -> None:
    values = mean + np.array([0.01, -0.01, 0.02, 0.0, -0.015])
    bounds = ["", bound, "", "", ""]
    test = comparison.ordered(holds, "x", RULED, differences(values, bound=bounds), side=side)
    p = scipy_stats.ttest_1samp(values, 0).pvalue
    lies = "below" if mean < 0 else "above"
    if bound == "unknown":
        assert np.isnan([test.p_for, test.p_against]).all()
    else:
        told = p if speaks in ("both", lies) else 1.0
        assert (test.p_for, test.p_against) == pytest.approx((told, 1.0) if side == lies else (1.0, told))
    assert bool(test.why) == (speaks not in ("both", lies))


def test_bounds_on_both_sides_tell_nothing(holds: Evidence) -> None:
    test = comparison.ordered(holds, "x", RULED, differences([0.1] * 5, bound=["at most", "at least", "", "", ""]))
    assert np.isnan([test.p_for, test.p_against]).all()
    assert "bounded on both sides" in test.why


@pytest.mark.parametrize("rule", [comparison.equal, comparison.apart])
@pytest.mark.parametrize(("mean", "inside"), [(0.0, True), (0.0049, True), (0.0051, False), (-0.1, False)])
def test_measures_without_noise_decide_by_themselves(holds: Evidence, rule: Any, mean: float, inside: bool) -> None:
    test = rule(holds, "x", RULED, differences([mean] * 5), measured=True)
    p = (0.0, 1.0) if inside == (rule is comparison.equal) else (1.0, 0.0)
    assert (test.p_for, test.p_against) == p
    assert (test.low, test.high) == (test.effect, test.effect)
    assert not test.why
    unsaid = rule(holds, "x", RULED, differences([mean] * 5))
    assert np.isnan([unsaid.p_for, unsaid.p_against]).all()
    assert "the seeds do not differ" in unsaid.why


@pytest.mark.parametrize("rule", [comparison.equal, comparison.apart])
@pytest.mark.parametrize("mean", [0.0, 0.1])
def test_measures_obey_the_rules_all_the_same(holds: Evidence, rule: Any, mean: float) -> None:
    untuned = edited(holds, "tuned", False, arm=RULED)
    gone = differences([mean] * 5 + [np.nan])
    for given_, values in ((untuned, differences([mean] * 5)), (holds, differences([mean] * 4)), (holds, gone)):
        test = rule(given_, "x", RULED, values, measured=True)
        assert np.isnan([test.p_for, test.p_against]).all()
        assert test.why


def test_measures_with_noise_are_tested(holds: Evidence) -> None:
    values = [0.011, 0.012, 0.0115, 0.0125, 0.012]
    measured, tested = (comparison.apart(holds, "x", RULED, differences(values), measured=m) for m in (True, False))
    assert (measured.p_for, measured.p_against) == (tested.p_for, tested.p_against)
    assert tested.p_for == pytest.approx(
        2 * scipy_stats.ttest_1samp(values, stats.MARGIN, alternative="greater").pvalue
    )


# --- compute saved ---------------------------------------------------------------------------------------------------


def with_losses(given: Evidence, arm: str, view: str, law: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Evidence:
    """The evidence of the text, with losses by a law of cost in a view, and of whether the row is of an arm."""
    results = given.language.results.copy()
    costs, own = results[VIEWS[view]].to_numpy(float), (results["arm"] == arm).to_numpy(bool)
    noise = results["loss"].to_numpy(float) / [text_loss(cost) for cost in results["flops"].to_numpy(float)]
    return replace(given, results=results.assign(loss=law(costs, own) * noise))


@pytest.fixture(scope="module")
def plain() -> Evidence:
    return evidence(World())


@pytest.mark.parametrize("share", [0.7, 1.0, 1.3])
@pytest.mark.parametrize("view", list(VIEWS))
def test_a_planted_ratio_of_costs_is_found_again(view: str, share: float) -> None:
    """The loss is linear in log cost, so that reading off between budget points is exact."""
    arm, exact = "transformer/zero_pad", evidence(World(noise=0.0, luck=0.0, seeds=range(1)))

    def law(costs: np.ndarray, own: np.ndarray) -> np.ndarray:
        return np.asarray(LEVEL - SLOPE * np.log(costs / np.where(own, share, 1.0) / 1e6))

    effect = comparison.cheaper(with_losses(exact, arm, view, law), arm, view).effect
    if share > 1:  # it does not reach the hardest losses: a bound
        assert 0 < effect < np.log(share)
    else:
        assert effect == pytest.approx(np.log(share), abs=1e-9)


def test_a_planted_power_law_is_found_again(plain: Evidence) -> None:
    arm, share = "transformer/zero_pad", 0.7

    def law(costs: np.ndarray, own: np.ndarray) -> np.ndarray:
        return np.asarray(1.5 + (costs / 1e9 / np.where(own, share, 1.0)) ** -0.3)

    test = comparison.cheaper(with_losses(plain, arm, "total", law), arm, "total")
    assert test.low - 0.02 < np.log(share) < test.high + 0.02  # between points it is read off on a chord
    assert test.p_for < 1e-3
    assert test.p_against == 1.0


def test_an_arm_that_never_arrives_can_only_speak_against(plain: Evidence) -> None:
    """One is dearer throughout; one is cheaper where it arrives, and where it does not nobody knows."""
    arm = "transformer/zero_pad"
    at, like = np.array([60e3, 120e3, 240e3]), np.array([100e3, 190e3, 210e3])  # what scratch would spend, in tokens

    def dearer(costs: np.ndarray, own: np.ndarray) -> np.ndarray:
        return np.asarray(LEVEL - SLOPE * np.log(costs / np.where(own, 1.3, 1.0) / 1e6))

    def flatter(costs: np.ndarray, own: np.ndarray) -> np.ndarray:
        unit = 6.0 * LARGE
        same = np.where(own, unit * np.interp(costs / unit, at, like), costs)
        return np.asarray(LEVEL - SLOPE * np.log(same / 1e6))

    test = comparison.cheaper(with_losses(plain, arm, "total", dearer), arm, "total")
    assert test.p_for == 1.0
    assert test.p_against < 1e-2
    test = comparison.cheaper(with_losses(plain, arm, "continued", flatter), arm, "continued")
    assert test.high < 0
    assert (test.p_for, test.p_against, test.why) == (1.0, 1.0, "the mean is a bound (at least)")


def test_the_compute_saved_by_hand(holds: Evidence) -> None:
    """Of arms that are dearer throughout: what they do not reach counts with all that they spent."""
    results = holds.results[holds.results["task"] == "shakespeare"]
    for arm in MISSION:
        twin = f"{arm.partition('/')[0]}/scratch"
        curves = {
            (name, seed): rows.sort_values("flops")[["flops", "loss"]].to_numpy(float)
            for name in (arm, twin)
            for seed, rows in results[results["arm"] == name].groupby("seed")
        }
        scratch = [curves[twin, seed] for seed in range(5)]
        cost = max(points[-1, 0] for (name, _), points in curves.items() if name == arm)
        easiest = min(points[0, 1] for points in scratch)
        hardest = max(np.interp(np.log(cost), np.log(points[:, 0]), points[:, 1]) for points in scratch)
        targets = np.exp(np.linspace(np.log(easiest), np.log(hardest), 25))
        targets = targets[targets < min(curves[arm, seed][0, 1] for seed in range(5))]  # not below at once
        saved = []
        for seed in range(5):
            mine, other = (
                [np.interp(-t, -points[:, 1], np.log(points[:, 0])) for t in targets]
                for points in (curves[arm, seed], curves[twin, seed])
            )
            saved.append(np.mean(np.subtract(mine, other)))
        test = comparison.cheaper(holds.language, arm, "total")
        assert test.effect == pytest.approx(np.mean(saved), rel=1e-9)
        assert test.p_for == 1.0
        assert test.p_against == pytest.approx(scipy_stats.ttest_1samp(saved, 0).pvalue, rel=1e-6)


def test_the_losses_to_reach_are_set_by_scratch_up_to_what_the_arm_costs(holds: Evidence) -> None:
    text, arm = holds.language, "transformer/zero_pad"
    theirs, mine = text.rows("transformer/scratch"), text.rows(arm)
    easy, hard = comparison.passed(theirs, mine, "flops") or (np.nan, np.nan)
    cost = float(mine["flops"].max())
    at = [
        np.interp(np.log(cost), np.log(rows["flops"].to_numpy(float)), rows["loss"].to_numpy(float))
        for _, rows in theirs.sort_values("flops").groupby("seed")
    ]
    assert easy == theirs[theirs["budget"] == SCRATCH_POINTS[0]]["loss"].min()
    assert hard == pytest.approx(max(at))
    assert comparison.passed(theirs[theirs["flops"] > cost], mine, "flops") is None


# --- rates of error --------------------------------------------------------------------------------------------------


def p_values(values: np.ndarray) -> Mapping[str, np.ndarray]:
    """p of every rule, of differences (studies, seeds), by the real functions."""
    frame = pd.DataFrame(
        {"effect": values.mean(1), "se": values.std(1, ddof=1) / np.sqrt(values.shape[1]), "df": values.shape[1] - 1.0}
    )
    two = stats.superiority(frame)["p"].to_numpy()
    lower = np.where(frame["effect"] < 0, two, 1.0)
    over, under = (frame.assign(effect=frame["effect"] + shift) for shift in (-stats.MARGIN, stats.MARGIN))
    above = stats.superiority(over, alternative="greater")["p"].to_numpy()
    below = stats.superiority(under, alternative="less")["p"].to_numpy()
    return {
        "two": two,
        "lower": lower,
        "higher": np.where(frame["effect"] > 0, two, 1.0),
        "equal": stats.equivalence(frame)["p"].to_numpy(),
        "outside": np.minimum(1, 2 * np.minimum(above, below)),
        "not_above": stats.noninferiority(frame)["p"].to_numpy(),
        "above": above,
        "not_below": stats.superiority(under, alternative="greater")["p"].to_numpy(),
    }


def simulated(studies: int, margin: float, draw: int) -> list[dict[str, Claim]]:
    """Studies in which no arm differs from another, but that equality claims lie at the margin given.

    Arms of a seed share its luck; every arm has noise of its own, and what two comparisons have in common they share.
    """
    rng = np.random.default_rng(draw)
    names = ["scratch", "zero_pad", "net2net", "orthogonal", "tokens", "plain", "rotated", "attention", "ffn", "layer"]
    names += [
        "hyperclone",
        "stack",
        "tokens_ffn",
        "base",
        "nonlinearity",
        "placement",
        "both",
        "residual",
        "source",
        "small",
    ]
    luck = 0.01 * rng.standard_normal((studies, 1, 5))
    losses = dict(
        zip(names, np.moveaxis(luck + 0.002 * rng.standard_normal((studies, len(names), 5)), 1, 0), strict=True)
    )

    def found(*weighted: tuple[float, str], off: float = 0.0) -> Mapping[str, np.ndarray]:
        return p_values(sum(weight * losses[name] for weight, name in weighted) + off)

    def against(a: str, b: str, off: float = 0.0) -> Mapping[str, np.ndarray]:
        return found((1, a), (-1, b), off=off)

    Rows = list[claim.Test]

    def tests(p: Mapping[str, np.ndarray], for_: str, not_: str) -> Rows:
        return [tried(float(a), float(b)) for a, b in zip(p[for_], p[not_], strict=True)]

    def each(rule: Callable[..., Finding], *columns: Rows) -> list[Finding]:
        return [rule(*row) for row in zip(*columns, strict=True)]

    grown = ("zero_pad", "net2net", "orthogonal", "tokens")
    total = each(claim.some, *(tests(against(arm, "scratch"), "lower", "not_below") for arm in grown))
    free = each(claim.some, *(tests(found((2, arm), (-2, "small")), "lower", "not_below") for arm in grown))
    best = ("net2net", "tokens")
    members = [
        [
            claim.joined("", f)
            for f in each(claim.every, *(tests(against(arm, other), "lower", "higher") for other in best))
        ]
        for arm in ("hyperclone", "stack", "rotated")
    ]
    moved = each(
        claim.all_or_none, *(tests(against("plain", other, margin), "outside", "equal") for other in ("base", "both"))
    )
    columns: dict[str, list[Finding]] = {
        "cost": total,
        "destination": each(claim.every, *(tests(against("scratch", arm), "lower", "higher") for arm in grown)),
        "sunk-cost": [
            claim.every(claim.joined("", a, turned=True), claim.joined("", b)) for a, b in zip(total, free, strict=True)
        ],
        "same-operation": each(claim.every, tests(against("tokens_ffn", "ffn", margin), "equal", "outside")),
        "novelty": each(
            claim.every,
            tests(
                found((1, "both"), (-1, "nonlinearity"), (-1, "placement"), (1, "base"), off=margin), "equal", "outside"
            ),
        ),
        "scale": [
            claim.every(claim.joined("", a), b)
            for a, b in zip(moved, tests(against("rotated", "base", margin), "equal", "outside"), strict=True)
        ],
        "orthogonal": each(
            claim.every, *(tests(against("rotated", pad), "lower", "higher") for pad in ("zero_pad", "plain"))
        ),
        "capacity": each(
            claim.every,
            tests(against("residual", "source"), "lower", "higher"),
            tests(against("ffn", "source"), "higher", "lower"),
        ),
        "baseline": each(claim.every, tests(against("small", "base"), "two", "equal")),
        "family": each(claim.some, *members),
        "partial": each(
            claim.every,
            *(tests(against(part, "zero_pad", margin), "not_above", "above") for part in ("ffn", "attention", "layer")),
        ),
    }
    assert tuple(columns) == NAMES
    return [{name: Planted(finding=column[i]) for name, column in columns.items()} for i in range(studies)]


def at_most(count: int, of: int, rate: float) -> bool:
    """Whether a count of errors is what a rate of at most that would give, up to one chance in a thousand."""
    return scipy_stats.binomtest(count, of, rate, alternative="greater").pvalue > 1e-3


def test_all_claims_together_err_as_rarely_as_said() -> None:
    studies = 500
    found = [claim.decide(study, NONE) for study in simulated(studies, stats.MARGIN * 1.02, draw=1)]
    # Contradicting these is right.
    true_against = {"cost", "sunk-cost", "same-operation", "novelty", "scale", "baseline", "partial"}
    supported = sum(any(d.verdict == "supported" for d in study if d.claim != "scale") for study in found)
    contradicted = sum(
        any(d.verdict == "contradicted" for d in study if d.claim not in true_against) for study in found
    )
    assert at_most(supported, studies, 0.05), supported
    assert at_most(contradicted, studies, 0.05), contradicted
    baseline = sum(d.verdict == "supported" for study in found for d in study if d.claim == "baseline")
    assert at_most(baseline, studies, 0.05), baseline


@pytest.mark.parametrize(
    ("rule", "mean"), [("two", 0.0), ("equal", stats.MARGIN), ("not_above", stats.MARGIN), ("not_below", -stats.MARGIN)]
)
def test_a_rule_alone_errs_at_its_level(rule: str, mean: float) -> None:
    """Unadjusted, at the end of what it denies: neither above alpha nor far below."""
    noise = 0.002 * np.random.default_rng(2).standard_normal((4000, 5))
    count = int((p_values(mean + noise)[rule] < 0.05).sum())
    assert scipy_stats.binomtest(count, 4000, 0.05).pvalue > 1e-3, count


def test_where_nothing_differs_equality_is_seen_and_difference_is_not() -> None:
    found = [verdicts(claim.decide(study, NONE)) for study in simulated(100, 0.0, draw=3)]
    assert sum(study["baseline"] == "supported" for study in found) <= 5
    assert sum(study["baseline"] == "contradicted" for study in found) > 10
    assert sum(study["partial"] == "supported" for study in found) > 10
    assert not any(study["same-operation"] == "contradicted" for study in found)


def test_a_study_in_which_nothing_differs(holds: Evidence) -> None:
    found = only(evidence(World(noise=0.001, draw=5)), "same-operation", "novelty", "baseline", "partial", "orthogonal")
    assert {name: d.verdict for name, d in found.items()} == {
        "same-operation": "supported",
        "novelty": "supported",
        "baseline": "contradicted",
        "partial": "supported",
        "orthogonal": "undecided",
    }
    assert found["orthogonal"].missing == "a clearer effect: neither adjusted p is below 0.05"


# --- plugins and the command -----------------------------------------------------------------------------------------

MINE = '''
from dataclasses import dataclass
from typing import ClassVar

from growbench.claim import Claim, Finding, every
from growbench.comparison import below
from growbench.evidence import Evidence


@dataclass(frozen=True, kw_only=True)
class Mine(Claim):
    """A zero pad ends below scratch.

    More words.
    """

    number: ClassVar[int] = 50

    def find(self, evidence: Evidence) -> Finding:
        evidence = evidence.language
        arm = evidence.arm("zero_pad", placement="ffn")
        return every(below(evidence, arm, evidence.scratch(arm)))
'''
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def growbench_(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: its exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["growbench", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        code = exit_.value.code
        return code if isinstance(code, int) else 0, captured.out, captured.err

    return run


@dataclass(frozen=True, kw_only=True)
class Toys:
    """A toy study run on seeds 0 to 2, and on seeds 3 and 4 into another folder; and a claim of a user's."""

    first: Path
    second: Path
    mine: Path


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    here = tmp_path_factory.mktemp("claims")
    study = toy.study(here, strategies=["scratch", "zero_pad"], seeds=3, budget={"points": [1.0]})
    for seeds, name in ((study, "first"), (study.at(seeds=2, first_seed=3), "second")):
        planned = make_plan(seeds)
        toy.work(planned, here / name)
        (here / name / tables.PLAN).write_text(json.dumps(planned.to_dict()), encoding="utf-8")
    return Toys(first=here / "first", second=here / "second", mine=toy.plugin(here, "my_claim", MINE))


def strict(text: str) -> Any:
    """JSON as the standard has it: without NaN."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_a_user_s_claim_is_listed_and_decided(growbench_: Run, toys: Toys) -> None:
    code, out, _ = growbench_("list", "--plugin", toys.mine, "--json")
    row = {row["name"]: row for row in json.loads(out)["claims"]}["my_claim"]
    assert (code, row["about"]) == (0, "A zero pad ends below scratch.")
    code, out, _ = growbench_("claims", toys.first, "--plugin", toys.mine, "--json")
    found = strict(out)
    assert code == 0
    assert [row["claim"] for row in found["claims"]] == [*NAMES, "my-claim"]
    mine = found["claims"][-1]
    assert mine["statement"] == "A zero pad ends below scratch."
    assert (mine["verdict"], mine["p_for"], mine["low"]) == ("undecided", None, None)
    assert isinstance(mine["effect"], float)
    assert re.fullmatch(r"the study is not tuned; .*screening: 3 seeds, and a test needs 5", mine["missing"])
    tests = [row for row in found["tests"] if row["claim"] == "my-claim"]
    assert [(row["n"], row["decides"]) for row in tests] == [(3, True), (3, True)]
    assert tests[0]["rows"] == "transformer/zero_pad, transformer/scratch"
    assert {row["missing"] for row in found["claims"] if row["claim"] == "capacity"} == {"it needs the task rank"}


def test_the_command_in_words(growbench_: Run, toys: Toys) -> None:
    code, out, err = growbench_("claims", toys.first)
    assert (code, err) == (0, "")
    assert all(re.search(rf"^{name} +undecided", out, re.MULTILINE) for name in NAMES)
    assert "transformer/zero_pad ends below transformer/scratch" not in out
    code, out, _ = growbench_("claims", toys.first, "--tests", "--plugin", toys.mine)
    assert "transformer/zero_pad ends below transformer/scratch" in out


def test_seeds_of_two_folders_are_one_study(growbench_: Run, toys: Toys) -> None:
    code, out, _ = growbench_("claims", toys.first, toys.second, "--plugin", toys.mine, "--json")
    found = strict(out)
    mine = found["claims"][-1]
    assert (code, mine["verdict"], mine["missing"]) == (0, "undecided", "the study is not tuned")
    assert isinstance(mine["low"], float)
    assert [row["n"] for row in found["tests"] if row["claim"] == "my-claim"] == [5, 5]


def test_a_folder_without_results_is_one_sentence(growbench_: Run, tmp_path: Path) -> None:
    for folder, said in ((tmp_path, f"{tmp_path} holds no study"), (tmp_path / "x", "there is no folder")):
        code, out, err = growbench_("claims", folder)
        assert (code, out) == (2, "")
        assert said in err
        assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (MINE.replace("ClassVar[int] = 50", "ClassVar[int] ="), "cannot be read: line"),
        (MINE.replace("from typing", "import no_such_module; from typing"), "cannot be imported: ModuleNotFoundError"),
        (MINE.replace("def find", "def seek"), "cannot be used: TypeError: Can't instantiate abstract class Mine"),
        (MINE.replace("class Mine(Claim)", "class Mine(Finding)"), "is no growbench.claim.Claim: derive its class"),
    ],
)
def test_a_broken_claim_is_one_sentence(growbench_: Run, toys: Toys, tmp_path: Path, source: str, said: str) -> None:
    broken = toy.plugin(tmp_path, "broken", source)
    code, out, err = growbench_("claims", toys.first, "--plugin", broken)
    assert (code, out) == (2, "")
    assert "'broken'" in err
    assert said in err
    assert err.count("\n") == 1


def test_a_claim_that_raises_does_not_lose_the_others(growbench_: Run, toys: Toys, tmp_path: Path) -> None:
    source = MINE.replace("evidence = evidence.language", "print('hello'); raise ZeroDivisionError('by zero')")
    code, out, err = growbench_("claims", toys.first, "--plugin", toy.plugin(tmp_path, "rash", source), "--json")
    rows = strict(out)["claims"]
    assert code == 0
    assert "hello" in err
    assert [row["claim"] for row in rows] == [*NAMES, "rash"]
    assert rows[-1]["missing"] == "the claim rash failed: ZeroDivisionError: by zero"


def test_of_measures_some_tasks_may_have_no_noise(holds: Evidence) -> None:
    """A task whose seeds agree is known exactly, and takes no test from the others."""
    noise = 1e-5 * np.array([1.0, -2.0, 0.5, 3.0, 1.5])
    both = pd.concat([differences([0.0] * 5), differences(noise).assign(task="pycode")])
    test = comparison.equal(holds, "x", RULED, both, measured=True)
    n, se = 5, noise.std(ddof=1) / np.sqrt(5) / 2
    expected = scipy_stats.t.sf((np.log(1.005) - noise.mean() / 2) / se, n - 1)
    assert test.p_for == pytest.approx(expected, rel=1e-6)
    assert (test.p_against, test.why) == (1.0, "")
    assert comparison.equal(holds, "x", RULED, both).why.startswith("shakespeare: the seeds do not differ")
