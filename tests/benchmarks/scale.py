"""What growbench itself costs, with stages that do nothing, in seconds of processor time: `make bench`.

planning 100,000 stages in less than 5 s, and linear     status of 10,000 finished ones in less than 2 s
the local launcher: stages per second
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy

from growbench.launch import Site
from growbench.launch._queue import Queue
from growbench.launch.local import drain
from growbench.plan import Plan, make_plan
from growbench.store import CHECKPOINT, CURVE, Record, Store
from growbench.tables import PLAN, status

ARMS = ["scratch", "continue", "zero_pad", "net2net", "hyperclone", "random"]
PLANNED, FINISHED, LAUNCHED = 100_000, 10_000, 400

pytestmark = pytest.mark.benchmark(timer=time.process_time)


def planned(folder: Path, stages: int) -> Plan:
    """A plan of at least so many stages, in as many seeds as that takes."""
    study = toy.study(folder, strategies=ARMS, architectures=list(toy.LADDERS), seeds=2)
    one, two = (len(make_plan(study.at(seeds=n)).stages) for n in (1, 2))
    return make_plan(study.at(seeds=-(-stages // (two - one))))


def test_planning_takes_seconds_and_is_linear(benchmark: Any, tmp_path: Path) -> None:
    start = time.process_time()
    planned(tmp_path, PLANNED // 2)
    half = time.process_time() - start
    plan = benchmark.pedantic(planned, args=(tmp_path, PLANNED))
    assert len(plan.stages) >= PLANNED
    assert benchmark.stats.stats.max < 5
    assert benchmark.stats.stats.max < 3 * half


def test_the_status_of_finished_stages_takes_seconds(benchmark: Any, tmp_path: Path) -> None:
    plan, store = planned(tmp_path, FINISHED), Store(tmp_path / "out")

    def fill(folder: Path) -> None:
        (folder / CHECKPOINT).write_bytes(bytes(2**16))
        (folder / CURVE).write_bytes(bytes(2**10))

    for stage in plan.stages.values():
        store.write(Record.of(stage, status="ok", measures={"loss": 1.0}, flops={"train": 1.0}), fill)
    (store.out / PLAN).write_text(json.dumps(plan.to_dict()))
    said = benchmark.pedantic(status, args=(store.out,), rounds=3)
    assert said["ok"] == said["stages"] >= FINISHED
    assert benchmark.stats.stats.min < 2


def test_the_local_launcher_starts_stages_that_do_nothing(benchmark: Any, tmp_path: Path) -> None:
    plan = toy.plan(tmp_path, strategies=["scratch"])
    init = next(stage for stage in plan.stages.values() if stage.kind == "init")
    stages = [replace(init, identity={**init.identity, "seed": seed}) for seed in range(LAUNCHED)]
    site = Site(root=tmp_path, out=tmp_path / "out", plugin_paths=(), cache=tmp_path)

    def launch() -> float:
        queue = Queue({stage.key: stage for stage in stages}, site.store, lambda event: None)
        start = time.perf_counter()
        drain(queue, site, 1)
        return queue.finished / (time.perf_counter() - start)

    benchmark.extra_info["stages per second"] = benchmark.pedantic(launch)
    assert len(site.store.records()) == LAUNCHED
