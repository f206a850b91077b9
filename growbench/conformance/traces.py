"""What a plugin can leave behind in the process that runs it: a snapshot of that, what changed since, and the way back.

Random states, torch's modes, the environment, the working folder, sys.path; and attributes of growbench, torch, numpy,
random and math, by identity, so that a function that was replaced shows.
"""

import inspect
import math
import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import torch

Place = tuple[str, Callable[[], Any], Callable[[Any], object]]


def _set_environment(wanted: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(wanted)


def _set_path(wanted: list[str]) -> None:
    sys.path[:] = wanted


_NUMPY = np.random.mtrand._rand  # the one generator that numpy's global functions draw from
PLACES: tuple[Place, ...] = (
    ("torch's global random state", lambda: torch.get_rng_state().numpy().tobytes(), lambda kept: _set_torch(kept)),
    ("the random state of Python's random", random.getstate, random.setstate),
    ("numpy's global random state", lambda: _comparable(_NUMPY.get_state()), _NUMPY.set_state),
    ("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    ("torch's default device", torch.get_default_device, torch.set_default_device),
    ("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    ("torch's matmul precision", torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    ("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    (
        "torch's choice of algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    ("the environment", lambda: dict(os.environ), _set_environment),
    ("the working folder", os.getcwd, os.chdir),
    ("sys.path", lambda: list(sys.path), _set_path),
)
OUTSIDE = (
    *(torch, torch.Tensor, torch.nn, torch.nn.Module, torch.nn.functional, torch.linalg, torch.autograd),
    *(torch.optim, torch.optim.Optimizer, torch.optim.AdamW, torch.optim.SGD, np, random, math),
)


def _set_torch(kept: bytes) -> None:
    torch.set_rng_state(torch.frombuffer(bytearray(kept), dtype=torch.uint8))


def _comparable(state: Any) -> tuple[Any, ...]:
    return tuple(part.tolist() if isinstance(part, np.ndarray) else part for part in state)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The global state at one moment; `restore` goes back to it."""

    values: dict[str, Any]
    attributes: list[tuple[Any, dict[str, Any]]]

    @staticmethod
    def take() -> "Snapshot":
        return Snapshot(
            values={name: get() for name, get, _ in PLACES},
            attributes=[(owner, _attributes(owner)) for owner in (*OUTSIDE, *_growbench())],
        )

    def restore(self) -> list[str]:
        """Put everything back; return in words what had changed, empty where nothing had."""
        found = []
        for name, get, put in PLACES:
            if get() != self.values[name]:
                found.append(name)
                put(self.values[name])
        for owner, before in self.attributes:
            label, now = getattr(owner, "__qualname__", owner.__name__), _attributes(owner)
            for name in before.keys() | now.keys():
                if name not in now or (name in before and now[name] is not before[name]):
                    found.append(f"{label}.{name}")
                    setattr(owner, name, before[name])
                elif name not in before and owner not in OUTSIDE:  # torch and numpy import their own parts lazily
                    found.append(f"{label}.{name}")
                    delattr(owner, name)
        return found


def _growbench() -> Iterator[Any]:
    """The loaded modules of growbench and the classes that they define."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "growbench":
            yield module
            yield from (value for value in list(vars(module).values()) if _defines(module, value))


def _defines(module: ModuleType, value: object) -> bool:
    return inspect.isclass(value) and value.__module__ == module.__name__


def _attributes(owner: Any) -> dict[str, Any]:
    """Functions and classes by name, of growbench everything that is not a module; names with two underscores apart."""
    keep = callable if owner in OUTSIDE else lambda value: not isinstance(value, ModuleType)
    return {name: value for name, value in list(vars(owner).items()) if not name.startswith("__") and keep(value)}
