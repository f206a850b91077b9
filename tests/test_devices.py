"""A stage on several devices is the stage on one: the same batches, the same losses to float tolerance, one writer."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import toy

from growbench import devices, train
from growbench.checkpoint import Checkpoint
from growbench.plan import Plan
from growbench.store import CHECKPOINT, CURVE, EVENTS, Record, Stage, Store
from growbench.train import Notify, Stopped


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """Growth with half of a weight frozen and a ramp under way."""
    folder = tmp_path_factory.mktemp("devices")
    probing = toy.plugin(folder, "probing", toy.PROBING)
    # an eps that keeps Adam from making much of how a gradient near zero was rounded
    settings = {"weight_decay": 0.1, "eval_every": 3 * toy.STEP, "eps": 1e-2}
    return toy.plan(folder, plugins=[probing], strategies=["probing"], train=settings, device={"devices": 2})


@pytest.fixture(scope="module")
def alone(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """All stages as one process runs them."""
    store = Store(tmp_path_factory.mktemp("alone"))
    toy.work(plan, store.out, [replace(stage, devices=1) for stage in plan.stages.values()])
    assert {record.status for record in store.records().values()} == {"ok"}
    return store


def last(plan: Plan, kind: str) -> Stage:
    """The last stage of a kind: after growth."""
    return [stage for stage in plan.stages.values() if stage.kind == kind][-1]


def beside(alone: Store, stage: Stage, folder: Path) -> Store:
    """A store that holds a stage's parent alone."""
    assert stage.parent is not None
    store = Store(folder)
    shutil.copytree(alone.folder(stage.parent), store.folder(stage.parent))
    return store


def close(one: Store, other: Store, stage: Stage) -> None:
    """Assert that a stage came to the same in two stores, to rounding, and read the same tokens.

    Fabric hands logits back in float32 whatever the precision, and so losses and gradients are rounded to that.
    """
    a, b = one.read(stage.key), other.read(stage.key)
    assert a is not None
    assert b is not None
    assert (a.status, a.tokens, a.flops) == ("ok", b.tokens, b.flops)
    assert a.measures["loss"] == pytest.approx(b.measures["loss"], rel=1e-5)
    curves = [pd.read_parquet(store.folder(stage.key) / CURVE) for store in (one, other)]
    assert curves[0]["tokens"].equals(curves[1]["tokens"])
    assert np.allclose(curves[0]["train_loss"], curves[1]["train_loss"], rtol=1e-5, atol=0)
    ends = [Checkpoint.load(store.folder(stage.key) / CHECKPOINT).state for store in (one, other)]
    for name, weight in ends[0].weights.items():
        assert torch.allclose(weight, ends[1].weights[name], rtol=1e-4, atol=1e-6), name
    assert ends[0].steps == ends[1].steps


def executed(stage: Stage, store: Store, notify: Notify, **more: Any) -> Record:
    record = devices.execute(stage, store, (), Path(), notify, **more)
    assert record is not None
    return record


def test_two_processes_come_to_what_one_does_stopped_and_gone_on_too(plan: Plan, alone: Store, tmp_path: Path) -> None:
    stage, reached = last(plan, "train"), list[int]()
    assert stage.devices == 2
    store = beside(alone, stage, tmp_path)
    with pytest.raises(Stopped, match=rf"{stage.label} stopped after [\d,]+ tokens"):
        devices.execute(stage, store, (), Path(), reached.append, keep_every=0.0, stop=lambda: len(reached) >= 2)
    assert 2 * toy.STEP <= reached[-1] < stage.tokens
    assert store.read(stage.key) is None
    record = executed(stage, store, reached.append)
    assert record.status == "ok"
    assert record.environment["devices"] == 2
    assert reached == list(range(toy.STEP, stage.tokens + 1, toy.STEP))  # the first process alone is heard
    close(store, alone, stage)
    before, after = (store.folder(key) / CHECKPOINT for key in (stage.parent or "", stage.key))
    frozen, begin = Checkpoint.load(before).frozen["embed"], Checkpoint.load(before).state.weights["embed"]
    assert torch.equal(Checkpoint.load(after).state.weights["embed"][frozen], begin[frozen])
    told = (store.folder(stage.key) / EVENTS).read_text().splitlines()
    assert [json.loads(line)["event"] for line in told] == ["started", "stopped", "resumed", "ok"]
    assert {path.name for path in (store.out / "stages").iterdir()} == {stage.key, stage.parent}


def test_two_machines_with_a_device_each_come_to_what_one_does(plan: Plan, alone: Store, tmp_path: Path) -> None:
    stage = last(plan, "cooldown")
    store = beside(alone, stage, tmp_path)
    with socket() as free:
        free.bind((devices.HOST, 0))
        nodes = [devices.Node(number=number, count=2, port=free.getsockname()[1]) for number in (0, 1)]

    def execute(node: devices.Node) -> Record | None:
        return devices.execute(stage, store, (), Path(), lambda tokens: None, node=node)

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(execute, nodes)
    assert second is None
    assert first is not None
    assert first.status == "ok", first.reason
    close(store, alone, stage)
    with pytest.raises(ValueError, match="2 devices cannot be spread equally over 3 machines"):
        execute(devices.Node(count=3))


