"""The command line: words in, words out. Everything else is a library call, imported when its command runs.

Results go to stdout, progress and errors to stderr. Exit codes: 0 good, 1 an arm failed, 2 usage, 130 interrupted.
"""

import json
import os
import shlex
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

import growbench
from growbench import plugins
from growbench.console import print_json, print_words, progress, say

if TYPE_CHECKING:
    import pandas as pd

    from growbench.claim import Decision
    from growbench.folders import Frames
    from growbench.launch import Summary
    from growbench.launch._request import Request
    from growbench.study import Launch, Study

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
Accelerator = Annotated[str | None, typer.Option(metavar="NAME", help="Train on cpu or cuda instead of the study's.")]
Devices = Annotated[int | None, typer.Option(help="Number of devices that train a stage, a process for each.")]
DeviceStrategy = Annotated[str | None, typer.Option(metavar="NAME", help="How several devices share a stage: ddp.")]
Precision = Annotated[str | None, typer.Option(metavar="NAME", help="64-true, 32-true or bf16-mixed.")]
Compile = Annotated[bool | None, typer.Option("--compile/--no-compile", help="Train with torch.compile, or without.")]
Deterministic = Annotated[
    bool | None,
    typer.Option("--deterministic/--no-deterministic", help="Use no kernel that rounds differently in a repetition."),
]
CheckpointEvery = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="Keep a stage under way so often; every 300 if not given.")
]
StageTimeout = Annotated[
    float | None, typer.Option(metavar="SECONDS", help="A stage has failed that is silent so long; never if not given.")
]
Workers = Annotated[int | None, typer.Option(min=1, help="Worker processes, one thread each; one per core.")]
LauncherName = Annotated[
    str | None, typer.Option("--launcher", metavar="NAME", help="Who runs the stages: local, slurm, ray, or a plugin.")
]
Wait = Annotated[bool, typer.Option("--wait", help="Stay and show progress where the launcher would not.")]
Only = Annotated[str | None, typer.Option(help="Run the arms that match this pattern alone, e.g. 'zero_*'.")]
Format = Literal["html", "md", "latex"]
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


class _WithOptions(TyperCommand):
    """A command that takes, besides its own, --NAME-OPTION VALUE for every launcher NAME."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep a launcher's options in ctx.obj, by launcher and option, as JSON reads them or as they are."""
        names, own = plugins.discover("launcher"), {word for option in self.params for word in option.opts}
        ctx.obj, left = {}, []
        while args:
            word, *args = args
            option, equals, value = word.partition("=")
            name, _, key = option.removeprefix("--").partition("-")
            if not option.startswith("--") or option in own or name not in names or not key:
                left.append(word)
                continue
            if not equals and args and not args[0].startswith("--"):
                value, *args = args
            elif not equals:
                value = "true"
            ctx.obj.setdefault(name, {})[key.replace("-", "_")] = _read(value)
        return super().parse_args(ctx, left)


