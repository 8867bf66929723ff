"""Which others a node reaches, and who answers there."""

from __future__ import annotations

import _socket
import contextlib
import errno
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.node.preflight import pairs as preflight
from fleet.node.preflight import visit
from fleet.node.preflight.visit import PACKET_BYTES, PROOF_BYTES
from fleet.ops.pairs import DIAL_SECONDS
from fleet.protocol.frames import MESSAGE
from fleet.transport.program import BOOT, closure, packed
from tests.free_port import free_port
from tests.node.nodes import Running


class Pairs:
    """The program, as the head drives it. ports: where it listens."""

    def __init__(self, program: Running) -> None:
        self._program = program
        self._messages = (frame.json() for frame in program.frames() if frame.kind == MESSAGE)
        first = next(self._messages)
        self.ports, self.error = first["ports"], first["error"]

    def dial(self, *visits: tuple[str, int, str], seconds: float = 0.0) -> list[str]:
        """Returns what came of each visit (address, port, token)."""
        orders = [(address, port, token) for address, port, token in visits]
        self._program.send({"op": "dial", "seconds": seconds, "visits": orders})
        answer = next(self._messages)
        self.links = answer["links"]
        assert [bool(seconds) and how == "open" for how in answer["reached"]] == [it is not None for it in self.links]
        reached: list[str] = answer["reached"]
        return reached


@contextlib.contextmanager
def pairs(home: Path, *listen: str, token: str = "mine", seconds: float = 60.0, first: str = "") -> Iterator[Pairs]:
    spec: dict[str, Any] = {"listen": listen or ["127.0.0.1"], "token": token, "seconds": seconds}
    with Running("preflight.pairs", spec, home, first=first) as program:
        yield Pairs(program)


def test_an_address_that_leads_back_here_is_not_another_hosts(tmp_path: Path) -> None:
    with pairs(tmp_path, "127.0.0.1", "127.0.0.2", "::1") as node:
        one, other, six = node.ports
        assert node.error is None
        reached = node.dial(
            ("127.0.0.1", one, "mine"),
            ("127.0.0.2", other, "mine"),
            ("::1", six, "mine"),
            ("127.0.0.1", one, "another's"),
            ("127.0.0.2", one, "mine"),
            ("127.0.0.1", free_port(), "mine"),
        )
    assert reached == ["open", "open", "open", "other", "refused", "refused"]


def test_no_name_is_looked_up_while_others_are_visited(tmp_path: Path) -> None:
    """A name server may take its time; a head sends numbers only. A node may add a scope to its address."""
    names = ("localhost", "127.0.0.1%x.localhost", "::1%x.localhost")
    for name in names:
        with pytest.raises(OSError, match="Name or service not known"):  # before any connection
            visit.open_socket(name)
    with pairs(tmp_path, "127.0.0.1") as node:
        visits = [(address, node.ports[0], "mine") for address in (*names, "127.0.0.1")]
        assert node.dial(*visits) == ["unreachable"] * 3 + ["open"]


def test_who_has_seen_a_visit_cannot_answer_the_next_one(tmp_path: Path) -> None:
    """A proof is of its visit's nonce; what an echo, or a node with another token, sends is none."""
    with socket.create_server(("127.0.0.1", 0)) as server, pairs(tmp_path) as node:

        def between() -> None:
            proof = b""
            for answer in ("relay", "replay", "replay", "echo", "echo"):  # each failed visit has a second try
                with server.accept()[0] as visitor, socket.create_connection(("127.0.0.1", node.ports[0])) as peer:
                    came = visitor.recv(PACKET_BYTES, socket.MSG_WAITALL)
                    if answer == "relay":
                        peer.sendall(came)
                        proof = peer.recv(PROOF_BYTES, socket.MSG_WAITALL)
                    visitor.sendall(came[:PROOF_BYTES] if answer == "echo" else proof)
                    visitor.recv(1)

        threading.Thread(target=between, daemon=True).start()
        at = ("127.0.0.1", server.getsockname()[1], "mine")
        assert [node.dial(at) for _ in range(3)] == [["open"], ["other"], ["other"]]


WITHOUT_ITS_OWN = """
import sys
try:
    import _hashlib
    sys.modules.update(_sha256=None, _sha2=None)
except ImportError:
    pass  # a Python without OpenSSL
"""


