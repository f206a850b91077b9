"""A Ray cluster, Kubernetes and clouds among them: a task for each stage, given to Ray when its parent has ended.

The command stays, for a run on Ray lasts as long as it. Ray decides where a task runs, by the processors, accelerators
and memory that its stage needs; all machines see the run's folder under one path, and the stage folders there are the
only truth: what a task returns is not looked at. A task whose worker dies is given to Ray again twice, and goes on from
where its stage was kept; then it is a row with its reason.

    DIR/launch/events/    what each worker reports, JSON lines
"""

import logging
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import growbench
from growbench.launch import Launcher, Site, _events, needs
from growbench.launch._queue import Queue
from growbench.launch.local import RESTARTS
from growbench.store import Record, Stage

LOOK_SECONDS = 0.5
GRACE_SECONDS = 30.0
"""How long cancelled tasks have to end."""
AT_A_TIME = 1000
"""Tasks that Ray has at most."""


@dataclass(frozen=True, kw_only=True)
class Ray(Launcher):
    """A Ray cluster, a task for each stage; all its machines see the folder of the run under one path.

    address: as ray.init takes it; if not given, the cluster that runs, or else one on this machine for as long as this.
    """

    address: str | None = None

    def __post_init__(self) -> None:
        _ray()

    def launch(self, queue: Queue, site: Site) -> None:
        _events.clear(site.root)
        with _connected(self.address):
            _Tasks(queue, site).run()


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError("the launcher ray needs Ray: pip install 'growbench[ray]'") from None
    return ray


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """Meanwhile, a driver of the cluster; its workers find growbench where this process does."""
    ray = _ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    paths = [str(Path(growbench.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1", "OMP_NUM_THREADS": "1"}
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, runtime_env={"env_vars": env})
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        raise ValueError(
            f"no Ray cluster can be joined at {address or 'this machine'}: {said}; start one with `ray start --head`, "
            "or check --ray-address"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


class _Tasks:
    """Stages that Ray has, and what becomes of them."""

    def __init__(self, queue: Queue, site: Site) -> None:
        self.ray, self.queue, self.site = _ray(), queue, site
        self.running: dict[Any, Stage] = {}
        self.tried: dict[str, int] = {}
        self.heard: dict[str, float] = {}
        self.told = _events.Events(site.root)
        self.largest = max((node["Resources"].get("memory", 0.0) for node in self.ray.nodes()), default=0.0)
        # A worker that ran a third party's strategy is not trusted with another stage.
        self.shared, self.own = (self.ray.remote(max_calls=calls, max_retries=0)(_execute) for calls in (0, 1))

    def run(self) -> None:
        """Give stages to Ray as they become ready, until all have ended; cancel them when this is interrupted."""
        try:
            self._warn()
            while True:
                while self.queue.ready and len(self.running) < AT_A_TIME:
                    self._start(self.queue.take())
                if not self.running:
                    return
                ended, _ = self.ray.wait([*self.running], num_returns=1, timeout=LOOK_SECONDS)
                self.heard |= dict.fromkeys(self.told.pass_on(self.queue), time.monotonic())
                for task in ended:
                    self._settle(task, self.running.pop(task))
                self._end_silent()
        finally:
            self._cancel()

    def _warn(self) -> None:
        """Say what the cluster lacks: it may grow."""
        total = self.ray.cluster_resources()
        for stage in self.queue.waiting():
            need = needs(stage, self.queue.stages, 1.0)
            for name, wanted in (("CPU", need.cpus), ("GPU", need.gpus)):
                if wanted > total.get(name, 0):
                    lacking = f"it needs {wanted} of {name}, and the Ray cluster has {total.get(name, 0):g}: it waits"
                    self.queue.report("log", stage.key, lacking)
                    return

    def _start(self, stage: Stage) -> None:
        need = needs(stage, self.queue.stages, 1.0)
        memory = min((need.memory_gb or 0) * 2**30, self.largest)  # an estimate keeps no stage from a small machine
        function = self.own if stage.isolate else self.shared
        task = function.options(num_cpus=need.cpus, num_gpus=need.gpus, memory=int(memory), name=stage.label)
        self.running[task.remote(stage, self.site, self.tried.get(stage.key, 0))] = stage

    def _settle(self, task: Any, stage: Stage) -> None:
        self.heard.pop(stage.key, None)
        try:
            self.ray.get(task)
        except self.ray.exceptions.RayTaskError as error:  # `execute` raises what no other stage would survive
            if isinstance(error.cause, OSError):
                raise OSError(str(error.cause)) from error
            self._fail(stage, f"{type(error.cause).__name__}: {error.cause}")
        except self.ray.exceptions.RayError as error:
            self._again(stage, _said(error))
        else:
            record = self.site.store.read(stage.key)
            if record is None:
                self._fail(stage, f"its Ray task ended and left no folder in {self.site.out}: do all machines see it?")
            else:
                self.queue.settle(record)

    def _again(self, stage: Stage, how: str) -> None:
        tried = self.tried[stage.key] = self.tried.get(stage.key, 0) + 1
        if tried > RESTARTS:
            self._fail(stage, f"its Ray worker died, {tried} times: {how}", restarts=RESTARTS)
            return
        self.queue.report("log", stage.key, f"its Ray worker died ({how}); started again ({tried} of {RESTARTS})")
        self._start(stage)

    def _fail(self, stage: Stage, reason: str, restarts: int = 0) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        record = Record.of(stage, status="failed", reason=reason, started=now, restarts=restarts)
        self.queue.settle(self.site.store.write(record))

    def _end_silent(self) -> None:
        """Give up the stages that have said nothing for too long; what they say takes a while to come."""
        if (limit := self.site.limits.silent) is None:
            return
        for task, stage in list(self.running.items()):
            if time.monotonic() - self.heard.get(stage.key, float("inf")) > limit + _events.TELL_SECONDS:
                del self.running[task]
                self._end([task])
                self._fail(stage, f"nothing was heard of it for {limit:g} seconds (--stage-timeout), and it was ended")

    def _cancel(self) -> None:
        self._end([*self.running])

    def _end(self, tasks: list[Any]) -> None:
        """End tasks, and wait for that: the folder may be another run's next."""
        with suppress(self.ray.exceptions.RayError):
            for task in tasks:
                self.ray.cancel(task, force=True)
            if tasks:
                self.ray.wait(tasks, num_returns=len(tasks), timeout=GRACE_SECONDS)


def _said(error: Exception) -> str:
    """The first sentence of what Ray says."""
    return " ".join(str(error).split()).partition(". ")[0] or type(error).__name__


def _execute(stage: Stage, site: Site, restarts: int) -> None:
    """A task: run one stage in a worker of Ray's, which may have run others."""
    import torch

    from growbench.devices import execute
    from growbench.train import KEEP_SECONDS

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    teller, last = _events.Teller(site.root, f"{platform.node()}-{os.getpid()}"), 0.0
    teller.tell("started", stage.key)

    def notify(tokens: int) -> None:
        nonlocal last
        if (now := time.monotonic()) - last >= _events.TELL_SECONDS:
            last = now
            teller.tell("progress", stage.key, tokens=tokens)

    every = site.limits.keep_every
    keeping = KEEP_SECONDS if every is None else every
    execute(stage, site.store, site.plugin_paths, site.cache, notify, restarts, keep_every=keeping)
    teller.tell("finished", stage.key)
