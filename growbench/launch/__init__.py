"""Launchers: given a plan, run its ready stages somewhere. The stage folders are the only truth about what was done.

A launcher is a plugin: a file in this folder, an entry point or a given file with one public class, whose fields are
its options. It is handed a queue of stages, parents before children, and runs them or hands them to what will. All else
is here, once: the lock on the folder, the plan, the provenance, the tables.
"""

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from filelock import FileLock, Timeout

from growbench import plugins, provenance
from growbench.store import Stage, Store, write_atomically
from growbench.tables import PLAN, RUN, read_run, refuse_foreign, write_tables

if TYPE_CHECKING:
    from growbench.devices import Node
    from growbench.launch._queue import Queue
    from growbench.plan import Plan

LOCK_SECONDS = 60.0
LAUNCH = "launch"
"""Where in a run's folder its launcher keeps what it needs; nobody else's to read."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """What a launcher reports while it runs: stages and tokens done, of the totals; `text` says what went wrong."""

    kind: Literal["started", "progress", "finished", "cached", "failed", "log"]
    stage: str
    label: str
    done: int
    total: int
    tokens_done: int
    tokens_total: int
    text: str = ""


Listener = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run came to, in stages: finished now, found done, ended badly, not run because of those, still to come."""

    finished: int
    cached: int
    failed: int
    blocked: int
    interrupted: bool
    pending: int = 0


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What holds for every stage of a run, in seconds, and changes no number.

    keep_every: between two checkpoints of a stage under way, the engine's own if None; silent: without a word from a
    stage, a step or its end, after which it has failed, never if None.
    """

    keep_every: float | None = None
    silent: float | None = None

    def __post_init__(self) -> None:
        if self.keep_every is not None and not self.keep_every >= 0:
            raise ValueError(f"a stage is kept every 0 seconds (at each step) or more, not {self.keep_every:g}")
        if self.silent is not None and not self.silent > 0:
            raise ValueError(
                f"a stage may be silent for more than 0 seconds, not {self.silent:g}: leave it out for ever"
            )


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where stages are run: the folder of their results, that of the whole run, plugins, fetched data and limits.

    out is root, or the folder of the tuning trials in it; node: which of a job's machines this is, if it has several.
    """

    root: Path
    out: Path
    plugin_paths: tuple[Path, ...]
    cache: Path
    limits: Limits = Limits()
    node: "Node | None" = None

    @property
    def store(self) -> Store:
        return Store(self.out)


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What a stage takes: processors, accelerators, memory where it is known, and about how many seconds."""

    cpus: int = 1
    gpus: int = 0
    memory_gb: float | None = None
    seconds: float = 0.0


STARTING_SECONDS = 2.0
"""About what a stage takes besides its FLOPs: reading its parent, evaluation, writing."""


def needs(stage: Stage, stages: Mapping[str, Stage], rate: float) -> Needs:
    """What a stage takes at so many FLOPs per second; `stages` has what it builds on. Memory is an estimate."""
    from growbench.launch._memory import memory_gb

    return Needs(
        cpus=stage.devices,
        gpus=gpus(stage),
        memory_gb=memory_gb(stage, stages),
        seconds=STARTING_SECONDS + stage.flops / rate / stage.devices,
    )


def gpus(stage: Stage) -> int:
    """How many accelerators a stage needs."""
    on_cpu = stage.identity.get("device", "cpu") == "cpu" or stage.kind in ("init", "coordinates")
    return 0 if on_cpu else stage.devices


@dataclass(frozen=True, kw_only=True)
class Launcher(ABC):
    """Runs stages. Its fields are its options; `others` names the field that takes options of any other name.

    Where `launch` returns before its stages have ended, the run is detached: what it started ends by itself.
    """

    others: ClassVar[str] = ""

    @property
    def follows(self) -> bool:
        """Whether `follow` waits."""
        return False

    @property
    def processes(self) -> int:
        """How many stages it runs at a time at most; 0 where that is not its own to say."""
        return 0

    @abstractmethod
    def launch(self, queue: "Queue", site: Site) -> None:
        """Run all stages of the queue as they become ready, or hand them to what will; the folder is locked."""

    def follow(self, queue: "Queue", site: Site) -> None:  # noqa: B027
        """Wait for what `launch` handed over, settling each stage as it ends; where the launcher `follows`."""

    def prepare(self, site: Site) -> Site:
        """Make the run's folder ready, before anything is planned; the site as stages will see it."""
        return site

    def busy(self, root: Path) -> bool:
        """Whether anything that was handed over is still at work in a run's folder."""
        return False

    def cancel(self, root: Path) -> bool:
        """End what is at work in a run's folder; whether there was anything."""
        return False

    def resume(self, root: Path) -> bool:
        """Have what is left of a run done by what was handed over, if that is how it works."""
        return False