@pytest.mark.parametrize("first", ["", WITHOUT_ITS_OWN], ids=["its own hashes", "OpenSSL's hashes"])
def test_two_nodes_dial_each_other(tmp_path: Path, first: str) -> None:
    """A distribution may have only OpenSSL's hashes."""
    with pairs(tmp_path / "a", token="a", first=first) as a, pairs(tmp_path / "b", token="b") as b:
        assert a.dial(("127.0.0.1", b.ports[0], "b")) == b.dial(("127.0.0.1", a.ports[0], "a")) == ["open"]


def test_a_link_is_measured_while_the_other_side_sends_too(tmp_path: Path) -> None:
    with pairs(tmp_path / "a", token="a") as a, pairs(tmp_path / "b", token="b") as b:
        for _ in range(2):  # a round after the other
            assert a.dial(("127.0.0.1", b.ports[0], "b"), ("127.0.0.1", b.ports[0], "b"), seconds=0.4) == ["open"] * 2
        link = a.links[0]
    assert link["bytes"] > 1_000_000 and 0.05 < link["seconds"] < 30 and 0 < link["rtt"] < 10 and link["mtu"] > 1000


def test_a_proof_is_received_while_data_waits_to_be_sent(tmp_path: Path) -> None:
    """Behind a slow link much is queued when the sending time ends."""
    with socket.create_server(("127.0.0.1", 0)) as server, pairs(tmp_path, seconds=8.0) as node:

        def work() -> None:
            visitor = server.accept()[0]
            came = visitor.recv(PACKET_BYTES, socket.MSG_WAITALL)
            visitor.sendall(visit.proof("mine", came[:PROOF_BYTES]))
            held.callback(visitor.close)

        with contextlib.ExitStack() as held:
            threading.Thread(target=work, daemon=True).start()
            assert node.dial(("127.0.0.1", server.getsockname()[1], "mine"), seconds=0.3) == ["open"]


def test_an_address_that_is_no_interfaces_is_listened_at_everywhere(tmp_path: Path) -> None:
    """One that is translated on the way to this node."""
    with pairs(tmp_path, "192.0.2.1") as node:
        assert node.dial(("127.0.0.1", node.ports[0], "mine")) == ["open"]


def test_a_node_finds_the_address_of_its_ranks_itself(tmp_path: Path) -> None:
    way = {"master": "127.0.0.1", "is_master": True, "own": None, "other": None}
    spec = {"listen": [], "way": way, "token": "mine", "seconds": 60.0}
    with Running("preflight.own_pairs", spec, tmp_path) as program:
        node = Pairs(program)
        assert node.dial(("127.0.0.1", node.ports[0], "mine")) == ["open"]


def test_what_takes_longer_than_the_visits_is_not_imported() -> None:
    """On 64 hosts, these modules took half of the processor's time."""
    assert [name for name in closure("fleet.node.preflight.pairs") if ".facts" in name] == []
    heavy = {"socket", "selectors", "enum", "hashlib", "re", "signal", "typing", "contextlib"}
    argv = ["/usr/bin/python3", "-I", "-S", "-X", "importtime", "-c", BOOT]
    sent = packed("preflight.pairs", {"listen": ["127.0.0.1"], "token": "x", "seconds": 0.0})
    shown = subprocess.run(argv, input=sent, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE).stderr.decode()
    imported = {line.rpartition("|")[2].strip() for line in shown.splitlines()}
    assert "fleet.node.preflight.visit" in imported
    assert heavy & imported == set()


