"""Where numbers come from: versions, git state and hardware of a run."""

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from growbench import __version__

PACKAGES = ("torch", "lightning", "torchmetrics", "numpy", "pandas", "scipy", "seaborn", "safetensors", "pydantic")

_NAMES = (
    "growbench", "git_sha", "git_dirty", "command", "python", "platform", "cpu", "threads", "workers", "device",
    "started", "finished",
)  # fmt: skip
UNKNOWN: dict[str, Any] = dict.fromkeys(_NAMES) | {"packages": {}}
"""What `describe` says, where nothing was recorded."""


def now() -> str:
    """The time, to a second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe(*, workers: int, command: str, device: str) -> dict[str, Any]:
    """What is known as a run starts: versions, hardware, command, and git state of growbench's own checkout.

    device: what stages train on, which need not be of this machine. git_sha is empty for an installed release, and
    finished None until the run has ended.
    """
    return {
        "growbench": __version__,
        "git_sha": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain")),
        "command": command,
        "packages": {name: _version(name) for name in PACKAGES},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpu": cpu(),
        "threads": 1,
        "workers": workers,
        "device": device,
        "started": now(),
        "finished": None,
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _git(*words: str) -> str:
    root = Path(__file__).parent.parent
    if not (root / ".git").exists():
        return ""
    try:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def cpu() -> str:
    """The processor's name as the system states it, and how many."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} x {names[0] if names else platform.processor() or platform.machine()}"
