"""Two or more folders beside each other: what differs in how they were made, and then in what came out.

One idea: nothing is pooled. An arm that two folders have is compared where its data, size and tokens agree, by seed
where both have the seed; where they do not agree the row says so and has no difference.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import yaml

from growbench import stats
from growbench.reports import summary

MADE = ("study", "growbench", "git_sha", "git_dirty", "device", "seeds")


def made(names: Sequence[str], provenances: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A record per folder: its study, version, commit, device, seeds, and the fingerprints of its tasks' data."""
    found = []
    for name, about in zip(names, provenances, strict=True):
        spec = yaml.safe_load(about.get("study") or "") or {}
        data = {str(task["name"]): str(task["fingerprint"])[:12] for task in about.get("tasks") or []}
        found.append(
            {"folder": name} | {key: about.get(key) for key in MADE} | {"study": spec.get("study"), "data": data}
        )
    return found


def compare(first: pd.DataFrame, second: pd.DataFrame) -> list[dict[str, Any]]:
    """A record per task and arm that either has at its own full budget, largest difference first.

    first, second: results. change: the log ratio of the second's loss to the first's, of the seeds that both have,
    with its 95 % interval (low, high) and p where there are as many as a test needs; note: why there is none.
    """
    sides = [summary.finals(summary.annotate(results)) for results in (first, second)]
    keys = [set(side[["task", "arm"]].itertuples(index=False, name=None)) for side in sides]
    common = keys[0] & keys[1]
    notes = dict.fromkeys(keys[0] - keys[1], "only in the first") | dict.fromkeys(
        keys[1] - keys[0], "only in the second"
    )
    refused = stats.unequal(*sides, on=("task", "arm", "seed"))
    for (task, arm), own in refused.groupby(["task", "arm"]):
        notes[task, arm] = str(own["said"].iloc[0])
    joined = sides[1].merge(sides[0], on=["task", "arm", "seed"], suffixes=("", "_first"))
    logs = np.log(joined[["loss", "loss_first"]].astype("float64"))
    joined["difference"] = logs["loss"] - logs["loss_first"]
    joined["unscored"] = (~joined["scored"]).astype(int) + (~joined["scored_first"]).astype(int)
    tests = stats.contrast(joined, by=("task", "arm")).set_index(["task", "arm"])
    means = [side.groupby(["task", "arm"])["score"].mean() for side in sides]
    records = []
    for task, arm in sorted(keys[0] | keys[1]):
        row: dict[str, Any] = {
            "task": task,
            "arm": arm,
            "first": means[0].get((task, arm)),
            "second": means[1].get((task, arm)),
        }
        if (task, arm) in common and (task, arm) not in notes and (task, arm) in tests.index:
            test = tests.loc[(task, arm)]
            row |= {
                "change": test["effect"],
                "low": test["low"],
                "high": test["high"],
                "p": test["p"],
                "seeds": test["n"],
            }
            notes[task, arm] = test["why"]
        elif (task, arm) in common and (task, arm) not in notes:
            notes[task, arm] = "no seed in common"
        records.append(
            dict.fromkeys(("change", "low", "high", "p", "seeds")) | row | {"note": notes.get((task, arm), "")}
        )
    return sorted(records, key=lambda r: (r["change"] is None, -abs(r["change"] or 0.0), r["task"], r["arm"]))
