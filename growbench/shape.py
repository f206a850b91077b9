"""Shapes and labels of the language models: all that is known of a model before torch is imported.

Every model is the same pre-norm decoder, each weight written here with its label (labels.py):

    x = embed[token];   x += attention(norm(x));   x += feed_forward(norm(x)), per layer;   logits = head(norm(x))

`placement` says where parameter attention (Pattention, arXiv:2410.23168) stands. A feed-forward layer is one: the rows
of its first matrix are keys, the columns of its second values. With `everywhere` the four projections of the attention
are Pattention layers too, and the model is a TokenFormer; with `ffn` they are plain matrices and the model is a
transformer. `nonlinearity` is the one of every Pattention layer.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import product
from typing import Any, Literal, get_args

from growbench.labels import Admits, Axis, Weight, parse
from growbench.plugins import nearest

Nonlinearity = Literal["relu", "gelu", "swiglu", "softmax", "l2_gelu"]
Placement = Literal["ffn", "everywhere"]

_TOKEN_ADMITS: dict[str, Admits] = {"l2_gelu": "even", "softmax": "copies"}
_PROJECTIONS = {
    "q": "head key residual*",
    "k": "head key residual*",
    "v": "head value residual*",
    "o": "residual head* value*",
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a model. `heads`, `ffn` and `tokens` may differ by layer (a tuple); `rank`: of low-rank additions."""

    layers: int
    residual: int
    heads: int | tuple[int, ...]
    key: int
    value: int
    ffn: int | tuple[int, ...]
    placement: Placement = "ffn"
    tokens: int | tuple[int, ...] = 0
    nonlinearity: Nonlinearity = "gelu"
    tied: bool = False
    rank: int = 0
    vocab: int = 256
    context: int = 64

    def __post_init__(self) -> None:
        for name in ("nonlinearity", "placement"):
            allowed = get_args(Nonlinearity if name == "nonlinearity" else Placement)
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}: choose one of {', '.join(allowed)}")
        for name in ("layers", "residual", "heads", "key", "value", "ffn", "vocab", "context", "tokens", "rank"):
            least = 0 if name in ("tokens", "rank") else 1
            sizes = getattr(self, name) if isinstance(getattr(self, name), tuple) else (getattr(self, name),)
            if not all(isinstance(size, int) and not isinstance(size, bool) and size >= least for size in sizes):
                raise ValueError(f"{name} is {getattr(self, name)!r}: give whole numbers of at least {least}")
            if isinstance(getattr(self, name), tuple) and (
                name not in ("heads", "ffn", "tokens") or len(sizes) != self.layers
            ):
                raise ValueError(
                    f"{name} lists {len(sizes)} sizes: only heads, ffn and tokens vary by layer, one size for each"
                )
        if self.key % 2:
            raise ValueError(f"key is {self.key}: rotary positions turn pairs, so give an even width")
        if (self.placement == "everywhere") != all(self.at("tokens", layer) > 0 for layer in range(self.layers)):
            raise ValueError(
                "tokens are the parameter tokens of the projections: give them with placement everywhere, only there"
            )
        if self.nonlinearity == "swiglu" and self.placement == "everywhere":
            raise ValueError(
                "swiglu gates a feed-forward layer: with placement everywhere choose l2_gelu, gelu, relu or softmax"
            )

    @staticmethod
    def read(mapping: dict[str, Any]) -> "Shape":
        """The shape a study's rung describes. An unknown or missing field is a ValueError that names it."""
        known = {field.name for field in fields(Shape)}
        for key in mapping:
            if key not in known:
                raise ValueError(f"a rung has no field {key!r}{nearest(key, known)}")
        required = {"layers", "residual", "heads", "key", "value", "ffn"}
        if lacking := sorted(required - mapping.keys()):
            raise ValueError(f"a rung lacks {', '.join(lacking)}: give every one of {', '.join(sorted(required))}")
        sizes: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in mapping.items()}
        return Shape(**sizes)

    def at(self, name: str, layer: int) -> int:
        """Size in one layer of a field that may differ by layer."""
        size: int | tuple[int, ...] = getattr(self, name)
        return size[layer] if isinstance(size, tuple) else size

    def per_layer(self, name: str) -> tuple[int, ...]:
        """Sizes, layer by layer, of a field that may differ by layer."""
        return tuple(self.at(name, layer) for layer in range(self.layers))

    def with_layers(self, source: tuple[int, ...]) -> "Shape":
        """The shape whose layer i has the sizes of this shape's layer source[i]."""
        varied: dict[str, Any] = {
            name: tuple(self.at(name, layer) for layer in source)
            for name in ("heads", "ffn", "tokens")
            if isinstance(getattr(self, name), tuple)
        }
        return replace(self, layers=len(source), **varied)

    def _layer_axes(self, layer: int) -> dict[str, tuple[Axis, int]]:
        units = _TOKEN_ADMITS.get(self.nonlinearity, "selection")
        axes: dict[str, tuple[Admits, int]] = {
            "head": ("selection", self.at("heads", layer)),
            "key": ("fixed", self.key),
            "value": ("any", self.value),
            "ffn": (units, self.at("ffn", layer)),
        }
        if self.placement == "everywhere":
            axes |= {f"{p}_token": (units, self.at("tokens", layer)) for p in _PROJECTIONS}
        return {name: (Axis(name=name, layer=layer, admits=admits), size) for name, (admits, size) in axes.items()}

    def _block(self) -> Iterator[tuple[str, str]]:
        """Parts and labels of one layer's weights."""
        for projection, label in _PROJECTIONS.items():
            if self.placement == "ffn":
                yield projection, label
            else:
                writes, reads = _sides(label)
                yield f"{projection}/keys", f"{projection}_token {reads}"
                yield f"{projection}/values", f"{writes} {projection}_token*"
        yield "ffn/keys", "ffn residual*"
        if self.nonlinearity == "swiglu":
            yield "ffn/gate", "ffn residual*"
        yield "ffn/values", "residual ffn*"

    @cached_property
    def weights(self) -> dict[str, Weight]:
        """Every weight by name, in the order of the forward pass, labelled and sized."""
        shared: dict[str, tuple[Axis, int]] = {
            "vocab": (Axis(name="vocab", admits="fixed"), self.vocab),
            "residual": (Axis(name="residual", admits="isometry"), self.residual),
        }
        out = [parse("vocab* residual", part="embed", axes=shared, lookup=True)]
        for layer in range(self.layers):
            axes = shared | self._layer_axes(layer)
            for part, label in self._block():
                out.append(parse(label, part=part, layer=layer, axes=axes))
                if self.rank:
                    out.extend(_low_rank(part, label, axes, layer, self.rank))
        if not self.tied:
            out.append(parse("vocab residual/", part="head", axes=shared))
        return {weight.name: weight for weight in out}

    @cached_property
    def axes(self) -> dict[Axis, int]:
        """Every axis with its size."""
        return {dim.axis: dim.size for weight in self.weights.values() for dim in weight.dims}

    @property
    def words(self) -> str:
        """The sizes in one line: 2 layers, residual 32, heads 4, key 8, value 8, ffn 128."""
        sizes = ("residual", "heads", "key", "value", "ffn", *["tokens"] * (self.placement == "everywhere"))
        listed = (f"{n} {'/'.join(map(str, v)) if isinstance(v := getattr(self, n), tuple) else v}" for n in sizes)
        return f"{self.layers} layers, {', '.join(listed)}" + (f", rank {self.rank}" if self.rank else "")

    @property
    def params(self) -> int:
        """All weights."""
        return sum(weight.count for weight in self.weights.values())

    @property
    def params_non_embedding(self) -> int:
        """Weights of the blocks: without embedding and readout, by which sizes are matched."""
        return sum(w.count for w in self.weights.values() if not any(d.axis.name == "vocab" for d in w.dims))


