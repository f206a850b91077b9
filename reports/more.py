"""Figures and tables of plugins: drawn as they come, escaped like all the rest; one that fails says so on the page."""

import inspect
from collections.abc import Mapping
from typing import Any

import matplotlib as mpl
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure as Canvas

from growbench.reports import drawing, tables


def more(figures: Mapping[str, Any], results: pd.DataFrame) -> list[dict[str, Any]]:
    """Per plugin its title, how to read it, and a figure, a table, or why there is neither."""
    found = []
    for name, figure in figures.items():
        told = inspect.getdoc(type(figure)) or name
        title, _, caption = told.partition("\n")
        about = {"title": title.rstrip("."), "caption": " ".join(caption.split()), "name": drawing.slug("own", name)}
        try:
            with mpl.rc_context(drawing.style()):
                drawn = figure.draw(results)
                shown = {"figure": None, "table": None, "why": ""} | _shown(drawn, figure.data(results), about)
        except (Exception, SystemExit) as error:  # a plugin's code may be anybody's
            shown = {"figure": None, "table": None, "why": f"{name} failed: {type(error).__name__}: {error}"}
        if shown["figure"] or shown["table"] or shown["why"]:
            found.append(about | shown)
    return found


def _shown(drawn: Any, data: pd.DataFrame, about: Mapping[str, str]) -> dict[str, Any]:
    if drawn is None:
        return {}
    if isinstance(drawn, pd.DataFrame):
        return {"table": tables.frame(drawn, name=about["name"], title=about["title"], caption=about["caption"])}
    if not isinstance(drawn, Canvas):
        raise TypeError(f"draw gives {type(drawn).__name__}, and no matplotlib Figure or DataFrame")
    reads = about["caption"] or "A figure of a plugin"
    figure = drawing.figure(
        drawn, name=about["name"], title=about["title"], reads=reads, caption=about["caption"], table=data
    )
    svg = Markup(figure.svg)  # matplotlib escapes its texts, drawing.py its title and description
    return {"figure": {**vars(figure), "svg": svg, "data": tables.drawn(figure), "key": []}}
