"""BibTeX of growbench and of the papers that a study's strategies name in their docstrings."""

import re
from collections.abc import Mapping
from typing import Any

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def bibtex(provenance: Mapping[str, Any]) -> str:
    """An entry for growbench, and one for each arXiv number, with the strategies that name it.

    The numbers alone are known here, so that authors and titles are left to be filled in from there.
    """
    papers: dict[str, list[str]] = {}
    for strategy in provenance.get("strategies") or []:
        for number in ARXIV.findall(f"{strategy.get('summary', '')} {strategy.get('source', '')}"):
            named = papers.setdefault(number, [])
            named += [] if strategy["name"] in named else [str(strategy["name"])]
    version = _plain(provenance.get("growbench", "unknown"))
    commit = _plain(provenance.get("git_sha") or "not recorded")
    own = "@software{growbench,\n  title = {growbench},\n  author = {{The growbench authors}},\n"
    own += f"  version = {{{version}}},\n  note = {{commit {commit}}},\n}}"
    entries = [
        f"@misc{{arxiv{number.replace('.', '')},\n  eprint = {{{number}}},\n  archivePrefix = {{arXiv}},\n"
        f"  note = {{named by: {', '.join(map(_plain, names))}}},\n}}"
        for number, names in sorted(papers.items())
    ]
    return "\n\n".join([own, *entries])


def _plain(text: object) -> str:
    """Text without what ends or escapes a BibTeX field."""
    return re.sub(r"[{}\\%@\s]+", " ", str(text)).strip()
