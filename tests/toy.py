"""Toy studies that run in seconds: two architectures of one or two layers, on a page of made-up words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from growbench.plan import Plan, make_plan
from growbench.store import Record, Store
from growbench.study import Study
from growbench.train import execute

STEP = 64
"""Tokens per step."""

HEADS = {"heads": 2, "key": 4, "value": 4}
EVERYWHERE = {"placement": "everywhere", "nonlinearity": "l2_gelu"}
LADDERS: dict[str, list[dict[str, Any]]] = {
    "transformer": [
        {"layers": 1, "residual": 8, "ffn": 16} | HEADS,
        {"layers": 2, "residual": 8, "ffn": 48} | HEADS | {"heads": 4},
    ],
    "tokenformer": [
        {"layers": 1, "residual": 8, "tokens": 2, "ffn": 24} | HEADS | EVERYWHERE,
        {"layers": 2, "residual": 8, "tokens": 8, "ffn": 48} | HEADS | EVERYWHERE,
    ],
}

PROBING = '''
"""Masked growth that looks at the data first."""
from dataclasses import dataclass, replace
from typing import ClassVar
import torch
from growbench.maps import zero_pad
from growbench.strategy import Ramp, Strategy

@dataclass(frozen=True, kw_only=True)
class Probing(Strategy):
    """New ffn units fade in over `fade` tokens; half of the old embedding stays as it is; two steps of probes."""
    fade: int = 256
    probe_tokens: ClassVar[int] = 128

    def widen(self, axis, old, new, rng):
        return zero_pad(old, new, scale=(new / old) ** 0.5 if axis.admits == "isometry" else 1.0)

    def grow(self, state, shape, probe, rng):
        probe.gradients(state)
        probe.batch()
        growth = super().grow(state, shape, probe, rng)
        frozen = torch.zeros_like(growth.state.weights["embed"], dtype=torch.bool)
        frozen[::2] = True
        new = torch.arange(shape.at("ffn", 0)) >= state.shape.at("ffn", 0)
        ramp = Ramp(axis="0/ffn", new=new, tokens=self.fade)
        return replace(growth, frozen={"embed": frozen}, ramps=(ramp,))
'''


def text(folder: Path, seed: int = 0) -> Path:
    """A file of 8,000 bytes of words that follow one another at random."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("aeiklmnorst"), rng.integers(2, 7))) for _ in range(50)]
    path = folder / "words.txt"
    path.write_text(" ".join(rng.choice(words, 4000))[:8000], encoding="utf-8")
    return path


def plugin(folder: Path, name: str, source: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    return path


def study(
    folder: Path, *, strategies: Sequence[Any], architectures: Sequence[str] = ("transformer",), **changes: Any
) -> Study:
    """A study of 40 steps that grows at half of them; changes to `budget` and `train` are merged in."""
    budget = {"tokens": 40 * STEP, "split": [0.5], "points": [0.75, 1.0], "cooldown": 0.1, "warmup": 0.05}
    train = {"context": 16, "batch": 4, "learning_rate": 0.01, "eval_every": 512, "eval_tokens": 256}
    path = folder / "words.txt"
    written: dict[str, Any] = {
        "study": "toy",
        "about": "A toy.",
        "tasks": [f"text:{path if path.exists() else text(folder)}"],
        "seeds": 1,
        "ladders": {name: LADDERS[name] for name in architectures},
        "strategies": list(strategies),
        "budget": budget | changes.pop("budget", {}),
        "train": train | changes.pop("train", {}),
    }
    return Study.model_validate(written | changes)


def plan(folder: Path, *, plugins: Sequence[Path] = (), only: str | None = None, **given: Any) -> Plan:
    return make_plan(study(folder, **given), tuple(plugins), only, folder)


def work(planned: Plan, out: Path, keys: Sequence[str] | None = None) -> Mapping[str, Record]:
    """Run a plan's stages one after another in this process, those whose parents did not end well left out."""
    torch.set_num_threads(1)
    store = Store(out)
    for key in keys if keys is not None else planned.stages:
        stage = planned.stages[key]
        parent = store.read(stage.parent) if stage.parent else None
        if stage.parent is None or (parent is not None and parent.status == "ok"):
            execute(stage, store, planned.plugin_paths, planned.cache, lambda tokens: None)
    return store.records()
