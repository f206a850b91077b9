"""Families of pretrained checkpoints: one table each, from the names of tensors to the labels of their axes.

A label lists a tensor's dimensions as the file stores them; parentheses hold the axes that one stored dimension
flattens, as in einops: `"(group query width) residual*"`. Plain is written, `*` read, as in labels.py; `=` before the
label is a gain, by which each unit of the axis is multiplied. All that growth does follows from these tables; nothing
else names a tensor.

    group, query    key-value heads, and the query heads of each one: grouped-query attention as two axes
    head, qkv       heads of equal number for q, k and v, and the three projections that one tensor holds
    width           of a head. It cannot grow: the attention's scale and the rotary frequencies depend on it
"""

import importlib
import pkgutil
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

from torch import Tensor

from growbench.labels import Admits, Axis, Dim, Weight
from growbench.shape import Nonlinearity

Kind = Literal["weight", "gain", "shift"]
Sizes = Mapping[str, int]

GROWABLE = ("layers", "residual", "ffn", "heads", "groups", "tokens", "proj_tokens")
"""Sizes that `--to` may name, as far as a family has them."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture of checkpoints.

    sizes: field of the configuration for each size. tensors: label by name, {layer} where each layer has one ({module}
    and {last} in a pipeline's count); norms: the tensors that read through each norm, by its name. readout: "" where it
    always is the embedding; optional: the configuration's field on which a tensor depends. square: heads x width =
    residual. ignored: patterns of buffers that old files hold; prefix: of names, that files of the bare model lack.
    admits: what an axis admits where that is not ADMITS.
    """

    architecture: str
    sizes: Mapping[str, str]
    tensors: Mapping[str, str]
    norms: Mapping[str, tuple[str, ...]]
    norm: Literal["rms", "layer"]
    embedding: str
    readout: str
    nonlinearity: Nonlinearity = "gelu"
    square: bool = False
    optional: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    prefix: str = ""
    admits: Mapping[str, Admits] = field(default_factory=dict)

    def read_sizes(self, config: Any) -> dict[str, int]:
        """Every size by name, from a configuration, where some are left to their defaults."""
        found = {name: int(size) for name, key in self.sizes.items() if (size := getattr(config, key, None))}
        found.setdefault("groups", found["heads"])
        found.setdefault("width", found["residual"] // found["heads"])
        found.setdefault("ffn", 4 * found["residual"])
        return found

    def write_sizes(self, config: Any, sizes: Sizes) -> None:
        """Set the fields of a configuration; what follows from others alone stays out of it."""
        for name, key in self.sizes.items():
            follows = name == "width" and not hasattr(config, key)
            if not (follows and sizes["residual"] == sizes["heads"] * sizes["width"]):
                setattr(config, key, sizes[name])

    def axes(self, sizes: Sizes, layer: int | None) -> dict[str, tuple[Axis, int]]:
        """Every axis by name, of one layer or shared, with its size."""
        shared = {"vocab": sizes["vocab"], "residual": sizes["residual"], "position": sizes.get("position", 0)}
        own = {
            "head": sizes["heads"],
            "group": sizes["groups"],
            "query": sizes["heads"] // sizes["groups"],
            "width": sizes["width"],
            "ffn": sizes["ffn"],
            "qkv": 3,
        }
        if "tokens" in sizes:
            own |= {f"{p}_token": sizes["tokens"] for p in "qkv"} | {"o_token": sizes["proj_tokens"]}
        admits = {**ADMITS, **self.admits}
        out = {name: (Axis(name=name, admits=admits[name]), size) for name, size in shared.items()}
        return out | {name: (Axis(name=name, layer=layer, admits=admits[name]), size) for name, size in own.items()}

    def stored(self, config: Any, sizes: Sizes, *, tied: bool) -> dict[str, "Stored"]:
        """Every tensor that a checkpoint of these sizes holds, by name."""
        through = {reader: norm for norm, readers in self.norms.items() for reader in readers}
        table: list[tuple[str, str, Kind]] = [
            (name, label.removeprefix("="), "gain" if label.startswith("=") else "weight")
            for name, label in self.tensors.items()
            if not (tied and name == self.readout)
            and (name not in self.optional or getattr(config, self.optional[name]))
        ]
        for name in self.norms:
            table.append((f"{name}.weight", "residual", "gain"))
            if self.norm == "layer":
                table.append((f"{name}.bias", "residual", "shift"))
        out = {}
        for pattern, label, kind in table:
            for layer in range(sizes["layers"]) if re.search("{layer}|{module}", pattern) else (None,):
                norm = named(through[pattern], layer, sizes) if pattern in through else ""
                name = named(pattern, layer, sizes)
                axes = self.axes(sizes, layer)
                out[name] = stored(label, name, layer, axes, pattern=pattern, kind=kind, norm=norm)
        return out

    def ignores(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored)


ADMITS: dict[str, Admits] = {
    "residual": "isometry",
    "head": "selection",
    "group": "selection",
    "query": "selection",
    "ffn": "selection",
    "q_token": "selection",
    "k_token": "selection",
    "v_token": "selection",
    "o_token": "selection",
    "vocab": "fixed",
    "position": "fixed",
    "width": "fixed",
    "qkv": "fixed",
}


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A tensor of a file: its label, and how the file stores it.

    weight: dimensions with what grows first and what is written before what is read; view, order: the stored tensor's
    reshape and permutation to them. pattern: its name in the table; norm: the one that it reads through.
    """

    weight: Weight
    shape: tuple[int, ...]
    view: tuple[int, ...]
    order: tuple[int, ...]
    pattern: str
    kind: Kind = "weight"
    norm: str = ""

    def labelled(self, tensor: Tensor) -> Tensor:
        """The stored tensor with its dimensions as `weight` has them; a view."""
        return tensor.view(self.view).permute(self.order)


def named(pattern: str, layer: int | None, sizes: Sizes) -> str:
    """The name that a pattern of a table has in a layer; in a pipeline layers begin at module 2."""
    return pattern.format(layer=layer, module=(layer or 0) + 2, last=sizes["layers"] + 3)


def stored(
    label: str,
    name: str,
    layer: int | None,
    axes: Mapping[str, tuple[Axis, int]],
    *,
    pattern: str,
    kind: Kind = "weight",
    norm: str = "",
) -> Stored:
    """The tensor that a label describes.

    >>> axes = {"head": (Axis(name="head"), 4), "qkv": (Axis(name="qkv"), 3), "residual": (Axis(name="residual"), 8)}
    >>> found = stored("residual* (qkv head)", "c_attn", None, axes, pattern="c_attn")
    >>> found.weight.label, found.shape, found.order
    ('head qkv residual*', (8, 12), (2, 1, 0))
    """
    dims, shape = [], []
    for words in re.findall(r"\(([^)]*)\)|(\S+)", label):
        size = 1
        for word in (words[0] or words[1]).split():
            axis, own = axes[word.rstrip("*")]
            dims.append(Dim(axis=axis, size=own, role="reads" if word.endswith("*") else "writes"))
            size *= own
        shape.append(size)
    lookup = any(dim.axis.name in ("vocab", "position") and dim.role == "reads" for dim in dims)

    def place(i: int) -> tuple[bool, bool, int]:
        return (not lookup and dims[i].role == "reads", ADMITS[dims[i].axis.name] == "fixed" and not lookup, i)

    order = tuple(sorted(range(len(dims)), key=place))
    weight = Weight(part=name, layer=layer, dims=tuple(dims[i] for i in order), lookup=lookup)
    return Stored(
        weight=weight,
        shape=tuple(shape),
        view=tuple(dim.size for dim in dims),
        order=order,
        pattern=pattern,
        kind=kind,
        norm=norm,
    )


@cache
def families() -> dict[str, Family]:
    """Every family by its architecture: the tables in this folder."""
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    tables = [
        v for module in modules for n, v in vars(module).items() if isinstance(v, Family) and not n.startswith("_")
    ]
    return {family.architecture: family for family in tables}


def find(architecture: str) -> Family:
    """The family of an architecture; ValueError with those that are known."""
    if architecture not in (known := families()):
        raise ValueError(f"no table maps the architecture {architecture!r}: known are {', '.join(sorted(known))}")
    return known[architecture]
