"""Language modelling of a Hugging Face data set."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from growbench.corpus import Corpus, Progress
from growbench.documents import Layout
from growbench.tasks._prepared import Tokenised


@dataclass(frozen=True, kw_only=True)
class Hub(Tokenised):
    """Documents of a Hugging Face data set, tokenised once: `hub:NAME[:CONFIG][@REVISION]`, NAME a folder too.

    Downloaded and prepared by `growbench data prepare hub:NAME`; needs `pip install 'growbench[hub]'`. Split: by the
    hash of each document of `split`, `valid_share` of them for validation; or `valid_split`, whose documents are left
    out of training. `heading` is the regular expression of a row that begins a document, where one spans rows. Source
    and licence: the data set's; pin its revision.
    """

    argument: ClassVar[str] = "dataset"

    dataset: str = ""
    split: str = "train"
    valid_split: str = ""
    heading: str = ""

    def sources(self) -> list[Path]:
        """A local folder's files and a local tokenizer's; a data set of the hub is told by its name alone."""
        folder = Path(os.path.expanduser(_parsed(self.dataset)[0]))
        local = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
        return [*local, *self.tokenizer_files()]

    def prepare(self, cache: Path, *, workers: int, notify: Callable[[Progress], None]) -> Corpus:
        if not self.dataset:
            raise ValueError("the task hub needs a data set: write hub:NAME[:CONFIG][@REVISION]")
        layout = Layout(column=self.column, heading=self.heading)
        train = _arrow(self.dataset, self.split, cache)
        valid = _arrow(self.dataset, self.valid_split, cache) if self.valid_split else []
        return self.tokenised(cache, train, valid, layout, workers=workers, notify=notify)


def _parsed(dataset: str) -> tuple[str, str, str]:
    """Name, configuration and revision, the latter two "" where there are none.

    >>> _parsed("HuggingFaceFW/fineweb-edu:sample-10BT@87f0914")
    ('HuggingFaceFW/fineweb-edu', 'sample-10BT', '87f0914')
    """
    found = re.fullmatch(r"([^:@]+)(?::([^:@]*))?(?:@(.+))?", dataset)
    if not found:
        raise ValueError(f"{dataset!r} is no data set: write NAME[:CONFIG][@REVISION]")
    name, config, revision = found.groups(default="")
    return name, config, revision


def _arrow(dataset: str, split: str, cache: Path) -> list[Path]:
    """The Arrow files that the library `datasets` makes of a split, downloaded where they are not there."""
    try:
        import datasets
    except ImportError:
        raise ValueError("a data set of the hub needs a library: pip install 'growbench[hub]'") from None
    name, config, revision = _parsed(dataset)
    is_quiet = not datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()  # what is shown is the command line's business
    try:
        found = datasets.load_dataset(
            os.path.expanduser(name),
            config or None,
            revision=revision or None,
            split=split,
            cache_dir=str(cache / "hub"),
        )
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as error:
        said = " ".join(str(error.__cause__ or error).split())
        raise ValueError(
            f"hub:{dataset}, split {split}, cannot be had: {said}; check its name and the network"
        ) from None
    finally:
        if not is_quiet:
            datasets.enable_progress_bars()
    return [Path(part["filename"]) for part in found.cache_files]
