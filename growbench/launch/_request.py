"""What a run was asked for, kept in its folder: tuning first where the study says so, then the study.

    DIR/launch/request.json

Any process can take it up where it stands, a job on a cluster too: whatever has ended is found in the stage folders.
"""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from growbench import provenance
from growbench.launch import LAUNCH, Launcher, Limits, Listener, Site, Summary, locked, make, run
from growbench.store import Store, write_atomically
from growbench.study import Study, parse_study
from growbench.tables import TUNING

if TYPE_CHECKING:
    from growbench.plan import Plan
    from growbench.settings import Tuned

REQUEST = "request.json"


Shown = Callable[[], AbstractContextManager[Listener]]
"""Opens what shows the progress of one part of a run."""


class Pending(Exception):
    """Tuning has not ended: `summary` says how far it is."""

    def __init__(self, summary: Summary) -> None:
        super().__init__(summary)
        self.summary = summary


@dataclass(frozen=True, kw_only=True)
class Request:
    """A study with all that its run depends on; launcher, options: who runs it; about: its provenance."""

    study: Study
    plugin_paths: tuple[Path, ...] = ()
    only: str | None = None
    cache: Path = Path()
    command: str = ""
    limits: Limits = field(default_factory=Limits)
    launcher: str = "local"
    options: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    cwd: str = field(default_factory=os.getcwd)

    def run(self, out: Path, shown: Shown) -> Summary:
        """Run what is left, or hand it over; errors as `launch.run`."""
        launcher = self.made(self.plugin_paths)
        at_work = self._at_work(out)
        if self.study.tuning:  # what cannot be met is said before anything is tuned
            self.plan()
        if at_work:
            if not launcher.follows:
                raise ValueError(
                    f"jobs of an earlier run are at work in {out}: `growbench status {out}` says how far they are, "
                    "--wait follows them, `growbench cancel` ends them"
                )
            return self.carry_on(out, launcher, shown, again=False)
        with locked(out):
            device = self.study.device.words
            about = provenance.describe(workers=launcher.processes, command=self.command, device=device)
            request = replace(self, about=about)
            site = Site(root=out.absolute(), out=out.absolute(), plugin_paths=self.plugin_paths, cache=self.cache)
            site = launcher.prepare(replace(site, plugin_paths=tuple(p.absolute() for p in self.plugin_paths)))
            request = replace(request, plugin_paths=site.plugin_paths, cache=self.cache.absolute())
            request.write(out)
        return request.carry_on(out, launcher, shown, again=True)

    def retry(self, out: Path, shown: Shown) -> Summary | None:
        """Run again what failed, and what is left; None where the launcher has that done by what it hands over."""
        launcher = self.made(self.plugin_paths)
        if launcher.busy(out.absolute()):
            raise ValueError(f"jobs are at work in {out}: wait for their end, or `growbench cancel {out}`")
        if launcher.resume(out.absolute()):
            return None
        return self.carry_on(out, launcher, shown, again=True)

    def carry_on(self, out: Path, launcher: Launcher, shown: Shown, *, again: bool) -> Summary:
        """Run what is left: the trials, then the stages of the study with what they chose; not what is handed over.

        KeyboardInterrupt where that was interrupted, with the tables written.
        """
        try:
            tuned = self.tune(out, launcher, shown, again=again) if self.study.tuning else None
        except Pending as pending:
            return pending.summary
        plan = self.plan(tuned)
        given = self._given(out, again, None if self.only else plan.stages)
        with shown() as listener:
            summary = run(plan, out, launcher, listener, self.command, **given)
        if summary.interrupted:
            raise KeyboardInterrupt
        return summary

    def _given(self, out: Path, again: bool, planned: Collection[str] | None) -> dict[str, Any]:
        about, limits = self.about or None, self.limits
        return {"root": out, "again": again, "about": about, "limits": limits, "planned": planned}

    def plan(self, tuned: "Tuned | None" = None) -> "Plan":
        from growbench.plan import make_plan

        return make_plan(self.study, self.plugin_paths, only=self.only, cache=self.cache, tuned=tuned)

    def tune(self, out: Path, launcher: Launcher, shown: Shown, *, again: bool) -> "Tuned":
        """Run what is left of the trials, and choose; Pending where they have not ended, KeyboardInterrupt likewise."""
        from growbench.tune import Tuner

        tuner = Tuner(study=self.study, plugin_paths=self.plugin_paths, only=self.only, cache=self.cache)
        whole = not self.only and Store(out / TUNING).under_way()  # planning all trials takes a while
        given = self._given(out, again, tuner.known(out / TUNING)[0].stages if whole else None)

        def step(plan: "Plan", folder: Path) -> None:
            with shown() as listener:
                summary = run(plan, folder, launcher, listener, self.command, **given)
            if summary.interrupted:
                raise KeyboardInterrupt
            if summary.pending:
                raise Pending(summary)

        return tuner.run(out / TUNING, step)

    def made(self, extra: Sequence[Path] = ()) -> Launcher:
        """The launcher; of plugins in files, only those in `extra`: a folder of results is not trusted with code."""
        return make(self.launcher, self.options, extra)

    def _at_work(self, out: Path) -> bool:
        """Whether what an earlier run handed over is at work in the folder."""
        earlier = Request.read(out)
        return earlier is not None and earlier.made(self.plugin_paths).busy(out.absolute())

    def write(self, out: Path) -> None:
        folder = private(out)
        body = asdict(self) | {"study": self.study.to_yaml(), "cache": str(self.cache)}
        body["plugin_paths"] = [str(path) for path in self.plugin_paths]
        write_atomically(folder / REQUEST, json.dumps(body, indent=1, ensure_ascii=False))

    @staticmethod
    def read(out: Path) -> "Request | None":
        """The request of a run's folder; None where there is none. ValueError where it cannot be read."""
        path = out / LAUNCH / REQUEST
        if not path.exists():
            return None
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            body["study"] = parse_study(body["study"], str(path))
            body["plugin_paths"] = tuple(map(Path, body["plugin_paths"]))
            body["limits"] = Limits(**body.get("limits", {}))
            return Request(**body | {"cache": Path(body["cache"])})
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} cannot be read: {error}; remove {path.parent} and run the study again") from error


def private(out: Path) -> Path:
    """The folder of a run's launcher, made if need be, for nobody else to read."""
    folder = out / LAUNCH
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    return folder
