"""Plugins that break one rule each: the check that must catch it, the sentence it must say, and the source."""

from dataclasses import dataclass
from textwrap import dedent, indent


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A faulty plugin; `says` is part of the failure sentence."""

    check: str
    fault: str
    says: str
    source: str

    def __str__(self) -> str:
        return f"{self.check}-{self.fault}"


STRATEGY = '''
import os, random
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch.nn import functional

from growbench import axes, maps, model, plugins
from growbench.state import State
from growbench.strategy import Growth, Probe, Ramp, Strategy

class _Quiet(Strategy):
    def widen(self, axis, old, new, rng):
        return maps.net2net(axis, old, new, rng)

    def fill(self, weight, grown, grown_maps, fresh):
        return 0 * fresh

class _Padded(Strategy):
    def widen(self, axis, old, new, rng):
        return maps.zero_pad(old, new, scale=(new / old) ** 0.5 if axis.admits == "isometry" else 1.0)

def _halve(weight):
    weight.grad.mul_(0.5)

class _Slow(State):
    def model(self):
        net = super().model()
        net.weights["embed"].register_post_accumulate_grad_hook(_halve)
        return net

@dataclass(frozen=True, kw_only=True)
class Mutant(Strategy):
    """Copies that share their readers' weight (arXiv:1511.05641)."""

    def widen(self, axis, old, new, rng):
        return maps.net2net(axis, old, new, rng)

'''

TASK = '''
import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from growbench.task import Data, Task, generator

def words(role, count=40000):
    """Bytes of random words, of a role's own."""
    rng = generator("words", role)
    return bytes(rng.choice(np.frombuffer(b"abcdefgh     ", np.uint8), count))

def data(vocab=256, **about):
    train, valid = (np.frombuffer(words(role), np.uint8) for role in ("train", "valid"))
    return Data(train=train, valid=valid, vocab=vocab, **about)

@dataclass(frozen=True, kw_only=True)
class Mutant(Task):
    """Random words."""

