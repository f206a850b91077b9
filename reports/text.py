"""The report as text to paste: Markdown for an issue, LaTeX tables for an appendix.

One idea: the same tables as the page's, cut to the columns that a reader without the page needs, as plain strings.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import yaml

from growbench.reports import contrasts, plain, prose, saved, summary, verdicts, words

Grid = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Caption, headings, rows."""


def grids(results: pd.DataFrame, provenance: Mapping[str, Any], claims: pd.DataFrame | None) -> list[Grid]:
    """The verdicts, then per task the arms at matched size, lowest mean loss first."""
    rows, found = summary.annotate(results), list[Grid]()
    if claims is not None and len(claims):
        heads = ("claim", "verdict", "effect", "95 % interval", "p for", "p against")
        found.append(("Verdicts.", heads, [_verdict(claim) for claim in claims.to_dict("records")]))
    compared = summary.finals(summary.beside_scratch(rows))
    compared = compared[compared["ranked"]]
    for task, own in compared.groupby("task", sort=False):
        found.append(_matched(str(task), own, contrasts.of_table(own, ties=False), rows))
    return found


def _verdict(claim: Mapping[Any, Any]) -> Sequence[str]:
    effect = f"{words.change(claim['effect'])} {verdicts.OF.get(str(claim['measure']), 'of the loss')}"
    ends = words.interval(claim["low"], claim["high"]) or words.DASH
    shown = words.DASH if words.missing(claim["effect"]) else effect
    return str(claim["claim"]), str(claim["verdict"]), shown, ends, words.p(claim["p_for"]), words.p(claim["p_against"])


def _matched(task: str, own: pd.DataFrame, tests: contrasts.Tested, rows: pd.DataFrame) -> Grid:
    metric = summary.metric(rows[rows["task"] == task])
    heads = ("arm", f"loss ({metric.unit})", "seeds", "against scratch", "95 % interval", "p, Holm", "cost", "status")
    lines = []
    for record in summary.by_arm(own):
        test = tests.arms.get(record["arm"], {})
        lines.append(
            (str(record["arm"]), words.loss(record["score"]), str(len(record["seeds"])),
             words.change(test.get("effect")), words.interval(test.get("low"), test.get("high")) or words.DASH,
             words.p(test.get("p_holm")), words.flops(record["flops"]), str(record["status"]))
        )  # fmt: skip
    budget = words.count(summary.full_budget(rows))
    return (
        f"Arms at matched size on {task}, at the full budget of {budget} tokens, lowest mean loss first.",
        heads,
        lines,
    )


def markdown(results: pd.DataFrame, provenance: Mapping[str, Any], claims: pd.DataFrame | None = None) -> str:
    """The study's name, what to know first, a sentence per strategy, and the tables, as GitHub's Markdown."""
    rows = summary.annotate(results)
    spec = yaml.safe_load(provenance.get("study") or "") or {}
    name = next(iter(rows["study"].dropna()), spec.get("study", "unnamed"))
    parts = [f"## growbench: {_md(name)}"]
    if spec.get("about"):
        parts.append(_md(spec["about"]))
    parts += [f"> **{_md(b['word'])}** {_md(b['text'])}" for b in prose.banners(rows, provenance, claims)]
    saving = {task: saved.curves(rows, task) for task, _ in summary.cells(rows)}
    for task in plain.strategies(rows, saving):
        said = [f"- {_md(sentence.striptags())}" for sentence in (*task["sentences"], *task["more"])]
        parts += [f"### {_md(task['name'])}, in a sentence each", "\n".join(said)]
    for caption, heads, lines in grids(results, provenance, claims):
        parts += [_md(caption), _table(heads, lines)]
    version, sha = provenance.get("growbench", "unknown"), provenance.get("git_sha") or "not recorded"
    parts.append(f"growbench {_md(version)}, commit {_md(sha)}, `{_code(provenance.get('command') or 'not recorded')}`")
    return "\n\n".join(parts) + "\n"


def _table(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    shown = [heads, ["---"] + ["---:"] * (len(heads) - 1), *lines]
    return "\n".join(
        "| " + " | ".join(cell if k == 1 else _md(cell) for cell in line) + " |" for k, line in enumerate(shown)
    )


def _md(text: object) -> str:
    """One line of text in which nothing is markup."""
    line = " ".join(_printable(text).split())
    return re.sub(r"([\\`*_{}\[\]<>#|~&])", r"\\\1", line)


def _code(text: object) -> str:
    return _printable(text).replace("`", "'").replace("|", "\\|")


def _printable(text: object) -> str:
    return "".join(c if c.isprintable() else " " for c in str(text))


def latex(results: pd.DataFrame, provenance: Mapping[str, Any], claims: pd.DataFrame | None = None) -> str:
    """The same tables for LaTeX, with booktabs."""
    version, sha = provenance.get("growbench", "unknown"), provenance.get("git_sha") or "not recorded"
    parts = [f"% growbench {_printable(version)}, commit {_printable(sha)}; needs \\usepackage{{booktabs}}"]
    for caption, heads, lines in grids(results, provenance, claims):
        body = [" & ".join(map(_tex, line)) + r" \\" for line in lines]
        above = [r"\begin{table}", r"\centering\small", rf"\caption{{{_tex(caption)}}}"]
        above += [rf"\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule"]
        above += [" & ".join(map(_tex, heads)) + r" \\", r"\midrule"]
        parts.append("\n".join([*above, *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]))
    return "\n\n".join(parts) + "\n"


TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
TEX |= {"−": r"$-$", "×": r"$\times$", "–": "--", "<": r"$<$", ">": r"$>$", "±": r"$\pm$", "’": "'", "…": r"\ldots{}"}


def _tex(text: object) -> str:
    """Text in which nothing is a command."""
    return "".join(TEX.get(c, c) for c in " ".join(_printable(text).split()))
