"""Statistics against values from elsewhere: published data, scipy's own tests, enumeration, and simulations whose rates
are asserted with their own binomial error."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize
from scipy import stats as reference

from growbench import stats
from growbench.results import RESULTS

# Student (1908): hours of sleep gained with two drugs, the same ten patients.
SLEEP = np.array([0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0])
SLEEP_ALSO = np.array([1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4])

# Darwin (1876): heights of crossed less self-fertilised maize, in eighths of an inch; Fisher (1935) enumerated signs.
MAIZE = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], dtype="float64")


def frame(values: np.ndarray, task: str = "a", **columns: Any) -> pd.DataFrame:
    """Per-seed differences of one task."""
    return pd.DataFrame({"task": task, "seed": range(len(values)), "difference": values} | columns)


def replicates(values: np.ndarray) -> pd.DataFrame:
    """Differences (replicates, seeds), each replicate as a task: one call tests them all."""
    count, seeds = values.shape
    task, seed = np.repeat(np.arange(count), seeds), np.tile(np.arange(seeds), count)
    return pd.DataFrame({"task": task, "seed": seed, "difference": values.ravel()})


def result(arm: str, seed: int, loss: float, **other: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"arm": arm, "task": "a", "seed": seed, "loss": loss, "status": "ok", "rung": 1}
    row |= {"architecture": "transformer", "matched": True, "data_fingerprint": "9f", "budget": 1000, "tokens": 1000}
    return row | {"params_non_embedding": 20_000, "flops": 1e9} | other


def results(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=list(RESULTS))
    return table.astype({name: column.dtype for name, column in RESULTS.items()})


def arms(losses: Mapping[str, Sequence[float] | np.ndarray]) -> pd.DataFrame:
    """Results of arms by their losses in order of seeds."""
    return results([result(arm, i, x) for arm, row in losses.items() for i, x in enumerate(row)])


def diverge(table: pd.DataFrame, row: int, tokens: int = 300) -> pd.DataFrame:
    """Results with one run that diverged after some tokens."""
    index = np.arange(len(table)) == row
    return table.assign(
        status=table["status"].mask(index, "diverged"),
        loss=table["loss"].mask(index, math.log(256)),
        tokens=table["tokens"].mask(index, tokens),
    )


def set_for(table: pd.DataFrame, arm: str, column: str, value: object) -> pd.DataFrame:
    return table.assign(**{column: table[column].mask(table["arm"] == arm, value)})


def at_rate(hits: np.ndarray, rate: float) -> bool:
    """Whether a share of independent hits lies within 3.3 binomial standard errors of a rate (1 in 1000 does not)."""
    return abs(float(hits.mean()) - rate) < 3.3 * math.sqrt(rate * (1 - rate) / len(hits))


# --- one contrast -----------------------------------------------------------------------------------------------------


def test_students_sleep_data() -> None:
    row = stats.contrast(frame(SLEEP_ALSO - SLEEP)).iloc[0]
    assert (row["n"], row["df"]) == (10, 9)
    assert row["effect"] == pytest.approx(1.58)
    assert row["effect"] / row["se"] == pytest.approx(4.0621, abs=5e-5)
    assert row["p"] == pytest.approx(0.002833, abs=5e-7)
    assert (row["low"], row["high"]) == (pytest.approx(0.7001142, abs=5e-8), pytest.approx(2.4598858, abs=5e-8))
    assert row["why"] == row["why_sign"] == row["missing"] == row["bound"] == ""


def test_darwins_maize_as_fisher_enumerated_it() -> None:
    assert stats.sign_flip(MAIZE) == 2 * 863 / 2**15
    row = stats.contrast(frame(MAIZE)).iloc[0]
    assert row["p_sign"] == 2 * 863 / 2**15
    assert row["p"] == pytest.approx(0.0497, abs=5e-5)


losses = st.lists(st.tuples(st.floats(0.5, 5), st.floats(0.5, 5)), min_size=6, max_size=10)


@settings(max_examples=25)
@given(losses)
def test_paired_is_scipys_test_of_log_losses(found: list[tuple[float, float]]) -> None:
    a, b = np.array(found).T
    if np.std(np.log(a / b)) < 1e-6:
        return
    row = stats.paired(arms({"x": a, "scratch": b}), "x", "scratch").iloc[0]
    test = reference.ttest_rel(np.log(a), np.log(b))
    interval = test.confidence_interval()
    assert [row["p"], row["low"], row["high"]] == pytest.approx([test.pvalue, interval.low, interval.high], rel=1e-6)
    assert row["sd"] == pytest.approx(np.std(np.log(a / b), ddof=1))
    if np.ptp(a) > 1e-6 < np.ptp(b):
        assert row["correlation"] == pytest.approx(np.corrcoef(a, b)[0, 1], abs=1e-6)


@given(st.lists(st.sampled_from([-2.0, -1.0, 0.0, 0.1, 0.7, 1.0, 3.3]), min_size=6, max_size=9))
def test_sign_flip_is_the_enumeration_ties_included(values: list[float]) -> None:
    sums = [
        abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in product((1, -1), repeat=len(values))
    ]
    assert stats.sign_flip(np.array(values)) == np.mean(np.array(sums) >= abs(sum(values)) - 1e-9)


def test_sign_flip_is_shown_only_where_it_can_be_significant() -> None:
    five, six = (stats.contrast(frame(np.arange(1.0, n + 1))).iloc[0] for n in (5, 6))
    assert math.isnan(five["p_sign"])
    assert five["why_sign"] == "the smallest p that 5 seeds allow is 0.0625"
    assert six["p_sign"] == 2 / 2**6
    assert stats.contrast(frame(np.arange(1.0, 6)), alpha=0.1)["p_sign"].item() == 2 / 2**5


@pytest.mark.parametrize("seeds", [1, 2, 3, 4])
def test_few_seeds_are_screening(seeds: int) -> None:
    row = stats.contrast(frame(np.arange(1.0, seeds + 1))).iloc[0]
    assert row["effect"] == (seeds + 1) / 2
    assert row[["se", "df", "low", "high", "p", "p_sign", "detectable"]].isna().all()
    assert row["why"].startswith("screening")
    assert row["why"] == row["why_sign"]


def test_seeds_that_do_not_differ_have_no_t_test() -> None:
    row = stats.contrast(frame(np.full(6, 0.25))).iloc[0]
    assert math.isnan(row["p"])
    assert "do not differ" in row["why"]
    assert row["p_sign"] == 2 / 2**6


def test_minimum_detectable_effect_of_the_protocol_and_of_power_tables() -> None:
    def effect(n: int) -> float:
        return stats.minimum_detectable(1 / math.sqrt(n), n - 1)

    assert (round(effect(5), 1), round(effect(10), 1)) == (1.7, 1.0)
    assert effect(33) > 0.5 > effect(34)  # Cohen's d = 0.5 needs 34 pairs
    assert effect(199) > 0.2 - 5e-4  # and d = 0.2 needs 199
    assert effect(199) <= 0.2


@pytest.mark.parametrize("seeds", [5, 10])
def test_a_known_effect_is_seen_as_often_as_said_and_none_as_rarely(seeds: int) -> None:
    noise = np.random.default_rng(seeds).standard_normal((400, seeds))
    none = stats.contrast(replicates(noise))
    assert at_rate(none["p"].to_numpy() < 0.05, 0.05)
    assert at_rate((none["low"] * none["high"]).to_numpy() > 0, 0.05)
    shift = stats.minimum_detectable(1 / math.sqrt(seeds), seeds - 1)
    assert at_rate(stats.contrast(replicates(noise + shift))["p"].to_numpy() < 0.05, 0.80)


def test_the_sign_flip_test_errs_at_its_level_whatever_the_distribution() -> None:
    heavy = np.random.default_rng(1).standard_cauchy((400, 8))
    p = stats.contrast(replicates(heavy))["p_sign"].to_numpy()
    assert at_rate(p < 0.05, 12 / 256)  # the largest attainable level below .05


def test_one_diverged_run_leaves_the_sign_flip_test_alone() -> None:
    for seeds in (5, 6):
        table = arms({"x": [2.0 + 0.01 * i for i in range(seeds)], "scratch": [1.9] * seeds})
        row = stats.paired(diverge(table, 2), "x", "scratch").iloc[0]
        assert row["unscored"] == 1
        assert row["why"] == "1 run did not finish: only the sign-flip test holds"
        assert row[["se", "df", "low", "high", "p", "detectable"]].isna().all()
        assert row["effect"] > 0.2  # the worst score counts
        assert (row["p_sign"] == 2 / 2**6) if seeds == 6 else math.isnan(row["p_sign"])


def test_pairing_gains_where_seeds_are_correlated() -> None:
    rng = np.random.default_rng(3)
    luck = rng.normal(0, 0.02, 10)
    a, b = 2 + luck + rng.normal(0, 0.002, 10), 2.006 + luck + rng.normal(0, 0.002, 10)
    row = stats.paired(arms({"x": a, "scratch": b}), "x", "scratch").iloc[0]
    assert row["correlation"] > 0.95
    assert row["p"] < 0.001 < 0.2 < reference.ttest_ind(np.log(a), np.log(b)).pvalue
    assert row["detectable"] < 0.003


def test_correlation_is_of_runs_that_finished() -> None:
    a, b = np.array([2.0, 2.1, 2.3, 2.2, 2.6, 2.4]), np.array([1.9, 2.1, 2.2, 2.2, 2.4, 2.5])
    row = stats.paired(diverge(arms({"x": a, "scratch": b}), 2), "x", "scratch").iloc[0]
    kept = np.arange(6) != 2
    assert row["correlation"] == pytest.approx(np.corrcoef(a[kept], b[kept])[0, 1])


def test_a_missing_seed_is_named() -> None:
    table = arms({"x": [2.0, 2.1, 2.2, 2.3, 2.4, 2.5], "scratch": [1.9, 2.0, 2.0, 2.0, 2.1, 2.1]})
    row = stats.paired(table.drop(index=[1, 4, 9]), "x", "scratch").iloc[0]
    assert row["n"] == 3
    assert row["missing"] == "scratch lacks seed 3; x lacks seed 1, 4"


def test_contrasts_of_four_arms() -> None:
    rng = np.random.default_rng(0)
    values = {name: 2 + rng.random(6) for name in "abcd"}
    table = arms(values)
    difference = stats.combine((1, stats.pairs(table, "a", "b")), (-1, stats.pairs(table, "c", "d")))
    a, b, c, d = (np.log(values[name]) for name in "abcd")
    assert stats.contrast(difference)["p"].item() == pytest.approx(reference.ttest_1samp(a - b - c + d, 0).pvalue)
    short = stats.combine((1, stats.pairs(table, "a", "b")), (-1, stats.pairs(table.drop(index=[14]), "c", "d")))
    assert stats.contrast(short)["missing"].item() == "c lacks seed 2"


# --- what cannot be compared ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [("budget", 900), ("tokens", 999), ("params_non_embedding", 20_201), ("data_fingerprint", "a0")],
)
def test_unequal_rows_are_refused_by_name(column: str, value: object) -> None:
    table = set_for(arms({"x": [2.0] * 5, "scratch": [1.9] * 5}), "x", column, value)
    with pytest.raises(ValueError, match=f"x has {column} {value}, scratch has .*a, seed 0") as error:
        stats.paired(table, "x", "scratch")
    assert "seed 4" in str(error.value)
    shorter = [name for name in stats.EQUAL if name != column]
    assert len(stats.pairs(table, "x", "scratch", equal=shorter)) == 5


def test_sizes_within_one_percent_and_the_tokens_of_a_diverged_run_are_not_refused() -> None:
    table = set_for(arms({"x": [2.0] * 5, "scratch": [1.9] * 5}), "x", "params_non_embedding", 20_200)
    assert stats.pairs(diverge(table, 0), "x", "scratch")["unscored"].tolist() == [1, 0, 0, 0, 0]


def test_other_bad_input_is_refused() -> None:
    table = arms({"x": [2.0] * 5, "scratch": [1.9] * 5})
    with pytest.raises(ValueError, match="no row is of the arm y: name one of scratch, x"):
        stats.pairs(table, "y", "scratch")
    with pytest.raises(ValueError, match="x has more than one row at its budget: a, seed 0"):
        stats.pairs(pd.concat([table, table.iloc[:1]]), "x", "scratch")
    with pytest.raises(ValueError, match="excess_loss has no logarithm in these rows: x, a, seed 0"):
        stats.pairs(table.assign(excess_loss=-0.1), "x", "scratch", metric="excess_loss")
    other = table.assign(data_fingerprint="a0")
    with pytest.raises(ValueError, match="different data: a, seed 0"):
        stats.combine((1, stats.pairs(table, "x", "scratch")), (-1, stats.pairs(other, "x", "scratch")))


def test_the_full_budget_is_that_of_the_largest_matched_size() -> None:
    rows = [result("x", i, 2.0, budget=b, tokens=b) for i in range(5) for b in (500, 1000)]
    rows += [result("scratch", i, 1.9) for i in range(5)]
    rows += [
        result("continue", i, 2.1, budget=b, tokens=b, matched=False, rung=0) for i in range(5) for b in (1000, 4000)
    ]
    rows += [result("scratch@0", i, 2.1, budget=b, tokens=b, rung=0) for i in range(5) for b in (1000, 2000)]
    table = results(rows)
    assert stats.full_budget(table) == 1000
    assert len(stats.pairs(table, "x", "continue")) == 5
    with pytest.raises(ValueError, match="x has budget 500, scratch has 1000"):
        stats.pairs(table[(table["arm"] != "x") | (table["budget"] == 500)], "x", "scratch")


# --- tests across tasks, of equality, and one-sided -------------------------------------------------------------------


def test_two_tasks_are_welchs_test_with_one_sign_turned() -> None:
    rng = np.random.default_rng(5)
    a, b = rng.normal(0.01, 0.01, 6), rng.normal(0.03, 0.05, 9)
    row = stats.across_tasks(stats.contrast(pd.concat([frame(a, "a"), frame(b, "b")]))).iloc[0]
    test = reference.ttest_ind(a, -b, equal_var=False)
    interval = test.confidence_interval()
    assert (row["df"], row["p"]) == (pytest.approx(test.df), pytest.approx(test.pvalue))
    assert [2 * row["low"], 2 * row["high"]] == pytest.approx([interval.low, interval.high])


def test_across_tasks_covers_as_said_with_unequal_noise() -> None:
    rng = np.random.default_rng(6)
    inside = []
    tested = stats.contrast(replicates(rng.standard_normal((600, 5)) * np.tile([1.0, 3.0, 0.3], 200)[:, None]))
    for start in range(0, 600, 3):
        row = stats.across_tasks(tested[start : start + 3]).iloc[0]
        inside.append(row["low"] < 0 < row["high"])
    assert at_rate(np.array(inside), 0.95)


def test_across_tasks_says_which_task_has_no_test() -> None:
    table = stats.contrast(pd.concat([frame(np.arange(1.0, 7), "a"), frame(np.arange(1.0, 4), "b")]))
    row = stats.across_tasks(table).iloc[0]
    assert row["effect"] == pytest.approx((3.5 + 2) / 2)
    assert math.isnan(row["p"])
    assert row["why"].startswith("b: screening: 3 seeds")


rows_tested = st.builds(
    lambda effect, se, df: pd.DataFrame({"effect": [effect], "se": [se], "df": [df]}),
    st.floats(-0.02, 0.02),
    st.floats(1e-4, 0.02),
    st.floats(1, 30),
)


@given(rows_tested, st.sampled_from([0.01, 0.05, 0.2]))
def test_an_interval_decides_as_its_p_does(row: pd.DataFrame, alpha: float) -> None:
    alternatives: list[Literal["two-sided", "less", "greater"]] = ["two-sided", "less", "greater"]
    for alternative in alternatives:
        found = stats.superiority(row, alternative=alternative, alpha=alpha).iloc[0]
        assert (found["p"] < alpha) == (not found["low"] <= 0 <= found["high"])
    same = stats.equivalence(row, alpha=alpha).iloc[0]
    assert (same["p"] < alpha) == (max(-same["low"], same["high"]) < stats.MARGIN)
    no_worse = stats.noninferiority(row, alpha=alpha).iloc[0]
    assert (no_worse["p"] < alpha) == (no_worse["high"] < stats.MARGIN)


def test_one_sided_tests_are_scipys() -> None:
    values = np.array([0.001, -0.002, 0.003, 0.0005, 0.001, -0.001])
    row = stats.contrast(frame(values))
    below = reference.ttest_1samp(values, stats.MARGIN, alternative="less").pvalue
    above = reference.ttest_1samp(values, -stats.MARGIN, alternative="greater").pvalue
    assert stats.noninferiority(row)["p"].item() == pytest.approx(below)
    assert stats.equivalence(row)["p"].item() == pytest.approx(max(below, above))
    less = reference.ttest_1samp(values, 0, alternative="less")
    assert stats.superiority(row, alternative="less")["p"].item() == pytest.approx(less.pvalue)
    assert stats.superiority(row, alternative="less")["high"].item() == pytest.approx(
        less.confidence_interval(0.95).high
    )


def test_equivalence_errs_at_its_level_at_the_margin() -> None:
    at_margin = stats.MARGIN + np.random.default_rng(8).normal(0, 0.001, (600, 5))
    row = stats.contrast(replicates(at_margin))
    assert at_rate(stats.equivalence(row)["p"].to_numpy() < 0.05, 0.05)
    assert at_rate(stats.noninferiority(row)["p"].to_numpy() < 0.05, 0.05)


# --- many arms --------------------------------------------------------------------------------------------------------


def test_holm_as_in_the_textbook() -> None:
    p = pd.Series([0.01, 0.04, 0.03, 0.005], index=list("abcd"))
    assert stats.holm(p).to_dict() == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert stats.holm(p, family=6)["d"] == pytest.approx(0.03)
    with_missing = stats.holm(pd.Series([0.02, np.nan, 0.03]))
    assert with_missing.isna().tolist() == [False, True, False]
    assert with_missing.dropna().tolist() == pytest.approx([0.04, 0.04])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.001, 0.5))
def test_holm_rejects_what_its_steps_reject(values: list[float], alpha: float) -> None:
    rejected: set[int] = set()
    for step, i in enumerate(np.argsort(values, kind="stable")):  # Holm's procedure, as he states it
        if values[i] * (len(values) - step) >= alpha:
            break
        rejected.add(int(i))
    adjusted = stats.holm(pd.Series(values))
    assert set(adjusted.index[adjusted < alpha]) == rejected


def test_tie_groups_of_planted_arms() -> None:
    rng = np.random.default_rng(2)
    centre = {"far": 2.5, "near": 2.002, "best": 2.0, "noisy": 2.1}
    spread = {"far": 0.001, "near": 0.004, "best": 0.004, "noisy": 0.9}
    table = arms({name: (centre[name] + spread[name] * rng.standard_normal(10)).clip(1) for name in centre})
    found = stats.tie_groups(table, list(centre))
    letters = dict(zip(found["arm"], found["letters"], strict=True))
    assert found["loss"].is_monotonic_increasing
    assert letters == {"best": "a", "near": "a", "noisy": "ab", "far": "b"}


def test_tie_groups_without_tests_say_why() -> None:
    found = stats.tie_groups(arms({"x": [2.0, 2.1, 2.2], "y": [2.5, 2.6, 2.8], "z": [1.0, 1.1, 1.3]}), ["x", "y", "z"])
    assert found["arm"].tolist() == ["z", "x", "y"]
    assert found["letters"].tolist() == ["a", "a", "a"]
    assert all("screening" in why for why in found["why"])


def test_an_arm_with_a_diverged_run_is_told_apart_by_the_sign_flip_test_alone() -> None:
    for seeds, letters, why in (
        (6, ["a", "b"], ""),
        (5, ["a", "a"], "the smallest p that 5 seeds allow is 0.0625"),
    ):
        table = arms({"x": [2.0 + 0.01 * i for i in range(seeds)], "y": [1.9] * seeds})
        found = stats.tie_groups(diverge(table, 0), ["x", "y"])
        assert found["arm"].tolist() == ["y", "x"]
        assert found["letters"].tolist() == letters
        assert found["unscored"].tolist() == [0, 1]
        assert found["why"].tolist() == [why, why]


@given(st.lists(st.booleans(), min_size=15, max_size=15))
def test_letters_are_the_largest_sets_that_nothing_tells_apart(edges: list[bool]) -> None:
    from growbench.stats.arms import _largest_alike

    names = list("abcdef")
    differ = {frozenset(pair) for pair, drawn in zip(combinations(names, 2), edges, strict=True) if drawn}
    alike = [
        frozenset(group)
        for size in range(1, 7)
        for group in combinations(names, size)
        if not any(frozenset(pair) in differ for pair in combinations(group, 2))
    ]
    largest = {group for group in alike if not any(group < other for other in alike)}
    assert set(_largest_alike(names, [tuple(sorted(pair)) for pair in differ])) == largest  # type: ignore[misc]


def test_performance_profiles_are_distribution_functions() -> None:
    values = np.arange(1, 21) / 20
    table = frame(values, arm="x")
    found = stats.performance_profile(table, thresholds=[0.0, 0.25, 0.5, 1.0], draws=20_000)
    quantiles = [[reference.binom.ppf(level, 20, share) / 20 for share in (0.25, 0.5)] for level in (0.025, 0.975)]
    assert found["share"].tolist() == [0.0, 0.25, 0.5, 1.0]
    assert found["low"].tolist() == pytest.approx([0, *quantiles[0], 1])
    assert found["high"].tolist() == pytest.approx([0, *quantiles[1], 1])
    assert not found["few"].any()
    both = pd.concat([table, frame(values[:9] + 1, "b", arm="x")])
    found = stats.performance_profile(both, thresholds=[1.0])
    assert found[["share", "seeds", "few"]].iloc[0].tolist() == [
        0.5,
        9,
        True,
    ]  # tasks count alike, whatever their seeds
    pd.testing.assert_frame_equal(found, stats.performance_profile(both, thresholds=[1.0]))


def test_friedman_on_rounding_times() -> None:
    # Hollander & Wolfe (1973): 22 players rounding first base in three ways.
    times = """5.40 5.50 5.55 5.85 5.70 5.75 5.20 5.60 5.50 5.55 5.50 5.40 5.90 5.85 5.70 5.45 5.55 5.60 5.40 5.40 5.35
    5.45 5.50 5.35 5.25 5.15 5.00 5.85 5.80 5.70 5.25 5.20 5.10 5.65 5.55 5.45 5.60 5.35 5.45 5.05 5.00 4.95 5.50 5.50
    5.40 5.45 5.55 5.50 5.55 5.55 5.35 5.45 5.50 5.55 5.50 5.45 5.25 5.65 5.60 5.40 5.70 5.65 5.55 6.30 6.30 6.25"""
    rows = [(f"t{i // 3:02}", f"m{i % 3}", float(x)) for i, x in enumerate(times.split())]
    table = pd.DataFrame(rows, columns=["task", "arm", "loss"])
    row = stats.friedman(table).iloc[0]
    assert (row["tasks"], row["arms"], row["why"]) == (22, 3, "")
    assert (row["statistic"], row["p"]) == (pytest.approx(11.1429, abs=5e-5), pytest.approx(0.003805, abs=5e-7))
    few = stats.friedman(table.head(21)).iloc[0]
    assert math.isnan(few["p"])
    assert few["why"] == "7 tasks, and the test needs 8"


# --- compute saved ----------------------------------------------------------------------------------------------------

COSTS = (1e9, 2e9, 4e9, 8e9)


def run(
    arm: str, seed: int, loss: Sequence[float], costs: Sequence[float] = COSTS, **other: Any
) -> list[dict[str, Any]]:
    points = enumerate(zip(loss, costs, strict=True))
    return [result(arm, seed, x, budget=1000 * 2**i, tokens=1000 * 2**i, flops=c, **other) for i, (x, c) in points]


def test_a_curve_shifted_in_cost_saves_that_factor_at_every_loss() -> None:
    rows = []
    for seed in range(5):
        loss = [3.0 - 0.01 * seed, 2.5, 2.2 + 0.02 * seed, 2.0]
        rows += run("scratch", seed, loss) + run("x", seed, loss, [0.7 * c for c in COSTS])
    curve = stats.compute_saved(results(rows), "x", "scratch")
    assert curve.groupby("seed").size().tolist() == [25] * 5
    assert curve["log_ratio"].to_numpy() == pytest.approx(math.log(0.7))
    assert (curve["bound"] == "").all()
    assert curve["target"].min() == 2.0
    assert curve["target"].max() == 2.96
    row = stats.contrast(stats.saved_by_seed(curve)).iloc[0]
    assert row["effect"] == pytest.approx(math.log(0.7))
    assert row["n"] == 5


def saved(x: Sequence[float], scratch: Sequence[float], targets: Sequence[float], **other: Any) -> pd.DataFrame:
    table = results(run("x", 0, x, **other) + run("scratch", 0, scratch))
    return stats.compute_saved(table, "x", "scratch", targets={"a": targets}).set_index("target")


def test_costs_between_points_are_read_off_in_log_cost_and_a_risen_loss_stays_reached() -> None:
    curve = saved([3.0, 2.4, 2.6, 2.0], [3.0, 2.8, 2.2, 2.0], [2.6, 2.4, 2.2])
    assert curve["arm_cost"].tolist() == pytest.approx([2e9 ** (2 / 3) * 1e9 ** (1 / 3), 2e9, 4e9 * 2**0.5])
    assert curve["baseline_cost"].tolist() == pytest.approx([2e9 * 2 ** (1 / 3), 2e9 * 2 ** (2 / 3), 4e9])


def test_what_is_not_reached_is_a_bound_in_the_right_direction() -> None:
    curve = saved([2.9, 2.7, 2.5, 2.3], [3.0, 2.8, 2.4, 2.1], [2.95, 2.6, 2.2, 2.0])
    assert curve["bound"].tolist() == ["at most", "", "at least", "unknown"]
    assert curve["arm_reach"].tolist() == ["before", "", "never", "never"]
    assert curve["in_range"].tolist() == [False, True, True, True]
    assert curve["arm_cost"].iloc[[0, 2, 3]].tolist() == [1e9, 8e9, 8e9]
    turned = saved([3.0, 2.8, 2.4, 2.1], [2.9, 2.7, 2.5, 2.3], [2.95, 2.6, 2.2, 2.0])
    assert turned["bound"].tolist() == ["at least", "", "at most", "unknown"]
    assert turned["log_ratio"].to_numpy() == pytest.approx(-curve["log_ratio"].to_numpy(), nan_ok=True)


def test_a_censored_seed_leaves_only_a_bound() -> None:
    rows = []
    for seed in range(6):
        end = 2.3 if seed == 3 else 1.9
        rows += run("scratch", seed, [3.0, 2.6, 2.3, 2.1]) + run("x", seed, [3.0, 2.6, 2.4, end])
    curve = stats.compute_saved(results(rows), "x", "scratch")
    by_seed = stats.saved_by_seed(curve)
    assert by_seed["bound"].tolist() == ["", "", "", "at least", "", ""]
    exact = stats.saved_by_seed(curve, reached=True)  # easier targets alone, the same ones in every seed
    assert exact["outside"].tolist() == [(curve["target"].unique() < 2.3).sum()] * 6
    easier = curve[curve["target"] >= 2.3].groupby("seed")["log_ratio"].mean()
    assert exact["difference"].tolist() == pytest.approx(easier.tolist())
    assert (exact["bound"] == "").all()
    row = stats.contrast(by_seed).iloc[0]
    assert row["bound"] == "at least"
    assert row["effect"] > 0
    assert row[["p", "p_sign", "low"]].isna().all()
    assert row["why"] == "only a bound is known at seed 3"


def test_a_diverged_arm_is_censored_at_what_the_others_spend() -> None:
    rows = [row for seed in range(2) for row in run("scratch", seed, [3.0, 2.6, 2.3, 2.1])]
    rows += run("x", 0, [3.0, 2.6, 2.3, 2.1])
    rows += run("x", 1, [5.5] * 4, [1e8] * 4, status="diverged")
    curve = stats.compute_saved(results(rows), "x", "scratch")
    lost = curve[curve["seed"] == 1]
    assert set(lost["arm_reach"]) == {"never"}
    assert set(lost["arm_cost"]) == {8e9}
    assert set(lost["bound"]) == {"at least"}
    assert stats.saved_by_seed(curve)["bound"].tolist() == ["", "at least"]
    assert stats.saved_by_seed(curve, reached=True)["missing"].tolist() == ["the range in common"] * 2


def test_an_arm_that_starts_late_is_compared_where_it_was_measured() -> None:
    late = results(run("x", 0, [2.5, 2.3, 2.1], [3e9, 4e9, 6e9]) + run("scratch", 0, [3.0, 2.6, 2.3, 2.1]))
    curve = stats.compute_saved(late, "x", "scratch", points=10)
    by_seed = stats.saved_by_seed(curve).iloc[0]
    assert by_seed["bound"] == ""
    assert by_seed["targets"] + by_seed["outside"] == 10
    assert by_seed["outside"] == (curve["target"] > 2.5).sum() > 0
    early = results(run("x", 0, [2.0, 1.9], [3e9, 4e9]) + run("scratch", 0, [3.0, 2.6, 2.3, 2.1]))
    assert stats.saved_by_seed(stats.compute_saved(early, "x", "scratch"))["bound"].item() == "at most"


def test_views_are_columns_and_sizes_must_match() -> None:
    rows = run("x", 0, [3.0, 2.6, 2.3, 2.1]) + run("scratch", 0, [3.0, 2.6, 2.3, 2.1])
    table = results(rows)
    table["flops_continued"] = table["flops"].where(table["arm"] == "scratch", table["flops"] / 2)
    curve = stats.compute_saved(table, "x", "scratch", cost="flops_continued")
    assert curve["log_ratio"].to_numpy() == pytest.approx(math.log(0.5))
    table = set_for(table, "x", "params_non_embedding", 10_000)
    with pytest.raises(ValueError, match="x has params_non_embedding 10000, scratch has 20000"):
        stats.compute_saved(table, "x", "scratch")


def test_a_seed_without_points_is_named() -> None:
    rows = (
        run("x", 0, [3.0, 2.6, 2.3, 2.1]) + run("scratch", 0, [3.0, 2.6, 2.3, 2.1]) + run("x", 1, [3.0, 2.6, 2.3, 2.1])
    )
    by_seed = stats.saved_by_seed(stats.compute_saved(results(rows), "x", "scratch"))
    assert by_seed["missing"].tolist() == ["", "scratch"]
    assert stats.contrast(by_seed)["missing"].item() == "scratch lacks seed 1"


# --- at equal cost ----------------------------------------------------------------------------------------------------


def scratch_points(losses: Sequence[float], seed: int = 0, **other: Any) -> list[dict[str, Any]]:
    """Cooled points of scratch at 1, 2, 4, ... GFLOPs."""
    return [
        result("scratch", seed, loss, budget=100 * 2**i, flops=1e9 * 2**i, **other) for i, loss in enumerate(losses)
    ]


def test_at_equal_cost_the_baseline_is_read_off_linearly_in_log_cost() -> None:
    costs = [1e9, 2e9, 2e9 * 2**0.25, 4e9 * (1 + 1e-12)]
    rows = [result("x", seed, 2.0, flops=cost) for seed, cost in enumerate(costs)]
    table = results(rows + [row for seed in range(4) for row in scratch_points([3.0, 2.4, 2.0], seed)])
    found = stats.at_equal_cost(table, "x", table[table["arm"] == "scratch"])
    assert found["reference_loss"].to_numpy() == pytest.approx([3.0, 2.4, 2.3, 2.0])
    assert found["difference"].to_numpy() == pytest.approx(np.log(2.0 / np.array([3.0, 2.4, 2.3, 2.0])))
    assert found["missing"].tolist() == [""] * 4
    assert set(stats.pairs(table, "x", "x").columns) == set(found.columns)


def test_at_equal_cost_nothing_is_extrapolated_or_dropped() -> None:
    rows = [result("x", seed, 2.0, flops=cost) for seed, cost in enumerate([0.9e9, 5e9, math.nan, 2e9])]
    rows += [row for seed in (0, 1, 2, 4) for row in scratch_points([3.0, 2.4, 2.0], seed)]
    table = results(rows)
    found = stats.at_equal_cost(table, "x", table[table["arm"] == "scratch"])
    assert found["seed"].tolist() == [0, 1, 2, 3, 4]
    assert found["difference"].isna().all()
    lacks = ["scratch at 9e+08 FLOPs", "scratch at 5e+09 FLOPs", "the cost of x", "scratch at 2e+09 FLOPs", "x"]
    assert found["missing"].tolist() == lacks


def test_at_equal_cost_of_points_that_cost_the_same_the_lower_counts_in_any_order() -> None:
    made = {"seed": 0, "status": "ok", "data_fingerprint": "d", "params_non_embedding": 100}
    points = [(1e9, 4.0), (2e9, 3.0), (2e9, 2.9), (4e9, 2.5)]
    base = pd.DataFrame([made | {"arm": "base", "task": "t", "flops": c, "loss": loss} for c, loss in points])
    arm = pd.DataFrame([made | {"arm": "x", "task": "t", "flops": 2e9, "loss": 2.8}])
    for order in (base, base[::-1], base.iloc[[2, 0, 3, 1]]):
        assert stats.at_equal_cost(arm, arm, order)["reference_loss"].tolist() == [2.9]


def test_at_equal_cost_a_task_that_the_arm_lacks_is_missing() -> None:
    made = {"seed": 0, "status": "ok", "data_fingerprint": "d", "params_non_embedding": 100, "flops": 1e9, "loss": 2.0}
    base = pd.DataFrame([made | {"arm": "base", "task": task} for task in ("s", "t")])
    found = stats.at_equal_cost(base, base[base["task"] == "t"].assign(arm="x"), base)
    assert found[["task", "missing"]].to_numpy().tolist() == [["s", "x"], ["t", ""]]


def test_at_equal_cost_only_the_points_that_are_read_need_have_finished() -> None:
    rows = [result("x", 0, 2.0, flops=4e9), result("x", 1, 2.0, flops=3e9), *scratch_points([3.0, 2.4, 2.0], 0)]
    table = results(rows + scratch_points([3.0, 2.4, 2.0], 1))
    lost = (table["arm"] == "scratch") & (table["flops"] == 2e9)
    table = table.assign(status=table["status"].mask(lost, "diverged"))
    found = stats.at_equal_cost(table, "x", table[table["arm"] == "scratch"])
    assert found["unscored"].tolist() == [0, 1]
    with pytest.raises(ValueError, match="x has params_non_embedding 10000, scratch has 20000"):
        stats.at_equal_cost(set_for(table, "x", "params_non_embedding", 10_000), "x", table[table["arm"] == "scratch"])


# --- power laws -------------------------------------------------------------------------------------------------------

SPENT = np.geomspace(1e12, 1e14, 8)


def points(loss: np.ndarray, costs: np.ndarray = SPENT, arm: str = "x") -> pd.DataFrame:
    return pd.DataFrame({"arm": arm, "task": "a", "flops": costs, "loss": loss})


def law(limit: float, scale: float, exponent: float, costs: np.ndarray = SPENT) -> np.ndarray:
    return limit + scale * (costs / 1e13) ** -exponent


@given(st.floats(0.5, 3), st.floats(0.1, 2), st.floats(0.15, 1.5))
def test_a_power_law_is_found_again(limit: float, scale: float, exponent: float) -> None:
    fit = stats.power_law(points(law(limit, scale, exponent))).iloc[0]
    assert fit["converged"], fit["why"]
    assert [fit["limit"], fit["exponent"]] == pytest.approx([limit, exponent], rel=1e-4)
    assert fit["scale"] * (1e13 / fit["cost_unit"]) ** -exponent == pytest.approx(scale, rel=1e-3)


def test_a_noisy_fit_and_its_covariance_are_curve_fits() -> None:
    noise = np.random.default_rng(4).normal(0, 0.003, 8)
    observed = law(1.5, 0.8, 0.4) * np.exp(noise)
    fit = stats.power_law(points(observed)).iloc[0]

    def log_law(x: np.ndarray, limit: float, log_scale: float, log_exponent: float) -> np.ndarray:
        return np.asarray(np.log(limit + np.exp(log_scale - np.exp(log_exponent) * x)))

    x = np.log(SPENT / fit["cost_unit"])
    theta, covariance = optimize.curve_fit(log_law, x, np.log(observed), p0=[1.4, -0.2, -1.0], xtol=1e-12)
    assert [fit["limit"], math.log(fit["exponent"])] == pytest.approx([theta[0], theta[2]], rel=1e-4)
    assert np.array(fit["covariance"]).reshape(3, 3) == pytest.approx(covariance, rel=1e-3)
    half = 2.5706 * math.sqrt(covariance[0, 0])  # t at .975 with 5 degrees of freedom
    assert fit["limit_high"] - fit["limit"] == pytest.approx(half, rel=1e-3)
    drawn = stats.predict(fit, [*SPENT.tolist(), 1e15])
    assert drawn["extrapolated"].tolist() == [False] * 8 + [True]
    assert (drawn["low"] < drawn["loss"]).all()
    assert (drawn["loss"] < drawn["high"]).all()


def test_intervals_of_a_fit_cover_as_said() -> None:
    rng, inside = np.random.default_rng(5), []
    for noise in rng.normal(0, 0.002, (200, 8)):
        fit = stats.power_law(points(law(1.5, 0.8, 0.5) * np.exp(noise))).iloc[0]
        inside.append(fit["limit_low"] < 1.5 < fit["limit_high"] and fit["exponent_low"] < 0.5 < fit["exponent_high"])
    share = float(np.mean(inside))  # of both at once, which are strongly correlated: between 90 and 95 %
    assert 0.90 - 3.3 * math.sqrt(0.09 / 200) < share < 0.95 + 3.3 * math.sqrt(0.05 * 0.95 / 200)


@pytest.mark.parametrize(
    ("loss", "costs", "why"),
    [
        (law(1.5, 0.8, 0.4)[:3], SPENT[:3], "3 costs, and the 3 parameters need 4"),
        (law(1.5, 0.8, 0.4)[::-1], SPENT, "the loss does not fall with cost"),
        (law(0.0, 0.8, 0.1), SPENT, "the limit is at its bound, 0: these costs show no floor"),
        (3.0 - 0.1 * np.arange(8), SPENT, "the limit is at its bound, 0: these costs show no floor"),
        (np.array([3.0, *[2.0] * 7]), SPENT, "the exponent is at its bound, 3"),
    ],
)
def test_a_fit_that_does_not_hold_is_said_and_not_drawn(loss: np.ndarray, costs: np.ndarray, why: str) -> None:
    fit = stats.power_law(points(loss, costs)).iloc[0]
    assert not fit["converged"]
    assert fit["why"] == why
    assert fit[["limit", "scale", "exponent", "limit_low"]].isna().all()


def test_the_crossing_of_two_laws() -> None:
    # 1 + c^-.5 = 1.1 + .5 c^-.5 where c^-.5 = .2: at 25 times 1e13, beyond the costs covered
    noise = np.random.default_rng(9).normal(0, 1e-4, (2, 8))
    observed = [law(1.0, 1.0, 0.5) * np.exp(noise[0]), law(1.1, 0.5, 0.5) * np.exp(noise[1])]
    fits = stats.power_law(pd.concat([points(y, arm=a) for y, a in zip(observed, "xy", strict=True)]))
    row = stats.crossing(fits.iloc[0], fits.iloc[1]).iloc[0]
    assert row["low"] < 25e13 < row["high"]
    assert row["low"] < row["cost"] < row["high"]
    assert row["cost"] == pytest.approx(25e13, rel=0.05)
    assert row["extrapolated"]
    assert row["share"] > 0.99
    assert row["why"] == ""
    again = stats.crossing(fits.iloc[1], fits.iloc[0]).iloc[0]
    assert again["cost"] == pytest.approx(row["cost"])
    apart = stats.power_law(points(law(2.0, 1.0, 0.5), arm="z")).iloc[0]
    none = stats.crossing(fits.iloc[0], apart).iloc[0]
    assert math.isnan(none["cost"])
    assert none["why"].startswith("the fits do not cross")
    flat = stats.power_law(points(np.full(8, 2.0))).iloc[0]
    assert stats.crossing(fits.iloc[0], flat)["why"].item() == "a fit did not converge"
