"""From stage folders to the result tables: a row's cost is the sum over its path, and nothing is estimated.

flops           = sum over the path            flops_ladder    = sum over the distinct stages that own every rung
flops_source    = the part before the growth   flops_continued = flops - flops_source
"""

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from growbench import __version__, reading
from growbench.provenance import UNKNOWN
from growbench.results import COORDINATES, CURVES, DIAGNOSTICS, RESULTS, STAGES, Column
from growbench.store import COORDINATES as CHECKED
from growbench.store import CURVE, Record, Store
from growbench.store import DIAGNOSTICS as DIAGNOSED

PLAN = "plan.json"
RUN = "run.json"
TUNING = "tuning"
"""Where in a study's output folder its tuning trials are, a study of their own."""
_CURVE = ("tokens", "loss", "train_loss", "learning_rate")
_DIAGNOSED = ("when", "quantity", "axis", "layer", "part", "value")
_CHECKED = [name for name in COORDINATES if name not in ("architecture", "task", "stage")]
"""The columns of a stage's own tables."""
JUMP = 1e-6
"""The largest rise of the loss, in nats per token, that counts as none."""
_LEFT = re.compile(r"\.lock|\.plan\.json\.\d+|launch")
"""What a run leaves that ended before its plan was written."""


Curve = Callable[[str], pd.DataFrame]
"""The curve of a stage by its key; read once, however many arms share it."""


def tables(out: Path, plan: Mapping[str, Any] | None = None) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """(results, curves, stages) of an output folder, as far as it has come. ValueError where no study was run in it.

    plan: the one whose arms are meant, as JSON; the one last run there if not given.
    """
    return _tables(*_stored(out, plan))


def diagnostics(out: Path) -> pd.DataFrame:
    """The diagnostics of every stage on an arm's path to its full budget, as far as the folder has come."""
    return _diagnostics(*_stored(out))


def coordinates(out: Path) -> pd.DataFrame:
    """The coordinate checks of the plan last run in a folder, as far as it has come; without rows where it has none."""
    return _coordinates(*_stored(out))


def write_tables(out: Path) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Write results, curves, stages, diagnostics and coordinates (.parquet), and return the first three."""
    stored = _stored(out)
    found = _tables(*stored)
    more = {"diagnostics": _diagnostics(*stored), "coordinates": _coordinates(*stored)}
    for name, frame in (dict(zip(("results", "curves", "stages"), found, strict=True)) | more).items():
        beside = out / f".{name}.parquet"
        beside.unlink(missing_ok=True)  # it may be a link to elsewhere
        frame.to_parquet(beside, index=False)
        beside.replace(out / f"{name}.parquet")
    return found


def _stored(out: Path, plan: Mapping[str, Any] | None = None) -> tuple[Mapping[str, Any], dict[str, Record], Store]:
    """A plan, by default the one last run in a folder, and the records that are there of its stages."""
    plan, store = plan or read_plan(out), Store(out)
    return plan, {key: record for key, record in reading.records(out).items() if key in plan["stages"]}, store


def _tables(
    plan: Mapping[str, Any], records: Mapping[str, Record], store: Store
) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    @cache
    def curve(key: str) -> pd.DataFrame:
        return _own(store, key, CURVE, CURVES, _CURVE)

    results, curves = [], []
    for arm in plan["arms"]:
        for point in arm["points"]:
            growths = sum(plan["stages"][key][0] == "grow" for key in point["path"])
            if row := _row(arm["about"], point, growths, records, curve):
                results.append(row)
            trunk = point["budget"] == max(p["budget"] for p in arm["points"])
            curves += _curve(arm["about"], point, growths, trunk, records, curve)
    tasks, arms = _places(plan)
    placed = [
        (key, record) for key, record in records.items() if key in tasks
    ]  # a strange plan may use less than it lists
    stages = [_stage(record, tasks[key], len(arms.get(key, ()))) for key, record in placed]
    return _frame(results, RESULTS), _frame(curves, CURVES), _frame(stages, STAGES)


def _own(store: Store, key: str, name: str, columns: Mapping[str, Column], own: Sequence[str]) -> pd.DataFrame:
    """A table of a stage's folder."""
    return reading.table(store.folder(key) / name, {column: columns[column].dtype for column in own})


