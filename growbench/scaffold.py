"""A new strategy: a file that works, the test that examines it, and a README to go on from."""

import ast
import keyword
import sys
from importlib.util import find_spec
from pathlib import Path

from growbench import plugins

STRATEGY = '''"""{title}: what is new about it in one line, and its equation. W' = E_w W C_r, one map per axis."""

from dataclasses import dataclass

from torch import Generator, Tensor

from growbench import maps
from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class {cls}(Strategy):
    """New units copy old ones drawn at random, which share their readers' weight (arXiv:1511.05641).

    That is Net2Net: write your own method here, and cite where it comes from. `growbench list` shows the first line.
    noise: what the readers of copies receive, relative to a fresh initialisation, so that the copies part.
    """

    noise: float = 1.0

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        """Which old units a new one holds. `axis.admits` says which maps keep the function (growbench.labels)."""
        return maps.net2net(axis, old, new, rng)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        """What goes where the old function cannot see it; with zeros alone no gradient reaches the copies."""
        return self.noise * fresh
'''

TEST = """from pathlib import Path

from growbench.conformance.pytest_plugin import growbench_checks

test_{name} = growbench_checks(Path(__file__).with_name("{name}.py"))
"""

README = """# {title}

A growth strategy for growbench: say here what it copies, what it draws, and why.

    growbench check {name}.py                  # is it a sound strategy?
    pytest                                     # the same, one test for each check
    growbench run quick --plugin {name}.py     # how does it compare?

`widen` gives one map per axis, `fill` what is written into the free directions; `deepen`, `supports`, `preserves`,
`sterile` and `grow` may be overridden too. What each of them promises stands in growbench/strategy.py.
"""


def new_strategy(name: str, out: Path) -> list[Path]:
    """Write NAME.py, test_NAME.py and README.md into a folder, and return their paths.

    ValueError for a name that a plugin cannot have, or where a file stands in place of the folder; FileExistsError,
    before anything is written, where one is there.
    """
    if why := _refused(name):
        raise ValueError(f"a strategy cannot be named {name!r}: {why}")
    if blocked := next((place for place in (out, *out.parents) if place.exists() and not place.is_dir()), None):
        raise ValueError(f"{blocked} is no folder: give --out a folder, or a path where one can be made")
    words = {"name": name, "title": name.replace("_", " ").capitalize(), "cls": _class(name)}
    files = {f"{name}.py": STRATEGY, f"test_{name}.py": TEST, "README.md": README}
    for file in files:
        if (out / file).exists():
            raise FileExistsError(f"{out / file} exists and is not overwritten: give another name, or another --out")
    out.mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (out / file).write_text(text.format(**words), encoding="utf-8")
    return [out / file for file in files]


def _class(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _imported() -> set[str]:
    """The names that a new strategy's file imports, which its class would hide."""
    tree = ast.parse(STRATEGY.format(name="name", title="Title", cls="Class"))
    return {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}


def _refused(name: str) -> str:
    """Why a name cannot be a strategy's; empty where it can."""
    if not (name.isidentifier() and name.isascii() and name.islower()) or name.startswith(("_", "test_")):
        return "use lower-case letters, digits and underscores, a letter first, not test_, as in my_method"
    if keyword.iskeyword(name) or keyword.iskeyword(_class(name)):
        return "it is a word of Python"
    if _class(name) in _imported():
        return f"its class would hide the {_class(name)} that its file imports"
    if name in plugins.discover("strategy"):
        return "there is a strategy of that name"
    if name in sys.stdlib_module_names or ((spec := find_spec(name)) and spec.origin):
        return f"beside its test the file would hide the module {name}"
    return ""
