"""Corpora: what is tokenised does not depend on how, when and by how many it was; and bad input is counted."""

import gzip
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import toy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from growbench import cli, documents, overlap, plugins
from growbench.conformance import check
from growbench.corpus import Corpus, Request, prepare, side_of
from growbench.documents import Bad, Layout, files, pieces
from growbench.task import Data, Stream
from growbench.tasks.files import Files
from growbench.tasks.hub import Hub
from growbench.tasks.tokens import Tokens
from growbench.tokenizer import Bytes, Library, Tokenizer, read, train_bpe

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
in_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def stories(count: int, seed: int = 0) -> list[str]:
    """Documents of made-up words, all different."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("aeiklmnorstü", k=rng.randint(2, 7))) for _ in range(300)]
    return [f"Story {seed}/{i}. " + " ".join(rng.choices(words, k=rng.randint(20, 120))) for i in range(count)]


def lines(rows: Sequence[str]) -> bytes:
    return "".join(json.dumps({"text": row}) + "\n" for row in rows).encode()


def zstd(raw: bytes) -> bytes:
    packed: bytes = pa.compress(raw, codec="zstd", asbytes=True)
    return packed


def arrow(path: Path, rows: Sequence[str]) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, pa.schema({"text": pa.string()})) as out:
        out.write_table(pa.table({"text": rows}), max_chunksize=7)


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def read_all(path: Path, layout: Layout | None = None) -> list[str | Bad]:
    layout = layout or Layout()
    return [found for piece in pieces(files(str(path)), layout) for found in documents.documents(piece, layout)]


def made(folder: Path, source: Path, *, workers: int = 1, **more: Any) -> Corpus:
    given_: dict[str, Any] = {"train": tuple(files(str(source))), "tokenizer": Bytes(), "valid_share": 0.2} | more
    return prepare(Request(**given_), cache=folder, asked={"as": str(source)}, workers=workers)


def sides(corpus: Corpus, tokenizer: Tokenizer | None = None) -> dict[str, list[str]]:
    """The documents of both streams, as their ends divide them."""
    tokenizer, data, found = tokenizer or Bytes(), corpus.data(), {}
    for side, stream in (("train", data.train), ("valid", data.valid)):
        *whole, rest = np.split(stream, np.flatnonzero(stream == tokenizer.end) + 1)
        assert not rest.size
        found[side] = [tokenizer.decode(part[:-1]) for part in whole]
    return found


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    made = train_bpe(stories(60), 400)
    end = json.loads(made)["added_tokens"][0]["id"]
    return Library(json=made, vocab=400, end=end)


# --- tokenizers ------------------------------------------------------------------------------------------------------


@given(rows=st.lists(texts | st.just("a<|endoftext|>b"), max_size=4))
def test_decoding_undoes_encoding_and_no_text_ends_a_document(rows: list[str], bpe: Tokenizer) -> None:
    for tokenizer in (Bytes(), bpe):
        encoded = tokenizer.encode(rows)
        assert [tokenizer.decode(tokens) for tokens in encoded] == rows
        assert all(tokens.max() < tokenizer.vocab and tokenizer.end not in tokens for tokens in encoded)


def test_a_bpe_is_the_same_however_often_it_is_trained(bpe: Tokenizer) -> None:
    assert isinstance(bpe, Library)
    assert train_bpe(iter(stories(60)), 400) == bpe.json
    assert bpe.end == 399
    with pytest.raises(ValueError, match="give 257 or more, not 256"):
        train_bpe([], 256)


def test_a_file_and_a_folder_of_transformers_are_the_same_tokenizer(bpe: Library, tmp_path: Path) -> None:
    import tokenizers
    import transformers

    path = written(tmp_path / "bpe.json", bpe.json.encode())
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_file(str(path)), eos_token="<|endoftext|>"
    )
    theirs.save_pretrained(tmp_path / "folder")
    rows = stories(5, seed=3)
    for ours in (read(str(path)), read(str(tmp_path / "folder"))):
        assert [tokens.tolist() for tokens in ours.encode(rows)] == theirs(rows)["input_ids"]
        assert (ours.end, ours.vocab) == (theirs.eos_token_id, len(theirs))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "there is no tokenizer .*: write bytes, the path of"), (b"{}", "is no file of the library tokenizers")],
)
def test_what_is_no_tokenizer_is_refused(content: bytes | None, sentence: str, tmp_path: Path) -> None:
    if content is not None:
        written(tmp_path / "bpe.json", content)
    with pytest.raises(ValueError, match=sentence):
        read(str(tmp_path / "bpe.json"))


def test_a_tokenizer_without_an_end_asks_for_its_name(bpe: Library, tmp_path: Path) -> None:
    path = written(tmp_path / "bpe.json", bpe.json.replace("<|endoftext|>", "<stop>").encode())
    with pytest.raises(ValueError, match=r"has no token <\|endoftext\|> or .*: name the one to use with end"):
        read(str(path))
    assert read(str(path), "<stop>").end == bpe.end


# --- documents -------------------------------------------------------------------------------------------------------


@in_folder
@given(
    content=st.text("ab\n", max_size=60),
    separator=st.sampled_from(["\n", "\n\n", "ab", "aba", "a"]),
    size=st.integers(1, 25),
)
def test_pieces_of_any_size_hold_each_document_once(
    content: str, separator: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.txt", content.encode())
    monkeypatch.setattr(documents, "PIECE", size)
    monkeypatch.setattr(documents, "BLOCK", 3)
    expected = content.split(separator)
    expected = expected[:-1] if not expected[-1] else expected  # nothing follows a separator at the end
    found = read_all(path, Layout(separator=separator))
    assert [one if isinstance(one, str) else "" for one in found] == expected if content else [Bad(why="empty file")]


KEPT: dict[str, Callable[[Path, list[str]], object]] = {
    "a.jsonl": lambda path, rows: path.write_bytes(lines(rows)),
    "a.json": lambda path, rows: path.write_bytes(b"\xef\xbb\xbf" + lines(rows).replace(b"\n", b"\r\n\n")),
    "a.jsonl.gz": lambda path, rows: path.write_bytes(gzip.compress(lines(rows[:9])) + gzip.compress(lines(rows[9:]))),
    "a.jsonl.zst": lambda path, rows: path.write_bytes(zstd(lines(rows[:9])) + zstd(lines(rows[9:]))),
    "a.jsonl.gz.zst": lambda path, rows: path.write_bytes(zstd(gzip.compress(lines(rows)))),
    "a.ndjson": lambda path, rows: path.write_bytes(gzip.compress(lines(rows))),
    "a.txt": lambda path, rows: path.write_bytes("##".join(rows).encode()),
    "a.parquet": lambda path, rows: pq.write_table(pa.table({"n": range(len(rows)), "text": rows}), path, 7),
    "a.arrow": arrow,
}


@pytest.mark.parametrize("name", KEPT)
@pytest.mark.parametrize("size", [600, 2**26])
def test_documents_are_the_same_however_they_are_kept(
    name: str, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = stories(40)
    KEPT[name](tmp_path / name, rows)
    monkeypatch.setattr(documents, "PIECE", size)
    layout = Layout(separator="##" if name == "a.txt" else "")
    assert read_all(tmp_path, layout) == rows
    split = len(pieces(files(str(tmp_path)), layout)) > 1
    assert split == (size == 600 and name in ("a.jsonl", "a.json", "a.parquet", "a.arrow"))


def test_a_folder_is_read_in_the_order_of_names_without_what_is_hidden(tmp_path: Path) -> None:
    for name in ("b/2.txt", "b/10.txt", "a.md", ".c/1.txt", "b/.d.txt", "e.png"):
        written(tmp_path / name, b"x")
    assert [str(path.relative_to(tmp_path)) for path in files(str(tmp_path))] == ["a.md", "b/10.txt", "b/2.txt"]
    assert len(files(str(tmp_path / "**" / "*.txt"))) == 2
    with pytest.raises(ValueError, match="names no file to read: give a file, a glob, or a folder"):
        files(str(tmp_path / "nothing"))


def test_rows_join_to_documents_where_one_is_a_heading(tmp_path: Path) -> None:
    rows = ["", " = One = \n", "", " a \n", " = = Part = = \n", " b \n", " = Two = \n", " c \n"]
    pq.write_table(pa.table({"text": rows}), tmp_path / "a.parquet", row_group_size=2)
    found = read_all(tmp_path / "a.parquet", Layout(heading=" = [^=]"))
    assert found == [" = One = \n a \n = = Part = = \n b \n", " = Two = \n c \n"]


# --- corpora: laws ---------------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of several kinds with 120 documents, of which some are equal."""
    rows = stories(100)
    written(tmp_path / "in" / "a.jsonl", lines(rows[:50]))
    written(tmp_path / "in" / "b.jsonl.gz", gzip.compress(lines(rows[50:80] + rows[:20])))
    pq.write_table(pa.table({"text": rows[80:]}), tmp_path / "in" / "c.parquet", row_group_size=5)
    return tmp_path / "in"


