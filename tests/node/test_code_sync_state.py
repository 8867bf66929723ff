"""What code syncs write down on a node, read by whoever comes next: odd, or cut."""

from __future__ import annotations

import json
import os
import stat
import time
import zlib
from pathlib import Path
from typing import Any

import pytest

from fleet.node.delivery.journal import by_column, read_state, unpack
from fleet.node.delivery.stage import Stage
from fleet.node.run.start.engine import CodeLock
from tests.node.test_sync_state import NEW, OLD, code, content, fill, mirror, state_of

pytestmark = pytest.mark.usefixtures("own_home")

ENTRY = ["a.py", "f", 0o644, 3, 7, ""]
ROW = [*ENTRY, "digest", "d", 7, 9]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return fill(tmp_path / "src", OLD)


@pytest.fixture
def dest(home: Path) -> Path:
    return home / "work"


def test_a_run_whose_folder_was_removed_while_it_begins_goes_on(tmp_path: Path) -> None:
    spec = {"ranks": [0], "code": {"settle": 1.0}}
    beginning = CodeLock({**spec, "code": None}, str(tmp_path / "gone"))
    beginning.spec, beginning.lock = spec, os.open(os.devnull, os.O_RDONLY)
    now = time.monotonic()
    beginning.latest = now + 60.0
    assert not beginning.over(now) and beginning.over(now + 3600)
    beginning.release()


@pytest.mark.parametrize(
    "rows",
    [
        5,
        None,
        {},
        {"a": 1},
        "text",
        ["text"],
        [5],
        [None],
        [[]],
        [ENTRY],
        [ROW[:9]],
        [ROW, [*ROW, 1]],
        [[5, *ROW[1:]]],
        [[["a"], *ROW[1:]]],
        [[*ROW[:5], None, *ROW[6:]]],
        [ROW, {"a": 1}],
    ],
)
def test_a_state_with_odd_rows_is_none(tmp_path: Path, rows: Any) -> None:
    columns = [[value] for value in ENTRY]
    assert read(tmp_path, {"columns": columns}, [ROW])["entries"] == [ENTRY]
    assert read(tmp_path, {"columns": columns}, rows) is None


@pytest.mark.parametrize(
    "packed",
    [
        5,
        None,
        {},
        [ENTRY],
        {"columns": 5},
        {"columns": None},
        {"columns": [5]},
        {"columns": [[value] for value in ENTRY[:5]]},
        {"columns": [[value] for value in ROW]},
        {"columns": [["a.py", "b.py"], *([value] for value in ENTRY[1:])]},
        {"columns": [[5], *([value] for value in ENTRY[1:])]},
    ],
)
def test_a_state_with_odd_entries_is_none(tmp_path: Path, packed: Any) -> None:
    assert read(tmp_path, packed, []) is None


def read(meta: Path, entries: Any, also: Any) -> Any:
    packed = zlib.compress(json.dumps(entries).encode())
    line = {"digest": "d", "also": also, "source": None, "packed": len(packed), "left": "", "changed": []}
    (meta / "state").write_bytes(json.dumps(line).encode() + b"\n" + packed)
    return read_state(os.fsencode(meta))


@pytest.mark.parametrize("entries", [[], [ENTRY], [ENTRY, ["b.py", *ENTRY[1:]]]])
def test_entries_are_read_by_column(entries: list[Any]) -> None:
    assert unpack(zlib.compress(by_column(entries))) == entries


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o444, 0o666, 0o4755, 0o2755])
@pytest.mark.parametrize("before", [None, 0o600, 0o444])
def test_a_file_in_one_piece_is_staged_whole_over_what_a_kill_left(
    tmp_path: Path, mode: int, before: int | None
) -> None:
    stage = Stage(os.fsencode(tmp_path))
    left = tmp_path / "stage/d/a.py"
    if before is not None:
        left.parent.mkdir(parents=True)
        left.write_text("much longer than it will be")
        left.chmod(before)
    for name, data in (("d/a.py", b"one"), ("b.py", b""), ("d/c.py", b"two")):
        stage.put([name, "f", mode, len(data), 7 * 10**9, ""], memoryview(data))
        info = (tmp_path / "stage" / name).stat()
        assert (stat.S_IMODE(info.st_mode), info.st_mtime_ns) == (mode, 7 * 10**9)
        assert (tmp_path / "stage" / name).read_bytes() == data
    stage.remove()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("line", [b"[]", b"5", b"null", b'{"digest": "d"}', b'{"digest": [], "also": []}', b"{", b""])
@pytest.mark.parametrize("name", ["state", "switching"])
def test_a_sync_goes_on_from_any_state(home: Path, source: Path, dest: Path, line: bytes, name: str) -> None:
    assert mirror(source, dest).ok
    path = state_of(dest) / name
    path.write_bytes(zlib.compress(line) if name == "switching" else line + b"\n" + zlib.compress(b"[]"))
    refused = mirror(fill(source, NEW), dest)
    if name == "state":  # nothing says whose the files are
        assert refused.exit_code == 123 and not NEW.items() <= content(dest).items()
        refused = mirror(source, dest, force=True)
    assert refused.ok and NEW.items() <= content(dest).items()
    found = code(home, dest)
    assert found and found["digest"] and not found["half"]
