"""Documentation runs: every code block of every page, in order and in a folder of the page's own; every link leads."""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pages import REASONS, SHOWN, blocks

from growbench import cli

ROOT = Path(__file__).parents[1]
DOCS = sorted((ROOT / "docs").glob("*.md"))
TEMPLATE = ROOT / "docs" / "template-plugin" / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *DOCS, TEMPLATE]
GENERATED = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"]

SLOW = {"first-strategy.md"}
"""Pages that run a study of a minute or two."""


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


@pytest.fixture
def shell(tmp_path: Path) -> dict[str, str]:
    """The environment of a page's commands: this one's growbench, python and pytest, and a home of its own."""
    commands, home = tmp_path / "commands", tmp_path / "home"
    commands.mkdir()
    home.mkdir()
    calls = {"growbench": "-c 'from growbench.cli import main; main()'", "python": "", "pytest": "-m pytest"}
    for name, call in calls.items():
        (commands / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {call} "$@"\n', encoding="utf-8")
        (commands / name).chmod(0o755)
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    found = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return os.environ | {"PATH": path, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "PYTHONPATH": found}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=[pytest.mark.slow] * (page.name in SLOW)) for page in DOCS],
)
def test_the_blocks_of_a_page_run(
    page: Path, shell: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": page.stem}
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for block in blocks(page):
        place = f"{page.name}, line {block.line}"
        if block.reason or block.language == SHOWN:
            continue
        if block.file:
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            exec(compile(block.text, place, "exec"), names)
        elif block.language == "yaml":
            yaml.safe_load(block.text)
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text], env=shell, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{place}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("page", [*DOCS, TEMPLATE], ids=lambda page: page.name)
def test_a_block_says_what_it_is_and_why_it_is_not_run(page: Path) -> None:
    found = list(blocks(page))
    assert {block.language for block in found} <= {"python", "yaml", "sh", SHOWN}
    reasons = [block.reason for block in found if block.reason]
    assert set(reasons) <= set(REASONS)
    text = page.read_text(encoding="utf-8")
    assert text.count("<!-- not run") == len(reasons), "a mark that stands before no block"
    assert not re.findall(r"^(?: {4}|\t).*", prose(page), flags=re.M), "a block without a fence"


@pytest.mark.parametrize("page", GENERATED)
def test_a_generated_page_or_picture_is_what_the_code_makes(page: str) -> None:
    made = GENERATED[page]()
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == made, "run python docs/generate.py"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ +(.*)$", prose(page), flags=re.M):
        anchor = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
        if found[anchor]:
            found[f"{anchor}-{found[anchor]}"] = 0
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        file, _, anchor = target.partition("#")
        to = page.parent / file if file else page
        assert to.exists(), target
        assert not anchor or anchor in anchors(to), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    """Paths such as growbench/axes.py, wherever they stand in the text; a page in a folder may name its neighbours."""
    named = re.findall(
        r"(?<![\w/.-])((?:growbench|strategies|tasks|reports|tests|docs)/[\w/.-]+\.(?:py|md|yaml|html))",
        page.read_text(encoding="utf-8"),
    )
    places = [ROOT, page.parent]
    gone = [path for path in named if not any((place / path).exists() for place in places)]
    assert not [path for path in gone if Path(path).stem != "NAME"]


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_a_page_can_be_reached_from_the_readme(page: Path) -> None:
    assert f"](docs/{page.name})" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_command_is_shown_somewhere() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    apps = {"": cli.app} | {f"{g.name} ": g.typer_instance for g in cli.app.registered_groups if g.typer_instance}
    shown = [
        f"growbench {group}{command.name or command.callback.__name__.replace('_', '-')}"
        for group, app in apps.items()
        for command in app.registered_commands
        if command.callback
    ]
    assert "growbench new strategy" in shown
    assert not [words for words in shown if words not in text]


def test_contributing_fits_60_lines() -> None:
    assert len((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").splitlines()) <= 60


def test_the_guide_to_the_report_has_the_reports_sections_in_its_order() -> None:
    page = (ROOT / "reports" / "page.html").read_text(encoding="utf-8")
    guide = (ROOT / "docs" / "reading-the-report.md").read_text(encoding="utf-8")
    headings = re.findall(r"<h2[^>]*>(.*?)</h2>", page)
    assert re.findall(r"^## (.*)$", guide, flags=re.M) == ["The head", *headings, "The tables behind it"]
