"""Orthogonal projection: E = sqrt(D/d) Q with orthonormal columns; new units orthogonal to the old."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from growbench import axes, maps
from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Orthogonal(Strategy):
    """The residual stream rotated into the larger space by a Haar isometry; elsewhere new units orthogonal to the old.

    An axis with an elementwise nonlinearity admits selections only: its new units are silent, and their weights on the
    open side are orthonormal, orthogonal to the span of the old units' as far as the space has room, then among
    themselves, at the old ones' mean norm. The rotation is that of SliceGPT (arXiv:2401.15024), run backwards.
    units: `random` fills new units as zero_pad does, so that the two differ in the rotation alone.
    """

    units: Literal["orthogonal", "random"] = "orthogonal"

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return maps.isometry(old, new, rng) if axis.admits in ("isometry", "any") else maps.zero_pad(old, new)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        out = fresh.clone()
        for axis, m in grown_maps.items():
            if m.silent.any() and self.units == "orthogonal":
                rows, old = axes.rows(out, weight, axis), axes.rows(grown.double(), weight, axis)
                new = m.silent.repeat_interleave(len(rows) // m.new)
                rows[new] = orthogonal_rows(old[~new], rows[new])
        return out


def orthogonal_rows(old: Tensor, fresh: Tensor) -> Tensor:
    """Rows, as many as `fresh` (n, m), orthonormal and orthogonal to the rows of `old` (k, m) while the space has room.

    Then they begin anew, orthogonal among themselves; all at the mean norm of the old rows. `fresh` is the randomness.
    """
    u, s, _ = torch.linalg.svd(old.T, full_matrices=False)
    basis = u[:, s > 1e-9 * s.max()]
    rows = fresh[:0]
    while len(rows) < len(fresh):
        if basis.shape[1] == basis.shape[0]:
            basis = basis[:, :0]
        take = fresh[len(rows) :][: basis.shape[0] - basis.shape[1]].T
        q = torch.linalg.qr(take - basis @ (basis.T @ take)).Q
        basis, rows = torch.cat([basis, q], 1), torch.cat([rows, q.T])
    length: Tensor = old.norm(dim=1).mean()
    return rows * length
