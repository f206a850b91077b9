"""The conformance kit in pytest: one test for each check.

pytest --growbench-check my_method.py                                the checks of plugin files, from the command line
test_my_method = growbench_checks(Path("my_method.py"))              the same in a test file
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from growbench.conformance import Suite, suite


def growbench_checks(given: str | Path, **how: Any) -> Callable[[str], None]:
    """A test function with one case for each check of a plugin; the keywords are those of conformance.suite."""
    examined = suite(given, **how)

    @pytest.mark.parametrize("check", list(examined.checks))
    def test(check: str) -> None:
        _judge(examined, check)

    return test


def _judge(examined: Suite, check: str) -> None:
    """Pass, fail with the sentence that says what to do, or skip with the reason why the check does not apply."""
    result = examined.run(check)
    if result.status == "failed":
        pytest.fail(f"{result.plugin}: {result.check}: {result.message}", pytrace=False)
    if result.status == "exempt":
        pytest.skip(result.message)


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option that turns plugin files into tests."""
    help_ = "run growbench's conformance checks on the plugin files that are given"
    parser.getgroup("growbench").addoption("--growbench-check", action="store_true", help=help_)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collect a plugin file that is named on the command line, or lies in a folder named there."""
    asked = parent.config.getoption("--growbench-check")
    given = parent.session.isinitpath(file_path) or parent.session.isinitpath(file_path.parent)
    helper = file_path.name.startswith(("_", "test_", "conftest"))
    if not (asked and given and file_path.suffix == ".py") or helper:
        return None
    found: pytest.Collector = _PluginFile.from_parent(parent, path=file_path)
    return found


class _PluginFile(pytest.File):
    """A plugin file as its checks."""

    def collect(self) -> Iterator[pytest.Item]:
        examined = suite(self.path)
        for check in examined.checks:
            yield _CheckItem.from_parent(self, name=check, examined=examined)


class _CheckItem(pytest.Item):
    """One check of one plugin."""

    def __init__(self, *, examined: Suite, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._examined = examined

    def runtest(self) -> None:
        _judge(self._examined, self.name)

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, f"{self.path.stem}: {self.name}"
