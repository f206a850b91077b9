"""The coordinate check: how large activations are, and how far steps of training move them, as a model grows wider.

    rms(activation) ~ width^slope,   rms(activation after k steps - activation before) ~ width^slope_change

The check of arXiv:2203.03466 (appendix D.1), parameter tokens an axis like any other. Once the width exceeds vocabulary
and batch, maximal update means slopes of 0, with two exceptions:

    logits before training    -1/2: the muP readout averages `width` independent terms. Their change has slope 0.
    inner sizes alone         up to +1/2 in the change, where heads, ffn or tokens grow and residual does not: n units
                              of initial size 1/sqrt(n) learn together, and residual is too narrow to keep them apart.

Under `standard` what reads a grown axis changes with slope 1 in the first step, logits with one between 1 and 3/2.
Narrower than vocabulary or batch, most logits of a token move by interference alone, with slopes down to -1/2; the one
that is trained on, of the next token, does not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import linregress
from torch import Generator, Tensor

from growbench import ledger, model, optimizer
from growbench.model import LanguageModel
from growbench.optimizer import Settings
from growbench.parametrization import Name, Parametrization
from growbench.shape import Shape
from growbench.state import initial

GROWN = ("residual", "heads", "ffn", "tokens")
"""Sizes that make up a model's width; key and value are those of one head."""
SIZES = ["rms", "rms_change"]

MULTIPLES, STEPS, SEEDS, TOKENS = (1, 2, 4), 3, (0, 1, 2, 3), 64
"""A study's check: widths, steps, seeds, tokens a step (one window at least). Slopes vary by what is drawn at the start
more than by what is read, so that several seeds on few tokens say more than one on many.
"""
SHARE = 0.02
"""What a study's check may cost, as a share of training the ladder's last rung."""
FREE, LIGHT = 5e9, 10_000_000
"""FLOPs, and weights of the widest model, that are nothing to save: well under a second, 160 MB."""


class Observed(LanguageModel):
    """A language model that also lets the scores of its units and of its attention be seen."""

    def observe(self, batch: Tensor) -> Mapping[str, Tensor]:
        """Every activation on a batch (B, T + 1), by layer/axis, or by axis where it has no layer.

        residual: the stream behind each layer; ffn, q_token ...: units after the nonlinearity; "ffn scores" ...: before
        it; head: what the heads hand to the output projection; "attention logits": of each position and one that it
        sees; logits; "next token's logit": of them, the one of the token that follows.
        """
        seen = self.activations = dict[str, Tensor]()
        with torch.no_grad():
            logits = self(batch[:, :-1])
        self.activations = None
        return seen | {"logits": logits, "next token's logit": logits.gather(-1, batch[:, 1:, None])}

    def attention(self, layer: int, x: Tensor) -> Tensor:
        if self.activations is not None:
            batch, length, _ = x.shape
            sizes = (batch, length, self.shape.at("heads", layer), self.shape.key)
            q, k = (self.project(layer, p, x).view(sizes).transpose(1, 2) for p in "qk")
            q, k = (model.rotate(z, self.cos[:length], self.sin[:length]) for z in (q, k))
            row, column = torch.tril_indices(length, length)
            self.see(f"{layer}/attention logits", (q @ k.mT * self.score_scale)[..., row, column])
        return super().attention(layer, x)

    def multiply(self, name: str, x: Tensor) -> Tensor:
        y, weight = super().multiply(name, x), self.shape.weights[name]
        if weight.part.endswith("/keys"):
            self.see(f"{weight.dims[0].axis} scores", y)
        return y


def multiplied(base: Shape, multiple: int, grown: Sequence[str] = GROWN) -> Shape:
    """The base with the sizes in `grown` `multiple` times as large."""
    sizes: dict[str, Any] = {name: tuple(size * multiple for size in base.per_layer(name)) for name in grown}
    if "residual" in grown:
        sizes["residual"] = base.residual * multiple
    return replace(base, **sizes)


