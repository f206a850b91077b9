"""Writes what docs/ has from code: the pages that state a schema, study.md and results.md, and the pictures.

python docs/generate.py
"""

import inspect
import re
import runpy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, JsonValue
from pydantic.fields import FieldInfo

from growbench import results, study

HERE = Path(__file__).parent
TABLES = {
    "results.parquet": results.RESULTS,
    "curves.parquet": results.CURVES,
    "stages.parquet": results.STAGES,
    "diagnostics.parquet": results.DIAGNOSTICS,
    "coordinates.parquet": results.COORDINATES,
}
GENERATED = "This page is generated from the code by `python docs/generate.py`; a test holds it to that."


def study_page() -> str:
    """The study file: every part of it with its fields, types and defaults."""
    lines = [
        "# The study file",
        "",
        f"{GENERATED} Examples: growbench/studies/quick.yaml, growbench/studies/claims-small.yaml.",
    ]
    for part in _parts(study.Study):
        lines += [
            "",
            f"## {part.__name__}",
            "",
            _markdown(inspect.getdoc(part) or ""),
            "",
            "| field | type | default |",
            "|---|---|---|",
        ]
        lines += [_row(name, field) for name, field in part.model_fields.items()]
    return "\n".join(lines) + "\n"


def _parts(model: type[BaseModel]) -> list[type[BaseModel]]:
    """A model and, in the order of their first mention, all models that its fields are made of."""
    found = [model]
    for each in found:
        for field in each.model_fields.values():
            found += [inner for inner in _models(field.annotation) if inner not in found]
    return found


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models(inner)


def _row(name: str, field: FieldInfo) -> str:
    default = "required" if field.is_required() else _said(field.get_default(call_default_factory=True))
    return f"| `{name}` | {_kind(field.annotation, field.metadata)} | {default} |"


def _kind(annotation: Any, metadata: list[Any] | None = None) -> str:
    """A type in words: integer, one of a, b; list of ...; with its bounds."""
    arguments = get_args(annotation)
    if {bool, str, list[str]} <= set(arguments):
        return "a value: number, word, true or false, none, or a list of them"
    origin = getattr(annotation, "__origin__", None)
    if getattr(annotation, "__metadata__", None):
        return _kind(annotation.__origin__, list(annotation.__metadata__))
    names = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "none"}
    if annotation is JsonValue:
        return "a value of any kind"
    if annotation in names:
        return names[annotation] + _bounds(metadata or [])
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    if origin in (tuple, list):
        return "list of " + _kind(next(a for a in arguments if a is not Ellipsis))
    if origin is dict:
        return f"mapping of {_kind(arguments[0])} to {_kind(arguments[1])}"
    if str(annotation).startswith("typing.Literal"):
        return "one of " + ", ".join(f"`{value}`" for value in arguments)
    return " or ".join(dict.fromkeys(_kind(inner) for inner in arguments))


def _bounds(metadata: list[Any]) -> str:
    """Limits of a number, as pydantic keeps them: ", at least 1"."""
    words = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = [item for entry in metadata for item in getattr(entry, "metadata", [entry])]
    found = [
        f"{word} {getattr(limit, name):g}" for limit in limits for name, word in words.items() if hasattr(limit, name)
    ]
    return ", " + ", ".join(found) if found else ""


def _said(default: Any) -> str:
    if default is None:
        return "none"
    if isinstance(default, BaseModel):
        return "its defaults"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, tuple | list):
        return f"`[{', '.join(map(str, default))}]`"
    return "empty" if default in ("", {}) else f"`{default}`"


def results_page() -> str:
    """The result tables: every column with its type, unit and definition."""
    lines = ["# The result tables", "", GENERATED, "", _markdown(inspect.getdoc(results) or "").partition("\n\n")[2]]
    for name, columns in TABLES.items():
        lines += ["", f"## {name}", "", "| column | type | unit | meaning |", "|---|---|---|---|"]
        lines += [f"| `{key}` | {c.dtype} | {c.unit} | {_cell(c.meaning)} |" for key, c in columns.items()]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def _markdown(text: str) -> str:
    return text.replace("<", "&lt;")


PICTURES: Mapping[str, Callable[[], str]] = runpy.run_path(str(HERE / "pictures.py"))["PICTURES"]
PAGES: Mapping[str, Callable[[], str]] = {"study.md": study_page, "results.md": results_page, **PICTURES}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(page(), encoding="utf-8")
