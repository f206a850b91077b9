"""Jobs of a Slurm cluster, submitted with submitit: the command may exit, and the jobs carry the run to its end.

Stages that build on one another are kept in order by Slurm's dependencies, and not by waves: in a wave the shortest
branch waits for the longest, and a process has to live as long as the run to submit the next. A stage has one parent:
packs of stages (_pack.py) form a forest, and each starts `afterany` the one job that it builds on. Packs that build on
one job are an array. `afterany`, not `afterok`: a job whose parent did not end well finds that out and returns, where
`afterok` would leave it in the queue for good.

Last of all runs a turn, a short job of the same name that Slurm holds back until the others have ended (`singleton`).
What the jobs left without a record has died: the turn writes the row with its reason. It submits what is left, or what
comes next: after tuning it chooses, plans the study, and submits that, with the next turn behind it. The last one
writes the report.

The signal of the time limit, or of preemption, only sets a flag: workers keep what their stages came to at the next
step, and the job is put back in the queue and goes on from there. A death takes nothing that has ended.

    DIR/launch/   mode 700: request.json   code, plugins (_snapshot.py)   jobs.json: which job has which stages
                  jobs/: submitit's own pickles, which nothing of growbench reads, and a log per job
                  events/: what each job reports, JSON lines
"""

import getpass
import json
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from growbench.launch import LAUNCH, Event, Launcher, Needs, Site, _events, needs
from growbench.launch import _snapshot as snapshot
from growbench.launch._pack import Pack, pack
from growbench.launch._queue import Queue
from growbench.launch._request import Request, private
from growbench.launch.local import STOPS, drain
from growbench.plugins import nearest
from growbench.store import Record, Stage, digest, write_atomically

if TYPE_CHECKING:
    import submitit

LOOK_SECONDS = 2.0
ASK_SECONDS = 10.0
"""How often a follower looks at the stage folders, and asks Slurm whether anything is left."""
TURN_MINUTES = 60
OURS = {"dependency", "array", "job_name", "name", "map_count", "ntasks_per_node", "tasks_per_node"}
"""Parameters of a job that are growbench's to set."""
_TIMES = ("time", "timeout_min")