def test_processes_and_pieces_do_not_change_the_streams(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = made(tmp_path / "whole", source)
    monkeypatch.setattr(documents, "PIECE", 2000)
    assert len(pieces(files(str(source)), Layout())) > 6
    for workers in (1, 3):
        corpus = made(tmp_path / str(workers), source, workers=workers)
        assert replace(corpus, folder=whole.folder) == whole
    assert whole.counted.documents["train"] + whole.counted.documents["valid"] == 120


def test_the_split_is_of_documents_whatever_their_order(source: Path, tmp_path: Path) -> None:
    found = sides(made(tmp_path / "cache", source))
    rows = stories(100)
    random.Random(1).shuffle(rows)
    again = sides(made(tmp_path / "again", written(tmp_path / "all.jsonl", lines(rows))))
    assert {side: set(held) for side, held in found.items()} == {side: set(held) for side, held in again.items()}
    assert not set(found["train"]) & set(found["valid"])
    assert sorted(found["train"] + found["valid"]) == sorted(rows + stories(100)[:20])


@given(raw=st.binary(min_size=1), small=st.floats(0.001, 0.999), more=st.floats(1, 2))
def test_a_larger_share_validates_on_more_and_never_on_less(raw: bytes, small: float, more: float) -> None:
    assert side_of(raw, small) == "train" or side_of(raw, min(small * more, 1)) == "valid"


def test_the_share_is_that_of_all_documents() -> None:
    held_out = sum(side_of(str(i).encode(), 0.1) == "valid" for i in range(10_000))
    assert abs(held_out - 1000) < 5 * 30


@pytest.mark.parametrize("workers", [1, 2])
def test_killed_and_resumed_is_undisturbed(
    workers: int, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "PIECE", 2000)
    code = f"""
import os, signal
from pathlib import Path
from growbench import documents
from growbench.corpus import Request, prepare
from growbench.tokenizer import Bytes
if __name__ == "__main__":
    documents.PIECE = 2000
    request = Request(train=tuple(documents.files({str(source)!r})), tokenizer=Bytes(), valid_share=0.2)
    prepare(request, cache=Path({str(tmp_path / "killed")!r}), asked={{}}, workers={workers},
            notify=lambda done: done.pieces < 4 or os.kill(os.getpid(), signal.SIGKILL))
"""
    script = written(tmp_path / "script.py", code.encode())
    assert subprocess.run([sys.executable, str(script)]).returncode == -signal.SIGKILL
    (partial,) = (tmp_path / "killed" / "corpora").glob(".*.partial")
    done = {path: path.stat().st_mtime_ns for path in partial.glob("*.json")}
    assert len(done) >= 4
    seen: list[int] = []
    for path in done:
        os.utime(path, ns=(0, 0))  # a piece done anew would show

    def notify(progress: Any) -> None:
        seen.append(sum(not path.stat().st_mtime_ns for path in done))

    request = Request(train=tuple(files(str(source))), tokenizer=Bytes(), valid_share=0.2)
    corpus = prepare(request, cache=tmp_path / "killed", asked={}, workers=workers, notify=notify)
    assert set(seen) == {len(done)}
    undisturbed = made(tmp_path / "undisturbed", source)
    assert replace(corpus, folder=undisturbed.folder) == undisturbed
    assert not list(corpus.folder.glob("0*"))


def test_what_is_there_is_not_done_again_unless_a_source_changes(source: Path, tmp_path: Path) -> None:
    first = made(tmp_path / "cache", source)
    record = first.folder / "corpus.json"
    os.utime(record, ns=(0, 0))
    os.utime(source / "a.jsonl")  # touched, and the same
    assert made(tmp_path / "cache", source).folder == first.folder
    assert record.stat().st_mtime_ns == 0
    written(source / "a.jsonl", lines(stories(30, seed=5)))
    assert made(tmp_path / "cache", source).folder != first.folder


def test_documents_that_are_validated_on_are_left_out_of_training(source: Path, tmp_path: Path) -> None:
    rows = [*stories(100)[10:25], *stories(4, seed=8)]
    valid = written(tmp_path / "valid.jsonl", lines(rows))
    corpus = made(tmp_path / "cache", source, valid=(valid,), workers=2)
    found = sides(corpus)
    assert found["valid"] == rows
    assert sorted(found["train"]) == sorted(row for row in stories(100) + stories(100)[:20] if row not in rows)
    assert corpus.counted.bad == {"text that is validated on": 15 + 10}


# --- corpora: what is read -------------------------------------------------------------------------------------------


def test_streams_are_mapped_and_have_the_fingerprint_of_their_tokens(
    source: Path, tmp_path: Path, bpe: Tokenizer
) -> None:
    for tokenizer in (Bytes(), bpe):
        data = made(tmp_path / "cache", source, tokenizer=tokenizer).data()
        assert isinstance(data.train, np.memmap)
        plain = Data(
            train=np.array(data.train),
            valid=np.array(data.valid),
            vocab=data.vocab,
            unit="token",
            bytes_per_token=data.bytes_per_token,
        )
        assert data.fingerprint == plain.fingerprint
        ours, theirs = (Stream(one.train, context=16, seed=1) for one in (data, plain))
        assert np.array_equal(ours.batch(0, 50), theirs.batch(0, 50))
        with pytest.raises(ValueError, match="read-only"):
            data.train[0] = 1


def test_bytes_per_token_are_exact_and_compare_across_tokenizers(source: Path, tmp_path: Path, bpe: Tokenizer) -> None:
    held = {}
    for tokenizer in (Bytes(), bpe):
        corpus = made(tmp_path / "cache", source, tokenizer=tokenizer)
        found = sides(corpus, tokenizer)["valid"]
        assert corpus.bytes_per_token == sum(len(row.encode()) for row in found) / corpus.data().valid.size
        held[tokenizer.identity] = found
    first, second = held.values()
    assert first == second


def test_near_duplicates_are_reported(tmp_path: Path) -> None:
    rows, others = stories(60), stories(30, seed=1)
    edited = [row.replace("Story", "Tale")[:-10] + " by another hand" for row in rows[:12]]
    train, valid = tmp_path / "train.jsonl", tmp_path / "valid.jsonl"
    written(train, lines(rows))
    written(valid, lines([*edited, *others, "short"]))
    corpus = made(tmp_path / "cache", train, valid=(valid,))
    assert corpus.overlap == overlap.Overlap(gram=64, documents=42, near_duplicates=12)


def test_a_stream_that_was_cut_off_is_refused(source: Path, tmp_path: Path) -> None:
    corpus = made(tmp_path / "cache", source)
    os.truncate(corpus.folder / "train.tokens", 10)
    with pytest.raises(ValueError, match="is not as long as it was written: remove"):
        corpus.data()


def test_a_corpus_without_a_document_on_one_side_says_what_to_do(tmp_path: Path) -> None:
    path = written(tmp_path / "a.txt", b"one document, which is on one side")
    with pytest.raises(ValueError, match=r"of 1 documents none is for \w+: give more documents, say with separator"):
        made(tmp_path / "cache", path)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_corpus(tmp_path: Path) -> None:
    """All that a process allocates is limited to less than the corpus holds."""
    block = lines(stories(2000))
    with (tmp_path / "a.jsonl").open("wb") as out:
        for i in range(400):
            out.write(block.replace(b"Story", b"Story %d" % i))
    assert (tmp_path / "a.jsonl").stat().st_size > 260e6
    code = f"""
import resource
from pathlib import Path
from growbench.corpus import Request, prepare
from growbench.tokenizer import Bytes
resource.setrlimit(resource.RLIMIT_DATA, (250_000_000, 250_000_000))
request = Request(train=(Path({str(tmp_path / "a.jsonl")!r}),), tokenizer=Bytes())
prepare(request, cache=Path({str(tmp_path)!r}), asked={{}})
"""
    subprocess.run([sys.executable, "-c", code], check=True)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    folder = tmp_path / "odd"
    good = stories(30)
    written(folder / "bom.txt", b"\xef\xbb\xbfa text with a mark of its byte order\r\nand two line ends\r\n")
    written(folder / "crlf.jsonl", lines(good[:10]).replace(b"\n", b"\r\n"))
    written(folder / "nul.jsonl", lines(["nul \0 inside"]))
    written(folder / "nul.txt", b"\0\0raw nuls\0")
    written(folder / "nested.jsonl.gz.zst", zstd(gzip.compress(lines(good[10:]))))
    written(folder / "long.jsonl", lines(["word " * 10_000_000]))
    written(folder / "empty.jsonl", b"")
    written(folder / "empty.parquet", b"")
    written(folder / "latin.txt", "größer".encode("latin-1"))
    written(folder / "utf16.txt", "größer".encode("utf-16"))
    written(folder / "rows.jsonl", b'{"text": ""}\n{"text": null}\n{"other": 1}\n[1]\n{"text": "\\ud800"}\n{"te\n')
    written(folder / "cut.jsonl.gz", gzip.compress(lines(stories(400)))[:-30])
    written(folder / "cut.parquet", b"PAR1 and no more")
    broken = pa.array([b"fine", b"\xff\xfe", None]).view(pa.string())
    pq.write_table(pa.table({"text": broken}), folder / "broken.parquet")
    return folder


def test_a_folder_of_oddities_is_counted(odd: Path, tmp_path: Path) -> None:
    corpus = made(tmp_path / "cache", odd)
    assert corpus.counted.bad == {
        "empty file": 2,
        "broken utf-8": 4,
        "no text": 5,
        "broken json": 1,
        "unreadable file": 2,
    }
    found = set(chain(*sides(corpus).values()))
    assert {
        "a text with a mark of its byte order\r\nand two line ends\r\n",
        "nul \0 inside",
        "\0\0raw nuls\0",
        "word " * 10_000_000,
        "fine",
        *stories(30),
    } <= found


def test_bad_rows_are_refused_where_the_study_says_so(odd: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"broken.parquet: row 2, .* has broken utf-8: mend it, or set bad to skip"):
        made(tmp_path / "cache", odd, bad="refuse")
    made(tmp_path / "cache", odd)
    with pytest.raises(ValueError, match=r"has rows without a document, .*: mend them, or set bad to skip"):
        made(tmp_path / "cache", odd, bad="refuse")


def test_a_table_without_the_column_names_those_it_has(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1], "body": ["x"]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"has no column 'text': name one of id, body with column"):
        read_all(tmp_path / "a.parquet")
    assert read_all(tmp_path / "a.parquet", Layout(column="body")) == ["x"]


