"""Code sync with nodes that freeze, fail for others, or say odd things; and what it brings to the disk."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from fleet.delivery import conversation
from fleet.errors import HostFailed, Interrupted, ProtocolError, UsageError
from fleet.events import Notice
from fleet.model import Host, Inventory
from fleet.ops import sync
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.local import LocalTransport
from tests.node.seams import Tap, at
from tests.node.test_code_sync import LARGE, mirror, node_with


@pytest.fixture
def source(source: Path) -> Path:
    (source / "a.py").write_text("a")
    return source


FREEZES = """
import os
from fleet.node.delivery import code_sync
code_sync.receive = lambda *args: os.kill(os.getpid(), 19)
"""
SAYS = """
import json, sys
from fleet.node.base.wire import send_json, start
from fleet.node.delivery import code_sync
def main():
    start()
    for message in json.loads(%r):
        send_json(message)
    sys.stdin.read()
code_sync.main = main
"""


def says(*messages: object) -> Tap:
    return node_with(SAYS % json.dumps(messages))


def test_a_node_that_freezes_while_it_is_sent_a_large_file_is_lost_and_not_interrupted(
    source: Path, dest: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "large").write_bytes(b"l" * LARGE)
    monkeypatch.setattr(conversation, "SILENCE_SECONDS", 3.0)
    report = mirror(source, dest, transport=node_with(FREEZES))
    error = report.results[0].error
    assert report.exit_code == 122 and error and (error.kind, error.message) == ("lost", "silent for 3 s"), error


def test_what_fails_in_the_delivery_is_told_and_not_that_the_node_ended(source: Path, dest: Path) -> None:
    (source / "large").write_bytes(b"l" * LARGE)

    def breaks() -> None:
        raise HostFailed("the disk here broke", kind="disk")

    report = mirror(source, dest, transport=Tap(sending=at(b'{"op": "block"', breaks)))
    error = report.results[0].error
    assert report.exit_code == 1 and error and error.kind == "disk" and "disk here broke" in error.message


def test_who_shares_a_folder_that_could_not_be_written_is_not_well(source: Path, dest: Path) -> None:
    failing = node_with(
        f"""
import os, time
from fleet.node.delivery import code_sync
send, shared = code_sync.send_json, {str(source.parent / "shared")!r}
def send_json(message):
    if message["event"] == "shared":
        open(shared, "w").close()
    send(message)
def receive(*args):
    while not os.path.exists(shared):
        time.sleep(0.05)
    raise code_sync.Refused("the disk broke", None)
code_sync.send_json, code_sync.receive = send_json, receive
""",
    )
    report = mirror(source, dest, ("n1", "n2"), failing)
    messages = {r.host: r.error.message for r in report.results if r.error}
    assert report.exit_code == 1 and messages.keys() == {"n1", "n2"}
    writer = next(name for name in messages if messages[name] == "the disk broke")
    other = ({"n1", "n2"} - {writer}).pop()
    assert messages[other] == f"shares its folder with host {writer}, which failed"


@pytest.mark.parametrize("path", ["/x\0y", "/\ud800", "/" + "a" * 200_000, ""], ids=["nul", "half", "long", "empty"])
@pytest.mark.parametrize("field", ["dest", "kept"])
def test_a_node_whose_paths_are_none(source: Path, dest: Path, field: str, path: str) -> None:
    hello = {"event": "hello", "dest": "/d", "known": None}
    need = {"event": "need", "files": [], "blocks": []}
    done = {
        "event": "done",
        "sent": 0,
        "bytes": 0,
        "deleted": 0,
        "kept": [path],
        "entries": 0,
        "changed": 0,
        "left": [],
        "replaced": 0,
        "aside": [],
    }
    if field == "dest":
        hello["dest"] = path
    error = mirror(source, dest, transport=says(hello, need, done)).results[0].error
    assert isinstance(error, ProtocolError) and field in error.message


def test_a_node_that_waits_without_end_is_mentioned_once(source: Path, dest: Path) -> None:
    waits = says(*({"event": "waiting", "run": f"run-{i}"} for i in range(500)), {"event": "failed"})
    notices: list[object] = []
    inventory = Inventory((Host("n1", "127.0.0.1"),))
    plan = sync.plan(inventory, Sync(source, str(dest)))
    sync.run(plan, Runtime(waits, emit=notices.append))
    assert [n.message for n in notices if isinstance(n, Notice)] == [
        "waiting until run run-0 has begun, which uses the same folder"
    ]


class Counting(LocalTransport):
    """Counts the sessions that are open. silent: hosts of these names answer nothing until they are given up."""

    def __init__(self, silent: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.silent = silent
        self.lock, self.open, self.most, self.ever = threading.Lock(), 0, 0, 0

    def connect(self, host: Host, cancel: Cancel) -> Session:
        if host.name in self.silent:
            given_up = threading.Event()
            cancel.on_set(given_up.set)
            assert given_up.wait(120)
            raise Interrupted("given up")
        session = super().connect(host, cancel)
        closed = session.close
        with self.lock:
            self.open, self.ever = self.open + 1, self.ever + 1
            self.most = max(self.most, self.open)

        def close() -> None:
            with self.lock:
                self.open -= 1
            closed()

        session.close = close  # type: ignore[method-assign]
        return session


def test_no_more_hosts_are_connected_at_once_than_asked_for(source: Path, tmp_path: Path) -> None:
    hosts = tuple(Host(f"n{i}", "127.0.0.1", workdir=str(tmp_path / f"d{i}")) for i in range(5))
    transport = Counting()
    report = sync.run(sync.plan(Inventory(hosts), Sync(source, None)), Runtime(transport, fanout=2))
    assert report.exit_code == 0, report
    assert (transport.open, transport.most, transport.ever) == (0, 2, 5)


def test_a_source_that_cannot_be_read_lets_go_of_hosts_connected_already(source: Path, tmp_path: Path) -> None:
    (source / ".fleetignore").write_bytes(b"[z\n")  # found while it is read
    hosts = tuple(Host(f"n{i}", "127.0.0.1", workdir=str(tmp_path / f"d{i}")) for i in range(3))
    transport = Counting(silent=("n1",))
    with pytest.raises(UsageError):
        sync.run(sync.plan(Inventory(hosts), Sync(source, None)), Runtime(transport))
    until = time.monotonic() + 60
    while transport.open and time.monotonic() < until:
        time.sleep(0.02)
    assert transport.open == 0 and not list(tmp_path.glob("d*"))
