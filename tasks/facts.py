"""Random facts to memorise, and how many bits of them a model's loss says that it knows.

A fact gives a pair of S symbols a random value of `length` symbols out of V, and is read as `a b v_1 ... v_length`. Key
symbols are uniform: they cost ln S each whatever is known; the value of a known fact costs nothing. In nats per token:

    entropy rate = 2 ln S / (2 + length)
    bits         = S^2 (length ln V - (2 + length) (loss - entropy rate)) / ln 2
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from growbench.task import Drawn, generator

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Facts(Drawn):
    """Random associations to memorise: nothing in them generalises, so a loss reads as the bits that a model stores.

    Each pair (a, b) of `keys` x `keys` symbols has a value of `length` symbols, drawn independently, each out of
    `values`; facts are read in random order, drawn independently. Every position has an alphabet of its own, so that a
    token says where in its fact it stands. Where the context is a multiple of 2 + length, windows hold whole facts, and
    the entropy rate is that of a model which knows all; other contexts cut facts that no model can complete. At the
    defaults the 1,024 facts hold 8,192 bits, the rate is 1.73 nats and a model that knows none reaches 3.12.

    Split: none. The validation stream (a tenth of `tokens`) is another random order of the same facts: this measures
    memory. `seed` draws facts and orders, whatever the seed of a run. Source and licence: generated here, no text.

    Source paper of the measure: Allen-Zhu and Li (2024), "Knowledge capacity scaling laws", arXiv:2404.05405, where
    language models store about 2 bits per parameter of what they have read 1,000 times, and 1 bit of 100 times.
    """

    probe: ClassVar[bool] = True
    memory: ClassVar[bool] = True

    keys: int = 32
    values: int = 16
    length: int = 2
    tokens: int = 4_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        self.require(keys=1, values=1, length=1)

    @property
    def vocab(self) -> int:
        """Symbols of all alphabets."""
        return 2 * self.keys + self.length * self.values

    @property
    def entropy_rate(self) -> float:
        """Nats per token of a model that knows all facts: those of the keys."""
        return 2 * math.log(self.keys) / (2 + self.length)

    def bits(self, loss: float) -> float:
        """Return the bits of all facts that a model of that loss (nats per token) knows.

        Negative where it is worse than one that knows the alphabets and no fact.
        """
        unknown = (2 + self.length) * (loss - self.entropy_rate)
        return self.keys**2 * (self.length * math.log(self.values) - unknown) / math.log(2)

    @cached_property
    def facts(self) -> Integers:
        """Every fact as its tokens, of shape (keys^2, 2 + length)."""
        pairs = np.indices((self.keys, self.keys)).reshape(2, -1).T
        values = generator("facts", "values", self.seed).integers(self.values, size=(len(pairs), self.length))
        first = np.array([0, self.keys, *(2 * self.keys + self.values * np.arange(self.length))])
        facts: Integers = first + np.concatenate([pairs, values], 1)
        return facts

    def draw(self, tokens: int, role: str) -> Integers:
        order = generator("facts", role, self.seed).integers(len(self.facts), size=-(-tokens // (2 + self.length)))
        return self.facts[order].ravel()[:tokens]
