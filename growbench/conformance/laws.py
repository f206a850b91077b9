"""The laws of growth (growbench.conformance), on trials: what is preserved, what is alive, what training needs."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from growbench import conformance, train
from growbench.checkpoint import Checkpoint
from growbench.conformance import Exempt, Failed
from growbench.conformance.trials import CASES, Case, Trial, alike, attempt, gradients, practice, source
from growbench.diagnostics import alive_share
from growbench.progress import Progress
from growbench.state import State
from growbench.strategy import Strategy

ALIVE = 1e-6
"""The least share of the squared gradient outside the old model's subspace at which new capacity counts as alive."""

LEADS_ASTRAY = (AssertionError, LookupError, RuntimeError, ValueError)
"""What growing raises by maps that do not lead from the source to the target."""

STEPS = 3
"""Steps trained from a checkpoint, and without one."""


class Subject(conformance.Subject):
    """A strategy under examination."""

    @property
    def strategy(self) -> Strategy:
        """The strategy; Exempt where it cannot be made."""
        if not isinstance(self.made, Strategy):
            raise Exempt("it is no strategy: see loads")
        return self.made

    @cached_property
    def answers(self) -> dict[Case, object]:
        """What `supports` says of every case; an exception where it raised one."""
        strategy, found = self.strategy, dict[Case, object]()
        for case in CASES:
            try:
                found[case] = strategy.supports(case.source, case.larger(case.source))
            except Exception as error:
                found[case] = error
        return found

    @cached_property
    def trials(self) -> list[Trial]:
        """A growth for every case that the strategy supports; Exempt where it grows nothing by nature."""
        if not self.strategy.source:
            raise Exempt("it trains the target from its first token: nothing grows")
        return [self.attempt(case) for case, answer in self.answers.items() if answer == ""]

    @property
    def grown(self) -> list[Trial]:
        """The trials that came to a state of the right sizes; Exempt where none did."""
        found = [trial for trial in self.trials if not trial.error and not trial.misshapen]
        if not found:
            raise Exempt("nothing that it grows can be examined: see supports and shapes")
        return found

    @property
    def samples(self) -> list[Trial]:
        """The first trial of each architecture, and the first in depth: for checks that are the same for all."""
        deep = [trial for trial in self.grown if trial.deepens]
        firsts = {trial.case.architecture: trial for trial in reversed(self.grown)}
        return list(dict.fromkeys([*firsts.values(), *deep[:1]]))

    @cached_property
    def single(self) -> list[Trial]:
        """The samples once more, in float32."""
        return [self.attempt(trial.case, torch.float32) for trial in self.samples]

    def attempt(self, case: Case, dtype: torch.dtype = torch.float64, **how: Any) -> Trial:
        return attempt(self.strategy, case, source(case.source, dtype, case.scaling), case.larger(case.source), **how)

    @property
    def function(self) -> bool:
        """Whether it declares that it preserves the function."""
        return self.strategy.preserves == "function"


def nothing(subject: Subject) -> str:
    """growing by nothing is the identity"""
    shapes_ = list({trial.case.source: trial.case for trial in subject.grown}.items())
    reasons = {shape: subject.strategy.supports(shape, shape) for shape, _ in shapes_}
    able = [(shape, case) for shape, case in shapes_ if reasons[shape] == ""]
    if not able:
        raise Exempt(f"it does not apply where nothing is added: {reasons[shapes_[0][0]]}")
    for shape, case in able:
        state = source(shape, torch.float64)
        trial = attempt(subject.strategy, case, state, shape)
        if trial.error or trial.misshapen:
            raise Failed(
                f"growing a {case.architecture} to its own shape raised {trial.error or trial.misshapen}: return the "
                "source, or let supports refuse it"
            )
        grown = trial.growth.state
        same = alike(replace(grown, first={}, second={}, steps={}), replace(state, first={}, second={}, steps={}))
        if not same and not subject.function:
            raise Exempt("it preserves nothing, not even where nothing is added")
        if not same:
            raise Failed(
                f"growing a {case.architecture} to its own shape changed it: write to new units and layers alone"
            )
    return ""


def preserves(subject: Subject) -> str:
    """what `preserves` declares is true, and no less than the truth"""
    declared = subject.strategy.preserves
    if declared not in ("function", "nothing"):
        raise Failed(f"preserves is {declared!r}: return 'function' or 'nothing'")
    worst = max(subject.grown, key=lambda trial: trial.gap if math.isfinite(trial.gap) else math.inf)
    if declared == "function" and not worst.exact:
        raise Failed(
            f"it declares that it preserves the function, and a logit changes by {worst.gap:.1g} of the largest "
            f"({worst}): map each axis as it admits (growbench.labels.Admits), or return 'nothing' from preserves"
        )
    if declared == "nothing" and worst.exact:
        raise Failed(
            f"it declares that it preserves nothing, and all {len(subject.grown)} growths left the logits as they "
            "were: it undersells itself, return 'function' from preserves"
        )
    return f"the function, to {worst.gap:.1g}" if declared == "function" else f"nothing ({worst}: {worst.gap:.1g})"


