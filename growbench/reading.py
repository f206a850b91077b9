"""Reading a folder of results that anyone may have written: every byte of it is data, bounded, typed, never code.

    a file      regular, in the folder itself, no larger than its limit: no link, pipe or device is opened
    JSON        no NaN or infinity, no number beyond 64 bits, no nesting beyond reason
    a record    its own digest, the fields of `store.Record` with their types, file names that are names
    a table     the columns asked for with the types asked for, no more rows than a limit, no stored Python object

Whatever is otherwise is a ValueError that says what and where. Of a folder one trusts the same holds: what is damaged
is never believed.
"""

import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, get_type_hints

import yaml
from pydantic import ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError, create_model, with_config
from pydantic_core import from_json
from typing_extensions import TypedDict

from growbench.store import RECORD, Record, Stage, canonical, digest

if TYPE_CHECKING:
    import pandas as pd

MEBIBYTE = 2**20
LARGEST = {"record": 16 * MEBIBYTE, "run": 16 * MEBIBYTE, "plan": 4096 * MEBIBYTE, "study": MEBIBYTE}
"""Bytes beyond which a file is not read: a hundred times what the largest study writes."""
ROWS = 10**7
"""Rows beyond which a table is not read."""
_KEY = re.compile("[0-9a-f]{24}")
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"


# --- files -----------------------------------------------------------------------------------------------------------


def opened(path: Path | str) -> FileIO:
    """A regular file open to be read. ValueError for anything else that stands there, a link to a file included."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        if os.path.islink(path):
            raise ValueError(f"{path} is a link, which is not followed: put the file itself there") from None
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path} is no file")
    return FileIO(handle)


def content(path: Path | str, limit: int = sys.maxsize) -> bytes:
    """The bytes of a regular file. ValueError where it is none, or longer than `limit`."""
    with opened(path) as handle:
        if (size := os.fstat(handle.fileno()).st_size) > limit:
            raise ValueError(f"{path} has {size:,} bytes, more than growbench ever writes")
        return handle.readall()


def folder(path: Path | str) -> bool:
    """Whether there is such a folder. ValueError for a link or anything else of that name."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(mode):
        raise ValueError(f"{path} is {'a link' if stat.S_ISLNK(mode) else 'no folder'}: put the folder itself there")
    return True


# --- JSON and YAML ---------------------------------------------------------------------------------------------------


def parsed(text: bytes) -> Any:
    """JSON as Python's own values. ValueError where it is none, is nested beyond reason, or holds NaN or infinity."""
    return from_json(text, allow_inf_nan=False)


class _Plain(yaml.SafeLoader):
    """Values only: no tags of Python, and no aliases, of which a few lines can stand for more than memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias")
        return super().compose_node(parent, index)


def study(text: str) -> dict[str, Any]:
    """A stored study file as a mapping, not checked further. ValueError where it is none."""
    try:
        if len(text) > LARGEST["study"]:
            raise ValueError("it is too long")
        found = yaml.load(text, _Plain)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        said = " ".join(str(error).split())[:200]
        raise ValueError(
            f"the study that the plan states cannot be read: {said or 'it is nested too deeply'}"
        ) from None
    if not isinstance(found, dict):
        raise ValueError("the study that the plan states cannot be read: it is no mapping")
    return found


# --- plans -----------------------------------------------------------------------------------------------------------

Key = Annotated[str, StringConstraints(pattern=rf"^{_KEY.pattern}$")]
Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Count = Annotated[int, Field(ge=0, lt=2**63)]
Row = dict[str, str | bool | Whole | float | None]
"""Part of a row of a table: scalars, whose types the table's columns say."""
_TYPED = with_config(ConfigDict(strict=True, extra="allow", allow_inf_nan=False))


@_TYPED
class _Point(TypedDict):
    budget: Count
    path: Annotated[list[Key], Field(min_length=1)]
    ladder: list[Key]
    size: Row


@_TYPED
class _Arm(TypedDict):
    about: Row
    points: Annotated[list[_Point], Field(min_length=1)]


