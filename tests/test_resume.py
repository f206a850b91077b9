"""A stage that was stopped or killed goes on from where it was kept, and ends as if nothing had happened."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import toy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from growbench import launch, progress
from growbench.checkpoint import Checkpoint
from growbench.launch import Launcher, Site
from growbench.launch._queue import Queue
from growbench.progress import Journal, Progress
from growbench.store import CHECKPOINT, EVENTS, PARTIAL, Record, Stage, Store, Unwritable
from growbench.train import Stopped, execute

ALWAYS = 0.0
"""Kept before every step."""
SECONDS = 600
"""Longer than any of this takes on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A stage, a store that holds its parent, and its record where nothing disturbs it."""

    stage: Stage
    store: Store
    record: Record

    @property
    def steps(self) -> int:
        return self.record.tokens // toy.STEP


Made = Callable[..., Case]
"""The case of a kind of stage after growth, an arm, and fields of `train`."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("resume")

    @cache
    def run(arm: str, written: str) -> tuple[Mapping[str, Stage], Store, Mapping[str, Record]]:
        probing = toy.plugin(folder, "probing", toy.PROBING)
        # decay moves what is frozen, evaluation is not at every step, and a ramp ends while the stage trains
        train = {"weight_decay": 0.1, "eval_every": 3 * toy.STEP} | json.loads(written)
        plan = toy.plan(folder, plugins=[probing], strategies=[arm], train=train)
        out = folder / f"{arm} {len(list(folder.iterdir()))}"
        return plan.stages, Store(out), toy.work(plan, out)

    def case(kind: str, arm: str = "probing", **train: str) -> Case:
        stages, store, records = run(arm, json.dumps(train))
        grown = [stage for stage in stages.values() if stage.kind == "grow"]
        path = {stage.key for stage in grown}
        for stage in stages.values():
            if stage.parent in path:
                path.add(stage.key)
        stage = [stages[key] for key in stages if key in path and stages[key].kind == kind][-1]
        assert records[stage.key].status == "ok"
        return Case(stage=stage, store=store, record=records[stage.key])

    return case


def beside(case: Case, folder: Path) -> Store:
    """A store that holds the case's parent alone."""
    assert case.stage.parent is not None
    store = Store(folder)
    shutil.copytree(case.store.folder(case.stage.parent), store.folder(case.stage.parent))
    return store


def go_on(case: Case, store: Store, *, steps: int | None = None, kill: bool = False, every: float = SECONDS) -> Record:
    """Execute the case's stage as a worker would, to its end or for so many steps: then it stops, or is interrupted."""
    left = [steps if steps is not None else case.steps + 1]

    def stop() -> bool:
        return not kill and left[0] == 0

    def notify(tokens: int) -> None:
        left[0] -= 1
        if kill and left[0] == 0:
            raise KeyboardInterrupt

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        return execute(case.stage, store, (), Path(), notify, keep_every=every, stop=stop)
    finally:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(False)


def same(one: Record, other: Record) -> bool:
    return toy.unchanged({one.key: one}, {other.key: other})


def events(store: Store, key: str) -> list[str]:
    return [json.loads(line)["event"] for line in (store.folder(key) / EVENTS).read_text().splitlines()]


# --- stopped, killed, again and again --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arm", "train"),
    [
        ("probing", {}),  # half of the embedding frozen, a ramp under way
        ("probing", {"optimizer": "sgd"}),
        ("probing", {"precision": "bf16-mixed"}),
        ("probing", {"precision": "64-true"}),
        ("lora", {}),  # whole weights frozen
    ],
    ids=["adamw", "sgd", "bf16", "float64", "frozen"],
)
@pytest.mark.parametrize("kind", ["train", "cooldown"])
@settings(max_examples=8)
@given(data=st.data())
def test_interrupted_anywhere_and_gone_on_is_uninterrupted(
    kind: str, arm: str, train: dict[str, str], data: st.DataObject, made: Made
) -> None:
    case = made(kind, arm, **train)
    interruptions = data.draw(st.lists(st.tuples(st.integers(0, case.steps - 1), st.booleans()), max_size=4))
    with TemporaryDirectory() as folder:
        store, left = beside(case, Path(folder)), case.steps
        for steps, kill in interruptions:
            steps = min(steps, left - 1)
            if kill and steps:  # before the step is kept that it has just done
                with pytest.raises(KeyboardInterrupt):
                    go_on(case, store, steps=steps, kill=True, every=ALWAYS)
                left -= steps - 1
            else:
                with pytest.raises(Stopped, match=f"{case.stage.label} stopped after "):
                    go_on(case, store, steps=steps)
                left -= steps
            assert store.read(case.stage.key) is None
            assert store.partial(case.stage.key).exists() == (left < case.steps)
        record = go_on(case, store)
        assert same(record, case.record)
        assert {path.name for path in (store.out / "stages").iterdir()} == {case.stage.key, case.stage.parent}


