"""What tasks have in common that read a corpus, prepared once on disk: `growbench data prepare TASK`."""

import os
import shlex
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from growbench.corpus import Corpus, Progress, Request, find, prepare, stated
from growbench.documents import Layout
from growbench.task import Data, Task
from growbench.tokenizer import read


@dataclass(frozen=True, kw_only=True)
class Prepared(Task):
    """Base of tasks whose streams are written by `prepare` and mapped by `load`."""

    @abstractmethod
    def prepare(self, cache: Path, *, workers: int, notify: Callable[[Progress], None]) -> Corpus:
        """Write the corpus unless it is there, with so many processes; ValueError if it cannot be."""

    @abstractmethod
    def sources(self) -> list[Path]:
        """The files here that decide the streams; ValueError where one is not there."""

    def asked(self) -> dict[str, Any]:
        """What tells this corpus from others before a file is read: the fields, and what folders say of the files."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "bad"}
        return {"task": self.name, "fields": chosen, "files": stated(self.sources())}

    @property
    def name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def missing(self, cache: Path) -> str:
        """Return "", or the sentence that names the command to run first; "" too where the argument is lacking."""
        if (self.argument and not getattr(self, self.argument)) or find(cache, self.asked()):
            return ""
        changed = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        argument = f":{changed.pop(self.argument)}" if self.argument in changed else ""
        words = ["growbench", "data", "prepare", self.name + argument]
        for name, value in changed.items():
            words += ["--set", f"{name}={value}"]
        return f"the task {self.name} needs its corpus, prepared once: run `{shlex.join(words)}`"

    def load(self, cache: Path) -> Data:
        """Return both streams, mapped; ValueError if they were not prepared."""
        if self.argument and not getattr(self, self.argument):
            raise ValueError(
                f"the task {self.name} needs its {self.argument}: write {self.name}:{self.argument.upper()}"
            )
        if corpus := find(cache, self.asked()):
            return corpus.data()
        raise ValueError(self.missing(cache))


@dataclass(frozen=True, kw_only=True)
class Tokenised(Prepared):
    """Base of tasks that tokenise documents. The fields that they share are described in docs/data.md."""

    tokenizer: str = "bytes"
    end: str = ""
    column: str = "text"
    valid_share: float = 0.01
    bad: Literal["skip", "refuse"] = "skip"

    def tokenizer_files(self) -> list[Path]:
        """The files of a tokenizer that lies here, which decide the streams too."""
        path = Path(os.path.expanduser(self.tokenizer))
        if path.is_dir():
            return sorted(found for found in path.iterdir() if found.suffix in (".json", ".txt", ".model"))
        return [path] if path.is_file() else []

    def tokenised(
        self,
        cache: Path,
        train: list[Path],
        valid: list[Path],
        layout: Layout,
        *,
        workers: int,
        notify: Callable[[Progress], None],
    ) -> Corpus:
        """The corpus of these files, as the fields say."""
        request = Request(
            train=tuple(train),
            valid=tuple(valid),
            layout=layout,
            tokenizer=read(self.tokenizer, self.end),
            valid_share=self.valid_share,
            bad=self.bad,
        )
        return prepare(request, cache=cache, asked=self.asked(), workers=workers, notify=notify)
