"""The README does what it says: its strategy is 15 lines and preserves the function, its commands exist."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import toy

from growbench import cli, plugins, study
from growbench.parametrization import Parametrization
from growbench.shape import Shape
from growbench.state import initial
from growbench.strategy import Probe

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture
def strategy(tmp_path: Path) -> Path:
    (source,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    path: Path = tmp_path / source.splitlines()[0].removeprefix("# ")
    path.write_text(source)
    return path


def test_the_strategy_has_15_lines_at_most_and_is_listed(strategy: Path) -> None:
    lines = [line for line in strategy.read_text().splitlines() if line.strip()]
    assert len(lines) - 1 <= 15  # the first names the file
    plugin = plugins.discover("strategy", [strategy])[strategy.stem]
    assert (plugin.error, plugin.fields) == ("", {"noise": "float = 1.0"})


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        (Shape(layers=2, residual=8, heads=2, key=4, value=4, ffn=16), {"residual": 16, "heads": 4, "ffn": 32}),
        (
            Shape(
                layers=2,
                residual=8,
                heads=2,
                key=4,
                value=4,
                ffn=16,
                placement="everywhere",
                tokens=4,
                nonlinearity="l2_gelu",
            ),
            {"tokens": 8, "ffn": 32},
        ),
    ],
    ids=["transformer", "tokenformer"],
)
def test_the_strategy_preserves_the_function(strategy: Path, source: Shape, changes: dict[str, Any]) -> None:
    target = replace(source, **changes)
    rng = torch.Generator().manual_seed(0)
    small = initial(source, Parametrization(name="mup", base=source), rng, torch.float64)
    made = plugins.load("strategy", strategy.stem, [strategy])()
    grown = made.grow(small, target, Probe(lambda _: torch.zeros(1, 9), 0), rng).state
    tokens = torch.randint(0, source.vocab, (4, 8), generator=rng)
    assert grown.shape == target
    torch.testing.assert_close(grown.model()(tokens), small.model()(tokens), rtol=0, atol=1e-10)


def test_every_command_and_make_target_named_exists() -> None:
    commands = {
        command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback
    }
    groups = {group.name for group in cli.app.registered_groups}
    named = set(re.findall(r"(?:`|^    )growbench (\w+)", README, flags=re.MULTILINE))
    assert named
    assert named <= commands | groups
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert set(re.findall(r"^    make ([\w-]+)", README, flags=re.MULTILINE)) <= targets


def test_its_commands_run(strategy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line that calls growbench, in the README's order, with a toy in place of `quick`."""
    lines = [line.split("#")[0].split() for line in re.findall(r"^    growbench (.*)$", README, flags=re.MULTILINE)]
    assert len(lines) >= 8
    toy.text(tmp_path)
    studies = tmp_path / "studies"
    studies.mkdir()
    quick = toy.study(tmp_path, strategies=["scratch", "zero_pad"]).model_copy(update={"study": "quick"})
    (studies / "quick.yaml").write_text(quick.to_yaml())
    monkeypatch.setattr(study, "_folder", lambda: studies)
    monkeypatch.chdir(tmp_path)
    for words in lines:
        monkeypatch.setattr("sys.argv", ["growbench", *words])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert not end.value.code, words
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"quick"}
    assert "twins" in (tmp_path / "runs/quick/report.html").read_text()


def test_it_is_a_screen_and_a_bit() -> None:
    assert len(README.splitlines()) <= 80