# --- the tasks -------------------------------------------------------------------------------------------------------


def ready(task: Any, cache: Path) -> Corpus:
    corpus: Corpus = task.prepare(cache, workers=1, notify=lambda done: None)
    return corpus


def test_a_task_passes_conformance_once_it_is_prepared(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    before = {result.check: result for result in check(f"files:{source}", cache=cache)}
    assert "growbench data prepare files:" in before["streams"].message
    written(source / "d.jsonl", lines(stories(400, seed=2)))
    ready(Files(path=str(source)), cache)
    results = check(f"files:{source}", cache=cache)
    assert {result.status for result in results if result.check != "entropy"} == {"passed"}, results


def test_a_study_trains_on_a_prepared_corpus(source: Path, tmp_path: Path, bpe: Library) -> None:
    tokenizer = written(tmp_path / "bpe.json", bpe.json.encode())
    parameters: dict[str, Any] = {"tokenizer": str(tokenizer), "valid_share": 0.2}
    given_: dict[str, Any] = {
        "tasks": [{"name": "files", "argument": str(source)} | parameters],
        "strategies": ["scratch", "zero_pad"],
        "cache": tmp_path / "cache",
    }
    with pytest.raises(ValueError, match=r"prepared once: run `growbench data prepare files:.* --set valid_share=0.2"):
        toy.plan(tmp_path, **given_)
    ready(Files(path=str(source), **parameters), tmp_path / "cache")
    records = toy.work(toy.plan(tmp_path, **given_), tmp_path / "out")
    assert {record.status for record in records.values()} == {"ok"}
    assert {record.kind for record in records.values()} >= {"init", "train", "grow", "cooldown"}


def recorded(dtype: type[np.unsignedinteger[Any]], magic: int, tokens: list[int]) -> bytes:
    """A shard as llm.c writes it."""
    head = np.zeros(256, "<i4")
    head[:3] = magic, 1, len(tokens)
    return head.tobytes() + np.array(tokens, dtype).tobytes()


def test_shards_of_nanogpt_and_of_llm_c_are_the_same_tokens(tmp_path: Path, bpe: Library) -> None:
    tokenizer = written(tmp_path / "bpe.json", bpe.json.encode())
    rows = stories(40)
    streams = {
        side: [token for tokens in bpe.encode(part) for token in (bpe.end, *tokens.tolist())]
        for side, part in (("train", rows[:30]), ("val", rows[30:]))
    }
    for side, tokens in streams.items():
        written(tmp_path / "nano" / f"{side}.bin", np.array(tokens, np.uint16).tobytes())
        for part, half in enumerate((tokens[:99], tokens[99:])):
            written(tmp_path / "llmc" / f"web_{side}_{part:06}.bin", recorded(np.uint16, 20240520, half))
            written(tmp_path / "wide" / f"web_{side}_{part:06}.bin", recorded(np.uint32, 20240801, half))
    found = [
        ready(Tokens(path=str(tmp_path / kind), vocab=400, end=399, tokenizer=str(tokenizer)), tmp_path / "cache")
        for kind in ("nano", "llmc", "wide")
    ]
    assert len({corpus.fingerprint for corpus in found}) == 1
    data = found[0].data()
    assert data.valid.tolist() == streams["val"]
    assert data.bytes_per_token == sum(len(row.encode()) for row in rows[30:]) / len(streams["val"])
    plain = ready(Tokens(path=str(tmp_path / "nano"), vocab=400, end=399), tmp_path / "cache").data()
    assert (plain.unit, plain.bytes_per_token) == ("symbol", None)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            recorded(np.uint16, 20240520, [1, 2, 3])[:-2],
            "are no 3 tokens of uint16 after 1024 bytes",
        ),
        (b"\1\0\2", "are no 1 tokens of uint16 after 0 bytes"),
        (b"", "has 0 bytes"),
        (b"\xff\xff", "holds token 65535, outside the 50257 of vocab"),
    ],
)
def test_shards_that_are_not_what_they_state_are_refused(content: bytes, sentence: str, tmp_path: Path) -> None:
    written(tmp_path / "in" / "train.bin", content)
    with pytest.raises(ValueError, match="give one of each at least, the latter with val in its name"):
        ready(Tokens(path=str(tmp_path / "in")), tmp_path / "cache")
    written(tmp_path / "in" / "val.bin", b"\1\0")
    with pytest.raises(ValueError, match=sentence):
        ready(Tokens(path=str(tmp_path / "in")), tmp_path / "cache")


