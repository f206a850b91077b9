"""Worker processes on this machine, each with one thread, each running one stage at a time until none is left.

Workers live as long as the run: importing torch costs seconds, once each. A worker that dies takes only its stage
with it, which is started again twice before it counts as failed; one that ran a third party's strategy is replaced, for
whatever that left in its process would change the stages after it. Workers end when the run's process does.

Where stages need accelerators, each worker has as many as a stage needs, its own, and there are as many workers as that
allows.
"""

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING

from growbench.launch import Launcher, Listener, Site, Summary, gpus
from growbench.launch import run as run_with
from growbench.launch._queue import Queue
from growbench.store import Record, Stage

if TYPE_CHECKING:
    from growbench.plan import Plan

RESTARTS = 2
NOTIFY_SECONDS = 0.5
VISIBLE = "CUDA_VISIBLE_DEVICES"
STOPS = (signal.SIGUSR2, signal.SIGTERM)
"""Ask a worker to stop at the next step."""


@dataclass(frozen=True, kw_only=True)
class Local(Launcher):
    """Worker processes on this machine, at most one per core if not given, each with one thread."""

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
    """Run the queue's stages in so many processes until none is ready, or until `stop` says so.

    ValueError where they need more accelerators than there are.
    """
    if queue.ready:
        machines = site.node.count if site.node else 1
        each = max(-(-gpus(stage) // machines) for stage in queue.waiting())
        own = places(min(workers, len(queue.open)), each, _visible() if each else ())
        _Pool(site, own, stop).drain(queue)


def places(workers: int, each: int, found: Sequence[str]) -> list[dict[str, str]]:
    """What each worker's environment has of its own: with `each` accelerators to a stage, which of those it sees.

    >>> places(4, 2, ["0", "1", "2", "3", "4"])
    [{'CUDA_VISIBLE_DEVICES': '0,1'}, {'CUDA_VISIBLE_DEVICES': '2,3'}]
    """
    if not each:
        return [{} for _ in range(workers)]
    if each > len(found):
        raise ValueError(
            f"a stage needs {each} CUDA device{'s' * (each > 1)} and this machine has {len(found)}: give --devices "
            f"{max(len(found), 1)} or --accelerator cpu, or run it where they are with --launcher"
        )
    starts = range(0, len(found) - each + 1, each)
    return [{VISIBLE: ",".join(found[start : start + each])} for start in starts][:workers]


def _visible() -> list[str]:
    """The accelerators that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch  # heavy, and no run on processors needs it here

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get(VISIBLE, "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    place: Mapping[str, str]
    stage: Stage | None = None
    tokens: int = 0
    heard: float = math.inf
    """When its stage said something last; it has not begun while this is infinite."""


@dataclass
class _Pool:
    """Workers and what they are at."""

    site: Site
    places: Sequence[Mapping[str, str]]
    stop: Callable[[], bool]
    workers: list[_Worker] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    stopped: bool = False

    def drain(self, queue: Queue) -> None:
        """Run stages until none is ready and none is running; asked to stop, until those that run have stopped."""
        try:
            for place in self.places:
                self._hire(place)
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
                self._end_silent(queue)
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

    def _end_silent(self, queue: Queue) -> None:
        """Give up the stages that have said nothing for too long: again they would do the same."""
        for worker in list(self.workers):
            stage, limit = worker.stage, self.site.limits.silent
            if stage is None or limit is None or time.monotonic() - worker.heard <= limit or worker.pipe.poll():
                continue
            self._replace(worker)
            reason = f"nothing was heard of it for {limit:g} seconds (--stage-timeout), and it was ended"
            self._fail(stage, reason, queue)

    def _hire(self, place: Mapping[str, str]) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self.site, place), daemon=True)
        with _uninterrupted():
            process.start()
            worker = _Worker(process=process, pipe=ours, place=place)
            self.workers.append(worker)
        theirs.close()
        return worker

    def _assign(self, worker: _Worker, stage: Stage, queue: Queue) -> None:
        worker.stage, worker.tokens, worker.heard = stage, 0, math.inf
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
        worker.heard = time.monotonic()
        match message:
            case Record():
                worker.stage = None
                if stage.isolate:
                    self._replace(worker)
                queue.settle(message)
            case OSError():
                raise message
            case None:
                worker.stage = None
                if not self.stopped and not self.stop():  # somebody else asked it to
                    self._assign(self._replace(worker), stage, queue)
            case _:
                worker.tokens = message
                queue.report("progress", stage.key, tokens=self._in_flight())

    def _replace(self, worker: _Worker) -> _Worker:
        """End a worker, and hire another for its place."""
        self.workers.remove(worker)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()
        return self._hire(worker.place)

    def _bury(self, worker: _Worker, stage: Stage, queue: Queue) -> None:
        """A worker died: replace it, and start its stage again unless that has been tried often enough."""
        worker.process.join()
        how = _how(worker.process.exitcode)
        self.workers.remove(worker)
        if self.stopped:
            return
        replacement = self._hire(worker.place)
        tried = self.restarts[stage.key] = self.restarts.get(stage.key, 0) + 1
        if tried <= RESTARTS:
            queue.report("log", stage.key, f"its worker {how}; started again ({tried} of {RESTARTS})")
            self._assign(replacement, stage, queue)
            return
        self._fail(stage, f"its worker {how}, {tried} times", queue, restarts=RESTARTS)

    def _fail(self, stage: Stage, reason: str, queue: Queue, restarts: int = 0) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = Record.of(stage, status="failed", reason=reason, started=now, restarts=restarts)
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


def _work(pipe: Connection, site: Site, place: Mapping[str, str]) -> None:
    """A worker's life: take a stage, run it, say what came out; end when the run's process has ended."""
    os.environ.update(place)  # before anything looks for accelerators
    os.dup2(2, 1)  # the command's stdout is for its result: whatever a plugin prints is no part of that
    sys.stdout = sys.stderr
    threading.Thread(target=_end_with_parent, daemon=True).start()
    stopping = _stopping()
    import torch

    from growbench.devices import Node, execute
    from growbench.launch._nodes import meeting
    from growbench.train import KEEP_SECONDS, Stopped

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    last = 0.0

    def notify(tokens: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= NOTIFY_SECONDS:
            last = now
            pipe.send(tokens)

    where, keep_every = (site.store, site.plugin_paths, site.cache), site.limits.keep_every
    keeping = KEEP_SECONDS if keep_every is None else keep_every
    while True:
        stage, restarts = pipe.recv()
        pipe.send(0)
        try:
            node = meeting(site.node or Node(), stage)
            pipe.send(execute(stage, *where, notify, restarts, keep_every=keeping, stop=stopping, node=node))
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
