"""Wheels into a real interpreter of this machine: real pip, real node programs, only ssh left out."""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from fleet.errors import Interrupted
from fleet.events import Notice
from fleet.model import Report
from fleet.ops.cache import turn
from fleet.ops.wheels.node import digest_of_set
from fleet.ops.wheels.wheel import read_wheel
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.node.installs import error, says, site, states, sync
from tests.node.nodes import alive, until
from tests.wheelmaker import make_env, make_wheel

HUGE = base64.b64encode(os.urandom(1 << 20)).decode()


def test_installed_then_nothing_to_do_then_the_next_version(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", "1.0")
    make_wheel(folder, "userpkg", "2.0", requires=["tinypkg>=1", "nothere; extra == 'never'"])
    assert states(sync(folder, python)) == [{"tinypkg": "installed", "userpkg": "installed"}]
    assert says(python, "import tinypkg; print(tinypkg.__version__)") == "1.0"
    assert states(sync(folder, python)) == [{"tinypkg": "there", "userpkg": "there"}]
    (folder / "tinypkg-1.0-py3-none-any.whl").unlink()
    make_wheel(folder, "tinypkg", "1.1")
    assert states(sync(folder, python)) == [{"tinypkg": "installed", "userpkg": "there"}]
    assert says(python, "import tinypkg; print(tinypkg.__version__)") == "1.1"
    # what was carried is gone again
    assert not list((Path.home() / ".fleet/wheels").glob("?" * 24 + "*"))


@pytest.mark.slow
def test_the_same_version_with_another_content_is_installed_anew(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "x = 1\n"})
    sync(folder, python)
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "x = 2\n"})
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert says(python, "import tinypkg; print(tinypkg.x)") == "2"


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "damage", [*(pytest.param(it, marks=SLOW) for it in ("no RECORD", "file gone", "pip's leftovers")), "file cut"]
)
def test_what_an_interrupted_install_left_is_healed(python: Path, folder: Path, damage: str) -> None:
    make_wheel(folder, "tinypkg", files={"tinypkg/__init__.py": "x = 1\n", "tinypkg/b.py": "y = 2\n"})
    sync(folder, python)
    installed = site(python)
    if damage == "file gone":
        (installed / "tinypkg/b.py").unlink()
    elif damage == "file cut":
        (installed / "tinypkg/b.py").write_text("y")
    else:
        (installed / "tinypkg-1.0.dist-info/RECORD").unlink()
        if damage == "pip's leftovers":
            shutil.copytree(installed / "tinypkg", installed / "~inypkg")
            (installed / "tinypkg/b.py").unlink()
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert says(python, "import tinypkg.b; print(tinypkg.b.y)") == "2"
    assert not list(installed.glob("~*"))
    assert states(sync(folder, python)) == [{"tinypkg": "there"}]


def test_an_unmet_requirement_is_said_and_nothing_touched(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", requires=["surelynothere>=3", "packaging<1"])
    report = sync(folder, python)
    assert report.exit_code == 123
    assert "tinypkg needs surelynothere>=3 (absent), tinypkg needs packaging<1 (has " in error(report).message
    assert not (site(python) / "tinypkg").exists()


@pytest.mark.slow
def test_an_import_that_fails_is_a_failure_also_the_next_time(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "raise OSError('libfoo.so.1: cannot open')\n"})
    for _ in range(2):
        report = sync(folder, python)
        assert report.exit_code == 1
        assert "'import tinypkg' fails: OSError: libfoo.so.1: cannot open" in error(report).message
        assert report.results[0].as_json()["wheels"] == {"tinypkg": "there"}


@pytest.mark.slow
def test_an_import_that_hangs_or_dies(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "import time; time.sleep(1000)\n"})
    assert "'import tinypkg' took more than 2 s" in error(sync(folder, python, import_timeout=2)).message
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "import os; os.kill(os.getpid(), 11)\n"})
    assert "'import tinypkg' fails: signal 11" in error(sync(folder, python)).message


