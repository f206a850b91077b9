"""What the command line says: results to stdout as words or JSON, progress and errors to stderr."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from growbench.launch import Event


_UNSEEN = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}
"""Control characters: from a stranger's folder they would steer the terminal."""


def say(sentence: str) -> None:
    """Print a sentence to stderr."""
    print(sentence.translate(_UNSEEN), file=sys.stderr)


def print_json(value: object) -> None:
    """Print a value as indented JSON to stdout."""
    print(json.dumps(value, indent=2, default=str))


def print_words(value: Mapping[str, Any], as_json: bool) -> None:
    """Print a mapping: first what fits `key: value`, then the lists of rows as tables."""
    if as_json:
        print_json(value)
        return
    console = Console(markup=False, highlight=False, emoji=False)
    if not console.is_terminal:
        console.width = 1000  # a pipe has no edge to wrap at
    rows = {key: item for key, item in value.items() if isinstance(item, list) and item and isinstance(item[0], dict)}
    for key, item in value.items():
        if key not in rows:
            console.print(f"{key.replace('_', ' ')}: {_words(item)}")
    for key, table in rows.items():
        console.print("", key, _table(table), sep="\n")


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in rows[0]:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_words(cell)) for cell in row.values()))
    return table


def _words(value: object) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.4g}"
        case int():
            return f"{value:,}"
        case None:
            return "-"
        case Mapping():
            return ", ".join(f"{key}: {_words(item)}" for key, item in value.items()) or "none"
        case list():
            return ", ".join(map(_words, value)) or "none"
    return str(value).translate(_UNSEEN)


# --- progress --------------------------------------------------------------------------------------------------------


class Clock:
    """Time left, from the speed of the tokens trained since the start; cached ones took no time and do not count."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now, self._start = now, now()
        self._last = self._cached = 0

    def left(self, event: "Event") -> str:
        """Return "about 3 min left", or "" before anything was trained."""
        if event.kind == "cached":
            self._cached += event.tokens_done - self._last
        self._last = event.tokens_done
        trained, elapsed = event.tokens_done - self._cached, self._now() - self._start
        if trained <= 0 or elapsed <= 0:
            return ""
        seconds = (event.tokens_total - event.tokens_done) * elapsed / trained
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"


@contextmanager
def progress() -> Iterator[Callable[["Event"], None]]:
    """What shows a launcher's events: a live bar in a terminal, plain lines elsewhere."""
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    with _bar(console) if console.is_terminal else _lines() as show:
        yield show


@contextmanager
def _bar(console: Console) -> Iterator[Callable[["Event"], None]]:
    columns = (BarColumn(), TaskProgressColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    clock = Clock()
    with Progress(*columns, console=console, transient=True) as live:
        bar = live.add_task("", total=None)

        def show(event: "Event") -> None:
            if event.kind in ("failed", "log"):
                live.console.print(_line(event))
            words = ", ".join(filter(None, (clock.left(event), event.label)))
            live.update(bar, completed=event.done, total=event.total, description=words)

        yield show


@contextmanager
def _lines(every: float = 10.0, now: Callable[[], float] = time.monotonic) -> Iterator[Callable[["Event"], None]]:
    """Plain lines for a log: all failures and notes, the rest at most once in `every` seconds."""
    clock, next_at = Clock(now), now()

    def show(event: "Event") -> None:
        nonlocal next_at
        left = clock.left(event)
        if (
            event.kind in ("failed", "log")
            or now() >= next_at
            or (event.kind != "started" and event.done == event.total)
        ):
            say(_line(event) + (f" ({left})" if left else ""))
            next_at = now() + every

    yield show


def _line(event: "Event") -> str:
    return f"[{event.done}/{event.total}] {event.kind} {event.label}" + (f": {event.text}" if event.text else "")
