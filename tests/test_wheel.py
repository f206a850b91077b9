"""The wheel as its user has it: built, installed into an environment of its own, and run outside the repository."""

import json
import os
import shutil
import site
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import toy

from growbench import plugins, study

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
FOLDERS = {"growbench": "growbench", **{name: f"growbench/{name}" for name in ("strategies", "tasks", "reports")}}
"""Where the wheel has the folders of the repository."""
SUFFIXES = {".py", ".yaml", ".html", ".css", ".js", ".typed"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # building writes into the source tree
    shutil.copytree(ROOT, source, symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info", "runs"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "wheel"]
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def packages(wheel: Path) -> Path:
    """Where the wheel is installed; what growbench needs is read from this environment's packages."""
    env = wheel.parent / "env"
    venv.create(env, with_pip=False)
    packages = env / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    outer = "".join(f"import site; site.addsitedir({place!r})\n" for place in site.getsitepackages())
    (packages / "outer.pth").write_text(outer, encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(env), "--quiet", "--disable-pip-version-check", "install"]
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    return packages


def growbench(packages: Path, *words: str, cwd: Path) -> str:
    """The installed command, which knows neither the repository nor this process's home."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"HOME": str(cwd), "OMP_NUM_THREADS": "1"}
    command = packages.parents[2] / "bin" / "growbench"
    done = subprocess.run([command, *words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_holds_every_module_and_resource_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.startswith("growbench-")}
    assert names == {
        f"{inside}/{path.relative_to(ROOT / folder)}"
        for folder, inside in FOLDERS.items()
        for path in (ROOT / folder).rglob("*")
        if path.suffix in SUFFIXES and "__pycache__" not in path.parts
    }
    kinds = {Path(name).suffix for name in names}
    assert kinds == SUFFIXES
    assert {"growbench/py.typed", "growbench/studies/quick.yaml", "growbench/reports/page.html"} <= names


def test_nothing_generic_lands_among_the_packages(packages: Path) -> None:
    own = {path.name for path in packages.iterdir() if not path.name.startswith("growbench-")}
    assert own == {"growbench", "outer.pth"}


def test_it_lists_what_the_repository_has(packages: Path, tmp_path: Path) -> None:
    listed = json.loads(growbench(packages, "list", "--json", cwd=tmp_path))
    for kind, known in plugins.KINDS.items():
        assert [row["name"] for row in listed[known.plural]] == list(plugins.discover(kind))
    assert [row["name"] for row in listed["studies"]] == study.shipped()


def test_it_runs_a_study_and_writes_its_report(packages: Path, tmp_path: Path) -> None:
    toy_study = toy.study(tmp_path, strategies=["scratch", "zero_pad"])
    (tmp_path / "toy.yaml").write_text(toy_study.to_yaml(), encoding="utf-8")
    said = growbench(packages, "run", "toy.yaml", "--workers", "1", "--json", cwd=tmp_path)
    assert json.loads(said)["failed"] == 0
    page = (tmp_path / "runs" / "toy" / "report.html").read_text(encoding="utf-8")
    assert "transformer/zero_pad" in page
    command = [str(packages.parents[2] / "bin" / "python"), "-c", "import growbench; print(growbench.__file__)"]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    found = subprocess.run(command, cwd=tmp_path, env=env, check=True, capture_output=True, text=True).stdout
    assert Path(found.strip()).is_relative_to(packages)
