"""Language modelling of documents in the user's own files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from growbench.corpus import Corpus, Progress
from growbench.documents import Layout, files
from growbench.tasks._prepared import Tokenised


@dataclass(frozen=True, kw_only=True)
class Files(Tokenised):
    """Documents of parquet, JSON lines and text files, tokenised once: `files:PATH`, a file, folder or glob.

    Prepared by `growbench data prepare files:PATH`. Split: by the hash of each document, `valid_share` of them for
    validation; or `valid`, a path of its own, whose documents are left out of training. `separator` stands between the
    documents of a text file, which is one document otherwise. Source and licence: the user's.
    """

    argument: ClassVar[str] = "path"

    path: str = ""
    valid: str = ""
    separator: str = ""

    def sources(self) -> list[Path]:
        return [*self._found(self.path), *self._found(self.valid), *self.tokenizer_files()]

    def prepare(self, cache: Path, *, workers: int, notify: Callable[[Progress], None]) -> Corpus:
        if not self.path:
            raise ValueError("the task files needs a path: write files:PATH")
        layout = Layout(column=self.column, separator=self.separator)
        train, valid = self._found(self.path), self._found(self.valid)
        train = [path for path in train if path not in valid]
        return self.tokenised(cache, train, valid, layout, workers=workers, notify=notify)

    @staticmethod
    def _found(pattern: str) -> list[Path]:
        return files(pattern) if pattern else []
