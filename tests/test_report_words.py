"""What the report says in words, and its other forms: sentences, text to paste, folders beside each other."""

import http.client
import json
import threading
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import report_data
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure as Canvas

from growbench import figure, plugins, publish, stats
from growbench.figures.size_ladder import SizeLadder
from growbench.reports import beside, cite, contrasts, more, plain, saved, summary, text, words

FEW = {"transformer": report_data.ARMS["transformer"][:4]}


@cache
def few(seeds: int = 5) -> pd.DataFrame:
    return report_data.tables(seeds=seeds, arms=FEW)[0]


# ------------------------------------------------------------------------------------------------ rounding


@given(
    st.floats(-1e3, 1e3, allow_subnormal=False),
    st.floats(1e-4, 1e3),
    st.booleans(),
)
def test_an_estimate_rounds_once_and_never_hides_a_sign(value: float, half: float, signed: bool) -> None:
    low, high = value - half, value + half
    shown, ends = words.estimate(value, low, high, signed=signed)
    numbers = [float(part.replace("−", "-").strip("[] ")) for part in (shown, *ends.split(","))]
    digits = len(shown.partition(".")[2])
    assert all(abs(a - b) <= 0.5 * 10**-digits * (1 + 1e-9) for a, b in zip(numbers, (value, low, high), strict=True))
    if low * high > 0 and min(abs(low), abs(high)) > 1e-6:
        assert np.sign(numbers[1]) == np.sign(numbers[2]) != 0  # an interval without 0 does not read as one with it


# ------------------------------------------------------------------------------------------------ sentences


def _sentences(results: pd.DataFrame) -> dict[str, str]:
    rows = summary.annotate(results)
    told = plain.strategies(rows, {task: saved.curves(rows, task) for task in summary.unique(rows["task"])})
    lines = [str(line.striptags()) for task in told for line in (*task["sentences"], *task["more"])]
    return {line.partition(" ")[0]: line for line in lines}


def test_a_sentence_states_the_saving_at_a_loss_and_the_end_with_their_intervals() -> None:
    results = few()
    said = _sentences(results)["transformer/zero_pad"]
    last = results[results["budget"] == report_data.BUDGET].set_index(["arm", "seed"])["bits_per_byte"].astype(float)
    mine, scratch = (last.xs(arm, level="arm").to_numpy() for arm in ("transformer/zero_pad", "transformer/scratch"))
    test = scipy.stats.ttest_1samp(mine - scratch, 0.0).confidence_interval()
    value, ends = words.estimate(float((mine - scratch).mean()), float(test.low), float(test.high))
    assert test.low > 0
    assert said.endswith(f"ends {value} {ends} above scratch at equal tokens.")
    curve = stats.compute_saved(results, "transformer/zero_pad", "transformer/scratch", targets=None)
    assert (curve["log_ratio"] < 0).any()
    assert "of the compute to reach" in said
    assert " bits per byte, but ends " in said


def test_a_sentence_decides_nothing_where_its_interval_holds_zero() -> None:
    results = few()
    mine = (results["arm"] == "transformer/zero_pad") & (results["budget"] == report_data.BUDGET)
    scratch = results[(results["arm"] == "transformer/scratch") & (results["budget"] == report_data.BUDGET)]
    by_seed = scratch.set_index("seed")["loss"].astype(float)
    noise = results.loc[mine, "seed"].map({0: 0.01, 1: -0.011, 2: 0.004, 3: -0.006, 4: 0.002}).astype(float)
    results = results.copy()
    results.loc[mine, "loss"] = results.loc[mine, "seed"].map(by_seed).astype(float) + noise
    results.loc[mine, "bits_per_byte"] = results.loc[mine, "loss"] / np.log(2)
    said = _sentences(results)["transformer/zero_pad"]
    assert "its end is not told apart from that of scratch at equal tokens (" in said
    assert " above scratch" not in said


def test_with_few_seeds_a_sentence_gives_means_and_says_so() -> None:
    said = _sentences(few(3))["transformer/zero_pad"]
    assert said.endswith("(3 seeds: a mean, no interval).")
    assert "[" not in said.partition(" ")[2]