def test_ctrl_c_while_it_is_imported(python: Path, folder: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = (
        f"import os, time\nopen({str(begun)!r}, 'w').write(str(os.getpid()))\nos.rename({str(begun)!r}, "
        f"{str(begun) + '2'!r})\ntime.sleep(1000)\n"
    )
    make_wheel(folder, "tinypkg", files={"tinypkg.py": code})
    runtime = Runtime(LocalTransport())

    def interrupt() -> None:
        until(Path(str(begun) + "2").exists)
        runtime.cancel.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    report = sync(folder, python, runtime=runtime)
    thread.join()
    assert report.exit_code == 130
    until(lambda: not alive(int(Path(str(begun) + "2").read_text())))


def test_one_bad_host_keeps_all_as_they_were(python: Path, folder: Path, tmp_path: Path) -> None:
    make_wheel(folder)
    report = sync(folder, python, tmp_path / "no/such/python")
    assert report.exit_code == 1
    assert "no such program" in str(report.results[1].error)
    assert "nothing was sent: n2 could not" in str(report.results[0].error)
    assert not (site(python) / "tinypkg").exists()


def test_pythons_without_pip(python: Path, folder: Path, tmp_path: Path) -> None:
    bare = make_env(tmp_path / "bare")
    (site(bare) / "behind.pth").unlink()
    make_wheel(folder)
    report = sync(folder, bare, python)
    assert report.exit_code == 123 and "has no pip" in error(report).message
    assert "ensurepip" in (error(report).hint or "")


@pytest.mark.slow
def test_the_nodes_pip_configuration_has_no_say(
    python: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    make_wheel(trap, "tinypkg", "1.0", files={"tinypkg.py": "x = 'wrong'\n"}, tag="py312.py311.py310.py3-none-any")
    monkeypatch.setenv("PIP_FIND_LINKS", str(trap))
    monkeypatch.setenv("PIP_REQUIRE_VIRTUALENV", "1")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    make_wheel(folder, "tinypkg", "1.0", files={"tinypkg.py": "x = 'right'\n"})
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert says(python, "import tinypkg; print(tinypkg.x)") == "right"


@pytest.mark.slow
def test_two_at_once_into_one_interpreter(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", files={"tinypkg/__init__.py": "", **{f"tinypkg/d{i}.txt": HUGE for i in range(6)}})
    # two hosts of one shared file system, and another head at the same time
    reports: list[Report] = []
    threads = [threading.Thread(target=lambda: reports.append(sync(folder, python, python))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = [state["tinypkg"] for report in reports for state in states(report)]
    assert sorted(set(found)) in (["installed", "there"], ["installed"]) and found.count("installed") == 1


@pytest.mark.slow
def test_a_lock_that_is_held_is_waited_for_and_said(
    python: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.ops.wheels.node.LOCK_SECONDS", 1.0)
    make_wheel(folder)
    holder = subprocess.Popen(
        [
            "python3",
            "-c",
            "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
            "print('held', flush=True); sys.stdin.read()",
            str(site(python) / ".fleet-install.lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    assert "another install into" in error(sync(folder, python)).message
    holder.communicate()
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    with (site(python) / ".fleet-install.lock").open("r+") as f:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.slow
def test_a_second_sync_of_the_same_wheels_waits_and_finds_them_there(python: Path, folder: Path) -> None:
    path = make_wheel(folder)
    notices: list[str] = []
    runtime = Runtime(LocalTransport(), emit=lambda event: notices.append(getattr(event, "message", "")))
    reports: list[Report] = []
    second = threading.Thread(target=lambda: reports.append(sync(folder, python, runtime=runtime)))
    with turn(digest_of_set((read_wheel(path),)), "another sync", Runtime(LocalTransport())) as waited:
        second.start()
        until(lambda: any("another sync of these wheels is under way" in notice for notice in notices))
        assert not waited and not list((Path.home() / ".fleet").glob("wheels/*-*"))
        subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", path], check=True)
    second.join()
    assert states(reports[0]) == [{"tinypkg": "there"}]
    assert not list((Path.home() / ".cache/fleet/locks").iterdir())


def test_ctrl_c_ends_the_waiting_for_another_sync(python: Path, folder: Path) -> None:
    path = make_wheel(folder)
    runtime = Runtime(LocalTransport(), emit=lambda event: runtime.cancel.set() if isinstance(event, Notice) else None)
    with (
        turn(digest_of_set((read_wheel(path),)), "another sync", Runtime(LocalTransport())),
        pytest.raises(Interrupted),
    ):
        sync(folder, python, runtime=runtime)
