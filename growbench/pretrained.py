"""A pretrained checkpoint grown without training: W' = E_w W C_r for every tensor of its files, one at a time.

The tables in families/ say what a tensor's dimensions are; the strategy gives a map of each axis that grows. What lies
between the algebra of axes.py and the fixed form of a published architecture is bridged here:

    gains, shifts    of a norm stay where they are while every new unit copies at most one old unit, G' E = E G; a dense
                     E needs them folded: readers W G, gain 1, shift E (b / g)
    LayerNorm        subtracts the mean, so that E must map what has mean zero to what has mean zero: 1'E = c 1'. Then
                     the writers are centred, unless E 1 = c 1 too. A dense E is turned until it does: E := H E with the
                     reflection H that takes E 1 to the direction of 1
    tied embedding   is the readout E' W', old/new times what it reads: the final norm's gain takes the factor new/old
                     back. Where gains are folded or writers centred, the readout becomes a tensor of its own

Memory: one tensor of the source, and blocks of its target. A map of copies is kept, and applied, as indices.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Generator, Tensor

from growbench import axes, families, shards
from growbench.axes import AxisMap, Copies, LayerMap, Maps, Side
from growbench.families import GROWABLE, Family, Sizes, Stored
from growbench.labels import Axis, Weight
from growbench.plugins import nearest
from growbench.shape import Nonlinearity, Shape
from growbench.shards import Shards, Spec, Target
from growbench.strategy import Strategy

RESIDUAL = Axis(name="residual")
BLOCK = 2**18
"""Weights that are grown at once, at least."""
_BLOCKS = 64
"""Blocks that a large tensor is grown in."""
CONFIG = "config.json"
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint folder, checked against its family's table."""

    folder: Path
    family: Family
    config: Any
    shards: Shards
    tensors: Mapping[str, Stored]
    named: Mapping[str, str]
    """By the table's name of a tensor, the file's."""

    @cached_property
    def sizes(self) -> dict[str, int]:
        return self.family.read_sizes(self.config)

    @property
    def tied(self) -> bool:
        return is_tied(self.family, self.config)

    @property
    def dtype(self) -> torch.dtype:
        return self.shards.specs[self.named[self.family.embedding]].dtype


@dataclass(frozen=True, kw_only=True)
class Grown:
    """What growing a checkpoint came to: sizes and weights before and after, what its form made necessary, and the
    largest difference of a logit (None: not computed) beside the largest logit.
    """

    architecture: str
    sizes: Mapping[str, tuple[int, int]]
    params: tuple[int, int]
    notes: tuple[str, ...]
    difference: float | None = None
    largest_logit: float | None = None


# --- reading ---------------------------------------------------------------------------------------------------------


def locate(name: str) -> Path:
    """The folder of a checkpoint: itself, or where hub:NAME[@REVISION] was downloaded to. Without pickles."""
    if not name.startswith("hub:"):
        if not Path(name).is_dir():
            raise ValueError(f"there is no folder {name}: give one, or hub:NAME[@REVISION] for one of the hub")
        return Path(name)
    _transformers()
    from huggingface_hub import snapshot_download

    repository, _, revision = name.removeprefix("hub:").partition("@")
    kept = ["*.safetensors", "*.json", "merges.txt", "vocab.*", "tokenizer*", "chat_template*"]
    return Path(snapshot_download(repository, revision=revision or None, allow_patterns=kept))


def read_dtype(word: str) -> torch.dtype:
    """A floating-point dtype by its name."""
    known = {_word(dtype): dtype for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)}
    if word not in known:
        raise ValueError(f"unknown dtype {word!r}{nearest(word, sorted(known))}")
    return known[word]


def is_tied(family: Family, config: Any) -> bool:
    """Whether the embedding is the readout too."""
    return not family.readout or bool(getattr(config, "tie_word_embeddings", False))


def read(folder: Path, *, any_dtype: bool = False) -> Checkpoint:
    """A `transformers` folder, or one of another table. ValueError names what is not as its configuration says.

    any_dtype: tensors of a dtype other than the configuration's are accepted.
    """
    try:
        stated = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except OSError:
        raise ValueError(f"{folder} has no {CONFIG}: give a folder that `save_pretrained` wrote") from None
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG} is no JSON: {error}") from None
    (architecture, *_) = stated.get("architectures") or ["(none)"]
    family = families.find(architecture)
    found = shards.read(folder)
    config = _config(folder, stated)
    tensors = family.stored(config, family.read_sizes(config), tied=is_tied(family, config))
    named = {name: _file_name(name, family, found) for name in tensors}
    _check(folder, family, config, found, tensors, named, any_dtype)
    return Checkpoint(folder=folder, family=family, config=config, shards=found, tensors=tensors, named=named)


