"""A node that says what no program of fleet says: an error for that host, no traceback, no memory, no files of ours."""

from __future__ import annotations

import json
import socket
import struct
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import ConnectError, FleetError, HostFailed, ProtocolError
from fleet.model import Host, Inventory
from fleet.ops import broadcast, check, kill_port, sync
from fleet.ops.init import ask
from fleet.ops.init.choose import Address
from fleet.ops.run.find.find import chosen, find
from fleet.ops.run.follow import follow as following
from fleet.ops.run.follow.follow import Follower, Following, Heard
from fleet.ops.run.kept import logs
from fleet.ops.run.kept.logs import NodeLogs
from fleet.ops.run.kept.record import host_as_json
from fleet.ops.setup_ssh import node
from fleet.protocol.decode import Misfit, decode
from fleet.protocol.frames import PREAMBLE
from fleet.protocol.messages.run import Followed
from fleet.protocol.state import PROTOCOL
from fleet.requests.hosts import Check
from fleet.requests.sync import Sync, SyncData
from fleet.runtime import Runtime
from fleet.transport import base, streams
from fleet.transport.base import Cancel
from fleet.transport.program import Program, call
from fleet.transport.shell import OUTPUT_LIMIT, run_line
from fleet.transport.ssh import channel as ssh_channel
from fleet.transport.ssh.adapter import Packets, paramiko
from fleet.transport.ssh.node_channel import Bell
from tests.clock import HandClock
from tests.peak import LIMIT_MIB, peak_of

HOST = Host("gpu1", "gpu1")


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
    "term": 0,
}


class Node:
    """A Session, its Channel and a Transport at once: says `said`, whatever it is asked."""

    name = "hostile"
    host = HOST
    address = None

    def __init__(self, *said: bytes) -> None:
        self.said = said
        self.got = b""

    def connect(self, host: Host, cancel: Cancel) -> Any:
        return self

    def resolve(self, host: Host) -> None:
        return None

    def start(self, command: str) -> Any:
        channel = Node(*self.said)
        channel._left = list(self.said)  # type: ignore[attr-defined]
        return channel

    def send(self, data: bytes) -> None:
        self.got += data

    def send_eof(self) -> None: ...

    def recv(self, timeout: float) -> bytes:
        left: list[bytes] = self._left  # type: ignore[attr-defined]
        return left.pop(0) if left else b""

    def recv_stderr(self) -> bytes:
        return b""

    def wait(self, timeout: float) -> int:
        return 0

    def close(self) -> None: ...


def frame(kind: bytes, payload: bytes, stream: int = 0) -> bytes:
    return struct.pack(">cII", kind, stream, len(payload)) + payload


def said(*messages: Any) -> Node:
    """A node that sends these J frames and ends."""
    return Node(PREAMBLE, *(frame(b"J", json.dumps(m).encode()) for m in messages), frame(b"X", b'{"exit_status": 0}'))


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
    with pytest.raises(ProtocolError) as caught:
        call(Node(PREAMBLE + data), "preflight.probe", {}, dict[str, Any])
    assert caught.value.kind == "protocol" and caught.value.hint


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


def test_a_message_takes_no_more_memory_than_this_machine_has() -> None:
    assert peak_of(sys.executable, "-c", BIG) < LIMIT_MIB


