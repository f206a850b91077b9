"""Worker processes on this machine, each with one thread, each running one stage at a time until none is left.

Workers live as long as the run: importing torch costs seconds, once each. A worker that dies takes only its stage
with it, which is started again twice before it counts as failed; one that ran a third party's strategy is replaced, for
whatever that left in its process would change the stages after it. Workers end when the run's process does.
"""

import contextlib
import heapq
import json
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
from typing import Any

from filelock import FileLock, Timeout

from growbench import provenance
from growbench.launch import Event, Summary
from growbench.plan import Plan
from growbench.store import Record, Stage, Store, write_atomically
from growbench.tables import PLAN, RUN, read_run, refuse_foreign, write_tables

RESTARTS = 2
NOTIFY_SECONDS = 0.5
Progress = Callable[[Event], None]


def run(plan: Plan, out: Path, workers: int, progress: Progress, command: str = "") -> Summary:
    """Run what is left of a plan into `out`, and write its tables.

    ValueError where another run uses the folder, or it holds something else; OSError where it cannot be written.
    """
    try:
        refuse_foreign(out)
        out.mkdir(parents=True, exist_ok=True)
        with FileLock(out / ".lock", timeout=0):
            return _run(plan, out, workers, progress, command)
    except Timeout:
        raise ValueError(f"another run is using {out}: wait for it to end, or give another --out") from None
    except OSError as error:
        raise OSError(f"{out} cannot be written: {error}; what is finished stays, and the same run goes on") from error


def _run(plan: Plan, out: Path, workers: int, progress: Progress, command: str) -> Summary:
    store = Store(out)
    store.sweep()
    _write_json(out / PLAN, plan.to_dict())
    queue = _Queue(plan, store, progress)
    before, interrupted = read_run(out), False
    if queue.ready or before is None:
        about = provenance.describe(workers=workers, command=command)
    else:  # the numbers are those of an earlier run, the plan is this one's
        about = before | {"command": command}
    _write_json(out / RUN, about)
    try:
        if queue.ready:
            _Pool(plan, out, min(workers, len(queue.open))).drain(queue)
    except KeyboardInterrupt:
        interrupted = True
    if not about["finished"]:
        _write_json(out / RUN, about | {"finished": provenance.now()})
    write_tables(out)
    return Summary(
        finished=queue.finished,
        cached=queue.cached,
        failed=queue.failed,
        blocked=queue.blocked,
        interrupted=interrupted,
    )


def _write_json(path: Path, value: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False))


class _Queue:
    """Which stages are ready, which wait, and how far the run has come."""

    def __init__(self, plan: Plan, store: Store, progress: Progress) -> None:
        self.plan, self._progress = plan, progress
        self.finished = self.cached = self.failed = self.blocked = self._tokens = 0
        self.ready: list[tuple[float, str]] = []
        self.children: dict[str, list[str]] = {}
        for key, stage in plan.stages.items():
            self.children.setdefault(stage.parent or "", []).append(key)
        self._left: dict[str, float] = {}
        for key, stage in reversed(list(plan.stages.items())):
            self._left[key] = stage.flops + max((self._left[c] for c in self.children.get(key, ())), default=0.0)
        found = {key: self._find(store, key) for key in plan.stages}
        self.open = {key for key, record in found.items() if record is None}
        for record in found.values():
            if record is not None:
                self._settle(record, cached=True)
        for key in list(self.open):
            parent = found.get(plan.stages[key].parent or "")
            if plan.stages[key].parent is None or (parent is not None and parent.status == "ok"):
                self._offer(key)

    def _find(self, store: Store, key: str) -> Record | None:
        """A stage's record if it need not run; a failed one runs again, and so does a damaged one, which is named."""
        try:
            record = store.read(key)
        except ValueError as error:
            self.report("log", key, f"{error}; it is removed and computed again")
            store.discard(key)
            return None
        return None if record is None or record.status == "failed" else record

    def _offer(self, key: str) -> None:
        heapq.heappush(self.ready, (-self._left[key], key))

    def take(self) -> Stage:
        """The ready stage with most work behind it."""
        return self.plan.stages[heapq.heappop(self.ready)[1]]

    def settle(self, record: Record) -> None:
        """A stage has ended: its children become ready, or are given up."""
        self.open.discard(record.key)
        self._settle(record, cached=False)
        for child in self.children.get(record.key, ()):
            if record.status == "ok" and child in self.open:
                self._offer(child)

    def _settle(self, record: Record, *, cached: bool) -> None:
        self._tokens += self.plan.stages[record.key].tokens
        if record.status == "ok":
            self.cached += cached
            self.finished += not cached
            self.report("cached" if cached else "finished", record.key)
        else:
            self.failed += 1
            given_up = self._give_up(record.key)
            also = f"; {given_up} stages that build on it are not run" if given_up else ""
            self.report("failed", record.key, f"{record.status}: {record.reason}{also}")

    def _give_up(self, key: str) -> int:
        below = [child for child in self.children.get(key, ()) if child in self.open]
        self.open.difference_update(below)
        self.blocked += len(below)
        self._tokens += sum(self.plan.stages[child].tokens for child in below)
        return len(below) + sum(self._give_up(child) for child in below)

    def report(self, kind: str, key: str, text: str = "", tokens: int = 0) -> None:
        stages = self.plan.stages
        self._progress(
            Event(
                kind=kind,  # type: ignore[arg-type]
                stage=key,
                label=stages[key].label,
                done=self.finished + self.cached + self.failed + self.blocked,
                total=len(stages),
                tokens_done=self._tokens + tokens,
                tokens_total=sum(stage.tokens for stage in stages.values()),
                text=text,
            )
        )


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    stage: Stage | None = None
    tokens: int = 0