@_TYPED
class _Check(TypedDict):
    architecture: str
    task: str
    stage: Key


@_TYPED
class _Tuned(TypedDict):
    chosen: dict[str, dict[str, dict[str, float | None]]]
    trials: list[Row]
    digest: str


@_TYPED
class _Plan(TypedDict):
    study: str
    name: str
    arms: list[_Arm]
    stages: dict[Key, tuple[str, Key | None, str]]
    skipped: dict[str, str]
    strategies: list[dict[str, str]]
    tasks: list[Row]
    coordinates: NotRequired[list[_Check]]
    tuned: NotRequired[_Tuned | None]


@_TYPED
class _Run(TypedDict):
    growbench: str
    packages: dict[str, str]
    git_dirty: bool | None
    started: str | None
    finished: str | None


_PLAN, _RUN = TypeAdapter(_Plan), TypeAdapter(_Run)

_ABOUT: Mapping[str, tuple[type, ...]] = {
    "arm": (str,), "task": (str,), "seed": (int,), "vocab": (int,), "train_tokens": (int,),
    "bytes_per_token": (int, float, type(None)), "entropy_rate": (int, float, type(None)),
}  # fmt: skip
_SIZE: Mapping[str, tuple[type, ...]] = {"rung": (int,), "params_non_embedding": (int,)}
_TASK: Mapping[str, tuple[type, ...]] = {"name": (str,), "fingerprint": (str,)}
"""What the tables compute with, by its types."""
_POSITIVE = {"vocab", "train_tokens", "params_non_embedding"}


def plan(path: Path) -> dict[str, Any]:
    """A plan file. ValueError where it is missing or anything else, with the place of what is wrong."""
    try:
        found: dict[str, Any] = dict(_PLAN.validate_json(content(path, LARGEST["plan"])))
    except ValidationError as error:
        raise ValueError(_first(error)) from None
    used = {check["stage"] for check in found.get("coordinates", ())}
    for task in found["tasks"]:
        _has(task, _TASK)
    for arm in found["arms"]:
        _has(arm["about"], _ABOUT)
        for point in arm["points"]:
            _has(point["size"], _SIZE)
            used.update(point["path"])
            used.update(point["ladder"])
    if lacking := sorted(used - found["stages"].keys()):
        raise ValueError(f"an arm has the stage {lacking[0]}, which is not among the stages")
    return found


def _has(row: Mapping[str, Any], asked: Mapping[str, tuple[type, ...]]) -> None:
    """Raise ValueError where a row lacks a value that is computed with."""
    for name, types in asked.items():
        value = row.get(name, row)
        if type(value) not in types or (name in _POSITIVE and value < 1):
            raise ValueError(f"{name} is not what a plan has there")


def run(path: Path) -> dict[str, Any]:
    """What is recorded of how numbers were made. ValueError where it is anything else."""
    return dict(_RUN.validate_json(content(path, LARGEST["run"])))


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, in words without the value, which may be anything."""
    found = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part)[:60] for part in found["loc"])
    return f"{place}: {found['msg']}" if place else found["msg"]


# --- records ---------------------------------------------------------------------------------------------------------


@_TYPED
class _Identity(TypedDict):
    core: str
    seed: Count


def _fields() -> dict[str, Any]:
    """A record's fields by their annotations; of an identity, what the tables read."""
    hints = get_type_hints(Record) | {"identity": _Identity, "tokens": Count, "restarts": Count}
    hints["files"] = dict[Annotated[str, StringConstraints(pattern=rf"^{_NAME}$")], str]
    asked = {own.name for own in fields(Record) if own.default is own.default_factory is MISSING}
    return {name: (hint, ... if name in asked else None) for name, hint in hints.items()}


_RECORD = create_model("_RECORD", __config__=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False), **_fields())


