"""Verifying: a sound folder is sound, and every kind of alteration, digests made to fit included, is named."""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import toy
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_merge import part

from growbench.merge import merge
from growbench.store import CHECKPOINT, CURVE, RECORD, Record, Store, canonical, digest
from growbench.tables import PLAN, RUN, TUNING, read_plan, write_tables
from growbench.verify import TOLERANCE, verify

GROWBENCH = Path(sys.executable).with_name("growbench")


@pytest.fixture
def out(toy_run: toy.Run, tmp_path: Path) -> Path:
    out = part(toy_run, tmp_path / "out", lambda about: about["arm"] == "transformer/zero_pad" and not about["seed"])
    write_tables(out)
    return out


def key_of(out: Path, kind: str) -> str:
    """A stage of that kind on the path of a grown arm."""
    arm = next(arm for arm in read_plan(out)["arms"] if arm["about"]["strategy"] == "zero_pad")
    records = Store(out).records()
    path: list[str] = arm["points"][-1]["path"]
    return next(key for key in reversed(path) if records[key].kind == kind)


def fitted(out: Path, key: str, **changes: Any) -> None:
    """Write a record anew so that all digests are right: only evaluating tells."""
    folder = Store(out).folder(key)
    record = replace(json_record(folder), **changes)
    files = {name: digest((folder / name).read_bytes()) for name in record.files}
    (folder / RECORD).write_text(replace(record, files=files).to_json())


def json_record(folder: Path) -> Record:
    return Record.from_json((folder / RECORD).read_text())


def weights(out: Path, key: str, change: Callable[[torch.Tensor], torch.Tensor], group: str = "weights") -> None:
    path = Store(out).folder(key) / CHECKPOINT
    with safe_open(path, framework="pt") as handle:
        about = handle.metadata()
    tensors = load_file(path)
    name = max((name for name in tensors if name.startswith(f"{group}:")), key=lambda name: tensors[name].numel())
    save_file(tensors | {name: change(tensors[name])}, path, metadata=about)
    fitted(out, key)


def test_a_run_is_what_it_says_every_stage_of_it(toy_run: toy.Run) -> None:
    found = verify(toy_run.out, sample=len(toy_run.plan.stages), plugin_paths=toy_run.plan.plugin_paths)
    assert (found.wrong, found.unchecked) == ([], [])
    assert found.stages == len(toy_run.plan.stages)
    assert found.files == sum(len(record.files) + 1 for record in toy_run.records.values())
    assert found.evaluated == found.exactly == sum(CHECKPOINT in record.files for record in toy_run.records.values())
    assert found.tables == 5


@pytest.mark.parametrize("name", [RECORD, CHECKPOINT, CURVE])
def test_an_altered_byte_is_named(name: str, out: Path) -> None:
    key = key_of(out, "train")
    path = Store(out).folder(key) / name
    content = bytearray(path.read_bytes())
    content[random.Random(0).randrange(len(content))] ^= 1
    path.write_bytes(content)
    said = [wrong["what"] for wrong in verify(out, sample=0).wrong]
    assert any(f"{Store(out).folder(key)} is damaged" in what for what in said)
    assert any(f"the stage {key} that it builds on is not there, or damaged" in what for what in said)


def test_what_a_record_does_not_state_is_named(out: Path) -> None:
    key = key_of(out, "grow")
    (Store(out).folder(key) / "more").write_text("")
    assert [wrong["what"] for wrong in verify(out, sample=0).wrong] == [
        "its folder holds 'more', which its record does not state"
    ]


@pytest.mark.parametrize("kind", ["init", "train", "grow", "cooldown"])
def test_a_checkpoint_altered_with_its_digests_is_found_by_evaluating(kind: str, out: Path) -> None:
    key = key_of(out, kind)
    weights(out, key, lambda weight: weight * 1.01)
    found = verify(out, sample=100)
    label = json_record(Store(out).folder(key)).label
    said = [wrong["what"] for wrong in found.wrong if wrong["where"] == label]
    expected = {"init": "from what its seed draws", "grow": "its growth_loss_jump is"}.get(kind, "its loss is")
    assert any(expected in what for what in said), found.wrong


@pytest.mark.parametrize(
    ("kind", "measure"), [("cooldown", "loss"), ("grow", "growth_gap"), ("grow", "growth_loss_jump")]
)
def test_a_measure_altered_with_its_digests_is_found_by_evaluating(kind: str, measure: str, out: Path) -> None:
    key = key_of(out, kind)
    record = json_record(Store(out).folder(key))
    value = record.measures[measure]
    assert value is not None
    fitted(out, key, measures={**record.measures, measure: value + 1e-9 * max(1.0, abs(value))})
    write_tables(out)
    found = verify(out, sample=100)
    assert [wrong["where"] for wrong in found.wrong] == [record.label]
    assert "its record" in found.wrong[0]["what"]


def test_a_map_that_does_not_undo_what_it_expands_is_named(out: Path) -> None:
    key = key_of(out, "grow")
    weights(out, key, lambda matrix: matrix * 2, group="collapse")
    assert "an axis map needs C E = I" in str(verify(out, sample=100).wrong)


