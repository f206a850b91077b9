"""Tasks: what a model learns from, and the one order in which every arm reads it.

A task is a plugin that yields two token streams. A stream of n tokens is read through windows of context + 1 tokens at
stride context, so that every token but the first is predicted once an epoch:

    window i = stream[i * context : (i + 1) * context + 1]

Training reads the endless sequence order(n, seed, 0), order(n, seed, 1), ... of permutations of those windows. Only the
seed decides it: two arms of one seed that have read equally many tokens have read the same ones.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Index = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Data:
    """What a task yields: two one-dimensional streams of unsigned tokens below `vocab`, made read-only.

    `unit` says what a token is ("byte", or "symbol" for a synthetic source), `bytes_per_token` how many bytes of text
    it stands for (None where it stands for no text), `entropy_rate` the lowest loss any model can reach, in nats per
    token (None where unknown). Raises ValueError for streams of another kind.
    """

    train: Tokens
    valid: Tokens
    vocab: int
    unit: str
    bytes_per_token: float | None = None
    entropy_rate: float | None = None

    def __post_init__(self) -> None:
        for name, stream in (("train", self.train), ("valid", self.valid)):
            if stream.ndim != 1 or stream.dtype.kind != "u":
                raise ValueError(
                    f"the {name} stream must be a one-dimensional array of unsigned integers, "
                    f"not {stream.dtype} of shape {stream.shape}"
                )
            if stream.size and (largest := int(stream.max())) >= self.vocab:
                raise ValueError(f"the {name} stream holds token {largest}, outside its vocabulary of {self.vocab}")
            stream.setflags(write=False)

    @classmethod
    def from_bytes(cls, train: bytes | memoryview, valid: bytes | memoryview) -> "Data":
        """Return byte-level data: a token is a byte, the vocabulary has 256."""
        return cls(
            train=np.frombuffer(train, np.uint8),
            valid=np.frombuffer(valid, np.uint8),
            vocab=256,
            unit="byte",
            bytes_per_token=1.0,
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over both streams and the fields above, the same on every machine."""
        digest = hashlib.sha256()
        for stream in (self.train, self.valid):
            little = stream.astype(stream.dtype.newbyteorder("<"), copy=False)
            digest.update(f"{little.dtype.str} {little.size}\n".encode())
            digest.update(np.ascontiguousarray(little).data)
        # Nine digits: the last bits of a computed rate are the linear algebra library's.
        rate = None if self.entropy_rate is None else f"{self.entropy_rate:.9g}"
        digest.update(repr((self.vocab, self.unit, self.bytes_per_token, rate)).encode())
        return digest.hexdigest()


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """Base class of task plugins: hyper-parameters are the dataclass fields, all with defaults.

    The docstring's first line is what `growbench list` shows. `argument` names the field that ARGUMENT fills where a
    study writes `name:ARGUMENT`; "" where the task takes none. A task whose data must be downloaded also has
    `fetch(cache: Path) -> Path`, a classmethod that `growbench data fetch NAME` calls, and nothing else downloads.
    """

    argument: ClassVar[str] = ""
    memory: ClassVar[bool] = False
    """Whether what is trained on is asked for later: no other data to validate on, and no limit of one epoch."""
    probe: ClassVar[bool] = False
    """Whether it asks for one capacity and not for language: means across tasks leave it out."""

    def missing(self, cache: Path) -> str:
        """Return "", or the sentence that names the command to run first where data must be fetched."""
        return ""

    @abstractmethod
    def load(self, cache: Path) -> Data:
        """Return the streams, always the same; `cache` is the folder of fetched data. ValueError if it cannot."""

    def floor(self, residual: int) -> float | None:
        """Return the lowest loss, in nats per token, of any model whose residual stream is that wide; None if unknown.

        A limit that width sets on this task's source, beyond the entropy rate.
        """
        return None

    def bits(self, loss: float) -> float | None:
        """Return the bits of facts that a model of that loss (nats per token) knows, linear in it; None: no facts."""
        return None


