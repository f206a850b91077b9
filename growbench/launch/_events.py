"""What jobs elsewhere report, kept in the run's folder for whoever follows them: JSON lines, a file for each reporter.

DIR/launch/events/NAME.jsonl    {"kind", "stage", "text", "tokens"}
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from growbench.launch import LAUNCH, Event, Site
from growbench.launch._queue import Queue

TELL_SECONDS = 5.0
"""How often progress is told."""


class Teller:
    """Tells what one reporter does: a line when a stage starts or ends, and every few seconds; also to stderr."""

    def __init__(self, root: Path, name: str) -> None:
        folder = root / LAUNCH / "events"
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"{name}.jsonl"
        self._settled, self._told = 0, 0.0

    def __call__(self, event: Event) -> None:
        say(event)
        if event.kind in ("cached", "finished", "failed"):
            self._settled = event.tokens_done
        if event.kind == "progress" and time.monotonic() - self._told < TELL_SECONDS:
            return
        self.tell(event.kind, event.stage, event.text, tokens=event.tokens_done - self._settled)

    def tell(self, kind: str, stage: str, text: str = "", *, tokens: int = 0) -> None:
        """Add a line; tokens: of training in stages under way."""
        self._told = time.monotonic()
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "stage": stage, "text": text, "tokens": tokens}) + "\n")


def say(event: Event) -> None:
    """Into the job's log."""
    if event.kind in ("started", "finished", "failed", "log"):
        sys.stderr.write(f"{event.kind} {event.label} {event.text}\n")


class Events:
    """What has been told in a run's folder."""

    def __init__(self, root: Path) -> None:
        self._folder = root / LAUNCH / "events"
        self._read: dict[Path, int] = {}
        self._tokens: dict[Path, int] = {}

    def news(self) -> Iterator[dict[str, Any]]:
        """What was told since the last time."""
        for path in sorted(self._folder.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                for line in file:
                    if not line.endswith(b"\n"):
                        break  # the rest of it is on its way
                    self._read[path] = self._read.get(path, 0) + len(line)
                    event = json.loads(line)
                    self._tokens[path] = event["tokens"]
                    yield event

    @property
    def tokens(self) -> int:
        """Training tokens in stages under way."""
        return sum(self._tokens.values())

    def pass_on(self, queue: Queue) -> Iterator[str]:
        """Report the news of the queue's open stages; the stages that there was a word from."""
        for event in self.news():
            if event["stage"] in queue.open and event["kind"] in ("started", "progress", "log"):
                queue.report(event["kind"], event["stage"], event["text"], tokens=self.tokens)
                yield event["stage"]


def clear(root: Path) -> None:
    """Remove what was told in a run's folder."""
    shutil.rmtree(root / LAUNCH / "events", ignore_errors=True)


def settle(queue: Queue, site: Site) -> None:
    """Settle the stages whose folders have appeared."""
    with suppress(FileNotFoundError):
        for key in queue.open & set(os.listdir(site.out / "stages")):
            with suppress(ValueError):  # it is being replaced
                if key in queue.open and (record := site.store.read(key)):
                    queue.settle(record)
