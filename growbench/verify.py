"""Whether a folder of results is what it says: every hash again, and a sample of its checkpoints on their tasks.

    hashes      records, the files beside them, keys as hashes of identities, what tuning chose
    tables      recomputed from the stages
    a sample    init drawn again, its weights equal; train and cooldown evaluated again, their loss equal
                grow compared with its parent again, gap and jump equal; the maps it states satisfy C E = I

Equal is exact on a machine of the kind that ran the stage, and within TOLERANCE on another. Nothing in the folder is
run, and no file that it names: tasks are those installed and those that the user gives.
"""

import math
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from growbench import plugins, provenance, reading, tables, train
from growbench.checkpoint import Checkpoint
from growbench.results import COORDINATES, CURVES, DIAGNOSTICS, RESULTS, STAGES, Column
from growbench.store import CHECKPOINT, CURVE, RECORD, Record, canonical, digest
from growbench.tables import PLAN, RUN, TUNING

TOLERANCE = {"64-true": 1e-10, "32-true": 1e-5, "bf16-mixed": 1e-2}
"""How far a loss in nats, or a logit relative to the largest, may lie from the recorded one on another kind of machine:
a hundred times the rounding of one forward pass.
"""
SAMPLE = 8
LARGEST_DATA = 2**30
"""Bytes of a data file, named in the folder, that is read."""


@dataclass(kw_only=True)
class Verified:
    """What was checked, by number, what is wrong, and which sampled stages were not evaluated and why."""

    stages: int = 0
    files: int = 0
    tables: int = 0
    evaluated: int = 0
    exactly: int = 0
    """Of those evaluated, the ones on a machine of the kind that ran them."""
    wrong: list[dict[str, str]] = field(default_factory=list)
    unchecked: list[dict[str, str]] = field(default_factory=list)

    def says(self, where: object, what: object) -> None:
        """Add something that is wrong."""
        self.wrong.append({"where": str(where), "what": " ".join(str(what).split())})


class _Unchecked(Exception):
    """A stage cannot be evaluated here, which says nothing against it."""


def verify(
    out: Path, *, sample: int = SAMPLE, seed: int = 0, plugin_paths: Sequence[Path] = (), cache: Path = Path()
) -> Verified:
    """Check a folder of results, its tuning too. ValueError where it is none; what is wrong is in the answer.

    sample: how many checkpoints of the study, and as many of its tuning, to evaluate; seed: which.
    """
    found = Verified()
    places = [place for place in (out, out / TUNING) if (place / PLAN).is_file()]
    for place in places or [out]:
        records = _hashes(place, found)
        _planned(place, records, found)
        _tables(place, found)
        _sample(place, records, sample, seed, (tuple(plugin_paths), cache), found)
    return found


# --- hashes ----------------------------------------------------------------------------------------------------------


def _hashes(out: Path, found: Verified) -> dict[str, Record]:
    """Check every stage folder by itself; return the believable records."""
    records: dict[str, Record] = {}
    for record, said in reading.examined(out):
        found.stages += 1
        if record is None:
            found.says("stages", said)
            continue
        records[record.key] = record
        found.files += len(record.files) + 1
        if reading.key_of(record) != record.key:
            found.says(record.label, f"its key {record.key} is not the hash of its identity")
        with os.scandir(out / "stages" / record.key) as entries:
            for name in sorted({entry.name for entry in entries} - record.files.keys() - {RECORD}):
                found.says(record.label, f"its folder holds {name!r}, which its record does not state")
    for record in records.values():
        if record.parent is not None and record.parent not in records:
            found.says(record.label, f"the stage {record.parent} that it builds on is not there, or damaged")
    return records


def _planned(out: Path, records: Mapping[str, Record], found: Verified) -> None:
    """Check the plan against the records, and what it says of tuning and the run against their form."""
    plan = tables.read_plan(out)
    for key, (kind, parent, label) in plan["stages"].items():
        if (record := records.get(key)) and (record.kind, record.parent) != (kind, parent):
            found.says(label, f"the plan has it as {kind} on {parent}, its record as {record.kind} on {record.parent}")
    if (tuned := plan.get("tuned")) and tuned["digest"] != digest(
        canonical({name: tuned[name] for name in ("chosen", "trials")})
    ):
        found.says(PLAN, "what tuning chose does not have the digest stated with it")
    if os.path.lexists(out / RUN) and tables.read_run(out) is None:
        found.says(RUN, "it is no record of a run")


