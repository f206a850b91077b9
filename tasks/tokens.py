"""Language modelling of tokens that others made: the shards of nanoGPT and of llm.c."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, ClassVar, Literal

import numpy as np

from growbench.corpus import FILES, Corpus, Counted, Progress, keep, remember
from growbench.documents import files
from growbench.task import Tokens as Stream
from growbench.tasks._prepared import Prepared
from growbench.tokenizer import narrowest, read

HEADER = 256
"""int32 numbers that a shard of llm.c begins with: magic, version, number of tokens, then zeros."""
MAGIC: dict[int, "np.dtype[np.unsignedinteger[Any]]"] = {20240520: np.dtype("<u2"), 20240801: np.dtype("<u4")}


@dataclass(frozen=True, kw_only=True)
class Tokens(Prepared):
    """Tokens in .bin files of the nanoGPT or llm.c kind: `tokens:PATH`, a folder or glob.

    Prepared by `growbench data prepare tokens:PATH`. Split: files with "val" in their name are for validation, the
    others to train on. A file that begins as those of llm.c do says its dtype; one of nanoGPT is raw, of `dtype`.
    `end` ends or begins a document. Bits per byte need the `tokenizer` that made the tokens. Source and licence: the
    user's.
    """

    argument: ClassVar[str] = "path"

    path: str = ""
    vocab: int = 50257
    end: int = 50256
    dtype: Literal["uint16", "uint32"] = "uint16"
    tokenizer: str = ""

    def sources(self) -> list[Path]:
        own = Path(os.path.expanduser(self.tokenizer))
        return [*_shards(self.path), *([own] if self.tokenizer and own.is_file() else [])]

    def prepare(self, cache: Path, *, workers: int, notify: Callable[[Progress], None]) -> Corpus:
        if not self.path:
            raise ValueError("the task tokens needs a path: write tokens:PATH")
        found = _shards(self.path)
        sides = {"valid": [path for path in found if "val" in path.name]}
        sides["train"] = [path for path in found if path not in sides["valid"]]
        if not all(sides.values()):
            raise ValueError(
                f"tokens:{self.path} has {len(sides['train'])} files to train on and {len(sides['valid'])} to validate "
                "on: give one of each at least, the latter with val in its name"
            )
        settings: dict[str, Any] = {"vocab": self.vocab, "end": self.end, "dtype": self.dtype}
        settings |= {"tokenizer": read(self.tokenizer).identity} if self.tokenizer else {}

        def write(folder: Path) -> Corpus:
            tokens = {side: self._joined(sides[side], folder / name, notify) for side, name in FILES.items()}
            corpus = Corpus(
                folder=folder, vocab=self.vocab, end=self.end, unit="symbol", counted=Counted(tokens=tokens)
            )
            return self._measured(corpus) if self.tokenizer else corpus

        corpus = keep(cache, (sides["train"], sides["valid"]), settings, write)
        remember(cache, self.asked(), corpus)
        return corpus

    def _joined(self, paths: list[Path], stream: Path, notify: Callable[[Progress], None]) -> int:
        """Write a stream of all shards of a side, and return its length in tokens."""
        sizes = [path.stat().st_size for path in paths]
        count = 0
        with stream.open("wb") as out:
            for done, path in enumerate(paths, start=1):
                count += self._copy(path, out)
                whole = Progress(pieces_total=len(paths), bytes_total=sum(sizes))
                notify(replace(whole, pieces=done, bytes=sum(sizes[:done])))
        return count

    def _copy(self, path: Path, out: IO[bytes]) -> int:
        """Add a shard's tokens to a stream, and return how many; ValueError for one outside the vocabulary."""
        shard, dtype = shard_of(path, np.dtype(self.dtype)), narrowest(self.vocab)
        for start in range(0, shard.size, 2**22):
            part = shard[start : start + 2**22]
            if (largest := int(part.max())) >= self.vocab:
                raise ValueError(
                    f"{path} holds token {largest}, outside the {self.vocab} of vocab: state how many there are"
                )
            out.write(part.astype(dtype).tobytes())
        return int(shard.size)

    def _measured(self, corpus: Corpus) -> Corpus:
        """The corpus with the bytes of text that validation stands for, as its tokenizer decodes it."""
        tokenizer, stream = read(self.tokenizer), corpus.data().valid
        ends = np.flatnonzero(stream == self.end)
        documents = np.split(stream, ends)
        size = sum(len(tokenizer.decode(part[part != self.end]).encode()) for part in documents)
        counted = Counted(tokens=corpus.counted.tokens, bytes={"valid": size})
        return Corpus(folder=corpus.folder, vocab=self.vocab, end=self.end, unit="token", counted=counted)


def _shards(pattern: str) -> list[Path]:
    """The .bin files of a path, folder or glob, sorted."""
    path = Path(os.path.expanduser(pattern))
    return files(str(path / "**" / "*.bin") if path.is_dir() else pattern) if pattern else []


def shard_of(path: Path, dtype: "np.dtype[np.unsignedinteger[Any]]") -> Stream:
    """A shard's tokens, mapped; `dtype` is that of a file without a header. ValueError where its size is wrong."""
    size = path.stat().st_size
    head = np.fromfile(path, "<i4", count=HEADER) if size >= 4 * HEADER else np.zeros(1, np.int32)
    offset, stated = 0, size // dtype.itemsize
    if int(head[0]) in MAGIC:
        dtype, offset, stated = MAGIC[int(head[0])], 4 * HEADER, int(head[2])
    if not stated or size != offset + stated * dtype.itemsize:
        raise ValueError(
            f"{path} has {size:,} bytes, which are no {stated:,} tokens of {dtype} after {offset} bytes: it is empty, "
            "was cut off, or is of another dtype"
        )
    return np.memmap(path, dtype, mode="r", offset=offset, shape=(stated,))
