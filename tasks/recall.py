"""Values to look up in the context, and the loss of a model that looks up every one.

A block of n pairs `key value` has a random value for each of K keys. Keys are drawn independently, and cost ln K each;
the value of a key costs ln V where the block first shows it, and nothing from then on. In nats per token:

    entropy rate = (n ln K + d ln V) / 2n,        d = K (1 - (1 - 1/K)^n) keys that a block shows, expected.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from growbench.task import Drawn, generator

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Recall(Drawn):
    """Multi-query associative recall: whatever was bound to a key in the context is asked for, over and over.

    Each block of `pairs` pairs binds its own random values, out of `values`, to `keys` keys; every key after its first
    showing is a query. Nothing lasts beyond a block, so that weights cannot hold it: attention may be the limit. Two
    layers can find all, the first joining each value with its key before it (an induction head). Where the context is
    one block, 2 `pairs` tokens, windows are blocks, and the entropy rate is that of a model which finds all; shorter
    contexts cut blocks. At the defaults 56 % of the values are queries, the rate is 1.99 nats and a model that recalls
    nothing reaches 2.77. Looking up is learned late: two layers of residual width 32 recall a fifth after 4 million
    tokens at batch 16, and all after 6 million at batch 64.

    Split: `tokens` tokens to train on and a tenth of that for validation, from independent generators; `seed` draws
    both, whatever the seed of a run. Source and licence: generated here, no text involved.

    Source paper: Arora et al. (2023), "Zoology", arXiv:2312.04927. There keys are shown first and queried once each, at
    distances of a power law with noise between, and only answers are scored; here keys recur uniformly, and all is.
    """

    probe: ClassVar[bool] = True

    keys: int = 16
    values: int = 16
    pairs: int = 32
    tokens: int = 4_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        self.require(keys=1, values=1, pairs=1)

    @property
    def vocab(self) -> int:
        """Keys, then values."""
        return self.keys + self.values

    @property
    def entropy_rate(self) -> float:
        """Nats per token of a model that recalls every value which its block has shown."""
        shown = self.keys * (1 - (1 - 1 / self.keys) ** self.pairs)
        return (math.log(self.keys) + shown / self.pairs * math.log(self.values)) / 2

    def draw(self, tokens: int, role: str) -> Integers:
        rng = generator("recall", role, self.seed)
        blocks = -(-tokens // (2 * self.pairs))
        bound = self.keys + rng.integers(self.values, size=(blocks, self.keys))
        asked = rng.integers(self.keys, size=(blocks, self.pairs))
        return np.stack([asked, np.take_along_axis(bound, asked, 1)], 2).ravel()[:tokens]
