"""Discovery of plugins: what is there is read from source with `ast`; only `load` imports, and then that one plugin.

A plugin is a file with one public class; its name is the file's stem. Three origins, in this order: the built-in
folders, entry points of installed distributions, files and folders given by the user. A name belongs to one of them.
"""

import ast
import builtins
import difflib
import hashlib
import importlib
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Where plugins of one kind live: the package of the built-ins, the module of the base class, the entry points."""

    plural: str
    package: str
    base: str
    group: str


KINDS = {
    "strategy": Kind(
        plural="strategies", package="growbench.strategies", base="growbench.strategy", group="growbench.strategies"
    ),
    "task": Kind(plural="tasks", package="growbench.tasks", base="growbench.task", group="growbench.tasks"),
    "claim": Kind(plural="claims", package="growbench.claims", base="growbench.claim", group="growbench.claims"),
    "figure": Kind(plural="figures", package="growbench.figures", base="growbench.figure", group="growbench.figures"),
    "launcher": Kind(
        plural="launchers", package="growbench.launch", base="growbench.launch", group="growbench.launchers"
    ),
}


@dataclass(frozen=True, kw_only=True)
class Plugin:
    """One plugin as its source describes it.

    `fields` maps each hyper-parameter to its "annotation = default" as written; `error` says why the source cannot be
    read ("" where it can). `module` is its dotted name, "" for a file given by path.
    """

    name: str
    kind: str
    origin: str
    path: Path | None
    module: str = ""
    cls: str = ""
    summary: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    error: str = ""


def nearest(word: str, choices: Collection[str]) -> str:
    """Return the end of an error sentence about an unknown `word`, its colon included.

    >>> nearest("zero_pda", ["scratch", "zero_pad"])
    ': did you mean zero_pad?'
    >>> nearest("x", ["scratch", "zero_pad"])
    ': known are scratch, zero_pad'
    """
    close = difflib.get_close_matches(str(word), list(choices), n=1, cutoff=0.5)
    return f": did you mean {close[0]}?" if close else f": known are {', '.join(sorted(choices)) or 'none'}"


def discover(kind: str, extra: Sequence[Path] = ()) -> dict[str, Plugin]:
    """Return the plugins of a kind by name, importing none of them; a broken one carries its error.

    Raises ValueError where a name is taken twice, and where a path of `extra` does not exist.
    """
    found: dict[str, Plugin] = {}
    for plugin in (*_built_in(kind), *_installed(kind), *_given(kind, extra)):
        if other := found.get(plugin.name):
            raise ValueError(
                f"the {kind} name {plugin.name!r} is taken twice, by the {other.origin} ({other.path}) and by the "
                f"{plugin.origin} ({plugin.path}); rename the second."
            )
        found[plugin.name] = plugin
    return dict(sorted(found.items()))


def find(kind: str, name: str, extra: Sequence[Path] = ()) -> Plugin:
    """Return the plugin of that name, readable; ValueError with the nearest name, or with why it cannot be read."""
    known = discover(kind, extra)
    if name not in known:
        raise ValueError(f"unknown {kind} {name!r}{nearest(name, known)} (`growbench list` shows all)")
    if error := known[name].error:
        raise ValueError(f"the {kind} {name!r} ({known[name].origin}) cannot be read: {error}")
    return known[name]


def load(kind: str, name: str, extra: Sequence[Path] = ()) -> type[Any]:
    """Import one plugin and return its class; errors as `find`, and ValueError where it cannot be imported."""
    plugin = find(kind, name, extra)
    with blamed(plugin, "cannot be imported"):
        module = importlib.import_module(plugin.module) if plugin.module else _import_file(plugin)
        loaded: type[Any] = getattr(module, plugin.cls)
    return loaded


@contextmanager
def blamed(plugin: Plugin, what: str) -> Iterator[None]:
    """Around a plugin's own code: whatever it raises, sys.exit too, is a ValueError that names it and its file."""
    try:
        yield
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        said = " ".join(str(error).split())
        why = said if isinstance(error, ValueError) and said else f"{type(error).__name__}: {said}".removesuffix(": ")
        raise ValueError(f"{plugin.kind} {plugin.name!r} ({plugin.origin}) {what}: {why}") from error