@dataclass(frozen=True, kw_only=True)
class Slurm(Launcher):
    """Jobs of a Slurm cluster, submitted with submitit; any of its Slurm parameters is an option.

    wait: stay and show progress; pack_minutes: short stages share jobs of about that long; max_jobs: so many are
    submitted at a time at most; max_requeues: how often a job may reach its time limit; nodes: the machines that the
    devices of a stage are spread over, equally, where it has several.
    """

    others: ClassVar[str] = "parameters"

    wait: bool = False
    pack_minutes: float = 10.0
    max_jobs: int = 1000
    max_requeues: int = 100
    nodes: int = 1
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = _known() - OURS
        if self.nodes < 1:
            raise ValueError(f"nodes must be 1 or more, not {self.nodes}")
        for name in self.parameters:
            if name in OURS:
                raise ValueError(f"{name} is growbench's own to set, one task on each node of a job: leave it out")
            if name not in known:
                raise ValueError(f"submitit has no Slurm parameter {name!r}{nearest(name, known)}")
        if len(given := [name for name in _TIMES if name in self.parameters]) > 1:
            raise ValueError(f"{given[0]} and {given[1]} both give the time limit: leave one of them out")
        for name in given:
            minutes(self.parameters[name])

    @property
    def follows(self) -> bool:
        return self.wait

    @property
    def processes(self) -> int:
        return int(self.parameters.get("cpus_per_task", 1))

    def prepare(self, site: Site) -> Site:
        if not shutil.which("sbatch"):
            raise ValueError("there is no sbatch here: run this where jobs are submitted, or leave --launcher out")
        folder = private(site.root)
        _, plugin_paths = snapshot.take(folder, site.plugin_paths)
        _Jobs(site.root).clear()
        return Site(root=site.root, out=site.out, plugin_paths=plugin_paths, cache=site.cache)

    # --- submission --------------------------------------------------------------------------------------------------

    def launch(self, queue: Queue, site: Site) -> None:
        if self.busy(site.root):
            return
        jobs = _Jobs(site.root)
        if not queue.again:
            jobs.bury(queue, site)
        if not (waiting := list(queue.waiting())):
            return
        self._check_spread(waiting)
        for stage in waiting:
            site.store.discard(stage.key)  # what failed runs again: until then it has no record
        from growbench.plan import ASSUMED_RATE, measured_rate  # heavy to import, and no job that trains needs it

        rate = measured_rate(queue.found) or ASSUMED_RATE
        taken = {stage.key: needs(stage, queue.stages, rate) for stage in waiting}
        try:
            count = self._submit_all(pack(waiting, taken, 60 * self.pack_minutes), taken, site, jobs)
            turn = self._executor(site.root, timeout=TURN_MINUTES, gpus=False, dependency="singleton")
            self._submit(turn, [_Turn(site.root)])
        except BaseException:
            self.cancel(site.root)  # without a turn, nothing would come after them
            raise
        queue.report("log", waiting[0].key, f"{count} jobs are submitted for {len(waiting)} stages")

    def _check_spread(self, stages: Sequence[Stage]) -> None:
        """Raise ValueError where a stage's devices cannot be spread over the nodes."""
        if odd := [stage.devices for stage in stages if stage.devices > 1 and stage.devices % self.nodes]:
            raise ValueError(
                f"{odd[0]} devices cannot be spread equally over {self.nodes} nodes: give --slurm-nodes a number that "
                "divides them, or other --devices"
            )

    def _submit_all(self, roots: Sequence[Pack], taken: Mapping[str, Needs], site: Site, jobs: "_Jobs") -> int:
        """Submit packs, those that wait for one job together; what is more than max_jobs is left to the next turn."""
        size, count, level = min(_max_array_size(), self.max_jobs), 0, [("", list(roots))]
        while level:
            following = []
            for parent, packs in level:
                for need, alike in _by_need(packs, taken):
                    for some in _chunks(alike, size):
                        if count + len(some) > self.max_jobs:
                            return count
                        workers = self._workers(need, some)
                        whole = replace(need, memory_gb=workers * (need.memory_gb or 0) or None)
                        executor = self._executor(site.root, need=whole, dependency=f"afterany:{parent}" * bool(parent))
                        calls = [_Work(site, tuple(made.stages), workers) for made in some]
                        made_by = dict(zip(self._submit(executor, calls), some, strict=True))
                        jobs.add({job: made.stages for job, made in made_by.items()})
                        following += [(job, made.after) for job, made in made_by.items() if made.after]
                        count += len(some)
            level = following
        return count

    def _nodes(self, need: Needs) -> int:
        return self.nodes if need.cpus > 1 else 1

    def _workers(self, need: Needs, packs: Sequence[Pack]) -> int:
        """How many stages a job runs at a time: as many as its processors allow, one where it has several machines."""
        at_once = max(len(made.stages) for made in packs)
        return 1 if self._nodes(need) > 1 else max(1, min(self.processes // need.cpus, at_once))

    def _executor(
        self, root: Path, *, need: Needs | None = None, timeout: int = 0, gpus: bool = True, dependency: str = ""
    ) -> "submitit.AutoExecutor":
        import submitit

        folder = private(root)
        executor = submitit.AutoExecutor(folder / "jobs", cluster="slurm", slurm_max_num_timeout=self.max_requeues)
        given = {name: value for name, value in self.parameters.items() if name not in _TIMES}
        if not gpus:
            given = {name: value for name, value in given.items() if "gpu" not in name and name != "gres"}
        limit = next((minutes(self.parameters[name]) for name in _TIMES if name in self.parameters), 60)
        paths = f"export PYTHONPATH={shlex.quote(str(folder / 'code'))}${{PYTHONPATH:+:$PYTHONPATH}}"
        setup = given.pop("setup", [])
        setup = [setup] if isinstance(setup, str) else [*setup]
        setup += [paths, "export PYTHONSAFEPATH=1", "export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}"]
        need = need or Needs()
        nodes = self._nodes(need)
        wanted: dict[str, Any] = {"cpus_per_task": need.cpus // nodes, "stderr_to_stdout": True}
        wanted |= {"nodes": nodes, "tasks_per_node": 1} if nodes > 1 else {}
        if need.gpus:
            wanted["gpus_per_node"] = need.gpus // nodes
        if need.memory_gb and not any(name.startswith("mem") for name in given):
            wanted["mem_gb"] = math.ceil(need.memory_gb / nodes)
        own = {"time": min(timeout or limit, limit), "job_name": job_name(root), "setup": setup}
        own |= {"dependency": dependency} if dependency else {}
        parameters = wanted | given | own
        try:
            executor.update_parameters(**{f"slurm_{name}": value for name, value in parameters.items()})
        except (NameError, TypeError, AssertionError, AttributeError) as error:
            raise ValueError(f"a Slurm parameter is not as submitit wants it: {error}") from None
        return executor

    def _submit(self, executor: "submitit.AutoExecutor", calls: Sequence[Callable[[], None]]) -> list[str]:
        """Submit calls, several as an array; their jobs' numbers."""
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        cluster = {name: os.environ[name] for name in ("SLURM_CONF",) if name in os.environ}
        clean, kept = submitit.helpers.clean_env(), submitit.helpers.environment_variables(**cluster)
        with clean, kept:  # a turn's own job must not colour those it submits
            try:
                with executor.batch():
                    made = [executor.submit(call) for call in calls]
            except (FailedJobError, FailedSubmissionError) as error:
                raise ValueError(f"Slurm refused a job: {' '.join(str(error).split())}") from None
        return [job.job_id for job in made]

    # --- what is under way -------------------------------------------------------------------------------------------

    def follow(self, queue: Queue, site: Site) -> None:
        asked = time.monotonic()
        events = _events.Events(site.root)
        alive = True
        while queue.open:
            _events.settle(queue, site)
            for _ in events.pass_on(queue):
                pass
            if not alive or not queue.open:
                return
            time.sleep(LOOK_SECONDS)
            if time.monotonic() - asked > ASK_SECONDS:
                asked = time.monotonic()
                with suppress(ValueError, subprocess.TimeoutExpired):  # Slurm may be out for a while
                    alive = self.busy(site.root)

    def busy(self, root: Path) -> bool:
        return bool(_queued(root))

    def cancel(self, root: Path) -> bool:
        """End all jobs of the run; what had not ended is left, and has not failed."""
        found = _queued(root)
        if found:
            _ask("scancel", *found)
            while _queued(root):
                time.sleep(1)
            _Jobs(root).clear()
        return bool(found)

    def resume(self, root: Path) -> bool:
        """Submit a turn that runs what failed again, as the code was when the run was asked for."""
        _Jobs(root).clear()
        executor = self._executor(root, timeout=TURN_MINUTES, gpus=False)
        self._submit(executor, [_Turn(root, again=True)])
        return True


# --- what jobs do ---------------------------------------------------------------------------------------------------


class _Work:
    """What a job runs: a pack of stages, in worker processes of its own."""

    def __init__(self, site: Site, stages: tuple[Stage, ...], workers: int) -> None:
        self.site, self.stages, self.workers = site, stages, workers

    def __call__(self) -> None:
        from growbench.launch import _nodes

        node, stages = _nodes.here(), {stage.key: stage for stage in self.stages}
        if node.number:
            for number in STOPS:  # the first machine hears them too, and passes it on
                signal.signal(number, lambda number, frame: None)
            _nodes.assist(node, stages, self.site)
        elif node.count > 1:
            caller = _nodes.Caller(node)
            try:
                self._run(replace(self.site, node=node), stages, caller.say)
            finally:
                caller.part()
        else:
            self._run(self.site, stages, lambda key: None)

    def _run(self, site: Site, stages: Mapping[str, Stage], call: Callable[[str], None]) -> None:
        """Run the stages; `call` the other machines to each that they take part in, as it starts."""
        asked: list[int] = []
        requeue = signal.getsignal(signal.SIGUSR2)  # submitit's, which puts the job back into the queue
        for number in STOPS:  # the second is that of a job that Slurm ends, or puts back itself
            signal.signal(number, lambda number, frame: asked.append(number))
        import submitit

        tell = _events.Teller(site.root, str(submitit.JobEnvironment().job_id))

        def listen(event: Event) -> None:
            tell(event)
            if event.kind == "started" and stages[event.stage].devices > 1:
                call(event.stage)

        queue = Queue(stages, site.store, listen, again=False)
        drain(queue, site, self.workers, stop=lambda: bool(asked))
        if signal.SIGUSR2 in asked and queue.open:
            assert callable(requeue)
            requeue(signal.SIGUSR2, None)

    def checkpoint(self) -> "submitit.helpers.DelayedSubmission":
        """How the job goes on after it was put back: as it began, for the stage folders say how far it came."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)


class _Turn:
    """What runs when all jobs have ended: rows for what died, and the submission of what is left or comes next."""

    def __init__(self, root: Path, *, again: bool = False) -> None:
        self.root, self.again = root, again

    def __call__(self) -> None:
        request = Request.read(self.root)
        assert request is not None
        os.chdir(request.cwd)
        launcher = request.made()
        assert isinstance(launcher, Slurm)
        show = nullcontext(_events.say)
        summary = request.carry_on(self.root, replace(launcher, wait=False), lambda: show, again=self.again)
        if not summary.pending:  # all has ended, and nobody need be there to see it
            given = [word for path in request.plugin_paths for word in ("--plugin", str(path))]
            command = "from growbench.cli import main; main()"  # the report knows launchers, not they it
            subprocess.run([sys.executable, "-c", command, "report", str(self.root), *given], check=False)


# --- what is known of jobs ------------------------------------------------------------------------------------------


class _Jobs:
    """Which job has which stages, since the run was last asked for."""

    def __init__(self, root: Path) -> None:
        self._root, self._path = root, root / LAUNCH / "jobs.json"

    def read(self) -> dict[str, list[str]]:
        """Stage keys by job."""
        if not self._path.exists():
            return {}
        found: dict[str, list[str]] = json.loads(self._path.read_text(encoding="utf-8"))
        return found

    def add(self, made: Mapping[str, Sequence[Stage]]) -> None:
        more = {job: [stage.key for stage in stages] for job, stages in made.items()}
        write_atomically(self._path, json.dumps(self.read() | more))

    def clear(self) -> None:
        self._path.unlink(missing_ok=True)
        _events.clear(self._root)

    def bury(self, queue: Queue, site: Site) -> None:
        """Give a failed record to each stage that a job left without one, all jobs having ended.

        Of the stages that a job had started, that is; of all, if it had started none. The others are to be run again.
        """
        started = {event["stage"] for event in _events.Events(self._root).news() if event["kind"] == "started"}
        ready = {key for _, key in queue.ready}
        for job, stages in self.read().items():
            died = [key for key in stages if key in ready]
            for key in [key for key in died if key in started] or died:
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                record = Record.of(queue.stages[key], status="failed", reason=_ended(job), started=now)
                queue.settle(site.store.write(record))


# --- Slurm's commands -----------------------------------------------------------------------------------------------


def job_name(root: Path) -> str:
    """The name of all jobs of a run's folder."""
    return f"growbench-{digest(str(root.resolve()))[:12]}"


def _ask(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise ValueError(f"{words[0]} ended with exit code {done.returncode}: {' '.join(done.stderr.split())}")
    return done.stdout


def _queued(root: Path) -> list[str]:
    """The run's jobs that Slurm has not done with, without the one that asks."""
    if not shutil.which("squeue"):
        return []
    found = _ask("squeue", "--noheader", "--user", getpass.getuser(), "--name", job_name(root), "--format", "%A")
    return [job for job in found.split() if job != os.environ.get("SLURM_JOB_ID")]


def _ended(job: str) -> str:
    """How a job ended, as Slurm tells it: `its Slurm job 12_0 was ended as OUT_OF_MEMORY`."""
    fields: dict[str, str] = {}
    with suppress(ValueError):  # it forgets jobs after a while
        told = _ask("scontrol", "--oneliner", "show", "job", job)
        fields = dict(word.split("=", 1) for word in told.split() if "=" in word)
    if not fields:
        with suppress(ValueError, OSError):
            told = _ask("sacct", "--noheader", "--parsable2", "--allocations", "--format=State,ExitCode", "--jobs", job)
            fields = dict(zip(("JobState", "ExitCode"), told.split("|"), strict=False))
    state = fields.get("JobState", "").strip() or "in a state that Slurm has forgotten"
    code = fields.get("ExitCode", "0:0").strip()
    killed = f", exit code {code}" if code != "0:0" else ""
    return f"its Slurm job {job} ended as {state}{killed}, and its log is {LAUNCH}/jobs/{job}_0_log.out"


@cache
def _max_array_size() -> int:
    config = _ask("scontrol", "show", "config")
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", config, re.MULTILINE)
    return int(found[1]) if found else 1


def _known() -> set[str]:
    """The Slurm parameters that submitit takes."""
    try:
        import submitit
    except ImportError:
        raise ValueError("the launcher slurm needs submitit: pip install 'growbench[slurm]'") from None
    return submitit.SlurmExecutor._valid_parameters() | submitit.AutoExecutor._valid_parameters()


def minutes(limit: object) -> int:
    """A time limit in Slurm's words, in minutes.

    >>> [minutes(limit) for limit in (90, "90", "1:30:00", "2-0", "2-12:30", "0:30")]
    [90, 90, 90, 2880, 3630, 1]
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(limit))
    if not found:
        raise ValueError(f"a time limit is minutes, or as in 1:30:00 or 2-12, not {limit!r}")
    days, *parts = (None if part is None else int(part) for part in found.groups())
    given = [part for part in parts if part is not None]
    if days is None and len(given) < 3:  # minutes, minutes:seconds
        hours, whole, seconds = 0, given[0], given[1] if len(given) == 2 else 0
    else:
        hours, whole, seconds = (*given, 0, 0)[:3]
    return max(1, (days or 0) * 1440 + hours * 60 + whole + (seconds > 0))


def _by_need(packs: Sequence[Pack], taken: Mapping[str, Needs]) -> Iterator[tuple[Needs, list[Pack]]]:
    """Packs by what one needs: the most that any of its stages does."""
    groups: dict[Needs, list[Pack]] = {}
    for made in packs:
        own = [taken[stage.key] for stage in made.stages]
        memory = max((math.ceil(need.memory_gb) for need in own if need.memory_gb), default=None)
        most = Needs(cpus=max(n.cpus for n in own), gpus=max(n.gpus for n in own), memory_gb=memory)
        groups.setdefault(most, []).append(made)
    yield from groups.items()


def _chunks(packs: Sequence[Pack], size: int) -> Iterator[Sequence[Pack]]:
    return (packs[start : start + size] for start in range(0, len(packs), size))
