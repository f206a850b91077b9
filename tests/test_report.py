"""The report: what it computes by hand-made numbers, and the page as a parser, a reader and a browser see it."""

import fnmatch
import itertools
import json
import math
import re
import shlex
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import report_data
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from growbench import comparison, stats
from growbench.evidence import Evidence
from growbench.reports import contrasts, drawing, figures, page, prose, saved, summary, words
from growbench.results import CURVES, DIAGNOSTICS, RESULTS, STAGES, UNSCORED

VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
CHROMIUM = Path("/usr/bin/chromium")


class Page(HTMLParser):
    """A strict reading of HTML: every element is closed in order. Elements as (tag, attributes), texts by element."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[list[str]] = []
        self.open: list[int] = []
        self.parents: list[tuple[int, ...]] = []
        self.feed(text)
        self.close()
        assert not self.open, [self.elements[i][0] for i in self.open]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), (tag, attrs)
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        self.texts.append([])
        self.parents.append(tuple(self.open))
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.elements[self.open.pop()][0] == tag, tag

    def handle_data(self, data: str) -> None:
        for i in self.open:
            self.texts[i].append(data)

    def all(self, tag: str) -> Iterator[tuple[int, dict[str, str]]]:
        return ((i, attrs) for i, (name, attrs) in enumerate(self.elements) if name == tag)

    def text(self, i: int) -> str:
        return " ".join("".join(self.texts[i]).split())

    def table(self, name: str) -> list[dict[str, tuple[str, str | None]]]:
        """The rows of a table: heading -> (text, data-value)."""
        root = next(i for i, attrs in self.all("table") if attrs.get("id") == name)
        within = [i for i in range(root, len(self.elements)) if root in self.parents[i]]
        heads = [self.text(i) for i in within if self.elements[i][1].get("scope") == "col"]
        cells = [i for i in within if self.elements[i][0] in ("td", "th") and self.elements[i][1].get("scope") != "col"]
        flat = [(self.text(i), self.elements[i][1].get("data-value")) for i in cells]
        assert len(flat) % len(heads) == 0
        return [dict(zip(heads, flat[k : k + len(heads)], strict=True)) for k in range(0, len(flat), len(heads))]


@cache
def html() -> str:
    return page.render(*report_data.tables(), report_data.provenance())


@cache
def parsed() -> Page:
    return Page(html())


@cache
def transformer(task: str = "pycode") -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """The tables of one architecture, on text or on a synthetic source."""
    arms = {"transformer": report_data.ARMS["transformer"]}
    return report_data.tables(arms=arms, task=task, unit="symbol" if task == "grammar" else "byte")


def render(
    results: pd.DataFrame, curves: pd.DataFrame | None = None, stages: pd.DataFrame | None = None, **provenance: object
) -> str:
    nothing = pd.DataFrame()
    return page.render(
        results, nothing if curves is None else curves, nothing if stages is None else stages, provenance
    )


# ------------------------------------------------------------------------------------------------ numbers


def test_scratch_is_read_off_linearly_in_log_flops() -> None:
    points = pd.DataFrame({"flops": [4e12, 1e12], "score": [2.0, 3.0], "scored": [True, True]})
    assert summary.read_off(2e12, summary.Points.of(points))[0] == pytest.approx(
        2.5, abs=1e-12
    )  # log 2 is half of log 4
    assert summary.read_off(1e12, summary.Points.of(points)) == (3.0, "")
    assert summary.read_off(4e12, summary.Points.of(points)) == (2.0, "")


@pytest.mark.parametrize(("flops", "why"), [(0.9e12, "cheaper"), (4.1e12, "dearer"), (math.nan, "not known")])
def test_nothing_is_read_off_outside_the_range(flops: float, why: str) -> None:
    points = pd.DataFrame({"flops": [1e12, 4e12], "score": [3.0, 2.0], "scored": [True, True]})
    loss, note = summary.read_off(flops, summary.Points.of(points))
    assert math.isnan(loss)
    assert why in note


def test_nothing_is_read_off_beside_a_run_that_did_not_finish() -> None:
    points = pd.DataFrame({"flops": [1e12, 4e12, 9e12], "score": [5.5, 2.0, 1.9], "scored": [False, True, True]})
    assert math.isnan(summary.read_off(2e12, summary.Points.of(points))[0])
    assert not math.isnan(summary.read_off(5e12, summary.Points.of(points))[0])


def test_against_scratch_pairs_by_seed_and_holds_the_scratch_curve() -> None:
    rows = summary.annotate(report_data.tables()[0])
    compared = summary.against_scratch(rows)
    one = compared[(compared["arm"] == "transformer/net2net") & (compared["seed"] == 2)].iloc[0]
    scratch = rows[(rows["arm"] == "transformer/scratch") & (rows["seed"] == 2)].set_index("budget")
    assert one["difference"] == pytest.approx(one["bits_per_byte"] - scratch.loc[480_000, "bits_per_byte"], abs=1e-12)
    equal = scratch.loc[320_000, "bits_per_byte"]  # the budget of equal total FLOPs
    assert one["at_flops"] == pytest.approx(equal, abs=1e-12)
    assert set(compared["arm"]).isdisjoint({"transformer/scratch", "transformer/continue", "transformer/lora[rank=4]"})


SCORES = {  # of seeds 0 and 1 at the full budget, and where they end
    "t/scratch": ((2.0, 2.2), "wide"),
    "t/scratch[ffn]": ((2.5, 2.9), "fat"),
    "t/pad": ((2.1, 2.1), "wide"),
    "t/pad @early": ((2.2, 2.6), "wide"),
    "t/pad[ffn]": ((2.4, 2.6), "fat"),
    "t/pad[layers 1]": ((2.3, 2.5), "lopsided"),
}


def _by_hand(*without: str) -> pd.DataFrame:
    """Annotated rows of SCORES at one rung; from scratch also at half the budget, with one nat more."""
    rows = [
        {
            "arm": arm, "strategy": arm[2:].partition("[")[0].partition(" ")[0], "architecture": "t", "rung": 1,
            "shape": shape, "task": "pycode", "unit": "symbol", "seed": seed, "status": "ok", "matched": True,
            "growth_steps": int("pad" in arm), "budget": budget, "flops": budget / (1 + ("pad" in arm) * (2**0.5 - 1)),
            "loss": score + (budget == 50),
        }
        for arm, (scores, shape) in SCORES.items()
        if arm not in without
        for seed, score in enumerate(scores)
        for budget in ((100,) if "pad" in arm else (50, 100))
    ]  # fmt: skip
    return summary.annotate(pd.DataFrame(rows))


def _differences(rows: pd.DataFrame) -> dict[str, tuple[object, ...]]:
    """Per grown arm: its reference, and its mean differences at equal tokens and at equal FLOPs."""
    compared = summary.against_scratch(rows)
    means = (summary.mean_difference(compared, column) for column in ("difference", "difference_flops"))
    frame = pd.concat([compared.groupby("arm")["reference"].first(), *means], axis=1)
    return {str(arm): tuple(values) for arm, *values in frame.itertuples(name=None)}


def test_an_arm_is_compared_with_scratch_of_its_own_shape() -> None:
    rows = _by_hand()
    found = _differences(rows)
    # At a cost of 100 / sqrt 2, half way between its budget points in the logarithm, scratch is 0.5 above its end.
    assert found == {
        "t/pad": ("t/scratch", pytest.approx(0.0), pytest.approx(-0.5)),  # (0.1 - 0.1) / 2
        "t/pad @early": ("t/scratch", pytest.approx(0.3), pytest.approx(-0.2)),  # (0.2 + 0.4) / 2
        "t/pad[ffn]": ("t/scratch[ffn]", pytest.approx(-0.2), pytest.approx(-0.7)),  # (-0.1 - 0.3) / 2
        "t/pad[layers 1]": ("t/scratch", pytest.approx(0.3), pytest.approx(-0.2)),  # no scratch of its shape
    }
    assert set(rows[rows["other_shape"]]["arm"]) == {"t/pad[layers 1]"}
    assert set(rows[rows["own_shape"]]["arm"]) == {"t/scratch[ffn]", "t/pad[ffn]"}
    assert set(summary.baseline(rows)["arm"]) == {"t/scratch"}


def test_without_scratch_of_its_shape_an_arm_is_compared_with_the_rungs() -> None:
    alone = _by_hand("t/scratch[ffn]")
    assert _differences(alone)["t/pad[ffn]"] == ("t/scratch", pytest.approx(0.4), pytest.approx(-0.1))
    assert set(alone[alone["other_shape"]]["arm"]) == {"t/pad[ffn]", "t/pad[layers 1]"}
    unknown = summary.annotate(_by_hand().drop(columns="shape"))  # nothing is claimed of shapes that are not known
    assert _differences(unknown)["t/pad[ffn]"][0] == "t/scratch"
    assert not unknown["other_shape"].any()


def test_a_run_that_did_not_finish_scores_the_uniform_predictor_and_is_not_dropped() -> None:
    rows = summary.annotate(report_data.tables()[0])
    spike = next(r for r in summary.by_arm(summary.finals(rows)) if r["arm"] == "transformer/spike")
    assert spike["scores"][0] == pytest.approx(8)  # bits per byte
    assert spike["score"] == pytest.approx(np.mean(spike["scores"]))
    assert spike["loss"] == pytest.approx(spike["score"] * math.log(2))
    assert spike["status"] == "1 of 3 diverged"
    assert spike["tokens"] == 480_000  # of the seeds that finished: half a path has no cost
    means = summary.mean_difference(summary.against_scratch(rows), "difference_flops")
    assert math.isnan(means["transformer/spike"])
    assert not math.isnan(means["transformer/net2net"])


def test_the_full_budget_is_that_of_matched_arms() -> None:
    rows = summary.annotate(report_data.tables()[0])
    assert rows["budget"].max() == 960_000  # of continue, trained on to equal FLOPs
    assert summary.full_budget(rows) == 480_000


def test_purposes_add_up_and_sharing_saves_what_is_counted_twice() -> None:
    results, _, stages = report_data.tables()
    books = summary.ledger(summary.annotate(results))
    assert books[list(summary.PURPOSES)].sum(axis=1).to_numpy() == pytest.approx(books["flops"].to_numpy())
    spent = summary.spent(summary.tidy(stages, STAGES))
    assert spent["flops"].sum() == pytest.approx(stages["flops"].sum())
    assert spent["flops_unshared"].sum() == pytest.approx((stages["flops"] * stages["arms"]).sum())
    assert spent["flops_unshared"].sum() > spent["flops"].sum()


def test_growth_is_where_the_rung_steps_up() -> None:
    curves = summary.tidy(report_data.tables()[1], CURVES)
    events = figures.growth_events(curves)
    assert set(events["tokens"]) == {240_000}
    jumps = events[events["arm"] == "tokenformer/zero_tokens[factor=rescaled]"]
    assert (jumps["loss_after"] - jumps["loss"]).to_numpy() == pytest.approx(0.41)
    assert "transformer/scratch" not in set(events["arm"])


@given(st.floats(min_value=1e-3, max_value=1e23))
def test_scaled_keeps_three_digits(value: float) -> None:
    number, unit = words.scaled(value, "B").split(" ")
    prefix = 10.0 ** (3 * words.PREFIXES.index(unit[:-1]))
    assert float(number) * prefix == pytest.approx(value, rel=5.1e-3)
    assert float(number) < 1000


@given(st.floats(min_value=-10, max_value=10))
def test_signed_rounds_once_and_has_no_negative_zero(value: float) -> None:
    text = words.signed(value).replace("−", "-")
    assert abs(float(text) - value) <= 5.0001e-5
    assert text != "-0.0000"


def test_the_source_trained_on_is_named_where_it_ends_below_the_best_grown_arm() -> None:
    rows = [
        {
            "arm": arm, "strategy": strategy, "architecture": "t", "task": "pycode", "seed": seed, "status": "ok",
            "rung": rung, "matched": bool(rung), "growth_steps": int(arm == "pad" or arm == "worse"), "budget": budget,
            "flops": flops, "loss": loss + seed,
        }
        for seed in (0, 1)
        for arm, strategy, rung, budget, flops, loss in (
            ("pad", "zero_pad", 1, 100, 2e12, 3.0),
            ("worse", "zero_pad", 1, 100, 4e12, 3.1),
            ("continue", "continue", 0, 100, 1e12, 3.2),
            ("continue", "continue", 0, 200, 4e12, 2.6),
        )
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    (found,) = summary.rivals(summary.annotate(frame))
    assert (found["arm"], found["best"], found["score"]) == ("continue", "pad", pytest.approx(3.5))
    assert found["at_tokens"] == pytest.approx(3.7)
    assert found["at_flops"] == pytest.approx(3.4)  # half way in log FLOPs between 3.2 and 2.6, plus half a seed
    cheap = frame.assign(flops=frame["flops"].where(frame["budget"] < 200, 16e12))  # 2.6 costs more: 3.05 at 2e12
    assert summary.rivals(summary.annotate(cheap)) == []
    assert summary.rivals(summary.annotate(frame[(frame["seed"] == 0) | (frame["arm"] != "continue")])) == []


def test_sentences_of_one_arm_are_grammatical() -> None:
    assert prose._ended(pd.Series([-0.1]), "lower") == "the one grown arm ended lower"
    assert prose._ended(pd.Series([0.1]), "lower") == "the one grown arm did not end lower"
    assert prose._ended(pd.Series([0.1, 0.2]), "lower") == "none of 2 grown arms ended lower"
    assert prose._ended(pd.Series([-0.1, 0.2]), "lower") == "1 of 2 grown arms ended lower"
    assert prose._ended(pd.Series([-0.1, -0.2]), "lower") == "all 2 grown arms ended lower"


@given(st.text(st.sampled_from("ab/[]()*?='\" "), max_size=9), st.text(st.sampled_from("ab/[]()*?='\" "), max_size=9))
def test_the_command_of_a_row_runs_that_arm_alone(arm: str, other: str) -> None:
    *_, study, option, pattern = shlex.split(words.command("quick", arm))
    assert (study, option) == ("quick", "--only")
    assert fnmatch.fnmatchcase(other, pattern) == (other == arm)
    assert fnmatch.fnmatchcase(arm, pattern)


# ------------------------------------------------------------------------------------------------ page


def test_the_page_says_how_to_run_a_row_again_what_is_summed_and_why_continue_gets_more() -> None:
    again = parsed().text(next(i for i, attrs in parsed().all("p") if attrs.get("id") == "again"))
    assert "At commit 0123456789abcdef0123456789abcdef01234567, growbench run quick --only " in again
    titles = {attrs.get("title") for _, attrs in parsed().all("span")}
    assert "growbench run quick --only 'transformer/zero_pad[[]ffn]'" in titles
    facts = parsed().text(next(i for i, attrs in parsed().all("dl")))
    assert "; continue also at 960,000, where its FLOPs meet those of the grown arms" in facts
    assert "scratch@0 is trained from its start at rung 0" in parsed().text(0)
    stages = report_data.tables()[2]
    alone = words.flops((stages["flops"] * stages["arms"]).sum())
    assert f"less than the {alone} had no two arms shared a stage" in parsed().text(0)


def test_the_source_trained_on_is_drawn_in_the_total_view_alone() -> None:
    costs = ("total", "continued", "ladder")
    arms = [{row["arm"][0] for row in parsed().table(f"data-cost-{view}-pycode-transformer")} for view in costs]
    assert ["transformer/continue" in found for found in arms] == [True, False, False]


def test_ids_are_unique_and_references_resolve() -> None:
    elements = [attrs for _, attrs in parsed().elements]
    ids = Counter(attrs["id"] for attrs in elements if "id" in attrs)
    assert [name for name, n in ids.items() if n > 1] == []
    for attrs in elements:
        for name in attrs.get("aria-labelledby", "").split():
            assert name in ids
        assert attrs.get("href", "#answer")[1:] in ids
        for name in re.findall(r"url\(#([^)]+)\)", " ".join(attrs.values())):
            assert name in ids


def _structure(found: Page) -> dict[str, object]:
    """What a reader finds where: sections, headings, figures with their titles, tables with headings and rows."""
    named = [(i, attrs) for i, attrs in found.all("table")]
    heads = {attrs["id"]: [head for row in found.table(attrs["id"])[:1] for head in row] for _, attrs in named}
    return {
        "sections": [attrs["id"] for _, attrs in found.all("section")],
        "headings": [found.text(i) for level in ("h1", "h2", "h3") for i, _ in found.all(level)],
        "figures": [attrs["id"] for _, attrs in found.all("figure")],
        "tables": {name: {"heads": own, "rows": len(found.table(name))} for name, own in heads.items()},
    }


def test_the_structure_of_the_page_is_that_of_the_golden_one() -> None:
    """A change of it is meant, or a defect. To take it over: python tests/test_report.py > tests/report.json."""
    golden = json.loads((Path(__file__).parent / "report.json").read_text(encoding="utf-8"))
    assert _structure(parsed()) == golden


def test_nothing_is_loaded() -> None:
    for tag, attrs in parsed().elements:
        assert "src" not in attrs, tag
        assert tag not in ("link", "img", "iframe", "object", "embed", "base"), attrs
        assert attrs.get("href", "#").startswith("#"), attrs
    assert not re.search(r"@import|url\((?!#)", html())


def test_every_figure_can_be_read_without_seeing_it() -> None:
    tags = [tag for tag, _ in parsed().elements]
    pictures = [(i, attrs) for i, attrs in parsed().all("svg") if "aria-hidden" not in attrs]
    # The first figure, what paths cost, recovery; and of two architectures three cost views, compute saved in one,
    # tokens, differences.
    assert len(pictures) == 15
    for i, attrs in pictures:
        inside = [k for k in range(i, len(tags)) if i in parsed().parents[k]]
        assert attrs["role"] == "img"
        assert next(parsed().text(k) for k in inside if tags[k] == "title")
        assert len(next(parsed().text(k) for k in inside if tags[k] == "desc")) > 40
        assert [k for k in inside if tags[k] == "text"]  # text is text, in the reader's fonts
    assert tags.count("figcaption") == tags.count("figure") == 15
    keys = [parsed().text(i) for i, attrs in parsed().all("ul") if attrs.get("class") == "key"]
    assert len(keys) == 11  # below each plot of lines
    assert sum("scratch" in key for key in keys) == 9  # nothing is saved against itself
    assert "orthogonal" in keys[0]


def test_every_table_is_readable_by_ear() -> None:
    tables = list(parsed().all("table"))
    captions = [parsed().text(i) for i, _ in parsed().all("caption")]
    assert len(captions) == len(tables)
    assert all(captions)
    for _, attrs in parsed().all("th"):
        assert attrs.get("scope") in ("col", "row")


def test_every_column_is_defined() -> None:
    tables = (("results", RESULTS), ("curves", CURVES), ("stages", STAGES), ("diagnostics", DIAGNOSTICS))
    for name, columns in tables:
        told = {row["column"][0]: row["definition"][0] for row in parsed().table(f"columns-{name}")}
        assert told == {column: " ".join(columns[column].meaning.split()) for column in columns}


def test_the_matched_table_is_the_dataframe() -> None:
    results = report_data.tables()[0]
    last = results[(results["budget"] == 480_000) & results["matched"] & (results["rung"] == 1)]
    shown = {str(row["arm"][1]): row for row in parsed().table("matched-pycode")}
    assert set(shown) == set(last["arm"])
    for arm, group in last.groupby("arm"):
        row, good = shown[str(arm)], group[~group["status"].isin(UNSCORED)]
        for heading, column in (
            ("loss, mean bits/byte", "bits_per_byte"),
            ("loss per token nats/token", "loss"),
        ):
            assert float(row[heading][1] or "") == pytest.approx(group[column].mean(), rel=1e-12)
            assert row[heading][0] == f"{group[column].mean():.4f}"
        for heading, column in (
            ("cost, total", "flops"),
            ("cost, continued", "flops_continued"),
            ("cost, ladder", "flops_ladder"),
        ):
            assert float(row[heading][1] or "") == pytest.approx(good[column].mean(), rel=1e-12)
            assert row[heading][0].startswith(words.flops(good[column].mean()))
        assert row["weights non-embedding"] == (
            f"{group['params_non_embedding'].iloc[0]:,}",
            str(group["params_non_embedding"].iloc[0]),
        )
        assert row["loss by seed bits/byte"][0] == " ".join(
            f"{seed}: {bits:.4f}" for seed, bits in zip(group["seed"], group["bits_per_byte"], strict=True)
        )
    bits = {arm: group["bits_per_byte"].to_numpy() for arm, group in last.groupby("arm")}
    net2net, scratch = bits["transformer/net2net"], bits["transformer/scratch"]
    ratio, difference = (net2net / scratch).mean(), (net2net - scratch).mean()
    shown_difference = shown["transformer/net2net"]["minus scratch, equal tokens bits/byte"]
    assert shown_difference[0] == f"{difference:+.4f}{ratio:.3f}×"
    assert float(shown_difference[1] or "") == pytest.approx(difference, rel=1e-9)
    assert shown["transformer/spike"]["minus scratch, equal FLOPs bits/byte"] == ("–a seed did not finish", None)
    assert shown["transformer/scratch"]["cost, total"][0].endswith("1.00× scratch")


FFN, TWIN = "transformer/zero_pad[ffn]", "transformer/scratch[ffn]"


def test_the_page_shows_shapes_and_says_beside_which_scratch_an_arm_is_set() -> None:
    shown = {row["arm"][1]: row for row in parsed().table("matched-pycode")}
    words_of = report_data.SHAPES["transformer", "ffn"]
    assert shown[FFN]["final shape"] == (f"2L R16 H2 K8 V8 F320beside {TWIN}", words_of)
    assert shown[TWIN]["final shape"] == ("2L R16 H2 K8 V8 F320", words_of)
    assert shown["transformer/net2net"]["final shape"][0] == "2L R32 H4 K8 V8 F128"
    results = report_data.tables()[0]
    last = results[results["budget"] == 480_000].set_index(["arm", "seed"])["bits_per_byte"]
    difference = (last[FFN] - last[TWIN]).mean()
    assert float(shown[FFN]["minus scratch, equal tokens bits/byte"][1] or "") == pytest.approx(difference, rel=1e-9)
    text = parsed().text(0)
    assert f"scratch ({TWIN}) ends at {last[TWIN].mean():.4f} bits per byte; set beside it: {FFN}." in text
    assert f"The lowest is {FFN}, {abs(difference):.4f} bits per byte below scratch of its own shape" in text
    lora = next(row for row in parsed().table("unmatched-pycode") if row["arm"][1] == "transformer/lora[rank=4]")
    assert lora["final shape"][0] == "2L R16 H2 K8 V8 F64 rank 4"


def test_an_arm_beside_scratch_of_another_shape_says_so() -> None:
    results, curves, stages = report_data.tables()
    found = Page(render(results[results["arm"] != TWIN].reset_index(drop=True), curves, stages))
    shown = {row["arm"][1]: row for row in found.table("matched-pycode")}
    assert shown[FFN]["final shape"][0].endswith("beside transformer/scratch, another shape")
    assert f"Of another shape than the scratch that they are set beside (transformer/scratch): {FFN}." in found.text(0)
    assert "but beside zero_pad[ffn], for whose shape there is no scratch" in found.text(0)


@given(st.lists(st.sampled_from([64, 128, 640]), min_size=1, max_size=9))
def test_a_compact_shape_keeps_every_layer(units: list[int]) -> None:
    *_, text = words.shape(f"{len(units)} layers, residual 16, ffn {'/'.join(map(str, units))}").split()
    runs = [run.rpartition("×") for run in text.removeprefix("F").split("/")]
    assert [int(unit) for n, _, unit in runs for _ in range(int(n or 1))] == units


def test_arms_of_another_size_are_apart() -> None:
    apart = [(row["arm"][1], row["tokens"][0]) for row in parsed().table("unmatched-pycode")]
    assert ("transformer/lora[rank=4]", "480,000") in apart
    assert ("transformer/scratch@0", "480,000") in apart
    assert ("transformer/continue", "480,000") in apart
    assert ("transformer/continue", "960,000") in apart
    assert {arm for arm, _ in apart}.isdisjoint(row["arm"][1] for row in parsed().table("matched-pycode"))


def test_failures_are_listed_in_full_and_sterile_controls_labelled() -> None:
    results = report_data.tables()[0]
    listed = parsed().table("failed-rows")
    assert len(listed) == results["status"].isin(UNSCORED).sum() > 0
    assert {row["reason"][0] for row in listed} == {
        "its source failed",
        f"loss not finite at token 260,096 in {report_data.SCRIPT}",
    }
    shown = {row["arm"][1]: row["arm"][0] for row in parsed().table("matched-pycode")}
    assert {arm for arm, text in shown.items() if arm and text.endswith("sterile control")} == set(
        results[results["sterile"] != ""]["arm"]
    )


def _mean(arm: str, budget: int) -> str:
    results = report_data.tables()[0]
    return f"{results[(results['arm'] == arm) & (results['budget'] == budget)]['bits_per_byte'].mean():.4f}"


def test_words_state_the_numbers_and_decide_nothing() -> None:
    text = " ".join(_section(parsed(), name) for name in ("first", "answer"))
    results = report_data.tables()[0]
    scratch = results[(results["arm"] == "transformer/scratch") & (results["budget"] == 480_000)]["bits_per_byte"]
    assert f"transformer/scratch has the lowest mean at the full budget: {scratch.mean():.4f} bits per byte" in text
    assert f"seeds {scratch.min():.4f} to {scratch.max():.4f}" in text
    assert "nothing is decided" in text
    best = "transformer/zero_pad[scale=true]"  # beside continue at 960,000 tokens, of the same cost
    assert (
        "At equal tokens, in the mean over seeds, 1 of 10 grown arms at matched size ended below scratch; "
        "at equal FLOPs, all 8 grown arms ended below scratch’s interpolated loss. "
        "But the smaller source, trained on without growing, ended lower than the best grown arm: "
        f"transformer/continue at equal FLOPs ({_mean('transformer/continue', 960_000)}), where "
        f"{best} ends at {_mean(best, 480_000)} bits per byte; "
        f"tokenformer/continue at equal tokens ({_mean('tokenformer/continue', 480_000)}) and at equal FLOPs "
        f"({_mean('tokenformer/continue', 960_000)}), where tokenformer/zero_tokens ends at "
        f"{_mean('tokenformer/zero_tokens', 480_000)} bits per byte. "
        "Arms that end in another shape than the ladder’s are set beside scratch of that shape, where it was run."
        in text
    )
    assert "No value is given for transformer/spike (a seed did not finish)." in text
    longer = results[(results["arm"] == "transformer/continue") & (results["budget"] == 960_000)]
    bits = f"{longer['bits_per_byte'].mean():.4f} bits per byte"
    assert f"{bits} after 960,000 tokens for 47.2 GFLOPs (none of 7 grown arms ended lower)" in text
    assert "nats" not in text
    costs = (
        "The source cost 11.8 GFLOPs for 240,000 tokens, 25.0 % of a grown arm’s whole cost; scratch costs 70.8 GFLOPs."
    )
    assert costs in text  # 6 x 8,192 x 240,000 of 6 x (8,192 + 24,576) x 240,000; 6 x 24,576 x 480,000
    header = parsed().text(next(i for i, _ in parsed().all("header")))
    assert "Untuned." in header
    assert "Screening: 3 seeds, no test is shown." in header
    assert not re.search(r"\bp\s*[<=]\s*0?\.\d", text)


def test_seeds_that_disagree_decide_nothing() -> None:
    results = report_data.tables()[0]
    change = (results["arm"] == "transformer/net2net") & (results["budget"] == 480_000)
    results.loc[change, ["loss", "bits_per_byte"]] = np.outer([1.0, 1.9, 1.9], [1, 1 / math.log(2)])
    text = Page(render(results)).text(0)
    assert "transformer/net2net has the lowest mean" in text
    assert "In at least one seed it is not below: transformer/scratch" in text
    assert "Its seeds disagree on the sign." in text


def _hostile(value: object) -> object:
    return f"{value} {report_data.SCRIPT}{report_data.IMAGE}&amp;$x_1$\n\x07\x9b\x00']]>--><!--"


def _check_harmless(text: str) -> None:
    found = Page(text)
    assert [tag for tag, _ in found.elements].count("script") == 1
    for tag, attrs in found.elements:
        assert tag != "img"
        assert not [name for name in attrs if name.startswith("on")], (tag, attrs)


def test_hostile_text_in_every_field_is_only_text() -> None:
    _check_harmless(html())
    results, curves, stages = report_data.tables()
    free = [n for n, c in RESULTS.items() if c.dtype == "string" and n not in ("strategy", "status")]
    results[free] = results[free].map(_hostile)
    curves[["arm", "task", "stage"]] = curves[["arm", "task", "stage"]].map(_hostile)
    stages[["stage", "kind", "status", "reason", "task"]] = stages[["stage", "kind", "status", "reason", "task"]].map(
        _hostile
    )

    def poison(value: object) -> object:
        if isinstance(value, dict):
            return {str(_hostile(k)) if k == report_data.IMAGE else k: poison(v) for k, v in value.items()}
        return (
            [poison(v) for v in value]
            if isinstance(value, list)
            else _hostile(value)
            if isinstance(value, str)
            else value
        )

    given = {key: value if key == "study" else poison(value) for key, value in report_data.provenance().items()}
    text = page.render(results, curves, stages, given)
    _check_harmless(text)
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert not [c for c in set(text) - {"\n"} if unicodedata.category(c) == "Cc"]


def test_a_path_that_is_not_unicode_can_be_written() -> None:
    given = report_data.provenance() | {"command": "growbench run --plugin caf\udce9.py"}
    assert b"caf\xef\xbf\xbd.py" in page.render(*report_data.tables(), given).encode()


def test_output_is_deterministic() -> None:
    assert page.render(*report_data.tables(), report_data.provenance()) == html()
    assert "2026-01-02" in html()
    assert "<metadata" not in html()


# ------------------------------------------------------------------------------------------------ partial results


def _columns(columns: dict[str, object]) -> pd.DataFrame:
    return pd.DataFrame(columns=list(columns))


@pytest.mark.parametrize("frame", [pd.DataFrame(), _columns(dict(RESULTS))], ids=["no columns", "no rows"])
def test_empty_frames_render_and_say_so(frame: pd.DataFrame) -> None:
    text = Page(render(frame)).text(0)
    assert "No result has been written yet" in text
    assert "not recorded" in text


Cut = Callable[[pd.DataFrame], pd.DataFrame]
PARTS: dict[str, tuple[Cut, str]] = {
    "no scratch": (lambda r: r[r["strategy"] != "scratch"], "No from-scratch run of transformer on pycode"),
    "only scratch": (
        lambda r: r[r["strategy"] == "scratch"],
        "There is no grown arm at matched size at the full budget: growing cannot be compared",
    ),
    "one seed": (lambda r: r[r["seed"] == 1], "pycode lacks seeds 0 and 2."),
    "an arm's seed": (
        lambda r: r[~((r["arm"] == "transformer/net2net") & (r["seed"] == 2))],
        "transformer/net2net on pycode lacks seed 2 at 300,000, 360,000 and 480,000 tokens.",
    ),
    "first budget": (lambda r: r[r["budget"] == 300_000], "what is shown stands at 300,000."),
    "one architecture": (
        lambda r: r[r["architecture"] == "transformer"],
        "The architecture tokenformer has no result.",
    ),
    "all failed": (
        lambda r: r.assign(status="failed", reason="out of memory", loss=report_data.UNIFORM),
        "No arm at matched size finished: all score as the uniform predictor, and none is lowest.",
    ),
    "unmatched only": (lambda r: r[~r["matched"]], "No arm at matched size has a result yet."),
    "size unknown": (lambda r: r.drop(columns=["matched", "rung"]), "No arm at matched size has a result yet."),
}


@pytest.mark.parametrize("part", PARTS)
def test_partial_results_render_and_say_what_is_missing(part: str) -> None:
    cut, said = PARTS[part]
    results, curves, stages = report_data.tables()
    results = cut(results).reset_index(drop=True)
    text = Page(render(results, curves, stages, study=report_data.STUDY, planned_rows=900)).text(0)
    assert said in text
    assert f"{len(results)} of 900 planned rows are there." in text


def test_a_study_of_fresh_seeds_lacks_none_of_the_first() -> None:
    results, curves, stages = (frame.assign(seed=frame["seed"] + 5) for frame in report_data.tables())
    study = report_data.STUDY.replace("seeds: 3", "seeds: 3\nfirst_seed: 5")
    assert "lacks seed" not in Page(render(results, curves, stages, study=study)).text(0)
    left = results[results["seed"] != 6].reset_index(drop=True)
    assert "pycode lacks seed 6." in Page(render(left, curves, stages, study=study)).text(0)


def test_a_symbolic_task_speaks_nats_and_shows_its_excess_over_the_limit() -> None:
    results, curves, stages = transformer("grammar")
    found = Page(render(results, curves, stages))
    assert "above the source’s entropy rate" in found.text(0)
    assert "bits" not in found.text(next(i for i, attrs in found.all("section") if attrs["id"] == "matched"))
    last = results[(results["arm"] == "transformer/net2net") & (results["budget"] == 480_000)]
    row = next(r for r in found.table("matched-grammar") if r["arm"][1] == "transformer/net2net")
    assert row["loss, mean nats/token"][0] == f"{last['loss'].mean():.4f}"
    assert row["excess over the limit nats/token"][0] == f"{last['loss'].mean() - 1:.4f}"
    assert "No model can go below the source’s entropy rate, 1.0000 nats per token" in found.text(0)


def test_the_entropy_rate_is_drawn_where_it_lies_in_the_plot() -> None:
    results, curves, _ = transformer("grammar")
    end = results[(results["arm"] == "transformer/scratch") & (results["budget"] == 480_000)]["loss"].mean()
    for limit, drawn in ((1.0, False), (end, True)):
        rows = summary.annotate(results.assign(excess_loss=results["loss"] - limit))
        scored = summary.score(summary.tidy(curves, CURVES), rows)
        shown = figures.draw(rows, scored, task="grammar", architecture="transformer", look=drawing.looks(rows))
        assert [">entropy rate<" in figure.svg for figure in shown] == [*[drawn] * 4, False]


def test_each_task_of_a_mixed_study_speaks_its_own_metric() -> None:
    both = zip(transformer(), transformer("grammar"), strict=True)
    results, curves, stages = (pd.concat(pair, ignore_index=True) for pair in both)
    results["bits_per_byte"] = results["bits_per_byte"] / 2  # tokens of two bytes
    rows = summary.annotate(results)
    assert summary.metric(rows[rows["task"] == "pycode"]).scale == pytest.approx(1 / math.log(2) / 2)
    assert summary.metric(rows[rows["task"] == "grammar"]).scale == 1
    found = Page(render(results, curves, stages))
    assert "Loss is validation bits per byte on pycode and validation nats per token on grammar" in found.text(0)
    for task, unit, other in (("pycode", "bits/byte", "nats/token"), ("grammar", "nats/token", "bits/byte")):
        for figure, labels in (("cost-total", 1), ("tokens", 1), ("paired", 2)):
            drawn = found.text(
                next(
                    i
                    for i, a in found.all("svg")
                    if f"{figure}-{task}-transformer-title" in a.get("aria-labelledby", "")
                )
            )
            assert drawn.count(unit) == labels
            assert other not in drawn
    ends = curves[(curves["arm"] == "transformer/scratch") & (curves["task"] == "pycode") & (curves["kind"] == "train")]
    table = found.table(f"data-{drawing.slug('tokens', 'pycode', 'transformer')}")
    shown = {row["tokens"][1]: row["transformer/scratch (bits/byte)"][1] or "" for row in table}
    assert float(shown["300000"]) == pytest.approx(ends[ends["tokens"] == 300_000]["loss"].mean() / math.log(2) / 2)


def test_arms_are_compared_at_every_rung_they_pass() -> None:
    results, curves, stages = report_data.three_rungs(*transformer())
    found = Page(render(results, curves, stages))
    shown = {row["arm"][1]: row for row in found.table(drawing.slug("midway", 1, 300_000, "pycode"))}
    assert "transformer/scratch@1" in shown
    assert "transformer/lora[rank=4]" not in shown
    there = results[(results["rung"] == 1) & (results["seed"] >= 0)]
    bits = {arm: group["bits_per_byte"].to_numpy() for arm, group in there.groupby("arm")}
    difference = (bits["transformer/net2net"] - bits["transformer/scratch@1"]).mean()
    cell = shown["transformer/net2net"]["minus scratch, equal tokens bits/byte"]
    assert float(cell[1] or "") == pytest.approx(difference, rel=1e-9)
    low = shown["transformer/net2net"]["minus scratch, equal FLOPs bits/byte"]
    assert low == ("–cheaper than the first budget point from scratch", None)
    assert "On the way, at rung 1 after 300,000 tokens, where scratch of that size ends at" in found.text(0)
    apart = [(row["arm"][1], row["tokens"][0]) for row in found.table("unmatched-pycode")]
    assert ("transformer/lora[rank=4]", "300,000") in apart
    marks = found.text(
        next(i for i, a in found.all("svg") if "tokens-pycode-transformer-desc" in a.get("aria-labelledby", ""))
    )
    assert "Growth at 240,000 and 300,000 tokens." in marks
    without = results[~results["strategy"].eq("scratch") | (results["rung"] != 1)]
    assert "there is no from-scratch run to compare with" in Page(render(without)).text(0)


def _one_arm(name: str) -> Cut:
    return lambda r: r[r["arm"] == name]


def _scaled(factor: float) -> Cut:
    columns = ["loss", "bits_per_byte", *(n for n in RESULTS if n.startswith("flops"))]
    return lambda r: r.assign(**{name: r[name] * factor for name in columns})


LONG = "a" * 100 + "/" + "b" * 99
EDGES: dict[str, tuple[Cut, str]] = {
    "one grown arm": (
        _one_arm("transformer/net2net"),
        "There is no run from scratch at the target size at the full budget: growing cannot be compared",
    ),
    "one scratch arm": (_one_arm("transformer/scratch"), "It is the only arm at matched size."),
    "one arm trained on": (_one_arm("transformer/continue"), "No arm at matched size has a result at the full budget."),
    "all diverged": (
        lambda r: r.assign(status="diverged", loss=report_data.UNIFORM, bits_per_byte=8.0),
        "No grown arm at matched size finished: growing cannot be compared",
    ),
    "scratch diverged": (
        lambda r: r.assign(status=r["status"].where(r["strategy"] != "scratch", "diverged")),
        "No run from scratch at the target size finished: growing cannot be compared",
    ),
    "a seed of scratch diverged": (
        lambda r: r.assign(status=r["status"].where((r["strategy"] != "scratch") | (r["seed"] != 1), "diverged")),
        "Scratch did not finish with every seed, and counts as the uniform predictor there.",
    ),
    "one seed": (lambda r: r[r["seed"] == 1], "One seed says nothing about how stable this order is."),
    "equal": (lambda r: r.assign(loss=2.0, bits_per_byte=3.0), "level with scratch to four decimals"),
    "long names": (lambda r: r.assign(arm=r["arm"] + LONG, task=LONG, architecture=LONG), LONG),
    "huge": (_scaled(1e12), "bits per byte"),
    "tiny": (_scaled(1e-12), "bits per byte"),
}


@pytest.mark.parametrize("edge", EDGES)
def test_edges_render_and_say_so(edge: str) -> None:
    cut, said = EDGES[edge]
    results, curves, stages = transformer()
    assert said in Page(render(cut(results).reset_index(drop=True), curves, stages)).text(0)


def test_long_names_stay_apart_in_figures() -> None:
    names = [f"{'x' * 100}[{'y' * 90}, k={k}]" for k in range(3)]
    assert len({drawing.short(name) for name in names}) == 3
    assert {len(drawing.short(name)) for name in names} == {drawing.CHARACTERS}


def test_arms_of_one_figure_differ_in_colour_or_dash() -> None:
    """Nine strategies on each of two architectures, three of them on both: more than there are colours in all."""
    names = {"transformer": range(9), "tokenformer": range(6, 15)}
    arms = {
        architecture: tuple(report_data.Arm(strategy=f"method_{k:02}", offset=0.01) for k in own)
        for architecture, own in names.items()
    }
    look = drawing.looks(summary.annotate(report_data.tables(arms=arms)[0]))
    for architecture, own in names.items():
        mine = [look[f"{architecture}/method_{k:02}"] for k in own]
        assert len({(v.colour, str(v.dash)) for v in mine}) == len(mine)
        assert len({v.colour for v in mine}) >= 6
    for k in range(6, 9):
        one, other = (look[f"{architecture}/method_{k:02}"] for architecture in names)
        assert (one.colour, one.marker, one.dash) == (other.colour, other.marker, other.dash)


def test_many_arms_keep_their_looks_and_their_names() -> None:
    many = tuple(report_data.Arm(strategy=f"method_{k:02}", offset=0.002 * k) for k in range(24))
    arms = {"transformer": (*report_data.ARMS["transformer"][:3], *many)}
    results, curves, _ = report_data.tables(arms=arms)
    rows = summary.annotate(results)
    look = drawing.looks(rows)
    assert len({(v.colour, v.marker, str(v.dash)) for v in look.values()}) == len(look)
    rows = rows[~rows["arm"].isin([f"transformer/method_{k}" for k in range(15, 24)])]
    curves = summary.score(summary.tidy(curves, CURVES), rows)
    drawn = figures.draw(rows, curves, task="pycode", architecture="transformer", look=look)
    for figure in drawn:
        for k in range(15):
            assert f"method_{k:02}" in figure.svg
    height = float(re.findall(r'viewBox="0 0 \S+ (\S+)"', drawn[0].svg)[0])
    places = sorted(float(y) for y in re.findall(r'<text[^>]* y="(\S+)"[^>]*>method', drawn[0].svg))
    assert len(places) == 15
    assert all(b - a > 9 for a, b in itertools.pairwise(places))
    assert height > 15 * 12


def test_a_grid_of_schedules_stays_legible() -> None:
    """35 arms: colours by strategy, markers by schedule; scratch and the best are named, the rest drawn faint."""
    grid = tuple(
        report_data.Arm(strategy=f"method_{k}", label=f"method_{k}" + f" @at_{when}" * (when > 0), offset=offset)
        for offset, (k, when) in zip(np.linspace(0.01, 0.08, 35), itertools.product(range(5), range(7)), strict=True)
    )
    arms = {"transformer": (*report_data.ARMS["transformer"][:3], *report_data.ARMS["transformer"][-2:], *grid)}
    results, curves, _ = report_data.tables(arms=arms)
    rows = summary.annotate(results)
    look = drawing.looks(rows)
    assert len({(v.colour, v.marker, str(v.dash)) for v in look.values()}) == len(look)
    of = {look[f"transformer/{arm.label}"].label: look[f"transformer/{arm.label}"] for arm in grid}
    for k in range(5):
        assert len({(v.colour, str(v.dash)) for name, v in of.items() if f"method_{k}" in name}) == 1
    assert {look[arm].colour for arm in ("transformer/scratch", TWIN)} == {drawing.INK}
    curves = summary.score(summary.tidy(curves, CURVES), rows)
    *lines, dots = figures.draw(rows, curves, task="pycode", architecture="transformer", look=look)
    for figure in lines:
        places = sorted(
            float(y) for y in re.findall(r'<text[^>]* y="(\S+)"[^>]*>(?:method|scratch|zero|con)', figure.svg)
        )
        assert len(places) == drawing.NAMED
        assert all(b - a > 9 for a, b in itertools.pairwise(places))
        for name in ("scratch", "scratch[ffn]", "method_0", "method_0 @at_6"):
            assert f">{name}<" in figure.svg
        assert ">method_4 @at_6<" not in figure.svg
        # scratch@0 is not matched, nor is continue, which the view total draws all the same
        unmatched = 1 if figure is lines[0] else 0 if figure is lines[-1] else 2
        more = len(set(rows["arm"])) - drawing.NAMED - unmatched
        assert f">faint: {more} more arms<" in figure.svg
        assert f"{more} more arms are drawn faint" in figure.caption
        assert float(re.findall(r'viewBox="0 0 \S+ (\S+)"', figure.svg)[0]) < 72 * 5
    assert all(f">{name}<" in dots.svg for name in of)  # a row each


# ------------------------------------------------------------------------------------------------ verdicts


FEW = {"transformer": (*report_data.ARMS["transformer"][:4], report_data.ARMS["transformer"][6])}


@cache
def judged() -> Page:
    results, _, stages = report_data.tables(seeds=5, arms=FEW)
    claims, tests = report_data.verdicts()
    given = report_data.provenance() | {"tuned": report_data.tuned(results)}
    text = page.render(
        results.assign(tuned=True), pd.DataFrame(), stages, given, claims=claims, tests=tests,
        diagnostics=report_data.diagnostics(results), coordinates=report_data.coordinates(),
    )  # fmt: skip
    _check_harmless(text)
    return Page(text)


def _section(found: Page, name: str) -> str:
    return found.text(next(i for i, attrs in found.all("section") if attrs["id"] == name))


def test_the_first_section_says_of_each_claim_its_verdict_effect_and_p() -> None:
    found = judged()
    assert [attrs["id"] for _, attrs in found.all("section")][:2] == ["first", "verdicts"]
    cards = {attrs["id"]: found.text(i) for i, attrs in found.all("article")}
    assert list(cards) == ["claim-cost", "claim-destination", "claim-scale", "claim-capacity"]
    percent = f"{100 * math.expm1(-0.105):.2f}".replace("-", "−")
    assert cards["claim-cost"].startswith("supported cost Growing is cheaper.")
    assert f"{percent} % of FLOPs" in cards["claim-cost"]
    assert (
        f"95 %: {100 * math.expm1(-0.16):.1f} to {100 * math.expm1(-0.05):.2f} %".replace("-", "−")
        in (cards["claim-cost"])
    )
    assert "adjusted p: for < 0.0001, against 1" in cards["claim-cost"]
    assert cards["claim-destination"].startswith("contradicted destination")
    assert "+2.02 % of the loss" in cards["claim-destination"]
    assert "adjusted p: for 1, against 0.0123" in cards["claim-destination"]
    assert "+35.0 % of the norm" in cards["claim-scale"]
    assert "What is missing: a clearer effect." in cards["claim-scale"]
    assert "What is missing: it needs the task rank." in cards["claim-capacity"]
    assert "adjusted p" not in cards["claim-capacity"]
    text = _section(found, "verdicts")
    assert "Of 4 claims: 1 supported: cost; 1 contradicted: destination; 2 undecided: scale, capacity." in text
    assert "at least 5 seeds (this study has 5)" in text
    assert "within 0.5 %" in text


def test_every_test_of_a_claim_is_listed_with_its_rows_and_those_that_decide_nothing_apart() -> None:
    rests, beside = judged().table("tests-cost"), judged().table("tests-cost-beside")
    assert [row["task"][0] for row in rests] == ["mean of the tasks", "pycode", "grammar"]
    assert rests[0]["test"][0].startswith("pad is cheaperrests on transformer/pad")
    assert float(rests[0]["effect, 95 % interval"][1] or "") == -0.105
    assert [rests[0][f"p {side} unadjusted"][0] for side in ("for", "against")] == ["< 0.0001", "1"]
    assert rests[1]["p for unadjusted"][0] == words.DASH
    assert {row["test"][0].partition("rests")[0] for row in beside} == {"pad is cheaper, beside"}


def test_a_study_of_one_task_has_one_row_for_each_test() -> None:
    claims, tests = report_data.verdicts()
    one = tests[tests["task"].isin(["", "pycode"])]
    results = report_data.tables(seeds=5, arms=FEW)[0]
    found = Page(page.render(results, pd.DataFrame(), pd.DataFrame(), {}, claims=claims, tests=one))
    (row,) = found.table("tests-cost")
    assert (row["task"][0], row["p for unadjusted"][0]) == ("pycode", "< 0.0001")


def test_two_tests_of_one_name_on_different_tasks_stay_apart() -> None:
    claims, tests = report_data.verdicts()
    mine = tests[(tests["claim"] == "cost") & tests["decides"]]
    parts = [mine[mine["task"].isin(["", task])].assign(effect=k) for k, task in enumerate(("pycode", "grammar"))]
    results = report_data.tables(seeds=5, arms=FEW)[0]
    found = Page(page.render(results, pd.DataFrame(), pd.DataFrame(), {}, claims=claims, tests=pd.concat(parts)))
    assert [(row["task"][0], float(row["effect, 95 % interval"][1] or "")) for row in found.table("tests-cost")] == [
        ("pycode", 0.0),
        ("grammar", 1.0),
    ]


def test_too_few_seeds_are_said_once_and_no_test_is_shown() -> None:
    claims, tests = report_data.screened()
    found = Page(page.render(*report_data.tables(arms=FEW), report_data.provenance(), claims=claims, tests=tests))
    text = _section(found, "verdicts")
    assert (
        "No test is shown: this study has 3 seeds where a test needs 5 and learning rates that are not tuned for every "
        "arm. All 4 claims are undecided"
    ) in text
    assert not list(found.all("article"))
    assert [row["claim"][0] for row in found.table("claims")] == list(claims["claim"])
    assert "what is missing" not in found.table("claims")[0]
    assert not re.search(r"\bp\s*[<=]\s*0?\.\d", text)


def test_without_claims_the_section_says_what_is_missing() -> None:
    assert "There is no verdict: the claims of this study were not looked at" in _section(parsed(), "verdicts")
    said = "the claim cost cannot be used"
    assert f"There is no verdict: {said}." in _section(
        Page(render(report_data.tables()[0], no_claims=said)), "verdicts"
    )


# ------------------------------------------------------------------------------------------------ tests and sections


def _beside(rows: pd.DataFrame) -> pd.DataFrame:
    compared = summary.finals(summary.beside_scratch(summary.annotate(rows)))
    return compared[compared["ranked"]]


def test_the_matched_table_shows_the_paired_test_of_every_arm() -> None:
    results = report_data.tables(seeds=5, arms=FEW)[0]
    last = results[results["budget"] == 480_000].set_index(["arm", "seed"])["loss"].astype(float)
    logs = np.log(last["transformer/zero_pad"] / last["transformer/scratch"])
    test = scipy.stats.ttest_1samp(logs, 0.0)
    row = next(r for r in judged().table("matched-pycode") if r["arm"][1] == "transformer/zero_pad")
    text, value = row["against scratch, 95 % % of the loss"]
    assert float(value or "") == pytest.approx(logs.mean(), rel=1e-9)
    low, high = test.confidence_interval()
    assert text == f"{words.change(logs.mean())}{words.interval(float(low), float(high))}"
    assert f"unadjusted {words.p(float(test.pvalue))}" in row["p, Holm"][0]
    assert row["tied"][0] == "b"
    assert "sign flips" not in row["p, Holm"][0]  # five seeds cannot reach 0.05
    said = _section(judged(), "matched")
    assert "with its 95 % interval" in said
    assert "no interval and no test" not in judged().text(0)


def test_with_too_few_seeds_there_is_no_test() -> None:
    assert "There are points only, no interval and no test: this study has 3 seeds" in _section(parsed(), "matched")
    assert not [head for row in parsed().table("matched-pycode") for head in row if head.startswith("p, Holm")]


def test_holm_is_over_the_arms_beside_scratch_and_a_diverged_arm_has_no_t_test() -> None:
    found = contrasts.of_table(_beside(report_data.tables(seeds=6)[0]))
    tested = pd.DataFrame([dict(row) for row in found.arms.values()])
    assert set(tested["arm"]).isdisjoint({"transformer/scratch", "tokenformer/scratch", TWIN})
    spike = found.arms["transformer/spike"]
    assert math.isnan(spike["p"])
    assert spike["p_test"] == spike["p_sign"]
    adjusted = stats.holm(tested["p_test"], family=len(tested))
    assert tested["p_holm"].to_numpy() == pytest.approx(adjusted.to_numpy(), nan_ok=True)


@pytest.mark.parametrize("column", ["tokens", "data_fingerprint"])
def test_rows_that_must_not_be_compared_are_named_and_have_no_difference(column: str) -> None:
    results = report_data.tables(seeds=5, arms=FEW)[0]
    odd = (results["arm"] == "transformer/zero_pad") & (results["seed"] == 3)
    results.loc[odd, column] = 1 if column == "tokens" else "another"
    found = Page(render(results))
    text = found.text(0)
    assert "transformer/zero_pad on pycode is not compared with scratch: these rows cannot be compared: " in text
    assert "(pycode, seed 3)" in text
    row = next(r for r in found.table("matched-pycode") if r["arm"][1] == "transformer/zero_pad")
    assert row["minus scratch, equal tokens bits/byte"][1] is None
    assert row["minus scratch, equal FLOPs bits/byte"] == ("–must not be compared", None)


def test_compute_saved_is_of_stats_over_the_claims_losses() -> None:
    rows = summary.annotate(report_data.tables(seeds=5, arms=FEW)[0])
    curve, means, notes = saved.curves(rows, "pycode")
    evidence = Evidence(results=rows.assign(tuned=True, probe=False))
    test = comparison.cheaper(evidence, "transformer/zero_pad", "total")
    shown = means[(means["arm"] == "transformer/zero_pad") & (means["view"] == "total")].iloc[0]
    assert shown["effect"] == pytest.approx(test.effect, rel=1e-9)
    assert set(curve["view"]) == {"total"}
    assert [note.partition(",")[0] for note in notes] == ["In the view continued", "In the view ladder"]


def test_a_power_law_that_does_not_converge_is_said_and_not_drawn() -> None:
    results = report_data.tables(seeds=5, arms=FEW)[0]
    flat = results.assign(loss=results["loss"].where(results["strategy"] != "scratch", 2.0))
    rows = summary.annotate(flat)
    with mpl.rc_context(drawing.style()):
        figure = figures.loss_vs_compute(
            rows, summary.score(summary.tidy(pd.DataFrame(), CURVES), rows), drawing.looks(rows),
            task="pycode", architecture="transformer", view="total",
        )  # fmt: skip
    assert "No power law of scratch is drawn: the loss does not fall with cost." in figure.caption


def test_tuning_shows_its_trials_what_they_chose_and_what_lies_at_the_edge() -> None:
    text = _section(judged(), "tuning")
    assert "4 trials" in text
    assert "which no result uses" in text
    assert "On pycode, the lowest learning rate, 0.00200: transformer/net2net." in text
    chosen = {row["arm"][0]: row["learning rate, pycode"] for row in judged().table("choices")}
    assert chosen["transformer/zero_pad"] == ("0.00800", "0.008")
    assert chosen["transformer/net2net"] == ("0.00200edge", "0.002")
    data = judged().table("data-tuning-pycode")
    assert sum(row["finished"][0] == "False" for row in data) == len(data) / len(report_data.RATES)
    assert "not tuned: every arm has the learning rate that the study states, 0.0100." in _section(parsed(), "tuning")


def test_growth_shows_new_beside_old_at_growth_and_at_the_end() -> None:
    row = next(r for r in judged().table("growth-pycode") if r["arm"][1] == "transformer/zero_pad")
    assert row["activations, residual new / old"] == ("0.250×0.500× at the end", "0.25")
    assert row["alive share"][0] == "20.0 %30.0 % at the end"
    assert {r["who"][0] for r in judged().table("data-rank-pycode")} > {"source", "transformer/scratch"}
    assert "No diagnostics were recorded" in _section(parsed(), "growth")


def test_the_coordinate_check_has_its_section_where_it_was_made() -> None:
    assert "Coordinate check, transformer, mup" in _section(judged(), "coordinates")
    assert not [1 for _, attrs in parsed().all("section") if attrs["id"] == "coordinates"]


def test_architectures_from_scratch_alone_have_no_figure_and_stand_in_one_grid() -> None:
    results, curves, stages = report_data.tables(arms=FEW)
    other = results[results["strategy"] == "scratch"].copy()
    other["arm"], other["architecture"] = other["arm"].str.replace("transformer", "ffn-relu"), "ffn-relu"
    both = pd.concat([results.assign(nonlinearity="gelu"), other.assign(nonlinearity="relu")], ignore_index=True)
    both["loss"] = both["loss"].where(both["nonlinearity"] == "gelu", both["loss"] * 1.1)
    found = Page(render(both.assign(placement="ffn"), curves, stages))
    assert not [1 for _, attrs in found.all("figure") if "ffn-relu" in attrs["id"]]
    grid = {row["nonlinearity"][0]: row["in feed-forwards bits/byte"] for row in found.table("grid-pycode")}
    assert set(grid) == {"gelu", "relu"}
    assert "(ffn-relu)" in grid["relu"][0]


def test_every_section_is_harmless_and_its_ids_are_unique() -> None:
    results, _, stages = report_data.tables(seeds=5)
    claims, tests = report_data.verdicts()
    given = report_data.provenance() | {"tuned": report_data.tuned(results)}
    text = page.render(
        results, pd.DataFrame(), stages, given, claims=claims, tests=tests,
        diagnostics=report_data.diagnostics(results), coordinates=report_data.coordinates(),
    )  # fmt: skip
    _check_harmless(text)
    ids = Counter(attrs["id"] for _, attrs in Page(text).elements if "id" in attrs)
    assert [name for name, n in ids.items() if n > 1] == []


@pytest.mark.parametrize("part", ["no rows", "shares alone", "no growth", "no parts", "no values"])
def test_partial_diagnostics_render(part: str) -> None:
    results = report_data.tables(seeds=1, arms=FEW)[0]
    seen = report_data.diagnostics(results)
    cut = {
        "no rows": seen.iloc[:0],
        "shares alone": seen[seen["quantity"] == "alive_share"],
        "no growth": seen[seen["kind"] != "grow"],
        "no parts": seen[seen["part"] == "all"],
        "no values": seen.assign(value=None),
    }[part]
    found = Page(page.render(results, pd.DataFrame(), pd.DataFrame(), {}, diagnostics=cut))
    assert {row["arm"][1] for row in found.table("growth-pycode")} >= {"transformer/zero_pad"}


# ------------------------------------------------------------------------------------------------ looks


def _luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _contrast(a: str, b: str) -> float:
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast_is_aa(theme: int) -> None:
    css = (Path(page.__file__).parent / "page.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", re.findall(r":root \{(.*?)\}", css, re.DOTALL)[theme]))
    for ink in ("ink", "muted", "link"):
        for paper in ("paper", "raised"):
            assert _contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper)
    assert _contrast(colours["warn"], colours["warn-paper"]) >= 4.5
    assert _contrast(colours["ink"], colours["warn-paper"]) >= 4.5
    assert _contrast(colours["warn"], colours["paper"]) >= 4.5
    for k, hue in enumerate(drawing.PALETTE, start=1):
        assert _contrast(colours[f"hue{k}"], colours["paper"]) >= 4.5
        assert theme or colours[f"hue{k}"] == hue


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium (Debian: apt-get install chromium)")
@pytest.mark.parametrize("script", [True, False], ids=["script", "no script"])
def test_in_a_browser(tmp_path: Path, script: bool) -> None:
    from playwright.sync_api import sync_playwright

    path = tmp_path / "report.html"
    path.write_text(html(), encoding="utf-8")
    requests: list[str] = []
    problems: list[str] = []
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context(viewport={"width": 390, "height": 844}, java_script_enabled=script, offline=True)
        tab = context.new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: problems.append(message.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.on("dialog", lambda dialog: problems.append(dialog.message))
        tab.goto(path.as_uri())
        box = tab.locator("body").bounding_box()
        assert box is not None
        assert box["width"] <= 390
        assert tab.locator("svg.figure").first.is_visible()
        if script:
            assert tab.evaluate("document.documentElement.scrollWidth") <= 390
            tab.locator("#controls > details > summary").click()
            tab.get_by_role("radio", name="ladder").check(force=True)
            assert tab.locator("#figure-cost-ladder-pycode-transformer").is_visible()
            assert not tab.locator("#figure-cost-total-pycode-transformer").is_visible()
            first = tab.locator("#matched-pycode tbody tr").first
            for _ in range(2):  # ascending, then descending
                tab.locator("#matched-pycode th button").filter(has_text="loss, mean").press("Enter")
            assert "random_tokens" in first.inner_text()
            assert tab.locator("#matched-pycode th[aria-sort=descending]").count() == 1
        else:
            assert tab.locator("details[data-view]").count() == 3
            assert tab.locator("details[data-view] > summary").last.is_visible()
        assert tab.locator(".key:visible").count() >= 4
        for width, columns in ((700, 1), (1000, 1), (1300, 1), (1600, 2)):
            tab.set_viewport_size({"width": width, "height": 900})
            assert tab.locator(".key:not(.beneath):visible").count() == 0
            shown = [box for box in tab.locator(".picture").all() if box.is_visible()]
            assert all(box.evaluate("box => box.scrollWidth <= box.clientWidth") for box in shown)
            assert len({box.bounding_box()["x"] for box in shown}) == columns  # type: ignore[index]
        browser.close()
    assert requests == [path.as_uri()]
    assert problems == []


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_structure(parsed()), indent=1, ensure_ascii=False) + "\n")