def test_a_shell_that_never_stops_talking() -> None:
    with pytest.raises(ProtocolError, match="more than"):
        run_line(Node(*[b"y" * (1 << 20)] * (OUTPUT_LIMIT // (1 << 20) + 2)), "true")


@pytest.mark.parametrize("path", [".env", "link/secret", "../secret", "/etc/hostname", "folder"])
def test_a_node_gets_no_file_that_is_not_in_the_source(tmp_path: Path, path: str) -> None:
    source = tmp_path / "src"
    (source / "folder").mkdir(parents=True)
    (tmp_path / "secret").write_text("hunter2")
    (source / ".env").write_text("TOKEN=1")
    (source / ".gitignore").write_text(".env\n")
    (source / "link").symlink_to(tmp_path)
    inventory = Inventory((HOST,))
    hello = {"event": "hello", "dest": "/d", "known": None, "rsync": "/usr/bin/rsync"}
    need = {"event": "need", "files": [[path, 1]], "stage": "/d/s", "basis": "/d"}
    report = sync.run(sync.plan(inventory, Sync(source, "/d")), Runtime(said(hello, need)))
    assert isinstance(report.results[0].error, ProtocolError), report.results[0].error


NEED = {
    "event": "need",
    "wants": [[0, 4]],
    "files": [[0, 1]],
    "unsure": {},
    "own": [],
    "bytes": 4,
    "address": "198.18.0.9",
    "port": 9,
    "stages": ["/d/s"],
}


@pytest.mark.parametrize(
    "change",
    [
        {"unsure": {"7": "00"}},
        {"unsure": {"-1": "00"}},
        {"unsure": []},
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
        {"stages": []},
        {"stages": [None]},
    ],
)
def test_a_node_that_lacks_what_makes_no_sense(tmp_path: Path, change: dict[str, Any]) -> None:
    (tmp_path / "x").write_bytes(b"data")
    inventory = Inventory((HOST,))
    plan = broadcast.plan(inventory, SyncData(data=[f"{tmp_path}/x:/d/x"]))
    report = broadcast.run(plan, Runtime(said({"event": "hello"}, {**NEED, **change})))
    error = report.results[0].error
    assert isinstance(error, ProtocolError) and error.host == "gpu1", error


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
        [],
        7,
    ],
)
def test_facts_of_other_types_are_that_hosts_error(facts: Any) -> None:
    checked = check.run(check.plan(Inventory((HOST,)), Check()), Runtime(said({"facts": facts})))
    assert isinstance(checked.results[0].error, ProtocolError) and checked.exit_code == 122


@pytest.mark.parametrize(
    "field",
    [
        {"rank": "0"},
        {"rank": None},
        {"rank": 0, "status": []},
        {"rank": 0, "signal": 10**400},
        {"rank": 0, "time": "x"},
        {"rank": 0, "time": float("nan")},
        {"rank": True},
        {"event": "status", "reason": "x" * 5000},
        {"event": "status", "disk_full": "x"},
        {"event": "status", "engine_status": "1"},
        {"event": "status", "left": 5},
        {"event": "status", "state": {}},
    ],
)
def test_what_a_node_says_of_its_ranks_is_checked(field: dict[str, Any]) -> None:
    with pytest.raises(Misfit):
        decode(Followed, {"event": "rank", **field})


@pytest.mark.parametrize("messages", [[{"clock": None}], [{"clock": 1.0}, {"clock": "1.0"}], []])
def test_a_clock_that_is_none_and_facts_that_never_come(messages: list[Any]) -> None:
    checked = check.run(check.plan(Inventory((HOST,)), Check()), Runtime(said(*messages)))
    assert isinstance(checked.results[0].error, ProtocolError)


def follow(folder: Path, session: Node) -> list[Heard]:
    heard: list[Heard] = []
    follower = Follower(HOST, NodeLogs(folder), Following("r", session, heard.append, lambda event: None, 3.0))
    follower.start()
    follower.join(300)
    assert not follower.is_alive()
    return heard


def test_a_node_that_only_talks_nonsense_is_given_up(tmp_path: Path) -> None:
    heard = follow(tmp_path, said({"event": "rank", "rank": "zero"}))
    assert [h.what for h in heard if h.what in ("broken", "over")] == ["broken", "over"]


def test_a_flood_of_events_is_cut_off_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "TOLD_A_SECOND", 0)  # a busy machine takes seconds for it, in which it may tell more
    flood = said(*[{"event": "rank", "rank": n % 8, "status": 0, "time": 1.0} for n in range(60_000)])
    heard = follow(tmp_path, flood)
    (broken,) = [h for h in heard if h.what == "broken"]
    assert "tells more than" in str(broken.data)
    assert 1000 < len([h for h in heard if h.what == "message"]) < 25_000


def test_a_node_that_is_lost_again_and_again_is_not_broken(tmp_path: Path) -> None:
    class Lost(Node):
        tries = 0

        def connect(self, host: Host, cancel: Cancel) -> Any:
            self.tries += 1
            return self

    heard: list[Heard] = []
    lost = Lost(PREAMBLE)
    follower = Follower(HOST, NodeLogs(tmp_path), Following("r", lost, heard.append, lambda event: None, 3.0))
    follower.start()
    until = time.monotonic() + 300
    while lost.tries < 4 and time.monotonic() < until:
        time.sleep(0.05)
    follower.give_up()
    follower.join(300)
    assert lost.tries >= 4 and "broken" not in [h.what for h in heard], heard


def test_a_busy_node_has_time_to_start_python_before_it_counts_as_silent(tmp_path: Path) -> None:
    """A connection that says no more is given up after a third of --node-timeout; who begins has more."""
    hand = HandClock(100.0)

    class Slow(Node):
        clock = hand

        def start(self, command: str) -> Any:
            channel = Slow(*self.said)
            channel._left = [b"".join(self.said)]  # type: ignore[attr-defined]
            return channel

        def recv(self, timeout: float) -> bytes:
            hand.sleep(timeout)
            return super().recv(timeout) if hand.now > 108.0 else None  # type: ignore[return-value]

    heard: list[Heard] = []
    node = Slow(*said({"event": "end", "sizes": {}}).said)
    Follower(HOST, NodeLogs(tmp_path), Following("r", node, heard.append, lambda event: None, 15.0)).run()
    assert [h.what for h in heard] == ["over"] and heard[0].data.complete


