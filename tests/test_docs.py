"""Documentation runs: the Python blocks of every page, in order, and every link to a file of the repository."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
BLOCKS = {page: re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S) for page in PAGES}


@pytest.mark.parametrize("page", ["study.md", "results.md"])
def test_a_generated_page_says_what_the_code_says(page: str) -> None:
    made = runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"][page]()
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == made, "run python docs/generate.py"


@pytest.mark.parametrize("page", [page for page, blocks in BLOCKS.items() if blocks], ids=lambda page: page.name)
def test_the_python_of_a_page_runs(page: Path) -> None:
    names: dict[str, Any] = {"__name__": page.stem}
    for number, block in enumerate(BLOCKS[page]):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        assert re.match(r"https?://", target) or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_files_that_a_page_names_are_there(page: Path) -> None:
    """Paths such as growbench/axes.py, wherever they stand in the text."""
    named = re.findall(
        r"(?<![\w/.-])((?:growbench|strategies|tasks|reports|tests|docs)/[\w/.-]+\.(?:py|md|yaml|html))",
        page.read_text(encoding="utf-8"),
    )
    assert not [path for path in named if not (ROOT / path).exists()]
