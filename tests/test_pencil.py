"""Every growth method on a model so small that a pencil follows it: numbers worked by hand, none by the code.

Models have one layer and one head, and the weights that a case leaves out are zero. W is (out, in): a feed-forward
layer is `ffn/keys` (ffn, residual), then `ffn/values` (residual, ffn). Where a method draws which unit to copy, the
case works out every draw, and twenty seeds must show these outcomes and no other; where it adds a fresh
initialisation R, the case hands it R. Published code that deviates from its paper is named where both forms are shown.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from test_growth import grow, make
from torch import Generator, Tensor

from growbench import axes, maps, model, plugins
from growbench.axes import AxisMap
from growbench.checkpoint import Checkpoint
from growbench.labels import Axis, parse
from growbench.parametrization import Parametrization
from growbench.shape import Shape
from growbench.state import State
from growbench.strategies.ligo import materialised
from growbench.strategies.orthogonal import orthogonal_rows
from growbench.strategy import Probe, Strategy

TINY = Shape(layers=1, residual=2, heads=1, key=2, value=1, ffn=2, nonlinearity="gelu", vocab=2, context=2)
RESIDUAL = Axis(name="residual", admits="isometry")
FFN = Axis(name="ffn", layer=0, admits="selection")
ROOT2, ROOT3 = 1.4142136, 1.7320508


def tensor(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def same(actual: Tensor, expected: object) -> None:
    """Equal in shape, and in value to six decimals."""
    torch.testing.assert_close(actual, tensor(expected), atol=2e-6, rtol=0)


def state(shape: Shape, **weights: object) -> State:
    """A state with these weights, others zero. `ffn_keys` is that of layer 0, `ffn_keys_1` that of layer 1."""
    given = {}
    for name, weight in shape.weights.items():
        key = weight.part.replace("/", "_") + (f"_{weight.layer}" if weight.layer else "")
        own = weights.pop(key, None)
        given[name] = torch.zeros(weight.sizes, dtype=torch.float64) if own is None else tensor(own).view(weight.sizes)
    assert not weights, f"no such weights: {sorted(weights)}"
    norms = {str(a): float(n) for a, n in shape.axes.items() if a.admits == "even"}
    return State(shape=shape, scaling=Parametrization(name="mup", base=shape), weights=given, norms=norms)


def grown(name: str, source: State, seed: int = 0, parameters: Mapping[str, Any] | None = None, **sizes: Any) -> State:
    """The state that a strategy grows `source` to, at these sizes."""
    return grow(make(name, dict(parameters or {})), source, replace(source.shape, **sizes), seed).state


def handed(name: str, parameters: Mapping[str, Any], **fresh: object) -> Strategy:
    """A strategy whose fresh initialisation of the parts named is handed to it; that of others is zero."""
    base = plugins.load("strategy", name)

    def fill(self: Strategy, weight: Any, grown: Tensor, grown_maps: axes.Maps, drawn: Tensor) -> Tensor:
        part = weight.part.replace("/", "_")
        own = tensor(fresh[part]).view(weight.sizes) if part in fresh else torch.zeros_like(drawn)
        out: Tensor = base.fill(self, weight, grown, grown_maps, own)
        return out

    made: Strategy = type("Handed", (base,), {"fill": fill})(**parameters)
    return made


def outcomes(growth: Callable[[int], State], *parts: str) -> set[str]:
    """The distinct values, to four decimals, that weights take over twenty seeds."""
    return {str(tuple(growth(seed).weights[p].round(decimals=4).tolist() for p in parts)) for seed in range(20)}


# Copies


def test_net2net_divides_readers_by_their_counts() -> None:
    """Two ffn units to four: each of the two new ones copies a or b, so there are four outcomes.

    Rows of keys are copied: a = (1, 2, 3), b = (4, 5, 6). Columns of values, (6, 18, 30) of a and (12, 24, 36) of b,
    are divided by the count. Of a thrice, b once: 6/3 = 2, 18/3 = 6, 30/3 = 10, and b's column stays.
    """
    shape = replace(TINY, residual=3)
    source = state(shape, ffn_keys=[[1, 2, 3], [4, 5, 6]], ffn_values=[[6, 12], [18, 24], [30, 36]])
    a, b = [1.0, 2.0, 3.0], [4.0, 5.0, 6.0]
    assert outcomes(
        lambda seed: grown("net2net", source, seed, {"noise": 0.0}, ffn=4), "0/ffn/keys", "0/ffn/values"
    ) == {
        str(([a, b, a, a], [[2.0, 12.0, 2.0, 2.0], [6.0, 24.0, 6.0, 6.0], [10.0, 36.0, 10.0, 10.0]])),
        str(([a, b, a, b], [[3.0, 6.0, 3.0, 6.0], [9.0, 12.0, 9.0, 12.0], [15.0, 18.0, 15.0, 18.0]])),
        str(([a, b, b, a], [[3.0, 6.0, 6.0, 3.0], [9.0, 12.0, 12.0, 9.0], [15.0, 18.0, 18.0, 15.0]])),
        str(([a, b, b, b], [[6.0, 4.0, 4.0, 4.0], [18.0, 8.0, 8.0, 8.0], [30.0, 12.0, 12.0, 12.0]])),
    }


def test_net2net_weights_uneven_copies_on_the_residual() -> None:
    """Residual 2 to 3, x = (2, 4): copies of a unit are times sqrt(D/d) / sqrt(count), sqrt(3/2) once, sqrt(3/4) twice.

    Copying the first: (2 sqrt(3/4), 4 sqrt(3/2), 2 sqrt(3/4)) = (1.7321, 4.8990, 1.7321). Its mean square is
    (3 + 24 + 3) / 3 = 10, as before, (4 + 16) / 2. A reader (1, 2) is divided by (D/d) = 3/2 after the same weights:
    (0.5774, 1.6330, 0.5774), and reads 1 + 8 + 1 = 10 of it, as before, 2 + 8.
    """
    source = state(TINY, embed=[[2, 4], [0, 0]], ffn_keys=[[1, 2], [0, 0]])
    zero = [0.0, 0.0, 0.0]
    assert outcomes(lambda seed: grown("net2net", source, seed, {"noise": 0.0}, residual=3), "embed", "0/ffn/keys") == {
        str(([[1.7321, 4.899, 1.7321], zero], [[0.5774, 1.633, 0.5774], zero])),
        str(([[2.4495, 3.4641, 3.4641], zero], [[0.8165, 1.1547, 1.1547], zero])),
    }


def test_net2net_noise_cancels_between_copies() -> None:
    """One ffn unit to two, values (6, 18): 3 and 9 for each, plus and minus half the difference of R's two columns.

    R = ((1, 0), (2, 8)): (1 - 0) / 2 = 1/2 and (2 - 8) / 2 = -3. At noise 2 twice that. Keys, which are written,
    receive none: noise there, which the paper has, would change the function.
    """
    source = state(replace(TINY, ffn=1), ffn_keys=[[1, 2]], ffn_values=[[6], [18]])
    for noise, values in ((1.0, [[3.5, 2.5], [6, 12]]), (2.0, [[4, 2], [3, 15]])):
        strategy = handed("net2net", {"noise": noise}, ffn_values=[[1, 0], [2, 8]], ffn_keys=[[5, 6], [7, 8]])
        found = grow(strategy, source, replace(source.shape, ffn=2), 0).state.weights
        same(found["0/ffn/values"], values)
        same(found["0/ffn/keys"], [[1, 2], [1, 2]])


def test_fpi_copies_without_weights_or_noise() -> None:
    """Residual 2 to 3 as published: x = (2, 4) becomes (2, 4, 2) or (2, 4, 4), a reader (6, 12) is divided by counts.

    (3, 12, 3) reads 6 + 48 + 6 = 60 as before, 12 + 48; but the mean square is 24/3 = 8, not 10, and under the norm
    the function changes. With `weighted` the copies are those of Net2Net above, and it does not. One map serves every
    weight: the published code draws one for each block, and its residual units come apart.
    """
    source = state(TINY, embed=[[2, 4], [0, 0]], ffn_keys=[[6, 12], [0, 0]])
    zero, parts = [0.0, 0.0, 0.0], ("embed", "0/ffn/keys")
    assert outcomes(lambda seed: grown("fpi", source, seed, residual=3), *parts) == {
        str(([[2.0, 4.0, 2.0], zero], [[3.0, 12.0, 3.0], zero])),
        str(([[2.0, 4.0, 4.0], zero], [[6.0, 6.0, 6.0], zero])),
    }
    assert outcomes(lambda seed: grown("fpi", source, seed, {"weighted": True}, residual=3), *parts) == {
        str(([[1.7321, 4.899, 1.7321], zero], [[3.4641, 9.798, 3.4641], zero])),
        str(([[2.4495, 3.4641, 3.4641], zero], [[4.899, 6.9282, 6.9282], zero])),
    }


def test_aki_takes_new_rows_from_the_layer_above() -> None:
    """Two layers, one ffn unit to two, one head to two: new rows from layer 1, output columns halved in place.

    keys (1, 2) below and (3, 4) above: below ((1, 2), (3, 4)), above ((3, 4), (3, 4)), as the top layer has none above.
    values (6, 18) below: ((3, 3), (9, 9)); (2, 4) above: ((1, 1), (2, 2)). The value rows of the heads likewise.
    FPI differs below alone: ((1, 2), (1, 2)).
    """
    shape = replace(TINY, layers=2, ffn=1)
    below = {"ffn_keys": [[1, 2]], "ffn_values": [[6], [18]], "v": [[5, 6]], "o": [[2], [4]]}
    above = {"ffn_keys_1": [[3, 4]], "ffn_values_1": [[2], [4]], "v_1": [[7, 8]], "o_1": [[8], [6]]}
    source = state(shape, **below, **above)
    found = grown("aki", source, ffn=2, heads=2).weights
    same(found["0/ffn/keys"], [[1, 2], [3, 4]])
    same(found["1/ffn/keys"], [[3, 4], [3, 4]])
    same(found["0/ffn/values"], [[3, 3], [9, 9]])
    same(found["1/ffn/values"], [[1, 1], [2, 2]])
    same(found["0/v"], [[[5, 6]], [[7, 8]]])
    same(found["0/o"], [[[1], [1]], [[2], [2]]])
    same(found["1/o"], [[[4], [4]], [[3], [3]]])
    same(grown("fpi", source, ffn=2, heads=2).weights["0/ffn/keys"], [[1, 2], [1, 2]])


def test_hyperclone_tiles_and_divides_by_what_is_read_twice() -> None:
    """Residual 3 to 6, ffn 2 to 4, one head to two: W' = tile(W) / 2, for a weight reads a doubled axis each time.

    The embedding, which reads none, is tiled undivided. So is the readout here: the published code divides it by 2;
    under muP that division is the logits' scale, which falls from 1 to 1/2.
    """
    source = state(
        replace(TINY, residual=3),
        embed=[[1, 2, 3], [4, 5, 6]],
        v=[[2, 4, 6]],
        o=[[8], [2], [6]],
        ffn_keys=[[2, 4, 6], [8, 10, 12]],
        head=[[1, 2, 3], [4, 5, 6]],
    )
    clone = grown("hyperclone", source, residual=6, ffn=4, heads=2)
    same(clone.weights["embed"], [[1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6]])
    same(clone.weights["0/v"], [[[1, 2, 3, 1, 2, 3]], [[1, 2, 3, 1, 2, 3]]])
    same(clone.weights["0/o"].flatten(1), [[4, 4], [1, 1], [3, 3], [4, 4], [1, 1], [3, 3]])
    same(clone.weights["0/ffn/keys"], 2 * [[1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6]])
    same(clone.weights["head"], [[1, 2, 3, 1, 2, 3], [4, 5, 6, 4, 5, 6]])
    assert clone.model().logit_scale == 0.5


def test_hyperclone_noise_is_plus_and_minus() -> None:
    """ffn 2 to 4 at 10 dB, values all 2: a block W/2 of ones, and N and -N with mean N^2 = 1 / 10, so N = 0.3162.

    R = ((3, -3, 0, 0), (3, 3, 0, 0)): half the difference of its two blocks, ((1.5, -1.5), (1.5, 1.5)), sets the signs.
    The published code scales each block's N to this power exactly; here one factor for the whole weight makes it so in
    expectation, and exactly for an R like this one. The default, no decibels, adds none.
    """
    source = state(TINY, ffn_values=[[2, 2], [2, 2]])
    drawn, target = [[3, -3, 0, 0], [3, 3, 0, 0]], replace(TINY, ffn=4)
    noisy = grow(handed("hyperclone", {"snr_db": 10.0}, ffn_values=drawn), source, target, 0).state
    up, down = 1.3162278, 0.6837722
    same(noisy.weights["0/ffn/values"], [[up, down, down, up], [up, up, down, down]])
    quiet = grow(handed("hyperclone", {}, ffn_values=drawn), source, target, 0).state
    same(quiet.weights["0/ffn/values"], [[1, 1, 1, 1], [1, 1, 1, 1]])


def test_lemon_splits_readers_unevenly() -> None:
    """ffn 2 to 5: units a b a b a, D_k = R_k - (sum R - W) / K.

    First row, W = (6, 4), R = (1, 2, 2, 4, 6). Of a: R = 1, 2, 6, (9 - 6) / 3 = 1, so 0, 1, 5, of sum 6. Of b: R = 2,
    4, (6 - 4) / 2 = 1, so 1, 3, of sum 4. Second row, W = (3, 8), R = (0, 1, 0, 1, 0): a (0 - 3) / 3 = -1, so 1, 1, 1;
    b (2 - 8) / 2 = -3, so 4, 4.
    """
    source = state(TINY, ffn_keys=[[1, 2], [3, 4]], ffn_values=[[6, 4], [3, 8]])
    strategy = handed("lemon", {}, ffn_values=[[1, 2, 2, 4, 6], [0, 1, 0, 1, 0]])
    found = grow(strategy, source, replace(TINY, ffn=5), 0).state.weights
    same(found["0/ffn/values"], [[0, 1, 1, 3, 5], [1, 4, 1, 4, 1]])
    same(found["0/ffn/keys"], [[1, 2], [3, 4], [1, 2], [3, 4], [1, 2]])


def test_lemon_fills_the_residual_with_whole_copies() -> None:
    """Residual 2 to 5: x = (2, 4) twice, one silent unit; eta^2 = floor(D/d) d/D = 4/5.

    LEMON's gains are times eta. These models have none, so the stream is divided by it instead, eta^-1 = 1.1180:
    (2.2361, 4.4721, 2.2361, 4.4721, 0), of mean square (5 + 20 + 5 + 20) / 5 = 10 as before. A reader (1, 2) becomes
    (1, 2) eta / 2 twice, 0.4472 and 0.8944; what it reads of the silent unit is free: R's 7.
    """
    source = state(TINY, embed=[[2, 4], [0, 0]], ffn_keys=[[1, 2], [0, 0]])
    strategy = handed("lemon", {}, ffn_keys=[[0, 0, 0, 0, 7], [0, 0, 0, 0, 0]])
    found = grow(strategy, source, replace(TINY, residual=5), 0).state.weights
    same(found["embed"][0], [2.2360680, 4.4721360, 2.2360680, 4.4721360, 0])
    same(found["0/ffn/keys"][0], [0.4472136, 0.8944272, 0.4472136, 0.8944272, 7])


# Pads and rotations


def test_zero_pad_plain_and_scaled() -> None:
    """Residual 2 to 8. Scaled by sqrt(8/2) = 2: x = (2, 4) becomes (4, 8, 0, ...), of mean square 80/8 = 10 as before.

    Its reader (6, 10) is halved. Plain: (2, 4, 0, ...), of mean square 20/8, and a reader that stays.
    """
    source = state(TINY, embed=[[2, 4], [0, 0]], ffn_keys=[[6, 10], [0, 0]])
    silent = 6 * [0]
    for scaled, x, reader in ((True, [4, 8], [3, 5]), (False, [2, 4], [6, 10])):
        found = grow(handed("zero_pad", {"scaled": scaled}), source, replace(TINY, residual=8), 0).state.weights
        same(found["embed"], [x + silent, [0, 0, *silent]])
        same(found["0/ffn/keys"], [reader + silent, [0, 0, *silent]])


def test_zero_pad_reads_at_random_and_writes_nothing() -> None:
    """A new ffn unit and a new head: input rows from R, output columns zero. A new residual unit: the other way round.

    Under the norm whatever is written to a new residual unit would be heard, so it is silent, and is read by R.
    `two_sided` leaves both zero.
    """
    source = state(TINY, embed=[[2, 4], [6, 8]], ffn_keys=[[1, 2], [3, 4]], ffn_values=[[5, 6], [7, 8]], o=[[5], [6]])
    drawn = {
        "ffn_keys": [[9, 9], [9, 9], [8, 9]],
        "ffn_values": 2 * [[9, 9, 9]],
        "v": [[[9, 9]], [[8, 7]]],
        "o": 4 * [9],
    }
    strategy, target = handed("zero_pad", {}, **drawn), replace(TINY, ffn=3, heads=2)
    found = grow(strategy, source, target, 0).state.weights
    same(found["0/ffn/keys"], [[1, 2], [3, 4], [8, 9]])
    same(found["0/ffn/values"], [[5, 6, 0], [7, 8, 0]])
    same(found["0/v"], [[[0, 0]], [[8, 7]]])
    same(found["0/o"].flatten(1), [[5, 0], [6, 0]])
    strategy = handed("zero_pad", {"two_sided": True}, **drawn)
    same(grow(strategy, source, target, 0).state.weights["0/ffn/keys"], [[1, 2], [3, 4], [0, 0]])
    drawn = {"embed": 2 * [[9, 9, 9]], "ffn_keys": [[9, 9, 8], [9, 9, 7]]}
    strategy = handed("zero_pad", {"scaled": False}, **drawn)
    found = grow(strategy, source, replace(TINY, residual=3), 0).state.weights
    same(found["embed"], [[2, 4, 0], [6, 8, 0]])
    same(found["0/ffn/keys"], [[1, 2, 8], [3, 4, 7]])


def test_random_units_are_heard() -> None:
    """The control: R in the new rows and in the new columns, so that the new unit writes 9 gelu(8 x1 + 9 x2)."""
    source = state(TINY, ffn_keys=[[1, 2], [3, 4]], ffn_values=[[5, 6], [7, 8]])
    strategy = handed("random", {}, ffn_keys=[[1, 1], [1, 1], [8, 9]], ffn_values=2 * [[1, 1, 9]])
    found = grow(strategy, source, replace(TINY, ffn=3), 0).state.weights
    same(found["0/ffn/keys"], [[1, 2], [3, 4], [8, 9]])
    same(found["0/ffn/values"], [[5, 6, 9], [7, 8, 9]])


def test_orthogonal_by_a_rotation_of_45_degrees() -> None:
    """E = ((1, -1), (1, 1)) / sqrt(2), C = E' d/D = E', as d = D = 2.

    A writer ((1, 2, 3), (4, 5, 6)) becomes ((-3, -3, -3), (5, 7, 9)) / sqrt(2). A reader ((1, 2), (3, 4), (5, 6))
    becomes ((1 - 2, 1 + 2), (3 - 4, 3 + 4), (5 - 6, 5 + 6)) / sqrt(2). Reader times writer is what it was.
    """
    turn = tensor([[0.7071067811865476, -0.7071067811865476], [0.7071067811865476, 0.7071067811865476]])
    own = {RESIDUAL: AxisMap(turn, turn.T)}
    named = {"residual": (RESIDUAL, 2), "ffn": (FFN, 3)}
    writer = parse("residual ffn*", part="w", axes=named)
    reader = parse("ffn residual*", part="w", axes=named)
    w = axes.grow(tensor([[1, 2, 3], [4, 5, 6]]), writer, own)
    same(w, [[-3 / ROOT2, -3 / ROOT2, -3 / ROOT2], [5 / ROOT2, 7 / ROOT2, 9 / ROOT2]])
    r = axes.grow(tensor([[1, 2], [3, 4], [5, 6]]), reader, own)
    same(r, [[-1 / ROOT2, 3 / ROOT2], [-1 / ROOT2, 7 / ROOT2], [-1 / ROOT2, 11 / ROOT2]])
    same(r @ w, [[9, 12, 15], [19, 26, 33], [29, 40, 51]])


def test_orthogonal_spreads_one_unit_over_two() -> None:
    """Residual 1 to 2 by the 45 degree line, E = sqrt(2) (1, 1) / sqrt(2) = (1, 1), C = E' d/D = (1/2, 1/2).

    x = 3 becomes (3, 3), of the same mean square 9; a reader 4 becomes (2, 2), and reads 6 + 6 = 12, as before.
    """
    own = {RESIDUAL: AxisMap(tensor([[1], [1]]), tensor([[0.5, 0.5]]))}
    shape = replace(TINY, residual=1)
    wide = state(shape, embed=[[3], [-3]], ffn_keys=[[4], [8]]).widen(replace(shape, residual=2), own)
    same(wide.weights["embed"], [[3, 3], [-3, -3]])
    same(wide.weights["0/ffn/keys"], [[2, 2], [4, 4]])


def test_orthogonal_maps_are_isometries_of_the_norm() -> None:
    """Residual 2 to 3, drawn: E'E = (3/2) I, and C = E' times d/D = 2/3; `value` likewise, heads and ffn padded."""
    strategy, rng = make("orthogonal", {}), Generator().manual_seed(0)
    m = strategy.widen(RESIDUAL, 2, 3, rng)
    same(m.expand.T @ m.expand, [[1.5, 0], [0, 1.5]])
    same(m.collapse, (m.expand.T / 1.5).tolist())
    assert bool((m.expand != 0).all())
    same(strategy.widen(FFN, 2, 3, rng).expand, [[1, 0], [0, 1], [0, 0]])


def test_orthogonal_units_are_orthogonal_to_the_old() -> None:
    """Old rows (3, 0, 0), (0, 1, 0) of mean length 2: a new one from (5, 6, 7) is (0, 0, 2) or (0, 0, -2).

    Space is then used up, and the next one begins anew: (3, 4, 0) of length 5 becomes (1.2, 1.6, 0).
    As an ffn layer: row in, silent out.
    """
    found = orthogonal_rows(tensor([[3, 0, 0], [0, 1, 0]]), tensor([[5, 6, 7], [3, 4, 0]]))
    same(found.abs(), [[0, 0, 2], [1.2, 1.6, 0]])
    source = state(replace(TINY, residual=3), ffn_keys=[[3, 0, 0], [0, 1, 0]], ffn_values=3 * [[1, 2]])
    strategy = handed("orthogonal", {}, ffn_keys=[[1, 1, 1], [1, 1, 1], [5, 6, 7]])
    weights = grow(strategy, source, replace(source.shape, ffn=3), 0).state.weights
    same(weights["0/ffn/keys"].abs(), [[3, 0, 0], [0, 1, 0], [0, 0, 2]])
    same(weights["0/ffn/values"], 3 * [[1, 2, 0]])


# Parameter tokens


PATTENTION = replace(TINY, nonlinearity="l2_gelu", placement="everywhere", tokens=2)
LAYER: dict[str, object] = {"ffn_keys": [[3, 0], [0, 4]], "ffn_values": [[1, 2], [3, 4]]}


def written(grown: State) -> Tensor:
    """What the feed-forward Pattention layer writes for x = (1, 1)."""
    out: Tensor = grown.model().pattention("0/ffn", "0/ffn", tensor([[1, 1]])).detach()
    return out[0]


def test_zero_tokens_with_zero_keys() -> None:
    """Two tokens to four. Keys (3, 0), (0, 4) score x = (1, 1) with (3, 4), of length 5; values (1, 3), (2, 4).

    sqrt(2) (3, 4) / 5 = (0.8485, 1.1314); gelu(z) = z P(z) with the normal distribution P = 0.80193, 0.87105 gives
    (0.68046, 0.98548), and y = (0.68046 + 2 0.98548, 3 0.68046 + 4 0.98548) = (2.65142, 5.98330).
    Zero keys score (3, 4, 0, 0), still of length 5. `held` keeps sqrt(2), and y. The published code counts all four
    tokens (`rescaled`): sqrt(4) (3, 4) / 5 = (1.2, 1.6), P = 0.88493, 0.94520, gelu (1.06192, 1.51232), and
    y = (4.08656, 9.23503). The default is the paper's zero keys with the factor held, so that they change nothing.
    """
    source, drawn = state(PATTENTION, **LAYER), {"ffn_keys": 4 * [[9, 9]], "ffn_values": 2 * [[9, 9, 5, 6]]}
    same(written(source), [2.6514208, 5.9833000])
    target = replace(PATTENTION, tokens=4, ffn=4)
    for factor, y in (("held", [2.6514208, 5.9833000]), ("rescaled", [4.0865587, 9.2350337])):
        found = grow(handed("zero_tokens", {"factor": factor}, **drawn), source, target, 0).state
        same(found.weights["0/ffn/keys"], [[3, 0], [0, 4], [0, 0], [0, 0]])
        same(found.weights["0/ffn/values"], [[1, 2, 5, 6], [3, 4, 5, 6]])
        same(written(found), y)
    assert make("zero_tokens", {}) == make("zero_tokens", {"factor": "held", "zero": "keys"})


def test_zero_tokens_with_the_random_keys_of_the_published_code() -> None:
    """The paper says zero keys, the published code leaves them random (`zero: values`): here (5, 7) and (0, 0).

    The code's new values are random too; zero ones show what the keys alone do through the norm. Scores are
    (3, 4, 12, 0), of length 13.
    `held`: sqrt(2) (3, 4) / 13 = (0.32636, 0.43514), P = 0.62792, 0.66827, gelu (0.20493, 0.29079), so
    y = (0.78651, 1.77795). `rescaled`: sqrt(4) (3, 4) / 13 = (0.46154, 0.61538), P = 0.67779, 0.73085, gelu
    (0.31283, 0.44975), y = (1.21234, 2.73750). Neither is the old (2.65142, 5.98330).
    """
    source, drawn = state(PATTENTION, **LAYER), {"ffn_keys": [[9, 9], [9, 9], [5, 7], [0, 0]]}
    target = replace(PATTENTION, tokens=4, ffn=4)
    for factor, y in (("held", [0.7865130, 1.7779530]), ("rescaled", [1.2123352, 2.7374982])):
        strategy = handed("zero_tokens", {"factor": factor, "zero": "values"}, **drawn, ffn_values=2 * [[9, 9, 9, 9]])
        found = grow(strategy, source, target, 0).state
        same(found.weights["0/ffn/keys"], [[3, 0], [0, 4], [5, 7], [0, 0]])
        same(found.weights["0/ffn/values"], [[1, 2, 0, 0], [3, 4, 0, 0]])
        same(written(found), y)


# Low rank


def test_lora_adds_up_times_down() -> None:
    """W = ((1, 2), (3, 4)) writes (3, 7) for x = (1, 1), and still does: `up` is zero, and W is frozen.

    With up = (2, 0)' and down = (1, 1) it is W + ((2, 2), (0, 0)) = ((3, 4), (3, 4)), and writes (7, 7).
    """
    source = state(TINY, ffn_keys=[[1, 2], [3, 4]])
    strategy = make("lora", {"rank": 1})
    growth = grow(strategy, source, replace(TINY, ffn=9), 0)
    low, x = growth.state, tensor([1, 1])
    assert low.shape == replace(TINY, rank=1)
    same(low.weights["0/ffn/keys"], [[1, 2], [3, 4]])
    same(low.weights["0/ffn/keys/up"], [[0], [0]])
    assert bool((low.weights["0/ffn/keys/down"] != 0).all())
    same(low.model().multiply("0/ffn/keys", x).detach(), [3, 7])
    added = {"0/ffn/keys/up": tensor([[2], [0]]), "0/ffn/keys/down": tensor([[1, 1]])}
    same(replace(low, weights=dict(low.weights) | added).model().multiply("0/ffn/keys", x).detach(), [7, 7])
    assert set(growth.frozen) == set(source.weights)
    assert all(bool(mask.all()) for mask in growth.frozen.values())


# Depth


def scalar(*layers: tuple[int, int]) -> State:
    """Layers of 1 x 1: a key and a value each; a stream of one number, of which the norm leaves the sign."""
    shape = replace(TINY, layers=len(layers), residual=1, ffn=1, nonlinearity="relu")
    named = {
        f"ffn_{part}" + (f"_{i}" if i else ""): [[p]]
        for i, w in enumerate(layers)
        for part, p in zip(("keys", "values"), w, strict=True)
    }
    return state(shape, embed=[[1], [-1]], head=[[1], [2]], **named)


@pytest.mark.parametrize(
    ("name", "parameters", "old", "keys"),
    [
        ("stack", {}, 2, [1, 2, 1, 2]),
        ("stack", {}, 3, [1, 2, 3, 1]),
        ("interleave", {}, 2, [1, 1, 2, 2]),
        ("gradual_stack", {}, 3, [1, 2, 3, 2, 3]),
        ("gradual_stack", {"where": "middle"}, 3, [1, 2, 2, 3]),
        ("solar", {}, 4, [1, 2, 3, 2, 3, 4]),
        ("zero_depth", {}, 2, [1, 1, 2, 2]),
    ],
)
def test_depth_repeats_layers_of_one_number(name: str, parameters: dict[str, Any], old: int, keys: list[int]) -> None:
    """Layer i has the key i; read the keys of the deeper model. Values, ten times the key, follow, or are muted."""
    deep = grown(name, scalar(*((i, 10 * i) for i in range(1, old + 1))), parameters=parameters, layers=len(keys))
    assert [deep.weights[f"{i}/ffn/keys"].item() for i in range(len(keys))] == keys
    values = [deep.weights[f"{i}/ffn/values"].item() for i in range(len(keys))]
    assert values == ([10, 0, 20, 0] if name == "zero_depth" else [10 * key for key in keys])


def test_identity_draws_new_layers_that_write_nothing() -> None:
    """Two layers to four: old, new, old, new. What the new ones read is drawn, what they write is zero."""
    deep = grown("identity", scalar((1, 10), (2, 20)), layers=4)
    keys, values = ([deep.weights[f"{i}/ffn/{part}"].item() for i in range(4)] for part in ("keys", "values"))
    assert values == [10, 0, 20, 0]
    assert (keys[0], keys[2]) == (1, 2)
    assert keys[1] not in (0, 1, 2)
    assert keys[3] not in (0, 1, 2)


@pytest.mark.parametrize(
    ("name", "sign"), [("stack", -1), ("interleave", 1), ("gradual_stack", 1), ("identity", 1), ("zero_depth", 1)]
)
def test_depth_by_the_sign_of_a_stream(name: str, sign: int) -> None:
    """Layer A adds -4 to what is positive, B adds 5 to what is negative. x = 1: A gives -3, B gives 2, logits (1, 2).

    A third layer: stack is A B A, 1, -3, 2, -2: the sign turns. Interleave is A A B, 1, -3, -3, 2; gradual is A B B,
    1, -3, 2, 2; muted layers add 0. Readout (1, 2) times the sign.
    """
    source = scalar((1, -4), (-1, 5))
    for deep, expected in ((source, 1), (grown(name, source, layers=3), sign)):
        same(deep.model()(torch.tensor([[0]])).detach()[0, 0], [expected, 2 * expected])


# Learned and data-driven


def test_gradmax_takes_the_singular_vectors() -> None:
    """Bypass gradient M = ((0, 5), (1, 0)), (out, in), maps (0, 1) to 5 (1, 0) and (1, 0) to 1 (0, 1).

    So the largest singular value, 5, writes (1, 0). Columns of values (3, 0) and (0, 5) have mean length 4; half of it
    is 2: the new unit writes (2, 0) or (-2, 0), and reads nothing. A second one writes (0, 2) or (0, -2).
    """
    source = state(TINY, ffn_keys=[[1, 2], [3, 4]], ffn_values=[[3, 0], [0, 5]])
    base = plugins.load("strategy", "gradmax")
    bypass = tensor([[0, 5], [1, 0]])
    given = type("Given", (base,), {"bypass_gradients": lambda self, state, grown, probe: dict.fromkeys(grown, bypass)})
    for ffn, values, new in ((3, [[3, 0, 2], [0, 5, 0]], 1), (4, [[3, 0, 2, 0], [0, 5, 0, 2]], 2)):
        found = grow(given(), source, replace(TINY, ffn=ffn), 0).state.weights
        same(found["0/ffn/values"].abs(), values)
        same(found["0/ffn/keys"], [[1, 2], [3, 4], *new * [[0, 0]]])


ONE_TOKEN = state(
    replace(TINY, ffn=1), embed=[[1, 1], [0, 0]], head=[[1, 0], [0, 1]], ffn_keys=[[0, 0]], ffn_values=[[3], [4]]
)
"""A layer that writes nothing: the stream is x = (1, 1), as is its norm, the logits, and p = (1/2, 1/2). Where the next
token is 0 the gradient at the logits is (-1/2, 1/2); the norm passes what is orthogonal to x: it arrives as it is."""


def test_gradmax_measures_the_bypass() -> None:
    """One token, x = (1, 1), gradient at the layer's output g = (-1/2, 1/2), worked above.

    M = gelu'(0) g x' = 1/2 ((-1/2, -1/2), (1/2, 1/2)). Its one singular vector is (-1, 1) / sqrt(2); half the length of
    (3, 4) is 2.5: the new unit writes (-1.7678, 1.7678) or its opposite.
    """
    batch = torch.tensor([[0, 0]])
    strategy, target = make("gradmax", {"batches": 1}), replace(TINY, ffn=2)
    probe, own = Probe(lambda used: batch, 2), {FFN: maps.zero_pad(1, 2)}
    same(
        plugins.load("strategy", "gradmax")(batches=1).bypass_gradients(ONE_TOKEN, own, probe)[FFN],
        [[-0.25, -0.25], [0.25, 0.25]],
    )
    found = strategy.grow(ONE_TOKEN, target, probe, Generator().manual_seed(0)).state.weights
    new = found["0/ffn/values"][:, 1] * found["0/ffn/values"][1, 1].sign()
    same(new, [-1.7677670, 1.7677670])
    same(found["0/ffn/keys"], [[0, 0], [0, 0]])


def test_split_moves_along_the_most_negative_curvature() -> None:
    """One unit, w = (1, -1), x = (1, 1), so w x = 0 and it writes nothing; g = (-1/2, 1/2) as worked above.

    Values (1, -1): the loss falls as the unit's output rises, by g (1, -1) = -1, and gelu''(0) > 0: S = -c x x', lowest
    along v = (1, 1) / sqrt(2). Distance 1/2 of the length sqrt(2) of w makes e v = (1/2, 1/2). The halves read
    (1.5, -0.5) and (0.5, -1.5), in either order, and each writes (1/2, -1/2).
    """
    weights = dict(ONE_TOKEN.weights) | {"0/ffn/keys": tensor([[1, -1]]), "0/ffn/values": tensor([[1], [-1]])}
    batch, strategy = torch.tensor([[0, 0]]), make("split", {"distance": 0.5, "iterations": 40})
    probe, target = Probe(lambda used: batch, 40), replace(TINY, ffn=2)
    found = strategy.grow(replace(ONE_TOKEN, weights=weights), target, probe, Generator().manual_seed(0)).state.weights
    keys = found["0/ffn/keys"]
    same(keys[keys[:, 0].argsort()], [[0.5, -1.5], [1.5, -0.5]])
    same(found["0/ffn/values"], [[0.5, 0.5], [-0.5, -0.5]])


def test_ligo_is_e_w_e() -> None:
    """Residual 2 to 3 with B = (1/2, 1/2), ffn 2 to 3 with B = (1/4, 3/4), E = [I; B] for reading and for writing.

    keys ((1, 2), (3, 4)): a third row 1/4 (1, 2) + 3/4 (3, 4) = (2.5, 3.5), then a third column of each row's mean,
    1.5, 3.5, 3. Nothing is divided where it is read: LiGO does not preserve the function.
    """
    source = state(TINY, embed=[[2, 4], [6, 8]], ffn_keys=[[1, 2], [3, 4]])
    own = {RESIDUAL: tensor([[0.5, 0.5]]), FFN: tensor([[0.25, 0.75]])}
    found = materialised(source, replace(TINY, residual=3, ffn=3), own, {})
    same(found["0/ffn/keys"], [[1, 2, 1.5], [3, 4, 3.5], [2.5, 3.5, 3]])
    same(found["embed"], [[2, 4, 3], [6, 8, 7]])


def test_ligo_mixes_layers() -> None:
    """Keys 4 and 8 in two layers: a mix (3/4, 1/4) makes 3 + 2 = 5, (0, 1) copies the second."""
    source = scalar((4, 1), (8, 1))
    shape = replace(source.shape, layers=3)
    mixes = {w: tensor([0, 1]) for w in shape.weights.values() if w.layer is not None}
    mixes |= {shape.weights["2/ffn/keys"]: tensor([0.75, 0.25])}
    found = materialised(source, shape, {}, mixes)
    assert [found[f"{i}/ffn/keys"].item() for i in range(3)] == [8, 8, 5]


# Gradual


def test_msg_masks_the_norm() -> None:
    """x = (3, 4, 10), the third unit new, under masks of 0, 1/2 and 1: x m / sqrt(sum (x m)^2 / sum m).

    0: (3, 4, 0) / sqrt(25/2) = (0.8485, 1.1314, 0), as in the old model. 1/2: (3, 4, 5) / sqrt(50 / 2.5) =
    (0.6708, 0.8944, 1.1180). 1: (3, 4, 10) / sqrt(125/3) = (0.4648, 0.6197, 1.5492). The squares are of x m. MSG's
    own norm weights them by m, and so differs between 0 and 1 alone: at 1/2 it has sqrt((9 + 16 + 50) / 2.5).
    """
    x = tensor([3, 4, 10])
    for m, y in (
        (0.0, [0.8485281, 1.1313708, 0]),
        (0.5, [0.6708204, 0.8944272, 1.1180340]),
        (1.0, [0.4647580, 0.6196773, 1.5491933]),
    ):
        same(model.norm(x, tensor([1, 1, m])), y)


def test_msg_opens_its_masks_linearly() -> None:
    """A third ffn unit, hidden for 100 tokens from position 50: at 50 it counts 0, at 75 1/4, at 150 1."""
    source = state(TINY, ffn_keys=[[1, 0], [0, 1]], ffn_values=[[1, 0], [0, 1]])
    strategy = handed("msg", {"ramp_tokens": 100}, ffn_keys=3 * [[1, 0]], ffn_values=2 * [[0, 0, 8]])
    growth = grow(strategy, source, replace(TINY, ffn=3), 0)
    checkpoint = Checkpoint(state=growth.state, ramps=growth.ramps, ramp_start=50)
    same(checkpoint.multipliers(50)["0/ffn"], [1, 1, 0])
    same(checkpoint.multipliers(75)["0/ffn"], [1, 1, 0.25])
    assert checkpoint.multipliers(150) == {}
    same(growth.state.weights["0/ffn/values"], [[1, 0, 8], [0, 1, 8]])


def test_shrink_and_perturb() -> None:
    """W' = 0.4 pad(W) + R: keys ((5, 10), (15, 20)) become ((2, 4), (6, 8), (0, 0)), upon R or half of R."""
    source = state(TINY, ffn_keys=[[5, 10], [15, 20]])

    def keys(shrink: float, perturb: float) -> Tensor:
        chosen = {"shrink": shrink, "perturb": perturb}
        return grown("shrink_perturb", source, 1, chosen, ffn=3).weights["0/ffn/keys"]

    same(keys(0.4, 0), [[2, 4], [6, 8], [0, 0]])
    fresh = keys(0, 1)
    assert bool((fresh != 0).all())
    same(keys(0.4, 1) - fresh, [[2, 4], [6, 8], [0, 0]])
    same(keys(0.4, 0.5) - fresh / 2, [[2, 4], [6, 8], [0, 0]])