def test_what_is_frozen_and_ramped_is_under_way_in_these_stages(made: Made) -> None:
    for kind in ("train", "cooldown"):
        case = made(kind)
        before = Checkpoint.load(case.store.folder(case.stage.parent or "") / CHECKPOINT)
        assert 0 < before.frozen["embed"].sum() < before.frozen["embed"].numel()
        assert case.steps > 3
    begin = Checkpoint.load(made("train").store.folder(made("train").stage.parent or "") / CHECKPOINT)
    assert begin.multipliers(begin.state.tokens)
    assert begin.multipliers(begin.state.tokens + toy.STEP)
    frozen = made("train", "lora")
    lora = Checkpoint.load(frozen.store.folder(frozen.stage.parent or "") / CHECKPOINT)
    assert any(bool(mask.all()) for mask in lora.frozen.values())


def test_training_draws_from_no_stream_of_random_numbers(made: Made, tmp_path: Path) -> None:
    case = made("train")
    store, before = beside(case, tmp_path), (torch.get_rng_state(), random.getstate())
    go_on(case, store)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_a_stage_is_kept_at_its_interval_and_time_adds_up(made: Made, tmp_path: Path) -> None:
    case = made("train")
    store, kept = beside(case, tmp_path), list[int]()

    def notify(tokens: int) -> None:
        if store.partial(case.stage.key).exists():
            kept.append(
                json.loads((store.partial(case.stage.key) / PARTIAL).read_text())["about"]["progress"]["tokens"]
            )
        if tokens == 4 * toy.STEP:
            time.sleep(0.6)  # longer than the interval
        if tokens == 8 * toy.STEP:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(case.stage, store, (), Path(), notify, keep_every=0.5)
    assert 4 * toy.STEP in kept
    assert len(set(kept)) < 5
    _, journal = progress.resume(store, case.stage) or (None, Journal(started=""))
    assert journal.wall_s > 0.6
    record = go_on(case, store)
    assert record.wall_s > journal.wall_s
    assert record.started == journal.started
    assert record.peak_memory_bytes >= journal.peak_memory_bytes > 0
    assert events(store, case.stage.key) == ["started", "resumed", "ok"]


def test_a_stage_that_stops_at_once_keeps_nothing_and_the_last_step_is_no_place_to_stop(
    made: Made, tmp_path: Path
) -> None:
    case = made("cooldown")
    store = beside(case, tmp_path)
    with pytest.raises(Stopped):
        go_on(case, store, steps=0)
    assert not store.partial(case.stage.key).exists()
    assert same(go_on(case, store, steps=case.steps), case.record)
    assert events(store, case.stage.key) == ["started", "ok"]


# --- what is not believed --------------------------------------------------------------------------------------------


def kept(case: Case, folder: Path, steps: int = 2) -> Store:
    """A store in which the case was stopped."""
    store = beside(case, folder)
    with pytest.raises(Stopped):
        go_on(case, store, steps=steps)
    return store


def altered(store: Store, stage: Stage, change: Callable[[dict[str, Any]], None]) -> None:
    """Keep what was kept once more, with a change to what is said of it, as an honest writer would."""
    about, path = store.kept(stage.key) or ({}, Path())
    change(about)
    tensors = path.read_bytes()
    store.keep(stage.key, about, writer(tensors))


