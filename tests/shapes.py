"""Random shapes and growths of them, for the property tests; float64 throughout."""

from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st

from growbench.parametrization import Parametrization
from growbench.shape import Shape
from growbench.state import State, initial

KINDS: dict[str, dict[str, Any]] = {
    "gelu": {"nonlinearity": "gelu"},
    "relu_tied": {"nonlinearity": "relu", "tied": True},
    "swiglu": {"nonlinearity": "swiglu"},
    "ffn_l2": {"nonlinearity": "l2_gelu"},
    "tokenformer": {"nonlinearity": "l2_gelu", "placement": "everywhere"},
    "tokenformer_gelu": {"nonlinearity": "gelu", "placement": "everywhere", "tied": True},
}
CONTEXT, VOCAB = 7, 11


@st.composite
def shapes(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(KINDS)) -> Shape:
    """A small shape of any architecture, its ffn and heads equal over layers or not."""
    kind = KINDS[draw(st.sampled_from(kinds))]
    layers = draw(st.integers(1, 2))
    varied = draw(st.booleans())

    def sizes(low: int, high: int) -> int | tuple[int, ...]:
        one = st.integers(low, high)
        return tuple(draw(one) for _ in range(layers)) if varied else draw(one)

    everywhere = kind.get("placement") == "everywhere"
    return Shape(
        layers=layers,
        residual=draw(st.integers(2, 6)),
        heads=sizes(1, 3),
        key=2 * draw(st.integers(1, 2)),
        value=draw(st.integers(1, 4)),
        ffn=sizes(2, 7),
        tokens=sizes(2, 5) if everywhere else 0,
        vocab=VOCAB,
        context=CONTEXT,
        **kind,
    )


@st.composite
def larger(draw: st.DrawFn, shape: Shape, *, factor: int | None = None, deeper: bool = False) -> Shape:
    """A shape that `shape` can grow to: every axis longer or equal, or all by one factor."""

    def grown(size: int | tuple[int, ...]) -> int | tuple[int, ...]:
        if isinstance(size, tuple):
            return tuple(s * factor if factor else s + draw(st.integers(0, 5)) for s in size)
        return size * factor if factor else size + draw(st.integers(0, 5))

    if deeper:
        layers = shape.layers + draw(st.integers(0, 2))
        shape = shape.with_layers(tuple(i * shape.layers // layers for i in range(layers)))
    widths: dict[str, Any] = {name: grown(getattr(shape, name)) for name in ("residual", "heads", "ffn", "value")}
    return replace(shape, **widths, tokens=grown(shape.tokens) if shape.placement == "everywhere" else 0)


def random_state(shape: Shape, seed: int, name: str = "mup", base: Shape | None = None) -> State:
    """A state with random weights and, as if trained, random moments."""
    rng = torch.Generator().manual_seed(seed)
    scaling = Parametrization(name=name, base=base or shape)  # type: ignore[arg-type]
    state = initial(shape, scaling, rng, torch.float64)
    first = {n: torch.randn(w.shape, generator=rng, dtype=torch.float64) for n, w in state.weights.items()}
    second = {n: torch.rand(w.shape, generator=rng, dtype=torch.float64) for n, w in state.weights.items()}
    return replace(state, first=first, second=second, steps=dict.fromkeys(first, 3), tokens=100)


def batch(seed: int, size: int = 3) -> torch.Tensor:
    """Random tokens (size, CONTEXT + 1)."""
    return torch.randint(VOCAB, (size, CONTEXT + 1), generator=torch.Generator().manual_seed(seed))


def logits(state: State, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = state.model()(tokens[:, :-1])
    return out