def design(ladder: Sequence[Shape], budget: int) -> dict[str, Any]:
    """The check of a ladder's smallest rung, as JSON: what grows, and multiples, steps, windows a step and seeds.

    The sizes that the ladder widens grow, all where it widens none. A width beyond the first two is left out where the
    check would cost more than SHARE of the last rung's training for `budget` tokens, or need more memory than that.
    """
    base, last = ladder[0], ladder[-1]
    present = [name for name in GROWN if any(base.per_layer(name))]
    grown = [name for name in present if set(base.per_layer(name)) != set(last.per_layer(name))] or present
    windows = max(1, TOKENS // base.context)
    most = max(FREE, SHARE * budget * ledger.train_flops(last))

    def fits(multiples: Sequence[int]) -> bool:
        light = multiplied(base, multiples[-1], grown).params <= max(LIGHT, last.params)
        return light and flops(base, multiples, grown, windows, STEPS, len(SEEDS)) <= most

    count = max(n for n in range(2, len(MULTIPLES) + 1) if n == 2 or fits(MULTIPLES[:n]))
    found: dict[str, Any] = {"grown": grown, "multiples": list(MULTIPLES[:count])}
    return found | {"steps": STEPS, "windows": windows, "seeds": list(SEEDS)}


def flops(base: Shape, multiples: Sequence[int], grown: Sequence[str], windows: int, steps: int, seeds: int) -> float:
    """FLOPs of `measure`: after each step, and before the first, the first batch is run once more and looked at."""
    shapes = [multiplied(base, multiple, grown) for multiple in multiples]
    each = (steps * ledger.train_flops(shape) + (steps + 1) * ledger.forward_flops(shape) for shape in shapes)
    return seeds * windows * base.context * sum(each)


def measure(
    base: Shape,
    name: Name,
    batches: Sequence[Tensor],
    settings: Settings,
    *,
    architecture: str,
    multiples: Sequence[int] = (1, 2, 4, 8),
    grown: Sequence[str] = GROWN,
    seeds: Sequence[int] = (0, 1, 2),
    dtype: torch.dtype = torch.float32,
) -> pd.DataFrame:
    """Sizes of activations on the first batch, before training and after one step on each batch (B, T + 1) in turn.

    Columns architecture, parametrization, multiple, width (residual), axis, layer (missing for logits), steps, rms
    (root of the mean square over coordinates and seeds), rms_change (of the difference to step 0, missing there).
    """
    scaling, parts = Parametrization(name=name, base=base), []
    for multiple in multiples:
        shape = multiplied(base, multiple, grown)
        runs = [pd.DataFrame(_squares(shape, scaling, batches, settings, seed, dtype)) for seed in seeds]
        about: dict[str, Any] = {
            "architecture": architecture,
            "parametrization": name,
            "multiple": multiple,
            "width": shape.residual,
        }
        pooled = runs[0].assign(**about)
        pooled[SIZES] = np.sqrt(np.mean([run[SIZES].to_numpy("float64") for run in runs], axis=0))
        parts.append(pooled[[*about, "axis", "layer", "steps", *SIZES]])
    return pd.concat(parts, ignore_index=True).astype({"layer": "Int64"})


def _squares(
    shape: Shape,
    scaling: Parametrization,
    batches: Sequence[Tensor],
    settings: Settings,
    seed: int,
    dtype: torch.dtype,
) -> Iterator[dict[str, Any]]:
    """Mean squares of one model's activations and of their changes, before training and after every step."""
    state = initial(shape, scaling, Generator().manual_seed(seed), dtype)
    net = Observed(shape, state.weights, state.norms, scaling)
    trained, before = optimizer.build(state, net, settings), net.observe(batches[0])
    for steps in range(len(batches) + 1):
        if steps:
            trained.zero_grad()
            torch.autograd.backward(model.loss(net, batches[steps - 1]))
            trained.step()
        for name, value in net.observe(batches[0]).items():
            layer, _, axis = name.rpartition("/")
            where = {"axis": axis, "layer": int(layer) if layer else None, "steps": steps}
            change = (value - before[name]).square().mean().item() if steps else None
            yield where | {"rms": value.square().mean().item(), "rms_change": change}


def slopes(measured: pd.DataFrame) -> pd.DataFrame:
    """Least-squares slopes of log rms and log rms_change on log multiple, the layers of an axis pooled.

    Columns architecture, parametrization, axis, steps, slope, slope_change; missing where a size is zero or not finite.
    """
    keys = ["architecture", "parametrization", "axis", "steps"]
    found = []
    for key, rows in measured.groupby(keys, sort=False):
        slope, slope_change = (_slope(rows["multiple"], rows[size]) for size in SIZES)
        found.append((*key, slope, slope_change))
    return pd.DataFrame(found, columns=[*keys, "slope", "slope_change"])


def _slope(multiples: pd.Series, sizes: pd.Series) -> float:
    x, y = (found.to_numpy("float64", na_value=np.nan) for found in (multiples, sizes))
    if multiples.nunique() < 2 or not (np.isfinite(y) & (y > 0)).all():
        return float("nan")
    return float(linregress(np.log(x), np.log(y)).slope)
