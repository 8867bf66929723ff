"""Who listens, and their end: only what was shown, and never what the connection runs through."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fleet.node.ports.listeners import parse_listeners
from fleet.transport.program import BOOT, packed
from tests.node.nodes import alive, answer, until

LISTEN = """
import os, signal, socket, sys, time
family, address, port, how = sys.argv[1:]
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if how == "forged":
    with open("/proc/self/comm", "wb") as comm:
        comm.write(b"x\\rUid:\\t4242")
s = socket.socket(getattr(socket, family))
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind((address, int(port)))
s.listen()
print(s.getsockname()[1], flush=True)
if how == "forks":
    for _ in range(2):
        if not os.fork():
            break
time.sleep(600)
"""
Listen = Callable[..., tuple[int, int]]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """listen(how, family, address, user) -> (pid, port) of a process that listens; all are killed afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start(
        how: str = "plain",
        family: str = "AF_INET",
        address: str = "127.0.0.1",
        user: int | None = None,
        env: Mapping[str, str] | None = None,
        port: int = 0,
    ) -> tuple[int, int]:
        process = subprocess.Popen(
            ["/usr/bin/python3", "-c", LISTEN, family, address, str(port), how],
            stdout=subprocess.PIPE,
            start_new_session=True,
            user=user,
            env={**os.environ, **(env or {})},
            cwd="/",
        )
        started.append(process)
        assert process.stdout
        found = int(process.stdout.readline())
        return process.pid, found

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout
        process.stdout.close()