def composes(subject: Subject) -> str:
    """what was grown can be grown again, in width and in depth, with what it preserves"""
    firsts = {(trial.case.architecture, trial.deepens): trial for trial in reversed(subject.grown)}
    twice = list[Trial]()
    for trial in reversed(firsts.values()):
        state = trial.growth.state
        asked = trial.case.larger(trial.case.larger(trial.case.source))
        if subject.strategy.supports(state.shape, asked):
            continue
        again = attempt(subject.strategy, trial.case, state, asked)
        twice.append(again)
        remedy = "use the state's own shape and norms, not those of a fresh model, and one rule at every size and depth"
        if again.error or again.misshapen:
            raise Failed(f"growing a second time raised {again.error or again.misshapen} ({trial}): {remedy}")
        if subject.function and trial.exact and not again.exact:
            raise Failed(f"growing a second time changes a logit by {again.gap:.1g} ({trial}): {remedy}")
    if not twice:
        raise Exempt("it supports no growth twice in a row")
    return "; ".join(map(str, twice))


def alive(subject: Subject) -> str:
    """gradients reach the new capacity, unless `sterile` says why they do not"""
    shares: dict[Trial, float] = {}
    for trial in subject.grown:
        if trial.adds and (share := _share(trial)) is not None:
            shares[trial] = share
    if not shares:
        known = any(trial.adds for trial in subject.grown)
        raise Exempt("it states no maps, so what is new is unknown" if known else "its target adds nothing")
    least, reason = min(shares, key=lambda trial: shares[trial]), subject.strategy.sterile
    if not isinstance(reason, str):
        raise Failed(f"sterile is {reason!r}: return the reason as a sentence, or an empty string")
    if reason and shares[least] > ALIVE:
        raise Failed(
            f"it declares itself sterile ({reason}), and in every growth gradients reach what is new, a share of "
            f"{shares[least]:.1g} at least: return an empty string from sterile"
        )
    if reason:
        raise Exempt(f"sterile by design: {reason}")
    if (layer := _dead_layer(least)) is not None:
        raise Failed(
            f"no gradient reaches layer {layer} ({least}): let a new layer read and mute only what it writes, as "
            "State.deepen does, or state in sterile why it is dead"
        )
    if shares[least] <= ALIVE:
        raise Failed(
            f"no gradient reaches the new capacity (a share of {shares[least]:.1g}; {least}): give fill something to "
            "write into the free directions, or state in sterile why that is meant"
        )
    return f"a share of {shares[least]:.1g} at least ({least})"


def _share(trial: Trial) -> float | None:
    """The share of the squared gradient outside the old model, ramps at their end; None where it cannot be told."""
    if _dead_layer(trial) is not None:
        return 0.0
    found = trial.opened
    if trial.growth.maps or trial.growth.layers:
        return alive_share(replace(trial.growth, frozen=trial.checkpoint.frozen), found) or 0.0
    tails = [tail for tail in _tails(trial, found) if tail is not None]
    return max(tails) if tails else None


def _dead_layer(trial: Trial) -> int | None:
    """In depth, the first layer that no gradient reaches, ramps at their end; all of the source's layers are alive."""
    if not trial.deepens:
        return None
    found = trial.opened
    reached = {weight.layer for name, weight in trial.target.weights.items() if found[name].any()}
    return next((layer for layer in range(trial.target.layers) if layer not in reached), None)


def _tails(trial: Trial, found: Mapping[str, Tensor]) -> Iterator[float]:
    """Without maps: as matrices over a grown axis, the gradients of a sterile model have the rank of the old axis.

    Yields the share of the squared singular values beyond that rank, which is at most the share outside the old model,
    for each weight whose rank could be larger.
    """
    for name, weight in trial.target.weights.items():
        for position, dim in enumerate(weight.dims):
            old = trial.source.shape.axes.get(dim.axis, dim.size)
            matrix = found[name].movedim(position, 0).flatten(1)
            if name not in trial.checkpoint.frozen and old < min(matrix.shape):
                energy = torch.linalg.svdvals(matrix).square()
                yield (energy[old:].sum() / energy.sum()).item() if energy.sum() else 0.0


def moments(subject: Subject) -> str:
    """moments are finite, of their weights' sizes, second ones not negative; what is carried follows the maps"""
    for trial in subject.grown:
        state = trial.growth.state
        if (
            not state.first.keys() == state.second.keys() == state.steps.keys()
            or state.first.keys() - state.weights.keys()
        ):
            raise Failed(f"first, second and steps do not name the same weights ({trial}): carry or reset all three")
        for name, m in state.first.items():
            v = state.second[name]
            if not m.shape == v.shape == state.weights[name].shape:
                raise Failed(
                    f"the moments of {name} have not its sizes ({trial}): carry them with state.widen, or reset"
                )
            if not (m.isfinite().all() and v.isfinite().all() and (v >= 0).all()):
                raise Failed(
                    f"the moments of {name} are not finite, or a second one is negative ({trial}): carry them with "
                    "state.widen (axes.transport_square squares the maps), or return state.reset()"
                )
        if astray := _astray(trial):
            raise Failed(
                f"{astray} is not the source's, carried by the maps that it returns ({trial}): moments are covectors, "
                "first ones grow by axes.transport and second ones by axes.transport_square; carry them with "
                "state.widen, or return state.reset()"
            )
    return "" if any(trial.growth.state.first for trial in subject.grown) else "reset"


