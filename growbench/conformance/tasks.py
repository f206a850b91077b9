"""The checks of a task (growbench.conformance).

The same streams everywhere, no validation in training, honest numbers.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from growbench import conformance, plugins
from growbench.conformance import Exempt, Failed, collect, defaults, loads
from growbench.overlap import Hashes, hashes, shared
from growbench.task import Data, Task

Reals = npt.NDArray[np.float64]

DOCUMENT = 1024
"""Tokens in a row that are a document, however much training repeats itself."""
GRAM = 32
"""Length of the n-grams whose shared part is reported; half of them shared is an overlap too."""
CHANCE = 40.0
"""Nats that a stretch must carry, by the entropy rate, so that two streams do not share it by chance."""
TEXT = 0.25
"""Bits that a byte of text carries at least, by the entropy of single tokens, in the mean: the best models need 0.6."""
ORDERS = 8
FITTED, EVALUATED = 2_000_000, 200_000
"""Tokens that n-gram models are fitted on, and evaluated on."""


class Subject(conformance.Subject):
    """A task under examination."""

    @property
    def task(self) -> Task:
        if not isinstance(self.made, Task):
            raise Exempt("it is no task: see loads")
        return self.made

    @cached_property
    def loaded(self) -> tuple[Data | None, str, list[str]]:
        """The data or why there are none, and what loading them changed in the process."""
        from growbench.conformance.traces import Snapshot

        before, data, error = Snapshot.take(), None, ""
        try:
            data = self.task.load(self.cache)
        except (Exception, SystemExit) as raised:
            error = str(raised) if isinstance(raised, ValueError) else f"{type(raised).__name__}: {raised}"
        return data, error, before.restore()

    def require(self) -> None:
        """Exempt where the data must be fetched, or an argument given, before anything can be said of them."""
        try:
            if isinstance(sentence := self.task.missing(self.cache), str) and sentence:
                raise Exempt(sentence)
        except OSError as error:
            raise Exempt(f"its data cannot be had ({error}): see fetched") from error
        if self.loaded[0] is None and self.cls.argument and self.cls.argument not in self.parameters:
            raise Exempt(self.loaded[1])

    @property
    def data(self) -> Data:
        """The data; Exempt where they cannot be loaded."""
        self.require()
        if not isinstance(data := self.loaded[0], Data) or not data.train.size or not data.valid.size:
            raise Exempt("it cannot be loaded: see streams")
        return data

    @cached_property
    def elsewhere(self) -> list[list[str]]:
        """Fingerprints in two other processes, of other hash seeds: of `fingerprints`."""
        what = [self.plugin.name, [str(path) for path in self.extra], self.parameters, str(self.cache)]
        found = []
        for seed in ("0", "1"):
            done = subprocess.run(
                [sys.executable, "-c", _CHILD, json.dumps(what)],
                env=os.environ | {"PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
            )
            if done.returncode:
                raise Failed(f"loading it in another process failed: {(done.stderr.splitlines() or ['no word'])[-1]}")
            found.append(json.loads(done.stdout.splitlines()[-1]))
        return found


_CHILD = (
    "import json, sys, growbench.conformance.tasks as t; print(json.dumps(t.fingerprints(*json.loads(sys.argv[1]))))"
)


def fingerprints(name: str, extra: list[str], parameters: dict[str, Any], cache: str) -> list[str]:
    """Fingerprints of a task's data: of two loads as they are, with folders listed upwards, and downwards."""
    task = plugins.load("task", name, tuple(map(Path, extra)))(**parameters)
    found = [task.load(Path(cache)).fingerprint for _ in range(2)]
    for reverse in (False, True):
        with _listed(reverse):
            found.append(task.load(Path(cache)).fingerprint)
    return found


class _Entries(list[Any]):
    """What os.scandir returns, as a list."""

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __next__(self) -> Any:
        if not self:
            raise StopIteration
        return self.pop(0)

    def close(self) -> None:
        pass


@contextmanager
def _listed(reverse: bool) -> Iterator[None]:
    """Folders list their entries in the order of their names, or in the opposite one, instead of the file system's."""
    listdir, scandir = os.listdir, os.scandir

    def entries(path: Any = ".") -> _Entries:
        with scandir(path) as found:
            return _Entries(sorted(found, key=lambda entry: entry.name, reverse=reverse))

    os.listdir = lambda path=".": sorted(listdir(path), reverse=reverse)  # type: ignore[assignment]
    os.scandir = entries  # type: ignore[assignment]
    try:
        yield
    finally:
        os.listdir, os.scandir = listdir, scandir