# --- data sets of the hub --------------------------------------------------------------------------------------------


RECORDED: dict[str, dict[str, Any]] = {
    "tinystories": {
        "name": "roneneldan/TinyStories",
        "config": "default",
        "features": {"text": "string"},
        "files": {"train": "data/train-00000-of-00004.parquet", "validation": "data/validation-00000-of-00001.parquet"},
    },
    "wikitext103": {
        "name": "Salesforce/wikitext",
        "config": "wikitext-103-raw-v1",
        "features": {"text": "string"},
        "files": {
            "test": "wikitext-103-raw-v1/test-00000-of-00001.parquet",
            "train": "wikitext-103-raw-v1/train-00000-of-00002.parquet",
            "validation": "wikitext-103-raw-v1/validation-00000-of-00001.parquet",
        },
    },
    "fineweb_edu": {
        "name": "HuggingFaceFW/fineweb-edu",
        "config": "sample-10BT",
        "features": {
            "text": "string",
            "id": "string",
            "dump": "string",
            "url": "string",
            "file_path": "string",
            "language": "string",
            "language_score": "float64",
            "token_count": "int64",
            "score": "float64",
            "int_score": "int64",
        },
        "files": {"train": "sample/10BT/000_00000.parquet"},
    },
    "openwebtext": {
        "name": "Skylion007/openwebtext",
        "config": "plain_text",
        "features": {"text": "string"},
        "files": {"train": "plain_text/train-00000-of-00080.parquet"},
    },
}
"""What the hub says of the data sets behind the ready-made tasks, written down; none was downloaded here."""


