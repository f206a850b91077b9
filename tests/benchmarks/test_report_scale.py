"""The report at scale: 1,000 arms on 5 tasks with 200 points each, in 15 s of CPU and 1 GB, a file below 8 MB.

The results are made here, from closed forms and a seed: of every arm and task 40 evaluations along the trunk of each of
5 seeds, and 3 budget points. Run as a program it times one render in a process of its own and prints what it took.
"""

import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

ARMS, TASKS, SEEDS, EVALUATIONS = 1000, ("pycode", "wiki", "maths", "news", "chat"), 5, 40
BUDGETS, GROWTH = (300_000, 360_000, 480_000), 240_000
SMALL, LARGE = 8_192, 24_576


def tables(arms: int = ARMS, tasks: int = len(TASKS)) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """(results, curves, stages) of one architecture: scratch, the source trained on, and arms - 2 ways to grow."""
    rng = np.random.default_rng(0)
    names = np.array(["transformer/scratch", "transformer/continue", *(f"transformer/pad[k={k}]" for k in range(arms))])
    arm, task, seed = (
        axis.ravel() for axis in np.meshgrid(np.arange(arms), np.arange(tasks), np.arange(SEEDS), indexing="ij")
    )
    offset, luck = rng.normal(0.01, 0.01, arms)[arm], rng.normal(0, 0.004, (tasks, SEEDS))[task, seed]
    own = rng.normal(0, 0.002, len(arm))

    def path(points: np.ndarray) -> dict[str, np.ndarray]:
        """Every run at every point: who, tokens, cost and loss."""
        at = {name: np.repeat(values, len(points)) for name, values in (("arm", arm), ("task", task), ("seed", seed))}
        tokens = np.tile(points, len(arm))
        grown = at["arm"] > 1
        before = np.where(grown, np.minimum(tokens, GROWTH), np.where(at["arm"] == 1, tokens, 0))
        cost = 6.0 * (LARGE * (tokens - before) + SMALL * before)
        late = np.where(at["arm"] == 0, 0.0, np.repeat(offset, len(points)))
        loss = 1.2 + 4.3 * (1 + tokens / 2_000) ** -0.36 + late + np.repeat(luck + own, len(points))
        return at | {"tokens": tokens, "flops": cost, "flops_source": 6.0 * SMALL * before * grown, "loss": loss}

    def named(found: dict[str, np.ndarray]) -> pd.DataFrame:
        return pd.DataFrame(found | {"arm": names[found["arm"]], "task": np.array(TASKS)[found["task"]]})

    points = path(np.array(BUDGETS))
    results, grown = named(points), points["arm"] > 1
    results["strategy"] = np.where(grown, "pad", np.where(points["arm"] == 0, "scratch", "continue"))
    results["variant"] = np.where(grown, results["arm"].str.extract(r"\[(.*)\]", expand=False).fillna(""), "")
    matched = points["arm"] != 1
    about: dict[str, Any] = {
        "study": "scale",
        "architecture": "transformer",
        "unit": "byte",
        "status": "ok",
        "data_fingerprint": "9f",
    }
    about |= {"shape": "2 layers, residual 32", "sterile": "", "schedule": "", "tuned": False, "learning_rate": 0.01}
    results = results.assign(**about, matched=matched, rung=matched.astype(int), growth_steps=grown.astype(int))
    results["params_non_embedding"] = np.where(matched, LARGE, SMALL)
    results["budget"], results["bits_per_byte"] = results["tokens"], results["loss"] / np.log(2)
    results["flops_continued"] = results["flops"] - results["flops_source"]
    results["flops_ladder"] = results["flops"] * 1.1
    evaluations = path(np.linspace(12_000, 480_000, EVALUATIONS).astype(int))
    curves = named(evaluations).drop(columns="flops_source")
    at_source = (evaluations["arm"] > 1) & (evaluations["tokens"] <= GROWTH)
    whose = np.where(at_source | (evaluations["arm"] == 1), 1, evaluations["arm"])
    curves["stage"] = pd.Series(whose).astype(str) + "-" + curves["task"] + "-" + curves["seed"].astype(str)
    curves["kind"], curves["rung"] = "train", ((evaluations["arm"] == 0) | (evaluations["arm"] > 1) & ~at_source) * 1
    stages = curves.drop_duplicates("stage")[["stage", "kind", "task", "seed", "tokens", "flops"]]
    return results, curves, stages.assign(status="ok", reason="", arms=1, flops_eval=1e9, wall_s=10.0, restarts=0)


def measure(folder: Path) -> dict[str, float]:
    """Seconds of CPU to read the tables of a folder and write their page, peak MB of it all, and MB of the page."""
    start = time.process_time()
    from growbench.reports.page import render

    results, curves, stages = (pd.read_parquet(folder / f"{name}.parquet") for name in ("results", "curves", "stages"))
    page = render(results, curves, stages, {})
    used, peak = time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (folder / "report.html").write_text(page, encoding="utf-8")
    return {"cpu_s": used, "peak_mb": peak / 1e3, "page_mb": len(page.encode()) / 1e6}


@pytest.mark.slow
def test_a_thousand_arms_are_reported_in_seconds(tmp_path: Path) -> None:
    for name, frame in zip(("results", "curves", "stages"), tables(), strict=True):
        frame.to_parquet(tmp_path / f"{name}.parquet", index=False)
    command = [sys.executable, str(Path(__file__)), str(tmp_path)]
    took = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert took["cpu_s"] < 15, took
    assert took["peak_mb"] < 1000, took
    assert took["page_mb"] < 8, took


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]))))