def test_on_another_kind_of_machine_rounding_is_allowed_and_no_more(out: Path) -> None:
    key = key_of(out, "cooldown")
    record = json_record(Store(out).folder(key))
    environment = {**record.environment, "platform": "another"}
    value, allowed = record.measures["loss"], TOLERANCE["32-true"]
    assert value is not None
    for off, wrong in ((0.5 * allowed, 0), (3 * allowed, 1)):
        fitted(out, key, measures={"loss": value + off * max(1.0, abs(value))}, environment=environment)
        write_tables(out)
        found = verify(out, sample=100)
        assert len(found.wrong) == wrong, found.wrong
        assert found.exactly == found.evaluated - 1


def test_another_table_plan_or_run_is_named(out: Path) -> None:
    results = pd.read_parquet(out / "results.parquet")
    results.assign(loss=results["loss"] - 0.1).to_parquet(out / "results.parquet", index=False)
    (out / RUN).write_text("{")
    plan = json.loads((out / PLAN).read_text())
    key = key_of(out, "grow")
    plan["stages"][key][0] = "train"
    plan["tuned"] = {"chosen": {}, "trials": [], "digest": digest(canonical({"chosen": {}, "trials": [1]}))}
    (out / PLAN).write_text(json.dumps(plan))
    said = {wrong["where"]: wrong["what"] for wrong in verify(out, sample=0).wrong}
    assert "it is not what the stages give" in said["results.parquet"]
    assert said[RUN] == "it is no record of a run"
    assert said[PLAN] == "what tuning chose does not have the digest stated with it"
    assert "the plan has it as train" in said[plan["stages"][key][2]]


def test_a_key_that_is_not_the_hash_of_its_identity_is_named(out: Path) -> None:
    key = key_of(out, "train")
    record = json_record(Store(out).folder(key))
    fitted(out, key, identity={**record.identity, "until": record.identity["until"] + 64})
    (wrong,) = verify(out, sample=0).wrong
    assert wrong == {"where": record.label, "what": f"its key {key} is not the hash of its identity"}


def test_the_sample_is_that_of_its_seed_and_tuning_is_verified_too(out: Path, toy_run: toy.Run) -> None:
    shutil.copytree(out, out / TUNING)
    found = verify(out, sample=3, seed=1)
    assert (found.evaluated, found.wrong) == (6, [])
    assert found.stages == 2 * len(read_plan(out)["stages"])
    weights(out / TUNING, key_of(out, "cooldown"), lambda weight: weight + 1)
    assert not verify(out, sample=0).wrong
    assert verify(out, sample=100).wrong


def test_a_task_of_a_plugin_needs_to_be_given(tmp_path: Path) -> None:
    task = toy.plugin(
        tmp_path,
        "noise",
        "from dataclasses import dataclass\nimport numpy as np\nfrom growbench.task import Data, Task\n\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Noise(Task):\n    '''Noise.'''\n\n"
        "    def load(self, cache):\n        bytes_ = np.random.default_rng(0).integers(0, 99, 4000, np.uint8)\n"
        "        return Data.from_bytes(bytes_[:3000].tobytes(), bytes_[3000:].tobytes())\n",
    )
    plan = toy.plan(tmp_path, plugins=[task], strategies=["scratch"], tasks=["noise"])
    toy.work(plan, tmp_path / "out")
    (tmp_path / "out" / PLAN).write_text(json.dumps(plan.to_dict()))
    found = verify(tmp_path / "out", sample=100)
    assert found.wrong == []
    assert found.evaluated == 2  # the inits, whose weights need no data
    assert all(item["why"].startswith("unknown task 'noise'") for item in found.unchecked)
    found = verify(tmp_path / "out", sample=100, plugin_paths=[task])
    assert (found.wrong, found.unchecked, found.evaluated > 4) == ([], [], True)
    task.write_text(task.read_text() + "\n")
    assert "another here" in str(verify(tmp_path / "out", sample=100, plugin_paths=[task]).unchecked)


def test_a_merged_folder_is_verified_as_any_other(out: Path, toy_run: toy.Run, tmp_path: Path) -> None:
    merge([out, part(toy_run, tmp_path / "b", lambda about: about["arm"] == "transformer/lora")], tmp_path / "c")
    assert verify(tmp_path / "c", sample=5).wrong == []


def test_the_command_says_what_it_checked_and_ends_with_1_where_something_is_wrong(out: Path) -> None:
    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([GROWBENCH, "verify", str(out), *words], capture_output=True, text=True, check=False)

    done = run("--sample", "2", "--json")
    said = json.loads(done.stdout)
    assert (done.returncode, said["wrong"], said["evaluated"]) == (0, [], 2)
    (Store(out).folder(key_of(out, "cooldown")) / CURVE).unlink()
    done = run("--sample", "0")
    assert done.returncode == 1
    assert "is damaged" in done.stdout
    done = subprocess.run([GROWBENCH, "verify", str(out / "stages")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds no study" in done.stderr
