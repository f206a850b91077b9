"""Launchers: their options, the packing of stages into jobs, the copy of the code, and a job that is told to stop."""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import toy
from hypothesis import given
from hypothesis import strategies as st

from growbench import launch, plugins
from growbench.devices import Node
from growbench.launch import Needs, Site, _snapshot
from growbench.launch._memory import kept_per_token, memory_gb, shape_of
from growbench.launch._nodes import here
from growbench.launch._pack import Pack, pack
from growbench.launch._queue import Queue
from growbench.launch._request import Request
from growbench.launch.local import Local, _Pool, places
from growbench.launch.slurm import Slurm, _Work, minutes
from growbench.store import Stage, Store
from growbench.study import parse_launch

LIMIT = 100.0


def forest(parents: list[int | None]) -> list[Stage]:
    """Stages of which the nth builds on the parents[n]th, an earlier one."""
    made: list[Stage] = []
    for number, parent in enumerate(parents):
        above = None if parent is None else made[parent].key
        made.append(Stage(kind="train", label=str(number), parent=above, identity={"number": number}))
    return made


@st.composite
def forests(draw: st.DrawFn) -> tuple[list[Stage], dict[str, Needs]]:
    count = draw(st.integers(1, 25))
    parents = [draw(st.none() | st.integers(0, number - 1)) if number else None for number in range(count)]
    stages = forest(parents)
    seconds = st.sampled_from([1.0, 10.0, 60.0, 500.0])
    return stages, {stage.key: Needs(seconds=draw(seconds)) for stage in stages}


def all_of(packs: list[Pack], above: frozenset[str] = frozenset()) -> Iterator[tuple[Pack, frozenset[str]]]:
    """Every pack, with the stages of the packs that it waits for."""
    for made in packs:
        yield made, above
        yield from all_of(made.after, above | {stage.key for stage in made.stages})


@given(given=forests())
def test_packs_hold_every_stage_once_after_what_it_builds_on(given: tuple[list[Stage], dict[str, Needs]]) -> None:
    stages, needs = given
    packs = list(all_of(pack(stages, needs, LIMIT)))
    assert sorted(stage.key for made, _ in packs for stage in made.stages) == sorted(needs)
    for made, above in packs:
        seen = set(above)
        for stage in made.stages:
            assert stage.parent is None or stage.parent in seen
            seen.add(stage.key)
        assert made.seconds == pytest.approx(sum(needs[stage.key].seconds for stage in made.stages))


@given(given=forests())
def test_no_job_waits_for_a_long_stage_that_it_does_not_need(given: tuple[list[Stage], dict[str, Needs]]) -> None:
    stages, needs = given
    parents = {stage.key: stage.parent for stage in stages}

    def line(key: str | None) -> Iterator[str]:
        while key is not None:
            yield key
            key = parents[key]

    for made, above in all_of(pack(stages, needs, LIMIT)):
        needed = {key for stage in made.stages for key in line(stage.key)}
        assert all(needs[key].seconds <= LIMIT for key in above - needed)


def test_five_hundred_short_stages_are_not_five_hundred_jobs() -> None:
    stages = forest([None] * 500)
    packs = pack(stages, {stage.key: Needs(seconds=10) for stage in stages}, 600)
    assert len(packs) == 9


