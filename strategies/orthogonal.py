"""Orthogonal projection: E = sqrt(D/d) Q with orthonormal columns; new units orthogonal to the old."""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from growbench import maps
from growbench.axes import AxisMap, Maps
from growbench.labels import Axis, Weight
from growbench.strategy import Strategy


@dataclass(frozen=True, kw_only=True)
class Orthogonal(Strategy):
    """The residual stream rotated into the larger space by a Haar isometry; elsewhere new units orthogonal to the old.

    An axis with an elementwise nonlinearity admits selections only: its new units are silent, and their weights on the
    open side are orthonormal, orthogonal to the span of the old units' as far as the space has room, then among
    themselves, at the old ones' mean norm. The rotation is that of SliceGPT (arXiv:2401.15024), run backwards.
    """

    def widen(self, axis: Axis, old: int, new: int, rng: Generator) -> AxisMap:
        return maps.isometry(old, new, rng) if axis.admits in ("isometry", "any") else maps.zero_pad(old, new)

    def fill(self, weight: Weight, grown: Tensor, grown_maps: Maps, fresh: Tensor) -> Tensor:
        out = fresh.clone()
        for position, dim in enumerate(weight.dims):
            if dim.axis in grown_maps and (silent := grown_maps[dim.axis].silent).any():
                own = [i for i, d in enumerate(weight.dims) if (d.role == "writes") == (dim.role == "writes")]
                own.sort(key=lambda i: i != position)
                other = [i for i in range(len(weight.dims)) if i not in own]
                unit = torch.tensor(weight.sizes)[own[1:]].prod()
                vectors, rows = (t.permute(own + other).flatten(0, len(own) - 1).flatten(1) for t in (out, grown.double()))
                new = silent.repeat_interleave(int(unit))
                vectors = vectors.clone()
                vectors[new] = orthogonal_rows(rows[~new], vectors[new])
                back = [own + other][0]
                out = vectors.view([weight.sizes[i] for i in back]).permute([back.index(i) for i in range(len(back))])
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
        q, r = torch.linalg.qr(take - basis @ (basis.T @ take))
        q = q * r.diagonal().sign()
        basis, rows = torch.cat([basis, q], 1), torch.cat([rows, q.T])
    return rows * old.norm(dim=1).mean()
