"""What a run may rely on when syncs go on beside it: never a tree half old and half new, and nobody waits for ever."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Inventory, Report
from fleet.node.delivery import sync_state
from fleet.node.delivery.journal import by_column
from fleet.ops import sync
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.local import LocalTransport
from tests.free_port import free_port
from tests.node.nodes import Running, answer, final, marked, ranks_argv, supervise_spec
from tests.node.seams import Tap
from tests.node.test_preflight import facts, spec

pytestmark = pytest.mark.usefixtures("own_home")

OLD = {"a.py": "old", "b.py": "old", "gone.py": "old", "pkg/c.py": "old"}
NEW = {"a.py": "newer", "b.py": "newer", "new/d.py": "newer", "pkg/c.py": "newer"}
# every step that changes a folder is counted, and the one after the last allowed never happens
DIES_AFTER = """
import os, signal
left = [%d]
def counted(real):
    def call(*args, **more):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)
    return call
for name in ("rename", "unlink", "rmdir", "mkdir", "chmod", "symlink"):
    setattr(os, name, counted(getattr(os, name)))
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return fill(tmp_path / "src", OLD)


@pytest.fixture
def dest(home: Path) -> Path:
    return home / "work"


def fill(folder: Path, files: dict[str, str]) -> Path:
    """Make `folder` hold these files, and nothing else."""
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "link").symlink_to(next(iter(files.values())))
    return folder


def content(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file() and not p.is_symlink()}


def mirror(source: Path, dest: Path, transport: LocalTransport | None = None, **options: Any) -> Report:
    inventory = Inventory((Host("n1", "127.0.0.1"),))
    options = {"source_id": "the source", **options}  # it is made anew
    return sync.run(sync.plan(inventory, Sync(source, str(dest), **options)), Runtime(transport or LocalTransport()))


def state_of(dest: Path) -> Path:
    return dest.parent / f".{dest.name}.fleet-sync"


def code(home: Path, dest: Path, **changes: Any) -> dict[str, Any] | None:
    found: dict[str, Any] | None = facts(home, free_port(), workdir=str(dest), **changes)["code"]
    return found


@contextmanager
def held(path: Path, kind: int = fcntl.LOCK_EX, head: str = "elsewhere (pid 7)") -> Iterator[None]:
    """Another sync, or a run that begins, has the lock."""
    with path.open("r+b") as lock:
        fcntl.lockf(lock, kind)
        if kind == fcntl.LOCK_EX:
            lock.truncate()
            lock.write(json.dumps({"sync": "other", "host": "n1", "head": head}).encode())
            lock.flush()
        yield


# -- a sync that was killed -------------------------------------------------------------------------------------
@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_killed_between_any_two_steps_the_tree_is_whole_or_known_to_be_half(
    home: Path, source: Path, dest: Path, every: int
) -> None:
    assert mirror(source, dest).ok
    fill(source, NEW)
    seen: set[str] = set()
    for steps in range(0, 100, every):
        survived = mirror(source, dest, Tap({"delivery.code_sync": DIES_AFTER % steps})).ok
        found = code(home, dest)
        assert found
        now = content(dest)
        if found["half"]:
            seen.add("half")
            assert found["digest"] is None
        else:
            assert now in (OLD, NEW), f"killed after {steps} steps: a mixture that nobody would notice"
            seen.add("old" if now == OLD else "new")
        if survived:
            break
        assert mirror(fill(source, OLD), dest).ok and content(dest) == OLD, "the next sync heals it"
        fill(source, NEW)
    assert survived and seen == {"old", "half", "new"}


# -- what preflight finds ---------------------------------------------------------------------------------------
def test_a_folder_that_no_sync_knows(home: Path, source: Path, dest: Path) -> None:
    dest.mkdir()
    assert code(home, dest) is None
    assert mirror(source, dest).ok
    (dest / "results").mkdir()
    assert code(home, dest / "results") is None, "not the sync's, though it is inside"
    inside = code(home, dest / "pkg")
    assert inside and inside["digest"] == (code(home, dest) or {})["digest"] and inside["folder"] == str(dest)


