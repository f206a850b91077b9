"""Stage folders: what a study has computed, each stage once, written beside and renamed into place.

    DIR/stages/KEY/   stage.json   checkpoint.safetensors   curve.parquet   diagnostics.parquet   events.jsonl
                                   or coordinates.parquet
    DIR/stages/.KEY.partial/   partial.json   DIGEST.safetensors        of a stage under way, until it has ended well

A stage's identity, hashed to KEY, is all that can change its numbers; its folder is the only truth about it. The record
lists the SHA-256 of every file beside it and of itself, so that a folder half-written, truncated or altered is never
believed.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

StageKind = Literal["init", "train", "grow", "cooldown", "coordinates"]
Status = Literal["ok", "diverged", "failed"]
RECORD = "stage.json"
CHECKPOINT = "checkpoint.safetensors"
CURVE = "curve.parquet"
DIAGNOSTICS = "diagnostics.parquet"
COORDINATES = "coordinates.parquet"
EVENTS = "events.jsonl"
PARTIAL = "partial.json"
_LEFT = re.compile(r"\.[0-9a-f]{24}\.\d+(\.old)?")
"""What `write` and `discard` call a folder on its way: .KEY.PID and .KEY.PID.old."""
_KEPT = re.compile(r"\.([0-9a-f]{24})\.partial")


def canonical(value: object) -> str:
    """JSON with sorted keys and no spaces: equal values, equal text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(text: str | bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What is to be computed: its parent's key (None: none), its identity, and what it is expected to cost.

    label: the stage for a person, and its place in the study whatever its identity; tokens, flops: planned; isolate: it
    runs code of a third party, after which its process is not trusted with another stage; devices: how many train it,
    which as the number of threads changes its numbers by rounding alone and so is no part of what it is.
    """

    kind: StageKind
    label: str
    parent: str | None
    identity: Mapping[str, Any]
    tokens: int = 0
    flops: float = 0.0
    isolate: bool = False
    devices: int = 1

    @cached_property
    def key(self) -> str:
        return digest(canonical([self.kind, self.parent, self.identity]))[:24]


@dataclass(frozen=True, kw_only=True)
class Record:
    """What came out of a stage: its status, what it spent and measured, where it ran."""

    key: str
    kind: StageKind
    label: str
    parent: str | None
    identity: Mapping[str, Any]
    status: Status
    reason: str = ""
    tokens: int = 0
    flops: Mapping[str, float] = field(default_factory=dict)
    """By purpose: train, cooldown, growth, probe, eval."""
    measures: Mapping[str, float | None] = field(default_factory=dict)
    """loss at the end, and of a growth: growth_gap, growth_loss_jump, alive_share."""
    started: str = ""
    wall_s: float = 0.0
    peak_memory_bytes: int = 0
    restarts: int = 0
    environment: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(stage: Stage, **outcome: Any) -> "Record":
        """The record of a stage, given its status and whatever else is known of its outcome."""
        own = {name: getattr(stage, name) for name in ("key", "kind", "label", "parent", "identity")}
        return Record(**own, **outcome)

    def to_json(self) -> str:
        body = asdict(self)
        return json.dumps(body | {"digest": digest(canonical(body))}, indent=1, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str) -> "Record":
        body = json.loads(text)
        if not isinstance(body, dict) or body.pop("digest", None) != digest(canonical(body)):
            raise ValueError("its record does not have the digest it states")
        return Record(**body)


class Unwritable(OSError):
    """What a stage under way came to cannot be kept: the disk is full, or the folder is not to be written."""


@dataclass(frozen=True)
class Store:
    """The stage folders of one study's output folder."""

    out: Path

    def folder(self, key: str) -> Path:
        return self.out / "stages" / key

    def read(self, key: str) -> Record | None:
        """The record of a stage; None where there is none. ValueError names a folder that cannot be believed."""
        folder = self.folder(key)
        if not folder.exists():
            return None
        try:
            record = Record.from_json((folder / RECORD).read_text(encoding="utf-8"))
            for name, stated in record.files.items():
                if digest((folder / name).read_bytes()) != stated:
                    raise ValueError(f"its {name} does not have the digest that its record states")
            if record.key != key:
                raise ValueError(f"its record is that of stage {record.key}")
        except (ValueError, OSError, TypeError, AttributeError) as error:
            raise ValueError(f"the stage folder {folder} is damaged: {error}") from error
        return record

    def records(self) -> dict[str, Record]:
        """Every stage with a believable record, by key, in the order in which they were started."""
        found = []
        for folder in (self.out / "stages").glob("[0-9a-f]*"):
            with contextlib.suppress(ValueError):
                if record := self.read(folder.name):
                    found.append(record)
        return {record.key: record for record in sorted(found, key=lambda record: (record.started, record.key))}

    def write(self, record: Record, fill: Callable[[Path], None] = lambda folder: None) -> Record:
        """Put a stage's folder in place, atomically: `fill` writes its files, the record is added last."""
        beside = self.out / "stages" / f".{record.key}.{os.getpid()}"
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        try:
            fill(beside)
            files = {path.name: digest(path.read_bytes()) for path in sorted(beside.iterdir())}
            record = replace(record, files=files)
            (beside / RECORD).write_text(record.to_json(), encoding="utf-8")
            for path in beside.iterdir():
                _sync(path)
            self.discard(record.key)
            beside.rename(self.folder(record.key))
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        if record.status != "failed":  # what failed is run again, and goes on from there
            self.forget(record.key)
        return record

    def discard(self, key: str) -> None:
        """Remove a stage's folder, renamed first so that it is never seen in part."""
        if self.folder(key).exists():
            aside = self.out / "stages" / f".{key}.{os.getpid()}.old"
            shutil.rmtree(aside, ignore_errors=True)
            self.folder(key).rename(aside)
            shutil.rmtree(aside, ignore_errors=True)

    def sweep(self, planned: Collection[str] | None = None) -> None:
        """Remove what an interrupted writer left beside the stage folders, and nothing else.

        planned: the stages that can still be run, if that is known: what was kept of others is removed too.
        """
        for leftover in (self.out / "stages").glob(".*"):
            if _LEFT.fullmatch(leftover.name):
                shutil.rmtree(leftover, ignore_errors=True)
        for key in self.under_way():
            if (planned is not None and key not in planned) or self._ended(key):
                self.forget(key)

    def under_way(self) -> list[str]:
        """The stages of which something is kept."""
        names = (_KEPT.fullmatch(path.name) for path in (self.out / "stages").glob(".*"))
        return [found[1] for found in names if found]

    def _ended(self, key: str) -> bool:
        """Whether a stage has a believable record, and need not run again."""
        with contextlib.suppress(ValueError):
            return (record := self.read(key)) is not None and record.status != "failed"
        return False

    # --- stages under way ------------------------------------------------------------------------------------------

    def partial(self, key: str) -> Path:
        return self.out / "stages" / f".{key}.partial"

    def keep(self, key: str, about: Mapping[str, Any], save: Callable[[Path], None]) -> None:
        """Keep what a stage under way came to: what `save` writes and, in JSON, what is known about it.

        A reader sees the last one or this one, whole, for the JSON names its tensors' file by digest and is replaced at
        once. Unwritable where the disk refuses it.
        """
        folder = self.partial(key)
        beside = folder / f".{os.getpid()}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            save(beside)
            _sync(beside)
            stated = digest(beside.read_bytes())
            beside.replace(folder / f"{stated}.safetensors")
            body = {"about": about, "tensors": stated}
            write_atomically(folder / PARTIAL, _json(body | {"digest": digest(_json(body))}))
            for path in folder.iterdir():
                if path.name not in (PARTIAL, f"{stated}.safetensors"):
                    path.unlink()
        except OSError as error:
            with contextlib.suppress(OSError):
                beside.unlink()
            raise Unwritable(str(error)) from error

    def kept(self, key: str) -> tuple[dict[str, Any], Path] | None:
        """What `keep` kept, and the path of the file it saved; None where there is none. ValueError names damage."""
        folder = self.partial(key)
        if not (folder / PARTIAL).exists():
            return None
        try:
            body = json.loads((folder / PARTIAL).read_text(encoding="utf-8"))
            if body.pop("digest") != digest(_json(body)):
                raise ValueError("its record does not have the digest it states")
            path = folder / f"{body['tensors']}.safetensors"
            if digest(path.read_bytes()) != body["tensors"]:
                raise ValueError("its tensors do not have the digest that its record states")
            return body["about"], path
        except (ValueError, OSError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{folder} is damaged: {error}") from error

    def forget(self, key: str) -> None:
        """Remove what was kept of a stage under way."""
        shutil.rmtree(self.partial(key), ignore_errors=True)


def _json(value: object) -> str:
    """JSON as Python writes it, with words for what is not finite: all is read as it was, and in its order."""
    return json.dumps(value, ensure_ascii=False)


def _sync(path: Path) -> None:
    with path.open("rb") as handle:
        os.fsync(handle.fileno())


def write_atomically(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old or the new one, whole."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        _sync(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