def _read(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


# --- commands --------------------------------------------------------------------------------------------------------


@app.command(cls=_WithOptions)
def run(
    context: typer.Context,
    study: StudyArgument = "quick",
    out: Out = None,
    workers: Workers = None,
    seeds: Seeds = None,
    first_seed: FirstSeed = None,
    only: Only = None,
    untuned: Untuned = False,
    accelerator: Accelerator = None,
    devices: Devices = None,
    device_strategy: DeviceStrategy = None,
    precision: Precision = None,
    compile: Compile = None,
    deterministic: Deterministic = None,
    checkpoint_every: CheckpointEvery = None,
    stage_timeout: StageTimeout = None,
    launcher: LauncherName = None,
    wait: Wait = False,
    plugin: PluginPaths = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a study, or what is left of it, tuning first where it says so, and write its report.

    A launcher's options are --NAME-OPTION VALUE, as in --launcher slurm --slurm-partition gpu.
    """
    from growbench.launch import Limits

    on = _device(accelerator, devices, device_strategy, compile, deterministic)
    chosen = _study(study, plugin, seeds=seeds, first_seed=first_seed, untuned=untuned, precision=precision, device=on)
    folder = out or Path("runs") / chosen.study
    request = _request(chosen, launcher, context.obj, workers=workers, wait=wait, only=only, plugin=plugin)
    request = replace(request, limits=Limits(keep_every=checkpoint_every, silent=stage_timeout))
    with _carried_on(folder, request), _guests():
        summary = request.run(folder, progress)
    _conclude(folder, request, summary, as_json, selected=bool(only or seeds or first_seed))


@app.command()
def retry(
    folder: Annotated[Path, typer.Argument(parser=_path, metavar="DIR", help="Folder of results.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run what failed in a folder again, and what is left: the same study, by the launcher and code it was run with."""
    request = _requested(folder)
    with _carried_on(folder, request), _guests():
        summary = request.retry(folder, progress)
    if summary is None:
        print(f"What failed and what is left is handed to {request.launcher}: `growbench status {folder}` tells.")
        return
    _conclude(folder, request, summary, as_json)


@app.command()
def cancel(
    folder: Annotated[Path, typer.Argument(parser=_path, metavar="DIR", help="Folder of results.")],
    plugin: PluginPaths = None,
    debug: Debug = False,
) -> None:
    """End the jobs at work in a folder; finished stages stay, and `growbench retry` goes on from there."""
    with _guests():
        found = _requested(folder).made(plugin or ()).cancel(folder.absolute())
    print(f"Its jobs are ended; finished stages stay in {folder}." if found else f"No job is at work in {folder}.")


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
    from growbench.tables import refuse_foreign

    try:
        request = _request(chosen, "local", {}, workers=workers, wait=False, only=only, plugin=plugin)
        with _guests():
            refuse_foreign(folder)
            tuned = request.tune(folder, request.made(), progress, again=True)
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
    accelerator: Accelerator = None,
    devices: Devices = None,
    device_strategy: DeviceStrategy = None,
    precision: Precision = None,
    compile: Compile = None,
    deterministic: Deterministic = None,
    plugin: PluginPaths = None,
    stages: Annotated[bool, typer.Option("--stages", help="List every stage too.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say what a run would do and cost, and what is there already."""
    on = _device(accelerator, devices, device_strategy, compile, deterministic)
    chosen = _study(study, plugin, seeds=seeds, first_seed=first_seed, untuned=untuned, precision=precision, device=on)
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
        Path | None, typer.Option(parser=_path, help="The file; report.html in the first folder if not given.")
    ] = None,
    form: Annotated[
        Format, typer.Option("--format", help="html, or to paste: md (Markdown), latex (tables).")
    ] = "html",
    side_by_side: Annotated[
        bool, typer.Option("--side-by-side", help="Several studies or versions beside each other, nothing pooled.")
    ] = False,
    plugin: PluginPaths = None,
    debug: Debug = False,
) -> None:
    """Write the report of one or more folders as one file, or print it as text to paste."""
    from growbench import publish
    from growbench.folders import write_page

    if side_by_side:
        if form != "html":
            raise ValueError("--side-by-side is a page: leave --format away, or use `growbench compare`")
        page = out or folders[0] / "side-by-side.html"
        write_page(page, publish.page_beside(folders), folders)
        print(page)
    elif form == "html":
        print(_write_report(folders, out or folders[0] / "report.html", plugin))
    else:
        with _guests():
            text = publish.report(folders, form, tuple(plugin or ()))
        if out is None:
            print(text, end="")
        else:
            out.write_text(text, encoding="utf-8")
            print(out)


@app.command()
def compare(
    folders: Annotated[
        list[Path], typer.Argument(parser=_path, metavar="DIR DIR...", help="Two or more folders of results.")
    ],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Print how folders differ: how each was made, and its arms against those of the first; nothing is pooled."""
    from growbench.publish import beside

    print_words(beside(folders), as_json)


@app.command()
def watch(
    folders: Annotated[
        list[Path], typer.Argument(parser=_path, metavar="DIR...", help="Folders of results of one study.")
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8765,
    every: Annotated[float, typer.Option(min=1.0, help="Seconds after which the page is made again.")] = 60.0,
    plugin: PluginPaths = None,
    debug: Debug = False,
) -> None:
    """Show the report of a study while it runs: a page on this machine alone, made again as results come in."""
    from growbench import publish
    from growbench.folders import existing

    for folder in folders:
        existing(folder)
    with publish.serve(folders, port=port, every=every, plugin=tuple(plugin or ())) as server:
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        say("Ctrl-C ends it.")
        try:
            with _guests():
                server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


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
    print_words(tables | {"studies": _studies()}, as_json)


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(parser=_path, metavar="DIR", help="Folder of results.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Say which stages of a folder are done, failed and left."""
    from growbench import tables
    from growbench.folders import existing
    from growbench.launch._request import Request

    existing(folder)
    tuning = folder / tables.TUNING
    is_tuned = not (folder / tables.PLAN).exists() and (tuning / tables.PLAN).exists()
    said = tables.status(tuning if is_tuned else folder)
    if (request := Request.read(folder)) and request.launcher != "local":
        with suppress(ValueError):  # the launcher may not be installed where its results are read
            said["at_work"] = request.made().busy(folder.absolute())
    print_words(said, as_json)


@app.command()
def merge(
    folders: Annotated[
        list[Path], typer.Argument(parser=_path, metavar="DIR...", help="Folders of results of one study.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", parser=_path, help="The folder to write, new or empty.")],
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Join the result folders of several machines into one; exit 1 if a damaged stage was left out."""
    from growbench.merge import merge

    merged = merge(folders, out)
    print_words({"out": str(out)} | asdict(merged) | {"left_out": list(merged.left_out)}, as_json)
    raise typer.Exit(1 if merged.left_out else 0)


@app.command()
def verify(
    folder: Annotated[Path, typer.Argument(parser=_path, metavar="DIR", help="Folder of results.")],
    sample: Annotated[int, typer.Option(min=0, help="Number of checkpoints to evaluate again.")] = 8,
    seed: Annotated[int, typer.Option(help="Which ones: another seed, another sample.")] = 0,
    plugin: PluginPaths = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Check a folder's hashes and tables, and evaluate a sample of its checkpoints; exit 1 if something is wrong."""
    from growbench.folders import existing
    from growbench.verify import verify

    existing(folder)
    with _guests():
        found = verify(folder, sample=sample, seed=seed, plugin_paths=plugin or (), cache=_cache())
    print_words({"out": str(folder)} | asdict(found), as_json)
    raise typer.Exit(1 if found.wrong else 0)


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
            raise ValueError(f"the task {name!r} has nothing to prepare: it needs no corpus on disk")
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


@app.command()
def grow(
    checkpoint: Annotated[
        str, typer.Argument(metavar="CHECKPOINT", help="A folder of transformers, or hub:NAME[@REVISION].")
    ],
    strategy: Annotated[str, typer.Option("--strategy", metavar="NAME", help="A strategy (`growbench list`).")],
    to: Annotated[str, typer.Option("--to", metavar="SIZES", help="Sizes to grow to, as residual=1024,ffn=4096.")],
    out: Annotated[Path, typer.Option("-o", "--out", parser=_path, help="Folder to write, which must not exist.")],
    parameter: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A strategy's parameter; repeatable.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of what the strategy draws.")] = 0,
    dtype: Annotated[
        str | None, typer.Option(help="Dtype to write, as bfloat16; the checkpoint's if not given.")
    ] = None,
    approximate: Annotated[
        bool, typer.Option("--approximate", help="Accept what the architecture cannot express exactly.")
    ] = False,
    no_verify: Annotated[
        bool, typer.Option("--no-verify", help="Do not load both models to compare their logits.")
    ] = False,
    plugin: PluginPaths = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Grow a pretrained checkpoint without training, and compare its logits before and after."""
    from growbench import pretrained
    from growbench.paths import made_strategy
    from growbench.study import StrategySpec

    given = {name: _read(value) for name, value in _assigned(parameter or []).items()}
    sizes = {name: _whole(name, value) for name, value in _assigned(to.split(",")).items()}
    with _guests():
        pretrained.quiet()
        chosen = made_strategy(StrategySpec.model_validate({"name": strategy} | given), tuple(plugin or ()))
        grown = pretrained.grow(
            pretrained.locate(checkpoint),
            out,
            chosen,
            to=sizes,
            seed=seed,
            approximate=approximate,
            dtype=pretrained.read_dtype(dtype) if dtype else None,
            verify=not no_verify,
        )
    said = asdict(grown) | {
        "sizes": {name: f"{old} to {new}" for name, (old, new) in grown.sizes.items() if new != old},
        "notes": list(grown.notes),
        "params": list(grown.params),
    }
    print_words({"out": str(out)} | said, as_json)


@app.command()
def export_model(
    folder: Annotated[Path, typer.Argument(parser=_path, metavar="DIR", help="Folder of results.")],
    arm: Annotated[str, typer.Argument(metavar="ARM", help="The arm whose final model to export.")],
    out: Annotated[Path, typer.Option("-o", "--out", parser=_path, help="Folder to write, which must not exist.")],
    task: Annotated[str | None, typer.Option(help="Which task's run, where the study has several.")] = None,
    seed: Annotated[int | None, typer.Option(help="Which seed's run; the first if not given.")] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Export an arm's final model: safetensors with a loader of one file, and for transformers where it can be."""
    from growbench import export
    from growbench.folders import existing

    existing(folder)
    print_words({"out": str(out)} | asdict(export.export(folder, arm, out, task=task, seed=seed)), as_json)


def _assigned(words: Sequence[str]) -> dict[str, str]:
    """Return NAME=VALUE words as a mapping."""
    pairs = [word.partition("=") for word in words]
    if bad := next((name for name, sign, value in pairs if not (name and sign and value)), None):
        raise ValueError(f"{bad!r} has no value: write NAME=VALUE, as in residual=1024,ffn=4096")
    return {name.strip(): value.strip() for name, _, value in pairs}


def _whole(name: str, value: str) -> int:
    if not value.isdecimal():
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    return int(value)


# --- what the commands share -----------------------------------------------------------------------------------------


def _study(
    study: str,
    plugin: Sequence[Path] | None,
    *,
    seeds: int | None = None,
    first_seed: int | None = None,
    untuned: bool = False,
    precision: str | None = None,
    device: Mapping[str, object] | None = None,
) -> "Study":
    """Return a study; strategies given with --plugin that it does not name are arms of it too."""
    from growbench.study import read_study

    found = plugins.discover("strategy", plugin or ()) if plugin else {}
    given = [name for name, strategy in found.items() if strategy.origin.startswith("file")]
    return read_study(study).at(
        seeds=seeds, first_seed=first_seed, strategies=given, untuned=untuned, precision=precision, device=device
    )


def _device(
    accelerator: str | None, devices: int | None, strategy: str | None, compiled: bool | None, same: bool | None
) -> dict[str, object]:
    """Return the fields of a study's `device` that the command gives."""
    given = {"accelerator": accelerator, "devices": devices, "strategy": strategy}
    given |= {"compile": compiled, "deterministic": same}
    return {name: value for name, value in given.items() if value is not None}


def _request(
    study: "Study",
    launcher: str | None,
    given: Mapping[str, Mapping[str, Any]],
    *,
    workers: int | None,
    wait: bool,
    only: str | None,
    plugin: Sequence[Path] | None,
) -> "Request":
    """Return what is asked for; a launcher and its options are the command's, else the study's, else the user's own."""
    from growbench.launch._request import Request

    layers = [spec for spec in (_configured(), study.launch) if spec]
    name = launcher or (layers[-1].name if layers else "local")
    if other := given.keys() - {name}:
        raise ValueError(f"--{min(other)}-... are options of --launcher {min(other)}, and this is {name}")
    options: dict[str, Any] = {}
    for spec in layers:
        options |= spec.parameters if spec.name == name else {}
    options |= {**given.get(name, {})} | ({} if workers is None else {"workers": workers})
    if wait and "wait" in plugins.find("launcher", name, plugin or ()).fields:
        options["wait"] = True
    return Request(
        study=study,
        plugin_paths=tuple(plugin or ()),
        only=only,
        cache=_cache(),
        command=_command(),
        launcher=name,
        options=options,
    )


def _configured() -> "Launch | None":
    """The `launch` block of the user's config file, config.yaml in the folder of growbench's settings."""
    import yaml
    from platformdirs import user_config_path

    from growbench.study import parse_launch

    path = user_config_path("growbench") / "config.yaml"
    if not path.is_file():
        return None
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return parse_launch(found.get("launch") if isinstance(found, dict) else None, str(path))


def _requested(folder: Path) -> "Request":
    from growbench.folders import existing
    from growbench.launch._request import Request

    existing(folder)
    if request := Request.read(folder):
        return request
    raise ValueError(f"{folder} does not say how it was run: give `growbench run` its study and --out")


@contextmanager
def _carried_on(folder: Path, request: "Request") -> Iterator[None]:
    """Around a run: an interrupt ends the command with 130, and says what becomes of the rest."""
    try:
        yield
    except KeyboardInterrupt:
        if request.made().follows:
            say(f"Interrupted, and {request.launcher} goes on: `growbench status {folder}` tells how far it is.")
        else:
            say(f"Interrupted: finished stages stay in {folder}, and the same command goes on from there.")
        raise typer.Exit(130) from None


def _conclude(folder: Path, request: "Request", summary: "Summary", as_json: bool, *, selected: bool = False) -> None:
    """Say what a run came to, and exit."""
    page = None if summary.pending else _write_report([folder], folder / "report.html")
    if as_json:
        said = asdict(summary) | {"study": request.study.study, "out": str(folder)}
        print_json(said | {"report": None if page is None else str(page)})
    else:
        print(_outcome(folder, request, summary))
        if page and selected:
            print(
                "Results and report hold this selection; the command without --only, --seeds and --first-seed shows "
                "the study's own again."
            )
        if page:
            print(page)
    raise typer.Exit(1 if summary.failed or (summary.pending and request.made().follows) else 0)


def _guests() -> redirect_stdout[Any]:
    """Around code that plugins run in: what they print goes to stderr, so that stdout holds results alone."""
    return redirect_stdout(sys.stderr)


def _write_report(folders: Sequence[Path], page: Path, plugin: Sequence[Path] | None = None) -> Path:
    from growbench import publish

    with _guests():
        publish.write(page, folders, tuple(plugin or ()))
    return page


def _decisions(
    frames: "Frames", about: Mapping[str, Any], planned: "pd.DataFrame", plugin: Sequence[Path] | None
) -> "list[Decision]":
    """Return the verdict on every claim that is known, built in or given."""
    from growbench import publish

    with _guests():
        return publish.decisions(frames, about, planned, tuple(plugin or ()))


def _command() -> str:
    return shlex.join(["growbench", *sys.argv[1:]])


def _cache() -> Path:
    from platformdirs import user_cache_path

    return user_cache_path("growbench")


def _studies() -> list[dict[str, str]]:
    import yaml

    paths = sorted(Path(str(files("growbench") / "studies")).glob("*.yaml"), key=lambda path: path.stem)
    return [
        {"name": path.stem, "origin": "built-in", "about": yaml.safe_load(path.read_text())["about"]} for path in paths
    ]


def _outcome(folder: Path, request: "Request", summary: "Summary") -> str:
    if summary.pending and request.made().follows:
        return f"{summary.pending} stages are left and no job is at work: `growbench retry {folder}` goes on."
    if summary.pending:
        return (
            f"{request.launcher} has {summary.pending} stages: `growbench status {folder}` says how far they are, "
            f"`growbench cancel {folder}` ends them."
        )
    if summary.failed:
        return (
            f"{summary.finished} stages done, {summary.failed} failed, {summary.cached} were there; "
            f"`growbench status {folder}` says why."
        )
    if not summary.finished:
        return f"Nothing was left to do: all {summary.cached} stages are in {folder}."
    return f"{summary.finished} stages done, {summary.cached} were there."