def read_plan(out: Path) -> dict[str, Any]:
    """The plan last run in a folder. ValueError where there is none, or none that can be read."""
    try:
        return reading.plan(out / PLAN)
    except OSError:
        raise ValueError(f"{out} holds no study: name a folder that `growbench run --out` wrote") from None
    except ValueError as error:
        raise ValueError(
            f"{out / PLAN} is no plan of growbench: run the study into {out} again, its stages stay ({error})"
        ) from None


def read_run(out: Path) -> dict[str, Any] | None:
    """How the numbers in a folder were last made; None where that is not recorded."""
    try:
        found = reading.run(out / RUN)
    except (OSError, ValueError):
        return None
    return found if found.keys() >= UNKNOWN.keys() else None


def _is_planned(out: Path) -> bool:
    try:
        reading.plan(out / PLAN)
    except (OSError, ValueError):
        return False
    return True


def refuse_foreign(out: Path) -> None:
    """Raise ValueError for a folder with content that no run of growbench wrote, or links by which it would write
    elsewhere.
    """
    if not out.exists():
        return
    for within in (out / "stages", out / TUNING, out / TUNING / "stages"):
        reading.folder(within)
    if _has_run(out):
        return
    left = {path.name for path in out.iterdir() if not _LEFT.fullmatch(path.name)}
    if TUNING in left and (out / TUNING).is_dir():  # before its plan is written too, there is nothing of anyone else
        of_tuning = [path for path in (out / TUNING).iterdir() if not _LEFT.fullmatch(path.name)]
        left -= {TUNING} if not of_tuning or _has_run(out / TUNING) else set()
    if foreign := sorted(left):
        raise ValueError(f"{out} holds {foreign[0]} and no study of growbench: give a new or an empty folder as --out")


def _has_run(out: Path) -> bool:
    """Whether a folder holds a plan, or stages, of growbench."""
    return _is_planned(out) or bool(reading.records(out, files=False))


def status(out: Path) -> dict[str, Any]:
    """How far a folder's study has come: stages by status, and the reasons of those that did not end well.

    A stage counts by its record, whose digest is checked; those of its files are checked by what reads them.
    """
    plan = read_plan(out)
    counts = dict.fromkeys(("ok", "diverged", "failed", "damaged"), 0)
    problems = []
    for key, (_, _, label) in plan["stages"].items():
        try:
            record = reading.record(out, key, files=False)
        except ValueError as error:
            found, reason = "damaged", str(error)
        else:
            if record is None:
                continue
            found, reason = record.status, record.reason
        counts[found] += 1
        if found != "ok":
            problems.append({"stage": label, "status": found, "reason": reason})
    about = {"study": plan["name"], "out": str(out), "stages": len(plan["stages"])}
    return about | counts | {"left": len(plan["stages"]) - sum(counts.values()), "problems": problems}


def provenance(out: Path) -> dict[str, Any]:
    """What the report says of where the numbers come from: the plan's part and the last run's."""
    plan = read_plan(out)
    run = read_run(out) or UNKNOWN | {"growbench": _version(out)}
    about = {
        "study": plan["study"],
        "strategies": plan["strategies"],
        "tasks": plan["tasks"],
        "skipped": plan["skipped"],
        "tuned": plan.get("tuned"),
    }
    seeds = sorted({arm["about"]["seed"] for arm in plan["arms"]})
    return run | about | {"seeds": seeds, "planned_rows": sum(len(arm["points"]) for arm in plan["arms"])}


def _version(out: Path) -> str:
    """The version of growbench that made the stages of a folder, as their identities state it."""
    made = next(iter(reading.records(out, files=False).values()), None)
    return str(made.identity["core"]).partition("+")[0] if made else __version__