def test_a_process_that_is_killed_ends_the_stage_with_its_name_and_what_was_kept_stays(
    plan: Plan, alone: Store, tmp_path: Path
) -> None:
    stage = last(plan, "cooldown")
    store = beside(alone, stage, tmp_path)

    def notify(tokens: int) -> None:
        for pid in children() if tokens == 3 * toy.STEP else ():  # kept before the third step at the latest
            if b"LOCAL_RANK=1" in Path(f"/proc/{pid}/environ").read_bytes():
                os.kill(pid, signal.SIGKILL)

    endless = replace(stage, identity={**stage.identity, "until": stage.identity["until"] + 10_000 * toy.STEP})
    record = executed(endless, store, notify, keep_every=0.0)
    assert (record.status, record.reason) == ("failed", "the process of device 1 was killed by SIGKILL")
    assert store.read(endless.key) == record
    assert store.kept(endless.key)
    assert not children()


def children() -> list[int]:
    """The processes that this one started, of those that devices.py starts."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            of = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if of == os.getpid() and b"growbench.devices" in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def test_what_is_wrong_in_the_processes_is_the_stage_s_reason(plan: Plan, alone: Store, tmp_path: Path) -> None:
    stage = last(plan, "cooldown")
    changed = {**stage.identity, "task": {**stage.identity["task"], "fingerprint": "0" * 64}}
    stage = replace(stage, identity=changed)
    record = executed(stage, beside(alone, stage, tmp_path), lambda tokens: None)
    assert record.status == "failed"
    assert "changed since the run was planned: run it again" in record.reason


# --- what a stage is -------------------------------------------------------------------------------------------------


def planned(folder: Path, **device: Any) -> Plan:
    return toy.plan(folder, strategies=["continue"], device=device)


def test_how_many_devices_is_no_part_of_a_stage_and_what_they_are_is(tmp_path: Path) -> None:
    one = planned(tmp_path)
    two = planned(tmp_path, devices=2, strategy="ddp")
    assert one.stages.keys() == two.stages.keys()
    assert {stage.devices for stage in one.stages.values()} == {1}
    for stage in two.stages.values():
        assert stage.devices == (2 if stage.kind in ("train", "cooldown") else 1)
    for device in ({"accelerator": "cuda"}, {"compile": True}, {"deterministic": True}):
        other = planned(tmp_path, **device)
        trained = {key for key, stage in one.stages.items() if stage.kind == "train"}
        assert not trained & other.stages.keys()
    said = toy.study(tmp_path, strategies=["continue"]).at(device={"devices": 4}, precision="bf16-mixed")
    assert (said.device.devices, said.device.accelerator, said.train.precision) == (4, "cpu", "bf16-mixed")
    cuda = planned(tmp_path, accelerator="cuda")
    assert {arm.about["device"] for arm in cuda.arms} == {"cuda"}


@pytest.mark.parametrize(
    ("device", "said"),
    [
        ({"strategy": "fsdp"}, "device.strategy: fsdp splits every weight over the devices, .*: use ddp"),
        ({"strategy": "dpp"}, "device.strategy: unknown value 'dpp': did you mean ddp"),
        ({"devices": 3}, "a batch of 4 sequences cannot be shared equally by 3: give a number that divides it"),
        ({"devices": 0}, "device.devices: "),
        ({"accelerator": "tpu"}, "device.accelerator: unknown value 'tpu'"),
        ({"compile": "maybe"}, "device.compile: "),
        ({"gpus": 1}, "device has no key 'gpus'"),
    ],
)
def test_a_study_that_no_device_can_run_is_refused(device: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        toy.study(tmp_path, strategies=["continue"], device=device)


# --- compiled, deterministic -----------------------------------------------------------------------------------------


@pytest.fixture
def no_algorithm_left_open() -> Iterator[None]:
    yield
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.usefixtures("no_algorithm_left_open")
def test_deterministic_algorithms_are_on_while_a_stage_trains_and_only_then(
    plan: Plan, alone: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, seen = replace(last(plan, "cooldown"), devices=1), list[bool]()
    stage = replace(stage, identity={**stage.identity, "train": stage.identity["train"] | {"deterministic": True}})
    record = train.execute(
        stage, beside(alone, stage, tmp_path), (), Path(),
        lambda tokens: seen.append(torch.are_deterministic_algorithms_enabled()),
    )  # fmt: skip
    assert record.status == "ok"
    assert set(seen) == {True}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's compiler, about torch itself
def test_a_compiled_stage_is_the_stage_to_rounding(plan: Plan, alone: Store, tmp_path: Path) -> None:
    stage = replace(last(plan, "cooldown"), devices=1)
    compiled = replace(stage, identity={**stage.identity, "train": stage.identity["train"] | {"compile": True}})
    record = train.execute(compiled, beside(alone, stage, tmp_path), (), Path(), lambda tokens: None)
    assert record.status == "ok", record.reason
    whole = alone.read(stage.key)
    assert whole is not None
    assert record.measures["loss"] == pytest.approx(whole.measures["loss"], rel=1e-5)
