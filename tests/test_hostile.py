"""Folders from strangers: whatever they hold, reading them runs no code of theirs, writes nowhere else, and ends."""

import json
import os
import resource
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import toy
from pyarrow import parquet
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_merge import part

from growbench import cli, folders, reading
from growbench.claim import decide, known
from growbench.evidence import Evidence
from growbench.merge import merge
from growbench.store import CHECKPOINT, CURVE, RECORD, Record, Store, canonical, digest
from growbench.study import read_study, shipped
from growbench.tables import PLAN, RUN, TUNING, read_plan, refuse_foreign, status, write_tables
from growbench.verify import verify

SECRET = "what a stranger should not reach"
EVIL = "raise SystemExit('code from the folder was run')\n"


# --- a watch on the interpreter --------------------------------------------------------------------------------------

_watch: list[Callable[[str, tuple[Any, ...]], None]] = []
_WRITES = {"os.rename", "os.remove", "os.symlink", "os.link", "os.mkdir", "os.rmdir", "os.truncate", "shutil.rmtree"}


def _hook(event: str, given: tuple[Any, ...]) -> None:
    for look in _watch:
        look(event, given)


sys.addaudithook(_hook)


@contextmanager
def watched(outside: Path, inside: Path) -> Iterator[None]:
    """Meanwhile, nothing is written outside, nothing is unpickled, and no code runs from either folder."""
    seen: list[str] = []

    def look(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[0], str | bytes):
            flags = given[2] if isinstance(given[2], int) else 0
            written = [given[0]] if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC) else []
        elif event in _WRITES:
            written = [word for word in given[:2] if isinstance(word, str | bytes)]
        elif event == "exec":
            where = str(getattr(given[0], "co_filename", ""))
            if where.startswith((f"{outside}/", f"{inside}/")):
                seen.append(f"ran {where}")
            return
        elif event in ("pickle.find_class", "os.system", "marshal.loads_of_folder"):
            seen.append(event)
            return
        else:
            return
        for path in written:
            real = os.path.realpath(os.fsdecode(path))
            if real.startswith(f"{outside}/"):
                seen.append(f"{event} {real}")

    _watch.append(look)
    try:
        yield
    finally:
        _watch.remove(look)
    assert not seen, seen


