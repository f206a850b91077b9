"""Documents, read from files a piece at a time: text, JSON lines, parquet, and the Arrow files of `datasets`.

    source = files("corpus/**/*.jsonl.gz")
    for piece in pieces(source, layout):
        for document in documents(piece, layout):      # a str, or Bad where a row holds none

A piece is what one process reads on its own: a range of a file's bytes, row groups or rows. The files alone decide
where pieces begin, never how many processes there are. Memory is bounded by the largest document, not by their number.
"""

import glob
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

Kind = Literal["text", "jsonl", "parquet", "arrow", "unreadable"]
Why = Literal["no text", "broken utf-8", "broken json", "empty file", "unreadable file"]

PIECE = 2**26
"""Bytes of a file that a piece has, about."""
BLOCK = 2**20
ROWS = 1000
KINDS: dict[str, Kind] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".txt": "text",
    ".text": "text",
    ".md": "text",
}
"""What a folder's files are taken for, by the suffix before .gz and .zst; others are left out of a folder."""
COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""By a file's first bytes: a suffix may lie, and one may be inside the other."""
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, kw_only=True)
class Bad:
    """A row, or what was to be one, without a document."""

    why: Why


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How documents lie in files.

    column: of a table's row or a JSON object, what holds the text. separator: what stands between the documents of a
    text file; "" where a file is one. heading: the regular expression that a table's row matches where it begins a
    document; "" where each row is one.
    """

    column: str = "text"
    separator: str = ""
    heading: str = ""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A part of a file: from `start` to before `end`, in bytes, row groups or rows; `size` in bytes on disk."""

    path: Path
    kind: Kind
    start: int
    end: int
    size: int


def files(pattern: str) -> list[Path]:
    """The files of a path, a folder or a glob, sorted; ValueError where there is none to read.

    A folder is read recursively, without hidden files and those of a suffix that is not in KINDS.
    """
    path = Path(os.path.expanduser(pattern))
    if path.is_dir():
        inside = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
        found = [p for p in inside if not _hidden(p.relative_to(path)) and _suffix(p) in KINDS and p.is_file()]
    else:
        found = [p for p in map(Path, glob.glob(str(path), recursive=True)) if p.is_file()]
    if not found:
        known = " ".join(KINDS)
        raise ValueError(f"{pattern} names no file to read: give a file, a glob, or a folder that holds any of {known}")
    return sorted(found, key=lambda found: found.as_posix())


def pieces(paths: Sequence[Path], layout: Layout) -> list[Piece]:
    """The pieces of files, in their order; ValueError where a table lacks the column."""
    return [piece for path in paths for piece in _pieces(path, layout)]


def documents(piece: Piece, layout: Layout) -> Iterator[str | Bad]:
    """The documents of a piece in order, each a str that UTF-8 can write and not "", or why there is none."""
    readers: dict[Kind, Callable[[Piece, Layout], Iterator[str | Bad]]] = {
        "text": _text,
        "jsonl": _jsonl,
        "parquet": _parquet,
        "arrow": _arrow,
    }
    if not piece.size:
        yield Bad(why="empty file")
    elif piece.kind == "unreadable":
        yield Bad(why="unreadable file")
    else:
        try:
            yield from readers[piece.kind](piece, layout)
        except (OSError, pa.ArrowException):
            yield Bad(why="unreadable file")


# --- where pieces begin ----------------------------------------------------------------------------------------------


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _suffix(path: Path) -> str:
    suffixes = [suffix for suffix in path.suffixes if suffix not in (".gz", ".zst")]
    return suffixes[-1].lower() if suffixes else ""


def _pieces(path: Path, layout: Layout) -> Iterator[Piece]:
    kind, size = KINDS.get(_suffix(path), "text"), path.stat().st_size
    whole = Piece(path=path, kind=kind, start=0, end=size, size=size)
    if not size:
        yield whole
    elif kind in ("parquet", "arrow"):
        yield from _table_pieces(whole, layout)
    else:
        with path.open("rb") as handle:
            first = handle.read(4)
        separator = b"\n" if kind == "jsonl" else layout.separator.encode()
        if not separator or _overlaps(separator) or _compression(first):
            yield whole  # where a document begins is known to those who read from the start
        else:
            for start in range(0, size, PIECE):
                end = min(start + PIECE, size)
                yield replace(whole, start=start, end=end, size=end - start)


def _overlaps(separator: bytes) -> bool:
    """Whether a separator's end is its beginning too, as of two line ends."""
    return any(separator[i:] == separator[:-i] for i in range(1, len(separator)))


def _compression(first: bytes) -> str:
    return next((name for magic, name in COMPRESSED.items() if first.startswith(magic)), "")