def _sides(label: str) -> tuple[str, str]:
    """The written and the read words of a label."""
    words = label.split()
    return " ".join(w for w in words if not w.endswith("*")), " ".join(w for w in words if w.endswith("*"))


def _low_rank(part: str, label: str, axes: dict[str, tuple[Axis, int]], layer: int, rank: int) -> Iterator[Weight]:
    """The two factors of a low-rank addition to a weight: W + up down."""
    inner = f"{part}_rank"
    axes = axes | {inner: (Axis(name=inner, layer=layer, admits="any"), rank)}
    writes, reads = _sides(label)
    yield parse(f"{inner} {reads}", part=f"{part}/down", layer=layer, axes=axes)
    yield parse(f"{writes} {inner}*", part=f"{part}/up", layer=layer, axes=axes)


def solve(rung: dict[str, Any], params: int) -> Shape:
    """The shape of `params` non-embedding weights, within 1 %, that a rung without `ffn` (and `tokens`) leaves open.

    A Pattention layer of n tokens has n (in + out) weights; the feed-forward gets 8 tokens for each one of a
    projection, the ratio of a transformer whose feed-forward is four times as wide as its residual stream.
    """
    everywhere = rung.get("placement") == "everywhere"

    def sized(units: int) -> Shape:
        return Shape.read(rung | ({"tokens": max(units // 8, 1), "ffn": units} if everywhere else {"ffn": units}))

    low, high = 1, 2
    while sized(high).params_non_embedding < params:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if sized(middle).params_non_embedding <= params else (low, middle)
    best = min((sized(u) for u in range(max(low - 8, 1), high + 9)), key=lambda s: abs(s.params_non_embedding - params))
    if abs(best.params_non_embedding - params) > 0.01 * params:
        raise ValueError(
            f"no feed-forward width gives {params:,} weights within 1 %, the nearest gives "
            f"{best.params_non_embedding:,}: change params, residual or layers"
        )
    return best


PARTS: dict[str, tuple[str, ...]] = {
    "attention": ("heads", "tokens"),
    "ffn": ("ffn",),
    "residual": ("residual",),
    "heads": ("heads",),
    "tokens": ("tokens",),
}
"""Parts that growth can be restricted to, by the sizes that they let grow."""


def partial(source: Shape, params: int, only: Sequence[str], layers: Sequence[int]) -> Shape:
    """The shape of `params` non-embedding weights, within 1 %, that grows from `source` in some parts and layers alone.

    only: names of PARTS; layers: those whose heads, ffn and tokens may grow (the residual stream has no layer). All
    chosen sizes grow by one factor, then unit by unit to the count. ValueError where none comes within 1 %.
    """
    names = {name for part in only for name in PARTS[part] if name == "residual" or any(source.per_layer(name))}
    low, high = 1.0, 2.0
    while _scaled(source, high, names, layers).params_non_embedding < params and high < 1e6:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if _scaled(source, middle, names, layers).params_non_embedding <= params else (low, middle)
        )
    best, fits = _scaled(source, low, names, layers), True
    while fits:
        fits = False
        for name, layer in product(sorted(names - {"residual"}), layers):
            more = _resized(best, name, {layer: best.at(name, layer) + 1})
            if more.params_non_embedding <= params:
                best, fits = more, True
    if abs(best.params_non_embedding - params) > 0.01 * params:
        raise ValueError(
            f"growing {' and '.join(only)} alone gives {best.params_non_embedding:,} weights at the nearest, not "
            f"{params:,} within 1 %: choose other parts or layers, or a ladder of finer steps"
        )
    return best


def _scaled(source: Shape, factor: float, names: Set[str], layers: Sequence[int]) -> Shape:
    shape = source
    for name in sorted(names - {"residual"}):
        shape = _resized(shape, name, {layer: int(source.at(name, layer) * factor) for layer in layers})
    return replace(shape, residual=int(source.residual * factor)) if "residual" in names else shape


def _resized(shape: Shape, name: str, sizes: Mapping[int, int]) -> Shape:
    """A shape with other sizes of one field in some layers; one number where all layers agree."""
    per_layer = tuple(sizes.get(layer, size) for layer, size in enumerate(shape.per_layer(name)))
    change: dict[str, Any] = {name: per_layer if len(set(per_layer)) > 1 else per_layer[0]}
    return replace(shape, **change)