def test_who_was_given_up_writes_no_more(tmp_path: Path) -> None:
    """Its files may be another one's by then: an attempt's, a keeper's."""
    stream = frame(b"J", json.dumps({"event": "stream", "id": 1, "name": "rank0.out", "offset": 0}).encode())
    node = Node(PREAMBLE + stream + frame(b"O", b"mine", 1) + frame(b"O", b"another's", 1))
    follower = Follower(
        HOST, NodeLogs(tmp_path), Following("r", node, lambda heard: None, lambda event: follower.give_up(), 15.0)
    )
    follower.run()
    assert (tmp_path / "rank0.out").read_bytes() == b"mine"


def test_time_in_which_we_were_held_up_is_nobodys_silence() -> None:
    clock = HandClock(100.0)
    silent = base.Silence(clock)
    for _ in range(20):
        clock.now += 0.5
        waited = silent.seconds()
    assert waited == 10.0
    clock.now += 3600
    assert silent.seconds() == 10.0
    clock.now += 0.5
    assert silent.seconds() == 10.5
    silent.word()
    assert silent.seconds() == 0.0


def test_logs_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_LOGS", 2)
    files = NodeLogs(tmp_path)
    for rank in range(2):
        files.write(f"rank{rank}.out", 0, b"x")
    with pytest.raises(ProtocolError):
        files.write("rank2.out", 0, b"x")
    with pytest.raises(ProtocolError):
        files.write("rank0.out", -5, b"x")


@pytest.mark.parametrize("checksum", [b"1:-5", b"1:x", b"7", b"1:" + b"9" * 5000])
def test_setup_ssh_reads_no_file_of_odd_size(checksum: bytes) -> None:
    with pytest.raises(HostFailed):
        node.parse_answer(b"FILE config " + checksum + b"\nabc\nEND\n", "gpu1")