def _table_pieces(whole: Piece, layout: Layout) -> Iterator[Piece]:
    """Row groups of parquet, rows of Arrow, about PIECE bytes in each; one piece where documents span rows."""
    try:
        if whole.kind == "parquet":
            with pq.ParquetFile(whole.path) as table:
                columns, parts = table.schema_arrow.names, table.num_row_groups
        else:
            table = _mapped(whole.path)
            columns, parts = table.schema.names, table.num_rows
    except (OSError, pa.ArrowException):
        yield replace(whole, kind="unreadable")
        return
    if layout.column not in columns:
        raise ValueError(f"{whole.path} has no column {layout.column!r}: name one of {', '.join(columns)} with column")
    count = 1 if layout.heading else max(1, min(parts, round(whole.size / PIECE)))
    edges = [i * parts // count for i in range(count + 1)]
    for start, end in pairwise(edges):
        yield replace(whole, start=start, end=end, size=whole.size // count)


# --- readers ---------------------------------------------------------------------------------------------------------


def _text(piece: Piece, layout: Layout) -> Iterator[str | Bad]:
    for raw in _records(piece, layout.separator.encode()):
        yield _decoded(raw)


def _jsonl(piece: Piece, layout: Layout) -> Iterator[str | Bad]:
    for raw in _records(piece, b"\n"):
        if raw.strip():  # a blank line is no row
            yield _member(raw, layout.column)


def _member(raw: bytes, column: str) -> str | Bad:
    """The text of a JSON object."""
    try:
        row = json.loads(raw.decode())
    except UnicodeDecodeError:
        return Bad(why="broken utf-8")
    except (ValueError, RecursionError):
        return Bad(why="broken json")
    return _checked(row.get(column) if isinstance(row, dict) else None)


def _parquet(piece: Piece, layout: Layout) -> Iterator[str | Bad]:
    with pq.ParquetFile(piece.path) as table:
        groups = range(piece.start, piece.end)
        batches = table.iter_batches(ROWS, row_groups=groups, columns=[layout.column])
        yield from _joined((text for batch in batches for text in _column(batch.column(0))), layout.heading)


def _arrow(piece: Piece, layout: Layout) -> Iterator[str | Bad]:
    rows = _mapped(piece.path).select([layout.column]).slice(piece.start, piece.end - piece.start)
    batches = rows.to_batches(max_chunksize=ROWS)
    yield from _joined((text for batch in batches for text in _column(batch.column(0))), layout.heading)


def _mapped(path: Path) -> Any:
    """An Arrow file's table, mapped and not read; `datasets` writes the stream format."""
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_stream(source).read_all()


def _column(values: Any) -> Iterator[str | Bad]:
    """A column's texts: its bytes, which Arrow does not check, are decoded here."""
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_binary())
    for value in values.to_pylist():
        yield _decoded(value) if isinstance(value, bytes) else Bad(why="no text")


def _joined(rows: Iterator[str | Bad], heading: str) -> Iterator[str | Bad]:
    """Rows as they are, or joined to documents that begin where one matches the heading; empty ones add none."""
    held: list[str] = []
    for row in rows:
        if isinstance(row, Bad):
            if not heading or row.why != "no text":
                yield row
        elif not heading:
            yield row
        else:
            if held and re.match(heading, row):
                yield "".join(held)
                held = []
            held.append(row)
    if held:
        yield "".join(held)


def _decoded(raw: bytes) -> str | Bad:
    try:
        return _checked(raw.decode())
    except UnicodeDecodeError:
        return Bad(why="broken utf-8")


def _checked(value: object) -> str | Bad:
    """A text as it is, where it is one."""
    if not isinstance(value, str) or not value:
        return Bad(why="no text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can escape
        return Bad(why="broken utf-8")
    return value


def _records(piece: Piece, separator: bytes) -> Iterator[bytes]:
    """What a separator divides, of all that begins in the piece; all of it where there is no separator."""
    with piece.path.open("rb") as handle:
        is_whole = not piece.start and piece.end == os.fstat(handle.fileno()).st_size
        begin = max(piece.start - len(separator), 0)  # so that what begins at the start is seen to begin there
        handle.seek(begin)
        stream = _decompressed(handle)
        records = _divided(stream, separator) if separator else iter([(0, stream.read())])
        if piece.start:
            next(records, None)
        for offset, raw in records:
            if not is_whole and begin + offset >= piece.end:
                return
            yield raw if begin + offset else raw.removeprefix(BOM)


def _divided(stream: IO[bytes], separator: bytes) -> Iterator[tuple[int, bytes]]:
    """Each record with its offset; nothing follows a separator at the end."""
    buffer, begin, searched, dropped = bytearray(), 0, 0, 0
    while block := stream.read(BLOCK):
        buffer += block
        while (at := buffer.find(separator, searched)) >= 0:
            yield dropped + begin, bytes(buffer[begin:at])
            begin = searched = at + len(separator)
        del buffer[:begin]
        dropped, begin = dropped + begin, 0
        searched = max(0, len(buffer) - len(separator) + 1)
    if buffer:
        yield dropped, bytes(buffer)


def _decompressed(stream: io.BufferedReader) -> IO[bytes]:
    """A file's bytes without the layers of compression that its first bytes tell of."""
    while name := _compression(stream.peek(4)[:4]):
        stream = io.BufferedReader(pa.CompressedInputStream(stream, name))
    return stream
