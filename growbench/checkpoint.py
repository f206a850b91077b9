"""A checkpoint: a training state with what growth asked of the engine, in one safetensors file; no pickle."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from growbench.axes import AxisMap, Copies, LayerMap, Maps
from growbench.parametrization import Parametrization
from growbench.shape import Shape
from growbench.state import State
from growbench.strategy import Growth, Ramp


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A state, its frozen entries (boolean masks by weight name), and ramps with the position at which they began.

    maps, layers: how the model before the growth lies in this one, by which diagnostics tell old from new. All but the
    state are of the last growth and take the place of earlier ones; it is refused while an earlier ramp has not ended.
    """

    state: State
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    ramps: tuple[Ramp, ...] = ()
    ramp_start: int = 0
    maps: Maps = field(default_factory=dict)
    layers: LayerMap | None = None

    @property
    def growth(self) -> Growth:
        """The last growth, with the state that it has become."""
        return Growth(state=self.state, frozen=self.frozen, ramps=self.ramps, maps=self.maps, layers=self.layers)

    def multipliers(self, tokens: int) -> dict[str, Tensor]:
        """The multiplier of every ramped axis at a position: 1 for old units, 0 to 1 for new ones."""
        out: dict[str, Tensor] = {}
        like = self.state.weights["embed"]
        for ramp in self.ramps:
            share = min(max(tokens - self.ramp_start, 0) / ramp.tokens, 1.0)
            own = torch.where(ramp.new, share, 1.0).to(like)
            out[ramp.axis] = out[ramp.axis] * own if ramp.axis in out else own
        return {} if all(bool((m == 1).all()) for m in out.values()) else out

    def save(self, path: Path, *, moments: bool = True) -> None:
        """Write the file; without moments it can be evaluated, not trained on. OSError where it cannot be written."""
        state = self.state
        groups: dict[str, Mapping[str, Tensor]] = {"weights": state.weights, "frozen": self.frozen}
        if moments:
            groups |= {"first": state.first, "second": state.second}
        tensors = {f"{group}:{name}": t.contiguous() for group, named in groups.items() for name, t in named.items()}
        tensors |= {f"ramp:{i}": ramp.new for i, ramp in enumerate(self.ramps)}
        for axis, m in self.maps.items():  # cloned: axes may share a map, and the file takes no shared memory
            for side, own in _stored(m).items():
                tensors[f"{side}:{axis}"] = own.clone(memory_format=torch.contiguous_format)
        about = {
            "shape": asdict(state.shape),
            "scaling": {"name": state.scaling.name, "base": asdict(state.scaling.base)},
            "norms": dict(state.norms),
            "steps": dict(state.steps) if moments else {},
            "tokens": state.tokens,
            "ramps": [{"axis": ramp.axis, "tokens": ramp.tokens} for ramp in self.ramps],
            "ramp_start": self.ramp_start,
            "layers": self.layers and [list(self.layers.source), sorted(self.layers.muted), sorted(self.layers.fresh)],
        }
        try:
            save_file(tensors, path, metadata={"growbench": json.dumps(about, sort_keys=True)})
        except SafetensorError as error:
            raise OSError(f"{path.name}: {error}") from error

    @staticmethod
    def load(path: Path) -> "Checkpoint":
        """Read the file that `save` wrote."""
        with safe_open(path, framework="pt") as handle:
            about: dict[str, Any] = json.loads(handle.metadata()["growbench"])
        names = ("weights", "frozen", "first", "second", "ramp", "copies", "expand", "collapse")
        groups: dict[str, dict[str, Tensor]] = {name: {} for name in names}
        for key, tensor in load_file(path).items():
            group, _, name = key.partition(":")
            groups[group][name] = tensor
        scaling = Parametrization(name=about["scaling"]["name"], base=Shape.read(about["scaling"]["base"]))
        state = State(
            shape=Shape.read(about["shape"]),
            scaling=scaling,
            weights=groups["weights"],
            norms=about["norms"],
            first=groups["first"],
            second=groups["second"],
            steps=about["steps"],
            tokens=about["tokens"],
        )
        by_name = {str(axis): axis for axis in state.shape.axes}
        return Checkpoint(
            state=state,
            frozen=groups["frozen"],
            ramps=tuple(Ramp(**ramp, new=groups["ramp"][str(i)]) for i, ramp in enumerate(about["ramps"])),
            ramp_start=about["ramp_start"],
            maps={by_name[name]: _map(name, groups) for name in groups["expand"]},
            layers=LayerMap(source=tuple(layers[0]), muted=frozenset(layers[1]), fresh=frozenset(layers[2]))
            if (layers := about["layers"])
            else None,
        )


def _stored(m: AxisMap) -> dict[str, Tensor]:
    """A map's tensors: E and C, or what each unit copies and with which factors."""
    if isinstance(m, Copies):
        return {"copies": m.source, "expand": m.written, "collapse": m.read}
    return {"expand": m.expand, "collapse": m.collapse}


def _map(name: str, groups: Mapping[str, Mapping[str, Tensor]]) -> AxisMap:
    """The map of an axis, as `_stored` has it."""
    expand, collapse = groups["expand"][name], groups["collapse"][name]
    if (source := groups["copies"].get(name)) is None:
        return AxisMap(expand, collapse)
    return Copies(source=source, old=int(source.max()) + 1, written=expand, read=collapse)