def parsed_record(text: bytes) -> Record:
    """The record that a text is. ValueError where it is none."""
    body = parsed(text)
    try:
        if not isinstance(body, dict) or body.pop("digest", None) != digest(canonical(body)):
            raise ValueError("its record does not have the digest it states")
        _RECORD.model_validate(body)
    except ValidationError as error:
        raise ValueError(f"its record is none: {_first(error)}") from None
    except RecursionError:
        raise ValueError("its record is nested too deeply") from None
    return Record(**body)


def key_of(found: Record) -> str:
    """The key of the stage that a record describes: the hash of its kind, parent and identity."""
    own = Stage(kind=found.kind, label="", parent=found.parent, identity=found.identity)
    return own.key


def record(out: Path, key: str, *, files: bool = True) -> Record | None:
    """The record of a stage of an output folder; None where there is none. ValueError names what is not believed.

    files: hash every file beside the record too; without, they are only seen to be there.
    """
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key[:60]!r} is no key of a stage")
    place = f"{out}/stages/{key}"
    try:
        if not folder(place):
            return None
        found = parsed_record(content(f"{place}/{RECORD}", LARGEST["record"]))
        if found.key != key:
            raise ValueError(f"its record is that of stage {found.key[:60]}")
        if files:
            _hashed(place, found.files)
        else:
            with os.scandir(place) as entries:
                there = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
            if lacking := sorted(found.files.keys() - there):
                raise ValueError(f"its {lacking[0]} is not there")
    except (ValueError, OSError) as error:
        raise ValueError(f"the stage folder {place} is damaged: {error}") from error
    return found


def _hashed(place: str, files: Mapping[str, str]) -> None:
    """Raise ValueError where a file of a stage folder is not as its record states."""
    for name, stated in files.items():
        with opened(f"{place}/{name}") as handle:
            if hashlib.file_digest(handle, "sha256").hexdigest() != stated:
                raise ValueError(f"its {name} does not have the digest that its record states")


def keys(out: Path) -> list[str]:
    """The keys of the stage folders that are there, sorted. ValueError where `stages` is no folder of its own."""
    if not folder(out / "stages"):
        return []
    with os.scandir(out / "stages") as found:
        return sorted(entry.name for entry in found if _KEY.fullmatch(entry.name))


def records(out: Path, *, files: bool = True) -> dict[str, Record]:
    """Every stage with a believable record, by key, in the order in which they were started."""
    found = [own for own, _ in examined(out, files=files) if own is not None]
    return {own.key: own for own in sorted(found, key=lambda own: (own.started, own.key))}


def examined(out: Path, *, files: bool = True) -> Iterator[tuple[Record | None, str]]:
    """Every stage folder: its record and "", or None and what is wrong."""
    for key in keys(out):
        try:
            if (found := record(out, key, files=files)) is not None:
                yield found, ""
        except ValueError as error:
            yield None, str(error)


# --- tables ----------------------------------------------------------------------------------------------------------


def table(path: Path, columns: Mapping[str, str]) -> "pd.DataFrame":
    """The named columns of a parquet file as a DataFrame, read by their pandas dtypes alone.

    ValueError where the file is no table, has other types or lacks a column.
    """
    import pandas as pd
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"string": pa.string(), "Int64": pa.int64(), "Float64": pa.float64(), "boolean": pa.bool_()}
    mapped = {pa.string(): pd.StringDtype(), pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    try:
        file = parquet.ParquetFile(pa.BufferReader(content(path)))
        if file.metadata.num_rows > ROWS:
            raise ValueError(f"it has {file.metadata.num_rows:,} rows")
        schema = file.schema_arrow
        for name in columns:
            if len(schema.get_all_field_indices(name)) != 1:
                raise ValueError(f"it has no column {name}, or several")
        found = file.read(list(columns)).select(list(columns))
        found = found.cast(pa.schema([(name, kinds[dtype]) for name, dtype in columns.items()]))
        frame: pd.DataFrame = found.to_pandas(ignore_metadata=True, types_mapper=mapped.get)
    except (pa.ArrowException, ValueError, OSError, MemoryError) as error:
        raise ValueError(f"{path} is no table of growbench: {' '.join(str(error).split())[:200]}") from error
    return frame
