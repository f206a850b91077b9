"""A real Ray cluster on this machine: a whole study through it, and one whose workers are killed, compared with local.

Skipped where Ray is not installed.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp

import pytest
import toy

from growbench.store import Store

pytestmark = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'growbench[ray]'"
)  # it is not imported here: the commands do that

BIN = Path(sys.executable).parent
SECONDS = 600
"""Longer than any of this takes on a busy machine."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster of one machine, which only these tests' commands join."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = mkdtemp(prefix="ray", dir="/tmp")  # Ray's sockets lie in it, whose paths must be short
    limits = ["--num-cpus", "2", "--memory", str(2**33), "--object-store-memory", str(10**8)]
    words = ["start", "--head", "--block", "--node-ip-address", "127.0.0.1", "--port", str(port), *limits]
    env = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    head = subprocess.Popen(
        [BIN / "ray", *words, "--include-dashboard=false", "--temp-dir", folder],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, start_new_session=True,
    )  # fmt: skip
    try:
        until(lambda: answers(port), head)
        yield f"127.0.0.1:{port}"
    finally:
        head.terminate()
        head.wait(timeout=60)
        shutil.rmtree(folder, ignore_errors=True)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(true: Callable[[], object], process: "subprocess.Popen[str] | subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def command(study: Path, plugin: Path, out: Path, address: str) -> "subprocess.Popen[str]":
    words = [
        "run",
        str(study),
        "--out",
        str(out),
        "--plugin",
        str(plugin),
        "--launcher",
        "ray",
        "--ray-address",
        address,
    ]
    return subprocess.Popen([BIN / "growbench", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def workers(label: str) -> list[int]:
    """Ray's workers that run a stage whose label has this in it: Ray names the process after its task."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            title = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if title.startswith("ray::") and label in title:
            found.append(int(entry.name))
    return found


def test_a_study_on_ray_comes_to_the_numbers_of_the_local_launcher(cluster: str, tmp_path: Path) -> None:
    plugin = toy.plugin(tmp_path, "probing", toy.PROBING)
    plan = toy.plan(tmp_path, plugins=[plugin], strategies=["scratch", "zero_pad", "probing"])
    expected = toy.work(plan, tmp_path / "expected")
    study, out = tmp_path / "toy.yaml", tmp_path / "out"
    study.write_text(plan.study.to_yaml(), encoding="utf-8")
    with command(study, plugin, out, cluster) as process:
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, stderr
    assert stdout.splitlines() == [f"{len(plan.stages)} stages done, 0 were there.", str(out / "report.html")]
    records = Store(out).records()
    assert records.keys() == expected.keys()
    assert toy.unchanged(records, expected)


HANGING = toy.PROBING.replace("growth = super()", "import time; time.sleep(600); growth = super()")


def test_a_worker_that_is_killed_each_time_is_a_row_and_ctrl_c_ends_the_rest(cluster: str, tmp_path: Path) -> None:
    plugin = toy.plugin(tmp_path, "probing", HANGING)
    plan = toy.plan(tmp_path, plugins=[plugin], strategies=["scratch", "probing"])
    study, out = tmp_path / "toy.yaml", tmp_path / "out"
    study.write_text(plan.study.to_yaml(), encoding="utf-8")
    killed: set[int] = set()
    with command(study, plugin, out, cluster) as process:
        for _ in range(3):
            until(lambda: set(workers("probing grow")) - killed, process)
            time.sleep(1)
            for pid in set(workers("probing grow")) - killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
        stdout, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 1, stderr
    assert "1 failed" in stdout
    records = Store(out).records().values()
    (bad,) = [record for record in records if record.status != "ok"]
    assert (bad.kind, bad.restarts) == ("grow", 2)
    assert bad.reason.startswith("its Ray worker died, 3 times: ")
    assert any(record.kind == "cooldown" for record in records)  # the rest went on

    with command(study, plugin, out, cluster) as process:
        until(lambda: workers("probing grow"), process)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=SECONDS)
        assert process.returncode == 130
        assert stderr.splitlines()[-1].startswith("Interrupted: finished stages stay in ")
    assert not workers("probing grow")
    assert list(Store(out).records().values()) == list(records)
