"""Discovery: what is listed is what is there, nothing is imported by listing, and a name means one plugin."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from growbench import plugins

GROWER = '''
from dataclasses import dataclass
from growbench.strategy import Strategy
import helper_of_mine

@dataclass(frozen=True, kw_only=True)
class Mine(Strategy):
    """Doubles everything.

    More words.
    """
    rank: int = 8
    factor: Literal["held", "rescaled"] = "held"
    noise: float | None = None
    preserves: ClassVar[str] = "function"
'''


def write(folder: Path, name: str, source: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return path


def install(site: Path, monkeypatch: pytest.MonkeyPatch, *, entry: str, group: str = "growbench.strategies") -> None:
    """Lay out a distribution as an installer would: a package, its metadata and one entry point."""
    write(site, "acme_growth-1.2.dist-info/METADATA", "Metadata-Version: 2.1\nName: acme-growth\nVersion: 1.2\n")
    write(site, "acme_growth-1.2.dist-info/entry_points.txt", f"[{group}]\n{entry}\n")
    monkeypatch.syspath_prepend(site)


@given(st.text(), st.lists(st.text(min_size=1), max_size=6))
def test_the_hint_names_a_choice_or_all(word: str, choices: list[str]) -> None:
    hint = plugins.nearest(word, choices)
    assert any(hint == f": did you mean {choice}?" for choice in choices) or all(choice in hint for choice in choices)


def test_a_file_is_read_without_being_imported(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.py", GROWER)
    plugin = plugins.discover("strategy", [path])["mine"]
    assert plugin.summary == "Doubles everything."
    assert plugin.origin == f"file {path}"
    assert plugin.fields == {
        "rank": "int = 8",
        "factor": "Literal['held', 'rescaled'] = 'held'",
        "noise": "float | None = None",
    }
    assert "mine" not in plugins.discover("task", [path])


def test_the_kind_follows_the_base_class(tmp_path: Path) -> None:
    write(tmp_path, "words.py", "from growbench.task import Task as Base\nclass Words(Base): pass\n")
    write(tmp_path, "bytes_.py", "import growbench.task\nclass Bytes(growbench.task.Task): pass\n")
    write(tmp_path, "_helper.py", "class NotAPlugin: pass\n")
    assert {"words", "bytes_"} <= plugins.discover("task", [tmp_path]).keys()
    assert not {"words", "bytes_", "_helper"} & plugins.discover("strategy", [tmp_path]).keys()


def test_fields_of_a_base_in_the_same_file_come_first(tmp_path: Path) -> None:
    source = "class _Base:\n    a: int = 1\n    b: int = 2\nclass Mine(_Base):\n    c: int = 3\n    a: int = 4\n"
    fields = plugins.discover("strategy", [write(tmp_path, "mine.py", source)])["mine"].fields
    assert list(fields.items()) == [("a", "int = 4"), ("b", "int = 2"), ("c", "int = 3")]


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ("class Mine(:\n", "line 1: invalid syntax"),
        ("x = 1\n", "this one has none"),
        ("class A: pass\nclass B: pass\n", "this one has A, B"),
        ("\0", "source code string cannot contain null bytes"),
    ],
)
def test_a_broken_file_is_listed_with_its_error_and_refused_by_load(tmp_path: Path, source: str, error: str) -> None:
    path = write(tmp_path, "mine.py", source)
    assert error in plugins.discover("strategy", [path])["mine"].error
    with pytest.raises(ValueError, match=r"the strategy 'mine' \(file .*\) cannot be read"):
        plugins.load("strategy", "mine", [path])


def test_every_built_in_can_be_read() -> None:
    for kind in plugins.KINDS:
        for plugin in plugins.discover(kind).values():
            assert (plugin.error, plugin.origin) == ("", "built-in"), plugin
            assert plugin.summary.endswith("."), plugin
            assert all(" = " in text for text in plugin.fields.values()), plugin


def test_built_in_names_classes_and_fields_are_those_that_python_sees() -> None:
    import dataclasses

    for kind in plugins.KINDS:
        for name, plugin in plugins.discover(kind).items():
            loaded = plugins.load(kind, name)
            assert loaded.__name__ == plugin.cls
            assert [field.name for field in dataclasses.fields(loaded)] == list(plugin.fields)


def test_listing_imports_neither_torch_nor_a_plugin(tmp_path: Path) -> None:
    bomb = write(tmp_path, "bomb.py", "raise SystemExit('imported')\nclass Bomb: pass\n")
    code = (
        "import sys; from pathlib import Path; from growbench import plugins\n"
        f"assert 'bomb' in plugins.discover('strategy', [Path({str(bomb)!r})])\n"
        "plugins.discover('task')\n"
        "heavy = {'torch', 'numpy', 'pandas', 'pydantic', 'growbench.strategy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_built_in_cannot_be_shadowed(tmp_path: Path) -> None:
    taken = next(iter(plugins.discover("strategy")))
    path = write(tmp_path, f"{taken}.py", GROWER)
    with pytest.raises(
        ValueError, match=rf"name '{taken}' is taken twice, by the built-in .* and by the file .*{taken}"
    ):
        plugins.discover("strategy", [path])


def test_two_given_files_of_one_name_are_refused_but_one_given_twice_is_one(tmp_path: Path) -> None:
    a, b = write(tmp_path, "a/mine.py", GROWER), write(tmp_path, "b/mine.py", GROWER)
    assert "mine" in plugins.discover("strategy", [a, a, a.parent])
    with pytest.raises(ValueError, match="taken twice"):
        plugins.discover("strategy", [a, b])


def test_a_path_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no plugin file or folder .*nowhere"):
        plugins.discover("strategy", [tmp_path / "nowhere.py"])


def test_an_unknown_name_gets_the_nearest() -> None:
    known = next(iter(plugins.discover("strategy")))
    with pytest.raises(ValueError, match=rf"unknown strategy '{known}x': did you mean {known}\? \(`growbench list`"):
        plugins.load("strategy", known + "x")


def test_a_given_file_is_loaded_with_its_helpers_and_leaves_no_trace_on_the_path(tmp_path: Path) -> None:
    write(tmp_path, "_numbers_of_mine.py", "SIX = 6\n")
    source = "from _numbers_of_mine import SIX\nclass Mine:\n    rank: int = SIX\n"
    path = write(tmp_path, "mine.py", source)
    loaded = plugins.load("strategy", "mine", [path])
    assert loaded.rank == 6
    assert plugins.load("strategy", "mine", [path]) is loaded
    assert str(tmp_path) not in sys.path
    write(tmp_path, "mine.py", source.replace("= SIX", "= SIX + 1"))
    assert plugins.load("strategy", "mine", [path]).rank == 7


def test_helpers_of_one_name_in_two_folders_are_two(tmp_path: Path) -> None:
    source = (
        "import _common\nimport _tools.deep\nfrom growbench.strategy import Strategy\n"
        "class {name}(Strategy):\n    noise = _common.NOISE + _tools.deep.NOISE\n    def late(self):\n"
        "        from _late import NOISE\n        import json, random\n        return NOISE, random.NOISE, json.dumps\n"
    )
    loaded = []
    for noise, name in enumerate(("Ours", "Theirs"), start=1):
        folder = tmp_path / name
        for helper in ("_base.py", "_tools/deep.py", "random.py"):
            write(folder, helper, f"NOISE = {noise}\n")
        for helper in ("_common.py", "_late.py"):
            write(folder, helper, "from _base import NOISE\n")
        (folder / "json").mkdir()  # of results, say
        path = write(folder, f"{name.lower()}.py", source.format(name=name))
        loaded.append((noise, plugins.load("strategy", name.lower(), [path])))
    for noise, cls in loaded:
        assert cls.noise == 2 * noise
        assert cls().late() == (noise, noise, json.dumps)
    assert not {"_common", "_late", "_tools", "_base"} & sys.modules.keys()


def test_the_hash_is_of_the_code_that_runs(tmp_path: Path) -> None:
    helper = write(tmp_path, "_common.py", "NOISE = 1\n")
    path = write(tmp_path, "mine.py", "import _common\nclass Mine:\n    noise = _common.NOISE\n")

    def both() -> tuple[str, int]:
        return plugins.source_hash(plugins.find("strategy", "mine", [path])), plugins.load(
            "strategy", "mine", [path]
        ).noise

    first = both()
    helper.write_text("NOISE = 2\n")  # as long as before, in the same second
    second = both()
    assert (first[1], second[1]) == (1, 2)
    assert first[0] != second[0]
    write(tmp_path, "growbench/strategy.py", "")  # a checkout beside it is not what is imported
    path.write_text(path.read_text() + "import growbench.strategy\n")
    third = both()[0]
    write(tmp_path, "growbench/strategy.py", "# changed\n")
    assert both()[0] == third


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("raise RuntimeError('no\\nluck')\n", "RuntimeError: no luck"),
        ("import absent_of_mine\n", "ModuleNotFoundError: No module named 'absent_of_mine'"),
        ("import _broken\n", "SyntaxError: invalid syntax (_broken.py, line 1)"),
        ("raise ValueError('give more')\n", "give more"),
        ("assert False\n", "AssertionError"),
    ],
)
def test_a_plugin_that_fails_at_import_is_named_with_its_file(tmp_path: Path, source: str, why: str) -> None:
    write(tmp_path, "_broken.py", "class (:\n")
    path = write(tmp_path, "mine.py", source + "class Mine: pass\n")
    with pytest.raises(ValueError, match="mine") as caught:
        plugins.load("strategy", "mine", [path])
    assert str(caught.value) == f"strategy 'mine' (file {path}) cannot be imported: {why}"


def test_an_interrupt_is_nobody_s_fault(tmp_path: Path) -> None:
    path = write(tmp_path, "mine.py", "raise KeyboardInterrupt\nclass Mine: pass\n")
    with pytest.raises(KeyboardInterrupt):
        plugins.load("strategy", "mine", [path])


def test_a_folder_without_plugins_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "_helper.py", "")
    with pytest.raises(ValueError, match=r"the folder .* holds no plugin: give a \.py file"):
        plugins.discover("task", [tmp_path])


def test_an_entry_point_is_listed_unimported_and_loaded_by_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "acme_imported/__init__.py", "")
    write(
        tmp_path,
        "acme_imported/inner/widen.py",
        "class Other: pass\nclass Acme:\n    '''Widens.'''\n    rank: int = 1\n",
    )
    install(tmp_path, monkeypatch, entry="acme = acme_imported.inner.widen:Acme")
    plugin = plugins.discover("strategy")["acme"]
    assert (plugin.origin, plugin.summary, plugin.fields) == (
        "entry point of acme-growth 1.2",
        "Widens.",
        {"rank": "int = 1"},
    )
    assert "acme_imported" not in sys.modules
    assert plugins.load("strategy", "acme").__name__ == "Acme"


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ("acme = acme_growth.widen:Acne", "it has no class Acne: did you mean Acme?"),
        ("acme = acme_growth.widne:Acme", "its module acme_growth.widne is not installed"),
        ("acme = acme_absent.widen:Acme", "its module acme_absent.widen is not installed"),
    ],
)
def test_a_broken_entry_point_is_listed_with_its_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str, error: str
) -> None:
    write(tmp_path, "acme_growth/__init__.py", "")
    write(tmp_path, "acme_growth/widen.py", "class Acme: pass\n")
    install(tmp_path, monkeypatch, entry=entry)
    assert plugins.discover("strategy")["acme"].error == error


def test_the_hash_follows_imports_of_its_own_package_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "acme_growth/__init__.py", "")
    write(tmp_path, "acme_growth/inner/__init__.py", "")
    write(tmp_path, "acme_growth/inner/widen.py", "import json\nfrom ..maps import double\nclass Acme: pass\n")
    write(tmp_path, "acme_growth/maps.py", "import acme_growth.deep\ndouble = 2\n")
    write(tmp_path, "acme_growth/deep.py", "x = 1\n")
    write(tmp_path, "acme_growth/unused.py", "x = 1\n")
    write(tmp_path, "json.py", "x = 1\n")
    install(tmp_path, monkeypatch, entry="acme = acme_growth.inner.widen:Acme")

    def current() -> str:
        return plugins.source_hash(plugins.find("strategy", "acme"))

    before = current()
    write(tmp_path, "acme_growth/unused.py", "x = 2\n")
    write(tmp_path, "json.py", "x = 2\n")
    assert current() == before
    for name in ("inner/widen.py", "maps.py", "deep.py"):
        path = tmp_path / "acme_growth" / name
        path.write_text(path.read_text() + "# changed\n")
        assert current() != before, name
        before = current()


def test_the_hash_of_a_given_file_includes_helpers_and_built_ins_and_not_its_place(tmp_path: Path) -> None:
    built_in = next(iter(plugins.discover("task")))
    digests = []
    for place, helper, imports in (
        ("a", "x = 1", ""),
        ("b", "x = 1", ""),
        ("c", "x = 2", ""),
        ("d", "x = 1", f"import growbench.tasks.{built_in}"),
    ):
        write(tmp_path, f"{place}/helper.py", helper)
        path = write(tmp_path, f"{place}/mine.py", f"import helper\n{imports}\nclass Mine: pass\n")
        digests.append(plugins.source_hash(plugins.find("strategy", "mine", [path])))
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3
    plain = ast.unparse(ast.parse("import helper\nclass Mine: pass"))
    write(tmp_path, "d/mine.py", plain)
    assert plugins.source_hash(plugins.find("strategy", "mine", [tmp_path / "d/mine.py"])) not in digests


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"rank": 4, "factor": "rescaled", "noise": 0}, ""),
        ({"noise": None}, ""),
        ({"rnak": 4}, "strategy 'mine' has no parameter 'rnak': did you mean rank?"),
        ({"rank": 4.5}, "rank must be int, not 4.5"),
        ({"rank": True}, "rank must be int, not True"),
        ({"noise": "loud"}, "noise must be float | None, not 'loud'"),
        ({"factor": "rescald"}, "not 'rescald': did you mean rescaled?"),
        ({"noise": float("inf")}, "noise must be finite, not inf"),
        ({"rank": float("nan")}, "rank must be finite, not nan"),
        ({"noise": [1.0, float("-inf")]}, "noise must be finite, not [1.0, -inf]"),
        ({"factor": 3}, "factor must be Literal['held', 'rescaled'], not 3"),
    ],
)
def test_parameters_are_checked_against_the_source(tmp_path: Path, parameters: dict[str, object], error: str) -> None:
    plugin = plugins.find("strategy", "mine", [write(tmp_path, "mine.py", GROWER)])
    if not error:
        plugins.check(plugin, parameters)
        return
    with pytest.raises(ValueError, match="mine") as caught:
        plugins.check(plugin, parameters)
    assert error in str(caught.value)
