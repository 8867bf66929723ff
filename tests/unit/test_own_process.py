"""What lies in the current folder is no code of fleet's: every process that fleet starts for itself shows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from fleet.errors import FleetError
from fleet.ops.build.source import fetch_deepspeed
from fleet.own_process import own_process
from tests.in_process import fleet_here

FLEET = Path(sys.executable).with_name("fleet")
OF_PYTHON = ("json", "re", "random")
NAMES = ("fleet", "pip", "setuptools", "click", "yaml", "paramiko", "ClusterShell", *OF_PYTHON)


@pytest.fixture
def handed(tmp_path: Path) -> Path:
    """A repository of another's: modules of well-known names, each of which leaves a file, and a run that claims to be
    unattended."""
    run = tmp_path / "repo/runs/t-20260101-000000-0000"
    run.mkdir(parents=True)
    trap = f"open({str(tmp_path / 'ran')!r}, 'a').write(__file__)\n"
    for folder in (tmp_path / "repo", run.parent, run):
        for name in NAMES:
            (folder / name).mkdir()
            (folder / name / "__init__.py").write_text(trap)
            (folder / name / "__main__.py").write_text(trap)
    (tmp_path / "repo/fleet.yaml").write_text("hosts: {n1: {address: 127.0.0.1, port: 1}}")
    inventory = {"source": str(tmp_path / "repo/fleet.yaml")}
    (run / "run.json").write_text(json.dumps({"inventory": inventory, "fleet": {"transport": "openssh"}}))
    (run / "events.jsonl").write_text('{"event": "running", "time": 1.0}\n{"event": "detached", "time": 1.0}\n')
    return tmp_path / "repo"


LINES = ["hosts", "runs", "ps", "check", "exec -- true", "sync", "launch t.py", "logs latest"]


@pytest.mark.parametrize("line, path", [*((line, "") for line in LINES), ("hosts", ":"), ("hosts", "/nowhere:")])
def test_a_handed_folder_runs_nothing(line: str, path: str, handed: Path) -> None:
    (handed / "t.py").write_text("")
    env = {"PATH": os.environ["PATH"], "HOME": str(handed.parent / "home"), "PYTHONPATH": path}
    (handed.parent / "home").mkdir()
    for name in OF_PYTHON if path else ():  # Python imports these before any program of anybody's begins
        shutil.rmtree(handed / name)
    os.utime(handed / "runs/t-20260101-000000-0000/events.jsonl", (1, time.time() - 30))
    done = subprocess.run([FLEET, *line.split()], cwd=handed, env=env, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    assert not started(env["HOME"]), done.stderr
    assert not (handed.parent / "ran").exists(), (handed.parent / "ran").read_text()


@pytest.mark.parametrize("named", [False, True])
def test_own_processes_import_nothing_from_here(named: bool, handed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the current folder is in sys.path by its name, as by PYTHONPATH=."""
    monkeypatch.chdir(handed)
    if named:
        monkeypatch.syspath_prepend(handed)
    with own_process("random:seed", 7) as process:
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"") and not (handed.parent / "ran").exists()


def test_pip_is_no_module_of_the_current_folder(handed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `fleet build deepspeed` begins with. Its index is an empty folder."""
    monkeypatch.chdir(handed)
    for name, value in {"XDG_CACHE_HOME": "cache", "PIP_FIND_LINKS": "repo/runs", "PIP_NO_INDEX": "1"}.items():
        monkeypatch.setenv(name, str(handed.parent / value) if value != "1" else value)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(FleetError, match="deepspeed"):
        fleet_here("h").run(lambda runtime: fetch_deepspeed("1", runtime))
    assert not (handed.parent / "ran").exists()


def started(home: str) -> list[bytes]:
    """Returns the command lines of processes that live with this $HOME."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"HOME={home}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes())
    return found
