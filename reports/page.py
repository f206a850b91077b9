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
import numpy as np
import pandas as pd
import yaml
from markupsafe import Markup

from growbench import stats
from growbench.reports import (
    contrasts,
    drawing,
    figures,
    growth,
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
) -> str:
    """The report as HTML, from the tables of `growbench.results`; whatever is not there yet is said to be missing.

    claims, tests: of `growbench.claim.tabulate`; coordinates: of `growbench.coordinates.measure`.
    """
    rows = summary.annotate(results)
    curves, stages = summary.score(summary.tidy(curves, CURVES), rows), summary.tidy(stages, STAGES)
    spec = yaml.safe_load(provenance.get("study") or "") or {}
    look = drawing.looks(rows)
    cells = summary.cells(rows)
    last = summary.finals(rows)
    compared = summary.finals(summary.beside_scratch(rows))
    compared = compared[compared["ranked"]]
    tests_of = {str(task): contrasts.of_table(own) for task, own in compared.groupby("task", sort=False)}
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
        answers=prose.answers(rows, cells),
        tasks=_figures(rows, curves, cells, look),
        growth=_by_task(growth.growth(diagnostics, rows, look)),
        coordinates=[] if coordinates is None or coordinates.empty else [
            _shown(figure) for figure in checks.draw(coordinates)
        ],
        grids=[grid for task in tests_of if (grid := tables.grid(compared, task, tests_of))],
        tuning=_with_figures(tuning.tuning(provenance, spec, rows, look)),
        views=summary.VIEWS,
        matched=[
            {"table": tables.matched(rows, compared, task, own), "notes": own.notes, "tested": bool(own.arms)}
            for task, own in tests_of.items()
        ],
        tested=prose.tested(rows),
        midway=[table for task in summary.unique(rows["task"]) for table in tables.midway(rows, task)],
        sterile=prose.sterile(last),
        unmatched=[tables.unmatched(rows, task) for task in summary.unique(summary.others(rows)["task"])],
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


def _with_figures(section: dict[str, Any]) -> dict[str, Any]:
    """A section with its figures ready for the template."""
    return section | {"figures": [_shown(figure) for figure in section["figures"]]}


def _by_task(section: dict[str, Any]) -> dict[str, Any]:
    """The same of a section with tasks."""
    return section | {"tasks": [_with_figures(task) for task in section["tasks"]]}


def _figures(
    rows: pd.DataFrame, curves: pd.DataFrame, cells: Sequence[tuple[str, str]], look: dict[str, drawing.Look]
) -> list[dict[str, Any]]:
    """Per task: the cost views, the token curves and the paired differences, an entry per architecture in each.

    Each view also holds the compute-saved curves, their means and the power laws.
    """
    found = []
    for task in dict(cells):
        drawn = [
            [_shown(figure) for figure in figures.draw(rows, curves, task=task, architecture=architecture, look=look)]
            for of, architecture in cells
            if of == task
        ]
        *views, tokens, paired = (list(kind) for kind in zip(*drawn, strict=True))
        curve, means, notes = saved.curves(rows, task)
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
        "key": [(label, Markup(swatch)) for label, swatch in figure.key],  # numbers and colours of drawing.py alone
        "data": tables.drawn(figure),
    }