def _tables(out: Path, found: Verified) -> None:
    """Check every table that is there against the stages."""
    columns = {"results": RESULTS, "curves": CURVES, "stages": STAGES}
    columns |= {"diagnostics": DIAGNOSTICS, "coordinates": COORDINATES}
    try:
        frames = [*tables.tables(out), tables.diagnostics(out), tables.coordinates(out)]
    except (ValueError, KeyError, TypeError) as error:
        found.says(out, f"its tables cannot be made from its stages: {error}")
        return
    for (name, own), frame in zip(columns.items(), frames, strict=True):
        path = out / f"{name}.parquet"
        if not os.path.lexists(path):
            continue
        found.tables += 1
        try:
            stored = reading.table(path, {column: about.dtype for column, about in own.items()})
        except ValueError as error:
            found.says(path.name, error)
            continue
        if not _plain(stored, own).equals(_plain(frame, own)):
            found.says(
                path.name, "it is not what the stages give: it was altered, or a run was cut short before it wrote it"
            )


def _plain(frame: pd.DataFrame, columns: Mapping[str, Column]) -> pd.DataFrame:
    typed = frame.astype({name: column.dtype for name, column in columns.items()})
    return typed.astype(object).where(typed.notna(), None).reset_index(drop=True)


# --- a sample --------------------------------------------------------------------------------------------------------


def _sample(
    out: Path,
    records: Mapping[str, Record],
    count: int,
    seed: int,
    given: tuple[tuple[Path, ...], Path],
    found: Verified,
) -> None:
    """Evaluate so many checkpoints again."""
    having = sorted(key for key, record in records.items() if record.status == "ok" and CHECKPOINT in record.files)
    chosen = random.Random(seed).sample(having, min(count, len(having)))
    run = tables.read_run(out) or {}
    with _as_a_worker():
        cpu = provenance.cpu()
        for key in sorted(chosen):
            record = records[key]
            # Evaluated on the processor, whatever it was trained on.
            bench = train.Bench(identity={**record.identity, "device": "cpu"}, plugin_paths=given[0], cache=given[1])
            exact = _same_kind(record, str(run.get("cpu")), train.environment(bench), cpu)
            try:
                differs = list(_differences(record, out, bench, exact=exact))
            except _Unchecked as why:
                found.unchecked.append({"stage": record.label, "why": str(why)})
                continue
            except Exception as error:  # a hostile file can fail anywhere; whatever it does is named
                found.says(record.label, f"it cannot be evaluated: {type(error).__name__}: {error}")
                continue
            found.evaluated += 1
            found.exactly += exact
            for what in differs:
                found.says(record.label, what)


@contextmanager
def _as_a_worker() -> Iterator[None]:
    """One thread and no subnormal numbers, as where stages run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def _same_kind(record: Record, ran_on: str, here: Mapping[str, Any], cpu: str) -> bool:
    """Whether this machine computes as the stage's did: the same system, torch, threads and processor."""
    if any(record.environment.get(name, value) != value for name, value in here.items() if name != "host"):
        return False
    return record.environment.get("host") == here["host"] or ran_on.partition(" x ")[2] == cpu.partition(" x ")[2]


