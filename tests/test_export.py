"""Exported models compute the engine's logits: by the loader alone, and by transformers where it can."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import toy
import transformers
from torch import Generator, Tensor

from growbench import export, tables
from growbench.checkpoint import Checkpoint
from growbench.parametrization import Name, Parametrization
from growbench.shape import Shape
from growbench.state import initial
from growbench.store import CHECKPOINT, Record, Stage, Store
from growbench.strategy import Ramp

SIZES: dict[str, Any] = {"layers": 2, "residual": 8, "heads": 2, "key": 4, "value": 4, "ffn": 12, "context": 16}
BASE = Shape(**SIZES | {"residual": 4, "ffn": 6})
SHAPES = {
    "gelu": Shape(**SIZES),
    "relu tied": Shape(**SIZES | {"nonlinearity": "relu", "tied": True}),
    "swiglu": Shape(**SIZES | {"nonlinearity": "swiglu"}),
    "low rank": Shape(**SIZES | {"nonlinearity": "swiglu", "rank": 2}),
    "per layer": Shape(**SIZES | {"heads": (2, 3), "ffn": (12, 8)}),
    "narrow values": Shape(**SIZES | {"value": 2}),
    "softmax": Shape(**SIZES | {"nonlinearity": "softmax"}),
    "tokenformer": Shape(**SIZES | {"placement": "everywhere", "tokens": (3, 5), "nonlinearity": "l2_gelu"}),
}
ARCHITECTURE = {
    "gelu": "ArceeForCausalLM",
    "relu tied": "ArceeForCausalLM",
    "swiglu": "LlamaForCausalLM",
    "low rank": "LlamaForCausalLM",
}
SCALINGS: tuple[Name, ...] = ("mup", "standard")
TOKENS = torch.randint(256, (2, 16), generator=Generator().manual_seed(0))

READ = """
import sys
sys.modules["growbench"] = None  # an import of it fails
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
import torch
tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(0))
found = {}
for folder in Path(sys.argv[1]).iterdir():
    spec = spec_from_file_location("model", folder / "out" / "model.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.no_grad():
        found[folder.name] = module.load(folder / "out")(tokens)
torch.save(found, sys.argv[2])
"""


def trained(shape: Shape, scaling: Name = "mup", ramps: tuple[Ramp, ...] = ()) -> Checkpoint:
    """A checkpoint in float64 with every weight drawn, low-rank ones too."""
    parametrization = Parametrization(name=scaling, base=BASE)
    state = initial(shape, parametrization, Generator().manual_seed(0), torch.float64)
    norms = {axis: n / 2 for axis, n in state.norms.items()}  # as growth that holds the factor leaves them
    return Checkpoint(state=replace(state, norms=norms, tokens=100), ramps=ramps)


def stored(folder: Path, checkpoint: Checkpoint) -> Path:
    """A results folder of one arm whose only stage left this checkpoint."""
    stage = Stage(kind="train", label="toy", parent=None, identity={"toy": True})
    record = Record.of(stage, status="ok")
    Store(folder).write(record, lambda beside: checkpoint.save(beside / CHECKPOINT, moments=False))
    return folder


def planned(folder: Path) -> dict[str, Any]:
    """The plan of such a folder."""
    stage = Stage(kind="train", label="toy", parent=None, identity={"toy": True})
    about = {"arm": "toy", "task": "text", "seed": 0, "architecture": "transformer"}
    return {"arms": [{"about": about, "points": [{"budget": 100, "path": [stage.key]}]}]}


def engine(checkpoint: Checkpoint) -> Tensor:
    net = checkpoint.state.model()
    net.masks = checkpoint.multipliers(checkpoint.state.tokens)
    with torch.no_grad():
        out: Tensor = net(TOKENS)
    return out


def ramped(axis: str) -> Checkpoint:
    """A model under a mask that is a third open."""
    size = {"residual": 8, "0/ffn": 12, "0/head": 2, "1/value": 4, "layer": 2}[axis]
    return trained(SHAPES["gelu"], ramps=(Ramp(axis=axis, new=torch.arange(size) >= size // 2, tokens=300),))


MASKED = ("residual", "0/ffn", "0/head", "1/value", "layer")
CHECKPOINTS: dict[tuple[str, str], Checkpoint] = {
    **{(name, scaling): trained(shape, scaling) for name, shape in SHAPES.items() for scaling in SCALINGS},
    **{(axis, "masked"): ramped(axis) for axis in MASKED},
}


@dataclass(frozen=True)
class Read:
    """What was exported of every checkpoint, where, and the logits that the loaders computed of it."""

    made: Mapping[tuple[str, str], export.Exported]
    folders: Mapping[tuple[str, str], Path]
    logits: Mapping[str, Tensor]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """The loaders run in one process of their own, in which growbench cannot be imported."""
    root = tmp_path_factory.mktemp("exported")
    made, folders = {}, {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "read_plan", planned)
        for number, (name, checkpoint) in enumerate(CHECKPOINTS.items()):
            folders[name] = root / "all" / str(number)
            made[name] = export.export(stored(folders[name] / "results", checkpoint), "toy", folders[name] / "out")
    command = [sys.executable, "-W", "error", "-c", READ, str(root / "all"), str(root / "logits.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Tensor] = torch.load(root / "logits.pt", weights_only=True)
    return Read(made, folders, found)


@pytest.mark.parametrize("name", CHECKPOINTS, ids=" ".join)
def test_the_loader_computes_the_engines_logits(name: tuple[str, str], read: Read) -> None:
    found = read.logits[read.folders[name].name]
    assert torch.allclose(found, engine(CHECKPOINTS[name]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CHECKPOINTS, ids=" ".join)
def test_an_architecture_of_transformers_is_named_or_why_there_is_none(name: tuple[str, str], read: Read) -> None:
    made, folder = read.made[name], read.folders[name] / "out"
    expected = ARCHITECTURE.get(name[0], "")
    assert made.architecture == expected
    assert bool(made.reason) == (not expected)
    assert (folder / "transformers").is_dir() == bool(expected)
    assert json.loads((folder / "config.json").read_text())["source"]["arm"] == "toy"
    if name[1] == "masked":
        assert made.reason == f"masks over {name[0]} are not open yet"


class Double:
    """torch to transformers' models, whose norms and softmaxes round to float32: here float32 reads as float64."""

    float32 = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("name", ARCHITECTURE)
def test_transformers_computes_the_engines_logits(
    name: str, scaling: Name, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the angles of rotary positions, which transformers has in float32."""
    for kind in ("llama", "arcee"):
        monkeypatch.setattr(f"transformers.models.{kind}.modeling_{kind}.torch", Double())
    checkpoint = CHECKPOINTS[name, scaling]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        read.folders[name, scaling] / "out" / "transformers", dtype=torch.float64, attn_implementation="eager"
    ).eval()
    assert type(model).__name__ == ARCHITECTURE[name]
    with torch.no_grad():
        found = model(TOKENS).logits
    assert torch.allclose(found, engine(checkpoint), rtol=0, atol=1e-6 * float(found.abs().max()))
    at_first = engine(checkpoint)[:, 0]  # position 0 is not turned, and attends to itself alone
    assert torch.allclose(found[:, 0], at_first, rtol=1e-12, atol=1e-12)


# --- a real run ------------------------------------------------------------------------------------------------------


def about(folder: Path) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return found


def test_every_arm_of_a_run_is_exported(toy_run: toy.Run, tmp_path: Path) -> None:
    arms = sorted({str(arm.about["arm"]) for arm in toy_run.plan.arms})
    results, _, _ = tables.tables(toy_run.out)
    for number, arm in enumerate(arms):
        made = export.export(toy_run.out, arm, tmp_path / str(number), seed=1)
        rows = results[(results["arm"] == arm) & (results["seed"] == 1)]
        row = rows.sort_values("budget").iloc[-1]
        assert (made.budget, made.seed) == (row["budget"], 1)
        found = about(tmp_path / str(number))
        assert found["trained_tokens"] == row["tokens"]
        assert found["source"]["arm"] == arm
        assert made.params == row["params"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["scrach"], "has no arm 'scrach'"),
        (["ARM", "--seed", "7"], "has no seed 7: its seeds are 0, 1"),
        (["ARM", "--task", "words"], "has not run on 'words'"),
    ],
)
def test_what_is_not_there_is_refused(
    words: list[str], sentence: str, toy_run: toy.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from growbench import cli

    given = [str(toy_run.plan.arms[0].about["arm"]) if word == "ARM" else word for word in words]
    monkeypatch.setattr(
        sys, "argv", ["growbench", "export-model", str(toy_run.out), *given, "-o", str(tmp_path / "out")]
    )
    with pytest.raises(SystemExit) as left:
        cli.main()
    said = capsys.readouterr()
    assert left.value.code == 2
    assert sentence in said.err
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_it_wrote(
    toy_run: toy.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from growbench import cli

    arm = str(toy_run.plan.arms[0].about["arm"])
    words = ["growbench", "export-model", str(toy_run.out), arm, "-o", str(tmp_path / "out"), "--json"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code in (0, None)
    said = json.loads(capsys.readouterr().out)
    assert (said["arm"], said["seed"]) == (arm, 0)
    assert (tmp_path / "out" / "model.py").is_file()
