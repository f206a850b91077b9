"""Byte-level language modelling of the user's own text files."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from growbench.task import Data, Task

TENTH = 10
"""One part in ten is validation: of a file its end, of a folder each tenth file."""

HEAD = 8000
"""A file is binary if one of its first bytes is NUL: the rule, and the number of bytes, of git."""


@dataclass(frozen=True, kw_only=True)
class Text(Task):
    """Bytes of a text file or of a folder's files: `text:PATH`.

    Bytes are taken as they stand, whatever their encoding, byte order mark and line ends. Split: of one file, the
    last tenth is validation. Of a folder, read recursively in the order of its files' relative names, each tenth file
    is, or the last one where there are fewer than ten; names decide, not sizes. A folder's hidden files and folders
    (named .*), binary files (a NUL byte in the first 8000), empty files and copies of an earlier file are left out,
    so that no text is on both sides; links to files are read, links to folders are not entered; a line end is added
    between files where one is missing. A file named itself is read whatever it holds. Source and licence: the user's.
    """

    argument: ClassVar[str] = "path"

    path: str = ""

    def load(self, cache: Path) -> Data:
        """Return both streams; ValueError if there is nothing to read at the path. `cache` is not used."""
        if not self.path:
            raise ValueError("the task text needs a file or a folder: write text:PATH")
        root = Path(os.path.expanduser(self.path))
        try:
            train, valid = _split(root)
        except OSError as error:
            raise ValueError(
                f"text:{self.path} cannot be read ({error}): check the path and its permissions"
            ) from error
        if min(len(train), len(valid)) < 2:
            raise ValueError(
                f"text:{self.path} holds {len(train)} bytes of text to train on and {len(valid)} to validate on: "
                "give a file of 20 bytes or more, or a folder of text files that are neither hidden nor binary"
            )
        return Data.from_bytes(train, valid)


def _split(root: Path) -> tuple[bytes | memoryview, bytes | memoryview]:
    """Return the bytes to train on and those to validate on; OSError if any cannot be read."""
    if not root.is_dir():
        if root.exists() and not root.is_file():
            raise OSError("it is neither a file nor a folder")
        texts = [root.read_bytes()]
    else:
        texts = list(_texts(root))
    if len(texts) == 1:
        text = memoryview(texts[0])
        end = len(text) - len(text) // TENTH
        return text[:end], text[end:]
    held_out = set(range(TENTH - 1, len(texts), TENTH)) or {len(texts) - 1}
    sides: tuple[list[bytes], list[bytes]] = ([], [])
    for i, content in enumerate(texts):
        sides[i in held_out].append(content if content.endswith(b"\n") else content + b"\n")
    return b"".join(sides[0]), b"".join(sides[1])


def _texts(root: Path) -> Iterator[bytes]:
    """Yield the content of each text file below a folder once, in the order of their relative names."""
    seen = set()
    for name in sorted(_names(root)):
        content = (root / os.fsdecode(name)).read_bytes()
        digest = hashlib.sha256(content).digest()
        if content and b"\0" not in content[:HEAD] and digest not in seen:
            seen.add(digest)
            yield content


def _names(root: Path) -> Iterator[bytes]:
    """Yield the relative names, as bytes with / between folders, of the files that are not hidden."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file():  # not a pipe, a device or a dangling link
                yield os.fsencode(path.relative_to(root).as_posix())
