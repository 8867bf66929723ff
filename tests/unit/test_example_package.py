"""A package of somebody else, built and installed as theirs are, adds an engine and a transport; what is broken in it
is named, and in nobody else's way."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
SOURCE = Path(__file__).parents[1] / "example_package"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH, with the package as pip installs its wheel."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(SOURCE, folder / "source")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--no-index", "--no-deps"]
    argv = [*pip, "--no-build-isolation", "--target", str(folder / "packages"), str(folder / "source")]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "packages"


def fleet(site: Path, folder: Path, *args: str) -> tuple[int, str]:
    (folder / "hostfile").write_text("a slots=2\nb slots=2\n")
    (folder / "train.py").write_text("import os; print(os.environ['GREETING'], os.environ['RANK'])\n")
    env = {**os.environ, "PYTHONPATH": str(site), "NOTES": str(folder / "notes"), "HOME": str(folder)}
    argv = [sys.executable, "-m", "fleet", *args]
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout + done.stderr


def test_its_engine_and_its_transport_run_a_job(site: Path, tmp_path: Path) -> None:
    words = ("--engine", "counted", "--greeting", "hi", "--no-preflight", "--workdir", str(tmp_path), "train.py")
    code, output = fleet(site, tmp_path, "--transport", "noted", "-w", "a", "launch", *words)
    assert code == 0 and "[a:0] hi 0" in output and "[a:1] hi 1" in output, output
    assert set((tmp_path / "notes").read_text().split()) == {"a"}
    assert "counted" in fleet(site, tmp_path, "launch", "--help")[1]


@pytest.mark.parametrize(
    "words, why",
    [
        (("launch", "--engine", "refusing", "train.py"), "engine 'refusing' of fleet-example 1.0 cannot be loaded"),
        (("--transport", "unmade", "exec", "true"), "transport 'unmade' of fleet-example 1.0 cannot be loaded"),
    ],
)
def test_one_whose_constructor_raises_is_named(words: tuple[str, ...], why: str, site: Path, tmp_path: Path) -> None:
    code, output = fleet(site, tmp_path, *words)
    assert code == 2 and why in output and "RuntimeError: " in output and "Traceback" not in output, output
    assert fleet(site, tmp_path, "hosts")[0] == 0
