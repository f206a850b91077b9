"""Symbols drawn from a random grammar, and the lowest loss that any model of them can reach.

The grammar is regular, probabilistic and deterministic (a unifilar hidden Markov source): a state and the symbol it
emits fix the next state. Whoever knows the state now knows it ever after, so the entropy rate is a finite sum

    h = sum over states s of pi(s) H(symbol | s),        pi = pi P the stationary distribution.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice

import numpy as np
import numpy.typing as npt

from growbench.task import Drawn, Tokens, generator

Reals = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ROLLS = 256
"""Probabilities are multiples of 1/256: a random byte picks a rule, and a stream costs one look-up per token."""


@dataclass(frozen=True, kw_only=True)
class Grammar(Drawn):
    """Symbols of a seeded random grammar whose entropy rate is known: a loss reads as excess over the limit.

    Each of `states` states has `rules` rules "emit a symbol, go to a state", with distinct symbols out of `symbols` and
    random probabilities; most pairs of state and symbol do not occur. States are hidden, but each symbol rules out all
    but rules / symbols of them: it takes about log(states) / log(symbols / rules) symbols to know the state, and from
    then on the state can be followed for ever. At the defaults the uniform loss is 3.47 nats, bigrams reach 2.46,
    trigrams 1.42, and the rate is 1.11.

    Split: `tokens` tokens to train on and a tenth of that for validation, from independent generators; `seed` draws the
    grammar and both, whatever the seed of a run. Source and licence: generated here, no text involved.

    Source paper of the entropy rate: Crutchfield and Feldman (2003), "Regularities unseen, randomness observed".
    """

    states: int = 64
    symbols: int = 32
    rules: int = 4
    tokens: int = 4_000_000
    seed: int = 0

    def __post_init__(self) -> None:
        self.require(states=1, symbols=1)
        if not 1 <= self.rules <= min(self.symbols, ROLLS):
            raise ValueError(
                f"the rules of a state emit distinct symbols: rules must lie in 1 ... {min(self.symbols, ROLLS)} "
                f"here, not {self.rules}"
            )

    @property
    def vocab(self) -> int:
        return self.symbols

    @property
    def entropy_rate(self) -> float:
        """Nats per token that no model can go below."""
        return float(self._stationary @ self._entropies)

    def standard_error(self, tokens: int) -> float:
        """Return the standard deviation of the true source's mean loss over a stream of that many tokens.

        The loss minus h is a martingale difference plus g(s) - g(s'), where g solves the Poisson equation
        (1 - P) g = H - h: the variance is that of the differences, pi-averaged (Gordin's decomposition).
        """
        n = self.states
        excess = self._entropies - self.entropy_rate
        g = np.linalg.solve(np.eye(n) - self._transition + np.outer(np.ones(n), self._stationary), excess)
        difference = self._surprise - self.entropy_rate + g[self._successor] - g[:, None]
        variance = self._stationary @ (self._probability * difference**2).sum(1)
        return float(np.sqrt(variance / tokens))

    def log_prob(self, tokens: Tokens) -> Reals:
        """Return ln p(token | all before) under the true source, state unknown at first, per token of a stream.

        The exact filter: a distribution over states until the tokens leave one possible, a look-up from then on.
        ValueError for a stream that the grammar cannot emit.
        """
        belief, chances = self._stationary, list[float]()
        for token in tokens:
            joint = belief * self._probability[:, token]
            chances.append(float(joint.sum()))
            if not chances[-1]:
                raise ValueError(f"token {len(chances) - 1} of the stream cannot come from this grammar")
            belief = np.bincount(self._successor[:, token], joint / chances[-1], self.states).astype(np.float64)
            if np.count_nonzero(belief) == 1:
                break
        rest = tokens[len(chances) :]
        successor = self._successor.tolist()
        path = accumulate(rest.tolist(), lambda state, token: successor[state][token], initial=int(belief.argmax()))
        known = self._probability[np.fromiter(islice(path, rest.size), np.int64, rest.size), rest]
        if not known.all():
            raise ValueError(f"token {len(chances) + known.argmin()} of the stream cannot come from this grammar")
        log_prob: Reals = np.log(np.concatenate([chances, known]))
        return log_prob

    @cached_property
    def _rules(self) -> tuple[Integers, Integers, Integers]:
        """Symbol, next state and weight (out of ROLLS) of each rule, each of shape (states, rules)."""
        rng = generator("grammar", "rules", self.seed)
        symbol = rng.random((self.states, self.symbols)).argsort(1)[:, : self.rules]
        target = rng.integers(self.states, size=(self.states, self.rules))
        cycle = rng.permutation(self.states)
        target[cycle, 0] = np.roll(cycle, -1)  # a cycle through all: every state is reached from every other
        share = rng.dirichlet(np.ones(self.rules), self.states)
        weight = 1 + rng.multinomial(ROLLS - self.rules, share)
        return symbol, target, weight

    @cached_property
    def _probability(self) -> Reals:
        """P(symbol | state), of shape (states, symbols)."""
        symbol, _, weight = self._rules
        table = np.zeros((self.states, self.symbols))
        np.put_along_axis(table, symbol, weight / ROLLS, 1)
        return table

    @cached_property
    def _successor(self) -> Integers:
        """The state after a state and a symbol, of shape (states, symbols); 0 where the symbol cannot occur."""
        symbol, target, _ = self._rules
        table = np.zeros((self.states, self.symbols), np.int64)
        np.put_along_axis(table, symbol, target, 1)
        return table

    @cached_property
    def _transition(self) -> Reals:
        """P(next state | state)."""
        table = np.zeros((self.states, self.states))
        np.add.at(table, (np.arange(self.states)[:, None], self._successor), self._probability)
        return table

    @cached_property
    def _stationary(self) -> Reals:
        """The distribution pi = pi P, unique since the chain is irreducible."""
        n = self.states
        return np.linalg.solve((np.eye(n) - self._transition + 1).T, np.ones(n)).astype(np.float64)

    @property
    def _surprise(self) -> Reals:
        """-ln P(symbol | state), 0 where the symbol cannot occur."""
        return -np.log(self._probability, out=np.zeros_like(self._probability), where=self._probability > 0)

    @property
    def _entropies(self) -> Reals:
        """H(symbol | state) in nats."""
        entropies: Reals = (self._probability * self._surprise).sum(1)
        return entropies

    def draw(self, tokens: int, role: str) -> Integers:
        symbol, target, weight = self._rules
        rng = generator("grammar", role, self.seed)
        start = int(rng.choice(self.states, p=self._stationary))
        rolls = rng.integers(ROLLS, size=tokens, dtype=np.uint8)
        rule = np.repeat(np.tile(np.arange(self.rules), self.states), weight.ravel()).reshape(self.states, ROLLS)
        step = np.take_along_axis(target, rule, 1).tolist()
        path = accumulate(rolls.tolist(), lambda state, roll: step[state][roll], initial=start)
        visited = np.fromiter(islice(path, tokens), np.int64, tokens)
        emitted: Integers = np.take_along_axis(symbol, rule, 1)[visited, rolls]
        return emitted