def writer(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


def _truncate(store: Store, stage: Stage) -> None:
    (path,) = store.partial(stage.key).glob("*.safetensors")
    os.truncate(path, path.stat().st_size // 2)


def _flip(store: Store, stage: Stage) -> None:
    (path,) = store.partial(stage.key).glob("*.safetensors")
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    path.write_bytes(content)


def _foreign(store: Store, stage: Stage) -> None:
    altered(store, stage, lambda about: about["stage"][2].update(seed=7))


def _outdated(store: Store, stage: Stage) -> None:
    altered(store, stage, lambda about: about.update(torch="1.0"))


def _unknown(store: Store, stage: Stage) -> None:
    altered(store, stage, lambda about: about["progress"].update(phase="late"))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (_truncate, "its tensors do not have the digest"),
        (_flip, "its tensors do not have the digest"),
        (_foreign, "it is that of another stage"),
        (_outdated, f"it was written under torch 1.0, and this is {torch.__version__}"),
        (_unknown, "unexpected keyword argument 'phase'"),
    ],
)
def test_what_cannot_be_gone_on_from_is_discarded_with_a_word_and_the_stage_begins_anew(
    damage: Callable[[Store, Stage], None], said: str, made: Made, tmp_path: Path
) -> None:
    case = made("cooldown")
    store = kept(case, tmp_path)
    damage(store, case.stage)
    assert same(go_on(case, store), case.record)
    assert events(store, case.stage.key) == ["started", "discarded", "ok"]
    told = (store.folder(case.stage.key) / EVENTS).read_text()
    assert said in told
    assert not store.partial(case.stage.key).exists()


@settings(max_examples=30)
@given(data=st.data())
def test_any_altered_byte_or_cut_of_what_was_kept_is_named_and_not_believed(data: st.DataObject) -> None:
    with TemporaryDirectory() as folder:
        store = Store(Path(folder))
        store.keep("f" * 24, {"losses": [0.5, float("nan")]}, writer(bytes(50)))
        assert store.kept("f" * 24)
        path = data.draw(st.sampled_from(sorted(store.partial("f" * 24).iterdir())))
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[position] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[position:]
        path.write_bytes(content)
        with pytest.raises(ValueError, match="partial is damaged: "):
            store.kept("f" * 24)


@settings(max_examples=20)
@given(
    rows=st.lists(st.floats(), max_size=5), losses=st.lists(st.floats(), max_size=5), flops=st.floats(allow_nan=False)
)
@example(rows=[float("inf"), -0.0, 5e-324], losses=[float("nan")], flops=1e300)
def test_every_float_is_read_as_it_was_kept(rows: list[float], losses: list[float], flops: float, made: Made) -> None:
    case = made("train")
    checkpoint = Checkpoint.load(case.store.folder(case.stage.key) / CHECKPOINT)
    curve = [{"tokens": i, "loss": row} for i, row in enumerate(rows)]
    written = Progress(checkpoint=checkpoint, tokens=3, flops={"train": flops}, curve=curve, losses=losses)
    with TemporaryDirectory() as folder:
        store, journal = Store(Path(folder)), Journal(started="now", wall_s=0.1)
        progress.keep(store, case.stage, written, journal)
        found = progress.resume(store, case.stage)
        assert found is not None
        read = replace(found[0], checkpoint=checkpoint)
        assert repr(read) == repr(written)
        assert found[1] == journal