def test_time_limits_are_read_as_slurm_reads_them() -> None:
    limits = (90, "90", "1:30:00", "2-0", "2-12:30", "0:30")
    assert [minutes(limit) for limit in limits] == [90, 90, 90, 2880, 3630, 1]
    with pytest.raises(ValueError, match=r"^a time limit is minutes, or as in 1:30:00 or 2-12, not 'soon'"):
        minutes("soon")


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("lokal", {}, "unknown launcher 'lokal': did you mean local"),
        ("local", {"worker": 1}, "launcher 'local' has no parameter 'worker': did you mean workers"),
        ("local", {"workers": 0}, "workers must be 1 or more, not 0"),
        ("slurm", {"partitoin": "a"}, "submitit has no Slurm parameter 'partitoin': did you mean partition"),
        ("slurm", {"dependency": "a"}, "dependency is growbench's own to set"),
        ("slurm", {"time": 1, "timeout_min": 1}, "time and timeout_min both give the time limit"),
        ("slurm", {"time": "soon"}, "a time limit is minutes"),
        ("slurm", {"pack_minutes": "many"}, "pack_minutes must be float, not 'many'"),
    ],
)
def test_a_wrong_option_is_one_sentence(name: str, options: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        launch.make(name, options)


def test_a_launcher_is_a_plugin_with_its_options(tmp_path: Path) -> None:
    source = '''
from dataclasses import dataclass
from growbench.launch import Launcher
from growbench.launch.local import drain

@dataclass(frozen=True, kw_only=True)
class Mine(Launcher):
    """One worker."""
    word: str = "a"

    def launch(self, queue, site):
        drain(queue, site, 1)
'''
    path = toy.plugin(tmp_path, "mine", source)
    found = plugins.find("launcher", "mine", [path])
    assert (found.summary, dict(found.fields)) == ("One worker.", {"word": "str = 'a'"})
    made = launch.make("mine", {"word": "b"}, [path])
    planned = toy.plan(tmp_path, strategies=["scratch"], only="*scratch@0*")
    summary = launch.run(planned, tmp_path / "out", made, lambda event: None)
    assert (summary.finished, summary.pending) == (len(planned.stages), 0)


def test_the_launch_block_of_a_study_is_a_name_or_a_name_and_options(tmp_path: Path) -> None:
    study = toy.study(tmp_path, strategies=["scratch"], launch={"name": "slurm", "partition": "a", "time": "1:00:00"})
    assert study.launch is not None
    assert (study.launch.name, study.launch.parameters) == ("slurm", {"partition": "a", "time": "1:00:00"})
    assert parse_launch("local", "a") == parse_launch({"name": "local"}, "b")
    planned = toy.plan(tmp_path, strategies=["scratch"])
    assert toy.plan(tmp_path, strategies=["scratch"], launch="slurm").stages.keys() == planned.stages.keys()


def test_a_request_is_read_as_it_was_written_and_loads_no_code_that_its_folder_names(tmp_path: Path) -> None:
    study = toy.study(tmp_path, strategies=["scratch"])
    mine = toy.plugin(tmp_path, "mine", "raise RuntimeError('code of a folder of results')")
    request = Request(study=study, plugin_paths=(mine,), launcher="mine", command="growbench run")
    request.write(tmp_path)
    assert Request.read(tmp_path) == request
    assert (tmp_path / "launch").stat().st_mode & 0o777 == 0o700
    with pytest.raises(ValueError, match="unknown launcher 'mine'"):
        request.made()


def test_the_copy_of_the_code_plans_the_same_stages(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    toy.plugin(given, "_helper", "WORD = 1")
    probing = toy.plugin(given, "probing", "from _helper import WORD\n" + toy.PROBING)
    code, (copied,) = _snapshot.take(tmp_path / "launch", [probing])
    assert {path.name for path in copied.parent.iterdir()} == {"probing.py", "_helper.py"}
    assert (code / "growbench" / "strategies" / "zero_pad.py").is_file()
    first, second = (plugins.find("strategy", "probing", [path]) for path in (probing, copied))
    assert plugins.source_hash(first) == plugins.source_hash(second)


def test_failed_stages_run_again_only_where_that_is_asked_for(tmp_path: Path) -> None:
    broken = toy.PROBING.replace("growth = super()", "raise RuntimeError('no'); growth = super()")
    planned = toy.plan(tmp_path, plugins=[toy.plugin(tmp_path, "probing", broken)], strategies=["probing"])
    out, quiet = tmp_path / "out", Local(workers=1)
    first = launch.run(planned, out, quiet, lambda event: None)
    same = launch.run(planned, out, quiet, lambda event: None, again=False)
    assert first.failed == same.failed == 1
    assert (same.finished, same.blocked) == (0, first.blocked)
    assert launch.run(planned, out, quiet, lambda event: None).failed == 1


def test_a_job_told_to_stop_goes_on_to_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submitit = pytest.importorskip("submitit")
    monkeypatch.setenv("PYTHONPATH", str(Path(launch.__file__).parents[2]))
    budget, train = {"tokens": 6_000 * toy.STEP}, {"eval_every": 384_000}
    planned = toy.plan(tmp_path, strategies=["scratch"], budget=budget, train=train)
    expected = toy.work(planned, tmp_path / "expected")
    out = (tmp_path / "out").absolute()
    site = Site(root=out, out=out, plugin_paths=(), cache=tmp_path)
    executor = submitit.AutoExecutor(out / "launch" / "jobs", cluster="local", local_max_num_timeout=9)
    executor.update_parameters(timeout_min=10)
    job = executor.submit(_Work(site, tuple(planned.stages.values()), 1))
    events = out / "launch" / "events" / f"{job.job_id}.jsonl"
    while not events.exists() or "train" not in _labels(planned.stages, events):
        assert job.state == "RUNNING", job.stderr()
        time.sleep(0.2)
    controller = job._process.pid
    (task,) = Path(f"/proc/{controller}/task/{controller}/children").read_text().split()
    os.kill(int(task), signal.SIGUSR2)
    job.wait()
    assert "Requeued job" in job.stdout()
    assert toy.unchanged(Store(out).records(), expected)
    assert Store(out).records().keys() == expected.keys()


def _labels(stages: object, events: Path) -> str:
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    return " ".join(stages[line["stage"]].kind for line in lines if line["kind"] == "started")  # type: ignore[index]


def test_slurm_needs_submitit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ValueError, match=r"pip install 'growbench\[slurm\]'"):
        Slurm()


# --- memory and accelerators -----------------------------------------------------------------------------------------


def test_every_stage_took_less_memory_than_is_asked_for_and_not_far_less(toy_run: toy.Run) -> None:
    for key, stage in toy_run.plan.stages.items():
        taken = toy_run.records[key].peak_memory_bytes / 2**30
        assert taken < memory_gb(stage, toy_run.plan.stages) < 4 * taken, stage.label


def test_memory_follows_weights_batch_and_devices(tmp_path: Path) -> None:
    wide = [{"layers": 2, "residual": 512 * k, "heads": 8 * k, "key": 64, "value": 64, "ffn": 2048 * k} for k in (1, 4)]
    plan = toy.plan(tmp_path, strategies=["zero_pad"], ladders={"transformer": wide})
    last = [stage for stage in plan.stages.values() if stage.kind == "train"][-1]
    shape = shape_of(last, plan.stages)
    assert shape is not None
    assert shape.residual == 2048
    states = 10 * shape.params * 4 / 2**30
    small = memory_gb(last, plan.stages)
    assert 1 + states < small < 1.5 + states
    many = replace(last, identity={**last.identity, "train": last.identity["train"] | {"batch": 256}})
    kept = kept_per_token(shape) + 4 * shape.vocab
    assert memory_gb(many, plan.stages) == pytest.approx(1 + states + 256 * 16 * kept * 4 / 2**30)
    assert memory_gb(replace(last, devices=2), plan.stages) == pytest.approx(2 * small, rel=0.01)


@pytest.mark.skipif(not shutil.which("srun"), reason="submitit writes jobs only where Slurm is (Debian: slurm-wlm)")
def test_what_a_stage_needs_is_asked_of_slurm_where_the_user_says_nothing(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    root = tmp_path.absolute()
    need = Needs(cpus=8, gpus=8, memory_gb=20.5)

    def asked(need: Needs, **given: Any) -> dict[str, Any]:
        parameters: dict[str, Any] = Slurm(**given)._executor(root, need=need)._executor.parameters
        return parameters

    one, two = asked(need), asked(need, nodes=2)
    assert (one["mem"], one["cpus_per_task"], one["gpus_per_node"], one.get("nodes", 1)) == ("21GB", 8, 8, 1)
    assert (two["mem"], two["cpus_per_task"], two["gpus_per_node"], two["nodes"]) == ("11GB", 4, 4, 2)
    assert two["ntasks_per_node"] == 1
    assert asked(need, parameters={"mem": "3GB"})["mem"] == "3GB"
    assert "mem" not in asked(need, parameters={"mem_per_cpu": "3GB"})
    alone = asked(Needs(), nodes=2)
    assert (alone.get("nodes", 1), "mem" in alone) == (1, False)


def test_every_worker_has_accelerators_of_its_own(tmp_path: Path) -> None:
    gpus = ["0", "2", "GPU-a", "5"]
    assert places(3, 0, gpus) == [{}, {}, {}]
    assert [place["CUDA_VISIBLE_DEVICES"] for place in places(3, 1, gpus)] == ["0", "2", "GPU-a"]
    assert [place["CUDA_VISIBLE_DEVICES"] for place in places(3, 2, gpus)] == ["0,2", "GPU-a,5"]
    with pytest.raises(ValueError, match="needs 8 CUDA devices and this machine has 4: give --devices 4 or"):
        places(1, 8, gpus)

    # A plugin sees what its worker does, the worker that takes the place of another too.
    seen = "import os; raise RuntimeError(os.environ['CUDA_VISIBLE_DEVICES']); growth = super()"
    telling = toy.PROBING.replace("growth = super()", seen)
    plan = toy.plan(tmp_path, plugins=[toy.plugin(tmp_path, "probing", telling)], strategies=["probing"], seeds=2)
    out = (tmp_path / "out").absolute()
    site = Site(root=out, out=out, plugin_paths=plan.plugin_paths, cache=tmp_path)
    queue = Queue(plan.stages, site.store, lambda event: None)
    _Pool(site, places(1, 2, gpus), lambda: False).drain(queue)
    reasons = [record.reason for record in site.store.records().values() if record.status == "failed"]
    assert len(reasons) == 2
    assert all(reason.startswith("RuntimeError: 0,2 (") for reason in reasons)


# --- several machines ------------------------------------------------------------------------------------------------

IN_A_TASK = """
import pickle, sys
from pathlib import Path
pickle.loads(Path(sys.argv[1]).read_bytes())()
"""


def test_a_job_s_machines_are_read_from_its_environment() -> None:
    assert here({"SLURM_JOB_ID": "7"}) == here({}) == Node()
    task = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "4", "SLURM_NODEID": "2", "SLURM_JOB_NODELIST": "gpu[08-10,12]"}
    assert here(task) == Node(number=2, count=4, address="gpu08", port=20_014)


def test_a_job_on_two_machines_comes_to_what_one_process_does(tmp_path: Path) -> None:
    """Two tasks of a job, as Slurm starts them on its machines, here both on this one."""
    pytest.importorskip("submitit")
    planned = toy.plan(tmp_path, strategies=["zero_pad"], device={"devices": 2}, train={"eps": 1e-2})
    stages = tuple(planned.stages.values())
    expected = toy.work(planned, tmp_path / "expected", [replace(stage, devices=1) for stage in stages])
    out = (tmp_path / "out").absolute()
    job = tmp_path / "job.pickle"
    job.write_bytes(pickle.dumps(_Work(Site(root=out, out=out, plugin_paths=(), cache=tmp_path), stages, 1)))
    task = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_NODELIST": "127.0.0.1"}
    task |= {
        "SLURM_LOCALID": "0",
        "SLURM_NTASKS": "2",
        "SUBMITIT_EXECUTOR": "slurm",
        "PYTHONPATH": str(Path(launch.__file__).parents[2]),
    }
    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", IN_A_TASK, job],
            env=os.environ | task | {"SLURM_NODEID": str(number), "SLURM_PROCID": str(number)},
        )
        for number in (0, 1)
    ]
    try:
        assert [task.wait(timeout=600) for task in tasks] == [0, 0]
    finally:
        for started in tasks:
            started.kill()
            started.wait()
    found = Store(out).records()
    assert found.keys() == expected.keys()
    for key, record in found.items():
        assert (record.status, record.tokens) == ("ok", expected[key].tokens), record.reason
        assert record.environment["devices"] == (2 if record.kind in ("train", "cooldown") else 1)
        if "loss" in record.measures:
            assert record.measures["loss"] == pytest.approx(expected[key].measures["loss"], rel=1e-5)


def test_devices_that_no_number_of_machines_shares_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    plan = toy.plan(tmp_path, strategies=["continue"], device={"devices": 4})
    Slurm(nodes=2)._check_spread([*plan.stages.values()])
    with pytest.raises(
        ValueError, match="4 devices cannot be spread equally over 3 nodes: give --slurm-nodes a number"
    ):
        Slurm(nodes=3)._check_spread([*plan.stages.values()])
