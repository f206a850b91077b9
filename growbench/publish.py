"""Results as something to read: the page, text to paste, folders beside each other, and a page that follows a run.

Everything is made from result folders at the moment of asking; nothing is kept but the file that is written.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from growbench import claim, figure, tables
from growbench.evidence import Evidence
from growbench.folders import Frames, planned, read, write_page

Format = Literal["html", "md", "latex"]
SUFFIX: Mapping[str, str] = {"html": "html", "md": "md", "latex": "tex"}


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the folders of one study hold, and the verdicts on it: None where the rows must not be compared."""

    frames: Frames
    about: dict[str, Any]
    coordinates: pd.DataFrame
    claims: pd.DataFrame | None
    tests: pd.DataFrame | None


def gather(folders: Sequence[Path], plugin: Sequence[Path] = ()) -> Found:
    """Read folders of one study, as far as they have come, and decide the claims."""
    frames, about = read(folders)
    coordinates = pd.concat([tables.coordinates(folder) for folder in folders]).drop_duplicates()
    try:
        claims, tests = claim.tabulate(decisions(frames, about, planned(folders), plugin))
    except ValueError as error:  # rows that must not be compared: the report shows the rest
        claims, tests, about = None, None, about | {"no_claims": str(error)}
    return Found(frames=frames, about=about, coordinates=coordinates, claims=claims, tests=tests)


def decisions(
    frames: Frames, about: Mapping[str, Any], planned: pd.DataFrame, plugin: Sequence[Path] = ()
) -> list[claim.Decision]:
    """The verdict on every claim that is known, built in or given."""
    results, curves, _, diagnostics = frames
    memory = frozenset(str(task["name"]) for task in about["tasks"] if task.get("memory"))
    evidence = Evidence(results=results, curves=curves, diagnostics=diagnostics, memory=memory, planned=planned)
    return claim.decide(claim.known(plugin), evidence)


def report(folders: Sequence[Path], form: Format = "html", plugin: Sequence[Path] = ()) -> str:
    """The report of one study as a page, Markdown or LaTeX tables."""
    from growbench.reports import page, text

    found = gather(folders, plugin)
    results, curves, stages, diagnostics = found.frames
    if form != "html":
        return {"md": text.markdown, "latex": text.latex}[form](results, found.about, found.claims)
    return page.render(
        results, curves, stages, found.about, claims=found.claims, tests=found.tests, diagnostics=diagnostics,
        coordinates=found.coordinates, own=figure.known(plugin),
    )  # fmt: skip


def write(page: Path, folders: Sequence[Path], plugin: Sequence[Path] = ()) -> None:
    """Write the report of one study as a page."""
    write_page(page, report(folders, plugin=plugin), folders)


def beside(folders: Sequence[Path]) -> dict[str, list[dict[str, Any]]]:
    """How each folder was made, and the arms of every later one against the first's. ValueError without two."""
    from growbench.reports import beside as side

    if len(folders) < 2:
        raise ValueError("there is nothing to compare: give two or more folders")
    read_ = [read([folder]) for folder in folders]
    found = {"made": side.made([str(folder) for folder in folders], [about for _, about in read_])}
    first = read_[0][0][0]
    for folder, (frames, _) in zip(folders[1:], read_[1:], strict=True):
        found[f"{folders[0]} (first) and {folder} (second)"] = side.compare(first, frames[0])
    return found


def page_beside(folders: Sequence[Path]) -> str:
    """`beside` as a page."""
    from growbench.reports import page

    found = beside(folders)
    return page.beside(found.pop("made"), found)


# --- a page that follows a run --------------------------------------------------------------------------------------


def serve(folders: Sequence[Path], *, port: int, every: float, plugin: Sequence[Path] = ()) -> ThreadingHTTPServer:
    """A server on 127.0.0.1 of the report as it is now, made again when asked after `every` seconds; 0: any port."""
    made = Remembered(make=lambda: report(folders, plugin=plugin), every=every)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").rpartition(":")[0]
            if host not in ("127.0.0.1", "localhost") or self.path not in ("/", "/report.html"):
                self.send_error(404)
                return
            page = made.now().encode()
            self.send_response(200)
            for name, value in (("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(page))),
                                ("Refresh", f"{max(every, 1):.0f}"), ("Cache-Control", "no-store")):  # fmt: skip
                self.send_header(name, value)
            with suppress(BrokenPipeError, ConnectionResetError):  # the reader has left
                self.end_headers()
                self.wfile.write(page)

        def log_message(self, *args: object) -> None:
            """Say nothing: the library never prints."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


@dataclass(kw_only=True)
class Remembered:
    """A page that is made at most once in `every` seconds; where it cannot be made yet, one that says why."""

    make: Callable[[], str]
    every: float
    page: str = ""
    at: float = -1e9

    def now(self) -> str:
        """The page, made again if it is old."""
        if time.monotonic() - self.at > self.every:
            try:
                self.page = self.make()
            except ValueError as error:  # no plan yet, or tables that are just being written
                from growbench.reports.page import waiting

                self.page = waiting(str(error))
            self.at = time.monotonic()
        return self.page
