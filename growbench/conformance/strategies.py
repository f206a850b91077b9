"""The checks of a strategy (growbench.conformance): how it behaves as a plugin; the laws of growth are in laws.py."""

import random
import re
from dataclasses import replace
from inspect import cleandoc

import numpy as np
import torch

from growbench.conformance import Exempt, Failed, collect, defaults, loads
from growbench.conformance.laws import Subject, alive, checkpoint, composes, moments, nothing, preserves, transport
from growbench.conformance.trials import CASES, Trial, alike, bits

LARGER = 1.01
"""How many times the weights asked for, low-rank additions apart, a method's own target may have."""

SOURCE = re.compile(r"arXiv:(\d{4}\.\d{4,5}|[a-z.-]+/\d{7})|\b10\.\d{4,9}/\S+|https?://\S+")


def cites(subject: Subject) -> str:
    """the docstring says where the method comes from"""
    text = cleandoc(subject.cls.__dict__.get("__doc__") or "")
    if not (found := SOURCE.search(text)):
        raise Failed(
            f"the docstring of {subject.cls.__name__} cites no source: name one as arXiv:1511.05641, as a DOI "
            "(10.1000/182) or as a URL"
        )
    return found[0]


def supports(subject: Subject) -> str:
    """it grows both architectures, or says in a sentence what it does not"""
    answers = subject.answers
    for case, answer in answers.items():
        if isinstance(answer, Exception):
            raise Failed(f"supports raised {type(answer).__name__}: {answer} ({case}): return a sentence instead")
        if not isinstance(answer, str):
            raise Failed(f"supports returned {answer!r} ({case}): return the reason as a sentence, or an empty string")
        if answer and len(answer.split()) < 3:
            raise Failed(f"supports returned {answer!r} ({case}): say why in a sentence that a report can print")
    for trial in subject.trials:
        if trial.error:
            raise Failed(
                f"growing raised {trial.error} ({trial}): mend it, or let supports say why it does not apply there"
            )
    if not subject.trials:
        raise Failed(
            f"it supports none of the {len(CASES)} probed growths, of width, of single axes and of depth, for one: "
            f"{next(iter(answers.values()))}: let supports admit what it grows"
        )
    refused = {case.architecture: answer for case, answer in answers.items()}
    refused = {
        name: why for name, why in refused.items() if all(a for c, a in answers.items() if c.architecture == name)
    }
    without = "".join(f"; not {name}: {why}" for name, why in refused.items())
    return f"{len(subject.trials)} of {len(CASES)} growths{without}"


def shapes(subject: Subject) -> str:
    """the grown state has exactly the shape that target says, which is no larger than the one asked for"""
    ran = [trial for trial in subject.trials if not trial.error]
    for trial in ran:
        asked = trial.case.larger(trial.source.shape).params_non_embedding
        if (own := replace(trial.target, rank=0).params_non_embedding) > LARGER * asked:
            raise Failed(
                f"target returned a shape of {own:,} non-embedding weights where {asked:,} were asked for ({trial}): "
                "return the shape asked for, or a smaller one of the method's own"
            )
        if trial.misshapen:
            raise Failed(f"{trial.misshapen} ({trial})")
    if not ran:
        raise Exempt("it does not grow: see supports")
    return ""


def untouched(subject: Subject) -> str:
    """growth leaves the source as it was"""
    for trial in subject.trials:
        if trial.touched:
            raise Failed(
                f"growing changed the source's {trial.touched[0]} ({trial}): clone what you write to; all arms grow "
                "from one source"
            )
    return ""


def traces(subject: Subject) -> str:
    """nothing is left behind: global random states, default dtype, environment, replaced functions"""
    for when, left in (("importing it", subject.left_by_import), *((str(t), t.left) for t in subject.trials)):
        if left:
            raise Failed(
                f"{left[0]} is not as it was before ({when}): draw from the rng that grow is given, and change nothing "
                "outside the strategy"
            )
    return ""


def seeded(subject: Subject) -> str:
    """growth is a function of its arguments: the same seed, the same weights"""
    for trial in subject.samples[:2]:
        again = subject.attempt(trial.case, before=_stir)
        if again.error or not _equal(trial, again):
            raise Failed(
                f"growing twice with one seed gave two results ({trial}): draw everything from the rng that grow is "
                "given, and keep nothing between calls"
            )
    return ""


def _stir() -> None:
    """Another process would find other global random states."""
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002  (what a plugin may draw from)


def _equal(one: Trial, other: Trial) -> bool:
    masks = [{n: bits(m) for n, m in trial.growth.frozen.items()} for trial in (one, other)]
    ramps = [[(r.axis, r.tokens, bits(r.new)) for r in trial.growth.ramps] for trial in (one, other)]
    return alike(one.growth.state, other.growth.state) and masks[0] == masks[1] and ramps[0] == ramps[1]


def probes(subject: Subject) -> str:
    """probe batches stay within the number that is declared, and all are metered"""
    declared = subject.strategy.probe_batches
    if not isinstance(declared, int) or declared < 0:
        raise Failed(f"probe_batches is {declared!r}: return the most batches that one growth draws, a whole number")
    most = 0
    for trial in subject.trials:
        if trial.drawn != trial.probe.batches:
            raise Failed(
                f"{trial.drawn} batches were drawn and {trial.probe.batches} metered ({trial}): call probe.batch or "
                "probe.gradients, nothing else of the probe"
            )
        most = max(most, trial.drawn)
        if trial.drawn > declared:
            raise Failed(
                f"growing drew {trial.drawn} probe batches and declares {declared} ({trial}): raise probe_batches, or "
                "draw fewer"
            )
    return f"{most} of {declared}" if declared else ""


def blind(subject: Subject) -> str:
    """growth sees training batches through its probe, and never validation data"""
    for trial in subject.trials:
        if trial.peeked:
            raise Failed(
                f"growing read {trial.peeked[0]} ({trial}): draw training batches from the probe, nothing else"
            )
    return ""


def masks(subject: Subject) -> str:
    """frozen entries and ramps name what exists, with booleans of the right sizes, and leave something to train"""
    for trial in subject.grown:
        if trial.unmaskable:
            raise Failed(f"{trial.unmaskable} ({trial})")
    kinds = {"frozen entries": "frozen", "ramps": "ramps"}
    return " and ".join(name for name, field in kinds.items() if any(getattr(t.growth, field) for t in subject.grown))


def dtypes(subject: Subject) -> str:
    """the grown state has the source's dtype, float32 or float64, and its precision"""
    for trial in (*subject.samples, *subject.single):
        if trial.error:
            raise Failed(f"growing a float32 state raised {trial.error} ({trial}): take the dtype from the state")
        if trial.mistyped:
            raise Failed(
                f"{trial.mistyped} ({trial}): give every tensor the source's dtype, as in "
                "torch.zeros(..., dtype=weight.dtype)"
            )
    for wide, trial in zip(subject.samples, subject.single, strict=True):
        if wide.exact and not trial.misshapen and not trial.gap < max(1e-3, 100 * 2**29 * wide.gap):
            raise Failed(
                f"a float32 logit changes by {trial.gap:.1g}, a float64 one by {wide.gap:.1g} ({trial}): compute in "
                "float64, and round once to the source's dtype"
            )
    return ""


CHECKS = collect(
    loads,
    defaults,
    cites,
    supports,
    shapes,
    untouched,
    traces,
    seeded,
    nothing,
    preserves,
    composes,
    alive,
    moments,
    transport,
    checkpoint,
    probes,
    blind,
    masks,
    dtypes,
)