def test_a_visit_is_not_looked_at_for_each_event_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 visits took a thousand calls of the kernel for each host."""
    calls: list[int] = []
    real = visit.Visit.settle

    def settle(self: visit.Visit, now: float) -> None:
        calls.append(1)
        real(self, now)

    monkeypatch.setattr(visit.Visit, "settle", settle)
    monkeypatch.setattr(preflight, "WATCH_SECONDS", 60.0)
    assert dialled(monkeypatch, *[("127.0.0.1", free_port())] * 60)["reached"] == ["refused"] * 60
    assert len(calls) < 60 * 2 * 2


def test_a_node_without_more_files_does_not_know_whom_it_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(family: int, kind: int) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("fleet.node.preflight.visit.socket", SimpleNamespace(**{**vars(_socket), "socket": make}))
    assert dialled(monkeypatch, ("127.0.0.1", free_port()))["reached"] == ["unknown"]


@contextlib.contextmanager
def listener(serve: bool, backlog: int = 8) -> Iterator[int]:
    """The port of a program that takes connections and closes them, or leaves them alone."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as server:

        def work() -> None:
            with contextlib.suppress(OSError):
                while True:
                    server.accept()[0].close()

        if serve:
            threading.Thread(target=work, daemon=True).start()
        yield server.getsockname()[1]
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)


def test_a_program_that_closes_is_another(tmp_path: Path) -> None:
    with listener(serve=True) as port, pairs(tmp_path) as node:
        assert node.dial(("127.0.0.1", port, "x")) == ["other"]


def test_a_busy_node_is_not_known_to_lose_packets(tmp_path: Path) -> None:
    """Its kernel has all that was sent; its program does not answer in time."""
    with listener(serve=False) as port, pairs(tmp_path, seconds=5.0) as node:
        assert node.dial(("127.0.0.1", port, "x")) == ["unknown"]


def test_a_busy_node_costs_no_other_one_what_came_of_its_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head waits for all visits of a node at once."""
    said = dialled(monkeypatch, ("127.0.0.1", None), ("127.0.0.1", free_port()))
    assert said["reached"] == ["unknown", "refused"]
    assert preflight.ANSWER_SECONDS < DIAL_SECONDS


def dialled(monkeypatch: pytest.MonkeyPatch, *visits: tuple[str, int | None]) -> dict[str, Any]:
    """Returns what a node of this very process sends of its visits. None: to who takes all, and answers nothing."""
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(preflight, "send_json", said.append)
    orders: list[tuple[str, int, str]] = []
    with listener(serve=False) as busy:
        for address, port in visits:
            orders.append((address, port or busy, "x"))
        with monkeypatch.context() as patch:
            patch.setattr(preflight, "ANSWER_SECONDS", 0.5)
            node = preflight.Pairs()
            node.queue_order({"op": "dial", "seconds": 0.0, "visits": orders})
            node.serve(time.monotonic() + 1.5)
            os.close(node.bell)
            os.close(node.ring)
            node.epoll.close()
    return said[0]


def test_a_kernel_without_ipv6_reaches_no_address_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(family: int, kind: int) -> object:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return _socket.socket(family, kind)

    without = SimpleNamespace(**{**vars(_socket), "socket": make})
    monkeypatch.setattr("fleet.node.preflight.visit.socket", without)
    reached = dialled(monkeypatch, ("fd00::1", 9), ("127.0.0.1", free_port()))["reached"]
    assert reached == ["unreachable", "refused"]


def test_a_link_of_which_the_segments_shrink_has_no_bytes_less_than_none() -> None:
    one = visit.Visit(("127.0.0.1", 9, ""), 1.0)
    with socket.socket() as one.sock:
        one.samples = [(0.0, 9000), (1.0, 1500)]
        one.measure()
    assert one.link and one.link["bytes"] == 0


def test_a_node_that_takes_no_connection_is_silent(tmp_path: Path) -> None:
    with listener(serve=False, backlog=0) as port, contextlib.ExitStack() as held, pairs(tmp_path) as node:
        for _ in range(3):
            full = held.enter_context(socket.socket())
            full.setblocking(False)
            full.connect_ex(("127.0.0.1", port))
        assert node.dial(("127.0.0.1", port, "x")) == ["silent"]


@pytest.mark.parametrize("files", [64, 800])
def test_strangers_keep_nobody_out(tmp_path: Path, files: int) -> None:
    """They send, and send nothing, and are more than the files that a process may open."""
    first = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, {files}))"
    with pairs(tmp_path, first=first) as node, contextlib.ExitStack() as held:
        for n in range(files + 50):
            sock = held.enter_context(socket.create_connection(("127.0.0.1", node.ports[0])))
            sock.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                sock.send(b"x" * (n % 3) * 100_000)
        assert node.dial(("127.0.0.1", node.ports[0], "mine")) == ["open"]
