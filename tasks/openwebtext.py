"""Language modelling of OpenWebText."""

from dataclasses import dataclass
from typing import ClassVar

from growbench.tasks.hub import Hub


@dataclass(frozen=True, kw_only=True)
class OpenWebText(Hub):
    """OpenWebText (Gokaslan and Cohen): web pages that Reddit linked to, after the data of GPT-2.

    Prepared by `growbench data prepare openwebtext`, which downloads it.
    Split: by the hash of each document. Licence: CC0 for the packaging; the pages are their authors'.
    """

    argument: ClassVar[str] = ""

    dataset: str = "Skylion007/openwebtext:plain_text@79d93d786212f7344586290adb811d4ae6a1762c"
    valid_share: float = 0.001
