"""A copy of the code that a run was asked for with, so that edits while its jobs wait change nothing.

DIR/launch/code/       growbench, the packages of plugins that are entry points: first on PYTHONPATH
DIR/launch/plugins/N/  the files that the Nth --plugin named, with what they import from their folders
"""

import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

from growbench import plugins

_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc")


def take(folder: Path, given: Sequence[Path]) -> tuple[Path, tuple[Path, ...]]:
    """Copy code into `folder`; the path of the copy, and of every given plugin file or folder in it."""
    code, own = folder / "code", folder / "plugins"
    for old in (code, own):
        shutil.rmtree(old, ignore_errors=True)
    package = Path(plugins.__file__).parent
    shutil.copytree(package, code / package.name, ignore=_SKIPPED)  # links to folders become folders
    if (package.parent / ".git").exists():
        (code / ".git").touch()  # as in a development checkout, stages are identified by the core's source
    for top in _packages():
        if top.name == "__init__.py":
            shutil.copytree(top.parent, code / top.parent.name, ignore=_SKIPPED)
        else:
            shutil.copy(top, code / top.name)
    return code, tuple(_copy(path, own / str(number)) for number, path in enumerate(given))


def _packages() -> set[Path]:
    """The top-level packages or modules that installed plugins come from."""
    modules = (found.module for kind in plugins.KINDS for found in plugins.discover(kind).values() if found.path)
    specs = (importlib.util.find_spec(top) for top in {module.partition(".")[0] for module in modules} - {"growbench"})
    return {Path(spec.origin) for spec in specs if spec and spec.origin}


def _copy(given: Path, folder: Path) -> Path:
    """A given plugin file or folder, copied with what its plugins import from their folder; where the copy is."""
    home = given.resolve() if given.is_dir() else given.resolve().parent
    found = [
        p for kind in plugins.KINDS for p in plugins.discover(kind, [given]).values() if p.origin.startswith("file")
    ]
    files = {path for plugin in found if not plugin.error for path in plugins.sources(plugin)}
    for path in files | {plugin.path for plugin in found if plugin.path}:
        if path.is_relative_to(home):
            copied = folder / path.relative_to(home)
            copied.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copied)
    return folder if given.is_dir() else folder / given.name