# Moments


def trained(shape: Shape, first: Mapping[str, object], second: Mapping[str, object]) -> State:
    m, v = ({n: tensor(t).view(shape.weights[n].sizes) for n, t in group.items()} for group in (first, second))
    return replace(state(shape), first=m, second=v, steps=dict.fromkeys(first, 7))


def test_copies_share_their_gradient() -> None:
    """One ffn unit to two: each copy's input row receives half the gradient, so m halves and v is quartered.

    The output columns are halved weights of copies that compute the same: each has the whole gradient, m and v stay.
    The count of steps stays.
    """
    shape = replace(TINY, ffn=1)
    m: dict[str, object] = {"0/ffn/keys": [[8, 4]], "0/ffn/values": [[3], [5]]}
    v: dict[str, object] = {"0/ffn/keys": [[16, 4]], "0/ffn/values": [[9], [25]]}
    wide = grown("net2net", trained(shape, m, v), ffn=2)
    same(wide.first["0/ffn/keys"], [[4, 2], [4, 2]])
    same(wide.second["0/ffn/keys"], [[4, 1], [4, 1]])
    same(wide.first["0/ffn/values"], [[3, 3], [5, 5]])
    same(wide.second["0/ffn/values"], [[9, 9], [25, 25]])
    assert wide.steps == {"0/ffn/keys": 7, "0/ffn/values": 7}


