"""The page: result tables in, one self-contained HTML file out.

Everything that a plugin or a user wrote passes through the template's autoescape; only figures, style and script, which
are made here, are marked safe. The page's content policy allows no request and no script but its own.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import jinja2
import matplotlib as mpl
import numpy as np
import pandas as pd
import yaml
from markupsafe import Markup

from growbench import stats
from growbench.reports import (
    cite,
    contrasts,
    drawing,
    figures,
    growth,
    more,
    overview,
    plain,
    prose,
    saved,
    summary,
    tables,
    tuning,
    verdicts,
    words,
)
from growbench.reports import coordinates as checks
from growbench.results import CURVES, STAGES

_UNSEEN = {*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)} - {ord(kept) for kept in "\t\n\r"}
_INVISIBLE = dict.fromkeys(_UNSEEN, "\N{REPLACEMENT CHARACTER}")


def render(
    results: pd.DataFrame,
    curves: pd.DataFrame,
    stages: pd.DataFrame,
    provenance: Mapping[str, Any],
    *,
    claims: pd.DataFrame | None = None,
    tests: pd.DataFrame | None = None,
    diagnostics: pd.DataFrame | None = None,
    coordinates: pd.DataFrame | None = None,
    own: Mapping[str, Any] | None = None,
) -> str:
    """The report as HTML, from the tables of `growbench.results`; whatever is not there yet is said to be missing.

    claims, tests: of `growbench.claim.tabulate`; coordinates: of `growbench.coordinates.measure`; own: figures of
    plugins by name, of `growbench.figure.known`.
    """
    rows = summary.annotate(results)
    curves, stages = summary.score(summary.tidy(curves, CURVES), rows), summary.tidy(stages, STAGES)
    spec = yaml.safe_load(provenance.get("study") or "") or {}
    look = drawing.looks(rows)
    cells = summary.cells(rows)
    last = summary.finals(rows)
    compared = summary.finals(summary.beside_scratch(rows))
    compared = compared[compared["ranked"]]
    saving = {task: saved.curves(rows, task) for task in dict(cells)}
    tests_of = {str(task): contrasts.of_table(own) for task, own in compared.groupby("task", sort=False)}
    matched: list[dict[str, Any]] = [
        {"table": tables.matched(rows, compared, task, own), "notes": own.notes, "tested": bool(own.arms)}
        for task, own in tests_of.items()
    ]
    midway = [table for task in summary.unique(rows["task"]) for table in tables.midway(rows, task)]
    unmatched = [tables.unmatched(rows, task) for task in summary.unique(summary.others(rows)["task"])]
    sizes = list(dict.fromkeys(t.size for t in (*(m["table"] for m in matched), *midway, *unmatched)))
    grown_places = list(dict.fromkeys(architecture for _, architecture in cells))
    css, js = _resource("page.css"), _resource("page.js")
    return _environment().get_template("page.html").render(
        growbench=provenance.get("growbench", "of unknown version"),
        study=next(iter(rows["study"].dropna()), spec.get("study", "unnamed")),
        about=spec.get("about", ""),
        banners=prose.banners(rows, provenance, claims),
        facts=prose.facts(rows, spec),
        verdicts=verdicts.verdicts(claims, tests, rows, provenance),
        margin=words.percent(np.expm1(stats.MARGIN)),
        metrics=prose.metrics(rows),
        lead=prose.lead(rows),
        gaps=summary.gaps(rows, spec, provenance.get("planned_rows")),
        first=_first(rows, curves, cells, look),
        strategies_say=plain.strategies(rows, saving),
        chips=verdicts.chips(claims),
        answers=prose.answers(rows, cells),
        tasks=_figures(rows, curves, cells, look, saving),
        growth=_by_task(growth.growth(diagnostics, curves, rows, look)),
        coordinates=[] if coordinates is None or coordinates.empty else [
            _shown(figure) for figure in checks.draw(coordinates)
        ],
        grids=[grid for task in tests_of if (grid := tables.grid(compared, task, tests_of))],
        tuning=_with_figures(tuning.tuning(provenance, spec, rows, look)),
        views=summary.VIEWS,
        own=more.more(own or {}, rows),
        arms=_arms(look),
        sizes=sizes,
        matched=matched,
        tested=prose.tested(rows),
        midway=midway,
        sterile=prose.sterile(last),
        unmatched=unmatched,
        forests=[_shown(f) for f in (overview.forest(tests_of, rows, look, place) for place in grown_places) if f],
        ties=[_shown(f) for f in (overview.ties(compared, look, task) for task in tests_of) if f],
        bars=[_shown(f) for f in (overview.ledger(rows, look, task) for task in list(dict(cells))[:1]) if f],
        ledger={"words": prose.spending(stages), "spent": tables.spent(stages), "paths": tables.paths(rows)},
        failures={
            "words": prose.failing(rows, stages),
            "rows": tables.failed_rows(rows),
            "stages": tables.failed_stages(stages),
            "skipped": tables.pairs(
                "skipped", "Not run", "Arms that were not run, and why.", provenance.get("skipped") or {}
            ),
        },
        again=prose.again(rows, provenance),
        commands=tables.commands(rows),
        bibtex=cite.bibtex(provenance),
        definitions=tables.definitions(),
        provenance=tables.origin(provenance),
        data=tables.data(provenance),
        packages=tables.pairs("packages", "Packages", "Installed packages.", provenance.get("packages") or {}),
        strategies=provenance.get("strategies") or [],
        study_file=provenance.get("study", ""),
        css=Markup(css),
        js=Markup(js),
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(js.encode()).digest()).decode()}",
    )  # fmt: skip


def beside(made: Sequence[Mapping[str, Any]], compared: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Folders beside each other, as HTML: how each was made, and the arms of each pair of them."""
    origin = tables.frame(pd.DataFrame(made), name="made", title="How each was made", caption="How each was made.")
    pairs = [tables.compared(records, name=drawing.slug("pair", k), title=title)
             for k, (title, records) in enumerate(compared.items())]  # fmt: skip
    css = Markup(_resource("page.css"))
    return _environment().get_template("beside.html").render(made=origin, pairs=pairs, css=css)


