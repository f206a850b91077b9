"""Conformance: what a plugin must obey, as checks, each a small function whose failure tells the author what to do.

A check returns what it found, or raises `Failed` with what to do, or `Exempt` with the reason why it does not apply.
The checks of strategies are in strategies.py, those of tasks in tasks.py; `suite` finds the right ones.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from growbench import plugins
from growbench.plugins import KINDS, Plugin

CHECKED = ("strategy", "task")
"""The kinds of plugin that have checks."""
Status = Literal["passed", "failed", "exempt"]
S = TypeVar("S", bound="Subject")


class Failed(Exception):
    """A check that failed: one sentence, what is wrong and what to do."""


class Exempt(Exception):
    """A check that does not apply: one sentence why."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one check of one plugin came to."""

    plugin: str
    check: str
    status: Status
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Check(Generic[S]):
    """One law by name: what it guards, and the function that examines a subject."""

    name: str
    guards: str
    law: Callable[[S], str]

    def run(self, subject: S) -> Result:
        status: Status
        try:
            status, message = "passed", self.law(subject)
        except Exempt as reason:
            status, message = "exempt", str(reason)
        except Failed as reason:
            status, message = "failed", str(reason)
        except (Exception, SystemExit) as error:  # a plugin may raise anything, and the other checks go on
            status, message = "failed", f"the check ended in {type(error).__name__}: {error}"
        one_line = " ".join(message.split())  # other libraries' errors come in several
        return Result(plugin=subject.plugin.name, check=self.name, status=status, message=one_line)


def collect(*laws: Callable[[S], str]) -> tuple[Check[S], ...]:
    """Checks of functions: the name is the function's, what it guards its docstring's first line."""
    return tuple(
        Check(name=law.__name__.strip("_"), guards=(law.__doc__ or "").partition("\n")[0], law=law) for law in laws
    )


@dataclass(kw_only=True, eq=False)
class Subject:
    """A plugin under examination, imported and made at most once, its `parameters` given."""

    plugin: Plugin
    parameters: dict[str, Any] = field(default_factory=dict)
    extra: tuple[Path, ...] = ()
    cache: Path = Path()

    @cached_property
    def _import(self) -> tuple[type[Any] | None, str, list[str]]:
        from growbench.conformance.traces import Snapshot

        before = Snapshot.take()
        try:
            found: type[Any] | None = plugins.load(self.plugin.kind, self.plugin.name, self.extra)
            error = ""
        except (Exception, SystemExit) as raised:
            found, error = None, f"{type(raised).__name__}: {raised}"
        return found, error, before.restore()

    @property
    def left_by_import(self) -> list[str]:
        """What importing the plugin changed in the process."""
        return self._import[2]

    @property
    def cls(self) -> type[Any]:
        """The plugin's class; Exempt where it cannot be imported."""
        if (found := self._import[0]) is None or not derives(found, self.plugin.kind):
            raise Exempt(f"it is no {self.plugin.kind} that can be imported: see loads")
        return found

    @cached_property
    def made(self) -> Any:
        """The plugin with the given parameters, the others at their defaults; Exempt where that is impossible."""
        if required(self.cls) - self.parameters.keys():
            raise Exempt("it cannot be made without arguments: see defaults")
        try:
            return self.cls(**self.parameters)
        except TypeError as error:
            raise Exempt(f"it cannot be made ({error}): see loads") from error


def derives(cls: type[Any], kind: str) -> bool:
    """Whether a class derives from the base class of its kind."""
    return any(base.__module__ == KINDS[kind].base for base in cls.__mro__[1:])


def required(cls: type[Any]) -> set[str]:
    """The fields of a dataclass that have no default."""
    missing = dataclasses.MISSING
    return {f.name for f in dataclasses.fields(cls) if f.init and f.default is missing and f.default_factory is missing}