def _differences(record: Record, out: Path, bench: train.Bench, *, exact: bool) -> Iterator[str]:
    """What a stage's checkpoint is found to be otherwise than recorded."""
    tolerance = 0.0 if exact else TOLERANCE[record.identity["train"]["precision"]]
    checkpoint = _checkpoint(out / "stages" / record.key)
    if record.kind == "init":
        drawn = train.initialise(bench).checkpoint
        assert drawn is not None
        for name, weight in drawn.state.weights.items():
            if (off := _apart(weight, checkpoint.state.weights[name])) > tolerance:
                yield f"its weight {name} lies {off:.3g} from what its seed draws"
        return
    _loadable(record.identity["task"], bench.plugin_paths)
    try:
        assert bench.valid.numel()
    except (ValueError, OSError, MemoryError) as error:  # no fault of the stage
        raise _Unchecked(f"its data cannot be read here: {error}") from error
    tokens = checkpoint.state.tokens
    net, masks = checkpoint.state.model(), checkpoint.multipliers(tokens)
    loss, _ = train.validate(bench, net, masks)
    place = out / "stages" / record.key / CURVE
    curve = reading.table(place, {"tokens": "Int64", "loss": "Float64"})
    stated = {"the last of its curve": float(curve["loss"].iloc[-1])}
    if record.kind != "grow":
        stated["its record's"] = float(record.measures["loss"] or math.nan)
    for where, value in stated.items():
        if not abs(loss - value) <= tolerance * max(1.0, abs(value)):
            yield f"its loss is {loss!r}, and {where} {value!r}"
    if record.kind == "grow" and record.parent is not None:
        parent = _checkpoint(out / "stages" / record.parent)
        yield from _growth(record, bench, parent, checkpoint, loss, tolerance)


def _growth(
    record: Record, bench: train.Bench, parent: Checkpoint, grown: Checkpoint, loss: float, tolerance: float
) -> Iterator[str]:
    """What a growth is found to have changed otherwise than recorded."""
    old, new = parent.state.model(), grown.state.model()
    before, _ = train.validate(bench, old, {})
    new.masks = grown.multipliers(grown.state.tokens)
    with torch.no_grad():
        windows = bench.valid[: train.EVAL_WINDOWS, :-1]
        first, second = old(windows), new(windows)
    gap, scale = (second - first).abs().max().item(), first.abs().max().item()
    measured = {"growth_gap": (gap, max(scale, 1.0)), "growth_loss_jump": (loss - before, max(abs(before), 1.0))}
    for name, (value, size) in measured.items():
        recorded = record.measures[name]
        if recorded is None:
            if math.isfinite(value):
                yield f"its {name} is {value!r}, and its record has none"
        elif not abs(value - recorded) <= tolerance * size:
            yield f"its {name} is {value!r}, and its record's {recorded!r}"


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference between two tensors; infinite where their sizes differ."""
    if one.shape != other.shape:
        return math.inf
    return (one.double() - other.double()).abs().max().item() if one.numel() else 0.0


def _checkpoint(folder: Path) -> Checkpoint:
    """A stage's checkpoint, whose stated shape is that of its tensors: a shape alone can stand for any memory."""
    path = folder / CHECKPOINT
    reading.opened(path).close()
    try:
        with safe_open(path, framework="pt") as handle:
            about, count = reading.parsed(handle.metadata()["growbench"].encode()), len(handle.keys())
    except (SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"its checkpoint is no file of growbench: {error}") from error
    for shape in (about["shape"], about["scaling"]["base"]):
        if not (isinstance(shape["layers"], int) and shape["layers"] <= count):
            raise ValueError(f"its checkpoint states {shape['layers']} layers and has {count} tensors")
    loaded = Checkpoint.load(path)
    for name, weight in loaded.state.shape.weights.items():
        there = loaded.state.weights.get(name)
        if there is None or tuple(there.shape) != weight.sizes:
            raise ValueError(f"its checkpoint has not the weight {name} with sizes {weight.sizes}")
    return loaded


def _loadable(task: Mapping[str, Any], plugin_paths: tuple[Path, ...]) -> None:
    """Raise _Unchecked for a task that is not here as it was there, or whose data should not be read unasked."""
    try:
        plugin = plugins.find("task", str(task["name"]), plugin_paths)
        plugins.check(plugin, task["parameters"])
    except ValueError as error:
        raise _Unchecked(f"{error}; if it is a plugin, name its file with --plugin") from error
    if plugins.source_hash(plugin) != task["plugin"]:
        raise _Unchecked(f"the source of task {plugin.name} is another here ({plugin.origin}) than where the stage ran")
    argument = plugins.load("task", plugin.name, plugin_paths).argument
    if argument and (named := task["parameters"].get(argument)):
        data = Path(os.path.expanduser(str(named)))
        if not data.is_file() or data.stat().st_size > LARGEST_DATA:
            raise _Unchecked(f"its data, {str(named)[:200]!r}, are no file of at most {LARGEST_DATA:,} bytes here")
