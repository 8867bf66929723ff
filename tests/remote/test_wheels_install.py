"""Wheels into a real interpreter of this machine: real pip, real node programs, only ssh left out."""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from nodes import alive, until

from fleet.errors import FleetError, Interrupted
from fleet.events import Notice
from fleet.model import Host, Inventory, Report
from fleet.ops import wheels
from fleet.ops.runtime import Runtime
from fleet.ops.wheels.cache import claimed
from fleet.ops.wheels.carry import digest_of_set
from fleet.ops.wheels.wheel import read_wheel
from fleet.transport.local import LocalTransport
from tests.wheelmaker import make_env, make_wheel

HUGE = base64.b64encode(os.urandom(1 << 20)).decode()


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A training interpreter, on a "node" whose home is not ours."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return make_env(tmp_path / "env")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


def sync(folder: Path, *pythons: Path, runtime: Runtime | None = None, **options: Any) -> Report:
    hosts = tuple(Host(f"n{i}", "127.0.0.1", python=str(p)) for i, p in enumerate(pythons, 1))
    inventory = Inventory(hosts)
    plan = wheels.make_plan(inventory, folder)
    return wheels.execute(inventory, plan, wheels.WheelsOptions(**options), runtime or Runtime(LocalTransport()))


def states(report: Report) -> list[dict[str, str]]:
    assert report.ok, [str(r.error) for r in report.results]
    return [dict(r.data["wheels"]) for r in report.results]


def error(report: Report) -> FleetError:
    assert not report.ok and report.results[0].error
    return report.results[0].error


def says(python: Path, code: str) -> str:
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def site(python: Path) -> Path:
    return next(python.parent.parent.glob("lib/python3*/site-packages"))


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


def test_the_same_version_with_another_content_is_installed_anew(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "x = 1\n"})
    sync(folder, python)
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "x = 2\n"})
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    assert says(python, "import tinypkg; print(tinypkg.x)") == "2"


@pytest.mark.parametrize("damage", ["no RECORD", "file gone", "file cut", "pip's leftovers"])
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


def test_an_import_that_fails_is_a_failure_also_the_next_time(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "raise OSError('libfoo.so.1: cannot open')\n"})
    for _ in range(2):
        report = sync(folder, python)
        assert report.exit_code == 1
        assert "'import tinypkg' fails: OSError: libfoo.so.1: cannot open" in error(report).message
        assert report.results[0].as_json()["wheels"] == {"tinypkg": "there"}


def test_an_import_that_hangs_or_dies(python: Path, folder: Path) -> None:
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "import time; time.sleep(100)\n"})
    assert "'import tinypkg' took more than 2 s" in error(sync(folder, python, import_seconds=2)).message
    make_wheel(folder, "tinypkg", files={"tinypkg.py": "import os; os.kill(os.getpid(), 11)\n"})
    assert "'import tinypkg' fails: signal 11" in error(sync(folder, python)).message


def test_ctrl_c_while_it_is_imported(python: Path, folder: Path, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    code = f"import os, time\nopen({str(begun)!r}, 'w').write(str(os.getpid()))\nos.rename({str(begun)!r}, " \
           f"{str(begun) + '2'!r})\ntime.sleep(100)\n"
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


def test_a_lock_that_is_held_is_waited_for_and_said(
    python: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet.ops.wheels.node.LOCK_SECONDS", 1.0)
    make_wheel(folder)
    holder = subprocess.Popen(
        ["python3", "-c", "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
         "print('held', flush=True); sys.stdin.read()", str(site(python) / ".fleet-install.lock")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout and holder.stdout.readline() == b"held\n"
    assert "another install into" in error(sync(folder, python)).message
    holder.communicate()
    assert states(sync(folder, python)) == [{"tinypkg": "installed"}]
    with (site(python) / ".fleet-install.lock").open("r+") as f:
        fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)


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


def test_a_second_sync_of_the_same_wheels_waits_and_finds_them_there(python: Path, folder: Path) -> None:
    path = make_wheel(folder)
    notices: list[str] = []
    runtime = Runtime(LocalTransport(), emit=lambda event: notices.append(getattr(event, "message", "")))
    reports: list[Report] = []
    second = threading.Thread(target=lambda: reports.append(sync(folder, python, runtime=runtime)))
    with claimed(digest_of_set((read_wheel(path),)), "another sync", Runtime(LocalTransport())) as waited:
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
    with (claimed(digest_of_set((read_wheel(path),)), "another sync", Runtime(LocalTransport())),
          pytest.raises(Interrupted)):
        sync(folder, python, runtime=runtime)