@dataclass
class _Pool:
    """Workers and what they are at."""

    plan: Plan
    out: Path
    size: int
    workers: list[_Worker] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)

    def drain(self, queue: _Queue) -> None:
        """Run stages until none is ready and none is running."""
        try:
            for _ in range(self.size):
                self._hire()
            while True:
                for worker in self.workers:
                    if worker.stage is None and queue.ready:
                        self._assign(worker, queue.take(), queue)
                busy = {worker.pipe: worker for worker in self.workers if worker.stage}
                if not busy:
                    return
                for pipe in wait(list(busy)):
                    self._hear(busy[pipe], queue)  # type: ignore[index]
        finally:
            for worker in self.workers:
                worker.process.kill()
                worker.process.join()

    def _hire(self) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        folders = self.out.absolute(), tuple(path.absolute() for path in self.plan.plugin_paths)
        process = context.Process(target=_work, args=(theirs, *folders, self.plan.cache.absolute()), daemon=True)
        with _uninterrupted():
            process.start()
            worker = _Worker(process=process, pipe=ours)
            self.workers.append(worker)
        theirs.close()
        return worker

    def _assign(self, worker: _Worker, stage: Stage, queue: _Queue) -> None:
        worker.stage, worker.tokens = stage, 0
        with contextlib.suppress(OSError):  # a dead worker is noticed when it is heard
            worker.pipe.send((stage, self.restarts.get(stage.key, 0)))
        queue.report("started", stage.key, tokens=self._in_flight())

    def _in_flight(self) -> int:
        return sum(worker.tokens for worker in self.workers if worker.stage)

    def _hear(self, worker: _Worker, queue: _Queue) -> None:
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
            case _:
                worker.tokens = message
                queue.report("progress", stage.key, tokens=self._in_flight())

    def _dismiss(self, worker: _Worker) -> None:
        self.workers.remove(worker)
        worker.process.kill()
        worker.process.join()
        worker.pipe.close()

    def _bury(self, worker: _Worker, stage: Stage, queue: _Queue) -> None:
        """A worker died: replace it, and start its stage again unless that has been tried often enough."""
        worker.process.join()
        how = _how(worker.process.exitcode)
        self.workers.remove(worker)
        replacement = self._hire()
        tried = self.restarts[stage.key] = self.restarts.get(stage.key, 0) + 1
        if tried <= RESTARTS:
            queue.report("log", stage.key, f"its worker {how}; started again ({tried} of {RESTARTS})")
            self._assign(replacement, stage, queue)
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        reason = f"its worker {how}, {tried} times"
        record = Record.of(stage, status="failed", reason=reason, started=now, restarts=RESTARTS)
        queue.settle(Store(self.out).write(record))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back until the end, and keep it from processes started meanwhile for good.

    A terminal sends it to the whole group; the run's process decides what becomes of its workers. They inherit the mask
    from their first instruction; the handler is for other threads of this process, which have no mask.
    """
    resource_tracker.ensure_running()  # a first start would start it too, and lift the mask with that
    held: list[int] = []
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, lambda number, frame: held.append(number)) if main else None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
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


def _work(pipe: Connection, out: Path, plugin_paths: tuple[Path, ...], cache: Path) -> None:
    """A worker's life: take a stage, run it, say what came out; end when the run's process has ended."""
    os.dup2(2, 1)  # the command's stdout is for its result: whatever a plugin prints is no part of that
    sys.stdout = sys.stderr
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    from growbench.train import execute

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    store, last = Store(out), 0.0

    def notify(tokens: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= NOTIFY_SECONDS:
            last = now
            pipe.send(tokens)

    while True:
        stage, restarts = pipe.recv()
        try:
            pipe.send(execute(stage, store, plugin_paths, cache, notify, restarts))
        except OSError as error:  # the folder cannot be written: no other stage could be either
            pipe.send(error)


def _end_with_parent() -> None:
    """End at once when the run's process has, whatever the stage is at: the folder may be another run's by then."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