def _config(folder: Path, stated: Mapping[str, Any]) -> Any:
    if "model_type" not in stated:
        return SimpleNamespace(**stated)
    return _transformers().AutoConfig.from_pretrained(folder, local_files_only=True)


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ValueError("checkpoints need transformers: pip install 'growbench[hub]'") from None
    return transformers


def quiet() -> None:
    """Keep transformers from writing progress and advice to stderr."""
    _transformers().utils.logging.set_verbosity_error()
    _transformers().utils.logging.disable_progress_bar()


def _file_name(name: str, family: Family, found: Shards) -> str:
    """The name in the files: those of the bare model, without a head, lack the prefix."""
    bare = name.removeprefix(family.prefix)
    return bare if name not in found.files and bare in found.files else name


def _check(
    folder: Path,
    family: Family,
    config: Any,
    found: Shards,
    tensors: Mapping[str, Stored],
    named: Mapping[str, str],
    any_dtype: bool,
) -> None:
    if lacking := sorted(name for name in tensors if named[name] not in found.files):
        raise ValueError(f"{folder} lacks {_some(lacking)}, which its configuration calls for")
    spare = {family.readout} if is_tied(family, config) else set()  # some files hold the tied readout again
    if extra := sorted(n for n in found.files.keys() - {*named.values(), *spare} if not family.ignores(n)):
        raise ValueError(f"{folder} holds {_some(extra)}, which a {family.architecture} of its configuration has not")
    wanted = _dtype(config)
    for name, stored in tensors.items():
        spec = found.specs[named[name]]
        if spec.shape != stored.shape:
            raise ValueError(
                f"{named[name]} has shape {list(spec.shape)}, and by the configuration {list(stored.shape)}: "
                f"{CONFIG} is that of another model"
            )
        if wanted is not None and spec.dtype != wanted and not any_dtype:
            raise ValueError(
                f"{named[name]} has dtype {_word(spec.dtype)}, and by the configuration {_word(wanted)}: "
                f"give the dtype to write with --dtype"
            )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _dtype(config: Any) -> torch.dtype | None:
    stated = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    return getattr(torch, stated) if isinstance(stated, str) else stated


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# --- sizes -----------------------------------------------------------------------------------------------------------


def target_sizes(family: Family, old: Sizes, to: Mapping[str, int]) -> dict[str, int]:
    """The sizes that `to` asks for, and what follows from them. ValueError where the architecture has no such model."""
    known = [name for name in GROWABLE if name in family.sizes]
    for name in to:
        if name not in known:
            raise ValueError(f"a {family.architecture} has no size {name!r} to grow{nearest(name, known)}")
    new = {**old, **to}
    if family.square and "heads" not in to:
        if new["residual"] % old["width"]:
            raise ValueError(
                f"residual {new['residual']} is no multiple of the head width {old['width']}, which stays: a "
                f"{family.architecture} has residual = heads x head width"
            )
        new["heads"] = new["residual"] // old["width"]
    elif family.square and "residual" not in to:
        new["residual"] = new["heads"] * old["width"]
    if family.square and new["heads"] * old["width"] != new["residual"]:
        raise ValueError(
            f"{new['heads']} heads of width {old['width']} are not residual {new['residual']}: the head width stays, "
            "since the attention's scale and rotary frequencies depend on it"
        )
    if "groups" not in to:
        queries = old["heads"] // old["groups"]
        new["groups"] = new["heads"] // queries
        if new["heads"] % queries:
            raise ValueError(
                f"{new['heads']} heads are no multiple of the {queries} that share a group: say how many groups, as in "
                f"heads={new['heads']},groups={old['groups']}"
            )
    if new["heads"] % new["groups"]:
        raise ValueError(f"{new['heads']} heads cannot share {new['groups']} groups evenly: choose a divisor")
    for name in (*known, "groups"):
        if new[name] < old[name]:
            raise ValueError(f"{name} would shrink from {old[name]} to {new[name]}: give sizes that grow")
    if new["heads"] // new["groups"] < old["heads"] // old["groups"]:
        raise ValueError(
            f"each group would have fewer heads than its {old['heads'] // old['groups']}: give fewer groups"
        )
    if new == dict(old):
        raise ValueError(f"nothing grows: give larger sizes with --to, of {', '.join(known)}")
    return new


