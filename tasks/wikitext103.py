"""Language modelling of WikiText-103."""

from dataclasses import dataclass
from typing import ClassVar

from growbench.tasks.hub import Hub


@dataclass(frozen=True, kw_only=True)
class WikiText103(Hub):
    """WikiText-103, raw (Merity et al., arXiv:1609.07843): good and featured articles of Wikipedia.

    Prepared by `growbench data prepare wikitext103`, which downloads it.
    A document is an article, its rows joined. Split: the data set's own. Licence: CC BY-SA.
    """

    argument: ClassVar[str] = ""

    dataset: str = "Salesforce/wikitext:wikitext-103-raw-v1@b08601e04326c79dfdd32d625aee71d232d685c3"
    valid_split: str = "validation"
    heading: str = " = [^=]"
