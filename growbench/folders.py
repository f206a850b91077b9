"""Several result folders as one: their tables joined, their provenances merged, or a ValueError that says why not.

A row that two folders hold counts once; of a failed and an ok one it is the latter. What disagrees is refused by name.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from growbench import reading, tables
from growbench.results import PLANNED

Frames = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]
"""Results, curves, stages, diagnostics."""

RUN = ["arm", "task", "seed"]
ROW = [*RUN, "budget"]
_MEASURED = {"wall_s", "peak_memory_bytes", "started", "restarts", "arms"}
"""Columns that differ between equal runs."""


def read(folders: Sequence[Path]) -> tuple[Frames, dict[str, Any]]:
    """Return (results, curves, stages, diagnostics) of all folders as one, and where they come from."""
    for folder in folders:
        existing(folder)
    about = merged([tables.provenance(folder) for folder in folders]) | {"planned_rows": len(planned(folders))}
    return joined([(*tables.tables(folder), tables.diagnostics(folder)) for folder in folders]), about


def planned(folders: Sequence[Path]) -> pd.DataFrame:
    """Return the rows that the results of all folders are to have: arm, task, seed, budget, and probe."""
    rows = (
        {name: arm["about"].get(name, False) for name in PLANNED} | {"budget": point["budget"]}
        for folder in folders
        for arm in tables.read_plan(folder)["arms"]
        for point in arm["points"]
    )
    return pd.DataFrame(rows, columns=PLANNED).drop_duplicates(ignore_index=True)


def existing(folder: Path) -> None:
    """Raise ValueError where there is no such folder."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder}: give the --out folder of a run")


def write_page(page: Path, text: str, folders: Sequence[Path]) -> None:
    """Write a page about folders. A link of its name in one of them is replaced: it may be a stranger's."""
    if page.parent in folders and page.is_symlink():
        page.unlink()
    page.write_text(text, encoding="utf-8")


def joined(folders: Sequence[Frames]) -> Frames:
    """Return the tables of all folders as one. A row in two of them counts once, of a failed and an ok one the latter.

    ValueError where two of one arm, task, seed and budget differ: they are no two seeds of one thing.
    """
    if len(folders) == 1:
        return folders[0]
    results, curves, stages, diagnostics = (
        pd.concat([frame.assign(folder=i) for i, frame in enumerate(frames)], ignore_index=True)
        for frames in zip(*folders, strict=True)
    )
    unfinished = ("failed", "blocked")
    results = _distinct(results.sort_values("status", key=lambda found: found.isin(unfinished), kind="stable"))
    done = results[~results["status"].isin(unfinished)]
    if len(clash := done[done.duplicated(ROW)]):
        arm, task, seed, budget = clash.iloc[0][ROW]
        raise ValueError(
            f"the folders disagree on {arm} of seed {seed} ({task}, {budget:,} tokens), as after a change to a plugin: "
            "rerun one of them, or write one report for each"
        )
    first = results.drop_duplicates(ROW)
    beaten = _keys(results.drop(first.index)).difference(_keys(first))
    curves = _distinct(curves[~_keys(curves).isin(beaten)])
    diagnostics = _distinct(diagnostics[~_keys(diagnostics).isin(beaten)])
    stages = stages.sort_values("status", key=lambda found: found.isin(unfinished), kind="stable")
    joined = (first, curves, stages.drop_duplicates("stage"), diagnostics)
    first, curves, stages, diagnostics = (
        frame.sort_index().drop(columns="folder").reset_index(drop=True) for frame in joined
    )
    return first, curves, stages, diagnostics


def _distinct(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.drop_duplicates([column for column in frame.columns if column not in {*_MEASURED, "folder"}])


def _keys(frame: pd.DataFrame) -> pd.MultiIndex:
    """Return the run of each row, and the folder that it is from."""
    return pd.MultiIndex.from_frame(frame[[*RUN, "folder"]])


def merged(provenances: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one provenance for all folders; ValueError where their results must not be compared."""
    studies = [reading.study(found["study"]) for found in provenances]
    first, *others = provenances
    for other, its in zip(others, studies[1:], strict=True):
        if _minor(first["growbench"]) != _minor(other["growbench"]):
            raise ValueError(
                f"results of growbench {first['growbench']} and {other['growbench']} do not compare: rerun the older"
            )
        if any(
            a["name"] == b["name"] and a["fingerprint"] != b["fingerprint"]
            for a in first["tasks"]
            for b in other["tasks"]
        ):
            raise ValueError("a task's data differ between the folders: their results do not compare")
        if _compared(studies[0]) != _compared(its):
            raise ValueError("the folders hold different studies: write one report for each")
        if arm := _tuned_apart(first, other):
            raise ValueError(f"tuning chose differently for {arm} in the folders: write one report for each")
    seeds = {seed for found in provenances for seed in found.get("seeds", ())}
    most = max(zip(studies, provenances, strict=True), key=lambda found: int(found[0]["seeds"]))[1]
    return most | ({"seeds": sorted(seeds)} if seeds else {})


def _compared(study: Mapping[str, Any]) -> dict[str, Any]:
    """What of a study decides its numbers, by stage: not which seeds there are, nor where stages run."""
    return {name: value for name, value in study.items() if name not in ("seeds", "first_seed", "launch")}


def _tuned_apart(first: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the name of an arm for which two folders chose different settings, or ""."""
    one, another = ((found.get("tuned") or {"chosen": {}})["chosen"] for found in (first, other))
    differ = (
        f"{arm} ({task})"
        for task in one.keys() & another.keys()
        for arm in one[task].keys() & another[task].keys()
        if one[task][arm] != another[task][arm]
    )
    return min(differ, default="")


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]