def fetched(subject: Subject) -> str:
    """where data must be fetched, `missing` names the command, and nothing else downloads"""
    task, has = subject.task, callable(getattr(subject.cls, "fetch", None))
    with TemporaryDirectory() as folder:
        empty = Path(folder)
        try:
            sentence: object = task.missing(empty)
        except Exception as error:
            raise Failed(f"missing raised {type(error).__name__}: {error}: return the sentence instead") from error
        command = f"growbench data fetch {subject.plugin.name}"
        if not isinstance(sentence, str):
            raise Failed(f"missing returned {sentence!r}: return an empty string, or the sentence with the command")
        if has != (command in sentence):
            raise Failed(
                f"missing says {sentence!r} of an empty cache: with a fetch, name the command `{command}`; without "
                "one, return an empty string"
            )
        if has:
            try:
                task.load(empty)
            except ValueError:
                pass
            except Exception as error:
                raise Failed(
                    f"load raised {type(error).__name__} without its data: raise ValueError(missing)"
                ) from error
            else:
                raise Failed(
                    "load worked from an empty cache: leave downloading to fetch, and raise ValueError(missing)"
                )
        if any(empty.iterdir()):
            raise Failed("missing or load wrote to the cache: leave that to fetch")
    return str(sentence)


def streams(subject: Subject) -> str:
    """it loads: a Data with two streams that hold something"""
    subject.require()
    data, error, _ = subject.loaded
    if error:
        raise Failed(f"load raised: {error}")
    if not isinstance(data, Data):
        raise Failed(f"load returned a {type(data).__name__}: return a growbench.task.Data")
    if not data.train.size or not data.valid.size:
        raise Failed("a stream is empty: give tokens to train on and tokens to validate on")
    return f"{data.train.size:,} tokens to train on, {data.valid.size:,} to validate on"


def vocabulary(subject: Subject) -> str:
    """every token lies inside the vocabulary"""
    data = subject.data
    largest = max(int(data.train.max()), int(data.valid.max()))
    if largest >= data.vocab:
        raise Failed(f"token {largest} lies outside the vocabulary of {data.vocab}: make vocab {largest + 1} or more")
    used = np.zeros(data.vocab, np.bool_)
    used[data.train] = True
    return f"{used.sum():,} of {data.vocab:,} occur; {100 * (~used[data.valid]).mean():.2g} % of validation is new"


def fingerprint(subject: Subject) -> str:
    """the streams are the same in every load and in every process"""
    first, again = subject.data.fingerprint, subject.task.load(subject.cache).fingerprint
    if first != again:
        raise Failed("two loads gave different data: seed every draw from the task's fields, and keep no state")
    if any(found[0] != first for found in subject.elsewhere):
        raise Failed(
            "another process loaded different data: the order of sets, hash() and id() differ between processes; sort, "
            "or use growbench.task.generator"
        )
    return first[:16]


def order(subject: Subject) -> str:
    """the streams do not depend on the order in which the file system lists a folder"""
    if not subject.data:
        return ""
    for once, again, upwards, downwards in subject.elsewhere:
        if once != again:
            raise Exempt("no two loads agree: see fingerprint")
        if upwards != downwards:
            raise Failed("the data follow the order in which folders list their files: sort the names before reading")
    return ""


def overlap(subject: Subject) -> str:
    """no document of validation is in training"""
    data = subject.data
    rate = math.inf if data.entropy_rate is None else data.entropy_rate
    length = _document(data)
    if length * rate < CHANCE:
        raise Exempt(f"at {rate:.2g} nats per token, stretches of {length} tokens recur by chance")
    gram = min(GRAM, data.valid.size)
    _, distinct = np.unique(hashes(data.valid, gram), return_index=True)
    share = shared(data.train, data.valid, gram)[distinct].mean()
    if share > 0.5 and gram * rate >= CHANCE:
        raise Failed(
            f"{100 * share:.0f} % of validation's distinct {gram}-grams are in training: split by whole documents, and "
            "drop copies before splitting"
        )
    if (places := shared(data.train, data.valid, length)).any():
        raise Failed(
            f"{length} tokens in a row from position {int(places.argmax()):,} of validation are in training too: split "
            "by whole documents, and drop copies before splitting"
        )
    return f"{100 * share:.2g} % of validation's distinct {gram}-grams are in training, no {length} tokens in a row"


