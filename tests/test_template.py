"""docs/template-plugin as its user has it: copied, installed into an environment of its own, listed, tested, run."""

import json
import os
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import toy
import yaml
from pages import blocks

ROOT = Path(__file__).parents[1]
GROWBENCH = ("-c", "from growbench.cli import main; main()")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the template in it; what growbench needs is read from this one's packages."""
    folder = tmp_path_factory.mktemp("template")
    shutil.copytree(ROOT / "docs" / "template-plugin", folder / "copy")
    venv.create(folder / "env", with_pip=False)
    packages = folder / "env" / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (packages / "outer.pth").write_text(
        "".join(f"import site; site.addsitedir({p!r})\n" for p in site.getsitepackages())
    )
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "env"), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", str(folder / "copy")], check=True)
    return folder / "env" / "bin" / "python"


def run(python: Path, *arguments: str, cwd: Path) -> str:
    environment = os.environ | {"HOME": str(cwd), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([python, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_strategy_is_listed_with_its_package(python: Path, tmp_path: Path) -> None:
    listed = json.loads(run(python, *GROWBENCH, "list", "--json", cwd=tmp_path))
    (found,) = [strategy for strategy in listed["strategies"] if strategy["name"] == "spread"]
    assert found["origin"] == "entry point of growbench-spread 0.1.0"


def test_the_commands_of_its_readme_run(python: Path) -> None:
    """pytest among them: its own tests pass."""
    copy, said = python.parents[2] / "copy", []
    calls = {"growbench": GROWBENCH, "pytest": ("-m", "pytest", "-p", "no:cacheprovider")}
    for block in blocks(copy / "README.md"):
        for line in block.text.splitlines() if block.language == "sh" and not block.reason else ():
            command, *words = line.partition("#")[0].split()
            said.append(run(python, *calls[command], *words, cwd=copy))
    assert len(said) == 3
    assert " passed" in said[-1]


def test_a_study_names_it_as_it_does_a_built_in(python: Path, tmp_path: Path) -> None:
    study = toy.study(tmp_path, strategies=["scratch"]).model_dump(mode="json")
    study["strategies"] = ["scratch", "spread"]
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    run(python, *GROWBENCH, "run", "toy.yaml", "--out", "out", cwd=tmp_path)
    claims = run(python, *GROWBENCH, "status", "out", "--json", cwd=tmp_path)
    assert json.loads(claims)["failed"] == 0
    assert "transformer/spread" in (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
