"""A real Slurm cluster of one node: whole studies through it, jobs killed, put back and cancelled, compared with local.

Skipped, with the reason, where Slurm's daemons are not installed (Debian: slurm-wlm, munge) or this is not root.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import toy

from growbench.launch.slurm import job_name
from growbench.store import Store
from growbench.tables import TUNING

pytest.importorskip("submitit")

GROWBENCH = Path(sys.executable).with_name("growbench")
SCRIPT = Path(__file__).with_name("slurm_cluster")
SECONDS = 600
"""Longer than any of this takes on a busy machine."""
DETACHED = ("--launcher", "slurm", "--slurm-partition", "main", "--slurm-time", "30")


@pytest.fixture(scope="module", autouse=True)
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])
    if missing := [name for name in ("slurmctld", "slurmd", "munged") if not shutil.which(name, path=path)]:
        pytest.skip(f"{', '.join(missing)} not installed (Debian: slurm-wlm, munge)")
    if os.geteuid() != 0:
        pytest.skip("only root can start a cluster")
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", path)
        patch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
        try:
            subprocess.run([SCRIPT, "start", folder], check=True)
            yield
        finally:
            subprocess.run([SCRIPT, "stop", folder], check=True)


def growbench(*words: str | Path) -> tuple[int, str, str]:
    done = subprocess.run([GROWBENCH, *words], capture_output=True, text=True, check=False, timeout=SECONDS)
    return done.returncode, done.stdout, done.stderr


def slurm(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout


def until(true: Callable[[], object]) -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.5)


def status(out: Path) -> dict[str, Any]:
    code, stdout, stderr = growbench("status", out, "--json")
    assert (code, stderr) == (0, "")
    found: dict[str, Any] = json.loads(stdout)
    return found


def at_work(out: Path) -> bool:
    return bool(slurm("squeue", "--noheader", "--name", job_name(out)).strip())


def running(out: Path) -> list[str]:
    """Jobs that run stages, which they have begun."""
    said = {path.stem for path in (out / "launch" / "events").glob("*.jsonl")}
    found = slurm("squeue", "--noheader", "--name", job_name(out), "--states", "RUNNING", "--format", "%i").split()
    return [job for job in found if job in said]


class Case:
    """A toy study in a folder, and what it comes to without Slurm."""

    def __init__(self, folder: Path, **given: Any) -> None:
        self.plugin = toy.plugin(folder, "probing", toy.PROBING)
        given = {"strategies": ["scratch", "zero_pad", "probing"]} | given
        self.plan = toy.plan(folder, plugins=[self.plugin], **given)
        self.expected = toy.work(self.plan, folder / "expected")
        self.study, self.out = folder / "toy.yaml", folder / "out"
        self.study.write_text(self.plan.study.to_yaml(), encoding="utf-8")

    def run(self, *more: str) -> tuple[int, str, str]:
        return growbench("run", self.study, "--out", self.out, "--plugin", self.plugin, *DETACHED, *more)

    def complete(self) -> bool:
        records = Store(self.out).records()
        return records.keys() == self.expected.keys() and toy.unchanged(records, self.expected)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_a_detached_study_comes_to_the_same_numbers_whatever_is_edited_meanwhile(case: Case) -> None:
    code, stdout, _ = case.run("--slurm-pack-minutes", "0.1")
    assert code == 0
    assert stdout.startswith(f"slurm has {len(case.plan.stages)} stages: ")
    case.plugin.write_text("raise RuntimeError('edited while jobs wait')\n", encoding="utf-8")
    first = status(case.out)
    assert first["at_work"]
    assert (first["failed"], first["left"] > 0) == (0, True)
    jobs = json.loads((case.out / "launch" / "jobs.json").read_text())
    assert len(jobs) > 2
    assert sorted(key for stages in jobs.values() for key in stages) == sorted(case.plan.stages)
    assert (case.out / "launch").stat().st_mode & 0o777 == 0o700
    until(lambda: not at_work(case.out))
    assert case.complete()
    assert status(case.out)["ok"] == len(case.plan.stages)
    assert json.loads((case.out / "run.json").read_text())["finished"]
    written = (case.out / "report.html").read_text(encoding="utf-8")  # by the last job
    assert growbench("report", case.out)[0] == 0
    assert len((case.out / "report.html").read_text(encoding="utf-8")) == pytest.approx(len(written), rel=0.01)


def test_waiting_shows_progress_and_writes_the_report(case: Case) -> None:
    code, stdout, stderr = case.run("--wait")
    assert code == 0, stderr
    assert stdout.splitlines() == [f"{len(case.plan.stages)} stages done, 0 were there.", str(case.out / "report.html")]
    assert "jobs are submitted" in stderr
    assert case.complete()


def test_a_killed_job_is_a_row_with_its_reason_and_retry_runs_it_again(case: Case) -> None:
    case.run("--slurm-pack-minutes", "0.1")
    until(lambda: running(case.out))
    (job, *_) = running(case.out)
    slurm("scancel", "--signal=KILL", job)
    until(lambda: not at_work(case.out))
    told = status(case.out)
    assert told["failed"] >= 1
    for problem in told["problems"]:
        assert problem["reason"].startswith(f"its Slurm job {job} ended as ")
        assert f"launch/jobs/{job}_0_log.out" in problem["reason"]
    kept = Store(case.out).records()
    assert len(kept) > told["failed"]  # the rest went on
    code, stdout, stderr = growbench("retry", case.out)
    assert (code, stdout.startswith("What failed and what is left is handed to slurm")) == (0, True), stderr
    until(lambda: not at_work(case.out))
    assert case.complete()
    ok = {key: record.started for key, record in kept.items() if record.status == "ok"}
    assert {key: record.started for key, record in Store(case.out).records().items() if key in ok} == ok


def test_a_job_that_is_told_to_stop_goes_back_to_the_queue_and_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    case = Case(tmp_path, strategies=["scratch"], budget={"tokens": 2000 * toy.STEP}, train={"eval_every": 64_000})
    case.run()
    until(lambda: running(case.out))
    (job,) = running(case.out)
    slurm("scancel", "--signal=USR2", job)  # as Slurm does before the time limit

    def waiting() -> bool:
        return slurm("squeue", "--noheader", "--jobs", job, "--format", "%t").strip() == "PD"

    until(waiting)
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")  # it would wait for two minutes
    until(lambda: not at_work(case.out))
    assert case.complete()


def test_cancelled_jobs_end_and_the_same_command_goes_on(case: Case) -> None:
    case.run()
    code, _, stderr = case.run()
    assert (code, "are at work" in stderr) == (2, True)
    until(lambda: running(case.out))
    code, stdout, _ = growbench("cancel", case.out)
    assert (code, stdout) == (0, f"Its jobs are ended; finished stages stay in {case.out}.\n")
    assert growbench("cancel", case.out)[1] == f"No job is at work in {case.out}.\n"
    told = status(case.out)
    assert not told["at_work"]
    assert told["failed"] == 0
    assert case.run("--wait")[0] == 0
    assert case.complete()


@pytest.mark.slow
def test_a_tuned_study_is_carried_from_its_trials_to_its_end_by_its_jobs(tmp_path: Path) -> None:
    tuning = {"trials": 2, "tokens": 20 * toy.STEP, "learning_rate": [0.001, 0.03]}
    study = toy.study(tmp_path, strategies=["scratch", "zero_pad"], tuning=tuning)
    path = tmp_path / "toy.yaml"
    path.write_text(study.to_yaml(), encoding="utf-8")
    assert growbench("run", path, "--out", tmp_path / "local", "--workers", "1")[0] == 0
    assert growbench("run", path, "--out", tmp_path / "slurm", *DETACHED)[0] == 0
    until(lambda: not at_work(tmp_path / "slurm"))
    for part in (TUNING, "."):
        one, other = (Store(tmp_path / name / part).records() for name in ("local", "slurm"))
        assert one.keys() == other.keys()
        assert toy.unchanged(one, other)
