"""Corpora: documents tokenised once into two streams on disk, which training then reads through a memory map.

    CACHE/corpora/KEY/           corpus.json   train.tokens   valid.tokens
    CACHE/corpora/.KEY.partial/  000000.json   000000.train   000000.valid   ...     of each piece that is done
    CACHE/corpora/asked/         REQUEST.json, the KEY of what was asked for, so that no file need be read to find it

KEY is the hash of what the source files hold and of all that decides the streams, which processes do not. A piece is
done once its record is there, so that a killed run goes on with the pieces that are left.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from filelock import FileLock

from growbench.documents import Bad, Layout, Piece, documents, pieces
from growbench.overlap import Overlap, gram, near_duplicates
from growbench.store import canonical, digest, write_atomically
from growbench.task import Data
from growbench.tokenizer import Tokenizer, narrowest

FORMAT = 1
"""Part of every KEY: raised where the same request would give other streams."""
RECORD = "corpus.json"
FILES = {"train": "train.tokens", "valid": "valid.tokens"}
BATCH = 2**20
"""Characters that are tokenised at once, about."""
REPEATED = "text that is validated on"
"""Why a document of the files to train on is left out."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be tokenised, and how.

    train, valid: files, by what is done with them. Without files to validate on, the hash of a document decides, and
    `valid_share` of all documents are on that side; with them, a document that is in them is left out of training.
    bad: whether rows without a document are counted and skipped, or refused.
    """

    train: tuple[Path, ...]
    valid: tuple[Path, ...] = ()
    layout: Layout = field(default_factory=Layout)
    tokenizer: Tokenizer
    valid_share: float = 0.01
    bad: Literal["skip", "refuse"] = "skip"

    def __post_init__(self) -> None:
        if not 0 < self.valid_share < 1:
            raise ValueError(f"valid_share is a share of all documents, above 0 and below 1, not {self.valid_share}")

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides the streams besides the files."""
        share = {} if self.valid else {"valid_share": self.valid_share}
        return {"layout": asdict(self.layout), "tokenizer": self.tokenizer.identity, "format": FORMAT} | share


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far it is: pieces and bytes of the source."""

    pieces: int = 0
    pieces_total: int
    bytes: int = 0
    bytes_total: int


@dataclass(frozen=True, kw_only=True)
class Counted:
    """What a piece, or all of them, came to: by side documents, tokens and bytes of text in UTF-8; by reason bad rows.

    The end of a document is a token of no bytes.
    """

    documents: Mapping[str, int] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)
    bytes: Mapping[str, int] = field(default_factory=dict)
    bad: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "Counted") -> "Counted":
        return Counted(**{name: dict(Counter(getattr(self, name)) + Counter(getattr(other, name))) for name in _COUNTS})


_SIDED = ("documents", "tokens", "bytes")
_COUNTS = (*_SIDED, "bad")


@dataclass(frozen=True, kw_only=True)
class Packed(Data):
    """Streams that are mapped and not read; `recorded` is their fingerprint, taken when they were written."""

    recorded: str

    def __post_init__(self) -> None:
        """What Data checks token by token was checked when they were written."""

    @cached_property
    def fingerprint(self) -> str:
        return self.recorded


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus on disk: its folder, what is in it, and how much of validation is in training too."""

    folder: Path
    vocab: int
    end: int
    unit: str
    counted: Counted
    overlap: Overlap | None = None
    fingerprint: str = ""

    @property
    def bytes_per_token(self) -> float | None:
        """Of the validation stream, exact; None where what the tokens stand for is not known."""
        if not self.counted.bytes:
            return None
        return self.counted.bytes["valid"] / self.counted.tokens["valid"]

    def data(self) -> Packed:
        """The streams, mapped; ValueError where a file is not as long as it was written."""
        dtype = narrowest(self.vocab)
        streams: dict[str, Any] = {}
        for side, name in FILES.items():
            path, count = self.folder / name, self.counted.tokens[side]
            if not path.is_file() or path.stat().st_size != count * dtype.itemsize:
                raise ValueError(f"{path} is not as long as it was written: remove {self.folder} and prepare it again")
            streams[side] = np.memmap(path, dtype, mode="r", shape=(count,))
        return Packed(
            **streams,
            vocab=self.vocab,
            unit=self.unit,
            bytes_per_token=self.bytes_per_token,
            recorded=self.fingerprint,
        )

    def about(self) -> dict[str, Any]:
        """What there is to say of it, in words and numbers."""
        counted, sides = self.counted, {"train": "to train on", "valid": "to validate on"}
        return {
            "corpus": str(self.folder),
            **{f"{what} {words}": getattr(counted, what).get(side) for what in _SIDED for side, words in sides.items()},
            "bytes per token": self.bytes_per_token,
            "left out": dict(counted.bad),
            "validation documents examined": self.overlap and self.overlap.documents,
            "of them near-duplicates of training": self.overlap and self.overlap.near_duplicates,
            "fingerprint": self.fingerprint,
        }

    def save(self) -> None:
        """Write the record beside the streams."""
        body = asdict(self)
        del body["folder"]
        write_atomically(self.folder / RECORD, json.dumps(body, indent=1))

    @classmethod
    def open(cls, folder: Path) -> "Corpus":
        """The corpus of a folder; ValueError where its record cannot be read."""
        try:
            body = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            counted, overlap = Counted(**body.pop("counted")), Overlap(**body.pop("overlap"))
            return cls(folder=folder, counted=counted, overlap=overlap, **body)
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"{folder} is damaged ({error}): remove it and prepare it again") from error


