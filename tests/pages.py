"""The code blocks of a Markdown page, and why some of them are not run."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REASONS = ("it takes minutes", "it needs a cluster", "it needs a download")
"""Why a block may not be run here; `<!-- not run: REASON -->` on the line before it says which."""

SHOWN = "text"
"""The language of what is no code: output, diagrams, labels."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """A fenced block: its line, its language, its text, and why it is not run ("" where it is)."""

    line: int
    language: str
    text: str
    reason: str

    @property
    def file(self) -> str:
        """The file that it is, named by a comment on its first line; "" where it is none."""
        named = re.match(r"# ([\w/-]+\.(?:py|yaml))\n", self.text)
        return named[1] if named else ""


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    opened, language = 0, ""
    for number, line in enumerate(lines, 1):
        if not line.startswith("```"):
            continue
        if opened:
            before = re.fullmatch(r"<!-- not run: (.*) -->", lines[opened - 2]) if opened > 1 else None
            text = "\n".join(lines[opened : number - 1]) + "\n"
            yield Block(line=opened, language=language, text=text, reason=before[1] if before else "")
            opened = 0
        else:
            opened, language = number, line[3:]
    assert not opened, f"{page.name}: the block of line {opened} does not end"