def derived(plugin: Plugin, loaded: object, base: type) -> None:
    """Raise ValueError for a plugin whose class does not derive from its kind's."""
    if not (isinstance(loaded, type) and issubclass(loaded, base)):
        named = f"{base.__module__}.{base.__name__}"
        raise ValueError(f"{plugin.kind} {plugin.name!r} ({plugin.origin}) is no {named}: derive its class from that")


def typed(name: str, value: object, wanted: type[T]) -> T:
    """What a plugin returned; ValueError where it is of another type."""
    if not isinstance(value, wanted):
        raise ValueError(f"{name} gives {type(value).__name__} where {wanted.__name__} is expected")
    return value


def check(plugin: Plugin, parameters: Mapping[str, object]) -> None:
    """Raise ValueError for a parameter that the plugin lacks, or whose value its annotation excludes; import nothing.

    Annotations of bool, int, float, str, None, Literal and unions of these are checked; others accept anything.
    """
    for key, value in parameters.items():
        if key not in plugin.fields:
            hint = nearest(key, plugin.fields)
            raise ValueError(f"{plugin.kind} {plugin.name!r} has no parameter {key!r}{hint}")
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, float) and not math.isfinite(item) for item in items):
            raise ValueError(f"{plugin.kind} {plugin.name!r}: {key} must be finite, not {value!r}")
        annotation = plugin.fields[key].partition(" = ")[0]
        allowed = _allowed(ast.parse(annotation, mode="eval").body)
        if any(_admits(choice, value) for choice in allowed):
            continue
        names = [choice for choice in allowed if isinstance(choice, str)]
        hint = nearest(value, names) if names and isinstance(value, str) else ""
        raise ValueError(f"{plugin.kind} {plugin.name!r}: {key} must be {annotation}, not {value!r}{hint}")


def source_hash(plugin: Plugin) -> str:
    """Return the sha256 of the plugin's source and of what it imports, from its own package or folder or the built-ins.

    Imports are followed through those files. Where the folder lies does not matter; every byte of the files does.
    """
    digest = hashlib.sha256()
    for path, name in sorted(sources(plugin).items(), key=lambda item: item[1]):
        digest.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\0".encode())
    return digest.hexdigest()


def sources(plugin: Plugin) -> dict[Path, str]:
    """Return the files that `source_hash` covers, each with its place in the folder that it belongs to."""
    assert plugin.path is not None, plugin
    homes = [_home(plugin), *((_folder(kind.package), kind.package) for kind in KINDS.values())]
    files: dict[Path, str] = {}
    todo = [plugin.path.resolve()]
    while todo:
        path = todo.pop()
        root = next((root for root, _ in homes if path.is_relative_to(root)), None)
        if root and path not in files:
            files[path] = path.relative_to(root).as_posix()
            todo += _imported_files(path, homes)
    return files


# --- the three origins -------------------------------------------------------------------------------------------


def _built_in(kind: str) -> Iterator[Plugin]:
    package = KINDS[kind].package
    for path in _plugin_files(_folder(package)):
        yield _read(kind, path.stem, path, origin="built-in", module=f"{package}.{path.stem}")


def _installed(kind: str) -> Iterator[Plugin]:
    for point in entry_points(group=KINDS[kind].group):
        origin = f"entry point of {point.dist.name} {point.dist.version}" if point.dist else "entry point"
        path = _module_file(point.module)
        if path is None:
            error = f"its module {point.module} is not installed"
            yield Plugin(name=point.name, kind=kind, origin=origin, path=None, module=point.module, error=error)
        else:
            yield _read(kind, point.name, path, origin=origin, module=point.module, cls=point.attr)


def _given(kind: str, extra: Sequence[Path]) -> Iterator[Plugin]:
    seen: set[Path] = set()
    for given in extra:
        if not given.exists():
            raise ValueError(f"there is no plugin file or folder {given}: check the path given with --plugin.")
        if not (files := _plugin_files(given.resolve())):
            raise ValueError(
                f"the folder {given} holds no plugin: give a .py file, or a folder of them, with --plugin."
            )
        for path in files:
            if path not in seen and _kind_of(path) == kind:
                yield _read(kind, path.stem, path, origin=f"file {path}")
            seen.add(path)


def _plugin_files(given: Path) -> list[Path]:
    """Return the file itself, or a folder's modules; those whose name starts with "_" are its helpers."""
    if given.is_file():
        return [given]
    return sorted(path for path in given.glob("*.py") if not path.name.startswith("_"))