def _row(
    about: Mapping[str, Any], point: Mapping[str, Any], growths: int, records: Mapping[str, Record], curve: Curve
) -> dict[str, Any] | None:
    """One row, of a path with so many growths; None while a stage of it has neither ended nor failed."""
    path = [records[key] for key in point["path"] if key in records]
    bad = next((record for record in path if record.status != "ok"), None)
    if len(path) < len(point["path"]) and bad is None:
        return None
    grown = [i for i, record in enumerate(path) if record.kind == "grow"]
    source, all_tokens = path[: grown[-1]] if grown else [], sum(record.tokens for record in path)
    row: dict[str, Any] = dict(about) | dict(point["size"])
    row |= _score(row, path, bad, len(grown) == growths)
    cost, before = flops_spent(path), flops_spent(source)
    ladder = [records[key] for key in point["ladder"] if key in records]  # planned empty where it is not known
    owned = bool(ladder) and len(ladder) == len(point["ladder"])
    row |= {
        "growth_steps": growths,
        "budget": point["budget"],
        "tokens": all_tokens,
        "tokens_source": sum(record.tokens for record in source),
        "tokens_probe": sum(record.tokens for record in path if record.kind == "grow"),
        "tokens_per_param": all_tokens / row["params_non_embedding"],
        "epochs": all_tokens / row["train_tokens"],
        "flops": cost,
        "flops_source": before,
        "flops_continued": cost - before,
        "flops_ladder": flops_spent(ladder) if owned else None,
        "wall_s": sum(record.wall_s for record in path),
        "peak_memory_bytes": max(record.peak_memory_bytes for record in path),
    }
    row |= {f"flops_{purpose}": flops_spent(path, purpose) for purpose in ("cooldown", "growth", "probe", "eval")}
    row["tokens_to_recover"] = _tokens_to_recover(path[grown[-1] :], curve) if grown else None
    measures = path[grown[-1]].measures if grown else {}
    return row | {name: measures.get(name) for name in ("growth_gap", "growth_loss_jump", "alive_share")}


def _tokens_to_recover(path: Sequence[Record], curve: Curve) -> int | None:
    """Training tokens from a growth, the path's first stage, to the trunk's first loss no higher than before it."""
    jump = path[0].measures.get("growth_loss_jump")
    if jump is None:
        return None
    if jump <= JUMP:
        return 0
    ((start, after),) = curve(path[0].key)[["tokens", "loss"]].itertuples(index=False)
    for record in path[1:]:
        if record.kind == "train" and record.status == "ok":
            for tokens, loss in curve(record.key)[["tokens", "loss"]].itertuples(index=False):
                if loss <= after - jump:
                    return int(tokens - start)
    return None


def _score(row: Mapping[str, Any], path: Sequence[Record], bad: Record | None, grown: bool) -> dict[str, Any]:
    """Status, reason and losses; an arm that did not end scores the uniform predictor's loss."""
    if bad is None:
        loss, status, reason = path[-1].measures["loss"], "ok", ""
        assert loss is not None
    else:
        loss, status, reason = math.log(row["vocab"]), str(bad.status), bad.reason
        if not grown:
            status, reason = "blocked", f"its source {bad.status}: {bad.reason}"
    width, rate, known = row["bytes_per_token"], row["entropy_rate"], row.get("bits_at_zero")
    lost = known - row["bits_at_one"] if known is not None else 0.0  # bits by nat
    return {
        "status": status,
        "reason": reason,
        "loss": loss,
        "bits_per_byte": loss / math.log(2) / width if width else None,
        "excess_loss": loss - rate if rate is not None else None,
        "bits_per_weight": (known - lost * loss) / row["params_non_embedding"] if known is not None else None,
    }


def flops_spent(records: Sequence[Record], purpose: str | None = None) -> float:
    """FLOPs of stages for a purpose; without one, for all but evaluation."""
    chosen = ("train", "cooldown", "growth", "probe") if purpose is None else (purpose,)
    return math.fsum(record.flops.get(name, 0.0) for record in records for name in chosen)