def rebuilt(folder: Path, entry: dict[str, Any], rows: dict[str, list[str]]) -> Path:
    """A data set of that description, with rows of its own."""
    for split, name in entry["files"].items():
        table = {
            feature: rows[split] if feature == "text" else pa.array([None] * len(rows[split]), getattr(pa, dtype)())
            for feature, dtype in entry["features"].items()
        }
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), folder / name)
    listed = [{"split": split, "path": name} for split, name in entry["files"].items()]
    card = {"configs": [{"config_name": entry["config"], "data_files": listed}]}
    written(folder / "README.md", f"---\n{json.dumps(card)}\n---\n".encode())
    return folder


@pytest.mark.parametrize("name", RECORDED)
def test_a_ready_made_task_reads_a_data_set_as_the_hub_describes_it(name: str, tmp_path: Path) -> None:
    entry, task = RECORDED[name], plugins.load("task", name)()
    ((repository, config),) = re.findall(r"^([^:@]+)(?::([^@]+))?@[0-9a-f]{40}$", task.dataset)
    assert (repository, config or "default") == (entry["name"], entry["config"])
    rows = {split: stories(60, seed=i) for i, split in enumerate(entry["files"])}
    if name == "wikitext103":
        rows = {split: ["", *chain(*([f" = {r[:9]} = \n", "", f" {r} \n"] for r in rows[split]))] for split in rows}
    folder = rebuilt(tmp_path / "hub", entry, rows)
    local = replace(task, dataset=f"{folder}:{entry['config']}", valid_share=0.2)
    corpus = ready(local, tmp_path / "cache")
    found = sides(corpus)
    if task.valid_split:
        assert "".join(found["valid"]) == "".join(rows[task.valid_split])
        assert "".join(found["train"]) == "".join(rows["train"])
        assert len(found["train"]) == 60
    else:
        assert sorted(found["train"] + found["valid"]) == sorted(rows["train"])
    assert local.load(tmp_path / "cache").fingerprint == corpus.fingerprint


