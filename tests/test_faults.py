"""Kills, interrupts, two at once, full disks: through the real command, compared with a run that nothing disturbed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import toy

from growbench import launch
from growbench.launch import Limits, local
from growbench.launch.local import Local
from growbench.store import CHECKPOINT, CURVE, DIAGNOSTICS, EVENTS, RECORD, Store
from growbench.tables import status, tables
from growbench.verify import verify

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


@contextmanager
def disk(folder: Path, kib: int) -> Iterator[Callable[[str], object]]:
    """A disk of so many KiB mounted there, and what mounts it anew with other options."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a disk of its own takes the right to mount one: run the tests as root for this one")
    try:
        yield lambda options: subprocess.run(["mount", "-o", f"remount,{options}", str(folder)], check=True)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_fills_up_or_cannot_be_written_keeps_what_is_finished(
    study: Path, toy_run: toy.Run, tmp_path: Path
) -> None:
    chosen = ["--seeds", "1", "--only", "transformer/scratch@0"]
    with disk(tmp_path / "disk", 300) as again:
        out = tmp_path / "disk" / "out"
        for options, reason in (("size=300k", "No space left on device"), ("ro", "Read-only file system")):
            again(options)
            code, stdout, stderr = finished(study, toy_run, out, *chosen)
            assert (code, stdout) == (2, "")
            last = stderr.splitlines()[-1]
            assert last.startswith(f"growbench: {out} cannot be written: ")
            assert reason in last
            left = Store(out).records()
            assert left
            assert toy.unchanged(left, toy_run.records)
        again("rw,size=64m")
        code, stdout, _ = finished(study, toy_run, out, *chosen)
        assert code == 0
        assert f"{len(left)} were there" in stdout
        assert toy.unchanged(Store(out).records(), toy_run.records)


@pytest.mark.parametrize("seed", range(2))
def test_damage_anywhere_is_named_found_by_verify_and_mended_by_the_next_run(
    seed: int, study: Path, toy_run: toy.Run, tmp_path: Path
) -> None:
    out, chance = shutil.copytree(toy_run.out, tmp_path / "out"), random.Random(seed)
    hurt = {}
    for name in (CHECKPOINT, CURVE, DIAGNOSTICS, EVENTS, RECORD):
        having = [key for key, record in toy_run.records.items() if name in (*record.files, RECORD) and key not in hurt]
        key = chance.choice(having)
        hurt[key] = name
        path = Store(out).folder(key) / name
        content = bytearray(path.read_bytes())
        if chance.random() < 0.5:
            del content[chance.randrange(len(content)) :]
        else:
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(content)
    found = str(verify(out, sample=0).wrong)
    assert all(f"{Store(out).folder(key)} is damaged" in found for key in hurt)
    assert tables(out)[2]["stage"].isin(hurt).sum() == 0
    code, stdout, stderr = finished(study, toy_run, out)
    assert code == 0
    assert stdout.startswith(f"{len(hurt)} stages done, {len(toy_run.records) - len(hurt)} were there.")
    assert all(f"{Store(out).folder(key)} is damaged" in stderr for key in hurt)
    assert complete(toy_run, out)
    assert verify(out, sample=0).wrong == []


def test_a_clock_that_was_set_back_changes_no_number(toy_run: toy.Run, tmp_path: Path) -> None:
    out = shutil.copytree(toy_run.out, tmp_path / "out")
    for i, (key, record) in enumerate(toy_run.records.items()):  # what was started last is said to be first
        changed = replace(record, started=f"{2100 - i:04}-01-01T00:00:00.000+00:00")
        (Store(out).folder(key) / RECORD).write_text(changed.to_json())
    results, curves, stages = tables(out)
    wanted = tables(toy_run.out)
    pd.testing.assert_frame_equal(results, wanted[0])
    pd.testing.assert_frame_equal(curves, wanted[1])
    own = ["stage", "kind", "status", "task", "seed", "arms", "tokens", "flops"]
    pd.testing.assert_frame_equal(
        stages[own].sort_values("stage", ignore_index=True), wanted[2][own].sort_values("stage", ignore_index=True)
    )
    assert status(out) | {"out": ""} == status(toy_run.out) | {"out": ""}
    summary = local.run(toy_run.plan, out, workers=1, listener=lambda event: None)
    assert (summary.finished, summary.cached) == (0, len(toy_run.records))


GREEDY = """
from dataclasses import dataclass
import resource, sys, time
from growbench.maps import zero_pad
from growbench.strategy import Strategy

@dataclass(frozen=True, kw_only=True)
class Greedy(Strategy):
    how: str = ""

    def widen(self, axis, old, new, rng):
        return zero_pad(old, new)

    def grow(self, state, shape, probe, rng):
        if self.how == "exit":
            sys.exit("enough")
        while self.how == "hang":
            time.sleep(1)
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, used + 2**26))
        kept = []
        while True:
            kept.append(bytearray(2**22))
"""


def test_a_plugin_that_leaks_memory_or_exits_is_a_row_with_its_reason(tmp_path: Path) -> None:
    greedy = toy.plugin(tmp_path, "greedy", GREEDY)
    arms = [{"name": "greedy", "how": how, "arm": how} for how in ("exit", "leak")]
    plan = toy.plan(tmp_path, plugins=[greedy], strategies=["scratch", *arms])
    summary = local.run(plan, tmp_path / "out", workers=1, listener=lambda event: None)
    records = Store(tmp_path / "out").records().values()
    reasons = {record.label.split(" > ")[1].split()[0]: record.reason for record in records if record.kind == "grow"}
    assert reasons["exit"].startswith("SystemExit: enough (greedy.py, line ")
    assert reasons["leak"].startswith("MemoryError")
    assert summary.failed == 2
    assert summary.finished + summary.failed + summary.blocked == len(plan.stages)
    assert all(record.status == "ok" for record in records if record.kind != "grow")


def test_a_plugin_that_hangs_is_ended_and_is_a_row_with_its_reason(tmp_path: Path) -> None:
    greedy = toy.plugin(tmp_path, "greedy", GREEDY)
    plan = toy.plan(tmp_path, plugins=[greedy], strategies=["scratch", {"name": "greedy", "how": "hang"}])
    limits, started = Limits(silent=15.0), time.monotonic()
    summary = launch.run(plan, tmp_path / "out", Local(workers=1), lambda event: None, limits=limits)
    assert time.monotonic() - started < SECONDS
    records = Store(tmp_path / "out").records().values()
    (bad,) = [record for record in records if record.status != "ok"]
    assert (bad.kind, bad.status) == ("grow", "failed")
    assert bad.reason == "nothing was heard of it for 15 seconds (--stage-timeout), and it was ended"
    assert (summary.failed, summary.finished + summary.blocked + 1) == (1, len(plan.stages))


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
