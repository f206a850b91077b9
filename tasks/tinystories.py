"""Language modelling of TinyStories."""

from dataclasses import dataclass
from typing import ClassVar

from growbench.tasks.hub import Hub


@dataclass(frozen=True, kw_only=True)
class TinyStories(Hub):
    """TinyStories (Eldan and Li, arXiv:2305.07759): short stories in the words of small children, written by GPT.

    Prepared by `growbench data prepare tinystories`, which downloads it.
    Split: the data set's own. Licence: CDLA-Sharing 1.0.
    """

    argument: ClassVar[str] = ""

    dataset: str = "roneneldan/TinyStories@f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
    valid_split: str = "validation"