class Drawn(Task):
    """Base of tasks drawn from a source whose entropy rate is known: fields `tokens` and `seed`, streams by `draw`.

    `tokens` symbols to train on and a tenth of that for validation, from generators of their own; `seed` decides the
    source and both. No text is involved.
    """

    tokens: int
    seed: int

    @property
    @abstractmethod
    def vocab(self) -> int:
        """Number of symbols."""

    @property
    @abstractmethod
    def entropy_rate(self) -> float:
        """Nats per token that no model can go below."""

    @abstractmethod
    def draw(self, tokens: int, role: str) -> npt.NDArray[np.integer[Any]]:
        """Return a stream of so many symbols; role, "train" or "valid", names its generator."""

    def load(self, cache: Path) -> Data:
        """Return both streams and the entropy rate; `cache` is not used."""
        train = self._tokens(self.tokens, "train")
        valid = self._tokens(self.tokens // 10, "valid")
        return Data(train=train, valid=valid, vocab=self.vocab, unit="symbol", entropy_rate=self.entropy_rate)

    def _tokens(self, count: int, role: str) -> Tokens:
        drawn = self.draw(count, role)
        return drawn.astype(np.uint8) if self.vocab <= 256 else drawn.astype(np.uint16)

    def require(self, **least: int) -> None:
        """Raise ValueError where a field is below its least value, tokens are too few, or symbols above 16 bits."""
        for name, value in least.items():
            if getattr(self, name) < value:
                raise ValueError(f"{name} must be at least {value}, not {getattr(self, name)}")
        if self.tokens < 20:
            raise ValueError(f"tokens must be at least 20, so that a tenth can be validated on, not {self.tokens}")
        if self.vocab > 2**16:
            raise ValueError(f"{self.vocab} symbols are more than the {2**16} that a token can tell apart: lower them")


def generator(*role: object) -> np.random.Generator:
    """Return the generator of a role, e.g. ("data", seed, epoch): what others draw never moves its own draws."""
    digest = hashlib.sha256("/".join(map(str, role)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest, "big"))


def windows(stream: Tokens, context: int) -> int:
    """Return how many windows of context + 1 tokens the stream holds; ValueError if none.

    >>> windows(np.zeros(9, np.uint8), 4)
    2
    """
    assert context > 0, context
    if stream.size <= context:
        raise ValueError(
            f"a stream of {stream.size} tokens is shorter than one window of context + 1 = {context + 1}: "
            "give the task more data, or lower the study's train.context"
        )
    return (stream.size - 1) // context


def order(n: int, seed: int, epoch: int) -> Index:
    """Return the permutation of n windows that is read in that epoch."""
    return generator("data", seed, epoch).permutation(n)


def indices(n: int, first: int, count: int, seed: int, permutation: Callable[[int, int, int], Index] = order) -> Index:
    """Return entries first ... first + count - 1 of the endless sequence of epochs' permutations of n windows.

    `permutation` is `order`, memoised or not.
    """
    assert n > 0, n
    assert first >= 0, first
    assert count >= 0, count
    epochs = range(first // n, -(-(first + count) // n))
    parts = [permutation(n, seed, epoch)[max(first - epoch * n, 0) : first + count - epoch * n] for epoch in epochs]
    return np.concatenate([np.empty(0, np.int64), *parts])


def batch(stream: Tokens, context: int, index: Index) -> Index:
    """Return the windows of that index, of shape (len(index), context + 1)."""
    tokens: Index = stream[index[:, None] * context + np.arange(context + 1)].astype(np.int64)
    return tokens


def evaluation(stream: Tokens, context: int, tokens: int) -> Index:
    """Return evenly spaced windows that predict about `tokens` tokens, of shape (k, context + 1).

    All of the stream where it is shorter, one window at least; ValueError if it holds none.
    """
    n = windows(stream, context)
    k = min(n, max(1, tokens // context))
    return batch(stream, context, np.arange(k, dtype=np.int64) * n // k)


class Stream:
    """A training stream as every arm of a seed reads it: epoch after epoch, each in its own order.

    ValueError where `tokens` holds no window of context + 1.
    """

    def __init__(self, tokens: Tokens, *, context: int, seed: int) -> None:
        self.windows = windows(tokens, context)
        self._tokens, self._context, self._seed = tokens, context, seed
        self._order = lru_cache(maxsize=2)(order)  # a batch touches two epochs where one ends

    def batch(self, first: int, count: int) -> Index:
        """Return windows first ... first + count - 1 of the sequence, of shape (count, context + 1)."""
        index = indices(self.windows, first, count, self._seed, self._order)
        return batch(self._tokens, self._context, index)
