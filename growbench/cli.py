"""The command line: words in, words out. Everything else is a library call, imported when its command runs.

Results go to stdout, progress and errors to stderr. Exit codes: 0 good, 1 an arm failed, 2 usage, 130 interrupted.
"""

import ast
import json
import os
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import growbench
from growbench import plugins
from growbench.console import print_json, print_words, progress, say

if TYPE_CHECKING:
    import pandas as pd

    from growbench.claim import Decision
    from growbench.folders import Frames
    from growbench.plan import Plan
    from growbench.settings import Tuned
    from growbench.study import Study

app = typer.Typer(
    name="growbench",
    help=growbench.__doc__,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
data = typer.Typer(help="Data that is downloaded or tokenised only when asked: data fetch NAME, data prepare TASK.")
app.add_typer(data, name="data")
new = typer.Typer(help="A plugin to start from: new strategy NAME.")
app.add_typer(new, name="new")


def _path(text: str) -> Path:
    if not text.strip():
        raise typer.BadParameter("a path is empty, which would be the current folder: write . for that")
    return Path(text)


StudyArgument = Annotated[str, typer.Argument(help="A shipped study (`growbench list`) or the path of a study file.")]
Out = Annotated[Path | None, typer.Option(parser=_path, help="Folder of the results; runs/STUDY if not given.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds instead of the study's.")]
FirstSeed = Annotated[int | None, typer.Option(help="First seed instead of the study's, for fresh ones after a look.")]
Untuned = Annotated[bool, typer.Option("--untuned", help="Leave the study's tuning out; no verdict rests on it then.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes, one thread each; one per core.")]
Only = Annotated[str | None, typer.Option(help="Run the arms that match this pattern alone, e.g. 'zero_*'.")]
PluginPaths = Annotated[
    list[Path] | None, typer.Option("--plugin", parser=_path, help="A plugin file or a folder of them; repeatable.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def main() -> None:
    """Run the command of sys.argv and exit; every error is one sentence on stderr unless --debug is given."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores; a thread pool in each waits for the others
    try:
        sys.exit(app(sys.argv[1:] or ["--help"], standalone_mode=False))
    except Exception as error:
        if "--debug" in sys.argv:
            traceback.print_exc()
        match error:
            case typer.TyperException():
                say(f"growbench: {error.format_message()}")
            case ValueError() | OSError():
                say(f"growbench: {error}")
            case _:  # a defect, here or in a plugin
                say(f"growbench: {type(error).__name__}: {error} (--debug shows where)")
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        print(growbench.__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# --- commands --------------------------------------------------------------------------------------------------------


@app.command()
def run(
    study: StudyArgument = "quick",
    out: Out = None,
    workers: Workers = None,
    seeds: Seeds = None,
    first_seed: FirstSeed = None,
    only: Only = None,
    untuned: Untuned = False,
    plugin: PluginPaths = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a study, or what is left of it, tuning first where it says so, and write its report."""
    chosen = _study(study, plugin, seeds=seeds, first_seed=first_seed, untuned=untuned)
    folder = out or Path("runs") / chosen.study
    from growbench.launch import local
    from growbench.plan import make_plan

    if chosen.tuning:
        with _guests():  # what cannot be met is said before anything is tuned
            make_plan(chosen, tuple(plugin or ()), only=only, cache=_cache())
    try:
        tuned = None if not chosen.tuning else _tune(chosen, folder, workers, only, plugin)
        with _guests():
            plan = make_plan(chosen, tuple(plugin or ()), only=only, cache=_cache(), tuned=tuned)
        with progress() as show, _guests():
            summary = local.run(plan, out=folder, workers=workers or _cores(), progress=show, command=_command())
        if summary.interrupted:
            raise KeyboardInterrupt
        page = _write_report([folder], folder / "report.html")
    except KeyboardInterrupt:
        say(f"Interrupted: finished stages stay in {folder}, and the same command goes on from there.")
        raise typer.Exit(130) from None
    if as_json:
        print_json(asdict(summary) | {"study": plan.study.study, "out": str(folder), "report": str(page)})
    else:
        print(_outcome(folder, summary.finished, summary.cached, summary.failed))
        if only or seeds or first_seed:
            print(
                "Results and report hold this selection; the command without --only, --seeds and --first-seed shows "
                "the study's own again."
            )
        print(page)
    raise typer.Exit(1 if summary.failed else 0)


@app.command()
def tune(
    study: StudyArgument,
    out: Out = None,
    workers: Workers = None,
    only: Only = None,
    plugin: PluginPaths = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a study's tuning alone, and say what it chose; `run` does the same first."""
    chosen = _study(study, plugin)
    if not chosen.tuning:
        raise ValueError(f"the study {chosen.study} has no tuning: give it one, as in the study claims-small")
    folder = out or Path("runs") / chosen.study
    try:
        tuned = _tune(chosen, folder, workers, only, plugin)
    except KeyboardInterrupt:
        say(f"Interrupted: finished trials stay in {folder}, and the same command goes on from there.")
        raise typer.Exit(130) from None
    choices = [
        {"task": task, "arm": arm} | {name: value for name, value in asdict(own).items() if value is not None}
        for task, arms in tuned.chosen.items()
        for arm, own in arms.items()
    ]
    said = {"study": chosen.study, "out": str(folder), "digest": tuned.digest, "flops": tuned.flops_total}
    print_words(said | {"chosen": choices} | ({"trials": list(tuned.trials)} if as_json else {}), as_json)


@app.command()
def plan(
    study: StudyArgument = "quick",
    out: Out = None,
    seeds: Seeds = None,
    first_seed: FirstSeed = None,
    only: Only = None,
    untuned: Untuned = False,
    plugin: PluginPaths = None,
    stages: Annotated[bool, typer.Option("--stages", help="List every stage too.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what a run would do and cost, and what is there already."""
    chosen = _study(study, plugin, seeds=seeds, first_seed=first_seed, untuned=untuned)
    folder = out or Path("runs") / chosen.study
    from growbench.plan import make_plan
    from growbench.tables import TUNING
    from growbench.tune import Tuner

    said: dict[str, Any] = {"out": str(folder)}
    tuned = None
    with _guests():
        if chosen.tuning:
            tuner = Tuner(study=chosen, plugin_paths=tuple(plugin or ()), only=only, cache=_cache())
            trials, tuned = tuner.known(folder / TUNING)
            told = trials.describe(folder / TUNING)
            said["tuning"] = {"stages": len(told["stages"])}
            said["tuning"] |= {
                name: told[name] for name in ("cached", "tokens", "flops", "flops_left", "seconds_per_worker_left")
            }
        planned = make_plan(chosen, tuple(plugin or ()), only=only, cache=_cache(), tuned=tuned)
    said |= planned.describe(folder)
    if not as_json and not stages:
        rows = said.pop("stages")
        said = {"stages": len(rows)} | said | {"left": Counter(row["why"] for row in rows if not row["cached"])}
    print_words(said, as_json)


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(parser=_path, metavar="DIR...", help="Folders of results of one study.")
    ],
    out: Annotated[
        Path | None, typer.Option(parser=_path, help="The HTML file; report.html in the first folder if not given.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write the report of one or more folders as one HTML file."""
    print(_write_report(folders, out or folders[0] / "report.html"))


@app.command()
def claims(
    folders: Annotated[
        list[Path], typer.Argument(parser=_path, metavar="DIR...", help="Folders of results of one study.")
    ],
    plugin: PluginPaths = None,
    tests: Annotated[bool, typer.Option("--tests", help="Print every test that the verdicts rest on, too.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say which claims a study's results support, contradict, or leave undecided."""
    from growbench.claim import tabulate
    from growbench.folders import planned, read

    decided, tested = tabulate(_decisions(*read(folders), planned(folders), plugin))
    if not as_json:
        decided, tested = (
            decided[["claim", "verdict", "effect", "low", "high", "measure", "missing"]],
            tested.drop(columns=["rows", "measure"]),
        )
    said = {"claims": _records(decided)} | ({"tests": _records(tested)} if tests or as_json else {})
    print_words(said, as_json)


def _records(frame: "pd.DataFrame") -> list[dict[str, Any]]:
    return [
        {str(k): v for k, v in row.items()}
        for row in frame.astype(object).where(frame.notna(), None).to_dict("records")
    ]


@app.command(name="list")
def list_(plugin: PluginPaths = None, as_json: Json = False, debug: Debug = False) -> None:
    """List strategies, tasks, claims, launchers and studies."""
    tables = {
        kind.plural: [
            {
                "name": found.name,
                "parameters": ", ".join(f"{key}: {text}" for key, text in found.fields.items()),
                "origin": found.origin,
                "about": f"cannot be read: {found.error}" if found.error else found.summary,
            }
            for found in plugins.discover(name, plugin or ()).values()
        ]
        for name, kind in plugins.KINDS.items()
    }
    print_words(tables | {"launchers": _launchers(), "studies": _studies()}, as_json)


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(parser=_path, metavar="DIR", help="Folder of results.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say which stages of a folder are done, failed and left."""
    from growbench import tables
    from growbench.folders import existing

    existing(folder)
    print_words(tables.status(folder), as_json)


@data.command()
def fetch(
    task: Annotated[str, typer.Argument(metavar="NAME", help="The task whose data to download.")],
    plugin: PluginPaths = None,
    debug: Debug = False,
) -> None:
    """Download a task's data to the cache, and print where it lies."""
    with _guests():
        loaded = plugins.load("task", task, plugin or ())
    if not hasattr(loaded, "fetch"):
        raise ValueError(f"the task {task!r} has nothing to fetch: it needs no download")
    with _guests():
        fetched = loaded.fetch(_cache())
    print(fetched)


@data.command()
def prepare(
    task: Annotated[str, typer.Argument(metavar="TASK", help="The task, as a study names it: files:corpus/*.jsonl.")],
    parameter: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A task's parameter; repeatable.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; one per core.")] = None,
    plugin: PluginPaths = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Tokenise a task's documents once, into the cache; interrupted, the same command goes on."""
    from growbench.launch import Event

    name, _, argument = task.partition(":")
    given = {name: _read(value) for name, value in _assigned(parameter or []).items()}
    with _guests():
        loaded = plugins.load("task", name, plugin or ())
        if not hasattr(loaded, "prepare"):
            if hasattr(loaded, "fetch"):
                raise ValueError(f"the task {name!r} is downloaded as it is read: run `growbench data fetch {name}`")
            raise ValueError(f"the task {name!r} has nothing to prepare: it reads or makes its data as it is used")
        if argument and not loaded.argument:
            raise ValueError(f"task {name!r} takes no argument: write it without {':' + argument!r}")
        given |= {loaded.argument: argument} if argument else {}
        plugins.check(plugins.find("task", name, plugin or ()), given)
        with progress() as show:
            corpus = loaded(**given).prepare(
                _cache(),
                workers=workers or os.cpu_count() or 1,
                notify=lambda done: show(
                    Event(
                        kind="progress",
                        stage="",
                        label=f"{done.bytes / 1e6:,.0f} of {done.bytes_total / 1e6:,.0f} MB",
                        done=done.pieces,
                        total=done.pieces_total,
                        tokens_done=done.bytes,
                        tokens_total=done.bytes_total,
                    )
                ),
            )
    print_words(corpus.about(), as_json)


@data.command()
def train_bpe(
    paths: Annotated[list[str], typer.Argument(metavar="PATH...", help="Files, folders or globs of documents.")],
    out: Annotated[Path, typer.Option("--out", "-o", parser=_path, help="The file to write, a .json.")],
    vocab: Annotated[int, typer.Option(help="Number of tokens, with that of a document's end.")] = 8192,
    column: Annotated[str, typer.Option(help="What holds the text in a table or a JSON object.")] = "text",
    separator: Annotated[str, typer.Option(help="What stands between the documents of a text file.")] = "",
    valid_share: Annotated[float, typer.Option(help="The study's: documents to validate on are left out.")] = 0.01,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Train a byte-level BPE tokenizer on documents, without those that are validated on."""
    from growbench.corpus import training_texts
    from growbench.documents import Layout, files
    from growbench.store import write_atomically
    from growbench.tokenizer import read, train_bpe

    found = [path for given in paths for path in files(given)]
    made = train_bpe(training_texts(found, Layout(column=column, separator=separator), valid_share), vocab)
    write_atomically(out, made)
    print_words({"out": str(out), "vocab": read(str(out)).vocab}, as_json)


@app.command()
def check(
    given: Annotated[
        list[str], typer.Argument(metavar="NAME|FILE...", help="Strategies and tasks, by name or as plugin files.")
    ],
    plugin: PluginPaths = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check that strategies and tasks obey what growbench relies on; exit 1 if one does not."""
    from growbench.conformance import suite

    with _guests():
        suites = [suite(name, extra=plugin or (), cache=_cache()) for name in given]
    found = []
    for examined in suites:
        for name in examined.checks:
            with _guests():
                found.append(result := examined.run(name))
            if not as_json:
                print(
                    f"{result.status}  {result.plugin}  {result.check}" + f"  {result.message}" * bool(result.message)
                )
    if as_json:
        print_json({"checks": [asdict(result) for result in found]})
    raise typer.Exit(1 if any(result.status == "failed" for result in found) else 0)


@new.command()
def strategy(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The strategy's name, as in my_method.")],
    out: Annotated[
        Path | None, typer.Option(parser=_path, help="Folder to write to; one of that name if not given.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Write a strategy that works, its test and a README."""
    from growbench.scaffold import new_strategy

    for path in new_strategy(name, out or Path(name)):
        print(path)


# --- what the commands share -----------------------------------------------------------------------------------------


def _study(
    study: str,
    plugin: Sequence[Path] | None,
    *,
    seeds: int | None = None,
    first_seed: int | None = None,
    untuned: bool = False,
) -> "Study":
    """Return a study; strategies given with --plugin that it does not name are arms of it too."""
    from growbench.study import read_study

    found = plugins.discover("strategy", plugin or ()) if plugin else {}
    given = [name for name, strategy in found.items() if strategy.origin.startswith("file")]
    return read_study(study).at(seeds=seeds, first_seed=first_seed, strategies=given, untuned=untuned)


def _tune(
    study: "Study", folder: Path, workers: int | None, only: str | None, plugin: Sequence[Path] | None
) -> "Tuned":
    """Run what is left of a study's trials; KeyboardInterrupt where that was interrupted."""
    from growbench.launch import local
    from growbench.tables import TUNING, refuse_foreign
    from growbench.tune import Tuner

    refuse_foreign(folder)

    def run(plan: "Plan", out: Path) -> None:
        with progress() as show:
            if local.run(plan, out=out, workers=workers or _cores(), progress=show, command=_command()).interrupted:
                raise KeyboardInterrupt

    with _guests():
        tuner = Tuner(study=study, plugin_paths=tuple(plugin or ()), only=only, cache=_cache())
        return tuner.run(folder / TUNING, run)


def _guests() -> redirect_stdout[Any]:
    """Around code that plugins run in: what they print goes to stderr, so that stdout holds results alone."""
    return redirect_stdout(sys.stderr)


def _write_report(folders: Sequence[Path], page: Path) -> Path:
    import pandas as pd

    from growbench import tables
    from growbench.claim import tabulate
    from growbench.folders import planned, read
    from growbench.reports.page import render

    frames, about = read(folders)
    coordinates = pd.concat([tables.coordinates(folder) for folder in folders]).drop_duplicates()
    results, curves, stages, diagnostics = frames
    try:
        claims, tests = tabulate(_decisions(frames, about, planned(folders), None))
    except ValueError as error:  # rows that must not be compared: the report shows the rest
        claims, tests, about = None, None, about | {"no_claims": str(error)}
    more = {"claims": claims, "tests": tests, "diagnostics": diagnostics, "coordinates": coordinates}
    page.write_text(render(results, curves, stages, about, **more), encoding="utf-8")
    return page


def _decisions(
    frames: "Frames", about: Mapping[str, Any], planned: "pd.DataFrame", plugin: Sequence[Path] | None
) -> "list[Decision]":
    """Return the verdict on every claim that is known, built in or given."""
    from growbench.claim import Evidence, decide, known

    results, curves, _, diagnostics = frames
    memory = frozenset(str(task["name"]) for task in about["tasks"] if task.get("memory"))
    evidence = Evidence(results=results, curves=curves, diagnostics=diagnostics, memory=memory, planned=planned)
    with _guests():
        return decide(known(plugin or ()), evidence)


def _assigned(words: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping."""
    pairs = [word.partition("=") for word in words]
    if bad := next((name for name, sign, value in pairs if not (name and sign and value)), None):
        raise ValueError(f"{bad!r} has no value: write NAME=VALUE, as in column=body")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _read(value: str) -> Any:
    """Return a value as JSON reads it, or as it is."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def _command() -> str:
    return shlex.join(["growbench", *sys.argv[1:]])


def _cache() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("growbench")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _launchers() -> list[dict[str, str]]:
    paths = sorted(Path(str(files("growbench") / "launch")).glob("[!_]*.py"))
    docs = {path.stem: ast.get_docstring(ast.parse(path.read_bytes())) or "" for path in paths}
    return [{"name": name, "origin": "built-in", "about": doc.partition("\n")[0]} for name, doc in docs.items()]


def _studies() -> list[dict[str, str]]:
    import yaml

    paths = sorted(Path(str(files("growbench") / "studies")).glob("*.yaml"), key=lambda path: path.stem)
    return [
        {"name": path.stem, "origin": "built-in", "about": yaml.safe_load(path.read_text())["about"]} for path in paths
    ]


def _outcome(folder: Path, finished: int, cached: int, failed: int) -> str:
    if failed:
        return f"{finished} stages done, {failed} failed, {cached} were there; `growbench status {folder}` says why."
    if not finished:
        return f"Nothing was left to do: all {cached} stages are in {folder}."
    return f"{finished} stages done, {cached} were there."