def test_a_data_set_is_read_anew_when_its_folder_changes(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    written(folder / "a.jsonl", lines(stories(50)))
    task = Hub(dataset=str(folder), valid_share=0.2)
    ready(task, tmp_path / "cache")
    assert task.missing(tmp_path / "cache") == ""
    written(folder / "a.jsonl", lines(stories(40, seed=1)))
    assert "growbench data prepare hub:" in task.missing(tmp_path / "cache")
    assert set(chain(*sides(ready(task, tmp_path / "cache")).values())) == set(stories(40, seed=1))


@pytest.mark.parametrize("dataset", ["a:b:c", "name@", ":config"])
def test_what_names_no_data_set_is_refused(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"is no data set: write NAME\[:CONFIG\]\[@REVISION\]"):
        ready(Hub(dataset=dataset), tmp_path)


# --- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture
def growbench_(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """The command in this process, with a cache of its own: its exit code, stdout and stderr."""
    monkeypatch.setattr(cli, "_cache", lambda: tmp_path / "cache")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["growbench", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        return int(exit_.value.code or 0), captured.out, captured.err

    return run


def test_the_command_trains_a_tokenizer_and_prepares_a_corpus(
    growbench_: Callable[..., tuple[int, str, str]], source: Path, tmp_path: Path
) -> None:
    written(source / "bad.jsonl", b"{}\n")
    bpe = tmp_path / "bpe.json"
    code, out, _ = growbench_("data", "train-bpe", str(source), "-o", str(bpe), "--vocab", "300")
    assert (code, out) == (0, f"out: {bpe}\nvocab: 300\n")
    task = Files(path=str(source), tokenizer=str(bpe), valid_share=0.2)
    (command,) = re.findall(r"`growbench (.*)`", task.missing(tmp_path / "cache"))
    code, out, err = growbench_(*command.split(), "--json", "--workers", "1")
    assert code == 0
    assert "[4/4] progress" in err
    said = json.loads(out)
    assert said["documents to train on"] + said["documents to validate on"] == 120
    assert said["left out"] == {"no text": 1}
    assert task.missing(tmp_path / "cache") == ""
    code, _, err = growbench_(*command.split(), "--set", "bad=refuse")
    assert code == 2
    assert "rows without a document, 1 with no text: mend them" in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["prepare", "pycode"], "the task 'pycode' has nothing to prepare"),
        (["prepare", "files"], "the task files needs a path: write files:PATH"),
        (["prepare", "files:nowhere"], "nowhere names no file to read: give a file, a glob, or a folder"),
        (["prepare", "tinystories:x"], "task 'tinystories' takes no argument"),
        (
            ["prepare", "files:x", "--set", "tokeniser=y"],
            "task 'files' has no parameter 'tokeniser': did you mean tokeni",
        ),
        (
            ["prepare", "files:x", "--set", "bad=drop"],
            "task 'files': bad must be Literal['skip', 'refuse'], not 'drop'",
        ),
        (["prepare", "files:x", "--set", "valid_share=2"], "valid_share is a share of all documents, above 0"),
    ],
)
def test_a_mistake_is_one_sentence(
    growbench_: Callable[..., tuple[int, str, str]],
    arguments: list[str],
    sentence: str,
    monkeypatch: Any,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "x", b"a document")
    code, _, err = growbench_("data", *arguments)
    assert code == 2
    assert sentence in err
    assert err.count("\n") == 1
