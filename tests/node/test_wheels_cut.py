"""Installs that are cut off: what the next one finds, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.node.python import install
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.node.installs import says, site, states, sync
from tests.node.nodes import until
from tests.wheelmaker import make_wheel


def pips(below: Path) -> list[int]:
    """Pids of a marked install into an environment that lies there."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes()
                if b"pip" in line and bytes(below) in line:
                    marked = b"FLEET_EXEC_ID=wheels-" in (entry / "environ").read_bytes()
                    found += [int(entry.name)] * marked
            except OSError:
                continue
    return found


# amid its files pip says that it has begun, and waits for what interrupts it; the next one goes on
WAITS = """
import builtins, os, time
begun, real = %r, open
def open(path, mode="r", *args, **more):
    if "w" in mode and str(path).endswith("/tinypkg/m500.py") and not os.path.exists(begun):
        real(begun, "w").close()
        time.sleep(600)
    return real(path, mode, *args, **more)
builtins.open = open
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_an_install_that_is_interrupted_heals_on_the_next_run(python: Path, folder: Path, how: str) -> None:
    files = {"tinypkg/__init__.py": "", **{f"tinypkg/m{i}.py": f"x{i} = 1\n" for i in range(1000)}}
    make_wheel(folder, "tinypkg", "0.9")
    states(sync(folder, python))
    (folder / "tinypkg-0.9-py3-none-any.whl").unlink()
    make_wheel(folder, "tinypkg", "1.0", files=files)
    runtime = Runtime(LocalTransport())
    begun = folder.parent / "begun"
    (site(python) / "waits.py").write_text(WAITS % str(begun))
    (site(python) / "waits.pth").write_text("import waits\n")  # Debian has a sitecustomize of its own before any other

    def interrupt() -> None:
        until(begun.exists)
        if how == "cancel":
            runtime.cancel.set()
        else:
            for pid in pips(folder.parent):
                os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=interrupt)
    thread.start()
    report = sync(folder, python, runtime=runtime)
    thread.join()
    assert not report.ok and report.exit_code == (130 if how == "cancel" else 1)
    until(lambda: not pips(folder.parent))
    states(sync(folder, python))
    assert says(python, "import tinypkg.m999; print(tinypkg.m999.x999)") == "1"
    assert states(sync(folder, python)) == [{"tinypkg": "there"}]
    assert not list(site(python).glob("~*")) and len(list(site(python).glob("tinypkg-*.dist-info"))) == 1


def cut_off(python: Path, folder: Path, put_in: str) -> None:
    """An install of the folder's wheels; its pip does no more than this line for sh, then the host goes down."""
    dies = python.with_name("dies")
    dies.write_text(
        f'#!/bin/sh\ncase "$*" in "-m pip "*) cd {site(python)}; {put_in}; kill -9 $PPID; exit 1; esac\n'
        f'exec {python} "$@"\n'
    )
    dies.chmod(0o755)
    assert not sync(folder, dies).ok
    assert list(site(python).glob("tinypkg/*"))


@pytest.mark.slow
def test_a_host_that_goes_down_when_all_files_are_there_but_no_more(python: Path, folder: Path) -> None:
    wheel = make_wheel(folder)
    cut_off(python, folder, f"{python} -m zipfile -e {wheel} .")
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert (site(python) / "tinypkg-1.0.dist-info/INSTALLER").exists()
    assert states(sync(folder, python)) == [{"tinypkg": "there"}]


@pytest.mark.slow
def test_a_host_that_goes_down_in_the_middle_is_healed_by_the_next_install(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", "1.0", files={"tinypkg/__init__.py": "", "tinypkg/core.py": "x = 1\n"})
    cut_off(python, folder, "mkdir tinypkg; echo 'x = ' >tinypkg/core.py")
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert says(python, "import tinypkg.core; print(tinypkg.core.x)") == "1"


@pytest.mark.parametrize(
    "record", [b"", *(pytest.param(it, marks=pytest.mark.slow) for it in (b"\0" * 4096, b"\xff\xfe,,\n"))]
)
def test_a_record_that_a_crash_left_empty_is_no_installed_wheel(python: Path, folder: Path, record: bytes) -> None:
    with zipfile.ZipFile(make_wheel(folder)) as wheel:
        wheel.extractall(site(python))
    (site(python) / "tinypkg-1.0.dist-info/RECORD").write_bytes(record)
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert (site(python) / "tinypkg-1.0.dist-info/RECORD").read_bytes().startswith(b"tinypkg")


def test_no_import_is_ended_once_all_are_over_also_where_one_could_not_begin(tmp_path: Path) -> None:
    """The end of a program would kill for ever what it has started no more."""
    wheel: Any = {"name": "w", "version": "1", "modules": []}
    spec: Any = {"mark": "m", "import_deadline": 1.0}
    with pytest.raises(FileNotFoundError):
        install.import_all(str(tmp_path / "no-python"), SimpleNamespace(env={}), spec, {}, [wheel])  # type: ignore[arg-type]
    assert not install.importing.is_set()