@cache
def _folder(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None, package
    assert spec.submodule_search_locations, package
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def _module_file(module: str) -> Path | None:
    """Find a module's file without importing it or its parents: only the top-level name goes through the finders."""
    top, *rest = module.split(".")
    spec = find_spec(top)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin).resolve() if spec.origin else None
    bases = (Path(folder, *rest) for folder in spec.submodule_search_locations or ())
    return next((file for base in bases for file in _files_of(base)), None)


def _files_of(base: Path) -> list[Path]:
    return [file.resolve() for file in (base / "__init__.py", base.with_suffix(".py")) if file.is_file()]


# --- reading one file ----------------------------------------------------------------------------------------------


def _read(kind: str, name: str, path: Path, *, origin: str, module: str = "", cls: str = "") -> Plugin:
    plugin = Plugin(name=name, kind=kind, origin=origin, path=path, module=module)
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        return replace(plugin, error=f"line {error.lineno}: {error.msg}" if error.lineno else error.msg)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    public = [cls] if cls else [found for found in classes if not found.startswith("_")]
    if len(public) != 1:
        return replace(plugin, error=f"a plugin file has one public class, this one has {', '.join(public) or 'none'}")
    if cls not in {"", *classes}:
        return replace(plugin, error=f"it has no class {cls}{nearest(cls, classes)}")
    node = classes[public[0]]
    summary = (ast.get_docstring(node) or "").partition("\n")[0]
    return replace(plugin, cls=node.name, summary=summary, fields=_fields(tree, node))


def _fields(tree: ast.Module, node: ast.ClassDef) -> dict[str, str]:
    """Return the dataclass fields of a class, those of base classes of the same file or of built-ins first."""
    fields: dict[str, str] = {}
    for base in node.bases:
        if found := _base_class(tree, base):
            fields |= _fields(*found)
    for item in node.body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            annotation = ast.unparse(item.annotation)
            if "ClassVar" not in annotation:
                default = f" = {ast.unparse(item.value)}" if item.value else ""
                fields[item.target.id] = annotation + default
    return fields


def _base_class(tree: ast.Module, base: ast.expr) -> tuple[ast.Module, ast.ClassDef] | None:
    name = ast.unparse(base)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return tree, node
    module = _imported(tree).get(name, "")
    parent, _, stem = module.rpartition(".")
    if parent in {kind.package for kind in KINDS.values()} and (path := _folder(parent) / f"{stem}.py").is_file():
        other = ast.parse(path.read_bytes())
        return next(((other, n) for n in other.body if isinstance(n, ast.ClassDef) and n.name == name), None)
    return None


def _imported(tree: ast.Module) -> dict[str, str]:
    """Map each name that `from MODULE import NAME` binds to its module."""
    nodes = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name: node.module or "" for node in nodes for alias in node.names}


def _kind_of(path: Path) -> str:
    """Tell a given file's kind by what its classes derive from; one that cannot be told is listed as a strategy."""
    try:
        tree = ast.parse(path.read_bytes())
    except SyntaxError:
        return "strategy"
    imported = _imported(tree)
    bases = {ast.unparse(base) for node in tree.body if isinstance(node, ast.ClassDef) for base in node.bases}
    for name, kind in KINDS.items():
        modules = {imported.get(base, base.rpartition(".")[0]) for base in bases}
        if any(module == kind.base or module.startswith(f"{kind.package}.") for module in modules):
            return name
    return "strategy"


def _allowed(node: ast.expr) -> list[object]:
    """Return what an annotation admits: types, literal values, or `object` for what is not checked."""
    match node:
        case ast.BinOp(op=ast.BitOr()):
            return _allowed(node.left) + _allowed(node.right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=choices):
            items = choices.elts if isinstance(choices, ast.Tuple) else [choices]
            return [ast.literal_eval(item) for item in items]
        case ast.Constant(value=None):
            return [None]
        case ast.Name(id=("bool" | "int" | "float" | "str") as name):
            return [{"bool": bool, "int": int, "float": float, "str": str}[name]]
    return [object]