# ------------------------------------------------------------------------------------------------ many tests at once


def test_couples_and_contrasts_by_arm_are_pairs_and_paired_one_by_one() -> None:
    results = report_data.tables(seeds=7)[0]
    rows = summary.annotate(results)
    compared = summary.finals(summary.beside_scratch(rows))
    compared = compared[compared["ranked"]]
    assert (compared["unscored"] if "unscored" in compared else ~compared["scored"]).any()
    found = contrasts.of_table(compared).arms
    assert found
    for arm, test in found.items():
        mine = compared[compared["arm"] == arm]
        alone = stats.paired(compared, mine, compared[compared["arm"] == mine["reference"].iloc[0]]).iloc[0]
        for name in ("n", "unscored", "effect", "sd", "se", "low", "high", "p", "p_sign", "correlation", "detectable"):
            assert test[name] == pytest.approx(alone[name], rel=1e-9, nan_ok=True), (arm, name)
        assert (test["why"], test["why_sign"], test["missing"]) == (alone["why"], alone["why_sign"], alone["missing"])


def test_a_seed_that_one_side_lacks_is_named() -> None:
    rows = few()[few()["budget"] == report_data.BUDGET]
    rows = rows[~((rows["arm"] == "transformer/zero_pad") & (rows["seed"] == 3))]
    named = pd.DataFrame({"arm": ["transformer/zero_pad"], "reference": ["transformer/scratch"]})
    (row,) = stats.contrast(stats.couples(rows, named), by=("arm",)).to_dict("records")
    assert (row["n"], row["missing"]) == (4, "transformer/zero_pad lacks seed 3")


# ------------------------------------------------------------------------------------------------ text to paste


def test_markdown_holds_no_markup_of_strangers_and_every_arm() -> None:
    results, about = report_data.tables(seeds=5)[0], report_data.provenance()
    claims, _ = report_data.verdicts()
    said, _, command = text.markdown(results, about, claims).rstrip().rpartition("\n\n")
    assert command.endswith("`")  # in which nothing is markup
    assert "<script" not in said.replace("\\<script", "")
    assert "<img" not in said.replace("\\<img", "")
    matched = results[results["matched"] & (results["rung"] == 1) & (results["budget"] == report_data.BUDGET)]
    lines = [
        line for line in said.splitlines() if line.startswith("| transformer/") or line.startswith("| tokenformer/")
    ]
    assert len(lines) == matched["arm"].nunique()
    tables = [line for line in said.splitlines() if line.startswith("|")]
    widths = [line.replace("\\|", "").count("|") for line in tables]
    assert set(widths) == {7, 9}
    assert "| cost | supported | −9.97 % of FLOPs |" in said


def test_latex_escapes_and_its_rows_have_the_columns_of_their_head() -> None:
    results, about = report_data.tables(seeds=5)[0], report_data.provenance()
    said = text.latex(results.assign(arm=results["arm"] + r" \input{x} 5%_#$^~&"), about)
    assert r"\textbackslash{}input\{x\} 5\%\_\#\$\textasciicircum{}\textasciitilde{}\&" in said
    assert r"\input{" not in said
    body = [line for line in said.splitlines() if line.endswith(r"\\")]
    assert {line.replace(r"\&", "").count("&") for line in body} == {7}


def test_bibtex_names_each_paper_once_with_its_strategies() -> None:
    sources = [
        {"name": "one", "summary": "A way (X, arXiv:1511.05641).", "source": "A way (X, arXiv:1511.05641)."},
        {"name": "two }", "summary": "Another.", "source": "As in arXiv:1511.05641 and arXiv:2405.15319."},
    ]
    said = cite.bibtex({"growbench": "1.2", "git_sha": "abc", "strategies": sources})
    assert said.count("@misc{") == 2
    assert "eprint = {1511.05641},\n  archivePrefix = {arXiv},\n  note = {named by: one, two},\n}" in said
    assert said.count("{") == said.count("}")


