"""Kills, interrupts, two at once, full disks: through the real command, compared with a run that nothing disturbed."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import toy

from growbench.store import Store

GROWBENCH = Path(sys.executable).with_name("growbench")
SECONDS = 120
"""Longer than any of this takes on a busy machine."""


@pytest.fixture
def study(toy_run: toy.Run, tmp_path: Path) -> Path:
    path = tmp_path / "toy.yaml"
    path.write_text(toy_run.plan.study.to_yaml(), encoding="utf-8")
    return path


def words(study: Path, toy_run: toy.Run, out: Path) -> list[str]:
    plugins = [word for path in toy_run.plan.plugin_paths for word in ("--plugin", str(path))]
    return ["run", str(study), "--out", str(out), *plugins]


@contextmanager
def command(study: Path, toy_run: toy.Run, out: Path, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """`growbench run`, in a process group of its own; what is left of the group is killed at the end."""
    process = subprocess.Popen(
        [GROWBENCH, *words(study, toy_run, out), "--workers", "2", *more],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        with_group(process.pid, signal.SIGKILL)
        process.communicate()


def with_group(group: int, number: int) -> bool:
    """Signal a process group; whether there is any of it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def finished(study: Path, toy_run: toy.Run, out: Path, *more: str) -> tuple[int, str, str]:
    with command(study, toy_run, out, *more) as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
        return process.returncode, stdout, stderr


def until(
    true: Callable[[], bool], process: "subprocess.Popen[str] | None" = None, *, seconds: float = SECONDS
) -> None:
    """Wait for something to become true, while the process lives if one is given."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)


def done(out: Path) -> set[str]:
    return {path.name for path in (out / "stages").glob("[0-9a-f]*")}


def alive(group: int) -> set[int]:
    """Processes of a group that have not ended."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(of) == group and state != "Z":
            found.add(int(entry.name))
    return found


def complete(toy_run: toy.Run, out: Path) -> bool:
    records = Store(out).records()
    return records.keys() == toy_run.records.keys() and toy.unchanged(records, toy_run.records)


def test_a_run_killed_in_the_middle_goes_on_to_the_same_numbers(study: Path, toy_run: toy.Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with command(study, toy_run, out) as process:
        until(lambda: len(done(out)) >= 5, process)
        code, stdout, stderr = finished(study, toy_run, out)  # while the first still runs
        assert (code, stdout) == (2, "")
        assert stderr == f"growbench: another run is using {out}: wait for it to end, or give another --out\n"
        with_group(process.pid, signal.SIGKILL)
        process.communicate()
    left = done(out)
    assert 5 <= len(left) < len(toy_run.plan.stages)
    kept = {key: (out / "stages" / key).stat().st_mtime_ns for key in left}
    code, stdout, stderr = finished(study, toy_run, out)
    assert (code, stderr.count("damaged")) == (0, 0)
    assert stdout.startswith(f"{len(toy_run.plan.stages) - len(left)} stages done, {len(left)} were there.")
    assert {key: (out / "stages" / key).stat().st_mtime_ns for key in left} == kept
    assert complete(toy_run, out)
    assert not list((out / "stages").glob(".*"))


def test_ctrl_c_ends_with_130_and_the_workers_of_a_killed_run_end_with_it(
    study: Path, toy_run: toy.Run, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with command(study, toy_run, out) as process:
        until(lambda: len(done(out)) >= 3, process)
        with_group(process.pid, signal.SIGINT)  # as a terminal does: to the workers too
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 130
        assert "Traceback" not in stderr
        assert stderr.splitlines()[-1] == (
            f"Interrupted: finished stages stay in {out}, and the same command goes on from there."
        )
        until(lambda: not alive(process.pid))
    left = done(out)
    assert 3 <= len(left) < len(toy_run.plan.stages)

    with command(study, toy_run, out) as process:
        until(lambda: len(done(out)) >= len(left) + 3, process)
        workers = alive(process.pid) - {process.pid}
        assert len(workers) >= 2
        process.kill()  # the run's process alone
        process.communicate()
        until(lambda: not alive(process.pid), seconds=5)
    records = Store(out).records()
    assert left < records.keys()
    assert toy.unchanged(records, toy_run.records)  # nothing that was cut short is taken for a failure


def test_an_interrupt_while_workers_start_is_quiet_too(study: Path, toy_run: toy.Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with command(study, toy_run, out) as process:
        until(lambda: len(alive(process.pid)) >= 3, process)  # with the resource tracker of multiprocessing
        with_group(process.pid, signal.SIGINT)
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 130
        assert "Traceback" not in stderr


@pytest.mark.parametrize("room", [0, 2, 30], ids=["none", "less than a plan", "less than a checkpoint"])
def test_a_folder_that_cannot_be_written_is_one_sentence(
    room: int, study: Path, toy_run: toy.Run, tmp_path: Path
) -> None:
    out = tmp_path / "file" / "out"
    if room:  # no file may be longer than so many KiB: for a program, as on a full disk
        limit = ["bash", "-c", f'ulimit -f {room}; exec "$0" "$@"']
    else:
        limit = []
        out.parent.write_text("where a folder should be")
    chosen = ["--workers", "1", "--seeds", "1", "--only", "transformer/scratch@0"]
    process = subprocess.run(
        [*limit, GROWBENCH, *words(study, toy_run, out), *chosen],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert "Traceback" not in process.stderr
    last = process.stderr.splitlines()[-1]
    assert last.startswith(f"growbench: {out} cannot be written: ")
    if room == 30:
        left = [record.kind for record in Store(out).records().values()]
        assert left == ["init"]  # whose checkpoint, without moments, is a third as long


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_run_killed_again_and_again_comes_to_the_same_numbers(
    seed: int, study: Path, toy_run: toy.Run, tmp_path: Path
) -> None:
    out, chance = tmp_path / "out", random.Random(seed)
    for _ in range(100):
        before = len(done(out))
        with command(study, toy_run, out) as process:
            until(lambda before=before, process=process: process.poll() is not None or len(done(out)) > before)  # type: ignore[misc]
            time.sleep(chance.uniform(0, 0.6))
            match chance.choice(["group", "run", "worker", "interrupt"]):
                case "group":
                    with_group(process.pid, signal.SIGKILL)
                case "run":
                    process.kill()
                case "interrupt":
                    with_group(process.pid, signal.SIGINT)
                case "worker":
                    for worker in alive(process.pid) - {process.pid}:
                        os.kill(worker, signal.SIGKILL)
                    time.sleep(chance.uniform(0, 3))
            if process.poll() == 0:
                break
    assert finished(study, toy_run, out)[0] == 0
    assert complete(toy_run, out)
