"""Tensors of a checkpoint folder one at a time, in and out: safetensors files, mapped into memory, never pickle.

A file is the length of its header (8 bytes, little endian), the header in JSON, and the tensors' bytes. It is written
at its full size first, so that tensors can be filled in any order and block by block.
"""

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LIMIT = 5 * 10**9
"""Bytes of tensors in one file, at most, unless a single tensor has more."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Shards:
    """A folder's tensors: the file that holds each one, and its spec."""

    files: Mapping[str, Path]
    specs: Mapping[str, Spec]

    @contextmanager
    def tensor(self, name: str) -> Iterator[Tensor]:
        """A tensor, mapped into memory while the context lasts."""
        with safe_open(self.files[name], framework="pt") as handle:
            yield handle.get_tensor(name)


def read(folder: Path) -> Shards:
    """The tensors of a folder. ValueError where it has none in safetensors, or files that are not whole."""
    if (folder / INDEX).is_file():
        stated = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        paths = sorted({folder / name for name in stated.values()})
    else:
        stated, paths = {}, [folder / SINGLE]
    if not paths[0].is_file() and (found := sorted(p for end in ("bin", "pt", "pth") for p in folder.glob(f"*.{end}"))):
        raise ValueError(
            f"{found[0]} is a pickle, which can run code when it is read: convert the checkpoint where you trust it, "
            f'with python -c "from transformers import AutoModelForCausalLM as A; '
            f"A.from_pretrained('{folder}').save_pretrained('{folder}-safetensors')\""
        )
    files, specs = {}, {}
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{folder} has no {path.name}: give a folder that holds a whole checkpoint in safetensors")
        try:
            with safe_open(path, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118
                    found_slice = handle.get_slice(name)
                    if found_slice.get_dtype() in _DTYPES:
                        dtype = _DTYPES[found_slice.get_dtype()]
                        files[name], specs[name] = path, Spec(shape=tuple(found_slice.get_shape()), dtype=dtype)
        except SafetensorError as error:
            raise ValueError(f"{path} is no whole safetensors file: {error}") from error
    if lacking := sorted(stated.keys() - files.keys()):
        raise ValueError(f"{lacking[0]} is in {INDEX} of {folder}, and in none of its files: download them again")
    return Shards(files=files, specs=specs)


class Writer:
    """New files in a folder, at their full size; `tensor` gives one of their tensors to write to."""

    def __init__(self, folder: Path, specs: Mapping[str, Spec], limit: int = LIMIT) -> None:
        self._specs = specs
        self._place: dict[str, tuple[Path, int]] = {}
        groups: list[list[str]] = [[]]
        for name, spec in specs.items():
            held = sum(specs[other].bytes for other in groups[-1])
            if groups[-1] and held + spec.bytes > limit:
                groups.append([])
            groups[-1].append(name)
        total = len(groups)
        for i, names in enumerate(groups, start=1):
            path = folder / (SINGLE if total == 1 else f"model-{i:05}-of-{total:05}.safetensors")
            self._create(path, names)
        if total > 1:
            index = {
                "metadata": {"total_size": sum(spec.bytes for spec in specs.values())},
                "weight_map": {name: path.name for name, (path, _) in self._place.items()},
            }
            write_json(folder / INDEX, index)

    def _create(self, path: Path, names: list[str]) -> None:
        about: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        starts, end = {}, 0
        for name in names:
            spec = self._specs[name]
            offsets = [end, end + spec.bytes]
            about[name] = {"dtype": _NAMES[spec.dtype], "shape": spec.shape, "data_offsets": offsets}
            starts[name], end = offsets
        header = json.dumps(about).encode()
        header += b" " * (-len(header) % 8)  # tensors begin at a multiple of eight bytes
        with path.open("wb") as handle:
            handle.write(len(header).to_bytes(8, "little") + header)
            handle.truncate(8 + len(header) + end)
        self._place |= {name: (path, 8 + len(header) + start) for name, start in starts.items()}

    @contextmanager
    def tensor(self, name: str) -> Iterator["Target"]:
        """A tensor of a file, mapped into memory while the context lasts: what is written to it is in the file."""
        (path, start), spec = self._place[name], self._specs[name]
        page = start // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
        with path.open("r+b") as handle:
            mapped = mmap.mmap(handle.fileno(), start - page + spec.bytes, offset=page)
        flat = torch.frombuffer(mapped, dtype=spec.dtype, count=math.prod(spec.shape), offset=start - page)
        yield Target(mapped, flat.view(spec.shape))


@dataclass(frozen=True)
class Target:
    """A tensor to write to, and the memory that its file is mapped into."""

    mapped: mmap.mmap
    tensor: Tensor

    def release(self) -> None:
        """Leave what was written to the system, which has it on its way to the file, and the memory free."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self.mapped.madvise(mmap.MADV_DONTNEED)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a mapping as indented JSON."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