# ------------------------------------------------------------------------------------------------ beside each other


def test_folders_beside_each_other_pool_nothing_and_refuse_other_data() -> None:
    first = few()
    second = first.assign(loss=first["loss"] * np.exp(0.01 + 0.001 * first["seed"].astype(float)))
    same = {row["arm"]: row for row in beside.compare(first, second)}
    row = same["transformer/zero_pad"]
    assert row["change"] == pytest.approx(0.012)
    assert row["low"] < 0.012 < row["high"]
    assert (row["seeds"], row["note"]) == (5, "")
    other = {row["arm"]: row for row in beside.compare(first, second.assign(data_fingerprint="other"))}
    assert other["transformer/zero_pad"]["change"] is None
    assert "data_fingerprint" in other["transformer/zero_pad"]["note"]
    some = second[second["arm"] != "transformer/zero_pad"]
    assert {r["arm"]: r["note"] for r in beside.compare(first, some)}["transformer/zero_pad"] == "only in the first"


# ------------------------------------------------------------------------------------------------ figures of plugins


def test_a_given_file_is_a_figure_of_the_report_and_one_that_fails_says_so(tmp_path: Path) -> None:
    source = '''
from dataclasses import dataclass
from growbench.figure import Figure

@dataclass(frozen=True)
class Mine(Figure):
    """Losses, my way. <b>

    Read it from the left.
    """

    def draw(self, results):
        return results.groupby("arm")["loss"].mean().reset_index()
'''
    (tmp_path / "my_losses.py").write_text(source)
    (tmp_path / "broken_one.py").write_text(source.replace("return", "raise KeyError(results.columns[0]); return"))
    assert plugins.discover("figure", [tmp_path])["my_losses"].summary == "Losses, my way. <b>"
    assert "my_losses" not in plugins.discover("strategy", [tmp_path])
    found = {shown["name"]: shown for shown in more.more(figure.known([tmp_path]), few())}
    mine = found["own-my-losses"]
    assert [row.cells[0].text for row in mine["table"].rows] == sorted(few()["arm"].unique())
    assert mine["caption"] == "Read it from the left."
    assert found["own-broken-one"]["why"] == "broken-one failed: KeyError: 'study'"


def test_the_size_ladder_draws_every_rung_from_scratch() -> None:
    points = SizeLadder().data(few())
    scratch = points[points["kind"] == "scratch"]
    assert set(scratch["arm"]) == {"transformer/scratch", "transformer/scratch@0"}
    assert set(points.loc[points["kind"] != "scratch", "arm"]) == {"transformer/zero_pad"}
    assert isinstance(SizeLadder().draw(few()), Canvas)
    assert SizeLadder().draw(few().iloc[:0]) is None


# ------------------------------------------------------------------------------------------------ a page that follows


def test_the_server_answers_this_machine_alone_and_waits_for_results(tmp_path: Path) -> None:
    with publish.serve([tmp_path], port=0, every=60.0) as server, ExitStack() as to_end:
        assert server.server_address[0] == "127.0.0.1"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        to_end.callback(server.shutdown)

        def get(path: str, host: str = "127.0.0.1") -> tuple[int, str, str]:
            line = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=400)
            line.request("GET", path, headers={"Host": f"{host}:{server.server_port}"})
            answer = line.getresponse()
            return answer.status, answer.headers.get("Refresh") or "", answer.read().decode()

        status, refresh, page = get("/")
        assert (status, refresh) == (200, "60")
        assert "Nothing to show yet" in page
        assert get("/etc/passwd")[0] == 404
        assert get("/", host="evil.example")[0] == 404  # a name that points here must not read it


def test_the_page_is_made_again_only_when_it_is_old() -> None:
    made: list[int] = []
    page = publish.Remembered(make=lambda: str(made.append(1) or len(made)), every=1000.0)  # type: ignore[func-returns-value]
    assert (page.now(), page.now()) == ("1", "1")
    page.at -= 2000.0
    assert page.now() == "2"
    assert json.dumps(made) == "[1, 1]"
