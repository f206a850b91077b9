"""Stage folders: whole or not there, and never believed where a byte is not as it was written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from growbench.store import RECORD, Record, Stage, Store, canonical, write_atomically

words = st.text(st.characters(codec="utf-8"), max_size=8)
numbers = st.floats(allow_nan=False, allow_infinity=False)
identities = st.dictionaries(
    words, st.recursive(words | numbers | st.integers() | st.booleans(), st.lists, max_leaves=4)
)


def stage(**identity: Any) -> Stage:
    return Stage(kind="train", label="a place", parent="0" * 24, identity=identity)


def fill(folder: Path) -> None:
    (folder / "data").write_bytes(bytes(range(100)))


@contextmanager
def written(**outcome: Any) -> Iterator[tuple[Store, Record]]:
    """A store in a folder of its own with one stage."""
    with TemporaryDirectory() as folder:
        store = Store(Path(folder))
        record = Record.of(stage(seed=1), **{"status": "ok"} | outcome)
        yield store, store.write(record, fill)


@given(identity=identities, flops=st.dictionaries(words, numbers), reason=words)
def test_a_record_reads_as_it_was_written(identity: dict[str, Any], flops: dict[str, float], reason: str) -> None:
    record = Record.of(stage(**identity), status="diverged", reason=reason, flops=flops, measures={"loss": None})
    assert Record.from_json(record.to_json()) == record


@given(st.data())
def test_any_altered_byte_or_cut_is_named_and_not_believed(data: st.DataObject) -> None:
    with written() as (store, record):
        assert store.read(record.key) == record
        path = store.folder(record.key) / data.draw(st.sampled_from([RECORD, "data"]))
        content = bytearray(path.read_bytes())
        position = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            content[position] ^= 1 << data.draw(st.integers(0, 7))
        else:
            del content[position:]
        path.write_bytes(content)
        with pytest.raises(ValueError, match=f"the stage folder .*{record.key} is damaged: "):
            store.read(record.key)
        assert store.records() == {}


def test_a_missing_file_is_damage_and_a_missing_folder_is_none() -> None:
    with written() as (store, record):
        assert store.read("f" * 24) is None
        (store.folder(record.key) / "data").unlink()
        with pytest.raises(ValueError, match=r"damaged: .*No such file"):
            store.read(record.key)


def test_a_folder_under_another_stage_s_key_is_damage() -> None:
    with written() as (store, record):
        store.folder(record.key).rename(store.folder("f" * 24))
        with pytest.raises(ValueError, match=f"its record is that of stage {record.key}"):
            store.read("f" * 24)


def test_a_write_that_fails_leaves_what_was_there() -> None:
    def full(folder: Path) -> None:
        (folder / "data").write_bytes(b"half")
        raise OSError("no space left")

    with written(reason="before") as (store, record):
        with pytest.raises(OSError, match="no space left"):
            store.write(Record.of(stage(seed=1), status="ok", reason="after"), full)
        with pytest.raises(OSError, match="no space left"):
            store.write(Record.of(stage(seed=2), status="ok"), full)
        assert [path.name for path in (store.out / "stages").iterdir()] == [record.key]
        assert store.read(record.key) == record


def test_a_later_record_takes_the_place_of_an_earlier_one() -> None:
    with written(status="failed", reason="before") as (store, record):
        after = store.write(Record.of(stage(seed=1), status="ok"))
        assert store.read(record.key) == after
        assert [path.name for path in store.folder(record.key).iterdir()] == [RECORD]
        store.discard(record.key)
        assert store.records() == {}


def test_what_an_interrupted_writer_left_is_swept_and_never_read_and_nothing_else_is() -> None:
    with written() as (store, record):
        left = [f".{record.key}.123", f".{record.key}.123.old"]
        foreign = [".git", ".cache.1", f".{record.key}", f".{record.key}.123.bak", f".{record.key}.x", ".older"]
        for name in (*left, *foreign):
            beside = store.out / "stages" / name
            beside.mkdir()
            (beside / RECORD).write_text(record.to_json())
        assert list(store.records()) == [record.key]
        store.sweep()
        assert {path.name for path in (store.out / "stages").iterdir()} == {record.key, *foreign}


def test_records_come_in_the_order_in_which_they_were_started(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for seed in (3, 1, 2):
        store.write(Record.of(stage(seed=seed), status="ok", started=f"2030-01-0{seed}"))
    assert [record.identity["seed"] for record in store.records().values()] == [1, 2, 3]


@given(st.permutations(["a", "b", "c"]))
@example(["c", "b", "a"])
def test_a_key_depends_on_identity_parent_and_kind_alone(order: list[str]) -> None:
    identity = {name: ord(name) for name in order}
    one = Stage(kind="train", label="here", parent=None, identity=identity, tokens=1, flops=2.0)
    assert one.key == Stage(kind="train", label="there", parent=None, identity=dict(sorted(identity.items()))).key
    assert len(one.key) == 24
    for other in (
        Stage(kind="cooldown", label="here", parent=None, identity=identity),
        Stage(kind="train", label="here", parent="0" * 24, identity=identity),
        Stage(kind="train", label="here", parent=None, identity=identity | {"a": 0}),
        Stage(kind="train", label="here", parent=None, identity=identity | {"d": 0}),
    ):
        assert other.key != one.key


def test_canonical_text_refuses_what_is_no_number() -> None:
    assert canonical({"b": 1.5, "a": ["é", None]}) == '{"a":["é",null],"b":1.5}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))


def test_a_text_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\udc80")
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == "new"
