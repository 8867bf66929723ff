"""A node that says what no program of fleet says: an error for that host, no traceback, no memory, no files of ours."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import ConnectError
from fleet.node.delivery.stage import BLOCK
from fleet.protocol.state import PROTOCOL
from fleet.transport.program import Program
from tests.hostile import HOST, MIRRORED, NEED, PREAMBLE, Node, error_of, frame, hostile, sending
from tests.in_process import fleet_over
from tests.peak import LIMIT_MIB, peak_of

RUN_HERE: dict[str, Any] = {
    "run": "train-20260101-000000-abcd",
    "protocol": PROTOCOL,
    "attempt": 0,
    "host": "gpu2",
    "node_rank": 0,
    "ranks": [0],
    "devices": None,
    "cwd": None,
    "about": None,
    "lease": None,
    "grace": 1.0,
    "node_timeout": 15.0,
    "status": {"state": "running"},
    "alive": True,
    "up": 1,
    "ended": [],
    "silent": None,
    "last": "",
    "unheard": None,
    "verdict": None,
    "term": 0,
}


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">cII", b"J", 0, 2**32 - 1),
        struct.pack(">cII", b"O", 0, 2**31),
        struct.pack(">cII", b"H", 0, 5000),
        frame(b"?", b""),
        frame(b"J", b"[]"),
        frame(b"J", b"{"),
        frame(b"J", b"[" * 100_000),
        frame(b"J", b"\xff"),
        frame(b"J", b'{"a": NaN}'),
        frame(b"J", b'{"a": [-Infinity]}'),
        frame(b"J", b'{"a": 1e999}'),
        frame(b"X", b"{}"),
        frame(b"X", b'{"exit_status": [1]}'),
        frame(b"X", b'{"exit_status": 256}'),
        frame(b"X", b'{"exit_status": -1}'),
        frame(b"X", b'{"exit_status": true}'),
    ],
)
def test_frames_that_no_program_sends(data: bytes) -> None:
    error = error_of(fleet_over(Node(PREAMBLE + data), HOST).check())
    assert error.kind == "protocol" and error.hint and error.host == "gpu1"


BIG = """
from tests.hostile import HOST, PREAMBLE, Node, frame
from tests.in_process import fleet_over
from fleet.protocol.frames import LIMITS
for item in (b"[],", b"{},", b"0,", b'"",', b"[", b'{"a":', b"1.5,", b"x"):
    data = b'{"a":[' + item * ((LIMITS[b"J"] - 20) // len(item))
    fleet_over(Node(PREAMBLE, *[frame(b"J", data + b"0]}")] * 2), HOST).check()
"""


BIG = """
import contextlib
from fleet.errors import FleetError
from fleet.protocol.frames import LIMITS, PREAMBLE
from fleet.transport.program import call
from tests.unit.test_hostile_node import Node, frame
for item in (b"[],", b"{},", b"0,", b'"",', b"[", b'{"a":', b"1.5,", b"x"):
    data = b'{"a":[' + item * ((LIMITS[b"J"] - 20) // len(item))
    with contextlib.suppress(FleetError):
        call(Node(PREAMBLE, *[frame(b"J", data + b"0]}")] * 2), "preflight.probe", {}, dict[str, object])
"""


@pytest.mark.slow
def test_a_message_takes_no_more_memory_than_this_machine_has() -> None:
    assert peak_of(sys.executable, "-c", BIG) < LIMIT_MIB


@pytest.mark.parametrize("path", [".env", "link/secret", "../secret", "/etc/hostname", "folder"])
def test_a_node_gets_no_file_that_is_not_in_the_source(tmp_path: Path, path: str) -> None:
    source = tmp_path / "src"
    (source / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_text("hunter2")
    (source / ".env").write_text("TOKEN=1")
    (source / ".gitignore").write_text(".env\n")
    (source / "link").symlink_to(tmp_path)
    hello = {"event": "hello", "dest": "/d", "known": None}
    need = {"event": "need", "files": [[path, 1]], "blocks": []}
    assert error_of(hostile(hello, need).sync(source, "/d")).kind == "protocol"


@pytest.mark.parametrize(
    "change",
    [
        {"wants": [[0, 5]]},
        {"wants": [[3, 1]]},
        {"files": [[0, 1], [0, 1]]},
        {"wants": [[0, 0]]},
        {"wants": [[False, 4]]},
        {"files": [[0, 1 << 70]]},
        {"files": 7},
        {"bytes": float("inf")},
        {"port": "22"},
        {"port": 1 << 16},
        {"port": None},
        {"bytes": 10**400},
        {"bytes": -1},
        {"address": 5},
    ],
)
def test_a_node_that_lacks_what_makes_no_sense(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "x").write_bytes(b"data")
    error = error_of(hostile({"event": "hello"}, {**NEED, **change}).sync_data(f"{tmp_path}/x:/d/x"))
    assert error.kind == "protocol" and error.host == "gpu1", error


@pytest.mark.parametrize(
    "facts",
    [
        {"gpus": 7},
        {"memory": {"total": "1 GiB"}},
        {"disks": {"workdir": {}}},
        {"python": "3"},
        {"clock": 1},
        {"interfaces": [1]},
        {"boot_id": ["x"]},
        {"pci_gpus": 10**400},
        {"packages": {"numpy": None}},
        {"interfaces": [{"name": "e", "addresses": ["bogus"], "state": None, "speed": None, "mtu": None}]},
        {"interfaces": [{"name": "e", "addresses": ["10.0.0.1/99"], "state": None, "speed": None, "mtu": None}]},
        {"interfaces": {}},
        {"gpus": [{}]},
        {"interpreters": [{"path": None, "version": "3", "torch": None, "cuda": None}]},
        [],
        7,
    ],
)
def test_facts_of_other_types_are_that_hosts_error(facts: Any) -> None:
    checked = hostile({"facts": facts}).check()
    assert error_of(checked).kind == "protocol" and checked.exit_code == 122


@pytest.mark.parametrize("messages", [[{"clock": None}], [{"clock": 1.0}, {"clock": "1.0"}], []])
def test_a_clock_that_is_none_and_facts_that_never_come(messages: list[Any]) -> None:
    assert error_of(hostile(*messages).check()).kind == "protocol"


@pytest.mark.parametrize("word", ["latest", "../x", ".lock", "attempt0", "train-20260101-000000-abcd/../../x", "-x"])
def test_a_run_that_a_node_calls_what_is_no_id_is_that_nodes_error(word: str) -> None:
    node: dict[str, Any] = {"event": "runs", "runs": [{**RUN_HERE, "run": word}]}
    honest: dict[str, Any] = {"event": "runs", "runs": [RUN_HERE]}
    way = SimpleNamespace(
        connect=lambda host, cancel: sending(node if host.name == "liar" else honest), close=lambda: None
    )
    hosts = fleet_over(way, "liar", "gpu2")
    found = hosts.ps(all=True)
    assert [result.error and result.error.kind for result in found.results] == ["protocol", None]
    assert [(run["run"], list(run["nodes"])) for run in found.data["runs"]] == [(RUN_HERE["run"], ["gpu2"])]
    assert hosts.stacks(RUN_HERE["run"]).data["run"] == RUN_HERE["run"]
    with pytest.raises(ConnectError, match="no answer from liar"):
        hosts.stacks(word if word != "latest" else "latest2")


LISTENER = {
    "port": 80,
    "protocol": "tcp",
    "also": [],
    "address": "::",
    "pid": 7,
    "start": 1,
    "uid": 0,
    "user": "root",
    "own": True,
    "command": "x",
    "run_id": None,
    "live": False,
    "age": 1.5,
    "refused": None,
}


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"port": "80"},
        {"address": None},
        {"user": ["root"]},
        {"command": 1},
        {"refused": {}},
        {"live": "no"},
        {"age": "old"},
        {"also": [7]},
        {"protocol": 6},
    ],
)
def test_listeners_of_other_types_are_that_hosts_error(change: dict[str, Any]) -> None:
    report = hostile({"listeners": [{**LISTENER, **change}]}).kill_port([80], agree=lambda plan: False)
    error = error_of(report)
    assert (error is not None and error.kind == "protocol") is bool(change)


@pytest.mark.parametrize(
    "which, change",
    [
        ("done", {}),
        ("done", {"sent": "1"}),
        ("done", {"deleted": None}),
        ("done", {"kept": [1]}),
        ("done", {"bytes": True}),
        ("hello", {"event": []}),
        ("hello", {"known": 5}),
        ("hello", {"dest": None}),
        ("need", {"files": None}),
        ("need", {"files": [7]}),
        ("need", {"files": [["f", "1"]]}),
        ("need", {"blocks": 0}),
        ("need", {"blocks": [["x", 0, "no digest"]]}),
        ("done", {"event": "failed", "message": "no", "hint": {}}),
        ("hello", {"event": "failed", "message": ["no"]}),
    ],
)
def test_a_sync_in_other_words_is_that_hosts_error(tmp_path: Path, which: str, change: dict[str, Any]) -> None:
    messages = {message["event"]: {**message} for message in MIRRORED}
    messages[which].update(change)
    if change == {"event": []}:
        messages["hello"] = change
    hello, need, done = messages.values()
    error = error_of(hostile(hello, need, done).sync(tmp_path, "/d"))
    assert (error is not None and error.kind == "protocol") is bool(change)


def test_a_node_that_reads_nothing_is_told_nothing_more() -> None:
    class Deaf(Node):
        tries = 0

        def start(self, command: str) -> Any:
            return self

        def send(self, data: bytes) -> None:
            self.tries += 1
            raise ConnectError("the process there reads nothing for 120 s", kind="lost")

    deaf = Deaf()
    with Program(deaf, "preflight.probe", {}) as program:
        program.send({"op": "ping"})
        program.send_bytes(b"x")
    assert deaf.tries == 1


@pytest.mark.parametrize(
    "parts",
    [
        [{"wants": []}],
        [{"wants": [[0, 1]]}, {"wants": [[1, 2]]}],
        [{"files": 7}],
        [{"wants": [["0", "4"]]}],
        [{}],
    ],
)
def test_parts_of_what_a_node_lacks_that_are_none(tmp_path: Path, parts: list[dict[str, Any]]) -> None:
    (tmp_path / "x").write_bytes(b"data")
    messages = [{"event": "hello"}, *({"event": "lacks", **part} for part in parts), NEED]
    assert error_of(hostile(*messages).sync_data(f"{tmp_path}/x:/d/x")).kind == "protocol"


@pytest.mark.parametrize("files", [[], [7], [-1], [0, 0], ["0"], [10**400], {"0": ""}])
def test_doubts_about_files_that_are_none(tmp_path: Path, files: Any) -> None:
    (tmp_path / "x").write_bytes(b"data")
    doubts = {"event": "doubts", "files": files, "more": False}
    assert error_of(hostile({"event": "hello"}, doubts, NEED).sync_data(f"{tmp_path}/x:/d/x")).kind == "protocol"


@pytest.mark.parametrize("parts", [[[]], [["x", 1], ["y", 1]], [["../x", 1]]])
def test_parts_of_what_a_sync_lacks_that_are_none(tmp_path: Path, parts: list[Any]) -> None:
    (tmp_path / "x").write_bytes(b"data")
    hello = {"event": "hello", "dest": "/d", "known": None}
    need = {"event": "need", "files": [["x", 4]], "blocks": []}
    lacks = [{"event": "lacks", "files": [part] if part else [], "blocks": []} for part in parts]
    assert error_of(hostile(hello, *lacks, need).sync(tmp_path, "/d")).kind == "protocol"


@pytest.mark.parametrize("blocks", [[["y", 0]], [["../x", 0]], [["x", 2]], [["x", 1], ["x", 1]], [["x", -1]]])
def test_blocks_of_what_is_not_in_the_source(tmp_path: Path, blocks: list[list[Any]]) -> None:
    (tmp_path / "x").write_bytes(bytes(BLOCK + 1))
    hello = {"event": "hello", "dest": "/d", "known": None}
    has = [[*block, "00" * 32] for block in blocks]
    lacks = [{"event": "lacks", "files": [], "blocks": [each]} for each in has]
    need = {"event": "need", "files": [["x", BLOCK + 1]], "blocks": []}
    assert error_of(hostile(hello, *lacks, need).sync(tmp_path, "/d")).kind == "protocol"
