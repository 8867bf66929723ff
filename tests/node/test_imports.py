"""What preflight finds of imports: done once for what is installed, in the interpreter that trains."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from fleet.node.facts.ask import ASK_PYTHON, imports

SYSTEM = "/usr/bin/python3"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the interpreter's packages, and a home with fleet's folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".fleet").mkdir(mode=0o700)
    (tmp_path / "site/torch/lib").mkdir(parents=True)
    (tmp_path / "site/torch/lib/libtorch.so").write_text("whole")
    return tmp_path / "site"


def ask(site: Path, text: str | None, *modules: str, **env: str) -> dict[str, str]:
    if text is not None:
        (site / "torch/__init__.py").write_text(text)
    return imports(SYSTEM, {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), **env}, list(modules or ("torch",)))


COUNTS = "import os\nwith open(os.environ['COUNT'], 'a') as f:\n    f.write('x')\n"


def test_what_works_is_imported_once_until_something_changes(site: Path, tmp_path: Path) -> None:
    count = tmp_path / "count"
    for _ in range(3):
        assert ask(site, None if count.exists() else COUNTS, COUNT=str(count)) == {}
    assert count.read_text() == "x"
    (site / "torch/lib/libtorch.so").write_text("cut")  # in place: no folder changes
    ask(site, None, COUNT=str(count))
    ask(site, None, COUNT=str(count), LD_LIBRARY_PATH="/opt/other")
    (site / "numpy-2.dist-info").mkdir()
    ask(site, None, COUNT=str(count))
    assert count.read_text() == "xxxx"
    kept = tmp_path / ".fleet/imports.json"
    assert kept.stat().st_mode & 0o777 == 0o600 and len(json.loads(kept.read_text())) == 4


def test_why_it_fails_is_named_and_asked_again(site: Path, tmp_path: Path) -> None:
    text = "raise ImportError('libcudart.so.12: cannot open shared object file')"
    for _ in range(2):
        assert ask(site, text) == {"torch": "ImportError: libcudart.so.12: cannot open shared object file"}
    assert ask(site, "import numpy_that_is_not_there") == {
        "torch": "ModuleNotFoundError: No module named 'numpy_that_is_not_there'"
    }
    assert ask(site, "def f(:") == {"torch": "SyntaxError: invalid syntax (__init__.py, line 1)"}
    assert ask(site, "import os; os.kill(os.getpid(), 11)") == {"torch": "ended by signal 11"}
    assert ask(site, "raise SystemExit(3)") == {"torch": "SystemExit: 3"}
    assert not (tmp_path / ".fleet/imports.json").exists()
    assert ask(site, "print('noise')") == {} == ask(site, "print('noise')", "torch", "deepspeed_is_not_here")


def test_a_file_of_the_working_folder_is_not_meant(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "torch.py").write_text("raise ImportError('mine')")
    assert ask(site, "") == {}


@pytest.mark.parametrize("damage", ["", "{", '"x"', "{}", "[1, null]"])
def test_a_damaged_memory_is_forgotten(site: Path, tmp_path: Path, damage: str) -> None:
    (tmp_path / ".fleet/imports.json").write_text(damage)
    assert ask(site, "") == {}
    assert len(json.loads((tmp_path / ".fleet/imports.json").read_text())[-1]) == 64


def test_a_folder_of_packages_that_is_closed_to_this_user(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(folder.stat().st_mode | 0o055)
    told = subprocess.run(
        [SYSTEM, "-c", ASK_PYTHON],
        env={"PYTHONPATH": str(closed)},
        user=65534,
        group=65534,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout.splitlines()[-1])["unreadable"] == [str(closed)]
