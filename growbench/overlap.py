"""How much of one stream is in another: hashes of their n-grams, all offsets at once. With b odd, modulo 2^64,

hash(i, n) = (P(i + n) - P(i)) b^-i,        P(i) = sum of mix(token j) b^j over j < i.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from growbench.task import Tokens

Hashes = npt.NDArray[np.uint64]

CHUNK = 2**20
GRAM_BYTES = 64
"""Length of the n-grams that near-duplicates share, in bytes of text: about a dozen words."""
EXAMINED = 2**21
"""Tokens of validation that are looked for in training."""


@dataclass(frozen=True, kw_only=True)
class Overlap:
    """Of validation's first documents, how many are near-duplicates: half of their n-grams are in training.

    `gram` is n in tokens; a document shorter than that is not examined.
    """

    gram: int
    documents: int
    near_duplicates: int


def near_duplicates(train: Tokens, valid: Tokens, *, end: int, gram: int) -> Overlap:
    """Look for validation's documents, each ended by the token `end`, in training; memory for CHUNK tokens of it."""
    valid = valid[:EXAMINED]
    ends = np.flatnonzero(valid == end)
    starts = np.concatenate([[0], ends[:-1] + 1]) if ends.size else ends
    long = ends - starts >= gram
    starts, ends = starts[long], ends[long]
    if not ends.size:
        return Overlap(gram=gram, documents=0, near_duplicates=0)
    found = np.concatenate([[0], np.cumsum(shared(train, valid, gram))])
    share = (found[ends - gram + 1] - found[starts]) / (ends - gram + 1 - starts)
    return Overlap(gram=gram, documents=int(ends.size), near_duplicates=int((share >= 0.5).sum()))


def gram(bytes_per_token: float) -> int:
    """GRAM_BYTES of text in tokens, 8 at least."""
    return max(8, round(GRAM_BYTES / bytes_per_token))


def shared(train: Tokens, valid: Tokens, length: int) -> npt.NDArray[np.bool_]:
    """Whether the stretch of that length at each position of validation occurs in training."""
    wanted, place = np.unique(hashes(valid, length), return_inverse=True)
    is_there = np.zeros(wanted.size, np.bool_)
    sieve = np.zeros(2**24, np.bool_)
    sieve[wanted >> np.uint64(40)] = True
    for start in range(0, max(train.size - length + 1, 0), CHUNK):
        part = hashes(train[start : start + CHUNK + length - 1], length)
        part = part[sieve[part >> np.uint64(40)]]
        at = np.searchsorted(wanted, part)
        at, part = at[at < wanted.size], part[at < wanted.size]
        is_there[at[wanted[at] == part]] = True
    return is_there[place]


def hashes(stream: Tokens, length: int) -> Hashes:
    """A 64-bit hash of the stretch of that length at every position where one begins."""
    mixed = stream.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64's finaliser
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    base = 0x5851F42D4C957F2D
    sums = np.zeros(stream.size + 1, np.uint64)
    np.cumsum(mixed * _powers(base, stream.size), out=sums[1:])
    count = stream.size - length + 1
    if count < 1:
        return sums[:0]
    found: Hashes = (sums[length:] - sums[:count]) * _powers(pow(base, -1, 2**64), count)
    return found ^ (found >> np.uint64(32)) * np.uint64(0x9E3779B97F4A7C15)


def _powers(base: int, count: int) -> Hashes:
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers)