def _document(data: Data) -> int:
    """Tokens in a row that both streams share only where a document, or a part of one, is in both.

    Twice the least power of two at which a stretch carries CHANCE, and the end of training, as long as validation,
    shares none with the rest: what training repeats within itself, licences and idioms, validation may repeat too.
    """
    rate = min((mean for mean, _ in ngrams(data)), default=math.inf) if data.entropy_rate is None else data.entropy_rate
    cut = data.train.size - min(data.valid.size, data.train.size // 2)
    rest, end, length = data.train[:cut], data.train[cut:], GRAM
    while length < DOCUMENT // 2 and (length * rate < CHANCE or shared(rest, end, length).any()):
        length *= 2
    return min(2 * length, data.valid.size)


def measure(subject: Subject) -> str:
    """bytes per token are those of the unit"""
    data = subject.data
    per = data.bytes_per_token
    if data.unit == "byte" and (per != 1.0 or data.vocab > 256):
        raise Failed(f"a byte is one byte out of 256, not {per} out of {data.vocab}: use Data.from_bytes")
    if data.unit == "symbol" and per is not None:
        raise Failed(f"a symbol stands for no text, and bytes_per_token is {per}: leave it None, or name another unit")
    if data.unit not in ("byte", "symbol"):
        if per is None or not math.isfinite(per) or per <= 0:
            raise Failed(f"a {data.unit} stands for text, and bytes_per_token is {per}: give the mean over validation")
        share = np.bincount(data.train[:FITTED], minlength=data.vocab) / min(data.train.size, FITTED)
        bits = float(-(share[share > 0] * np.log2(share[share > 0])).sum())
        if bits > 8 * per + math.log2(math.e * (1 + per)):  # of its bytes, and of how many they are
            raise Failed(f"a {data.unit} carries {bits:.1f} bits, more than {per:.2f} bytes hold: mend bytes_per_token")
        if per > bits / TEXT + 8:
            raise Failed(
                f"a {data.unit} carries {bits:.1f} bits, too few for {per:.4g} bytes of text, of which each carries "
                f"{TEXT} or more: mend bytes_per_token"
            )
    return f"{per} per {data.unit}" if per else f"none: a {data.unit}"


def entropy(subject: Subject) -> str:
    """no model goes below the entropy rate that the task states"""
    data = subject.data
    rate = data.entropy_rate
    if rate is None:
        raise Exempt("it states no entropy rate")
    if not 0 <= rate <= math.log(data.vocab):
        raise Failed(f"an entropy rate lies between 0 and ln {data.vocab}, not {rate}: give nats per token")
    best, error, n = min((mean, error, n) for n, (mean, error) in enumerate(ngrams(data), start=1))
    if best < rate - 4 * error:
        raise Failed(
            f"a {n}-gram model reaches {best:.3f} +- {error:.3f} nats per token, below the stated entropy rate of "
            f"{rate:.3f}: no model can, so mend the rate or leave it None"
        )
    return f"{rate:.3f} nats per token; a {n}-gram model reaches {best:.3f}"


def ngrams(data: Data) -> Iterator[tuple[float, float]]:
    """Mean loss on validation and its standard error, of n-gram models fitted on training, n = 1 to ORDERS.

    p(x | c) = (count(c x) + a p(x | shorter c)) / (count(c) + a), a = 1: a Dirichlet prior around the shorter context.
    """
    train, valid = data.train[:FITTED], data.valid[:EVALUATED]
    chance = np.full(max(valid.size - ORDERS + 1, 0), 1 / data.vocab)
    if not chance.size or train.size < ORDERS:
        return
    for n in range(1, ORDERS + 1):
        joint = _counts(hashes(train, n), hashes(valid, n)[ORDERS - n :])
        if n == 1:
            context: Reals = np.full(chance.size, float(train.size))
        else:
            context = _counts(hashes(train[:-1], n - 1), hashes(valid[:-1], n - 1)[ORDERS - n :])
        chance = (joint + chance) / (context + 1.0)
        blocks = [part.mean() for part in np.array_split(-np.log(chance), 64) if part.size]
        yield float(-np.log(chance).mean()), float(np.std(blocks) / math.sqrt(len(blocks)))


def _counts(fitted: Hashes, asked: Hashes) -> Reals:
    """How often each of the asked occurs in the fitted."""
    known, count = np.unique(fitted, return_counts=True)
    place = np.searchsorted(known, asked).clip(max=known.size - 1)
    return np.where(known[place] == asked, count[place], 0).astype(np.float64)


def traces(subject: Subject) -> str:
    """nothing is left behind: global random states, environment, replaced functions"""
    if not (found := subject.left_by_import):
        subject.require()
        found = subject.loaded[2]
    if found:
        raise Failed(f"{found[0]} is not as it was before: draw from growbench.task.generator, and change nothing else")
    return ""


LAWS: tuple[Callable[[Subject], str], ...] = (
    fetched,
    streams,
    vocabulary,
    fingerprint,
    order,
    overlap,
    measure,
    entropy,
    traces,
)
CHECKS = collect(loads, defaults, *LAWS)