def test_a_write_cut_short_leaves_what_was_kept_before(tmp_path: Path) -> None:
    def full(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    store, key = Store(tmp_path), "f" * 24
    store.keep(key, {"n": 1}, writer(b"one"))
    with pytest.raises(Unwritable, match="no space left"):
        store.keep(key, {"n": 2}, full)
    about, path = store.kept(key) or ({}, Path())
    assert (about, path.read_bytes()) == ({"n": 1}, b"one")
    assert {path.name for path in store.partial(key).iterdir()} == {PARTIAL, path.name}
    (store.partial(key) / "0.safetensors").write_bytes(b"left by a writer killed before it wrote the record")
    store.keep(key, {"n": 2}, writer(b"two"))
    assert len(list(store.partial(key).iterdir())) == 2
    store.forget(key)
    assert store.kept(key) is None


def test_a_folder_that_cannot_be_written_is_no_failure_of_the_stage(made: Made, tmp_path: Path) -> None:
    case = made("cooldown")
    store = beside(case, tmp_path)
    store.partial(case.stage.key).write_text("in the way")
    with pytest.raises(Unwritable):
        go_on(case, store, every=ALWAYS)
    assert store.read(case.stage.key) is None


def test_what_failed_goes_on_and_what_ended_well_is_swept(made: Made, tmp_path: Path) -> None:
    case = made("cooldown")
    store = kept(case, tmp_path)
    store.write(Record.of(case.stage, status="failed", reason="its worker was killed by SIGKILL"))
    store.sweep()
    assert store.partial(case.stage.key).exists()
    shutil.copytree(store.partial(case.stage.key), tmp_path / "partial")
    assert same(go_on(case, store), case.record)
    assert events(store, case.stage.key) == ["started", "stopped", "resumed", "ok"]
    shutil.copytree(tmp_path / "partial", store.partial(case.stage.key))  # killed before it was removed
    store.sweep()
    assert not store.partial(case.stage.key).exists()


def test_what_was_kept_of_a_stage_that_the_study_no_longer_has_is_swept_as_a_run_starts(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = toy.plan(tmp_path, strategies=["scratch"], train={"learning_rate": 0.02})
    now = toy.plan(tmp_path, strategies=["scratch"])
    store, (old, new) = Store(out), (next(k for k, s in p.stages.items() if s.kind == "train") for p in (before, now))
    launch.run(now, out, Idle(), lambda event: None)
    for key in (old, new):
        store.keep(key, {}, Path.touch)
    launch.run(now, out, Idle(), lambda event: None)  # what a plan leaves out, a study may still have
    assert sorted(store.under_way()) == sorted([old, new])
    assert launch.run(now, out, Idle(), lambda event: None, planned=now.stages).pending == len(now.stages)
    assert store.under_way() == [new]


@dataclass(frozen=True, kw_only=True)
class Idle(Launcher):
    """Runs nothing."""

    def launch(self, queue: Queue, site: Site) -> None:
        pass


# --- SIGKILL ---------------------------------------------------------------------------------------------------------

WORKER = """
import json, sys
from pathlib import Path
import torch
from growbench.store import Stage, Store
from growbench.train import execute
torch.set_num_threads(1)
torch.set_flush_denormal(True)
execute(Stage(**json.loads(sys.argv[1])), Store(Path(sys.argv[2])), (), Path(), lambda tokens: None, keep_every=0.0)
"""


def test_sigkill_at_random_moments_changes_no_number(made: Made, tmp_path: Path) -> None:
    """Kept before every step, a stage is writing most of the time, and so is mostly killed while it does."""
    short = made("train")
    identity = {**short.stage.identity, "until": short.stage.identity["until"] + 60 * toy.STEP}
    stage = replace(short.stage, identity=identity, label="long")
    whole, cut = beside(short, tmp_path / "whole"), beside(short, tmp_path / "cut")
    case = Case(stage=stage, store=whole, record=short.record)
    record, chance, killed = go_on(case, whole, steps=1000), random.Random(0), 0
    while cut.read(stage.key) is None:
        before = _tokens(cut, stage.key)
        words = [sys.executable, "-c", WORKER, json.dumps(asdict(stage)), str(cut.out)]
        process = subprocess.Popen(words)
        try:
            if killed < 3:
                for _ in _polling():
                    if _tokens(cut, stage.key) >= before + 10 * toy.STEP or process.poll() is not None:
                        break
                time.sleep(chance.uniform(0, 0.1))
                process.kill()
            code = process.wait(SECONDS)
        finally:
            process.kill()
            process.wait()
        assert code in (0, -signal.SIGKILL)
        killed += code != 0
    assert killed == 3
    assert same(cut.records()[stage.key], record)
    assert events(cut, stage.key) == ["started", *["resumed"] * 3, "ok"]


def _polling() -> Iterator[None]:
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        yield
        time.sleep(0.005)
    pytest.fail("nothing came of it in time")


def _tokens(store: Store, key: str) -> int:
    try:
        about, _ = store.kept(key) or ({"progress": {"tokens": 0}}, Path())
    except ValueError:  # read between the two files of which the older is gone
        return 0
    return int(about["progress"]["tokens"])