class Folder:
    """A small folder of results, and a place outside of it that must not be reached."""

    def __init__(self, sound: Path, at: Path) -> None:
        self.base, self.out, self.outside = at, at / "out", at / "outside"
        self.outside.mkdir()
        (self.outside / "victim").write_text(SECRET)
        (self.outside / "evil.py").write_text(EVIL)
        shutil.copytree(sound, self.out)
        self.store = Store(self.out)
        self.key = read_plan(self.out)["arms"][0]["points"][-1]["path"][-1]
        self.place = self.store.folder(self.key)

    def moved(self, path: Path) -> None:
        """Put a link in a path's place, to where it now is."""
        shutil.move(path, self.outside / path.name)
        path.symlink_to(self.outside / path.name)

    def plan(self, change: Callable[[dict[str, Any]], object]) -> None:
        found = json.loads((self.out / PLAN).read_text())
        change(found)
        (self.out / PLAN).write_text(json.dumps(found))

    def record(self, **changes: Any) -> None:
        """Another record, whose own digest is right."""
        body = json.loads((self.place / RECORD).read_text())
        del body["digest"]
        body |= changes
        try:
            stated = digest(canonical(body))
        except ValueError:
            stated = "of nothing"
        (self.place / RECORD).write_text(json.dumps(body | {"digest": stated}))

    def file(self, name: str, write: Callable[[Path], object]) -> None:
        """Another file in the stage's folder, of which the record states the digest."""
        path = self.place / name
        path.unlink(missing_ok=True)
        write(path)
        record = Record.from_json((self.place / RECORD).read_text())
        files = dict(record.files) | {name: digest(path.read_bytes())}
        (self.place / RECORD).write_text(replace(record, files=files).to_json())

    def checkpoint(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Another metadata in the stage's checkpoint."""
        path = self.place / CHECKPOINT
        tensors = load_file(path)
        with safe_open(path, framework="pt") as handle:
            about = json.loads(handle.metadata()["growbench"])
        change(about)
        self.file(CHECKPOINT, lambda path: save_file(tensors, path, metadata={"growbench": json.dumps(about)}))


@pytest.fixture(scope="module")
def sound(toy_run: toy.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of one arm, which is copied."""
    out = tmp_path_factory.mktemp("sound") / "out"
    part(toy_run, out, lambda about: about["arm"] == "transformer/zero_pad" and not about["seed"])
    write_tables(out)
    return out


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Folder:
    return Folder(sound, tmp_path)


def claims(out: Path) -> None:
    (results, curves, _, diagnostics), about = folders.read([out])
    memory = frozenset(str(task["name"]) for task in about["tasks"] if task.get("memory"))
    decide(known(()), Evidence(results=results, curves=curves, diagnostics=diagnostics, memory=memory))


COMMANDS: dict[str, Callable[[Folder], object]] = {
    "status": lambda folder: status(folder.out),
    "read": lambda folder: folders.read([folder.out]) and None,  # all that a report is made of
    "merge": lambda folder: merge([folder.out], folder.base / "merged"),
    "verify": lambda folder: verify(folder.out, sample=0).wrong,
    "evaluate": lambda folder: verify(folder.out, sample=40).wrong,
    "claims": lambda folder: claims(folder.out),
    "report": lambda folder: cli._write_report([folder.out], folder.out / "report.html"),
}
QUICK = ("status", "read", "merge", "verify")


def survives(folder: Folder, *commands: str) -> dict[str, object]:
    """Run commands on a folder: each ends well or in a sentence. Returns what they gave, or the sentence."""
    given: dict[str, object] = {}
    shutil.rmtree(folder.base / "merged", ignore_errors=True)
    for name in commands or QUICK:
        with watched(folder.outside, folder.out):
            try:
                given[name] = COMMANDS[name](folder)
            except ValueError as error:
                given[name] = str(error)
    assert (folder.outside / "victim").read_text() == SECRET
    assert not os.access(folder.outside / "reached", os.F_OK)
    return given


def test_the_folder_itself_is_read_and_nothing_is_wrong_with_it(folder: Folder) -> None:
    given = survives(folder, *COMMANDS)
    assert given["verify"] == given["evaluate"] == []
    assert (folder.out / "report.html").is_file()
    assert len(Store(folder.base / "merged").records()) == len(folder.store.records())


# --- links, pipes, names ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", RECORD, CHECKPOINT, CURVE])
def test_a_stage_that_is_a_link_or_holds_one_is_damaged(name: str, folder: Folder) -> None:
    folder.moved(folder.place / name if name else folder.place)
    given = survives(folder)
    assert any("is a link" in wrong["what"] for wrong in given["verify"])  # type: ignore[attr-defined]
    assert folder.key not in Store(folder.base / "merged").records()
    assert folder.key not in reading.records(folder.out)
    assert (status(folder.out)["damaged"], status(folder.out)["ok"] > 3) == (1, True)


@pytest.mark.parametrize("name", ["stages", PLAN, TUNING])
def test_a_link_in_place_of_a_part_is_not_followed(name: str, folder: Folder) -> None:
    if name == TUNING:
        shutil.copytree(folder.out, folder.out / TUNING)
    folder.moved(folder.out / name)
    given = survives(folder)
    assert "is a link" in str(given["verify"])
    assert "is a link" in str(given["merge"])
    if name != PLAN:
        with pytest.raises(ValueError, match="is a link"):
            refuse_foreign(folder.out)


@pytest.mark.parametrize("name", ["report.html", "results.parquet", ".results.parquet", "curves.parquet", RUN])
def test_nothing_is_written_through_a_link(name: str, folder: Folder) -> None:
    (folder.out / name).unlink(missing_ok=True)
    (folder.out / name).symlink_to(folder.outside / "victim")
    given = survives(folder, "verify", "report")
    with watched(folder.outside, folder.out):
        write_tables(folder.out)
    assert (folder.outside / "victim").read_text() == SECRET
    if name in ("results.parquet", "curves.parquet", RUN):
        assert name in str(given["verify"])


@pytest.mark.parametrize("name", [PLAN, RUN, "results.parquet", f"stages/{{key}}/{RECORD}", f"stages/{{key}}/{CURVE}"])
def test_a_pipe_does_not_hold_a_command_up(name: str, folder: Folder) -> None:
    path = folder.out / name.format(key=folder.key)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    given = survives(folder)
    assert given["verify"]
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize(
    "name", ["../../../outside/victim", "/etc/hostname", "a/b", "..", ".", "", ".hidden", "a\nb", "a\0b", "é"]
)
def test_a_file_name_in_a_record_is_a_name(name: str, folder: Folder) -> None:
    record = Record.from_json((folder.place / RECORD).read_text())
    folder.record(files=dict(record.files) | {name: digest(SECRET)})
    given = survives(folder)
    assert "damaged: its record is none: files" in str(given["verify"])
    assert folder.key not in Store(folder.base / "merged").records()


@pytest.mark.parametrize(
    "key", ["../../outside", "/etc", "..", "", "x" * 24, "0" * 23, f"{'0' * 24}\n", f"{'0' * 24}/.."]
)
def test_a_key_is_a_key(key: str, folder: Folder) -> None:
    with pytest.raises(ValueError, match="is no key of a stage"):
        reading.record(folder.out, key)
    folder.record(key=key)
    assert "its record is that of stage" in str(survives(folder, "verify", "merge"))
    old = (folder.out / PLAN).read_bytes()
    for change in (
        lambda plan: plan["stages"].update({key: ["train", None, "x"]}),
        lambda plan: plan["stages"].update({folder.key: ["train", key, "x"]}),
        lambda plan: plan["arms"][0]["points"][0]["path"].append(key),
        lambda plan: plan["arms"][0]["points"][0].update(ladder=[key]),
        lambda plan: plan["coordinates"][0].update(stage=key),
    ):
        folder.plan(change)
        for said in survives(folder).values():
            assert "is no plan of growbench" in str(said)
        (folder.out / PLAN).write_bytes(old)


def test_names_are_words_and_no_paths(folder: Folder) -> None:
    def change(plan: dict[str, Any]) -> None:
        plan["name"] = "../../outside/reached"
        plan["study"] = plan["study"].replace("study: toy", "study: ../../outside/reached")
        for arm in plan["arms"]:
            arm["about"] |= {"arm": f"../../outside/reached/{arm['about']['arm']}", "task": "/etc", "study": "../.."}
        plan["skipped"] = {"../../outside/reached": "../.."}

    folder.plan(change)
    survives(folder, *COMMANDS)
    assert sorted(path.name for path in folder.base.iterdir()) in (["merged", "out", "outside"], ["out", "outside"])


# --- JSON and YAML ---------------------------------------------------------------------------------------------------

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.mark.parametrize(
    "text",
    [DEEP, '{"a":' * 100_000 + "1" + "}" * 100_000, "NaN", "Infinity", "1e999", "9" * 5000, "1" + "0" * 30, "\ud800"],
    ids=["lists", "objects", "NaN", "Infinity", "1e999", "digits", "large", "surrogate"],
)
def test_json_that_no_table_can_hold_is_refused(text: str, folder: Folder) -> None:
    value = json.dumps(text) if text == "\ud800" else text
    record = (folder.place / RECORD).read_text()
    plan = (folder.out / PLAN).read_text()
    (folder.place / RECORD).write_text(record.replace('"reason": ""', f'"reason": {value}'))
    (folder.out / RUN).write_text(value)
    given = survives(folder)
    assert RUN in str(given["verify"])
    assert f"{folder.place} is damaged" in str(given["verify"])
    shutil.rmtree(folder.base / "merged", ignore_errors=True)
    (folder.out / PLAN).write_text(plan.replace('"skipped": {}', f'"skipped": {value}'))
    assert plan.count('"skipped": {}') == 1
    for said in survives(folder).values():
        assert "is no plan of growbench" in str(said)


WRONG: list[Any] = [3, -1, 1.5, "x", None, True, [], {}, [[]], {"x": 3}, [3]]


def test_a_plan_of_wrong_types_is_one_sentence(folder: Folder) -> None:
    plan = json.loads((folder.out / PLAN).read_text())
    arm = plan["arms"][0]
    places: list[tuple[Any, str]] = [(plan, name) for name in plan]
    places += [(arm, name) for name in arm] + [(arm["about"], name) for name in arm["about"]]
    places += [(arm["points"][0], name) for name in arm["points"][0]]
    places += [(arm["points"][0]["size"], name) for name in arm["points"][0]["size"]]
    places += [(plan["tasks"][0], name) for name in plan["tasks"][0]]
    refused = 0
    for holder, name in places:
        before = holder[name]
        for value in WRONG:
            holder[name] = value
            (folder.out / PLAN).write_text(json.dumps(plan))
            try:
                status(folder.out)
                folders.read([folder.out])
            except ValueError:
                refused += 1
        holder[name] = before
    assert refused > len(places) * len(WRONG) / 3


def test_a_record_of_wrong_types_is_damaged(folder: Folder) -> None:
    before = (folder.place / RECORD).read_text()
    for name in json.loads(before):
        for value in WRONG:
            folder.record(**{name: value})
            try:
                found = reading.record(folder.out, folder.key)
            except ValueError as error:
                assert "is damaged" in str(error)  # noqa: PT017
            else:
                assert found == Record(**{**vars(Record.from_json(before)), name: value})
                folders.read([folder.out])
            (folder.place / RECORD).write_text(before)


def test_files_far_too_large_are_not_read(folder: Folder) -> None:
    for path, size in ((folder.place / RECORD, "record"), (folder.out / RUN, "run")):
        with path.open("ab") as handle:
            handle.truncate(reading.LARGEST[size] + 1)
    limited = resource.getrlimit(resource.RLIMIT_AS)
    given = survives(folder)
    assert "more than growbench ever writes" in str(given["verify"])
    with (folder.out / PLAN).open("ab") as handle:
        handle.truncate(reading.LARGEST["plan"] + 1)
    assert all("is no plan of growbench" in str(said) for said in survives(folder).values())
    assert resource.getrlimit(resource.RLIMIT_AS) == limited


BOMB = "a: &a [x, x]\n" + "".join(
    f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghijk", "bcdefghijkl", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        "!!python/object/apply:os.system ['touch reached']",
        "about: !!python/name:os.system",
        "!!python/object/new:os.system [touch reached]",
        BOMB,
        "study: " + "[" * 50_000,
        "- a list",
        "study: x\n" * 200_000,
        "a: [",
        "\x00",
    ],
    ids=["apply", "name", "new", "aliases", "deep", "list", "long", "broken", "control"],
)
def test_a_study_is_read_as_values(text: str, folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.outside)
    folder.plan(lambda plan: plan.update(study=text))
    given = survives(folder, "read", "report", "merge")
    assert all("the study that the plan states cannot be read" in str(said) for said in given.values())


# --- tables ----------------------------------------------------------------------------------------------------------


class _Extended(pa.ExtensionType):  # type: ignore[misc]
    """A type whose name, in old pyarrow, had the reader unpickle it."""

    def __init__(self) -> None:
        super().__init__(pa.float64(), "arrow.py_extension_type")

    def __arrow_ext_serialize__(self) -> bytes:
        return b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."


def _columns(**changes: Any) -> pa.Table:
    own = {"tokens": [64], "loss": [1.0], "train_loss": [1.0], "learning_rate": [0.1]} | changes
    return pa.table({name: value for name, value in own.items() if value is not None})


TABLES: dict[str, Callable[[], pa.Table]] = {
    "words": lambda: _columns(loss=["x"]),
    "lists": lambda: _columns(loss=[[1.0]]),
    "structs": lambda: _columns(loss=[{"a": 1}]),
    "dates": lambda: _columns(tokens=pa.array([0], pa.timestamp("ns", tz="UTC"))),
    "fractions": lambda: _columns(tokens=[1.5]),
    "missing": lambda: _columns(loss=None),
    "twice": lambda: pa.Table.from_arrays([pa.array([1.0])] * 4, names=["tokens", "loss", "loss", "learning_rate"]),
    "extension": lambda: _columns(loss=pa.ExtensionArray.from_storage(_Extended(), pa.array([1.0]))),
    "none": lambda: pa.table({}),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_of_other_columns_is_refused(name: str, folder: Folder) -> None:
    table = TABLES[name]()
    folder.file(CURVE, lambda path: parquet.write_table(table, path))
    given = survives(folder, "status", "read", "verify")
    for command in ("read", "verify"):
        assert f"{CURVE} is no table of growbench" in str(given[command]), command


def test_metadata_of_pandas_in_a_table_is_not_read(folder: Folder) -> None:
    meta = {"pandas": json.dumps({"index_columns": ["loss"], "columns": [{"name": "loss", "numpy_type": "object"}]})}
    good = parquet.read_table(folder.place / CURVE)
    folder.file(CURVE, lambda path: parquet.write_table(good.replace_schema_metadata(meta), path))
    (results, _, _, _), _ = folders.read([folder.out])
    assert results["loss"].notna().all()
    assert survives(folder, "verify")["verify"] == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + b"\xff" * 100 + b"PAR1", b"\x80\x04."])
def test_bytes_that_are_no_table_are_refused(content: bytes, folder: Folder) -> None:
    folder.file(CURVE, lambda path: path.write_bytes(content))
    (folder.out / "results.parquet").write_bytes(content)
    given = survives(folder, "read", "verify")
    assert all(f"{CURVE} is no table of growbench" in str(said) for said in given.values())


# --- checkpoints and plugins -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        lambda about: about["shape"].update(layers=10**12),
        lambda about: about["scaling"]["base"].update(layers=10**12),
        lambda about: about["shape"].update(ffn=10**9),
        lambda about: about["shape"].update(vocab=10**15),
        lambda about: about["shape"].update(layers="x"),
        lambda about: about.clear(),
        lambda about: about.update(tokens="x"),
        lambda about: about.update(norms=3),
        lambda about: about.update(ramps=[{"axis": "x"}]),
    ],
    ids=["layers", "base", "ffn", "vocab", "type", "empty", "tokens", "norms", "ramps"],
)
def test_a_checkpoint_is_no_larger_than_its_file(change: Callable[[dict[str, Any]], object], folder: Folder) -> None:
    folder.checkpoint(change)
    limited = resource.getrlimit(resource.RLIMIT_AS)
    assert survives(folder, "evaluate")["evaluate"]
    assert resource.getrlimit(resource.RLIMIT_AS) == limited


def test_a_pickle_in_place_of_a_checkpoint_is_not_loaded(folder: Folder) -> None:
    pickled = b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x8c\x06system\x93\x8c\x04true\x85R."
    folder.file(CHECKPOINT, lambda path: path.write_bytes(pickled))
    assert "is no file of growbench" in str(survives(folder, "evaluate")["evaluate"])


@pytest.mark.parametrize("name", ["evil", "outside/evil", "../evil", "growbench.tasks.text", "os"])
def test_a_plugin_that_the_folder_names_is_not_loaded(
    name: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that lies in it, or in the working folder."""
    monkeypatch.chdir(folder.outside)
    for place in (folder.out, folder.place, folder.outside):
        for file in ("evil.py", "conftest.py", "sitecustomize.py", "text.py"):
            (place / file).write_text(EVIL)
    folder.plan(
        lambda plan: plan.update(strategies=[{"name": name, "origin": f"file {folder.outside}/evil.py", "summary": ""}])
    )
    for key, record in folder.store.records().items():
        identity = {**record.identity, "task": {**record.identity["task"], "name": name}}
        (folder.store.folder(key) / RECORD).write_text(replace(record, identity=identity).to_json())
    survives(folder)
    with watched(folder.outside, folder.out):
        found = verify(folder.out, sample=40)
    assert found.unchecked
    assert {item["why"].partition(" (")[0] for item in found.unchecked} <= {
        f"unknown task {name!r}: did you mean text?",
        f"unknown task {name!r}: known are",
    } or all("unknown task" in item["why"] for item in found.unchecked)
    assert all("name its file with --plugin" in item["why"] for item in found.unchecked)


def test_data_of_the_reader_s_machine_are_read_only_where_they_are_a_file(folder: Folder) -> None:
    """A stranger's task may name any path: a folder would be walked, a pipe waited for."""
    os.mkfifo(folder.outside / "pipe")
    for path in ("/", "/proc", str(folder.outside), str(folder.outside / "pipe"), "/dev/zero"):
        for key, record in folder.store.records().items():
            parameters = {**record.identity["task"]["parameters"], "path": path}
            identity = {**record.identity, "task": {**record.identity["task"], "parameters": parameters}}
            (folder.store.folder(key) / RECORD).write_text(replace(record, identity=identity).to_json())
        found = verify(folder.out, sample=40)
        assert found.unchecked
        assert all("are no file of at most" in item["why"] for item in found.unchecked), found.unchecked


def test_what_a_folder_says_does_not_steer_the_terminal(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    escape = "\x1b]0;owned\x07\x1b[2J\x9b31m"
    folder.plan(lambda plan: plan["stages"].update({folder.key: ["cooldown", plan["stages"][folder.key][1], escape]}))
    folder.record(status="failed", reason=escape)
    monkey = sys.argv
    for words in (["status"], ["status", "--json"], ["verify", "--sample", "0"]):
        sys.argv = ["growbench", *words, str(folder.out)]
        with pytest.raises(SystemExit):
            cli.main()
        said = capsys.readouterr()
        assert not {character for character in said.out + said.err if ord(character) < 32 and character != "\n"}
        assert "\x9b" not in said.out + said.err
    sys.argv = monkey


def test_the_studies_that_come_with_growbench_are_read(toy_run: toy.Run) -> None:
    for study in (toy_run.plan.study, *map(read_study, shipped())):
        assert reading.study(study.to_yaml())["study"] == study.study
