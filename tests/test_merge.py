"""Merging: the parts of a run come to the run; what disagrees is refused by name; nothing half-done is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import toy
from filelock import FileLock
from pyarrow import parquet

from growbench import folders, reading
from growbench.merge import join_plans, join_runs, merge
from growbench.results import DIAGNOSTICS
from growbench.store import CURVE, EVENTS, RECORD, Record, Store, digest
from growbench.study import parse_study
from growbench.tables import PLAN, RUN, TUNING, read_plan, refuse_foreign, status, tables

GROWBENCH = Path(sys.executable).with_name("growbench")
MEASURED = ["wall_s", "peak_memory_bytes", "started", "restarts"]


def part(run: toy.Run, out: Path, keep: Callable[[dict[str, Any]], bool], **seeds: int) -> Path:
    """A folder with the arms of a run that are kept, as a machine that ran those alone leaves it."""
    plan = read_plan(run.out)
    arms = [arm for arm in plan["arms"] if keep(arm["about"])]
    keys = {key for arm in arms for point in arm["points"] for key in (*point["path"], *point["ladder"])}
    keys |= {check["stage"] for check in plan["coordinates"]}
    study = run.plan.study.model_copy(update=seeds).to_yaml()
    stages = {key: entry for key, entry in plan["stages"].items() if key in keys}
    out.mkdir(parents=True)
    (out / PLAN).write_text(json.dumps(plan | {"arms": arms, "stages": stages, "study": study}))
    shutil.copy(run.out / RUN, out)
    for key in keys:
        shutil.copytree(Store(run.out).folder(key), Store(out).folder(key))
    return out


def seed(run: toy.Run, out: Path, number: int, *strategies: str) -> Path:
    """A folder with one seed of a run, of all its strategies or of some."""

    def keep(about: dict[str, Any]) -> bool:
        return about["seed"] == number and (not strategies or about["strategy"] in strategies)

    return part(run, out, keep, seeds=1, first_seed=number)


def rewritten(out: Path, key: str, **changes: Any) -> Record:
    """Another record of a stage, with a digest that is right."""
    record = Store(out).read(key)
    assert record is not None
    record = replace(record, **changes)
    (Store(out).folder(key) / RECORD).write_text(record.to_json())
    return record


def shown(frame: pd.DataFrame, *by: str) -> pd.DataFrame:
    return frame.drop(columns=MEASURED, errors="ignore").sort_values(list(by)).reset_index(drop=True)


def test_the_seeds_of_two_machines_come_to_the_run_of_both(toy_run: toy.Run, tmp_path: Path) -> None:
    a, b = (seed(toy_run, tmp_path / f"machine {n}", n) for n in (0, 1))
    for key in Store(b).records():  # another clock, another machine
        rewritten(b, key, started="1999-01-01T00:00:00", wall_s=9.0, environment={"host": "b"}, restarts=1)
    merged = merge([a, b], tmp_path / "c")
    shared = len(read_plan(a)["coordinates"])
    assert (merged.stages, merged.twice, merged.left_out) == (len(toy_run.plan.stages), shared, ())
    assert {path.name for path in tmp_path.iterdir()} == {"machine 0", "machine 1", "c"}
    whole = {arm: status(out) for arm, out in (("c", tmp_path / "c"), ("run", toy_run.out))}
    assert whole["c"] | {"out": ""} == whole["run"] | {"out": ""}
    by = (["arm", "seed", "budget"], ["arm", "seed", "stage", "tokens"], ["stage"])
    for found, wanted, order in zip(tables(tmp_path / "c"), tables(toy_run.out), by, strict=True):
        pd.testing.assert_frame_equal(shown(found, *order), shown(wanted, *order))
    assert toy.unchanged(Store(tmp_path / "c").records(), toy_run.records)
    about = folders.read([tmp_path / "c"])[1]
    assert about["study"] == toy_run.plan.study.to_yaml()  # two seeds, from 0
    assert (about["seeds"], about["planned_rows"]) == ([0, 1], sum(len(arm.points) for arm in toy_run.plan.arms))
    refuse_foreign(tmp_path / "c")


def test_a_run_into_the_merged_folder_has_nothing_left_to_do(toy_run: toy.Run, tmp_path: Path) -> None:
    a = part(toy_run, tmp_path / "a", lambda about: about["architecture"] == "transformer")
    b = part(toy_run, tmp_path / "b", lambda about: about["architecture"] == "tokenformer")
    merge([a, b], tmp_path / "c")
    study = tmp_path / "toy.yaml"
    study.write_text(toy_run.plan.study.to_yaml())
    plugins = [word for path in toy_run.plan.plugin_paths for word in ("--plugin", path)]
    words = [GROWBENCH, "run", study, "--out", tmp_path / "c", *plugins]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"Nothing was left to do: all {len(toy_run.plan.stages)} stages are in ")
    assert (tmp_path / "c" / "report.html").is_file()


def test_merging_is_the_same_in_any_order_and_of_what_is_merged_already(toy_run: toy.Run, tmp_path: Path) -> None:
    a, b = (seed(toy_run, tmp_path / name, n, "zero_pad") for n, name in enumerate("ab"))
    merge([a, b], tmp_path / "ab")
    merge([b, a, tmp_path / "ab", a], tmp_path / "again")
    one, other = (Store(tmp_path / name).records() for name in ("ab", "again"))
    assert one == other
    assert read_plan(tmp_path / "again")["stages"].keys() == read_plan(tmp_path / "ab")["stages"].keys()


def test_machines_that_launch_stages_differently_hold_one_study(toy_run: toy.Run, tmp_path: Path) -> None:
    a, b = (seed(toy_run, tmp_path / name, n, "zero_pad") for n, name in enumerate("ab"))
    plan = json.loads((b / PLAN).read_text())
    plan["study"] = plan["study"].replace("launch: null", "launch: {name: slurm, partition: long}")
    assert parse_study(plan["study"], "b").launch
    (b / PLAN).write_text(json.dumps(plan))
    frames, _ = folders.read([a, b])
    assert set(frames[0]["seed"]) == {0, 1}
    assert merge([a, b], tmp_path / "c").stages == len(Store(a).records().keys() | Store(b).records().keys())


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("measures", {"measures": {"loss": 1.0}}),
        ("tokens", {"tokens": 1}),
        ("flops", {"flops": {"train": 1.0}}),
        ("status", {"status": "diverged", "reason": "it was told to"}),
    ],
)
def test_two_that_disagree_are_refused_by_name(
    what: str, changes: dict[str, Any], toy_run: toy.Run, tmp_path: Path
) -> None:
    a, b = (seed(toy_run, tmp_path / name, 0, "zero_pad") for name in "ab")
    key = next(key for key, stage in toy_run.plan.stages.items() if stage.kind == "train" and key in Store(a).records())
    record = rewritten(b, key, **changes)
    with pytest.raises(ValueError, match="the folders disagree on") as refusal:
        merge([a, b], tmp_path / "c")
    assert f"{record.label} ({what} in {a} and {b})" in str(refusal.value)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_files_count_by_content_tables_by_rows_and_events_not_at_all(toy_run: toy.Run, tmp_path: Path) -> None:
    a, b = (seed(toy_run, tmp_path / name, 0, "zero_pad") for name in "ab")
    key = next(key for key, record in Store(b).records().items() if record.kind == "cooldown")
    folder = Store(b).folder(key)

    def changed(table: pa.Table) -> None:
        parquet.write_table(table, folder / CURVE, compression="none")
        (folder / EVENTS).write_text("{}\n")
        record = Store(a).read(key)
        assert record is not None
        files = {name: digest((folder / name).read_bytes()) for name in record.files}
        assert files[CURVE] != record.files[CURVE]
        (folder / RECORD).write_text(replace(record, files=files).to_json())

    table = parquet.read_table(folder / CURVE)
    changed(table)
    merge([a, b], tmp_path / "c")
    changed(table.slice(0, 0))
    with pytest.raises(ValueError, match=r"disagree on .* \(curve\.parquet in "):
        merge([a, b], tmp_path / "d")


def test_a_failed_stage_gives_way_to_a_finished_one_and_a_damaged_one_is_left_out(
    toy_run: toy.Run, tmp_path: Path
) -> None:
    a, b = (seed(toy_run, tmp_path / name, 0, "zero_pad") for name in "ab")
    failed, hurt, gone = [key for key, record in Store(a).records().items() if record.kind == "cooldown"][:3]
    rewritten(a, failed, status="failed", reason="its worker was killed", files={}, measures={})
    (Store(a).folder(hurt) / CURVE).write_bytes(b"")
    for out in (a, b):
        (Store(out).folder(gone) / RECORD).write_text("{")
    merged = merge([a, b], tmp_path / "c")
    assert sorted(said.partition(" is damaged")[0] for said in merged.left_out) == sorted(
        f"the stage folder {Store(out).folder(key)}" for out, key in ((a, hurt), (a, gone), (b, gone))
    )
    found = Store(tmp_path / "c").records()
    assert found[failed] == Store(b).read(failed)
    assert found[hurt] == Store(b).read(hurt)
    assert gone not in found
    assert status(tmp_path / "c")["left"] == 1


def test_a_record_under_the_key_of_another_identity_is_left_out(toy_run: toy.Run, tmp_path: Path) -> None:
    a, b = (seed(toy_run, tmp_path / name, 0, "zero_pad") for name in "ab")
    key, record = next((key, record) for key, record in Store(a).records().items() if record.kind == "init")
    rewritten(a, key, identity={**record.identity, "seed": 7})
    merged = merge([a, b], tmp_path / "c")
    (said,) = merged.left_out
    assert said == f"the stage folder {Store(a).folder(key)} is of another identity than its key"
    assert Store(tmp_path / "c").read(key) == Store(b).read(key)


def test_another_study_version_or_data_is_refused(toy_run: toy.Run, tmp_path: Path) -> None:
    a, b = (seed(toy_run, tmp_path / name, n, "zero_pad") for n, name in enumerate("ab"))
    plan, run = json.loads((b / PLAN).read_text()), json.loads((b / RUN).read_text())
    other = plan["study"].replace("about: A toy.", "about: Another.")
    cases = [
        ({"study": other}, {}, "different studies"),
        ({"tasks": [plan["tasks"][0] | {"fingerprint": "f"}]}, {}, "data differ"),
        ({}, {"growbench": "9.9.0"}, "do not compare"),
    ]
    for in_plan, in_run, sentence in cases:
        (b / PLAN).write_text(json.dumps(plan | in_plan))
        (b / RUN).write_text(json.dumps(run | in_run))
        with pytest.raises(ValueError, match=sentence):
            merge([a, b], tmp_path / "c")
    (b / RUN).write_text(json.dumps(run))
    changed = [arm | {"about": arm["about"] | {"seed": 0, "learning_rate": 0.5}} for arm in plan["arms"]]
    (b / PLAN).write_text(json.dumps(plan | {"arms": changed}))
    with pytest.raises(ValueError, match=r"the folders plan t\w+former/zero_pad of seed 0 \(.*\) differently"):
        merge([a, b], tmp_path / "c")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_a_place_that_is_taken_and_a_folder_without_a_study_are_refused(toy_run: toy.Run, tmp_path: Path) -> None:
    a = seed(toy_run, tmp_path / "a", 0, "zero_pad")
    for taken in (a, toy_run.out):
        with pytest.raises(ValueError, match="is there already: give a new or an empty folder"):
            merge([a], taken)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty holds no study"):
        merge([a, tmp_path / "empty"], tmp_path / "c")
    with pytest.raises(ValueError, match="there is no folder"):
        merge([a, tmp_path / "none"], tmp_path / "c")
    merge([a], tmp_path / "empty")
    assert status(tmp_path / "empty")["left"] == 0


# --- tuning ----------------------------------------------------------------------------------------------------------


def test_the_trials_of_tuning_are_merged_too(toy_run: toy.Run, tmp_path: Path) -> None:
    a = seed(toy_run, tmp_path / "a" / TUNING, 0, "lora").parent  # a folder in which tuning alone was run
    b = seed(toy_run, tmp_path / "b", 1, "lora")
    shutil.copytree(seed(toy_run, tmp_path / "t", 1, "lora"), b / TUNING)
    merged = merge([a, b], tmp_path / "c")
    trials = Store(a / TUNING).records().keys() | Store(b / TUNING).records().keys()
    assert merged.stages == len(trials) + len(read_plan(b)["stages"])
    assert Store(tmp_path / "c" / TUNING).records().keys() == trials
    assert Store(tmp_path / "c").records().keys() == Store(b).records().keys()


def test_what_tuning_chose_for_other_arms_is_joined() -> None:
    plan = {"study": STUDY, "arms": [], "stages": {}, "skipped": {}, "strategies": [], "tasks": []}
    row = {"arm": "x/a", "loss": 1.0}
    one = {"chosen": {"t": {"x/a": {"learning_rate": 0.1}}}, "trials": [row], "digest": "1"}
    two = {"chosen": {"t": {"x/b": {"learning_rate": 0.2}}}, "trials": [row, row | {"arm": "x/b"}], "digest": "2"}
    tuned = join_plans([plan | {"tuned": one}, plan | {"tuned": two}, plan | {"tuned": None}])["tuned"]
    assert tuned["chosen"] == {"t": {"x/a": {"learning_rate": 0.1}, "x/b": {"learning_rate": 0.2}}}
    assert tuned["trials"] == [row, row | {"arm": "x/b"}]
    assert tuned["digest"] not in ("1", "2")
    assert join_plans([plan])["tuned"] is None


STUDY = """
study: toy
about: A toy.
tasks: [pycode]
seeds: 1
ladders: {transformer: [{layers: 1, residual: 8, heads: 2, key: 4, value: 4, ffn: 16}]}
strategies: [scratch]
budget: {tokens: 640, split: []}
train: {context: 16, batch: 4, learning_rate: 0.01, eval_every: 64, eval_tokens: 64}
"""


def test_seeds_are_those_of_all_plans_where_they_are_a_range() -> None:
    def seeds(*ranges: tuple[int, int]) -> tuple[int, int]:
        more: dict[str, Any] = {"arms": [], "stages": {}, "skipped": {}, "strategies": [], "tasks": []}
        texts = [STUDY.replace("seeds: 1", f"seeds: {count}\nfirst_seed: {first}") for first, count in ranges]
        study = reading.study(join_plans([more | {"study": text} for text in texts])["study"])
        return study.get("first_seed", 0), study["seeds"]

    assert seeds((0, 2), (2, 3)) == seeds((2, 3), (0, 2)) == seeds((0, 5), (1, 1)) == (0, 5)
    assert seeds((0, 2), (7, 3)) == (7, 3)


def test_what_runs_were_made_with_is_said_for_each_where_it_differs(toy_run: toy.Run) -> None:
    run = json.loads((toy_run.out / RUN).read_text())
    other = run | {"cpu": "8 x another", "started": "1999", "finished": None, "packages": {"torch": "2.0"}}
    joined = join_runs([run, other])
    assert joined["cpu"] == f"{run['cpu']} and 8 x another"
    assert (joined["started"], joined["finished"], joined["command"]) == ("1999", None, "growbench run toy")
    assert joined["packages"]["torch"] == f"{run['packages']['torch']} and 2.0"
    assert join_runs([run, run]) == run


# --- through the command line ----------------------------------------------------------------------------------------


def test_the_command_merges_and_says_what_it_left_out(toy_run: toy.Run, tmp_path: Path) -> None:
    a, b = (seed(toy_run, tmp_path / name, n, "zero_pad") for n, name in enumerate("ab"))
    key = next(key for key, record in Store(a).records().items() if record.kind == "cooldown")
    (Store(a).folder(key) / CURVE).unlink()
    words = [*map(str, (GROWBENCH, "merge", a, b, "-o", tmp_path / "c"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert str(Store(a).folder(key)) in done.stdout
    assert done.stdout.splitlines()[0] == f"out: {tmp_path / 'c'}"
    again = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == f"growbench: {tmp_path / 'c'} is there already: give a new or an empty folder as --out\n"


KILLED = """
import os, signal, sys
from pathlib import Path
from growbench import merge
copy, left = merge._copy, int(sys.argv[1])
def dying(*given):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    copy(*given)
merge._copy = dying
merge.merge([Path(word) for word in sys.argv[3:]], Path(sys.argv[2]))
"""


@pytest.mark.parametrize("after", [1, 20])
def test_a_merge_that_is_killed_leaves_nothing_that_is_believed_and_is_repeated(
    after: int, toy_run: toy.Run, tmp_path: Path
) -> None:
    a, b = (seed(toy_run, tmp_path / name, n, "zero_pad") for n, name in enumerate("ab"))
    out = tmp_path / "c"
    words = [*map(str, (sys.executable, "-c", KILLED, after, out, a, b))]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    assert not out.exists()
    (beside,) = (path for path in tmp_path.iterdir() if path.name.startswith("."))
    with pytest.raises(ValueError, match="holds no study"):
        status(beside)
    (beside / "stages" / "foreign").mkdir(parents=True, exist_ok=True)
    merge([a, b], out)
    assert toy.unchanged(Store(out).records(), toy_run.records)
    assert Store(out).records().keys() == Store(a).records().keys() | Store(b).records().keys()
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b", "c"}


def test_a_full_disk_ends_in_one_sentence_and_leaves_nothing(toy_run: toy.Run, tmp_path: Path) -> None:
    a, b = (seed(toy_run, tmp_path / name, n, "zero_pad") for n, name in enumerate("ab"))
    words = ["bash", "-c", 'ulimit -f 30; exec "$0" "$@"', *map(str, (GROWBENCH, "merge", a, b, "-o", tmp_path / "c"))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"growbench: {tmp_path / 'c'} cannot be written: ")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "b"}


def test_two_merges_into_one_folder_do_not_meet(toy_run: toy.Run, tmp_path: Path) -> None:
    a = seed(toy_run, tmp_path / "a", 0, "zero_pad")
    beside = tmp_path / ".c.merging"
    beside.mkdir()
    with FileLock(beside / ".lock"), pytest.raises(ValueError, match="another merge is writing"):
        merge([a], tmp_path / "c")
    assert beside.is_dir()
    merge([a], tmp_path / "c")
    assert os.listdir(tmp_path / "c" / "stages")
    assert set(tables(tmp_path / "c")[0]["seed"]) == {0}
    assert not DIAGNOSTICS.keys() - set(pd.read_parquet(tmp_path / "c" / "diagnostics.parquet").columns)