'''


def strategy(check: str, fault: str, says: str, body: str) -> Mutant:
    return Mutant(check=check, fault=fault, says=says, source=STRATEGY + indent(dedent(body), "    "))


def task(check: str, fault: str, says: str, body: str) -> Mutant:
    return Mutant(check=check, fault=fault, says=says, source=TASK + indent(dedent(body), "    "))


def growing(check: str, fault: str, says: str, body: str) -> Mutant:
    """A strategy whose growth is the good one, then `body`, which may alter `growth` and `weights`, a copy."""
    inner = indent(dedent(body).strip("\n"), "    ")
    return strategy(
        check,
        fault,
        says,
        "def grow(self, state, shape, probe, rng):\n"
        "    growth = super().grow(state, shape, probe, rng)\n"
        "    weights = dict(growth.state.weights)\n"
        f"{inner}\n"
        "    return replace(growth, state=replace(growth.state, weights=weights))\n",
    )


STRATEGIES = [
    Mutant(
        check="loads",
        fault="no base",
        says="derives from no class",
        source="class Mutant:\n    '''arXiv:1511.05641'''\n",
    ),
    Mutant(check="loads", fault="syntax", says="line 1: invalid syntax", source="class Mutant(:\n"),
    Mutant(
        check="loads",
        fault="import",
        says="No module named 'absent'",
        source=STRATEGY.replace("import os", "import absent, os"),
    ),
    Mutant(
        check="loads", fault="two classes", says="one public class", source=STRATEGY + "class Other(Strategy): pass\n"
    ),
    Mutant(
        check="loads",
        fault="undecorated",
        says="rate is no dataclass field",
        source=STRATEGY.replace("@dataclass(frozen=True, kw_only=True)\n", "") + "    rate: float = 1.0\n",
    ),
    strategy("defaults", "none", "rate has no default", "rate: float\n"),
    Mutant(
        check="cites",
        fault="no source",
        says="cites no source",
        source=STRATEGY.replace("(arXiv:1511.05641)", "(ours)"),
    ),
    strategy(
        "supports",
        "plain matrices only",
        "mend it, or let supports say",
        """
        def grow(self, state, shape, probe, rng):
            growth = super().grow(state, shape, probe, rng)
            growth.state.weights["0/q"]
            return growth
        """,
    ),
    strategy("supports", "a word", "say why in a sentence", "def supports(self, source, target): return 'no'\n"),
    strategy(
        "supports", "a bool", "return the reason as a sentence", "def supports(self, source, target): return False\n"
    ),
    strategy(
        "supports",
        "refuses all",
        "supports none of the",
        "def supports(self, source, target): return 'it is not ready yet'\n",
    ),
    strategy(
        "supports", "raises", "supports raised KeyError", "def supports(self, source, target): raise KeyError('x')\n"
    ),
    strategy(
        "shapes",
        "one unit short",
        "returned the shape",
        """
        def grow(self, state, shape, probe, rng):
            return super().grow(state, replace(shape, ffn=max(shape.ffn - 1, state.shape.ffn)), probe, rng)
        """,
    ),
    strategy(
        "shapes",
        "larger than asked",
        "return the shape asked for, or a smaller one",
        "def target(self, source, target): return replace(target, ffn=4 * target.ffn)\n",
    ),
    growing("shapes", "a weight more", "a weight mine that", "weights['mine'] = weights['embed']"),
    growing(
        "untouched",
        "first moments",
        "changed the source's first['embed']",
        "state.first['embed'].zero_()",
    ),
    growing("traces", "seed", "torch's global random state", "torch.manual_seed(0)"),
    growing("traces", "python's random", "the random state of Python's random", "random.random()"),
    growing("traces", "dtype", "torch's default dtype", "torch.set_default_dtype(torch.float16)"),
    growing("traces", "environment", "the environment", "os.environ['MINE'] = '1'"),
    growing("traces", "threads", "torch's number of threads", "torch.set_num_threads(torch.get_num_threads() + 1)"),
    growing(
        "traces", "torch", "torch.nn.functional.gelu", "functional.gelu = lambda x, inner=functional.gelu: inner(x)"
    ),
    growing("traces", "growbench", "growbench.model.EPS", "model.EPS = float('1e-8')"),
    growing("traces", "a class", "State.model", "State.model = lambda self, inner=State.model: inner(self)"),
    growing("traces", "an attribute", "State.mine", "State.mine = 1"),
    Mutant(
        check="traces",
        fault="at import",
        says="importing it",
        source=STRATEGY.replace("@dataclass", "torch.manual_seed(0)\n@dataclass"),
    ),
    strategy(
        "seeded",
        "global draws",
        "one seed gave two results",
        """
        def fill(self, weight, grown, grown_maps, fresh):
            with torch.random.fork_rng():
                return 0.1 * torch.randn(fresh.shape, dtype=fresh.dtype)
        """,
    ),
    strategy(
        "seeded",
        "numpy's global draws",
        "one seed gave two results",
        """
        def fill(self, weight, grown, grown_maps, fresh):
            kept = np.random.get_state()
            drawn = 0.1 * torch.as_tensor(np.random.standard_normal(tuple(fresh.shape)))
            np.random.set_state(kept)
            return drawn
        """,
    ),
    strategy(
        "seeded",
        "a counter",
        "keep nothing between calls",
        """
        calls: ClassVar[list[int]] = []

        def fill(self, weight, grown, grown_maps, fresh):
            self.calls.append(1)
            return fresh * (1 + 1e-4 * len(self.calls))
        """,
    ),
    growing(
        "nothing",
        "permutes",
        "to its own shape changed it",
        """
        if shape == state.shape:
            weights |= {n: weights[n].flip(0) for n in ("0/ffn/keys", "0/ffn/gate") if n in weights}
            weights["0/ffn/values"] = weights["0/ffn/values"].flip(1)
        """,
    ),
    strategy(
        "preserves",
        "oversells",
        "map each axis as it admits",
        "def widen(self, axis, old, new, rng): return maps.zero_pad(old, new)\n",
    ),
    strategy("preserves", "undersells", "undersells itself", "preserves: ClassVar[str] = 'nothing'\n"),
    growing(
        "preserves",
        "a head of muP under standard",
        "standard): map each axis as it admits",
        """
        if "head" in weights and not growth.layers:
            weights["head"] = axes.grow(state.weights["head"], shape.weights["head"], growth.maps)
        """,
    ),
    growing(
        "preserves",
        "tied and uneven",
        "tied embedding, uneven width): map each axis",
        "weights['embed'] = weights['embed'] * (1.1 if shape.tied and shape.residual % 2 else 1.0)",
    ),
    growing(
        "preserves",
        "tied and deep",
        "tied embedding, depth): map each axis",
        "weights['embed'] = weights['embed'] * (1.1 if shape.tied and growth.layers else 1.0)",
    ),
    strategy("preserves", "another word", "return 'function' or 'nothing'", "preserves: ClassVar[str] = 'all'\n"),
    growing(
        "preserves",
        "ramps what is heard",
        "map each axis as it admits",
        """
        if growth.maps and shape.placement == "ffn":
            new = torch.arange(shape.ffn) >= state.shape.ffn
            growth = replace(growth, ramps=(Ramp(axis="0/ffn", new=new, tokens=100),))
        """,
    ),
    growing(
        "composes",
        "norms of a fresh source",
        "growing a second time changes a logit",
        """
        padded = Strategy.grow(_Padded(), state, shape, probe, rng)
        sizes = {str(axis): float(size) for axis, size in state.shape.axes.items()}
        held = {name: sizes.get(name, n) for name, n in padded.state.norms.items()}
        growth, weights = replace(padded, state=replace(padded.state, norms=held)), dict(padded.state.weights)
        """,
    ),
    strategy(
        "composes",
        "stacks what was deepened",
        "depth): use the state's own shape and norms",
        "def deepen(self, old, new): return maps.insert(old, new) if old == 2 else maps.stack(old, new)\n",
    ),
    growing(
        "alive",
        "a dead layer without maps",
        "no gradient reaches layer",
        """
        dead = [f"{layer}/" for layer in growth.layers.muted] if growth.layers else []
        weights = {n: 0 * w if n.startswith(tuple(dead)) else w for n, w in weights.items()}
        growth = Growth(state=growth.state) if dead else growth
        """,
    ),
    strategy(
        "alive",
        "silent noise",
        "give fill something to write",
        "def fill(self, weight, grown, grown_maps, fresh): return 0 * fresh\n",
    ),
    growing(
        "alive",
        "silent noise without maps",
        "give fill something to write",
        """
        quiet = Strategy.grow(_Quiet(), state, shape, probe, rng)
        growth, weights = Growth(state=quiet.state), dict(quiet.state.weights)
        """,
    ),
    strategy(
        "alive",
        "claims to be sterile",
        "return an empty string from sterile",
        "sterile: ClassVar[str] = 'copies stay equal for ever'\n",
    ),
    growing(
        "moments",
        "negative",
        "a second one is negative",
        """
        second = dict(growth.state.second) | {"embed": -growth.state.second["embed"]}
        growth = replace(growth, state=replace(growth.state, second=second))
        """,
    ),
    growing(
        "moments",
        "without steps",
        "do not name the same weights",
        "growth = replace(growth, state=replace(growth.state, first={}))",
    ),
    growing(
        "moments",
        "first moments as weights",
        "the first moment of",
        """
        if not growth.layers:
            labels = {n: state.scaling.reads(w) for n, w in shape.weights.items()}
            first = {n: axes.grow(m, labels[n], growth.maps) for n, m in state.first.items()}
            growth = replace(growth, state=replace(growth.state, first=first))
        """,
    ),
    growing(
        "moments",
        "second moments as first",
        "second ones by axes.transport_square",
        """
        if not growth.layers:
            labels = {n: state.scaling.reads(w) for n, w in shape.weights.items()}
            second = {n: axes.transport(v, labels[n], growth.maps) for n, v in state.second.items()}
            growth = replace(growth, state=replace(growth.state, second=second))
        """,
    ),
    growing(
        "moments",
        "scaled",
        "carry them with state.widen",
        """
        first = {n: 2 * m for n, m in growth.state.first.items()}
        growth = replace(growth, state=replace(growth.state, first=first))
        """,
    ),
    growing(
        "transport",
        "other maps",
        "are not those by which it grew",
        "growth = replace(growth, state=growth.state.reset())\n"
        "growth = replace(growth, maps={a: maps.net2net(a, m.old, m.new, rng) for a, m in growth.maps.items()})",
    ),
    growing(
        "checkpoint",
        "shared memory",
        "share no memory",
        """
        blank = {w.shape: torch.zeros_like(w) for w in weights.values()}
        growth = replace(growth, state=replace(growth.state, first={n: blank[w.shape] for n, w in weights.items()}))
        """,
    ),
    growing(
        "checkpoint",
        "tensors as norms",
        "plain floats in norms",
        """
        norms = {name: torch.as_tensor(n) for name, n in growth.state.norms.items()}
        growth = replace(growth, state=replace(growth.state, norms=norms))
        """,
    ),
    strategy(
        "checkpoint",
        "a state of its own",
        "return a plain State",
        """
        def grow(self, state, shape, probe, rng):
            growth = super().grow(state, shape, probe, rng)
            return replace(growth, state=_Slow(**vars(growth.state)))
        """,
    ),
    growing("probes", "more than declared", "raise probe_batches", "probe.batch()"),
    growing("probes", "unmetered", "nothing else of the probe", "probe._draw(0)"),
    growing("probes", "meter turned back", "nothing else of the probe", "probe.batch(); probe.batches = 0"),
    strategy("probes", "no number", "a whole number", "probe_batches: ClassVar[float] = 1.5\n"),
    growing("blind", "loads a task", "a task that it loaded itself", "plugins.load('task', 'pycode')().load(None)"),
    growing(
        "blind",
        "through the probe",
        "the bench's validation windows",
        "[c.cell_contents.valid for c in probe._draw.__closure__ if hasattr(c.cell_contents, 'valid')]",
    ),
    growing(
        "masks",
        "floats",
        "must be a boolean mask",
        "growth = replace(growth, frozen={'embed': 1.0 * torch.ones_like(weights['embed'])})",
    ),
    growing(
        "masks",
        "no such axis",
        "no ramp acts on the axis 'ffn'",
        "growth = replace(growth, ramps=(Ramp(axis='ffn', new=torch.ones(8, dtype=torch.bool), tokens=9),))",
    ),
    growing(
        "masks",
        "all frozen",
        "every weight is frozen",
        "growth = replace(growth, frozen={n: torch.ones_like(w, dtype=torch.bool) for n, w in weights.items()})",
    ),
    growing(
        "dtypes",
        "doubles",
        "give every tensor the source's dtype",
        "weights = {n: w.double() for n, w in weights.items()}",
    ),
]

LOAD = """
def load(self, cache):
    return Data.from_bytes(words("train"), words("valid", 4000))
"""

TASKS = [
    task("loads", "no load", "does not define load", "pass\n"),
    task("defaults", "none", "size has no default", "size: int\n" + LOAD),
    task("fetched", "a bool", "return an empty string", LOAD + "def missing(self, cache): return False\n"),
    task(
        "fetched",
        "no fetch",
        "without one, return an empty string",
        "def missing(self, cache): return '' if cache.name == 'data' else '`growbench data fetch mutant`'\n" + LOAD,
    ),
    task(
        "fetched",
        "no command",
        "name the command `growbench data fetch mutant`",
        "def fetch(cache): return cache\n" + LOAD,
    ),
    task(
        "fetched",
        "writes",
        "wrote to the cache",
        LOAD + "def missing(self, cache): (cache / 'log').write_text('x') if cache.name != 'data' else 0; return ''\n",
    ),
    task("streams", "raises", "load raised: KeyError", "def load(self, cache): raise KeyError('x')\n"),
    task(
        "streams",
        "outside",
        "outside its vocabulary of 64",
        "def load(self, cache): return data(64, unit='byte')\n",
    ),
    task(
        "streams",
        "a tuple",
        "return a growbench.task.Data",
        "def load(self, cache): return words('train'), words('valid')\n",
    ),
    task(
        "streams", "empty", "a stream is empty", "def load(self, cache): return Data.from_bytes(words('train'), b'')\n"
    ),
    task(
        "vocabulary",
        "too small",
        "make vocab 105 or more",
        """
        def load(self, cache):
            data = Data.from_bytes(words("train"), words("valid", 4000))
            object.__setattr__(data, "vocab", 100)
            return data
        """,
    ),
    task(
        "fingerprint",
        "another each time",
        "two loads gave different data",
        """
        loads: ClassVar[list[int]] = []

        def load(self, cache):
            self.loads.append(1)
            return Data.from_bytes(words(len(self.loads)), words("valid", 4000))
        """,
    ),
    task(
        "fingerprint",
        "hash",
        "another process loaded different data",
        "def load(self, cache): return Data.from_bytes(words(hash('train')), words('valid', 4000))\n",
    ),
    task(
        "order",
        "as listed",
        "sort the names before reading",
        """
        def load(self, cache):
            import json
            texts = {path.name: path.read_bytes() for path in Path(json.__file__).parent.glob("*.py")}
            valid = texts.pop("tool.py")
            return Data.from_bytes(b"".join(texts.values()), valid)
        """,
    ),
    task(
        "overlap",
        "a document",
        "64 tokens in a row from position ",
        """
        def load(self, cache):
            train = words("train")
            return Data.from_bytes(train, words("valid", 1000) + train[500:1600] + words("more", 2000))
        """,
    ),
    task(
        "overlap",
        "a part of a document",
        "64 tokens in a row from position ",
        """
        def load(self, cache):
            train = words("train")
            return Data.from_bytes(train, words("valid", 4000) + train[500:1400] + words("more", 4000))
        """,
    ),
    task(
        "overlap",
        "many lines",
        "% of validation's distinct 32-grams",
        """
        def load(self, cache):
            train = words("train")
            return Data.from_bytes(train, b"".join(train[i : i + 200] for i in range(0, 40000, 1000)))
        """,
    ),
    task(
        "measure",
        "a byte of two",
        "use Data.from_bytes",
        "def load(self, cache): return data(unit='byte', bytes_per_token=2.0)\n",
    ),
    task(
        "measure",
        "a symbol of text",
        "a symbol stands for no text",
        "def load(self, cache): return data(unit='symbol', bytes_per_token=1.0)\n",
    ),
    task(
        "measure",
        "a token of none",
        "give the mean over validation",
        "def load(self, cache): return data(unit='token')\n",
    ),
    task(
        "measure",
        "more bytes than bits",
        "too few for 400 bytes of text",
        "def load(self, cache): return data(unit='token', bytes_per_token=400.0)\n",
    ),
    task(
        "measure",
        "more bits than bytes",
        "more than 0.01 bytes hold",
        """
        def load(self, cache):
            train, valid = (np.frombuffer(words(role), np.uint16) for role in ("train", "valid"))
            return Data(train=train, valid=valid, vocab=2**16, unit="token", bytes_per_token=0.01)
        """,
    ),
    task(
        "entropy",
        "too high",
        "below the stated entropy rate of 2.200",
        "def load(self, cache): return data(unit='symbol', entropy_rate=2.2)\n",
    ),
    task(
        "entropy",
        "impossible",
        "lies between 0 and ln 256",
        "def load(self, cache): return data(unit='symbol', entropy_rate=9.0)\n",
    ),
    task(
        "traces",
        "numpy's seed",
        "numpy's global random state",
        LOAD.replace("    return", "    np.random.seed(0)\n    return"),
    ),
]