def _admits(choice: object, value: object) -> bool:
    if not isinstance(choice, type):
        return value == choice and type(value) is type(choice)
    if isinstance(value, bool):  # an int to Python, a slip to a reader: `rank: true`
        return choice in (bool, object)
    return isinstance(value, (int, float) if choice is float else choice)


# --- imports --------------------------------------------------------------------------------------------------------


class _Loader(SourceFileLoader):
    """Runs a file of a given folder, as its source is now, with the folder's own modules first in its imports."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)  # __pycache__ may be a second behind

    def exec_module(self, module: ModuleType) -> None:
        package = module.__name__.partition(".")[0]

        def own_first(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
            top = name.partition(".")[0]
            own = f"{package}.{top}"
            if level or top == "growbench" or own == module.__name__ or not _has(own, top):
                return builtins.__import__(name, globals, locals, fromlist, level)
            found = importlib.import_module(f"{package}.{name}")
            return builtins.__import__(found.__name__, fromlist=fromlist) if fromlist else sys.modules[own]

        vars(module)["__builtins__"] = vars(builtins) | {"__import__": own_first}  # also of imports inside functions
        super().exec_module(module)


def _has(own: str, top: str) -> bool:
    """Whether a folder holds that module; a folder without code is one only where nothing else is called so."""
    spec = find_spec(own)
    return spec is not None and (spec.origin is not None or find_spec(top) is None)


class _Finder(MetaPathFinder):
    """Finds the modules of given folders, each below a package of its own, so that equal names do not meet."""

    def __init__(self) -> None:
        self.packages: set[str] = set()

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if fullname.partition(".")[0] not in self.packages:
            return None
        spec = PathFinder.find_spec(fullname, path)
        if spec and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Loader(fullname, spec.loader.path)
        return spec


_FINDER = _Finder()


def _import_file(plugin: Plugin) -> Any:
    """Import a file given by path into a package of its own, named after its place and source, with its helpers."""
    assert plugin.path is not None, plugin
    identity = hashlib.sha256(f"{plugin.path} {source_hash(plugin)}".encode()).hexdigest()
    package = f"growbench_plugin_{identity[:16]}"
    name = f"{package}.{plugin.name}"
    if name in sys.modules:
        return sys.modules[name]
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    _FINDER.packages.add(package)
    sys.modules[package] = module_from_spec(ModuleSpec(package, None, is_package=True))
    sys.modules[package].__path__ = [str(plugin.path.parent)]
    spec = spec_from_file_location(name, plugin.path, loader=_Loader(name, str(plugin.path)))
    assert spec is not None, plugin
    assert spec.loader is not None, plugin
    module = sys.modules[name] = module_from_spec(spec)  # dataclasses look their module up while it is being run
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for made in [made for made in sys.modules if made.partition(".")[0] == package]:
            del sys.modules[made]
        raise
    return module


def _home(plugin: Plugin) -> tuple[Path, str]:
    """Return the folder that a plugin may import its own helpers from, and its dotted name ("" for a given file)."""
    assert plugin.path is not None, plugin
    path = plugin.path.resolve()
    if not plugin.module:
        return path.parent, ""
    if plugin.module.startswith(KINDS[plugin.kind].package + "."):
        return path.parent, KINDS[plugin.kind].package
    top, *rest = plugin.module.split(".")
    depth = len(rest) - (path.name != "__init__.py")  # of the plugin's folder below its top-level package
    return (path.parents[max(depth, 0)], top)


def _imported_files(path: Path, homes: Sequence[tuple[Path, str]]) -> Iterator[Path]:
    """Yield the files that one file imports, as far as they lie in a home: a (folder, its dotted name) pair."""
    for node in ast.walk(ast.parse(path.read_bytes(), filename=str(path))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [module, *(f"{module}.{alias.name}".strip(".") for alias in node.names)]
        else:
            continue
        if isinstance(node, ast.ImportFrom) and node.level:
            places = [(path.parents[node.level - 1], name) for name in names]
        else:
            places = [
                (root, name.removeprefix(prefix).removeprefix("."))
                for root, prefix in homes
                for name in names
                if _below(name, prefix) or (not prefix and path.is_relative_to(root) and not _below(name, "growbench"))
            ]
        for folder, name in places:
            parts = name.split(".")
            for end in range(1, len(parts) + 1):  # a package runs before its modules
                yield from _files_of(folder.joinpath(*parts[:end]))


def _below(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")
