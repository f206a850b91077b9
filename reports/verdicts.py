"""The first page: each claim's verdict, with its effect, its p and every test that it rests on.

One idea: a claim is a row of `growbench.claim.CLAIMS`, its tests are rows of `growbench.claim.TESTS`; nothing is
tested here. Effects are log ratios there, changes in percent here: exp(x) - 1. That no claim has a p is said once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from growbench import stats
from growbench.claim import ALPHA, CLAIMS, TESTS
from growbench.reports import drawing, tables, words
from growbench.reports.tables import Cell, Head, Record, Spec, Table

VERDICTS = ("supported", "contradicted", "undecided")
ICONS = {"supported": "✓", "contradicted": "✗", "undecided": "?"}
OF = {"FLOPs": "of FLOPs", "norm": "of the norm"}
"""What a change is a share of, by the measure of a test; any other is a loss."""
WIDTH, LINE = 260, 14
"""Of a strip, in its own units, which are pixels: the strip, and each of its intervals."""


def verdicts(
    claims: pd.DataFrame | None, tests: pd.DataFrame | None, rows: pd.DataFrame, provenance: Mapping[str, Any]
) -> dict[str, Any]:
    """Words, a card for each claim, and in place of the cards one table where no claim could be tested."""
    if claims is None or claims.empty:
        why = provenance.get("no_claims") or "the claims of this study were not looked at when this page was written"
        return {"words": [], "missing": f"There is no verdict: {why}.", "cards": [], "compact": None, "tests": None}
    claims = claims.reindex(columns=list(CLAIMS))
    every = pd.DataFrame(columns=list(TESTS)) if tests is None else tests.reindex(columns=list(TESTS))
    found: dict[str, Any] = {"words": [_rules(len(claims), rows)], "missing": "", "cards": []}
    if claims[["p_for", "p_against"]].isna().all(axis=None):
        reasons = set(claims["missing"])
        found["words"].append(_no_test(claims, rows))
        shown = every[every["decides"].astype("boolean").fillna(False).astype(bool)]
        return found | {"compact": _compact(claims, len(reasons) > 1), "tests": _tests("all", shown, claim=True)}
    found["words"] += _counted(claims)
    found["cards"] = [_card(claim, every[every["claim"] == claim["claim"]]) for claim in claims.to_dict("records")]
    return found | {"compact": None, "tests": None}


def chips(claims: pd.DataFrame | None) -> list[dict[str, str]]:
    """Each claim in a word, with where its card is: none where there is no verdict at all."""
    if claims is None or claims.empty:
        return []
    cards = not claims.reindex(columns=list(CLAIMS))[["p_for", "p_against"]].isna().all(axis=None)
    return [
        {
            "claim": str(claim["claim"]),
            "verdict": str(claim["verdict"]),
            "icon": ICONS[claim["verdict"]],
            "place": _id(claim["claim"]) if cards else "verdicts",
        }
        for claim in claims.to_dict("records")
    ]


def counts(claims: pd.DataFrame) -> str:
    """How many claims have which verdict."""
    number = claims["verdict"].value_counts()
    return words.listing([f"{int(number.get(verdict, 0))} {verdict}" for verdict in VERDICTS])


def _rules(number: int, rows: pd.DataFrame) -> str:
    return (
        f"A verdict rests on differences within a seed. It needs at least {stats.SEEDS} seeds (this study has "
        f"{rows['seed'].nunique()}), tuned arms, matched size and equal tokens. Each claim has one p for it and one "
        f"against it, both adjusted by Holm over the {words.plural(number, 'claim')} of the study; it is decided where "
        f"one of them is below {ALPHA:g}. What must be equal has to lie within {words.percent(np.expm1(stats.MARGIN))}."
    )


def _counted(claims: pd.DataFrame) -> list[Markup]:
    """How many claims have each verdict, and which."""
    said = []
    for verdict in VERDICTS:
        names = [str(name) for name in claims.loc[claims["verdict"] == verdict, "claim"]]
        links = Markup(", ").join(Markup('<a href="#{}">{}</a>').format(_id(name), name) for name in names)
        said.append(
            Markup("<strong>{} {}</strong>{}").format(len(names), verdict, Markup(": ") + links if names else "")
        )
    return [Markup("Of {}: ").format(words.plural(len(claims), "claim")) + Markup("; ").join(said) + "."]


def _no_test(claims: pd.DataFrame, rows: pd.DataFrame) -> Markup:
    """That nothing is tested, and why, once."""
    lacking = []
    seeds = rows["seed"].nunique()
    if seeds < stats.SEEDS:
        lacking.append(f"{words.plural(seeds, 'seed')} where a test needs {stats.SEEDS}")
    if not rows["tuned"].fillna(False).all():
        lacking.append("learning rates that are not tuned for every arm")
    why = f": this study has {words.listing(lacking)}" if lacking else ""
    reasons = set(claims["missing"])
    if not lacking and len(reasons) == 1:
        why = f": {reasons.pop()}"
    said = Markup(
        "<strong>No test is shown</strong>{}. All {} are undecided; what follows are means, without interval."
    )
    return said.format(why, words.plural(len(claims), "claim"))


def _id(claim: object) -> str:
    return f"claim-{drawing.slug(claim)}"


# ------------------------------------------------------------------------------------------------ effects


def _effect(record: Record) -> Cell:
    """A change in percent, with its interval beneath where it has one."""
    value = record["effect"]
    if words.missing(value):
        return Cell(text=words.DASH)
    return Cell(
        text=Markup('{} <span class="of">{}</span><span class="sub">{}</span>').format(
            words.change(value), _of(record["measure"]), words.interval(record["low"], record["high"])
        ),
        value=repr(float(value)),
    )


def _of(measure: object) -> str:
    return OF.get(str(measure), "of the loss")


def _strip(tests: pd.DataFrame, headline: object) -> Markup:
    """Every deciding test's mean and interval on one axis, the margin as a band; the headline's point is filled."""
    known = tests[tests["effect"].notna()]
    values = [*known["effect"], *known["low"].dropna(), *known["high"].dropna(), 2 * stats.MARGIN, -2 * stats.MARGIN]
    low, high = min(values), max(values)
    height = LINE * max(len(known), 1) + 18

    def x(value: float) -> str:
        return f"{6 + (WIDTH - 12) * (value - low) / (high - low):.1f}"

    band = float(x(stats.MARGIN)) - float(x(-stats.MARGIN))
    drawn = [
        f'<rect x="{x(-stats.MARGIN)}" y="0" width="{band:.1f}" height="{height - 18}" class="band"/>'
        f'<path d="M{x(0)} 0V{height - 15}" class="zero"/>'
    ]
    for k, (name, mean, left, right) in enumerate(known[["test", "effect", "low", "high"]].itertuples(index=False)):
        y = LINE * (k + 0.5)
        if not words.missing(left) and not words.missing(right):
            drawn.append(f'<path d="M{x(left)} {y:g}H{x(right)}" class="span"/>')
        drawn.append(f'<circle cx="{x(mean)}" cy="{y:g}" r="4" class="{"full" if name == headline else "open"}"/>')
    for value, anchor in ((low, "start"), (high, "end")):
        drawn.append(f'<text x="{x(value)}" y="{height - 3}" text-anchor="{anchor}">{words.change(value)}</text>')
    if 0.2 < -low / (high - low) < 0.8:
        drawn.append(f'<text x="{x(0)}" y="{height - 3}" text-anchor="middle">0</text>')
    body = Markup("".join(drawn))  # numbers alone
    return Markup('<svg class="strip" aria-hidden="true" viewBox="0 0 {} {}">{}</svg>').format(WIDTH, height, body)


# ------------------------------------------------------------------------------------------------ cards and tables


def _card(claim: Mapping[Any, Any], tests: pd.DataFrame) -> dict[str, Any]:
    """One claim: what the template shows of it."""
    decides = tests["decides"].astype("boolean").fillna(False).astype(bool)
    rests, beside = tests[decides], tests[~decides]
    single = (rests["task"] != "").groupby(_numbers(rests)).transform("any")  # others stand for a finding
    name, means = str(claim["claim"]), rests[(rests["task"] == "") & single]
    effect = claim["effect"]
    return {
        "id": _id(name),
        "claim": name,
        "statement": claim["statement"],
        "verdict": claim["verdict"],
        "icon": ICONS[claim["verdict"]],
        "effect": "" if words.missing(effect) else f"{words.change(effect)} {_of(claim['measure'])}",
        "interval": words.interval(claim["low"], claim["high"]),
        "test": "" if words.missing(claim["test"]) else claim["test"],
        "p": _adjusted(claim),
        "missing": "" if words.missing(claim["missing"]) else claim["missing"],
        "strip": _strip(means, claim["test"]) if means["effect"].notna().any() else "",
        "number": len(means),
        "tests": _tests(name, rests) if len(means) else None,
        "beside": _tests(f"{name}-beside", beside, beside=True) if len(beside) else None,
    }


def _adjusted(claim: Mapping[Any, Any]) -> str:
    if words.missing(claim["p_for"]) and words.missing(claim["p_against"]):
        return ""
    return f"adjusted p: for {words.p(claim['p_for'])}, against {words.p(claim['p_against'])}"


def _tests(name: str, tests: pd.DataFrame, *, beside: bool = False, claim: bool = False) -> Table:
    """Tests, each with its mean over tasks and its tasks; of one task a single row."""
    records: list[dict[Any, Any]] = []
    for _, rows in tests.groupby(_numbers(tests)):
        mean, each = rows[rows["task"] == ""].to_dict("records"), rows[rows["task"] != ""].to_dict("records")
        if len(each) == 1 and mean:
            records.append({**mean[0], "task": each[0]["task"], "mean": True})
        else:
            joined = "of those below" if mean and mean[0]["n"] else words.DASH  # it stands for a finding
            records += [{**row, "task": "mean of the tasks" if each else joined, "mean": True} for row in mean]
            records += [{**row, "mean": False} for row in each]
    specs: list[Spec] = [
        (Head(text="test"), _name),
        (Head(text="task"), lambda record: Cell(text=str(record["task"]))),
        (Head(text="effect, 95 % interval", number=True), _effect),
        (Head(text="p for", unit="unadjusted", number=True), _p("p_for")),
        (Head(text="p against", unit="unadjusted", number=True), _p("p_against")),
        (Head(text="seeds", number=True), lambda record: tables.plain(int(record["n"]))),
        (Head(text="note"), _why),
    ]
    if claim:
        specs.insert(0, (Head(text="claim"), lambda record: Cell(text=str(record["claim"]))))
    what = "Shown beside, and deciding nothing" if beside else "What the verdict rests on"
    return tables.make(
        records,
        specs,
        lambda record: "" if record["mean"] else "part",
        name=f"tests-{drawing.slug(name)}",
        title=f"{what}: {name}",
        caption=f"{what}. Changes are of the first arm against the second, exp(mean log ratio) − 1.",
    )


def _numbers(tests: pd.DataFrame) -> pd.Series:
    """Which test a row is of: each begins with its mean over tasks, and two may have one name, on different tasks."""
    return (tests["task"] == "").cumsum()


def _name(record: Record) -> Cell:
    """The test's name, and the arms it rests on where that does not say them."""
    name, arms = str(record["test"]), str(record["rows"])
    told = all(arm in name for arm in arms.split(", "))
    below = "" if told or not record["mean"] else Markup('<span class="sub why">rests on {}</span>').format(arms)
    return Cell(text=tables.breaking(name) + below)


def _p(name: str) -> Any:
    return lambda record: tables.formatted(words.p, record[name])


def _why(record: Record) -> Cell:
    return Cell(text="" if words.missing(record["why"]) else str(record["why"]))


def _compact(claims: pd.DataFrame, reasons: bool) -> Table:
    """One row per claim, without a verdict."""
    specs: list[Spec] = [
        (Head(text="claim"), lambda record: Cell(text=str(record["claim"]))),
        (Head(text="statement"), lambda record: Cell(text=str(record["statement"]))),
        (Head(text="effect, mean", number=True), _effect),
        (Head(text="of the comparison"), lambda record: Cell(text=tables.breaking(_said(record["test"])))),
    ]
    if reasons:
        specs.append((Head(text="what is missing"), lambda record: Cell(text=_said(record["missing"]))))
    return tables.make(
        claims.to_dict("records"),
        specs,
        lambda record: "",
        name="claims",
        title="Claims",
        caption="The claims, all undecided, and one comparison of each: a mean, no interval and no test.",
    )


def _said(value: object) -> str:
    return words.DASH if words.missing(value) else str(value)
