"""The conformance kit: all built-ins pass, and each check alone catches the plugin that breaks its rule."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutants import STRATEGIES, STRATEGY, TASKS, Mutant

from growbench import plugins
from growbench.conformance import Result, check, suite
from growbench.conformance import tasks as task_checks
from growbench.overlap import hashes
from growbench.scaffold import new_strategy

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("fpi", {"weighted": True}),
    ("gradual_stack", {"where": "middle"}),
    ("hyperclone", {"snr_db": 10.0}),
    ("lora", {"rank": 1, "frozen": False}),
    ("net2net", {"noise": 0.0}),
    ("orthogonal", {"units": "random"}),
    ("zero_pad", {"scaled": False}),
    ("zero_pad", {"two_sided": True}),
    ("zero_tokens", {"factor": "rescaled"}),
    ("zero_tokens", {"zero": "values"}),
    ("zero_tokens", {"zero": "both"}),
    ("zero_tokens", {"zero": "neither", "factor": "rescaled"}),
]
BUILT_IN: list[tuple[str, dict[str, Any]]] = [
    (name, {"steps": 5} if name == "ligo" else {}) for name in plugins.discover("strategy")
]


def failed(results: list[Result]) -> dict[str, str]:
    return {result.check: result.message for result in results if result.status == "failed"}


@pytest.mark.parametrize(
    ("name", "parameters"),
    BUILT_IN + VARIANTS,
    ids=[f"{n}({', '.join(map(str, p.values()))})" for n, p in BUILT_IN + VARIANTS],
)
def test_every_built_in_strategy_passes(name: str, parameters: dict[str, Any]) -> None:
    results = check(name, parameters=parameters)
    assert failed(results) == {}
    passed = {result.check for result in results if result.status == "passed"}
    assert passed >= {"loads", "defaults", "cites"}
    if name != "scratch":
        assert passed >= {"supports", "shapes", "seeded", "preserves", "composes", "moments", "checkpoint", "dtypes"}


@pytest.mark.slow
def test_ligo_passes_at_its_published_number_of_steps() -> None:
    assert failed(check("ligo")) == {}


@pytest.mark.parametrize("given_", ["grammar", "pycode", f"text:{Path(__file__).parent}", "text", "shakespeare"])
def test_every_built_in_task_passes(given_: str, tmp_path: Path) -> None:
    results = {result.check: result for result in check(given_, cache=tmp_path)}
    assert failed(list(results.values())) == {}
    if given_ in ("text", "shakespeare"):  # a path is to be given, and data to be fetched, before more can be said
        assert results["streams"].status == "exempt"
        assert ("text:PATH" if given_ == "text" else "growbench data fetch shakespeare") in results["streams"].message
    else:
        assert all(result.status == "passed" for name, result in results.items() if name != "entropy")
        assert (results["entropy"].status == "passed") == (given_ == "grammar")


@pytest.mark.parametrize("mutant", [*STRATEGIES, *TASKS], ids=str)
def test_each_check_alone_catches_its_mutant(mutant: Mutant, tmp_path: Path) -> None:
    path = tmp_path / "mutant.py"
    path.write_text(mutant.source, encoding="utf-8")
    found = failed(check(path, cache=tmp_path / "data"))
    assert list(found) == [mutant.check], found
    assert mutant.says in found[mutant.check]


def test_each_check_has_a_mutant() -> None:
    for name, mutants in (("net2net", STRATEGIES), ("grammar", TASKS)):
        assert {mutant.check for mutant in mutants} == set(suite(name).checks)


def test_the_mutants_differ_from_a_plugin_that_passes(tmp_path: Path) -> None:
    path = tmp_path / "mutant.py"
    path.write_text(STRATEGY, encoding="utf-8")
    results = check(path)
    assert {result.status for result in results} == {"passed"}, results


@pytest.mark.parametrize("alone", ["value", "head", "token"])
def test_a_strategy_of_one_kind_of_axis_is_examined(alone: str, tmp_path: Path) -> None:
    """One that supports no more than that is sound, and all that it grows is found."""
    path = tmp_path / "mutant.py"
    path.write_text(
        STRATEGY.replace("model, plugins", "model")
        + "    def supports(self, source, target):\n"
        + "        from growbench.state import changed\n"
        + "        deeper = source.layers != target.layers\n"
        + f"        others = deeper or any(not a.name.endswith('{alone}') for a in changed(source, target))\n"
        + "        return 'it grows one kind of axis, and others grow too' if others else ''\n"
    )
    results = {result.check: result for result in check(path)}
    assert failed(list(results.values())) == {}
    assert {results[name].status for name in ("supports", "preserves", "composes", "alive", "moments")} == {"passed"}


def test_every_check_says_what_it_guards() -> None:
    for name in ("net2net", "grammar"):
        assert all(check_.guards for check_ in suite(name).checks.values())


# --- what tasks are measured with -------------------------------------------------------------------------------------


@given(text=st.binary(min_size=1, max_size=60), length=st.integers(1, 8))
def test_hashes_are_equal_where_stretches_are(text: bytes, length: int) -> None:
    text = text.replace(b"\xff", b"\x00")[:40] * 2  # so that some are
    found = hashes(np.frombuffer(text, np.uint8), length)
    stretches = [text[i : i + length] for i in range(len(text) - length + 1)]
    assert len(found) == len(stretches)
    assert [[a == b for b in stretches] for a in stretches] == (found[:, None] == found[None]).tolist()


@pytest.mark.parametrize(("repeated", "length"), [(0, 64), (100, 256), (300, 1024)])
def test_a_document_is_longer_than_what_training_repeats(repeated: int, length: int) -> None:
    """Random bytes, of which the last ones of training hold a licence that is also at its beginning."""
    from growbench.task import Data

    train, valid = (
        np.random.default_rng(seed).integers(256, size=n, dtype=np.uint8) for seed, n in enumerate((20000, 4000))
    )
    train[-1000 : -1000 + repeated] = train[:repeated]
    data = Data(train=train, valid=valid, vocab=256, unit="byte", bytes_per_token=1.0)
    assert task_checks._document(data) == length


def test_an_n_gram_model_by_hand() -> None:
    """Training a b a b ... : after one "a" in validation, p(b | a) = (count + p(b)) / (count + 1)."""
    from growbench.task import Data

    train = np.tile(np.array([0, 1], np.uint8), 50)
    data = Data(train=train, valid=train[:20].copy(), vocab=2, unit="symbol")
    unigram, bigram, *_ = task_checks.ngrams(data)
    p = (50 + 1 / 2) / 101
    assert unigram[0] == pytest.approx(-np.log(p))
    after_0, after_1 = (50 + p) / 51, (49 + p) / 50  # 50 times "a b", 49 times "b a"
    targets = data.valid[task_checks.ORDERS - 1 :]
    expected = np.where(targets == 1, -np.log(after_0), -np.log(after_1)).mean()
    assert bigram[0] == pytest.approx(expected)


# --- the command line, pytest, and a new strategy ---------------------------------------------------------------------


def process(*words: str, folder: Path) -> tuple[int, str, str]:
    done = subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def growbench(*words: str, folder: Path) -> tuple[int, str, str]:
    code = f"import sys; from growbench.cli import main; sys.argv = ['growbench', *{list(words)!r}]; main()"
    return process("-c", code, folder=folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a new strategy, and a mutant that cites no source."""
    made = tmp_path_factory.mktemp("folder")
    code, out, _ = growbench("new", "strategy", "my_method", folder=made)
    assert code == 0
    assert out.split() == ["my_method/my_method.py", "my_method/test_my_method.py", "my_method/README.md"]
    (made / "mutant.py").write_text(STRATEGY.replace("(arXiv:1511.05641)", "(ours)"))
    (made / "_helper.py").write_text("")
    return made