def waiting(why: str) -> str:
    """A page in place of a report that cannot be made yet."""
    return _environment().get_template("waiting.html").render(why=why, css=Markup(_resource("page.css")))


def _environment() -> jinja2.Environment:
    loader = jinja2.FunctionLoader(_resource)
    return jinja2.Environment(
        autoescape=True, finalize=_visible, undefined=jinja2.StrictUndefined, loader=loader, trim_blocks=True
    )


def _visible(value: object) -> object:
    """Text without control characters and lone surrogates, which no page can hold."""
    return value.translate(_INVISIBLE) if isinstance(value, str) else value


def _resource(name: str) -> str:
    return (files("growbench.reports") / name).read_text(encoding="utf-8").strip()


SWATCHES = 60
"""With so many arms their list has no swatches: they are told apart in no figure."""


def _arms(look: Mapping[str, drawing.Look]) -> list[dict[str, Any]]:
    """Every arm by its name, as a reader may hide it."""
    few = len(look) <= SWATCHES
    return [
        {"name": name, "index": one.index, "swatch": Markup(drawing.swatch(one)) if few else ""}
        for name, one in look.items()
    ]


def _with_figures(section: dict[str, Any]) -> dict[str, Any]:
    """A section with its figures ready for the template."""
    return section | {"figures": [_shown(figure) for figure in section["figures"]]}


def _by_task(section: dict[str, Any]) -> dict[str, Any]:
    """The same of a section with tasks."""
    return section | {"tasks": [_with_figures(task) for task in section["tasks"]]}


FIRST = 7
"""How many arms the first figure draws."""


def _first(
    rows: pd.DataFrame, curves: pd.DataFrame, cells: Sequence[tuple[str, str]], look: dict[str, drawing.Look]
) -> list[dict[str, Any]]:
    """The one figure that matters, per task: few arms of the architecture that has most, total cost."""
    found = []
    for task in dict(cells):
        grown = summary.grown(rows[rows["task"] == task])
        homes = [architecture for of, architecture in cells if of == task]
        place = max(homes, key=lambda name: grown.loc[grown["architecture"] == name, "arm"].nunique())
        mine = curves[(curves["task"] == task).fillna(False)]
        where: dict[str, Any] = {"task": task, "architecture": place, "view": "total", "most": FIRST, "name": "first"}
        with mpl.rc_context(drawing.style()):
            found.append({"name": task, "figure": _shown(figures.loss_vs_compute(rows, mine, look, **where))})
    return found


def _figures(
    rows: pd.DataFrame,
    curves: pd.DataFrame,
    cells: Sequence[tuple[str, str]],
    look: dict[str, drawing.Look],
    saving: Mapping[str, tuple[pd.DataFrame, pd.DataFrame, list[str]]],
) -> list[dict[str, Any]]:
    """Per task: the cost views, the token curves and the paired differences, an entry per architecture in each.

    Each view also holds the compute-saved curves, their means and the power laws.
    """
    found, by_task = [], dict(tuple(curves.groupby("task")))
    for task in dict(cells):
        mine = by_task.get(task, curves.iloc[:0])
        drawn = [
            [_shown(figure) for figure in figures.draw(rows, mine, task=task, architecture=architecture, look=look)]
            for of, architecture in cells
            if of == task
        ]
        *views, tokens, paired = (list(kind) for kind in zip(*drawn, strict=True))
        curve, means, notes = saving[task]
        places = [architecture for of, architecture in cells if of == task]
        shown = []
        for (name, (_, counts)), kind in zip(summary.VIEWS.items(), views, strict=True):
            where = [{"task": task, "architecture": place, "view": name} for place in places]
            more = [_shown(one) for at in where if (one := saved.figure(curve, rows, look, **at))]
            shown.append({"name": name, "counts": counts, "figures": kind, "saved": more})
        told = {"saved": saved.table(means, task) if len(means) else None, "laws": saved.fits(rows, task)}
        found.append({"name": task, "views": shown, "tokens": tokens, "paired": paired, "notes": notes} | told)
    return found


def _shown(figure: drawing.Figure) -> dict[str, Any]:
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "svg": Markup(figure.svg),  # matplotlib escapes its texts, drawing.py its title and description
        "beneath": figure.beneath,
        "key": [
            (label, Markup(swatch), arm) for label, swatch, arm in figure.key
        ],  # numbers and colours of drawing.py alone
        "data": tables.drawn(figure),
    }