def make(name: str, options: Mapping[str, Any], extra: Sequence[Path] = ()) -> Launcher:
    """The launcher of that name with its options; ValueError names what is unknown."""
    plugin = plugins.find("launcher", name, extra)
    loaded = plugins.load("launcher", name, extra)
    if not issubclass(loaded, Launcher):
        raise ValueError(f"launcher {name!r} ({plugin.origin}) does not derive from growbench.launch.Launcher")
    own = {key: value for key, value in options.items() if key in plugin.fields}
    others = {key: value for key, value in options.items() if key not in plugin.fields}
    plugins.check(plugin, own if loaded.others else options)
    with plugins.blamed(plugin, "cannot be used"):
        made: Launcher = loaded(**own, **({loaded.others: others} if others else {}))
    return made


def run(
    plan: "Plan",
    out: Path,
    launcher: Launcher,
    listener: Listener,
    command: str = "",
    *,
    root: Path | None = None,
    again: bool = True,
    about: Mapping[str, Any] | None = None,
    limits: Limits = Limits(),
    planned: Collection[str] | None = None,
) -> Summary:
    """Run what is left of a plan into `out`, and write its tables.

    again: stages that failed are run again; root: the folder of the whole run, where that is another; about: the
    provenance, where it is not this process's; planned: all stages that belong in `out`, where the plan is a part of
    them: of others, no partial checkpoint is kept. ValueError where another run uses the folder, or it holds something
    else; OSError where it cannot be written.
    """
    from growbench.launch._queue import Queue

    paths = tuple(path.absolute() for path in plan.plugin_paths)
    whole, cache = (root or out).absolute(), plan.cache.absolute()
    site = Site(root=whole, out=out.absolute(), plugin_paths=paths, cache=cache, limits=limits)
    interrupted = False
    with locked(out, timeout=0 if again else LOCK_SECONDS):
        if not launcher.busy(site.root):
            site.store.sweep(planned)
        _write_json(out / PLAN, plan.to_dict())
        queue = Queue(plan.stages, site.store, listener, again=again)
        before = read_run(out)
        if queue.ready or before is None:
            device = plan.study.device.words
            now = dict(about or provenance.describe(workers=launcher.processes, command=command, device=device))
        else:  # the numbers are those of an earlier run, the plan is this one's
            now = before | {"command": command}
        _write_json(out / RUN, now)
        try:
            if queue.open:
                launcher.launch(queue, site)
        except KeyboardInterrupt:
            interrupted = True
        _conclude(out, now, ended=interrupted or not queue.open)
    if queue.open and launcher.follows and not interrupted:
        launcher.follow(queue, site)
        with locked(out, timeout=LOCK_SECONDS):
            _conclude(out, now, ended=not queue.open)
    return Summary(
        finished=queue.finished,
        cached=queue.cached,
        failed=queue.failed,
        blocked=queue.blocked,
        interrupted=interrupted,
        pending=0 if interrupted else len(queue.open),
    )


@contextlib.contextmanager
def locked(out: Path, timeout: float = 0) -> Iterator[None]:
    """Around work on a run's folder, which is nobody else's meanwhile; errors as `run`."""
    try:
        refuse_foreign(out)
        out.mkdir(parents=True, exist_ok=True)
        with FileLock(out / ".lock", timeout=timeout):
            yield
    except Timeout:
        raise ValueError(f"another run is using {out}: wait for it to end, or give another --out") from None
    except OSError as error:
        raise OSError(f"{out} cannot be written: {error}; what is finished stays, and the same run goes on") from error


def _conclude(out: Path, about: Mapping[str, Any], *, ended: bool) -> None:
    if ended and not about["finished"]:
        _write_json(out / RUN, {**about, "finished": provenance.now()})
    write_tables(out)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    write_atomically(path, json.dumps(value, ensure_ascii=False))
