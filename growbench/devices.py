"""A stage on several devices, of one machine or of several: a process for each, of which the first writes.

Each process has the whole model (Fabric's DDP) and takes its share of every batch, so that batches and their order are
those of one process; `execute` starts the processes of its machine, follows them, and ends them together.

    execute -> process 0, 1, ...     one line of JSON, then "stop"; the end of the stream ends the process
    process 0 -> execute             {"tokens": n} ... {"ended": how, "text": what}
"""

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from growbench import progress, train
from growbench.store import Record, Stage, Store, Unwritable
from growbench.train import KEEP_SECONDS, Notify, Stop, Stopped

HOST = "127.0.0.1"
POLL_SECONDS = 0.2
GRACE_SECONDS = 5.0
"""How long the other processes of a stage have to end after the first."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One of the machines that share a stage's devices equally: its number, of how many, and where the first is met.

    port: 0 lets the system choose, which suits one machine alone.
    """

    number: int = 0
    count: int = 1
    address: str = HOST
    port: int = 0


def execute(
    stage: Stage,
    store: Store,
    plugin_paths: tuple[Path, ...],
    cache: Path,
    notify: Notify,
    restarts: int = 0,
    *,
    keep_every: float = KEEP_SECONDS,
    stop: Stop = lambda: False,
    node: Node = Node(),
) -> Record | None:
    """Run one stage as `train.execute` does: here, or in a process for each of its devices where it has several.

    On several machines it is called on each, over one shared folder; the record is that of the first, the others have
    None. ValueError where the machines cannot have equally many devices.
    """
    if stage.devices % node.count:
        raise ValueError(f"{stage.devices} devices cannot be spread equally over {node.count} machines")
    if stage.devices == 1:
        return train.execute(stage, store, plugin_paths, cache, notify, restarts, keep_every=keep_every, stop=stop)
    job = {
        "stage": asdict(stage),
        "out": str(store.out.absolute()),
        "plugin_paths": [str(path.absolute()) for path in plugin_paths],
        "cache": str(cache.absolute()),
        "restarts": restarts,
        "keep_every": keep_every,
        "machines": node.count,
    }
    started = progress.now()
    with _Ranks(count=stage.devices // node.count, node=node, job=job) as ranks:
        ended = ranks.follow(notify, stop)
    if node.number:
        return None  # of what went wrong here the first machine hears by its connection
    match ended.get("ended"):
        case "stopped":
            raise Stopped(ended["text"])
        case "unwritable":
            raise Unwritable(ended["text"])
    record = store.read(stage.key)
    if record is None or (ranks.trouble and record.status == "failed"):
        # Of another process' end the first knows a closed connection alone, which is no reason.
        reason = ranks.trouble or "its processes ended without a word"
        record = Record.of(stage, status="failed", reason=reason, started=started, restarts=restarts)
        record = store.write(record)
    return record


@dataclass(kw_only=True)
class _Ranks:
    """The processes of one stage on a machine; trouble: why one of them ended badly, "" while none has."""

    count: int
    node: Node
    job: Mapping[str, Any]
    processes: list["subprocess.Popen[str]"] = field(default_factory=list)
    listeners: list[threading.Thread] = field(default_factory=list)
    said: "queue.Queue[tuple[int, Mapping[str, Any] | None]]" = field(default_factory=queue.Queue)
    trouble: str = ""

    def __enter__(self) -> "_Ranks":
        # Held here, as torchrun's agent does, so that no port is chosen that another could take meanwhile.
        where = (self.node.address, self.node.port)
        self._meeting = None if self.node.number else TCPStore(*where, is_master=True, wait_for_workers=False)
        try:
            for rank in range(self.count):
                self._start(rank)
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self, rank: int) -> None:
        place = {
            "LOCAL_RANK": str(rank),
            "NODE_RANK": str(self.node.number),
            "MASTER_ADDR": self.node.address,
            "MASTER_PORT": str(self._meeting.port if self._meeting else self.node.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS is not deterministic, and torch refuses to be
        }
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "growbench.devices"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={"OMP_NUM_THREADS": "1"} | os.environ | place,
        )
        self.processes.append(process)
        self.listeners.append(threading.Thread(target=self._listen, args=(rank, process.stdout), daemon=True))
        self.listeners[-1].start()
        self._tell(process, json.dumps(self.job))

    def _listen(self, rank: int, lines: IO[str]) -> None:
        for line in lines:
            self.said.put((rank, json.loads(line)))
        self.said.put((rank, None))

    def _tell(self, process: "subprocess.Popen[str]", line: str) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):  # a process that has ended is noticed when it is heard
            process.stdin.write(line + "\n")
            process.stdin.flush()

    def follow(self, notify: Notify, stop: Stop) -> Mapping[str, Any]:
        """Pass on what the first process says, and the word to stop, until all have ended; its last words."""
        last: Mapping[str, Any] = {}
        left, deadline, told = set(range(self.count)), float("inf"), False
        # What is heard first is the cause: of one process' end the others hear by a connection that closes.
        while left and time.monotonic() < deadline and not self.trouble:
            if not told and stop():
                told = True
                self._tell(self.processes[0], "stop")
            for rank, message in self._heard():
                if message is None:
                    left.discard(rank)
                    self.trouble = self.trouble if last else _how(rank, self.processes[rank].wait())
                elif "tokens" in message:
                    notify(message["tokens"])
                elif last:
                    continue
                elif message["ended"] != "error":
                    last, deadline = message, time.monotonic() + GRACE_SECONDS
                else:
                    self.trouble = f"{message['text']} (device {rank})"
        return last

    def _heard(self) -> Iterator[tuple[int, Mapping[str, Any] | None]]:
        with contextlib.suppress(queue.Empty):
            yield self.said.get(timeout=POLL_SECONDS)

    def __exit__(self, *error: object) -> None:
        for process, listener in zip(self.processes, self.listeners, strict=True):
            process.kill()
            process.wait()
            listener.join()
            for stream in (process.stdin, process.stdout):
                with contextlib.suppress(OSError):  # a line that it no longer took
                    assert stream is not None
                    stream.close()


