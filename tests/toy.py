"""Toy studies that run in seconds: two architectures of one or two layers, on a page of made-up words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from growbench.launch import Summary, local
from growbench.plan import Plan, make_plan
from growbench.store import EVENTS, Record, Stage, Store
from growbench.study import StrategySpec, Study, parse_study
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
from dataclasses import dataclass, replace
from typing import ClassVar
import torch
import yaml
from growbench.maps import zero_pad
from growbench.strategy import Ramp, Strategy

@dataclass(frozen=True, kw_only=True)
class Probing(Strategy):
    """New units of the first ffn write at random and fade in; half of the old embedding is frozen; two probes."""
    fade: int = 512
    probe_batches: ClassVar[int] = 2

    def widen(self, axis, old, new, rng):
        return zero_pad(old, new, scale=(new / old) ** 0.5 if axis.admits == "isometry" else 1.0)

    def grow(self, state, shape, probe, rng):
        probe.gradients(state)
        probe.batch()
        growth = super().grow(state, shape, probe, rng)
        weights = dict(growth.state.weights)
        new = torch.arange(shape.at("ffn", 0)) >= state.shape.at("ffn", 0)
        values = weights["0/ffn/values"]
        weights["0/ffn/values"] = torch.where(new, torch.randn(values.shape, generator=rng), values)
        frozen = torch.zeros_like(weights["embed"], dtype=torch.bool)
        frozen[::2] = True
        ramps = (Ramp(axis="0/ffn", new=new, tokens=self.fade),) if self.fade else ()
        return replace(growth, state=replace(growth.state, weights=weights), frozen={"embed": frozen}, ramps=ramps)
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
    return parse_study(yaml.safe_dump(written | changes, sort_keys=False), "toy")


def everywhere(study: Study) -> list[dict[str, Any]]:
    """A study's strategies, each on whatever task there is: once, where several entries share them out by task."""
    wide: list[StrategySpec] = []
    for spec in study.strategies:
        free = spec.model_copy(update={"tasks": None})
        same = [other for other in wide if other.label == spec.label]
        if not any(other.runs(name, "") for other in same for name in spec.architectures or study.ladders):
            wide.append(free)
    return [spec.model_dump() for spec in wide]


def plan(
    folder: Path, *, plugins: Sequence[Path] = (), only: str | None = None, cache: Path = Path(), **given: Any
) -> Plan:
    return make_plan(study(folder, **given), tuple(plugins), only, cache)


def work(planned: Plan, out: Path, stages: Sequence[Stage] | None = None) -> Mapping[str, Record]:
    """Run stages one after another in this process, as a worker would; without those whose parents did not end well."""
    store, threads = Store(out), torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        for stage in planned.stages.values() if stages is None else stages:
            parent = store.read(stage.parent) if stage.parent else None
            if stage.parent is None or (parent is not None and parent.status == "ok"):
                execute(stage, store, planned.plugin_paths, planned.cache, lambda tokens: None)
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)
    return store.records()


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run of the toy study: both architectures, two seeds, a strategy of a third party among them."""

    plan: Plan
    out: Path
    summary: Summary
    records: Mapping[str, Record]


def run(folder: Path) -> Run:
    probing = plugin(folder, "probing", PROBING)
    planned = plan(
        folder,
        plugins=[probing],
        strategies=["scratch", "continue", "zero_pad", "lora", {"name": "probing", "architectures": ["transformer"]}],
        architectures=list(LADDERS),
        seeds=2,
    )
    out = folder / "out"
    summary = local.run(planned, out, workers=2, listener=lambda event: None, command="growbench run toy")
    return Run(plan=planned, out=out, summary=summary, records=Store(out).records())


def unchanged(records: Mapping[str, Record], others: Mapping[str, Record]) -> bool:
    """Whether two runs agree, bit for bit, on every stage they share: checkpoints, curves, losses, costs."""
    shared = records.keys() & others.keys()
    return bool(shared) and all(_numbers(records[key]) == _numbers(others[key]) for key in shared)


def _numbers(record: Record) -> tuple[object, ...]:
    files = {name: digest for name, digest in record.files.items() if name != EVENTS}
    return record.status, record.tokens, record.flops, record.measures, files