def _curve(
    about: Mapping[str, Any],
    point: Mapping[str, Any],
    growths: int,
    trunk: bool,
    records: Mapping[str, Record],
    curve: Curve,
) -> list[dict[str, Any]]:
    """The end of a point's cooldown, and with `trunk` every measurement on the way there."""
    rows = []
    tokens, flops, rung = 0, 0.0, point["size"]["rung"] - growths
    for key in point["path"]:
        if (record := records.get(key)) is None or record.status != "ok":
            break
        rung += record.kind == "grow"
        cost, last = flops_spent([record]), key == point["path"][-1]
        if last or (trunk and record.kind != "init"):
            found = curve(key)
            for measured in (found.iloc[-1:] if last else found).to_dict("records"):
                entry = {str(name): value for name, value in measured.items()}
                share = (entry["tokens"] - tokens) / record.tokens if record.tokens else 1.0
                own = {"kind": "cooldown" if last else "train", "stage": key, "rung": rung}
                own |= {"budget": point["budget"] if last else None, "flops": flops + share * cost}
                rows.append({name: about[name] for name in ("arm", "task", "seed")} | entry | own)
        tokens, flops = tokens + record.tokens, flops + cost
    return rows


def _diagnostics(plan: Mapping[str, Any], records: Mapping[str, Record], store: Store) -> pd.DataFrame:
    @cache
    def diagnosed(key: str) -> list[dict[Hashable, Any]]:
        return _own(store, key, DIAGNOSED, DIAGNOSTICS, _DIAGNOSED).to_dict("records")

    rows: list[dict[Hashable, Any]] = []
    for arm in plan["arms"]:
        full, tokens = max(arm["points"], key=lambda point: point["budget"]), 0
        own = {name: arm["about"][name] for name in ("arm", "task", "seed")}
        for key in full["path"]:
            if (record := records.get(key)) is None or record.status != "ok":
                break
            place = own | {"kind": record.kind, "stage": key}
            place["budget"] = full["budget"] if key == full["path"][-1] else None
            for row in diagnosed(key) if DIAGNOSED in record.files else ():
                passed = 0 if row["when"] == "before" else record.tokens
                rows.append(place | {"tokens": tokens + passed} | row)
            tokens += record.tokens
    return _frame(rows, DIAGNOSTICS)


def _coordinates(plan: Mapping[str, Any], records: Mapping[str, Record], store: Store) -> pd.DataFrame:
    rows: list[dict[Hashable, Any]] = []
    for check in plan.get("coordinates", ()):
        if (record := records.get(check["stage"])) and record.status == "ok":
            checked = _own(store, record.key, CHECKED, COORDINATES, _CHECKED)
            rows += checked.assign(**check).to_dict("records")
    return _frame(rows, COORDINATES)


def _places(plan: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, set[str]]]:
    """Of every stage the task, and the arms whose paths it is on, by key."""
    tasks = {check["stage"]: check["task"] for check in plan.get("coordinates", ())}
    arms: dict[str, set[str]] = {}
    for arm in plan["arms"]:
        for point in arm["points"]:
            tasks |= dict.fromkeys((*point["path"], *point["ladder"]), arm["about"]["task"])
            for key in point["path"]:
                arms.setdefault(key, set()).add(arm["about"]["arm"])
    return tasks, arms


def _stage(record: Record, task: str, arms: int) -> dict[str, Any]:
    return {
        "stage": record.key,
        "kind": record.kind,
        "status": record.status,
        "reason": record.reason,
        "task": task,
        "seed": record.identity["seed"],
        "arms": arms,
        "tokens": record.tokens,
        "flops": flops_spent([record]),
        "flops_eval": flops_spent([record], "eval"),
        "wall_s": record.wall_s,
        "restarts": record.restarts,
        "started": record.started,
    }


def _frame(rows: Sequence[Mapping[Any, Any]], columns: Mapping[str, Column]) -> pd.DataFrame:
    frame = pd.DataFrame(rows, columns=list(columns))
    try:
        return frame.astype({name: column.dtype for name, column in columns.items()})
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the plan or a record states what its table cannot hold: {error}") from error