def scan(home: Path, *ports: int, **extra: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer("ports.kill_port", {"op": "scan", "ports": ports}, home, **extra)["listeners"]
    return found


def end(home: Path, port: int, approved: list[Any], grace: float = 5.0, force: bool = False, **extra: Any) -> Any:
    spec = {"op": "end", "ports": [port], "approved": approved, "grace": grace, "force": force}
    return answer("ports.kill_port", spec, home, **extra)


def key(entry: dict[str, Any]) -> list[int]:
    return [entry["pid"], entry["start"], entry["uid"]]


@pytest.mark.parametrize(
    ("family", "address"), [("AF_INET", "127.0.0.1"), ("AF_INET", "0.0.0.0"), ("AF_INET6", "::1"), ("AF_INET6", "::")]
)
def test_a_listener_is_shown_and_ended(home: Path, listen: Listen, family: str, address: str) -> None:
    pid, port = listen(family=family, address=address, env={"FLEET_RUN_ID": "run-7-20260101-000000-abcd"})
    (entry,) = scan(home, port)
    assert (entry["port"], entry["address"], entry["pid"]) == (port, address, pid)
    assert entry["own"] and entry["refused"] is None and entry["run_id"] == "run-7-20260101-000000-abcd"
    assert entry["command"].startswith("/usr/bin/python3 -c") and entry["age"] < 300
    assert alive(pid), "a scan ends nothing"
    done = end(home, port, [key(entry)])
    assert done == {"ended": [pid], "reasons": {}, "listeners": []}
    assert not alive(pid)


def test_a_process_that_changed_its_user_since_it_was_shown_is_left(home: Path, listen: Listen) -> None:
    pid, port = listen()
    (entry,) = scan(home, port)
    done = end(home, port, [[entry["pid"], entry["start"], entry["uid"] + 1]])
    assert done["ended"] == [] and done["reasons"] == {str(pid): "its owner changed since it was shown"} and alive(pid)


@pytest.mark.parametrize("name", ["x; touch /tmp/owned", "latest", "\x1b[2J", "../x"])
def test_what_a_process_says_it_belongs_to_is_a_run_or_nothing(home: Path, listen: Listen, name: str) -> None:
    """What is told of it is a line to copy: 'fleet stop RUN' ends it."""
    _, port = listen(family="AF_INET", address="127.0.0.1", env={"FLEET_RUN_ID": name})
    assert [entry["run_id"] for entry in scan(home, port)] == [None]


def test_a_process_cannot_name_itself_into_another_users(home: Path, listen: Listen) -> None:
    """Its name stands above its uid in /proc/PID/status, and may hold a carriage return."""
    pid, port = listen("forged")
    (entry,) = scan(home, port)
    assert (entry["pid"], entry["uid"], entry["own"]) == (pid, os.getuid(), True)


def test_nothing_listens(home: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, not listening
        assert scan(home, free.getsockname()[1]) == []


def test_one_that_ignores_term_is_killed_after_the_grace(home: Path, listen: Listen) -> None:
    pid, port = listen("stubborn")
    (entry,) = scan(home, port)
    began = time.monotonic()
    assert end(home, port, [key(entry)], grace=0.5)["ended"] == [pid]
    assert time.monotonic() - began >= 0.5 and not alive(pid)


def test_forks_that_share_a_socket_are_all_listed_and_only_the_approved_end(home: Path, listen: Listen) -> None:
    pid, port = listen("forks")
    entries = until(lambda: found if len(found := scan(home, port)) == 3 else None)
    assert len({entry["pid"] for entry in entries}) == 3
    child = next(entry for entry in entries if entry["pid"] != pid)
    done = end(home, port, [key(child)])
    assert done["ended"] == [child["pid"]]
    assert {entry["pid"] for entry in done["listeners"]} == {e["pid"] for e in entries} - {child["pid"]}
    rest = end(home, port, [key(entry) for entry in done["listeners"]])
    assert rest["listeners"] == [] and not alive(pid)


def test_a_pid_that_another_process_has_by_now_is_left_alone(home: Path, listen: Listen) -> None:
    pid, port = listen()
    (entry,) = scan(home, port)
    done = end(home, port, [[pid, entry["start"] - 1, entry["uid"]]])
    assert alive(pid) and [e["pid"] for e in done["listeners"]] == [pid]
    assert done["ended"] == [pid] and done["reasons"] == {}, "the one that was shown is gone, whoever has its pid"


def test_what_does_not_listen_there_is_never_signalled(home: Path, listen: Listen) -> None:
    pid, port = listen()
    other, elsewhere = listen()
    (entry,) = scan(home, elsewhere)
    done = end(home, port, [key(entry)])
    assert done["ended"] == [] and "does not listen" in done["reasons"][str(other)]
    assert alive(pid) and alive(other)


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_another_users_listener_needs_force(home: Path, listen: Listen) -> None:
    pid, port = listen(user=65534)
    (entry,) = scan(home, port)
    assert entry["uid"] == 65534 and not entry["own"]
    left = end(home, port, [key(entry)])
    assert alive(pid) and left["ended"] == [] and left["reasons"][str(pid)].startswith("it belongs to")
    assert end(home, port, [key(entry)], force=True)["ended"] == [pid]


@pytest.mark.skipif(os.getuid() != 0, reason="needs a second user")
def test_as_another_user_what_cannot_be_seen_or_ended_is_said(listen: Listen, tmp_path: Path) -> None:
    pid, port = listen()

    def as_nobody(spec: str) -> bytes:
        return subprocess.run(
            ["/usr/bin/python3", "-I", "-S", "-c", BOOT],
            user=65534,
            group=65534,
            extra_groups=[],
            input=packed("ports.kill_port", json.loads(spec)),
            capture_output=True,
            cwd="/",
            check=True,
        ).stdout

    assert b'"pid": null' in as_nobody(f'{{"op": "scan", "ports": [{port}]}}')
    born = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    said = as_nobody(f'{{"op": "end", "ports": [{port}], "approved": [[{pid}, {born}, 0]], "grace": 0, "force": true}}')
    assert alive(pid) and b'"ended": []' in said


def test_what_the_connection_runs_through_is_refused(home: Path, listen: Listen) -> None:
    pid, port = listen()
    ssh = {"SSH_CONNECTION": f"127.0.0.1 40000 127.0.0.1 {port}"}
    (entry,) = scan(home, port, env=ssh)
    assert "carries this connection" in entry["refused"]
    done = end(home, port, [key(entry)], force=True, env=ssh)
    assert alive(pid) and done["ended"] == []
    with socket.create_server(("127.0.0.1", 0)) as ours:  # this test is the program's parent
        (above,) = scan(home, ours.getsockname()[1])
        assert above["pid"] == os.getpid() and above["refused"]
        end(home, ours.getsockname()[1], [key(above)], force=True)


MANY = """
import socket, time
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.bind(("::1", 0))
web, more = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
asks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asks.connect(("127.0.0.1", 9))  # a client's
print(udp.getsockname()[1], web.getsockname()[1], more.getsockname()[1], asks.getsockname()[1], flush=True)
time.sleep(600)
"""


def test_udp_is_looked_at_and_all_else_that_a_process_listens_on_is_named(home: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", MANY], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        udp, web, more, asks = map(int, process.stdout.readline().split())
        (entry,) = scan(home, udp)
        assert (entry["port"], entry["protocol"], entry["address"], entry["pid"]) == (udp, "udp", "::1", process.pid)
        assert sorted(entry["also"]) == sorted([f"{web}/tcp", f"{more}/tcp"])
        (entry,) = scan(home, web)
        assert entry["protocol"] == "tcp" and sorted(entry["also"]) == sorted([f"{udp}/udp", f"{more}/tcp"])
        assert scan(home, asks) == []
        assert end(home, udp, [key(entry)]) == {"ended": [process.pid], "reasons": {}, "listeners": []}
        assert process.wait(300) == -signal.SIGTERM
    finally:
        process.kill()
        process.communicate()


def test_a_process_that_also_holds_the_ssh_port_is_refused_on_any_port(home: Path, listen: Listen) -> None:
    two = (
        "import socket,time; a=socket.create_server(('127.0.0.1',0)); b=socket.create_server(('127.0.0.1',0));"
        "print(a.getsockname()[1], b.getsockname()[1], flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", two], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        one, other = map(int, process.stdout.readline().split())
        (entry,) = scan(home, other, env={"SSH_CONNECTION": f"127.0.0.1 40000 127.0.0.1 {one}"})
        assert entry["refused"]
    finally:
        process.kill()
        process.communicate()


HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(address: str, state: str = "0A", uid: str = "1000", inode: str = "4242") -> str:
    return f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {uid} 0 {inode} 1 0 100\n"


@pytest.mark.skipif(sys.byteorder != "little", reason="the texts below are a little-endian machine's")
@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (row("0100007F:733C"), [(29500, "127.0.0.1", 1000, 4242)]),
        (row("00000000:733C", uid="0"), [(29500, "0.0.0.0", 0, 4242)]),
        (row("00000000000000000000000001000000:733C"), [(29500, "::1", 1000, 4242)]),
        (row("0000000000000000FFFF00000100007F:733C"), [(29500, "::ffff:127.0.0.1", 1000, 4242)]),
        (row("0100007F:733C", state="01"), []),  # an established connection
        (row("0100007F:733D"), []),
        (row("0100007F"), []),
        (row("zz:733C"), []),
        (row("0100:733C"), []),
        (row("0100007F:733C", uid="x"), []),
        ("", []),
        ("garbage\n\n \x00\n", []),
        (HEADER, []),
        (row("0100007F:733C")[:40], []),
    ],
)
def test_socket_tables(text: str, wanted: list[Any]) -> None:
    assert parse_listeners(HEADER + text, {29500}) == wanted
