"""Installs that are cut off: what the next one finds, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
from installs import says, site, states, sync
from nodes import until

from fleet.ops.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.wheelmaker import make_wheel


def pips(mark: str) -> list[int]:
    """Pids of a marked install."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes() and b"pip" in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_an_install_that_is_interrupted_heals_on_the_next_run(python: Path, folder: Path, how: str) -> None:
    files = {"tinypkg/__init__.py": "", **{f"tinypkg/m{i}.py": f"x{i} = 1\n" * 200 for i in range(400)}}
    make_wheel(folder, "tinypkg", "0.9")
    states(sync(folder, python))
    (folder / "tinypkg-0.9-py3-none-any.whl").unlink()
    make_wheel(folder, "tinypkg", "1.0", files=files)
    runtime = Runtime(LocalTransport())
    target = site(python) / "tinypkg" / "m100.py"

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while not target.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        if how == "cancel":
            runtime.cancel.set()
        else:
            for pid in pips("FLEET_EXEC_ID=wheels-"):
                if str(folder.parent) in Path(f"/proc/{pid}/cmdline").read_text():
                    os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=interrupt)
    thread.start()
    report = sync(folder, python, runtime=runtime)
    thread.join()
    assert not report.ok and report.exit_code == (130 if how == "cancel" else 1)
    # nothing of it stays; pip may have been through just then
    until(lambda: len(list(site(python).glob("tinypkg/m*.py"))) in (0, 400) and not pips("FLEET_EXEC_ID=wheels-"))
    # pip may have been through just then, yet nothing was imported: the next run does what is left
    states(sync(folder, python))
    assert says(python, "import tinypkg.m399; print(tinypkg.m399.x399)") == "1"
    assert states(sync(folder, python)) == [{"tinypkg": "there"}]
    assert not list(site(python).glob("~*")) and len(list(site(python).glob("tinypkg-*.dist-info"))) == 1


def test_a_host_that_goes_down_in_the_middle_leaves_nothing_to_the_next_install(python: Path, folder: Path) -> None:
    files = {"tinypkg/__init__.py": "", **{f"tinypkg/m{i}.py": f"x{i} = 1\n" * 200 for i in range(400)}}
    make_wheel(folder, "tinypkg", "1.0", files=files)
    target = site(python) / "tinypkg" / "m100.py"

    def power_off() -> None:
        until(target.exists)
        mark = f"{folder.parent}".encode()
        for pid in pips("FLEET_EXEC_ID=wheels-"):
            if mark in Path(f"/proc/{pid}/cmdline").read_bytes():
                parent = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
                os.kill(parent, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=power_off)
    thread.start()
    report = sync(folder, python)
    thread.join()
    assert not report.ok and report.results[0].data["wheels"] == {"tinypkg": "unknown"}
    assert list(site(python).glob("tinypkg/m*.py"))
    # another wheel altogether: what was left of the first one is gone all the same
    other = make_wheel(folder.parent / "other", "userpkg")
    assert states(sync(other, python)) == [{"userpkg": "installed"}]
    assert not (site(python) / "tinypkg").exists() and not list(site(python).glob("tinypkg*"))


A_MODULE = "mkdir -p tinypkg/__pycache__; echo y = 2 >tinypkg/new.py; : >tinypkg/__pycache__/new.cp1.pyc"


def cut_off(python: Path, folder: Path, put_in: str) -> None:
    """An install of the folder's wheels; its pip does no more than this line for sh, then the host goes down."""
    dies = python.with_name("dies")
    dies.write_text(
        f'#!/bin/sh\ncase "$*" in "-m pip "*) cd {site(python)}; {put_in}; kill -9 $PPID; exit 1; esac\n'
        f'exec {python} "$@"\n'
    )
    dies.chmod(0o755)
    assert not sync(folder, dies).ok
    assert list(site(python).glob("tinypkg/*")) and list((Path.home() / ".fleet/wheels").glob("adding-*"))


def test_a_host_that_goes_down_when_all_files_are_there_but_no_more(python: Path, folder: Path) -> None:
    wheel = make_wheel(folder)
    cut_off(python, folder, f"{python} -m zipfile -e {wheel} .")
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert (site(python) / "tinypkg-1.0.dist-info/INSTALLER").exists()
    make_wheel(folder, "secondpkg")
    wheel = make_wheel(folder, "tinypkg", "1.1")
    (folder / "tinypkg-1.0-py3-none-any.whl").unlink()
    subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", "tinypkg"], check=True)
    cut_off(python, folder, f"{python} -m zipfile -e {wheel} .; echo pip >tinypkg-1.1.dist-info/INSTALLER")
    assert states(sync(make_wheel(folder.parent / "other", "userpkg"), python)) == [{"userpkg": "installed"}]
    assert not list(site(python).glob("tinypkg*"))


@pytest.mark.parametrize("by_hand", ["1.9", "2.0"])
def test_what_was_installed_by_hand_since_stays(python: Path, folder: Path, tmp_path: Path, by_hand: str) -> None:
    files = {"tinypkg/__init__.py": "", "tinypkg/core.py": "x = 'fleet'\n", "tinypkg/new.py": "y = 2\n"}
    make_wheel(folder, "tinypkg", "2.0", files=files)
    cut_off(python, folder, A_MODULE)
    own = {"tinypkg/__init__.py": "", "tinypkg/core.py": "x = 'mine'\n"}
    wheel = make_wheel(tmp_path / "mine", "tinypkg", by_hand, files=own)
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", wheel], check=True)
    assert states(sync(make_wheel(tmp_path / "other", "userpkg"), python)) == [{"userpkg": "installed"}]
    assert says(python, "import tinypkg.core; print(tinypkg.core.x)") == "mine"
    # what is nobody's is gone, and the note with it
    assert not list(site(python).glob("tinypkg/**/new.*"))
    assert not list((Path.home() / ".fleet/wheels").glob("adding-*"))
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert says(python, "import tinypkg.core; print(tinypkg.core.x)") == "fleet"


def test_what_a_setup_py_installed_by_hand_since_stays(python: Path, folder: Path, tmp_path: Path) -> None:
    make_wheel(folder, "tinypkg", "2.0", files={"tinypkg/__init__.py": "", "tinypkg/new.py": ""})
    cut_off(python, folder, A_MODULE)
    info = site(python) / "tinypkg-1.9-py3.11.egg-info"
    info.mkdir()
    (site(python) / "tinypkg/__init__.py").write_text("x = 'mine'\n")
    (info / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: tinypkg\nVersion: 1.9\n")
    (info / "installed-files.txt").write_text("../tinypkg/__init__.py\nPKG-INFO\n")
    assert states(sync(make_wheel(tmp_path / "other", "userpkg"), python)) == [{"userpkg": "installed"}]
    assert says(python, "import tinypkg; print(tinypkg.x)") == "mine"
    assert not (site(python) / "tinypkg/new.py").exists()


@pytest.mark.parametrize("record", [b"", b"\0" * 4096, b"\xff\xfe,,\n"])
def test_a_record_that_a_crash_left_empty_is_no_installed_wheel(python: Path, folder: Path, record: bytes) -> None:
    make_wheel(folder)
    states(sync(folder, python))
    (site(python) / "tinypkg-1.0.dist-info/RECORD").write_bytes(record)
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert states(sync(folder, python)) == [{"tinypkg": "there"}]