def _how(rank: int, code: int) -> str:
    """How a process ended, "" where that was well."""
    if not code:
        return ""
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"the process of device {rank} {how}"


# --- the life of one process ----------------------------------------------------------------------------------------


def _main() -> None:
    """Take one process' part in a stage: the first executes it, the others assist."""
    said = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a plugin prints is no message

    def say(**message: Any) -> None:
        said.write(json.dumps(message) + "\n")
        said.flush()

    job = json.loads(sys.stdin.readline())
    stopping = threading.Event()
    threading.Thread(target=_hear, args=(stopping,), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)  # terminals and schedulers send them to all; the parent decides
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    stage, store = Stage(**job["stage"]), Store(Path(job["out"]))
    site = stage, store, tuple(Path(path) for path in job["plugin_paths"]), Path(job["cache"])
    first = os.environ["NODE_RANK"] == os.environ["LOCAL_RANK"] == "0"
    try:
        if first:
            train.execute(
                *site,
                lambda tokens: say(tokens=tokens),
                job["restarts"],
                keep_every=job["keep_every"],
                stop=stopping.is_set,
                machines=job["machines"],
            )
            say(ended="recorded")
        else:
            train.assist(*site, stop=stopping.is_set, machines=job["machines"])
    except Stopped as error:
        if first:
            say(ended="stopped", text=str(error))
    except OSError as error:
        say(ended="unwritable" if first else "error", text=str(error))
        os._exit(1)
    except Exception as error:
        say(ended="error", text=f"{type(error).__name__}: {error}")
        raise
    os._exit(0)  # without waiting for threads of the process group whose other side may be gone


def _hear(stopping: threading.Event) -> None:
    """Set the flag where the parent says so; end at once when it has ended."""
    for line in sys.stdin:
        if line.strip() == "stop":
            stopping.set()
    os._exit(1)


if __name__ == "__main__":
    _main()