def test_check_prints_one_line_for_each_check_and_fails_with_1(folder: Path) -> None:
    """The new strategy passes them all at once."""
    code, out, err = growbench("check", "my_method/my_method.py", "stack", "text", "mutant.py", folder=folder)
    lines = out.splitlines()
    assert (code, err) == (1, "")
    assert len(lines) == 3 * len(suite("stack").checks) + len(suite("text").checks)
    assert {line.split()[0] for line in lines if "  my_method  " in line} == {"passed"}
    assert [line for line in lines if line.startswith("failed")] == [
        "failed  mutant  cites  the docstring of Mutant cites no source: name one as arXiv:1511.05641, as a DOI "
        "(10.1000/182) or as a URL"
    ]
    assert any(line.startswith("exempt  text  streams  ") for line in lines)


def test_pytest_has_one_test_for_each_check(folder: Path) -> None:
    """Of a plugin in a test file, as `new strategy` writes it, and of a plugin file on the command line."""
    words = ("my_method/test_my_method.py", "mutant.py", "--growbench-check", "-v", "-p", "no:cacheprovider")
    code, out, _ = process("-m", "pytest", *words, folder=folder)
    checks = list(suite("net2net").checks)
    assert code == 1
    assert all(f"test_my_method.py::test_my_method[{check}] PASSED" in out for check in checks), out
    assert "mutant.py::cites FAILED" in out
    assert "mutant.py::alive PASSED" in out
    assert f"1 failed, {2 * len(checks) - 1} passed" in out


def test_json_is_one_object(folder: Path) -> None:
    code, out, _ = growbench("check", "text", "--json", folder=folder)
    assert code == 0
    rows = json.loads(out)["checks"]
    assert [row["check"] for row in rows] == list(suite("text").checks)
    assert rows[0] == {"plugin": "text", "check": "loads", "status": "passed", "message": ""}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("My", "lower-case"),
        ("my-method", "lower-case"),
        ("_mine", "lower-case"),
        ("test_mine", "lower-case"),
        ("", "lower-case"),
        ("lambda", "a word of Python"),
        ("none", "a word of Python"),
        ("strategy", "hide the Strategy that its file imports"),
        ("axis_map", "hide the AxisMap that its file imports"),
        ("net2net", "there is a strategy of that name"),
        ("json", "hide the module json"),
        ("torch", "hide the module torch"),
    ],
)
def test_bad_names_are_refused_in_a_sentence(name: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why):
        new_strategy(name, tmp_path)
    assert not any(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    with pytest.raises(FileExistsError, match="is not overwritten"):
        new_strategy("mine", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    for out in ("taken", "taken/below"):
        code, _, err = growbench("new", "strategy", "mine", "--out", out, folder=tmp_path)
        assert (code, len(err.splitlines())) == (2, 1)
        assert "taken is no folder: give --out a folder" in err


def test_what_is_to_be_checked_must_exist(tmp_path: Path) -> None:
    code, out, err = growbench("check", "hyperclon", folder=tmp_path)
    assert (code, out) == (2, "")
    assert "unknown strategy or task 'hyperclon': did you mean hyperclone?" in err
    with pytest.raises(ValueError, match=r"there is no file absent\.py"):
        suite("absent.py")
    with pytest.raises(ValueError, match="takes no argument"):
        suite("grammar:3")