def test_a_scaled_pad_scales_gradients_inversely() -> None:
    """Residual 2 to 8, scale 2: a writer's weight doubles and its gradient halves, a reader the other way round.

    embed: m (6, 2) becomes (3, 1, 0, ...), v (36, 4) becomes (9, 1), and their mean 5 for the six new units: zero
    there, under a kept count of steps, would make their first updates too long. keys: m (6, 2) becomes (12, 4, 0, ...),
    v (36, 4) becomes (144, 16), mean 80. The readout averages: times 2 as a reader, and 2/8 of that: m (6, 2), (3, 1).
    """
    shape = replace(TINY, vocab=1, ffn=1)
    names = ("embed", "0/ffn/keys", "head")
    source = trained(shape, {n: [[6, 2]] for n in names}, {n: [[36, 4]] for n in names})
    wide = grown("zero_pad", source, residual=8)
    for name, m, v in zip(names, ([3, 1], [12, 4], [3, 1]), ([9, 1], [144, 16], [9, 1]), strict=True):
        same(wide.first[name], [m + 6 * [0]])
        same(wide.second[name], [v + 6 * [sum(v) / 2]])


def test_second_moments_of_a_rotation_are_positive() -> None:
    """Residual 1 to 2 by E = (1, 1), C = (1/2, 1/2): a writer's v 16 becomes (4, 4), a reader's stays 16, 16.

    By the 30 degree line, E = sqrt(2) (sqrt(3)/2, 1/2), C = E'/2: entries squared, a writer's 16 becomes (6, 2) and a
    reader's (24, 8).
    """
    shape = replace(TINY, residual=1, vocab=1, ffn=1)
    one: dict[str, object] = {"embed": [[4]], "0/ffn/keys": [[4]]}
    source = trained(shape, one, {"embed": [[16]], "0/ffn/keys": [[16]]})
    slope = tensor([[ROOT3 / ROOT2], [1 / ROOT2]])
    for expand, writer, reader in ((tensor([[1], [1]]), [4, 4], [16, 16]), (slope, [6, 2], [24, 8])):
        collapse = torch.linalg.pinv(expand)
        wide = source.widen(replace(shape, residual=2), {RESIDUAL: AxisMap(expand, collapse)})
        same(wide.second["embed"], [writer])
        same(wide.second["0/ffn/keys"], [reader])
