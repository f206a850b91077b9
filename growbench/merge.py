"""Result folders of several machines joined into a new one, on which everything works as on any other.

    stages   the union: of a failed and a finished one the latter; two finished ones must be equal in all that counts
    plan     the union of arms and stages, of one study, version, data and tuning (folders.py says what compares)
    tuning   the same, one folder below
    tables   written anew from the stages

The folder is filled beside its place and renamed into it: an interrupted merge leaves nothing that is believed, and the
next one begins afresh.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from filelock import FileLock, Timeout
from pyarrow import parquet

from growbench import folders, reading
from growbench.provenance import UNKNOWN
from growbench.store import EVENTS, RECORD, Record, canonical, digest
from growbench.study import parse_study
from growbench.tables import PLAN, RUN, TUNING, provenance, read_plan, read_run, write_tables

_LOCK = ".lock"
NAMED = 5
"""How many disagreements a refusal names."""


@dataclass(frozen=True, kw_only=True)
class Merged:
    """What a merge came to: stages taken and found twice, and the damaged ones left out, each with what is wrong."""

    stages: int
    twice: int
    left_out: tuple[str, ...]


def merge(sources: Sequence[Path], out: Path) -> Merged:
    """Join folders of results into `out`, which must not be there or be empty.

    ValueError where they must not be joined, by the names of what disagrees; OSError where `out` cannot be written.
    """
    for source in sources:
        folders.existing(source)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} is there already: give a new or an empty folder as --out")
    parts = [place for place in (".", TUNING) if any((source / place / PLAN).is_file() for source in sources)]
    having = {place: [s / place for s in sources if (s / place / PLAN).is_file()] for place in parts or ["."]}
    for source in sources:
        if not any(source / place in found for place, found in having.items()):
            read_plan(source)  # which says why it is no folder of results
    with _beside(out) as beside:
        done = [_joined(found, beside / place) for place, found in having.items()]
        for place in having:
            write_tables(beside / place)
    return Merged(
        stages=sum(own.stages for own in done),
        twice=sum(own.twice for own in done),
        left_out=tuple(said for own in done for said in own.left_out),
    )


@contextmanager
def _beside(out: Path) -> Iterator[Path]:
    """A folder beside `out`, renamed to it at the end; nothing is left of it where that is not reached."""
    beside = out.with_name(f".{out.name}.merging")
    try:
        beside.mkdir(parents=True, exist_ok=True)
        with FileLock(beside / _LOCK, timeout=0):
            try:
                _empty(beside)
                yield beside
                beside.rename(out)
            finally:
                shutil.rmtree(beside, ignore_errors=True)
    except Timeout:
        raise ValueError(f"another merge is writing {out}: wait for it to end, or give another --out") from None
    except OSError as error:
        raise OSError(
            f"{out} cannot be written: {error}; nothing of it is left, and the same merge begins afresh"
        ) from error


def _empty(beside: Path) -> None:
    """Remove what an interrupted merge left."""
    for left in beside.iterdir():
        if left.name != _LOCK:
            shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def _joined(sources: Sequence[Path], out: Path) -> Merged:
    """Fill a folder with the stages, the plan and the run of several."""
    folders.merged([provenance(source) for source in sources])
    plan = join_plans([read_plan(source) for source in sources])
    runs = [run for source in sources if (run := read_run(source))]
    chosen, twice, left_out = _chosen(sources)
    for key, (source, record) in chosen.items():
        _copy(source / "stages" / key, record, out / "stages" / key)
    (out / PLAN).write_text(json.dumps(plan, ensure_ascii=False), encoding="utf-8")
    if runs:
        (out / RUN).write_text(json.dumps(join_runs(runs), ensure_ascii=False), encoding="utf-8")
    return Merged(stages=len(chosen), twice=twice, left_out=tuple(left_out))


# --- stages ----------------------------------------------------------------------------------------------------------


def _chosen(sources: Sequence[Path]) -> tuple[dict[str, tuple[Path, Record]], int, list[str]]:
    """Of every stage the folder that it is taken from and its record; how many were found twice; what is damaged."""
    chosen: dict[str, tuple[Path, Record]] = {}
    twice, damaged, differ = 0, list[str](), list[str]()
    for source in sources:
        for record, said in reading.examined(source):
            if record is None:
                damaged.append(said)
                continue
            if record.key != reading.key_of(record):
                damaged.append(f"the stage folder {source / 'stages' / record.key} is of another identity than its key")
                continue
            other = chosen.setdefault(record.key, (source, record))
            if other[0] is source:
                continue
            twice += 1
            if other[1].status == "failed":
                chosen[record.key] = source, record
            elif record.status != "failed" and (what := difference(other, (source, record))):
                differ.append(f"{record.label} ({what} in {other[0]} and {source})")
    if differ:
        more = f" and {len(differ) - NAMED} more" if len(differ) > NAMED else ""
        raise ValueError(
            f"the folders disagree on {'; '.join(differ[:NAMED])}{more}: `growbench verify` says whether one was "
            "altered; where the machines compute differently, let one of them run what the other has"
        )
    return chosen, twice, damaged


def difference(one: tuple[Path, Record], other: tuple[Path, Record]) -> str:
    """What two records of one stage, each with its folder, disagree on; "" where they are equal in all that counts.

    Wall time, memory, host and restarts do not count, nor do the events. Files are equal by their digests, tables by
    their rows: their bytes also depend on the library that wrote them.
    """
    (here, a), (there, b) = one, other
    for name in ("status", "reason", "tokens", "flops", "measures"):
        if getattr(a, name) != getattr(b, name):
            return name
    for name in sorted((a.files.keys() | b.files.keys()) - {EVENTS}):
        if a.files.get(name) != b.files.get(name):
            places = [source / "stages" / a.key / name for source in (here, there)]
            if not (name.endswith(".parquet") and name in a.files and name in b.files and _same_rows(*places)):
                return name
    return ""


def _same_rows(one: Path, other: Path) -> bool:
    first, second = (parquet.read_table(pa.BufferReader(reading.content(path))) for path in (one, other))
    return bool(first.to_pandas(ignore_metadata=True).equals(second.to_pandas(ignore_metadata=True)))


def _copy(source: Path, record: Record, out: Path) -> None:
    """Copy a stage's folder, every file as its record states it."""
    out.mkdir(parents=True)
    for name in (*record.files, RECORD):
        content = reading.content(source / name)
        same = reading.parsed_record(content) == record if name == RECORD else digest(content) == record.files[name]
        if not same:
            raise ValueError(f"the stage folder {source} has changed meanwhile: merge again")
        with (out / name).open("xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())


# --- plans -----------------------------------------------------------------------------------------------------------


def join_plans(plans: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The union of plans that compare. ValueError where an arm, by task and seed, is planned differently in two."""
    arms: dict[tuple[Any, ...], dict[str, Any]] = {}
    stages: dict[str, list[Any]] = {}
    for plan in plans:
        for arm in plan["arms"]:
            place = tuple(arm["about"][name] for name in folders.RUN)
            if arms.setdefault(place, arm) != arm:
                name, task, seed = place
                raise ValueError(
                    f"the folders plan {name} of seed {seed} ({task}) differently, as after a change to a plugin or to "
                    "growbench: run the older one again, and merge then"
                )
        for key, entry in plan["stages"].items():
            stages.setdefault(key, entry)
    return plans[0] | {
        "study": _study(plans),
        "arms": list(arms.values()),
        "stages": stages,
        "skipped": {name: why for plan in reversed(plans) for name, why in plan["skipped"].items()},
        "strategies": _by(plans, "strategies", "name"),
        "tasks": _by(plans, "tasks", "name"),
        "coordinates": _by(plans, "coordinates", "architecture", "stage"),
        "tuned": _tuned([plan["tuned"] for plan in plans if plan.get("tuned")]),
    }


def _by(plans: Sequence[Mapping[str, Any]], name: str, *of: str) -> list[dict[str, Any]]:
    """The rows of all plans under a name, the first of each key."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for plan in plans:
        for row in plan.get(name, ()):
            found.setdefault(tuple(row[part] for part in of), row)
    return list(found.values())


def _study(plans: Sequence[Mapping[str, Any]]) -> str:
    """The study file with the seeds of all; where these are no range, the one with most."""
    studies = [parse_study(plan["study"], "the plan's study") for plan in plans]
    seeds = {seed for study in studies for seed in study.seed_numbers}
    for plan, study in zip(plans, studies, strict=True):
        if seeds == set(study.seed_numbers):
            return str(plan["study"])
    if max(seeds) - min(seeds) + 1 == len(seeds):
        return studies[0].model_copy(update={"seeds": len(seeds), "first_seed": min(seeds)}).to_yaml()
    return max(studies, key=lambda study: study.seeds).to_yaml()


def _tuned(found: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What tuning chose in all folders, for arms that may be others in each."""
    if not found:
        return None
    chosen: dict[str, dict[str, Any]] = {}
    trials: dict[str, Mapping[str, Any]] = {}
    for tuned in found:
        for task, arms in tuned["chosen"].items():
            chosen[task] = arms | chosen.get(task, {})
        trials |= {canonical(row): row for row in tuned["trials"]}
    content = {"chosen": chosen, "trials": list(trials.values())}
    return content | {"digest": digest(canonical(content))}


def join_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How the numbers of several folders were made: what differs is stated for each; from first start to last end."""
    joined: dict[str, Any] = {name: _all(run[name] for run in runs) for name in UNKNOWN if name != "packages"}
    packages = {name for run in runs for name in run["packages"]}
    joined["packages"] = {name: _all(run["packages"].get(name) for run in runs) for name in sorted(packages)}
    joined["git_dirty"] = any(run["git_dirty"] for run in runs)
    ends = [run["finished"] for run in runs]
    joined["started"] = min((run["started"] for run in runs if run["started"]), default=None)
    joined["finished"] = None if None in ends else max(ends)
    return joined


def _all(values: Iterable[Any]) -> Any:
    """The value that all have, else the distinct ones in words."""
    distinct = list(dict.fromkeys(values))
    return distinct[0] if len(distinct) == 1 else " and ".join(str(value) for value in distinct if value is not None)
