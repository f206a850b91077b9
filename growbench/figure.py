"""Figures and tables of your own in the report: one function of the results each.

A plugin is a file with one class derived from `Figure`. Its docstring's first line is the title; what follows says how
to read it. `draw` gets `growbench.results.RESULTS` as a DataFrame and returns a matplotlib figure, or a DataFrame that
is shown as a table. Built-in ones lie in growbench/figures; others are given with --plugin, or installed under the
entry-point group growbench.figures.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from growbench import plugins


class Figure(ABC):
    """Base class of a figure or table of the report."""

    @abstractmethod
    def draw(self, results: pd.DataFrame) -> Any:
        """Return a matplotlib Figure, a DataFrame, or None where these results have nothing to show."""

    def data(self, results: pd.DataFrame) -> pd.DataFrame:
        """Return the numbers behind the drawing, shown beneath it and offered as CSV; without rows where none are."""
        return pd.DataFrame()


def known(extra: Sequence[Path] = ()) -> dict[str, Figure]:
    """Every figure by name, built in, installed, or of the files and folders given. ValueError for a broken one."""
    found: dict[str, Figure] = {}
    for name, plugin in plugins.discover("figure", extra).items():
        loaded = plugins.load("figure", name, extra)
        plugins.derived(plugin, loaded, Figure)
        with plugins.blamed(plugin, "cannot be used"):
            found[name.replace("_", "-")] = loaded()
    return found