def loads(subject: Subject) -> str:
    """the file can be read and imported, and its one public class derives from the base class of its kind"""
    if subject.plugin.error:
        raise Failed(f"the file cannot be read: {subject.plugin.error}")
    found, error, _ = subject._import
    if found is None:
        raise Failed(f"importing it raised {error}")
    if not derives(found, kind := subject.plugin.kind):
        raise Failed(
            f"{found.__name__} derives from no class of {KINDS[kind].base}: derive it from {kind.capitalize()}"
        )
    names = set(subject.plugin.fields) - {f.name for f in dataclasses.fields(found)}
    if names:
        raise Failed(
            f"{min(names)} is no dataclass field: decorate the class with @dataclass(frozen=True, kw_only=True)"
        )
    if abstract := getattr(found, "__abstractmethods__", None):
        raise Failed(f"{found.__name__} does not define {min(abstract)}: write it")
    return ""


def defaults(subject: Subject) -> str:
    """every parameter has a default, so that its name alone runs it"""
    if lacking := required(subject.cls):
        raise Failed(f"{', '.join(sorted(lacking))} has no default: give each field the published value")
    return ""


class Suite:
    """The checks of one plugin; what several of them need is computed once."""

    def __init__(self, subject: Subject) -> None:
        self.plugin, self._subject = subject.plugin, subject

    @cached_property
    def checks(self) -> Mapping[str, Check[Any]]:
        found: tuple[Check[Any], ...] = _module(self.plugin).CHECKS
        return {check.name: check for check in found}

    def run(self, name: str) -> Result:
        """The result of one check."""
        return self.checks[name].run(self._subject)

    def results(self) -> list[Result]:
        """The result of every check, in order."""
        return [self.run(name) for name in self.checks]


def suite(
    given: str | Path,
    *,
    extra: Sequence[Path] = (),
    parameters: Mapping[str, Any] | None = None,
    cache: Path = Path("data"),
) -> Suite:
    """The checks of a plugin, given by name, as a task's NAME:ARGUMENT, or by file; ValueError where there is none.

    extra: files and folders of plugins beside the built-in ones; cache: the folder of fetched data.
    """
    found, argument, paths = _recognise(str(given), tuple(extra))
    subject = _module(found).Subject(plugin=found, parameters=dict(parameters or {}), extra=paths, cache=cache)
    if argument:
        if not (name := getattr(subject.cls, "argument", "")):
            raise ValueError(f"the {found.kind} {found.name} takes no argument: write {found.name} alone")
        subject.parameters[name] = argument
    return Suite(subject)


def _module(plugin: Plugin) -> Any:
    """The checks of the plugin's kind, imported when needed: those of strategies need torch."""
    return import_module(f"growbench.conformance.{KINDS[plugin.kind].plural}")


def check(given: str | Path, **how: Any) -> list[Result]:
    """Every check of a plugin; the keywords are those of `suite`."""
    return suite(given, **how).results()


def _recognise(given: str, extra: tuple[Path, ...]) -> tuple[Plugin, str, tuple[Path, ...]]:
    """The plugin that a name or a file means, a task's argument, and the paths to discover it with."""
    if given.endswith(".py"):
        path = Path(given).resolve()
        if not path.is_file():
            raise ValueError(f"there is no file {given}: give the path of a plugin file, or a name that is listed")
        known = [plugin for kind in CHECKED for plugin in plugins.discover(kind).values()]
        paths = extra if any(plugin.path == path for plugin in known) else (*extra, path)
        found = [plugin for kind in CHECKED for plugin in plugins.discover(kind, paths).values() if plugin.path == path]
        return found[0], "", paths
    name, _, argument = given.partition(":")
    named = {kind: plugins.discover(kind, extra) for kind in CHECKED}
    kinds = [kind for kind, listed in named.items() if name in listed]
    if not kinds:
        every = [known for listed in named.values() for known in listed]
        hint = plugins.nearest(name, every)
        raise ValueError(f"unknown strategy or task {name!r}{hint} (or give the path of a plugin file)")
    if len(kinds) > 1:
        raise ValueError(f"{name!r} is a strategy and a task: give the path of the one that is meant")
    return named[kinds[0]][name], argument, extra
