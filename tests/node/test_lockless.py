"""Deliveries and runs on a file system without locks: Lustre without -o flock, some FUSE ones."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from fleet.delivery import lock_order
from fleet.errors import FleetError
from fleet.node.base.locks import holder_of, make, maker, release, try_lock, way_out
from fleet.node.base.processes import myself
from fleet.node.delivery.sync_state import begin_from, delivery
from tests.node.seams import Tap, at
from tests.node.test_code_sync import mirror, ok, snapshot
from tests.node.test_code_sync_odd import NEED

LOCKLESS = """
import errno, fcntl
def lockf(*args):
    raise OSError(errno.ENOSYS, "Function not implemented")
fcntl.lockf = lockf
"""
LINKLESS = """
import os
def link(*args):
    raise PermissionError(errno.EPERM, "Operation not permitted")
os.link = link
"""
DIES = """
import os
from fleet.node.delivery import code_sync
code_sync.receive = lambda *args: os.kill(os.getpid(), 9)
"""
CONTENDS = """
import os, random, sys, time
from fleet.node.base.locks import release, try_lock
os.chdir(sys.argv[1])
def make(name):
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
def take(until):
    lock, real = make("lock"), make("real")
    while not try_lock(lock, fcntl.LOCK_EX, lockf):
        if time.monotonic() > until:
            return
    try:
        fcntl.flock(real, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        make("two")
    os.write(make("taken"), b"1")
    time.sleep(random.random() * 0.002)
    os.close(real)
    if random.random() < 0.5:
        release(lock)
until = time.monotonic() + 3.0
while time.monotonic() < until:
    child = os.fork()
    if not child:
        take(until)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture
def source(source: Path) -> Path:
    (source / "a.py").write_text("a")
    return source


@pytest.fixture
def held(dest: Path) -> Path:
    return dest.parent / ".work.fleet-sync/lock.held"


def lockless(more: str = "", **how: object) -> Tap:
    return Tap({"delivery.code_sync": LOCKLESS + more}, **how)  # type: ignore[arg-type]


def refusal(source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch) -> FleetError:
    monkeypatch.setattr(lock_order, "LOCK_WAIT_SECONDS", 0.2)
    error = mirror(source, dest, transport=lockless()).results[0].error
    assert error is not None and error.kind == "busy", error
    return error


@pytest.mark.parametrize("more", ["", LINKLESS], ids=["links", "no links"])
def test_one_sync_at_a_time(source: Path, dest: Path, held: Path, more: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ok(source, dest, lockless(more))
    (source / "a.py").write_text("new")
    refused: list[FleetError] = []
    meanwhile = at(NEED, lambda: refused.append(refusal(source, dest, monkeypatch)))
    ok(source, dest, lockless(more, received=meanwhile))
    assert snapshot(dest) == snapshot(source) and f"(pid {os.getpid()})" in refused[0].message
    assert not held.exists()


def test_what_a_killed_sync_left_is_nobodys(source: Path, dest: Path, held: Path) -> None:
    assert not mirror(source, dest, transport=lockless(DIES)).ok and held.exists()
    ok(source, dest, lockless())
    assert not held.exists()


@pytest.mark.parametrize("call", ["write", "link", "unlink"])
def test_a_kill_while_the_lock_is_taken_leaves_none_that_is_half_written(
    source: Path, dest: Path, held: Path, call: str
) -> None:
    ok(source, dest, lockless())
    dies = f"""
from fleet.node.base import locks
class Dying:
    def __getattr__(self, name):
        return (lambda *_: os.kill(os.getpid(), 9)) if name == {call!r} else getattr(os, name)
import os
locks.os = Dying()
"""
    assert not mirror(source, dest, transport=lockless(dies)).ok
    assert not held.exists() or held.read_text()
    ok(source, dest, lockless())
    assert not held.exists()


def test_on_a_full_disk_the_lock_that_is_handed_over_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = bytes(tmp_path / "lock.held")
    assert make(path, myself())

    def write(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OSError, match="No space left"):
        make(path, myself(), over=True)
    assert maker(path) == myself() and os.listdir(tmp_path) == ["lock.held"]


def test_of_many_that_want_it_while_holders_die_one_holds_it(tmp_path: Path) -> None:
    """A holder that is alive never loses it: to who saw the one before it, which was dead or has released it."""
    argv = [sys.executable, "-c", LOCKLESS + CONTENDS, str(tmp_path)]
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    with ExitStack() as stack:
        for process in [stack.enter_context(subprocess.Popen(argv, env=env)) for _ in range(4)]:
            assert process.wait(60) == 0
    assert not (tmp_path / "two").exists() and (tmp_path / "taken").stat().st_size > 4


@pytest.mark.parametrize("left", ["another machine's", "nothing"])
def test_that_of_which_nothing_is_known_here_stays(
    source: Path, dest: Path, held: Path, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ok(source, dest, lockless())
    held.write_text("" if left == "nothing" else json.dumps({**myself(), "machine": "gpu9", "pid": 1}))
    monkeypatch.setattr("fleet.delivery.mirror.PATIENCE_SECONDS", 3.0)
    error = refusal(source, dest, monkeypatch)
    assert held.exists()
    who = "gpu9" if left != "nothing" else "who made it"  # killed before it wrote that
    assert error.hint and error.hint.endswith(f"where {who} is gone for good: rm {held}")
    held.unlink()
    ok(source, dest, lockless())


def test_runs_that_begin_hold_a_sync_up(source: Path, dest: Path, held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ok(source, dest)

    def lockf(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", lockf)
    state = delivery(str(dest), 0.0)
    assert state and state["digest"] and state["busy"] is None
    lock = begin_from({"state": state["state"], "digest": state["digest"], "settle": 1.0}, "run-1", 0.0)
    fd = os.open(held.with_name("begins"), os.O_RDWR)
    assert lock is not None and not try_lock(fd, fcntl.LOCK_EX)
    if (child := os.fork()) == 0:  # another run that begins there
        again = os.open(held.with_name("begins"), os.O_RDWR)
        os._exit(0 if try_lock(again, fcntl.LOCK_SH) else 1)
    assert os.waitpid(child, 0)[1] == 0
    release(lock)
    assert try_lock(fd, fcntl.LOCK_EX), "nor does the one that has died"
    release(fd)
    assert not list(held.parent.glob("begins.held"))


def test_a_file_that_is_nested_without_end_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may write beside the lock may write anything."""

    def lockf(fd: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    (tmp_path / "lock").write_text("[" * 4096)
    (tmp_path / "lock.held").write_text("[" * 4096)
    with (tmp_path / "lock").open("r+") as lock:
        assert not try_lock(lock.fileno(), fcntl.LOCK_EX, lockf)
        assert holder_of(lock.fileno()) == {}
        assert way_out(lock.fileno()) == f"; where who made it is gone for good: rm {tmp_path}/lock.held"