def _astray(trial: Trial) -> str:
    """The first moment that is neither zero nor the source's, carried by the stated maps; empty where none is.

    What new layers have is free, and what new units have, where moments of ones would be carried as zeros.
    """
    growth, layers = trial.growth, trial.growth.layers
    if not (growth.maps or layers):
        return ""
    ones = replace(trial.source, first={n: torch.ones_like(m) for n, m in trial.source.first.items()})
    try:
        wanted, known = _led(trial, trial.source), _led(trial, ones).first
    except LEADS_ASTRAY:  # transport says so
        return ""
    new = layers.muted | layers.fresh if layers else frozenset()
    for name in sorted(growth.state.first.keys() & wanted.first.keys()):
        if trial.target.weights[name].layer in new:
            continue
        for kind in ("first", "second"):
            found, due = getattr(growth.state, kind)[name], getattr(wanted, kind)[name]
            astray = ~torch.isclose(found, due, rtol=1e-7, atol=1e-12) & (found != 0) & (known[name] != 0)
            if astray.any():
                return f"the {kind} moment of {name}"
    return ""


def transport(subject: Subject) -> str:
    """what is preserved is preserved around the source too: <G', grow(D)> = <G, D> for every direction D"""
    if not subject.function:
        raise Exempt("it does not preserve the function")
    stated = [trial for trial in subject.grown if trial.exact and (trial.growth.maps or trial.growth.layers)]
    if not stated:
        raise Exempt("it states no maps" if any(trial.adds for trial in subject.grown) else "its target adds nothing")
    for trial in stated:
        before, after = gradients(trial.source, {}), gradients(trial.growth.state, trial.masks)
        rng = train.generator(0, "direction")
        direction = {name: torch.randn(w.shape, generator=rng, dtype=w.dtype) for name, w in before.items()}
        try:
            carried = _carried(trial, direction)
        except LEADS_ASTRAY as error:
            raise Failed(
                f"the maps that it returns do not lead from the source to the target ({trial}): return in Growth the "
                "maps and layers that were applied"
            ) from error
        one, two = _pairing(before, direction), _pairing(after, carried)
        if not math.isclose(one, two, rel_tol=0, abs_tol=1e-7 * _length(before) * _length(direction)):
            raise Failed(
                f"the maps that it returns are not those by which it grew ({trial}): along them the loss changes by "
                f"{two:.4g}, in the source by {one:.4g}; return in Growth the maps and layers that were applied"
            )
    return ""


def _carried(trial: Trial, direction: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """A direction in the source's weights, grown by the maps that the strategy states."""
    return _led(trial, replace(trial.source.reset(), weights=direction)).weights


def _led(trial: Trial, state: State) -> State:
    """A state of the source's shape, grown by the maps and layers that the strategy states."""
    layers = trial.growth.layers
    if layers:
        state = state.deepen(layers, train.generator(0, "fresh"))
    return state.widen(trial.target, trial.growth.maps)


def _pairing(gradient: Mapping[str, Tensor], direction: Mapping[str, Tensor]) -> float:
    return math.fsum((gradient[name] * direction[name]).sum().item() for name in gradient)


def _length(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(math.fsum(t.square().sum().item() for t in tensors.values()))


def checkpoint(subject: Subject) -> str:
    """a checkpoint right after growth loses nothing: training goes on from the file to the same bits"""
    for trial in (*subject.samples, *subject.single[:1]):
        if trial.error or trial.misshapen or trial.mistyped:
            continue
        with TemporaryDirectory() as folder:
            try:
                trial.checkpoint.save(Path(folder, "state.safetensors"))
                read = Checkpoint.load(Path(folder, "state.safetensors"))
            except Exception as error:
                raise Failed(
                    f"the grown state cannot be written and read ({trial}; {type(error).__name__}: {error}): return "
                    "tensors that share no memory, plain floats in norms and whole numbers in steps"
                ) from error
        if not alike(_trained(trial.checkpoint), _trained(read)):
            raise Failed(
                f"trained on from its checkpoint the grown state becomes another ({trial}): return a plain State, "
                "whose fields are all that training goes on from"
            )
    return f"{STEPS} steps, float32 and float64"


def _trained(begin: Checkpoint) -> State:
    start = begin.state.tokens
    bench = practice(begin.state.weights["embed"].dtype)
    bench = replace(bench, identity={**bench.identity, "until": start + STEPS * bench.step})
    out = train.train("train", bench, Progress(checkpoint=begin), lambda tokens: None)
    return out.checkpoint.state if out.checkpoint else begin.state