def find(cache: Path, asked: Mapping[str, Any]) -> Corpus | None:
    """The corpus that was prepared for what is asked for, if it was."""
    try:
        key = json.loads(_asked(cache, asked).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    folder = cache / "corpora" / str(key)
    return Corpus.open(folder) if folder.is_dir() else None


def stated(paths: Sequence[Path]) -> list[list[Any]]:
    """Files by what a folder says of them: name, size and time of change."""
    return [[str(path.absolute()), (stat := path.stat()).st_size, stat.st_mtime_ns] for path in paths]


def prepare(
    request: Request,
    *,
    cache: Path,
    asked: Mapping[str, Any],
    workers: int = 1,
    notify: Callable[[Progress], None] = lambda progress: None,
) -> Corpus:
    """The corpus of a request, from the cache or tokenised now by so many processes; ValueError where it cannot be."""

    def write(folder: Path) -> Corpus:
        counted, parts = _tokenised(request, folder, workers=workers, notify=notify)
        return join(folder, parts, request.tokenizer, counted)

    corpus = keep(cache, (request.train, request.valid), request.settings, write)
    _refuse(corpus.counted, request.bad)
    remember(cache, asked, corpus)
    return corpus


def keep(
    cache: Path, sources: Sequence[Sequence[Path]], settings: Mapping[str, Any], write: Callable[[Path], Corpus]
) -> Corpus:
    """The corpus of what some files hold and of settings: from the cache, or what `write` makes of a folder."""
    try:
        key = digest(canonical([[[_digest(path) for path in paths] for paths in sources], settings]))[:24]
        folder, partial = cache / "corpora" / key, cache / "corpora" / f".{key}.partial"
        partial.mkdir(parents=True, exist_ok=True)
        with FileLock(partial.with_suffix(".lock")):
            if not folder.is_dir():
                partial.mkdir(exist_ok=True)
                _sealed(write(partial)).save()
                for part in partial.glob("[0-9]*"):
                    part.unlink()
                partial.rename(folder)
        shutil.rmtree(partial, ignore_errors=True)
        return Corpus.open(folder)
    except OSError as error:
        raise ValueError(f"the corpus cannot be kept in {cache} ({error}): check permissions and free space") from error


def remember(cache: Path, asked: Mapping[str, Any], corpus: Corpus) -> None:
    """Let `find` find the corpus."""
    place = _asked(cache, asked)
    place.parent.mkdir(exist_ok=True)
    write_atomically(place, json.dumps(corpus.folder.name))


# --- tokenising ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A piece to tokenise: the path of its part without suffix; its side, "" where each document's hash decides.

    held_out: the file of hashes of the documents that are validated on, where they are known before.
    """

    part: Path
    piece: Piece
    side: str
    request: Request
    held_out: Path | None = None


def _tokenised(
    request: Request, partial: Path, *, workers: int, notify: Callable[[Progress], None]
) -> tuple[Counted, list[Path]]:
    """Tokenise the pieces that are left; what all of them came to, and their parts in order."""
    valid, train = (pieces(side, request.layout) for side in (request.valid, request.train))
    held_out = partial / "0.held_out" if valid else None
    first = [
        _Job(part=partial / f"{i:06}", piece=piece, side="valid", request=request) for i, piece in enumerate(valid)
    ]
    second = [
        _Job(part=partial / f"{i:06}", piece=piece, side="train" if valid else "", request=request, held_out=held_out)
        for i, piece in enumerate(train, start=len(valid))
    ]
    done, total = (
        Progress(pieces_total=len(first + second), bytes_total=sum(p.size for p in (*valid, *train))),
        Counted(),
    )
    for jobs in (first, second):
        for job in _run(jobs, workers):
            done = replace(done, pieces=done.pieces + 1, bytes=done.bytes + job.piece.size)
            notify(done)
        total = sum((_counted(job.part) for job in jobs), total)
        if held_out and jobs is first:
            marks = [np.fromfile(job.part.with_suffix(".marks"), np.uint64) for job in jobs]
            np.unique(np.concatenate(marks)).tofile(held_out)
    return total, [job.part for job in first + second]


def _run(jobs: Sequence[_Job], workers: int) -> Iterator[_Job]:
    """Do the jobs that are left, and yield each that is done; the first error ends it."""
    left = []
    for job in jobs:
        if job.part.with_suffix(".json").exists():
            yield job
        else:
            left.append(job)
    if min(workers, len(left)) <= 1:
        for job in left:
            yield _tokenise(job)
        return
    # Started anew, not forked: threads of the libraries that are loaded here do not survive a fork.
    pool = ProcessPoolExecutor(min(workers, len(left)), mp_context=get_context("spawn"))
    try:
        for future in as_completed([pool.submit(_tokenise, job) for job in left]):
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _tokenise(job: _Job) -> _Job:
    """Write a piece's tokens by side, and then its record.

    Under names of this process first: one that outlives its parent may be at the same piece as the next run's.
    """
    paths = {suffix: job.part.with_suffix(f".{suffix}.{os.getpid()}") for suffix in (*FILES, "marks")}
    with ExitStack() as stack:
        streams = {suffix: stack.enter_context(path.open("wb")) for suffix, path in paths.items()}
        counted = _encode(job, streams)
    for suffix, path in paths.items():
        path.replace(job.part.with_suffix(f".{suffix}"))
    write_atomically(job.part.with_suffix(".json"), json.dumps(asdict(counted)))
    return job


def _encode(job: _Job, streams: Mapping[str, IO[bytes]]) -> Counted:
    """Encode a piece's documents into the streams of their sides, each ended."""
    request, tokenizer = job.request, job.request.tokenizer
    dtype = narrowest(tokenizer.vocab)
    end = np.array([tokenizer.end], dtype).tobytes()
    held_out = frozenset(np.fromfile(job.held_out, np.uint64).tolist() if job.held_out else ())
    counts = {name: Counter[str]() for name in _COUNTS}
    for texts in _batches(_good(job, counts["bad"])):
        for text, tokens in zip(texts, tokenizer.encode(texts), strict=True):
            raw = text.encode()
            mark = _mark(raw)
            side = job.side or _side(mark, request.valid_share)
            if mark in held_out:
                counts["bad"][REPEATED] += 1
                continue
            streams[side].write(tokens.astype(dtype, copy=False).tobytes() + end)
            if job.side == "valid":
                streams["marks"].write(np.uint64(mark).tobytes())
            for name, amount in (("documents", 1), ("tokens", tokens.size + 1), ("bytes", len(raw))):
                counts[name][side] += amount
    return Counted(**{name: dict(count) for name, count in counts.items()})


def _good(job: _Job, bad: Counter[str]) -> Iterator[str]:
    """A piece's documents; the others are counted, or the first one raises ValueError, as the request says."""
    for number, document in enumerate(documents(job.piece, job.request.layout), start=1):
        if not isinstance(document, Bad):
            yield document
        elif job.request.bad == "skip":
            bad[document.why] += 1
        else:
            raise ValueError(
                f"{job.piece.path}: row {number}, counted from {job.piece.start:,}, has {document.why}: mend it, or "
                "set bad to skip, so that such rows are counted and left out"
            )


def _batches(texts: Iterator[str]) -> Iterator[list[str]]:
    """Texts in lists of about BATCH characters."""
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _mark(raw: bytes) -> int:
    """A document's hash in 64 bits."""
    return int.from_bytes(hashlib.sha256(raw).digest()[:8], "big")


def side_of(raw: bytes, valid_share: float) -> str:
    """The side of a document, "train" or "valid": its bytes alone decide, so equal ones are on the same."""
    return _side(_mark(raw), valid_share)


def _side(mark: int, valid_share: float) -> str:
    return "valid" if mark < valid_share * 2**64 else "train"


def training_texts(paths: Sequence[Path], layout: Layout, valid_share: float) -> Iterator[str]:
    """The documents of files that are trained on, where their hash decides; bad rows are left out."""
    for piece in pieces(paths, layout):
        for document in documents(piece, layout):
            if not isinstance(document, Bad) and side_of(document.encode(), valid_share) == "train":
                yield document


def _counted(part: Path) -> Counted:
    return Counted(**json.loads(part.with_suffix(".json").read_text(encoding="utf-8")))


def _refuse(counted: Counted, bad: str) -> None:
    """Raise ValueError for bad rows that an earlier run skipped, where the request refuses them."""
    wrong = {why: count for why, count in counted.bad.items() if why != REPEATED}
    if bad == "refuse" and wrong:
        said = ", ".join(f"{count:,} with {why}" for why, count in wrong.items())
        raise ValueError(f"the source has rows without a document, {said}: mend them, or set bad to skip")


# --- putting in place ------------------------------------------------------------------------------------------------


def join(folder: Path, parts: Sequence[Path], tokenizer: Tokenizer, counted: Counted) -> Corpus:
    """Write both streams from their parts; ValueError where one would be empty."""
    if empty := [side for side in FILES if not counted.tokens.get(side)]:
        raise ValueError(
            f"of {sum(counted.documents.values()):,} documents none is for {' and '.join(empty)}: give more documents, "
            "say with separator what stands between those of a text file (on the command line in JSON's escapes, as "
            """--set 'separator="\\n\\n"'), or change valid_share"""
        )
    for side, name in FILES.items():
        with (folder / name).open("wb") as out:
            for part in parts:
                with part.with_suffix(f".{side}").open("rb") as source:
                    shutil.copyfileobj(source, out, 2**22)
    return Corpus(folder=folder, vocab=tokenizer.vocab, end=tokenizer.end, unit="token", counted=counted)


def _sealed(corpus: Corpus) -> Corpus:
    """The corpus with what takes a look at all its tokens: the fingerprint, and the overlap of its sides."""
    data = corpus.data()
    checked = Data(**{field.name: getattr(data, field.name) for field in fields(Data)})
    size = gram(corpus.bytes_per_token or 4.0)
    overlap = near_duplicates(data.train, data.valid, end=corpus.end, gram=size)
    return replace(corpus, fingerprint=checked.fingerprint, overlap=overlap)


def _asked(cache: Path, asked: Mapping[str, Any]) -> Path:
    return cache / "corpora" / "asked" / f"{digest(canonical(asked))[:24]}.json"


def _digest(path: Path) -> str:
    """SHA-256 of a file, read in blocks."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