class Beating(Node):
    """Lives, and says no more."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock()

    def start(self, command: str) -> Any:
        self._left = [PREAMBLE]
        return self

    def recv(self, timeout: float) -> bytes:
        self.clock.sleep(min(timeout, 1.0))
        return super().recv(timeout) or frame(b"H", b"")


def test_init_waits_for_no_node_that_only_lives() -> None:
    hosts = (Host("a", "a"), Host("b", "b"))
    candidates = {host.name: [Address("10.0.0.1", "", 0, False)] for host in hosts}
    assert ask.reach(hosts, candidates, Runtime(Beating())) == {"a": set(), "b": set()}


@pytest.mark.parametrize("word", ["latest", "../x", ".lock", "attempt0", "train-20260101-000000-abcd/../../x", "-x"])
def test_a_run_that_a_node_calls_what_is_no_id_is_that_nodes_error(word: str) -> None:
    """Of what the others tell, "latest" still means the newest."""
    node: dict[str, Any] = {"event": "runs", "runs": [{**RUN_HERE, "run": word}]}
    honest: dict[str, Any] = {"event": "runs", "runs": [RUN_HERE]}
    hosts = (Host("liar", "liar"), Host("gpu2", "gpu2"))
    transport = SimpleNamespace(connect=lambda host, cancel: said(node if host.name == "liar" else honest))
    runs, asked = find(Inventory(hosts), Runtime(transport), live=False)
    assert [result.error and result.error.kind for result in asked] == ["protocol", None]
    assert [run.run_id for run in runs] == [RUN_HERE["run"]] and list(runs[0].hosts) == ["gpu2"]
    assert chosen("latest", runs, asked).run_id == RUN_HERE["run"]
    with pytest.raises(ConnectError, match="no answer from liar"):
        chosen(word if word != "latest" else "latest2", runs, asked)


@pytest.mark.parametrize("name", ['id"x', "a\x0bHost", "../../x", "$(x)", ""])
def test_setup_ssh_takes_no_key_whose_name_is_more_than_one(name: str) -> None:
    """It goes into an ssh config of that node, and into the record of what setup-ssh made."""
    key = f"KEY {name} ssh-ed25519 {'A' * 68}\nEND\n"
    with pytest.raises(HostFailed, match="no name that a config can hold"):
        node.parse_answer(key.encode(), "gpu1")


def test_setup_ssh_misses_a_file() -> None:
    with pytest.raises(HostFailed, match="lacks"):
        node.look(Node(b"\nFLEET-SETUP-SSH\nFILE config -\nFILE ../x -\nEND\n"), key_type=None)


def test_programs_end_with_their_host_in_the_error() -> None:
    with (
        pytest.raises(FleetError) as caught,
        Program(Node(PREAMBLE + frame(b"?", b"")), "preflight.probe", {}) as program,
    ):
        list(program.frames())
    assert caught.value.host == "gpu1"


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
    (result,) = kill_port.look(Inventory((HOST,)), [80], Runtime(said({"listeners": [{**LISTENER, **change}]})))
    assert isinstance(result.error, ProtocolError) is bool(change)


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
        ("need", {"stage": 0}),
        ("done", {"event": "failed", "message": "no", "hint": {}}),
        ("hello", {"event": "failed", "message": ["no"]}),
    ],
)
def test_a_sync_in_other_words_is_that_hosts_error(tmp_path: Path, which: str, change: dict[str, Any]) -> None:
    inventory = Inventory((HOST,))
    messages: dict[str, dict[str, Any]] = {
        "hello": {"event": "hello", "dest": "/d", "known": None, "rsync": None},
        "need": {"event": "need", "files": [], "stage": "/d/s", "basis": "/d"},
        "done": {
            "event": "done",
            "sent": 0,
            "bytes": 0,
            "deleted": 0,
            "kept": [],
            "entries": 0,
            "changed": 0,
            "left": [],
            "replaced": 0,
            "aside": [],
        },
    }
    messages[which].update(change)
    if change == {"event": []}:
        messages["hello"] = change
    hello, need, done = messages.values()
    report = sync.run(sync.plan(inventory, Sync(tmp_path, "/d")), Runtime(said(hello, need, done)))
    assert isinstance(report.results[0].error, ProtocolError) is bool(change)


def test_an_ssh_packet_of_4_gib_is_not_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack(">I", 2**32 - 4) + b"x" * 4092)
        packets = Packets(ours)
        try:
            with pytest.raises(paramiko.SSHException, match="announces"):
                packets.read_message()
        finally:
            packets.close()


def test_the_janitor_finds_a_key_named_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored = host_as_json(Host("a", "a", identity_file="keys/k", env={"TOKEN": "x"}))
    assert stored["identity_file"] == str(tmp_path / "keys/k") and stored["env"] == {}
    assert host_as_json(Host("a", "a", identity_file="~/k"))["identity_file"] == "~/k"


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


def test_sending_to_a_process_that_reads_nothing_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """A channel without window, whose far end goes on writing."""

        transport = SimpleNamespace(is_active=lambda: True)
        bell = Bell()
        eof_received = closed = False

        def settimeout(self, seconds: float) -> None: ...

        def send(self, data: Any) -> int:
            raise TimeoutError

        def unread(self) -> int:
            return 1024

        def taken(self, size: int) -> tuple[bytes, bytes]:
            return b"x" * 1024, b""

    monkeypatch.setattr(streams, "EARLY_BYTES", 4096)
    Full.bell.set()
    channel = ssh_channel.SshChannel(Full(), HOST)  # type: ignore[arg-type]
    with pytest.raises(ConnectError, match="reads nothing"):
        channel.send(b"y", patience=0.2)
    assert len(channel._early[0]) == 4096


@pytest.mark.parametrize(
    "parts",
    [
        [{"wants": []}],
        [{"wants": [[0, 1]]}, {"wants": [[1, 2]]}],
        [{"unsure": {"0": "", "1": ""}}],
        [{"files": 7}],
        [{"wants": [["0", "4"]]}],
        [{"unsure": {"9" * 5000: ""}}],
        [{}],
    ],
)
def test_parts_of_what_a_node_lacks_that_are_none(tmp_path: Path, parts: list[dict[str, Any]]) -> None:
    (tmp_path / "x").write_bytes(b"data")
    inventory = Inventory((HOST,))
    plan = broadcast.plan(inventory, SyncData(data=[f"{tmp_path}/x:/d/x"]))
    messages = [{"event": "hello"}, *({"event": "lacks", **part} for part in parts), NEED]
    report = broadcast.run(plan, Runtime(said(*messages)))
    assert isinstance(report.results[0].error, ProtocolError)


@pytest.mark.parametrize("parts", [[[]], [["x", 1], ["y", 1]], [["../x", 1]]])
def test_parts_of_what_a_sync_lacks_that_are_none(tmp_path: Path, parts: list[Any]) -> None:
    (tmp_path / "x").write_bytes(b"data")
    inventory = Inventory((HOST,))
    hello = {"event": "hello", "dest": "/d", "known": None, "rsync": None}
    need = {"event": "need", "files": [["x", 4]], "stage": "/d/s", "basis": "/d"}
    lacks = [{"event": "lacks", "files": [part] if part else []} for part in parts]
    report = sync.run(sync.plan(inventory, Sync(tmp_path, "/d")), Runtime(said(hello, *lacks, need)))
    assert isinstance(report.results[0].error, ProtocolError)
