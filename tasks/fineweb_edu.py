"""Language modelling of a sample of FineWeb-Edu."""

from dataclasses import dataclass
from typing import ClassVar

from growbench.tasks.hub import Hub


@dataclass(frozen=True, kw_only=True)
class FineWebEdu(Hub):
    """FineWeb-Edu, the sample of 10 billion GPT-2 tokens (Penedo et al., arXiv:2406.17557): educational web pages.

    Prepared by `growbench data prepare fineweb_edu`, which downloads it.
    Split: by the hash of each document. Licence: ODC-By 1.0.
    """

    argument: ClassVar[str] = ""

    dataset: str = "HuggingFaceFW/fineweb-edu:sample-10BT@87f09149ef4734204d70ed1d046ddc9ca3f2b8f9"
    valid_share: float = 0.001