def _shape(family: Family, config: Any, sizes: Sizes) -> Shape:
    """The sizes as strategies know them, to ask one whether it applies."""
    activation = getattr(config, "activation_function", getattr(config, "hidden_act", ""))
    nonlinearity: Nonlinearity = "relu" if activation == "relu" else family.nonlinearity
    return Shape(
        layers=sizes["layers"],
        residual=sizes["residual"],
        heads=sizes["heads"],
        key=sizes["width"],
        value=sizes["width"],
        ffn=sizes["ffn"],
        nonlinearity=nonlinearity,
        tied=is_tied(family, config),
        vocab=sizes["vocab"],
        placement="everywhere" if "tokens" in sizes else "ffn",
        tokens=sizes.get("tokens", 0),
    )


# --- maps ------------------------------------------------------------------------------------------------------------


def block(m: Copies, start: int, end: int) -> tuple[Tensor, Copies]:
    """The new units that copy old units start..end-1, with their share of the silent ones, and their own map."""
    silent = m.silent.nonzero()[:, 0]
    share = silent[len(silent) * start // m.old : len(silent) * end // m.old]
    copies = ((m.source >= start) & (m.source < end)).nonzero()[:, 0]
    units = torch.cat([copies, share]).sort().values
    source = torch.where(m.source[units] < 0, -1, m.source[units] - start)
    return units, Copies(source=source, old=end - start, written=m.written[units], read=m.read[units])


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a checkpoint grows: its maps and layers, and what its form makes necessary.

    folded: gains go into their readers; centred: writers of the residual stream get mean zero; untied: a tied readout
    becomes its own. problems: by name, what the form cannot express exactly.
    """

    sizes: Sizes
    layers: tuple[int, ...]
    muted: frozenset[int]
    fresh: frozenset[int]
    maps: Maps
    sides: Mapping[Axis, Side]
    readout: float
    folded: bool
    centred: bool
    untied: bool
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def plan(checkpoint: Checkpoint, sizes: Sizes, strategy: Strategy, rng: Generator) -> Plan:
    """The maps of a growth. ValueError where the strategy does not grow by maps, or not to these sizes."""
    _applies(checkpoint, sizes, strategy)
    old, family = checkpoint.sizes, checkpoint.family
    deeper = sizes["layers"] > old["layers"]
    layers = strategy.deepen(old["layers"], sizes["layers"]) if deeper else LayerMap(source=tuple(range(old["layers"])))
    problems = []
    if not layers.exact:
        problems.append("depth: layers repeat, and are not muted")
    if deeper and getattr(checkpoint.config, "scale_attn_by_inverse_layer_idx", False):
        problems.append("attention scale: scale_attn_by_inverse_layer_idx divides by the layer's index, which changes")
    maps: dict[Axis, AxisMap] = {}
    sides: dict[Axis, Side] = {}
    form = _Form(multiple=1.0)
    for axis, (before, after) in _changed(family, old, sizes).items():
        m = strategy.widen(axis, before, after, rng)
        if (m.old, m.new) != (before, after):
            raise ValueError(
                f"widen gives {m.old} to {m.new} units for axis {axis}: it was asked for {before} to {after}"
            )
        problem = "" if m.commutes(axis.admits) else f"axis {axis.name}: its map is not of the kind {axis.admits!r}"
        if axis == RESIDUAL:
            m, form = _residual(m, family)
            problem = problem or form.problem
        if problem and problem not in problems:
            problems.append(problem)
        sides[axis] = strategy.opens(axis, m)
        maps[axis] = Copies.of(m) or m
    untied = checkpoint.tied and (form.folded or form.centred)
    if untied and not family.readout:
        problems.append("tied embedding: this architecture has no readout of its own")
    return Plan(
        sizes=sizes,
        layers=layers.source,
        muted=layers.muted,
        fresh=layers.fresh,
        maps=maps,
        sides=sides,
        readout=1 / form.multiple if checkpoint.tied and not untied else 1.0,
        folded=form.folded,
        centred=form.centred,
        untied=untied and bool(family.readout),
        notes=(*form.notes, *(("the embedding is no longer tied to the readout",) if untied else ())),
        problems=tuple(problems),
    )


def _applies(checkpoint: Checkpoint, sizes: Sizes, strategy: Strategy) -> None:
    """Raise ValueError where a strategy cannot grow a checkpoint to these sizes by maps alone."""
    name = type(strategy).__name__
    if not strategy.source:
        raise ValueError(f"{name} trains from scratch: it grows nothing")
    if type(strategy).grow is not Strategy.grow:
        raise ValueError(f"{name} has a `grow` of its own, beyond the maps of axes: a checkpoint grows by maps alone")
    source = _shape(checkpoint.family, checkpoint.config, checkpoint.sizes)
    target = _shape(checkpoint.family, checkpoint.config, sizes)
    if strategy.target(source, target) != target:
        raise ValueError(f"{name} grows to a shape of its own, and not to the one asked for")
    if reason := strategy.supports(source, target):
        raise ValueError(f"{name} does not apply: {reason}")


def _changed(family: Family, old: Sizes, new: Sizes) -> dict[Axis, tuple[int, int]]:
    """Axes that grow, each layer's own after those that all share, as (old, new)."""
    out = {}
    for layer in (None, *range(new["layers"])):
        before, after = family.axes(old, layer), family.axes(new, layer)
        used = _used(family)
        for name, (axis, size) in after.items():
            if name in used and axis.layer == layer and size > before[name][1]:
                out[axis] = (before[name][1], size)
    return out


def _used(family: Family) -> set[str]:
    return {word.strip("()*") for label in family.tensors.values() for word in label.split()}


@dataclass(frozen=True, kw_only=True)
class _Form:
    """What a map of the residual stream asks of an architecture's form; multiple: E'E is that many times I."""

    multiple: float
    folded: bool = False
    centred: bool = False
    problem: str = ""
    notes: tuple[str, ...] = ()


def _residual(m: AxisMap, family: Family) -> tuple[AxisMap, _Form]:
    dense = Copies.of(m) is None
    form = _Form(
        multiple=m.multiplicity,
        folded=dense,
        notes=("the gains of norms are folded into what reads through them",) * dense,
    )
    if family.norm == "rms":
        return m, form
    if dense:
        m = turned(m)
    ones = torch.ones(m.old, dtype=torch.float64)
    kept, written = m.expand @ ones, torch.ones(m.new, dtype=torch.float64) @ m.expand
    if bool((kept - kept.mean()).abs().max() <= axes.TOLERANCE * kept.abs().max()):
        return m, form
    if bool((written - written.mean()).abs().max() <= axes.TOLERANCE * written.abs().max()):
        note = "what is written to the residual stream is centred, which LayerNorm does not see"
        return m, replace(form, centred=True, notes=(*form.notes, note))
    return m, replace(form, problem="LayerNorm: uneven copies change the mean over the residual stream")


def turned(m: AxisMap) -> AxisMap:
    """H E, with the reflection H that takes E 1 to the direction of 1: what has mean zero is mapped to mean zero."""
    ones = torch.ones(m.new, dtype=torch.float64) / math.sqrt(m.new)
    image = m.expand.sum(1)
    normal = image / image.norm() - ones
    if float(normal.norm()) < axes.TOLERANCE:
        return m
    normal = normal / normal.norm()
    return AxisMap(
        m.expand - 2 * torch.outer(normal, normal @ m.expand), m.collapse - 2 * torch.outer(m.collapse @ normal, normal)
    )


# --- growing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Job:
    """A tensor to be grown: what it is afterwards, and the tensors of the source that make it."""

    stored: Stored
    source: Stored
    name: str
    """Of the source's tensor in its files."""
    norm: str = ""
    """Of the source's norm that it reads through."""


def jobs(checkpoint: Checkpoint, grown: Mapping[str, Stored], planned: Plan) -> dict[str, _Job]:
    """What makes each tensor of the grown checkpoint, by its name there."""
    family, out = checkpoint.family, {}
    through = {reader: norm for norm, readers in family.norms.items() for reader in readers}
    for name, stored in grown.items():
        layer = stored.weight.layer
        origin = None if layer is None else planned.layers[layer]
        untied = planned.untied and stored.pattern == family.readout
        found = families.named(family.embedding if untied else stored.pattern, origin, checkpoint.sizes)
        source = checkpoint.tensors[found]
        if untied:
            label = family.tensors[family.readout]
            axes_ = family.axes(checkpoint.sizes, None)
            source = families.stored(label, found, None, axes_, pattern=family.readout)
        norm = families.named(through[stored.pattern], origin, checkpoint.sizes) if stored.pattern in through else ""
        out[name] = _Job(stored=stored, source=source, name=checkpoint.named[found], norm=norm)
    return out


@dataclass(frozen=True, kw_only=True)
class Grower:
    """Grows the tensors of a checkpoint, one at a time."""

    checkpoint: Checkpoint
    planned: Plan
    strategy: Strategy
    rng: Generator
    std: float

    def grow(self, job: _Job, target: Target) -> None:
        """Fill `target`, the stored tensor of a grown checkpoint."""
        layer = job.stored.weight.layer
        maps = {d.axis: self.planned.maps[d.axis] for d in job.stored.weight.dims if d.axis in self.planned.maps}
        muted = layer in self.planned.muted and job.stored.kind == "weight" and job.stored.weight.writes(RESIDUAL)
        fresh = layer in self.planned.fresh
        with self.checkpoint.shards.tensor(job.name) as tensor, torch.no_grad():
            if job.stored.kind != "weight":
                target.tensor.copy_(self._norm(job, tensor.double(), fresh))
                return
            if muted:
                return  # a file begins as zeros
            out, source = job.stored.labelled(target.tensor), job.source.labelled(tensor)
            for block in self._blocks(job, maps):
                if fresh:
                    value = self._draw(block.weight)
                else:
                    value = axes.grow(self._source(job, source, block), block.weight, block.maps)
                    value += self._fill(block, value)
                out.index_copy_(block.dim, block.new, value.to(out.dtype))
                target.release()

    def _norm(self, job: _Job, vector: Tensor, fresh: bool) -> Tensor:
        """A norm's gain or shift."""
        m = self.planned.maps.get(job.stored.weight.dims[0].axis)
        factor = self.planned.readout if job.stored.weight.layer is None else 1.0
        if fresh:
            return torch.full(job.stored.shape, float(job.stored.kind == "gain"), dtype=torch.float64)
        if isinstance(m, Copies):
            copied = vector[m.source.clamp_min(0)] * (1.0 if job.stored.kind == "gain" else m.written)
            return torch.where(m.silent, float(job.stored.kind == "gain"), copied) * factor
        if m is None:
            return vector * factor
        if job.stored.kind == "gain":
            return torch.full((m.new,), factor, dtype=torch.float64)
        gain = self._vector(job.name.removesuffix("bias") + "weight")
        if bool(((gain == 0) & (vector != 0)).any()):
            raise ValueError(
                f"{job.name} shifts a unit whose gain is zero, which no dense map can fold: use one of copies"
            )
        return m.expand @ torch.where(vector == 0, 0.0, vector / gain) * factor

    def _vector(self, name: str) -> Tensor:
        with self.checkpoint.shards.tensor(name) as vector:
            return vector.double()

    def _source(self, job: _Job, source: Tensor, block: "_Block") -> Tensor:
        """The source's part of a block: gains folded and writers centred where the plan says so."""
        part = source.narrow(block.dim, block.start, block.end - block.start).double()
        for position, dim in enumerate(job.source.weight.dims):
            if dim.axis != RESIDUAL:
                continue
            if dim.role == "writes" and self.planned.centred:
                part = part - part.mean(position, keepdim=True)
            if dim.role == "reads" and self.planned.folded and job.norm:
                gain = self._vector(self.checkpoint.named[f"{job.norm}.weight"])
                gain = gain[block.start : block.end] if position == block.dim else gain
                part = part * gain.view([-1 if i == position else 1 for i in range(part.dim())])
        return part

    def _draw(self, weight: Weight) -> Tensor:
        """An initial weight as the architecture draws it; biases are zero."""
        reads = weight.lookup or any(dim.role == "reads" for dim in weight.dims)
        drawn = torch.randn(weight.sizes, generator=self.rng, dtype=torch.float64)
        return drawn * (self.std if reads else 0.0)

    def _fill(self, block: "_Block", grown: Tensor) -> Tensor | float:
        sides = {axis: self.planned.sides[axis] for axis in block.maps}
        if not any(axes.open_dims(block.weight, block.maps, sides)):
            return 0.0
        noise = self.strategy.fill(block.weight, grown, block.maps, self._draw(block.weight))
        if tuple(noise.shape) != block.weight.sizes:
            raise ValueError(
                f"fill returned sizes {tuple(noise.shape)} for {block.weight.name} ({block.weight.label}): return "
                f"{block.weight.sizes}"
            )
        return axes.free(noise.double(), block.weight, block.maps, sides)

    def _blocks(self, job: _Job, maps: Maps) -> "Iterator[_Block]":
        """A weight in blocks of one axis' units, each with all its copies: growing them apart is growing it whole."""
        weight, source = job.stored.weight, job.source.weight

        def divides(i: int) -> bool:
            axis = weight.dims[i].axis
            indexed = axis not in maps or isinstance(maps[axis], Copies)
            return indexed and not (axis == RESIDUAL and self.planned.centred)

        free = [i for i in range(len(weight.dims)) if divides(i)]
        dim = max(free, key=lambda i: source.dims[i].size) if free else 0
        axis, old = weight.dims[dim].axis, source.dims[dim].size
        most = max(BLOCK, weight.count // _BLOCKS)
        step = max(1, old * most // weight.count) if free else old
        for start in range(0, old, step):
            end, own = min(start + step, old), dict(maps)
            match maps.get(axis):
                case Copies() as m:
                    units, own[axis] = block(m, start, end)
                case AxisMap() as m:
                    units = torch.arange(m.new)
                case None:
                    units = torch.arange(start, end)
            dims = tuple(replace(d, size=len(units)) if i == dim else d for i, d in enumerate(weight.dims))
            yield _Block(weight=replace(weight, dims=dims), maps=own, dim=dim, start=start, end=end, new=units)


@dataclass(frozen=True, kw_only=True)
class _Block:
    """Part of a weight: its label and sizes, its maps, and its units of dimension `dim`.

    start, end: of the units before; new: those after.
    """

    weight: Weight
    maps: Maps
    dim: int
    start: int
    end: int
    new: Tensor


def grow(
    folder: Path,
    out: Path,
    strategy: Strategy,
    *,
    to: Mapping[str, int],
    seed: int = 0,
    approximate: bool = False,
    dtype: torch.dtype | None = None,
    verify: bool = True,
    limit: int = shards.LIMIT,
    progress: Progress = lambda done, total: None,
) -> Grown:
    """Grow a checkpoint folder into another, which must not exist, tensor by tensor; verify: compare their logits.

    ValueError where the form of the architecture cannot express the growth exactly and `approximate` is not given, and
    where the logits differ though the strategy preserves them.
    """
    checkpoint = read(folder, any_dtype=dtype is not None)
    if out.exists():
        raise ValueError(f"{out} exists: give a folder that does not")
    family, config = checkpoint.family, checkpoint.config
    sizes = target_sizes(family, checkpoint.sizes, to)
    rng = Generator().manual_seed(seed)
    planned = plan(checkpoint, sizes, strategy, rng)
    claims = strategy.preserves == "function"
    if claims and planned.problems and not approximate:
        raise ValueError(
            f"a {family.architecture} cannot express this growth exactly ({'; '.join(planned.problems)}): choose other "
            "sizes or another strategy, or accept a difference, which is then measured, with --approximate"
        )
    written = dtype or checkpoint.dtype
    new_config = _grown_config(checkpoint, planned, written)
    grown = family.stored(new_config, sizes, tied=checkpoint.tied and not planned.untied)
    if verify:
        _fits(_count(grown), written)
    std = float(getattr(config, "initializer_range", 0.02))
    grower = Grower(checkpoint=checkpoint, planned=planned, strategy=strategy, rng=rng, std=std)
    beside = out.with_name(f".{out.name}.partial")
    shutil.rmtree(beside, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        writer = shards.Writer(beside, {n: Spec(shape=s.shape, dtype=written) for n, s in grown.items()}, limit)
        todo = jobs(checkpoint, grown, planned)
        for done, (name, job) in enumerate(todo.items()):
            progress(done, len(todo))
            with writer.tensor(name) as target:
                grower.grow(job, target)
        _write_config(new_config, beside)
        _copy_rest(folder, beside)
        made = Grown(
            architecture=family.architecture,
            sizes={n: (checkpoint.sizes[n], sizes[n]) for n in sizes if n in family.sizes},
            params=(_count(checkpoint.tensors), _count(grown)),
            notes=(*planned.notes, *planned.problems),
        )
        if verify:
            made = _verified(made, checkpoint, beside, written, claims and not planned.problems)
        beside.rename(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return made


def _count(tensors: Mapping[str, Stored]) -> int:
    return sum(stored.weight.count for stored in tensors.values())


def _grown_config(checkpoint: Checkpoint, planned: Plan, dtype: torch.dtype) -> Any:
    config = _config(checkpoint.folder, json.loads((checkpoint.folder / CONFIG).read_text(encoding="utf-8")))
    checkpoint.family.write_sizes(config, planned.sizes)
    if types := getattr(config, "layer_types", None):
        config.layer_types = [types[layer] for layer in planned.layers]
    if planned.untied:
        config.tie_word_embeddings = False
    if not isinstance(config, SimpleNamespace):
        config.dtype = dtype
        try:
            config.validate_architecture()
        except ValueError as error:
            raise ValueError(f"transformers has no such {checkpoint.family.architecture}: {error}") from None
    return config


def _write_config(config: Any, folder: Path) -> None:
    if isinstance(config, SimpleNamespace):
        shards.write_json(folder / CONFIG, vars(config))
    else:
        config.save_pretrained(folder)


def _copy_rest(folder: Path, out: Path) -> None:
    """Copy what belongs to a checkpoint besides its weights: the tokenizer's files and the generation's settings."""
    for pattern in ("tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json",
                    "generation_config.json", "chat_template*"):  # fmt: skip
        for path in folder.glob(pattern):
            if path.is_file():
                shutil.copy(path, out / path.name)


# --- verifying -------------------------------------------------------------------------------------------------------


def tolerance(dtype: torch.dtype) -> float:
    """The largest difference of a logit that rounding explains, relative to the largest logit.

    transformers computes norms and softmaxes in float32, of whatever dtype the weights are.
    """
    return min(1000 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps), 0.05)


def _compute(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype to compare logits in."""
    return torch.float64 if set(dtypes) == {torch.float64} else torch.float32


def _fits(params: int, dtype: torch.dtype) -> None:
    """Raise ValueError where a model of so many weights has no room in this machine's memory."""
    needed, there = params * _compute(dtype).itemsize, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > 0.9 * there:
        raise ValueError(
            f"to compare logits the grown model needs {needed / 1e9:.3g} GB of memory, and the machine has "
            f"{there / 1e9:.3g}: grow it with --no-verify, which takes one tensor at a time"
        )


def _verified(made: Grown, checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, exact: bool) -> Grown:
    length = min(64, checkpoint.sizes.get("position", 64), getattr(checkpoint.config, "max_position_embeddings", 64))
    tokens = torch.randint(checkpoint.sizes["vocab"], (2, length), generator=Generator().manual_seed(0))
    compute = _compute(checkpoint.dtype, dtype)
    before = logits(checkpoint.folder, tokens, compute)
    after = logits(folder, tokens, compute)
    difference, largest = float((after - before).abs().max()), float(before.abs().max())
    if exact and not difference <= tolerance(dtype) * largest:
        raise ValueError(
            f"the logits differ by {difference:.3g}, where the largest is {largest:.3g}: more than rounding explains. "
            "The strategy's maps do not preserve the function that it claims to, or the table is wrong"
        )
    return replace(made, difference=difference, largest_logit=largest)


def logits(folder: Path, tokens: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Logits of a checkpoint folder for tokens (B, T), by transformers' own model where it has one."""
    stated = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    with torch.no_grad():
        if "model_type" not in stated:
            from growbench.families import tokenformer

            found = shards.read(folder)
            weights = {}
            for name in found.files:
                with found.tensor(name) as tensor:
                    weights[name] = tensor.to(dtype, copy=True)
            return tokenformer.logits(stated, weights, tokens)
        model = _transformers().AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="eager", local_files_only=True
        )
        out: Tensor = model.eval()(tokens, use_cache=False).logits
        return out
