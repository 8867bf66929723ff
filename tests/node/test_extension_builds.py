"""Locks of builds of torch extensions that nobody holds: found before a run, told in it, taken away by its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.rules.ended import ended_by
from tests.free_port import free_port
from tests.node.nodes import Running, answer, final, folder_of, read_json, supervise_spec, until
from tests.node.test_preflight import facts, spec

# what torch's and DeepSpeed's builds do first, in the words of torch
BUILD = """
import importlib.util, os, sys, time
(torch,) = importlib.util.find_spec("torch").submodule_search_locations
sys.path.insert(0, os.path.join(torch, "utils"))
FileBaton = importlib.import_module("file_baton").FileBaton
os.makedirs(sys.argv[1], exist_ok=True)
baton = FileBaton(os.path.join(sys.argv[1], "lock"))
if not baton.try_acquire():
    baton.wait()
print("built", flush=True)
time.sleep(600)
"""


@pytest.fixture
def builder(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A build under way, and its lock."""
    folder = tmp_path / "home/.cache/torch_extensions/py311_cpu/cpu_adam"
    process = subprocess.Popen([sys.executable, "-c", BUILD, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout and process.stdout.readline() == "built\n"
        yield process, folder / "lock"
    finally:
        process.kill()
        process.communicate()


def test_a_lock_that_nobody_holds_is_found_before_a_run(builder: tuple[subprocess.Popen[str], Path]) -> None:
    process, lock = builder
    home = lock.parents[4]
    assert facts(home, free_port())["builds"] == []
    process.kill()
    process.wait()
    assert facts(home, free_port())["builds"] == [{"path": str(lock), "sure": True}]
    assert facts(home, free_port(), env={"TORCH_EXTENSIONS_DIR": str(home)})["builds"] == []
    ours = {"TORCH_EXTENSIONS_DIR": str(lock.parents[1])}
    assert facts(home, free_port(), env=ours)["builds"] == [{"path": str(lock), "sure": True}]


CLOSED_MEANWHILE = """
import os
look = os.listdir
os.listdir = lambda path: [*["999999"] * path.endswith("/fd/"), *look(path)]
"""


def test_a_file_that_its_holder_closes_meanwhile_hides_no_other(home: Path, tmp_path: Path) -> None:
    lock = tmp_path / "op/lock"
    lock.parent.mkdir()
    asked = spec(free_port(), env={"TORCH_EXTENSIONS_DIR": str(tmp_path)})
    with lock.open("w"):
        assert answer("preflight.probe", asked, home, first=CLOSED_MEANWHILE)["facts"]["builds"] == []
    assert facts(home, free_port(), env=asked["env"])["builds"] == [{"path": str(lock), "sure": True}]


def start(home: Path, run: str, folder: Path) -> None:
    spec = supervise_spec(
        run, [sys.executable, "-c", BUILD, str(folder)], env={"TORCH_EXTENSIONS_DIR": str(folder.parent)}
    )
    assert answer("run.supervise", spec, home)["event"] == "started"


def test_a_rank_that_waits_in_one_is_told(home: Path, run: str) -> None:
    folder = home / "ext/fused_adam"
    folder.mkdir(parents=True)
    (folder / "lock").touch()
    start(home, run, folder)
    with Running("run.follow", {"run": run, "offsets": {}}, home) as follow:
        for frame in follow.frames():
            if frame.kind == b"J" and frame.json().get("builds"):
                assert (frame.json()["builds"], frame.json()["state"]) == ([str(folder / "lock")], "running")
                break
    answer("run.stop", {"run": run, "grace": 0.5}, home)
    assert (folder / "lock").exists(), "not of this run"


@pytest.mark.parametrize("how", ["stop", "killed first", "supervisor killed"])
def test_the_end_of_a_run_takes_its_own_away(home: Path, run: str, how: str) -> None:
    folder, foreign = home / "ext/fused_adam", home / "ext/other/lock"
    foreign.parent.mkdir(parents=True)
    foreign.touch()
    start(home, run, folder)
    until(lambda: b"built" in (folder_of(home, run) / "node.log").read_bytes())  # a CUDA torch is imported
    record = read_json(folder_of(home, run) / "pid")
    if how == "supervisor killed":
        os.kill(record["pid"], signal.SIGKILL)
    elif how == "killed first":
        children = Path(f"/proc/{record['pid']}/task/{record['pid']}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
    else:
        assert (folder / "lock").exists()
        answer("run.stop", {"run": run, "grace": 5}, home)
    assert final(home, run)["state"] in ("exited", "stopped", "lost")
    until(lambda: not (folder / "lock").exists())
    assert foreign.exists()


def test_what_a_build_that_was_cut_short_lacks_is_hinted_at() -> None:
    cause = ended_by(
        "ImportError: /root/.cache/torch_extensions/py311_cpu/cpu_adam/cpu_adam.so: cannot open shared "
        "object file: No such file or directory\n"
    )
    assert "rm -rf /root/.cache/torch_extensions/py311_cpu/cpu_adam'" in (cause.remedy or "")
