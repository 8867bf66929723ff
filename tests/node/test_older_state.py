"""State folders that an older fleet left on a node: what it has delivered is known, what it left half done is healed.

The literals were written by the version before fleet/delivery was one room.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from fleet.model import Host, Inventory, Report
from fleet.ops import broadcast, sync
from fleet.requests.sync import Sync, SyncData
from fleet.runtime import Runtime
from fleet.transport import program
from fleet.transport.local import LocalTransport
from tests.changed import changed
from tests.free_port import free_port
from tests.node.test_preflight import facts

pytestmark = pytest.mark.usefixtures("own_home")

WHEN = 1700000000
# a.py, gone.py, pkg, pkg/b.py
DIGEST = "515576f8ea8b5d59efed88cbb9496c2026b94ab2d584f075d16f8b1c54d7ac5f"
PACKED = "eAGLjlZK1CuoVNJRUEoDEiZGBjoKZjoKhuYG6ACoQilWRyFaKT0/LxVdiwl+LQXZ6SAbUkA2WBrrKAAtASKoeUBJ/SR0A41wGxgLAIV7Jb0="
DELIVERED = '["x.bin", 1000, 1700000000000000000, "44f8354494a5ba03ba1792a8d3e9c534c47a9181980fde7a3f44b06ef2ae7c7f"]\n'
LOCK = '{"sync": "a346221c96554cf59eed4e1cb541bd1e", "host": "n1", "head": "head (pid 18209)"}'


def fill(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o644)
        os.utime(path, (WHEN, WHEN))
    return folder


def state_of(meta: Path, **files: bytes | str) -> None:
    meta.mkdir(mode=0o700)
    for name, data in files.items():
        (meta / name).write_bytes(data.encode() if isinstance(data, str) else data)


def inventory() -> Inventory:
    return Inventory((Host("n1", "127.0.0.1", python=sys.executable),))


def data_of(report: Report) -> dict[str, Any]:
    assert report.ok, [str(r.error) for r in report.results]
    return dict(report.results[0].data)


def mirror(source: Path, dest: Path) -> dict[str, Any]:
    return data_of(sync.run(sync.plan(inventory(), Sync(source, str(dest))), Runtime(LocalTransport())))


def data(source: Path, dest: Path) -> dict[str, Any]:
    return data_of(
        broadcast.run(broadcast.plan(inventory(), SyncData(data=[f"{source}:{dest}"])), Runtime(LocalTransport()))
    )


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    dest = fill(tmp_path / "work", {"a.py": "a = 1\n", "gone.py": "old\n", "pkg/b.py": "b\n", "own.pt": "a checkpoint"})
    (dest / "pkg").chmod(0o755)
    return dest


def test_code_that_it_delivered_is_known_and_nothing_of_it_deleted(tmp_path: Path, dest: Path) -> None:
    source = fill(tmp_path / "src", {"a.py": "a = 1\n", "pkg/b.py": "b\n"})
    (source / "pkg").chmod(0o755)
    line = {"digest": DIGEST, "also": [], "source": {"host": os.uname()[1], "path": str(source)}}
    state = json.dumps(line).encode() + b"\n" + base64.b64decode(PACKED)
    state_of(tmp_path / ".work.fleet-sync", state=state, lock=LOCK, begins="")
    done = mirror(source, dest)
    assert (done["sent"], done["deleted"]) == (0, 0)  # it counted what was there before as delivered
    assert {path.name for path in dest.iterdir()} == {"a.py", "gone.py", "pkg", "own.pt"}
    (source / "a.py").write_text("a = 2\n")
    assert mirror(source, dest)["sent"] == 1 and (dest / "a.py").read_text() == "a = 2\n"


def test_a_switch_that_it_did_not_finish_is_finished(tmp_path: Path, dest: Path) -> None:
    source = fill(tmp_path / "src", {"a.py": "a = 2  # new\n", "pkg/b.py": "b\n"})
    state_of(tmp_path / ".work.fleet-sync", switching=base64.b64decode(PACKED), lock=LOCK, begins="")
    fill(tmp_path / ".work.fleet-sync", {"stage/pkg/b.py": "b", "parcels/a.py": "a ="})
    assert mirror(source, dest)["sent"] == 1
    assert (dest / "a.py").read_text() == "a = 2  # new\n" and (dest / "gone.py").exists()
    assert sorted(path.name for path in (tmp_path / ".work.fleet-sync").iterdir()) == ["begins", "lock", "state"]


def test_data_that_it_delivered_is_not_sent_again(tmp_path: Path) -> None:
    source, dest = (fill(tmp_path / name, {"x.bin": "x" * 1000}) for name in ("src", "set"))
    state_of(tmp_path / ".set.fleet-data", delivered=DELIVERED, lock=LOCK)
    assert data(source, dest)["files"] == 0


def test_data_that_it_left_half_done_is_told_of_and_healed(tmp_path: Path) -> None:
    source, dest, meta = fill(tmp_path / "src", {"x.bin": "x" * 1000}), tmp_path / "set", tmp_path / ".set.fleet-data"
    dest.mkdir()
    state_of(meta, delivered=DELIVERED[:-20], lock=LOCK)  # killed while it wrote
    part = hashlib.sha256(f"1000 {WHEN}000000000 x.bin".encode()).hexdigest()[:32]
    fill(meta, {f"parts/{part}": "x" * 300, "parts/other": "of a source that has changed"})
    notes = Path.home() / ".fleet/data"
    notes.mkdir(parents=True, exist_ok=True)
    note = notes / hashlib.sha256(str(dest).encode()).hexdigest()[:32]
    note.write_text(json.dumps({"node": os.uname()[1], "target": str(dest), "state": str(meta)}))
    assert facts(Path.home(), free_port(), workdir=str(tmp_path))["data"] == {"folder": str(dest), "busy": None}
    assert data(source, dest)["files"] == 1
    assert (dest / "x.bin").read_text() == "x" * 1000 and not note.exists()
    assert not (meta / "parts").exists()


def test_the_blocks_of_a_large_file_that_it_received_are_not_sent_again(tmp_path: Path) -> None:
    blocks = [os.urandom(4 << 20), os.urandom(4 << 20), b"the rest"]
    source, meta = tmp_path / "model.bin", tmp_path / "there" / ".model.bin.fleet-data"
    source.write_bytes(b"".join(blocks))
    info = source.stat()
    meta.parent.mkdir()
    state_of(meta, lock=LOCK)
    (meta / "parts").mkdir()
    part = hashlib.sha256(f"{info.st_size} {info.st_mtime_ns} ".encode()).hexdigest()[:32]
    (meta / "parts" / part).write_bytes(blocks[0] + b"cut")
    (meta / "parts" / f"{part}.blocks").write_bytes(hashlib.sha256(blocks[0]).digest())
    assert data(source, tmp_path / "there" / "model.bin")["bytes"] == info.st_size - (4 << 20)
    assert (tmp_path / "there/model.bin").read_bytes() == source.read_bytes()
    assert sorted(path.name for path in meta.iterdir()) == ["lock", "state"]


def test_data_that_was_in_place_when_its_sync_was_killed_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fill(tmp_path / "src", {"x.bin": "x" * 1000, "sub/y.bin": "y"})
    dies = "import os\nfrom fleet.node.delivery.journal import Journal\nJournal.finish = lambda *args: os._exit(9)\n"
    text = changed("delivery.chain.member", dies)
    honest = program.shipped
    with monkeypatch.context() as patch:
        patch.setattr(program, "shipped", lambda name: text if name == "delivery.chain.member" else honest(name))
        report = broadcast.run(
            broadcast.plan(inventory(), SyncData(data=[f"{source}:{tmp_path / 'set'}"])), Runtime(LocalTransport())
        )
        assert not report.ok
    with (tmp_path / ".set.fleet-data/switching").open("a") as journal:
        journal.write('[["torn", "f"')
    assert data(source, tmp_path / "set")["files"] == 0
    (source / "sub/y.bin").write_text("yy")
    assert data(source, tmp_path / "set")["files"] == 1
    assert data(source, tmp_path / "set")["files"] == 0