def test_a_folder_that_was_removed_by_hand(home: Path, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    subprocess.run(["rm", "-r", str(dest)], check=True)
    found = facts(home, free_port(), workdir=str(dest))
    assert found["code"] is None and not found["failed"] and not found["disks"]["workdir"]["exists"]


def test_the_script_leads_to_its_sync_from_another_folder(home: Path, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    found = code(home, home, script="work/pkg/c.py")
    assert found and found["folder"] == str(dest)


def test_the_digest_is_that_of_the_tree(home: Path, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    first = code(home, dest)
    (source / "a.py").write_text("another")
    assert mirror(source, dest).ok
    second = code(home, dest)
    assert first and second and first["digest"] != second["digest"] and not second["half"] and not second["busy"]


def test_a_sync_under_way_is_waited_for_and_then_named(home: Path, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    with held(state_of(dest) / "lock"):
        found = code(home, dest, deadline=15.0)
        assert found and found["busy"] == "elsewhere (pid 7)"
        said = spec(free_port(), workdir=str(dest), deadline=15.0)
        with Running("preflight.probe", said, home) as running:
            frames = running.frames()
            time.sleep(1.0)
            # a process loses its POSIX lock on a file as soon as it closes any descriptor of it
            (state_of(dest) / "lock").open("rb").close()
            found = next(frames).json()["facts"]["code"]
    assert found["busy"] is None and found["digest"]


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a folder of another user")
def test_somebody_elses_folder_of_that_name_stops_no_run(home: Path, dest: Path) -> None:
    dest.mkdir()
    state = state_of(dest)
    state.mkdir()
    (state / "lock").touch()
    os.chown(state, 12345, 12345)
    with held(state / "lock"):
        assert code(home, dest) is None


# -- a run that begins ------------------------------------------------------------------------------------------
def begin(home: Path, run: str, dest: Path, digest: str | None, settle: float, *ranks: str) -> dict[str, Any]:
    spec = supervise_spec(
        run,
        ranks_argv(*ranks),
        ranks=list(range(len(ranks))),
        cwd=str(dest),
        code={"state": str(state_of(dest)), "digest": digest, "settle": settle},
    )
    return answer("run.supervise", spec, home)


def test_a_sync_waits_until_a_run_has_begun(home: Path, run: str, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    digest = (code(home, dest) or {})["digest"]
    # it imports b.py late: what it finds there must be of the same tree as a.py
    began = begin(home, run, dest, digest, 12.0, "cat a.py; sleep 1; cat b.py; sleep 1000")
    assert began["event"] == "started"
    fill(source, NEW)
    notices: list[Any] = []
    inventory = Inventory((Host("n1", "127.0.0.1"),))
    report = sync.run(
        sync.plan(inventory, Sync(source, str(dest), source_id="the source")),
        Runtime(LocalTransport(), emit=notices.append),
    )
    assert report.ok and content(dest) == NEW
    assert (home / ".fleet/runs" / run / "rank0.out").read_text() == "oldold"
    assert marked(run), "the run goes on, and did not have to end first"
    said = [n.message for n in notices if hasattr(n, "level")]
    assert said == [f"waiting until run {run} has begun, which uses the same folder"]


def test_a_sync_that_changes_nothing_waits_for_nobody(home: Path, run: str, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    assert begin(home, run, dest, (code(home, dest) or {})["digest"], 250.0, "sleep 1000")["event"] == "started"
    began = time.monotonic()
    assert mirror(source, dest).ok and time.monotonic() - began < 200
    again = code(home, dest)
    assert again and not again["busy"], "and another run may begin"


def test_a_run_that_ends_while_it_begins_lets_syncs_in_at_once(home: Path, run: str, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    assert begin(home, run, dest, (code(home, dest) or {})["digest"], 250.0, "exit 3")["event"] == "started"
    final(home, run)
    began = time.monotonic()
    assert mirror(source, dest).ok and time.monotonic() - began < 200


def test_code_that_was_replaced_since_preflight_does_not_run(home: Path, run: str, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    digest = (code(home, dest) or {})["digest"]
    assert mirror(fill(source, NEW), dest).ok
    said = begin(home, run, dest, digest, 1.0, "sleep 1000")
    assert said["event"] == "failed" and "replaced the code" in said["message"] and said["hint"]
    assert not marked(run)


def test_no_run_starts_while_a_sync_puts_files_in_place(home: Path, run: str, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    digest = (code(home, dest) or {})["digest"]
    (state_of(dest) / "lock").write_text('{"head": "elsewhere (pid 7)"}')
    with held(state_of(dest) / "begins"):
        said = begin(home, run, dest, digest, 1.0, "sleep 1000")
    assert said["event"] == "failed" and "a sync from elsewhere (pid 7)" in said["message"]
    assert not marked(run)


def test_a_state_folder_that_has_gone_is_no_reason_not_to_train(home: Path, run: str, dest: Path) -> None:
    dest.mkdir()
    assert begin(home, run, dest, "0" * 64, 1.0, "sleep 1000")["event"] == "started"


# -- locks and folders ------------------------------------------------------------------------------------------
def mirror_spec(dest: Path, **changes: Any) -> dict[str, Any]:
    return {
        "dest": str(dest),
        "sync": "mine",
        "host": "n1",
        "head": "here",
        "wait": 0.3,
        "patience": 30.0,
        "source": {"host": "here", "path": "/src", "id": ""},
        "replaces": [],
        "max_delete": "all",
        "force": False,
        "mark": None,
        **changes,
    }


def test_a_second_sync_is_refused_by_name(home: Path, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    with held(state_of(dest) / "lock"):
        said = answer("delivery.code_sync", mirror_spec(dest), home)
    assert said["event"] == "failed" and "another sync" in said["message"] and "elsewhere (pid 7)" in said["message"]


@pytest.mark.parametrize("at", ["manifest", "middle of it", "switch"])
def test_a_head_that_falls_silent_gives_the_lock_back(home: Path, dest: Path, at: str) -> None:
    with Running("delivery.code_sync", mirror_spec(dest, patience=5.0), home) as silent:
        frames = silent.frames()
        assert next(frames).json()["event"] == "hello"
        if at == "middle of it":
            silent.raw(b'{"op": "manifest", "digest": "d", "size": 1000, "sha256": "s"}\n' + b"x" * 10)
        if at == "switch":
            silent.send({"op": "manifest", "digest": "d", "size": 0, "sha256": ""})
            assert next(frames).json()["event"] == "need"
        said = next(frames).json()
        assert said["event"] == "failed" and "sent nothing for 5 s" in said["message"]
        silent.process.wait(300)
    with Running("delivery.code_sync", mirror_spec(dest, sync="next"), home) as after:
        assert next(after.frames()).json()["event"] == "hello"


def test_a_head_that_does_not_even_read_gives_the_lock_back(home: Path, dest: Path) -> None:
    entries = [[f"{'long' * 20}{i}", "f", 0o644, 1, 0, ""] for i in range(5000)]
    packed = zlib.compress(by_column(entries))
    with Running("delivery.code_sync", mirror_spec(dest, patience=5.0), home) as deaf:
        deaf.send({"op": "manifest", "digest": "d", "size": len(packed), "sha256": hashlib.sha256(packed).hexdigest()})
        deaf.raw(packed)
        deaf.process.wait(300)  # its answer is longer than a pipe is


def test_a_note_of_data_that_is_gone_may_go_meanwhile(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two preflights look at once."""
    monkeypatch.setenv("HOME", str(home))
    sync_state.note_delivery(bytes(home / "data"), bytes(home / "gone"))
    twice = "import os\nunlink = os.unlink\nos.unlink = lambda path, **how: [unlink(path, **how), unlink(path, **how)]"
    found = answer("preflight.probe", spec(free_port(), workdir=str(home)), home, first=twice)["facts"]
    assert not found["failed"] and list((home / ".fleet/data").iterdir()) == []


def test_a_node_that_was_frozen_has_not_waited_for_its_head(home: Path, dest: Path) -> None:
    """What that has said meanwhile is there, and only has to be read."""
    with Running("delivery.code_sync", mirror_spec(dest, patience=2.0), home) as frozen:
        frames = frozen.frames()
        next(frames)
        frozen.process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        frozen.send({"op": "manifest", "digest": "d", "size": 0, "sha256": ""})
        frozen.process.send_signal(signal.SIGCONT)
        assert next(frames).json()["event"] == "need"


def test_a_head_that_is_busy_keeps_its_lock_by_pings(home: Path, dest: Path) -> None:
    with Running("delivery.code_sync", mirror_spec(dest, patience=5.0), home) as busy:
        frames = busy.frames()
        next(frames)
        for _ in range(20):
            time.sleep(0.3)
            busy.send({"op": "ping"})
        busy.send({"op": "manifest", "digest": "d", "size": 0, "sha256": ""})
        assert next(frames).json()["event"] == "need"


def test_a_sync_that_is_killed_is_in_nobodys_way(home: Path, dest: Path) -> None:
    with Running("delivery.code_sync", mirror_spec(dest), home) as killed:
        next(killed.frames())
        killed.process.send_signal(signal.SIGKILL)
        killed.process.wait()
    with Running("delivery.code_sync", mirror_spec(dest, sync="next"), home) as after:
        assert next(after.frames()).json()["event"] == "hello"


def test_a_user_whom_nfs_squashes_finds_the_folder_again(home: Path, source: Path, dest: Path) -> None:
    assert mirror(source, dest).ok
    squashed = Tap({"delivery.code_sync": "import os\nos.geteuid = lambda: 4242"})
    report = mirror(fill(source, NEW), dest, squashed)
    assert report.ok, report.results[0].error
    assert content(dest) == NEW and not list(dest.parent.glob(".fleet-who*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="makes folders of another user")
def test_the_destinations_owner_is_not_trusted_either(source: Path, dest: Path) -> None:
    dest.mkdir()
    state = state_of(dest)
    state.mkdir()
    for path in (dest, state):
        os.chown(path, 12345, 12345)
    report = mirror(source, dest)
    assert not report.ok and "belongs to user id 12345" in str(report.results[0].error)
    assert not any(dest.iterdir())


def test_how_files_are_compared_with_what_was_delivered(home: Path, source: Path, dest: Path) -> None:
    """Not more is read than a preflight has time for: of a large file that is no module its size."""
    large = b"x" * (2 << 20)
    files = {"same.py": b"a", "edited.py": b"b", "small.yaml": b"c", "gone": b"d"}
    files |= {"large.bin": large, "grown.bin": large}
    for name, data in files.items():
        (source / name).write_bytes(data)
    assert mirror(source, dest).ok
    os.utime(dest / "same.py", (1, 1))
    (dest / "gone").unlink()
    (dest / "edited.py").write_bytes(b"B")
    (dest / "small.yaml").write_bytes(b"C")
    (dest / "large.bin").write_bytes(b"y" * len(large))
    (dest / "grown.bin").write_bytes(large + b"x")
    assert (code(home, dest) or {})["changed"] == {
        "edited.py": hashlib.sha256(b"B").hexdigest()[:12],
        "small.yaml": hashlib.sha256(b"C").hexdigest()[:12],
        "grown.bin": f"{len(large) + 1} bytes",
        "gone": "missing",
    }
