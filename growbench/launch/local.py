"""Worker processes on this machine, each with one thread, each running one stage at a time until none is left.

Workers live as long as the run: importing torch costs seconds, once each. A worker that dies takes only its stage
with it, which is started again twice before it counts as failed; one that ran a third party's strategy is replaced, for
whatever that left in its process would change the stages after it. Workers end when the run's process does.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from growbench.launch import Launcher, Listener, Site, Summary
from growbench.launch import run as run_with
from growbench.launch._queue import Queue
from growbench.store import Record, Stage

if TYPE_CHECKING:
    from growbench.plan import Plan

RESTARTS = 2
NOTIFY_SECONDS = 0.5
STOPS = (signal.SIGUSR2, signal.SIGTERM)
"""Ask a worker to stop at the next step."""


@dataclass(frozen=True, kw_only=True)
class Local(Launcher):
    """Worker processes on this machine, one per core if not given, each with one thread."""

    workers: int | None = None

    def __post_init__(self) -> None:
        if self.workers is None:
            object.__setattr__(self, "workers", _cores())
        elif self.workers < 1:
            raise ValueError(f"workers must be 1 or more, not {self.workers}")

    @property
    def processes(self) -> int:
        assert self.workers is not None
        return self.workers

    def launch(self, queue: Queue, site: Site) -> None:
        drain(queue, site, self.processes)


def run(plan: "Plan", out: Path, workers: int, listener: Listener, command: str = "") -> Summary:
    """Run what is left of a plan into `out` with so many workers, and write its tables; errors as `launch.run`."""
    return run_with(plan, out, Local(workers=workers), listener, command)


def drain(queue: Queue, site: Site, workers: int, stop: Callable[[], bool] = lambda: False) -> None:
    """Run the queue's stages in so many processes until none is ready, or until `stop` says so."""
    if queue.ready:
        _Pool(site, min(workers, len(queue.open)), stop).drain(queue)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    stage: Stage | None = None
    tokens: int = 0


@dataclass
class _Pool:
    """Workers and what they are at."""

    site: Site
    size: int
    stop: Callable[[], bool]
    workers: list[_Worker] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    stopped: bool = False

    def drain(self, queue: Queue) -> None:
        """Run stages until none is ready and none is running; asked to stop, until those that run have stopped."""
        try:
            for _ in range(self.size):
                self._hire()
            while True:
                if not self.stopped and self.stop():
                    self._ask_to_stop()
                for worker in self.workers:
                    if worker.stage is None and queue.ready and not self.stopped:
                        self._assign(worker, queue.take(), queue)
                busy = {worker.pipe: worker for worker in self.workers if worker.stage}
                if not busy:
                    return
                for pipe in wait(list(busy), timeout=NOTIFY_SECONDS):
                    self._hear(busy[pipe], queue)  # type: ignore[index]
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()

    def _ask_to_stop(self) -> None:
        self.stopped = True
        for worker in self.workers:
            if worker.process.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker.process.pid, STOPS[0])

    def _hire(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self.site), daemon=True)
        with _uninterrupted():
            process.start()
            worker = _Worker(process=process, pipe=ours)
            self.workers.append(worker)
        theirs.close()
        return worker

    def _assign(self, worker: _Worker, stage: Stage, queue: Queue) -> None:
        worker.stage, worker.tokens = stage, 0
        with contextlib.suppress(OSError):  # a dead worker is noticed when it is heard
            worker.pipe.send((stage, self.restarts.get(stage.key, 0)))
        queue.report("started", stage.key, tokens=self._in_flight())

    def _in_flight(self) -> int:
        return sum(worker.tokens for worker in self.workers if worker.stage)

    def _hear(self, worker: _Worker, queue: Queue) -> None:
        stage = worker.stage
        assert stage is not None
        try:
            message = worker.pipe.recv()
        except (EOFError, OSError):
            self._bury(worker, stage, queue)
            return
        match message:
            case Record():
                worker.stage = None
                if stage.isolate:
                    self._dismiss(worker)
                    self._hire()
                queue.settle(message)
            case OSError():
                raise message
            case None:
                worker.stage = None
                if not self.stopped and not self.stop():  # somebody else asked it to
                    self._dismiss(worker)
                    self._assign(self._hire(), stage, queue)
            case _:
                worker.tokens = message
                queue.report("progress", stage.key, tokens=self._in_flight())

    def _dismiss(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()

    def _bury(self, worker: _Worker, stage: Stage, queue: Queue) -> None:
        """A worker died: replace it, and start its stage again unless that has been tried often enough."""
        worker.process.join()
        how = _how(worker.process.exitcode)
        self.workers.remove(worker)
        if self.stopped:
            return
        replacement = self._hire()
        tried = self.restarts[stage.key] = self.restarts.get(stage.key, 0) + 1
        if tried <= RESTARTS:
            queue.report("log", stage.key, f"its worker {how}; started again ({tried} of {RESTARTS})")
            self._assign(replacement, stage, queue)
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        reason = f"its worker {how}, {tried} times"
        record = Record.of(stage, status="failed", reason=reason, started=now, restarts=RESTARTS)
        queue.settle(self.site.store.write(record))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the end, and keep it from processes started meanwhile for good.

    A terminal sends it to the whole group; the run's process decides what becomes of its workers. They inherit the mask
    from their first instruction; the handler is for other threads of this process, which have no mask. Requests to
    stop are held back likewise: a worker would die of them before it knows better.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # also in the tracker, for all that it does not lift itself
    resource_tracker.ensure_running()  # a first start would start it too, and lift the mask with that
    held: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number)) if main else None
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *STOPS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if main:
            signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _work(pipe: Connection, site: Site) -> None:
    """A worker's life: take a stage, run it, say what came out; end when the run's process has ended."""
    os.dup2(2, 1)  # the command's stdout is for its result: whatever a plugin prints is no part of that
    sys.stdout = sys.stderr
    threading.Thread(target=_end_with_parent, daemon=True).start()
    stopping = _stopping()
    import torch

    from growbench.devices import execute
    from growbench.train import Stopped

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    last = 0.0

    def notify(tokens: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= NOTIFY_SECONDS:
            last = now
            pipe.send(tokens)

    while True:
        stage, restarts = pipe.recv()
        try:
            pipe.send(execute(stage, site.store, site.plugin_paths, site.cache, notify, restarts, stop=stopping))
        except Stopped:
            pipe.send(None)
        except OSError as error:  # the folder cannot be written: no other stage could be either
            pipe.send(error)


def _stopping() -> Callable[[], bool]:
    """Whether this process was asked to stop; only that: what a stage came to is kept at its next step."""
    asked: list[int] = []
    for number in STOPS:
        signal.signal(number, lambda number, frame: asked.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    return lambda: bool(asked)


def _end_with_parent() -> None:
    """End at once when the run's process has, whatever the stage is at: the folder may be another run's by then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
