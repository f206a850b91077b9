"""Laws of the axis algebra, over random sizes, and what each operation on an axis commutes with."""

import math
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator, Tensor

from growbench import axes, maps, model
from growbench.axes import AxisMap, Copies, LayerMap
from growbench.labels import Admits, Axis, Weight, parse

TOLERANCE = 1e-10
RESIDUAL = Axis(name="residual", admits="isometry")
FFN = Axis(name="ffn", layer=0, admits="selection")
TOKEN = Axis(name="token", layer=0, admits="even")
VALUE = Axis(name="value", layer=0, admits="any")


def generator(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def normal(*size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=generator(seed), dtype=torch.float64)


def dense(old: int, new: int, rng: Generator) -> AxisMap:
    """A random injective map that is nothing more."""
    expand = torch.randn(new, old, generator=rng, dtype=torch.float64) + 2 * torch.eye(new, old, dtype=torch.float64)
    return AxisMap(expand, torch.linalg.pinv(expand))


MAPS = {
    "zero_pad": lambda old, new, rng: maps.zero_pad(old, new),
    "scaled_pad": lambda old, new, rng: maps.zero_pad(old, new, math.sqrt(new / old)),
    "clone": lambda old, new, rng: maps.clone(FFN, old, new),
    "even_clone": lambda old, new, rng: maps.clone(TOKEN, old, new),
    "weighted_copies": lambda old, new, rng: maps.net2net(RESIDUAL, old, new, rng),
    "net2net": lambda old, new, rng: maps.net2net(FFN, old, new, rng),
    "permuted": lambda old, new, rng: maps.net2net(TOKEN, old, new, rng),
    "isometry": lambda old, new, rng: maps.isometry(old, new, rng),
    "rotated_pad": lambda old, new, rng: maps.rotate(maps.zero_pad(old, new, math.sqrt(new / old)), rng),
    "dense": dense,
}
any_map = st.sampled_from(sorted(MAPS))
sizes = st.tuples(st.integers(1, 6), st.integers(0, 7)).map(lambda t: (t[0], t[0] + t[1]))
seeds = st.integers(0, 10_000)
LABELS = ("ffn residual*", "ffn residual/", "residual ffn*")


def labelled(ffn: int, residual: int, label: str = "ffn residual*") -> Weight:
    return parse(label, part="w", layer=0, axes={"ffn": (FFN, ffn), "residual": (RESIDUAL, residual)})


@given(any_map, any_map, sizes, sizes, st.sampled_from(LABELS), seeds)
def test_indices_do_what_their_matrices_do(
    one: str, two: str, f: tuple[int, int], r: tuple[int, int], label: str, seed: int
) -> None:
    """Every operation, on maps kept as indices and on the same as matrices; dense maps stand beside either."""
    rng = generator(seed)
    own = {FFN: MAPS[one](*f, rng), RESIDUAL: MAPS[two](*r, rng)}
    matrices = {axis: AxisMap(m.expand, m.collapse) for axis, m in own.items()}
    weight = labelled(f[1], r[1], label)
    old, new = normal(*labelled(f[0], r[0], label).sizes, seed=seed), normal(*weight.sizes, seed=seed + 1)

    def same(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, atol=1e-13, rtol=1e-13)

    for operation in (axes.grow, axes.transport):
        assert same(operation(old, weight, own), operation(old, weight, matrices))
    assert same(axes.transport_square(old.square(), weight, own), axes.transport_square(old.square(), weight, matrices))
    assert same(axes.shrink(new, weight, own), axes.shrink(new, weight, matrices))
    for side in get_args(axes.Side):
        sides = {FFN: side, RESIDUAL: axes.unseen(RESIDUAL, own[RESIDUAL])}
        assert same(axes.free(new, weight, own, sides), axes.free(new, weight, matrices, sides))
    shares = axes.outside_share(new, weight, own), axes.outside_share(new, weight, matrices)
    assert shares[0] == pytest.approx(shares[1], rel=1e-12, abs=1e-12)
    for m, whole in ((own[axis], matrices[axis]) for axis in own):
        assert torch.equal(m.silent, whole.silent)
        assert (m.even, m.onehot) == (whole.even, whole.onehot)
        assert all(m.commutes(admits) == whole.commutes(admits) for admits in get_args(Admits))
        if isinstance(m, Copies):
            found = Copies.of(whole)
            assert found is not None
            assert torch.equal(found.expand, m.expand)
            assert torch.equal(found.collapse, m.collapse)


@given(any_map, any_map, sizes, st.integers(0, 4), seeds)
def test_maps_compose_as_matrices_do(one: str, two: str, size: tuple[int, int], more: int, seed: int) -> None:
    rng = generator(seed)
    first = MAPS[one](*size, rng)
    second = MAPS[two](size[1], size[1] + more, rng)
    both, expand = second @ first, second.expand @ first.expand
    assert torch.allclose(both.expand, expand, atol=TOLERANCE, rtol=0)
    assert torch.allclose(both.collapse, first.collapse @ second.collapse, atol=TOLERANCE, rtol=0)


@given(any_map, any_map, sizes, sizes, st.sampled_from(LABELS), seeds)
def test_shrinking_undoes_growing(
    one: str, two: str, f: tuple[int, int], r: tuple[int, int], label: str, seed: int
) -> None:
    rng = generator(seed)
    own = {FFN: MAPS[one](*f, rng), RESIDUAL: MAPS[two](*r, rng)}
    old = normal(*labelled(f[0], r[0], label).sizes, seed=seed)
    weight = labelled(f[1], r[1], label)
    grown = axes.grow(old, weight, own)
    assert grown.shape == weight.sizes
    assert torch.allclose(axes.shrink(grown, weight, own), old, atol=TOLERANCE, rtol=0)


@given(any_map, any_map, sizes, sizes, st.sampled_from(["ffn residual*", "ffn residual/"]), seeds)
def test_gradients_are_covectors(
    one: str, two: str, f: tuple[int, int], r: tuple[int, int], label: str, seed: int
) -> None:
    """A gradient paired with a weight is the same number before and after growth: <G', W'> = <G, W>."""
    rng, weight = generator(seed), labelled(f[1], r[1], label)
    own = {FFN: MAPS[one](*f, rng), RESIDUAL: MAPS[two](*r, rng)}
    w, g = normal(f[0], r[0], seed=seed), normal(f[0], r[0], seed=seed + 1)
    grown = (axes.transport(g, weight, own) * axes.grow(w, weight, own)).sum()
    assert torch.allclose(grown, (g * w).sum(), atol=TOLERANCE, rtol=1e-10)


@given(any_map, any_map, st.integers(1, 4), st.integers(0, 4), st.integers(0, 4), seeds)
def test_growing_twice_is_growing_by_the_product(one: str, two: str, old: int, more: int, most: int, seed: int) -> None:
    rng = generator(seed)
    first, second = MAPS[one](old, old + more, rng), MAPS[two](old + more, old + more + most, rng)
    small, middle, large = (labelled(n, 3) for n in (old, old + more, old + more + most))
    w = normal(*small.sizes, seed=seed)
    twice = axes.grow(axes.grow(w, middle, {FFN: first}), large, {FFN: second})
    assert torch.allclose(twice, axes.grow(w, large, {FFN: second @ first}), atol=TOLERANCE, rtol=0)


@given(st.sampled_from(["zero_pad", "clone", "net2net"]), st.sampled_from(["zero_pad", "clone"]), sizes, sizes, seeds)
def test_second_moments_of_selections_are_exact(
    one: str, two: str, f: tuple[int, int], r: tuple[int, int], seed: int
) -> None:
    """Where every entry of G' is a multiple of one entry of G, v' of v = G^2 is G'^2; new entries take the mean."""
    rng, weight = generator(seed), labelled(f[1], r[1])
    own = {FFN: MAPS[one](*f, rng), RESIDUAL: MAPS[two](*r, rng)}
    g = normal(f[0], r[0], seed=seed).abs() + 0.1
    square, second = axes.transport(g, weight, own).square(), axes.transport_square(g.square(), weight, own)
    old = square > 0
    assert torch.allclose(second[old], square[old], rtol=1e-12)
    assert torch.allclose(second[~old], square[old].mean().expand_as(second[~old]), rtol=1e-12)


@given(any_map, any_map, sizes, sizes, st.sampled_from(["ffn residual*", "residual ffn*"]), seeds)
def test_free_noise_is_a_projection_off_the_old_model(
    one: str, two: str, f: tuple[int, int], r: tuple[int, int], label: str, seed: int
) -> None:
    """Idempotent, and it shrinks to nothing: the old model cannot see it on the sides where it meets the old maps."""
    rng, weight = generator(seed), labelled(f[1], r[1], label)
    own = {FFN: MAPS[one](*f, rng), RESIDUAL: MAPS[two](*r, rng)}
    sides = {axis: axes.unseen(axis, m) for axis, m in own.items()}
    noise = axes.free(normal(*weight.sizes, seed=seed), weight, own, sides)
    assert torch.allclose(axes.free(noise, weight, own, sides), noise, atol=1e-8, rtol=0)
    assert axes.shrink(noise, weight, own).abs().max() < 1e-8


@given(any_map, sizes, seeds)
def test_an_old_gradient_has_no_share_outside(name: str, r: tuple[int, int], seed: int) -> None:
    """The tangent space {dW C} holds every dW C and nothing of what is orthogonal to it."""
    weight, own = labelled(3, r[1]), {RESIDUAL: MAPS[name](*r, generator(seed))}
    grown = axes.grow(normal(3, r[0], seed=seed), weight, own)
    outside, total = axes.outside_share(grown, weight, own)
    assert outside <= 1e-12 * total
    noise = normal(3, r[1], seed=seed + 1)
    q = torch.linalg.qr(own[RESIDUAL].collapse.T).Q
    apart = noise - noise @ q @ q.T
    outside, total = axes.outside_share(apart, weight, own)
    assert outside == pytest.approx(total, rel=1e-9, abs=1e-18)


OPERATIONS: dict[Admits, tuple[str, ...]] = {
    "any": ("matmul",),
    "isometry": ("matmul", "rmsnorm"),
    "selection": ("matmul", "gelu"),
    "even": ("matmul", "l2_gelu"),
    "copies": ("matmul", "softmax"),
}


def operate(operation: str, x: Tensor, n: float) -> Tensor:
    match operation:
        case "rmsnorm":
            return F.rms_norm(x, x.shape[-1:], eps=1e-30)
        case "gelu":
            return F.gelu(x)
        case "l2_gelu":
            return model.activate(x, "l2_gelu", n)
        case "softmax":
            return model.activate(x, "softmax", n)
        case _:
            return x


@given(any_map, st.integers(2, 5), st.integers(1, 6), st.sampled_from(sorted(OPERATIONS)), seeds)
def test_maps_commute_as_predicted(name: str, old: int, more: int, admits: Admits, seed: int) -> None:
    """f(E x) = E f(x) exactly where AxisMap.commutes says so, with the factor n counting copies."""
    m = MAPS[name](old, old + more, generator(seed))
    x = normal(8, old, seed=seed)
    worst = 0.0
    for operation in OPERATIONS[admits]:
        after = operate(operation, x @ m.expand.T, old * m.multiplicity)
        before = operate(operation, x, float(old)) @ m.expand.T
        worst = max(worst, (after - before).abs().max().item())
    assert (worst < 1e-10) == m.commutes(admits), (worst, name, admits)


def test_a_pencil_case() -> None:
    """Two units to three by copying the first: rows of a writer are copied, columns of a reader shared.

    E = [[1, 0], [0, 1], [1, 0]], C = [[1/2, 0, 1/2], [0, 1, 0]]. A writer [[1, 2], [3, 4]] becomes E W: its third row
    is the first again. A reader [[1, 2], [3, 4]] becomes W C: its first column 1, 3 is halved and stands twice.
    """
    own = {FFN: maps.copy([0, 1, 0], 2)}
    w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    assert axes.grow(w, labelled(3, 2), own).tolist() == [[1, 2], [3, 4], [1, 2]]
    assert axes.grow(w, labelled(3, 2, "residual ffn*"), own).tolist() == [[0.5, 2, 0.5], [1.5, 4, 1.5]]
    assert axes.transport(w, labelled(3, 2), own).tolist() == [[0.5, 1], [3, 4], [0.5, 1]]


def test_maps_that_are_none_are_refused() -> None:
    eye = torch.eye(3, dtype=torch.float64)
    with pytest.raises(ValueError, match="left inverse"):
        AxisMap(eye, 2 * eye)
    with pytest.raises(ValueError, match="new >= old"):
        AxisMap(eye[:2], eye[:, :2])
    with pytest.raises(ValueError, match="copied nowhere"):
        maps.copy([0, 0, 2], 3)


def test_isometries_are_haar() -> None:
    """Over many draws the columns have mean zero and the entries the variance (new/old)/new of a uniform direction."""
    draws = torch.stack([maps.isometry(2, 4, generator(seed)).expand for seed in range(4000)])
    error = 4 * (draws.std() / math.sqrt(4000)).item()
    assert draws.mean(0).abs().max() < error
    assert draws.square().mean(0).sub(0.5).abs().max() < 4 * error
    assert not torch.equal(draws[0], draws[1])


@given(st.integers(1, 5), st.integers(0, 6))
def test_inserted_layers_keep_every_old_one(old: int, more: int) -> None:
    layers = maps.insert(old, old + more)
    assert layers.exact
    assert len(layers.muted) == more
    assert maps.stack(old, old + more).source == tuple(i % old for i in range(old + more))
    assert not LayerMap(source=(0, 0)).exact
