"""A random bigram source, and the lowest loss that a model of a given residual width can reach on it.

The table of log-probabilities has full rank. A model's logits are a readout of its normalised residual stream, so that
its table, whatever its depth and feed-forward, has a rank of at most the residual width d:

    floor(d) = min over W (symbols, d) and h_1 ... h_symbols, |h_i| = sqrt(d), of
               sum over i of pi(i) CE(P(. | i), softmax(W h_i)),        pi = pi P the stationary distribution.

The best h of a model depends on the last symbol alone, since the next one does.
"""

from bisect import bisect
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, islice
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.optimize import OptimizeResult, minimize

from growbench.task import Drawn, generator

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

SHORT, LONG = 200, 2000
"""Iterations of L-BFGS: thrice LONG lowers the floor of the default source by less than 0.002 nats."""


@dataclass(frozen=True, kw_only=True)
class Rank(Drawn):
    """Symbols of a random bigram source of full rank: the residual width alone limits the loss, by a known amount.

    Each of `symbols` symbols is followed by one of softmax(normal(0, scale^2)). Bigrams are all there is to know, and
    any feed-forward that tells the symbols apart knows them; what the readout can say of them is limited by the
    residual width (the softmax bottleneck). At the defaults the uniform loss is 4.85 nats, unigrams reach 4.80, the
    rate is 3.19, and `floor` lies above it by 1.07, 0.70, 0.35, 0.11 and 0.01 at widths 4, 8, 16, 32 and 64.

    Split: `tokens` tokens to train on and a tenth of that for validation, from independent generators; `seed` draws the
    source and both, whatever the seed of a run. Source and licence: generated here, no text involved.

    Source paper of the limit: Yang et al. (2018), "Breaking the softmax bottleneck", arXiv:1711.03953.
    """

    probe: ClassVar[bool] = True

    symbols: int = 128
    scale: float = 2.0
    tokens: int = 4_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        self.require(symbols=2)
        if not 0 <= self.scale <= 20:
            raise ValueError(f"the scale of the log-probabilities must lie in 0 ... 20, not {self.scale}")

    @property
    def vocab(self) -> int:
        return self.symbols

    @property
    def entropy_rate(self) -> float:
        """Nats per token that no model can go below."""
        return -float((self._joint * self.log_prob).sum())

    def floor(self, residual: int) -> float:
        """Return the lowest loss, in nats per token, of any model of that residual width: seconds, then remembered.

        The minimum is not convex. What is returned is the best that many starts of L-BFGS find, an upper bound of it:
        other starts end within 0.01 nats at width 2, and within 0.003 from 3 on. Width 1, a sign, is given that of 2.
        """
        if residual >= self.symbols:  # orthogonal h_i: W h_i is any table
            return self.entropy_rate
        return _floor(self, max(residual, 2))

    def start(self, width: int, number: int) -> Reals:
        """Return a random W and h_i to minimise from, of shape (2, symbols, width)."""
        rng = generator("rank", "start", self.seed, width, number)
        # The length of a free h_i does not matter to the loss, but scales its gradient; pi then drops out of both.
        length = np.stack([np.ones(self.symbols), np.sqrt(self._stationary * self.symbols)])
        start: Reals = rng.standard_normal((2, self.symbols, width)) * length[:, :, None]
        return start

    def fit(self, start: Reals, iterations: int) -> OptimizeResult:
        """Return the minimum found from a start: `fun` the loss in nats, `jac` its gradient, `x` W and the h_i, flat.

        start: of shape (2, symbols, width).
        """
        width = start.shape[2]
        chance, joint = self._stationary[:, None], self._joint

        def loss(x: Reals) -> tuple[float, Reals]:
            readout, free = x.reshape(start.shape)
            length = np.linalg.norm(free, axis=1, keepdims=True) / np.sqrt(width)
            h = free / length
            logits = h @ readout.T
            logits -= logits.max(1, keepdims=True)
            odds = np.exp(logits)
            total = odds.sum(1, keepdims=True)
            d_logits = chance * odds / total - joint
            d_h = d_logits @ readout
            d_free = (d_h - h * (d_h * h).mean(1, keepdims=True)) / length
            return float((joint * (np.log(total) - logits)).sum()), np.stack([d_logits.T @ h, d_free]).ravel()

        return minimize(
            loss,
            start.ravel(),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 0.0, "gtol": 1e-7},
        )

    @cached_property
    def log_prob(self) -> Reals:
        """ln P(next | last), of shape (symbols, symbols), a row for each last symbol."""
        table = self.scale * generator("rank", "source", self.seed).standard_normal((self.symbols, self.symbols))
        log_prob: Reals = table - np.logaddexp.reduce(table, axis=1, keepdims=True)
        return log_prob

    @cached_property
    def _stationary(self) -> Reals:
        """The distribution pi = pi P, unique since every symbol can follow every other."""
        n = self.symbols
        return np.linalg.solve((np.eye(n) - np.exp(self.log_prob) + 1).T, np.ones(n)).astype(np.float64)

    @cached_property
    def _joint(self) -> Reals:
        """P(last, next) of the stationary source."""
        joint: Reals = self._stationary[:, None] * np.exp(self.log_prob)
        return joint

    def draw(self, tokens: int, role: str) -> Integers:
        rng = generator("rank", role, self.seed)
        bounds = np.exp(self.log_prob).cumsum(1)[:, :-1].tolist()
        start = int(rng.choice(self.symbols, p=self._stationary))
        rolls = rng.random(tokens).tolist()
        path = accumulate(rolls, lambda last, roll: bisect(bounds[last], roll), initial=start)
        return np.fromiter(islice(path, tokens), np.int64, tokens)


@cache
def _floor(task: Rank, width: int) -> float:
    """Many short fits, of which the best go on: narrow models have more minima, and cost less."""
    starts = (task.start(width, number) for number in range(min(32, max(2, 128 // width))))
    found = sorted((task.fit(start, SHORT) for start in starts), key=lambda fit: float(fit.fun))
    best = found[: 2 if width <= 32 else 1]
    losses = [float(task.fit(fit.x.reshape(2, task.symbols, width), LONG).fun) for fit in best]
    return max(task.entropy_rate, min(losses))
