"""A node's listener against strangers: another certificate, a wrong token, an old link, garbage, silence."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import hmac
import json
import os
import select
import socket
import ssl
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.node.delivery.chain import link
from fleet.node.delivery.chain.link import Link, tls_context
from fleet.node.delivery.journal import by_column
from fleet.node.delivery.store import Store
from fleet.transport.certificate import make_certificate
from tests.node.nodes import Running
from tests.node.seams import in_mounts

DATA = os.urandom(600_000)
LARGE = os.urandom(12_000_000)  # more than sockets hold, more than a block of the journal


class Node:
    """A relay that lacks one file of these data."""

    def __init__(
        self, home: Path, entries: list[list[Any]] | None = None, patience: float = 60.0, data: bytes = DATA
    ) -> None:
        self.data = data
        self.tls = make_certificate()
        self.final = home / "data" / "f"
        spec = {
            "sync": "s1",
            "host": "n1",
            "head": "h",
            "wait": 0,
            "every": 0.1,
            "force": False,
            "patience": patience,
            "listen": "127.0.0.1",
            "tls": self.tls,
            "token": "secret",
            "targets": [[str(home / "data"), "d"]],
        }
        self.running = Running("delivery.chain.member", spec, home)
        self.frames = self.running.frames()
        self.wait("hello")
        packed = zlib.compress(by_column(entries or [[0, "f", "f", 0o640, len(data), 10**18 + 7, ""]]))
        self.running.raw(
            json.dumps({"op": "manifest", "size": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}).encode()
            + b"\n"
            + packed
        )

    def wait(self, event: str) -> dict[str, Any]:
        for frame in self.frames:
            if frame.kind == b"J" and frame.json()["event"] in (event, "failed"):
                return frame.json()
        raise AssertionError(f"no {event}")

    def go(self) -> None:
        self.port = self.wait("need")["port"]
        self.running.send({"op": "go"})

    def dial(self, tls: dict[str, str] | None, token: str = "secret", epoch: int = 1) -> dict[str, Any]:
        """Be the predecessor: what the node asks for; OSError when it turns us away."""
        self.link = self.wrap(socket.create_connection(("127.0.0.1", self.port), 300), tls)
        token = hmac.new(token.encode(), str(epoch).encode(), hashlib.sha256).hexdigest()
        self.link.sendall(json.dumps({"token": token, "epoch": epoch}).encode() + b"\n")
        line = self.link.makefile("rb").readline()
        if not line:
            raise ConnectionResetError
        answer: dict[str, Any] = json.loads(line)
        return answer

    def wrap(self, plain: socket.socket, tls: dict[str, str] | None) -> ssl.SSLSocket:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if tls is not None:
            pem = self.final.parent.parent / "pem"
            pem.write_text(tls["cert"] + tls["key"])
            context.load_cert_chain(pem)
        return context.wrap_socket(plain)

    def finish(self) -> dict[str, Any]:
        self.link.sendall(self.data)
        self.running.send({"op": "digests", "files": [[0, hashlib.sha256(self.data).hexdigest()]]})
        return self.wait("done")


@pytest.fixture
def node(home: Path, request: pytest.FixtureRequest) -> Iterator[Node]:
    """Of DATA, or what a test is parametrized with."""
    it = Node(home, data=getattr(request, "param", DATA))
    try:
        it.go()
        yield it
    finally:
        if hasattr(it, "link"):
            it.link.close()
        it.running.close()


@pytest.mark.parametrize("node", [DATA, LARGE], indirect=True, ids=["small", "large"])
def test_the_rightful_predecessor(node: Node) -> None:
    assert node.dial(node.tls) == {"wants": [[0, len(node.data)]]}
    assert not node.final.exists()
    done = node.finish()
    assert done["problems"] == [] and node.final.read_bytes() == node.data
    assert (node.final.stat().st_mode & 0o777, node.final.stat().st_mtime_ns) == (0o640, 10**18 + 7)


@pytest.mark.parametrize("who", ["nobody", "stranger", "token"])
def test_strangers_get_nothing_and_disturb_nothing(node: Node, who: str) -> None:
    node.dial(node.tls)
    good = node.link
    tls = {"nobody": None, "stranger": make_certificate(), "token": node.tls}[who]
    with pytest.raises(OSError):
        node.dial(tls, "guess" if who == "token" else "secret", epoch=2)
    node.link.close()
    node.link = good
    node.finish()
    assert node.final.read_bytes() == DATA


def test_garbage_and_silence_do_not_keep_the_predecessor_out(node: Node) -> None:
    silent = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(10)]
    for sock in silent[:5]:
        sock.sendall(b"GET / HTTP/1.1\r\n\r\n")
    node.dial(node.tls)
    node.finish()
    for sock in silent:
        sock.close()


def test_an_older_link_does_not_replace_a_newer_one(node: Node) -> None:
    node.dial(node.tls, epoch=5)
    newer = node.link
    with pytest.raises(OSError):
        node.dial(node.tls, epoch=4)
    node.link.close()
    node.link = newer
    node.finish()


def test_a_newer_link_goes_on_where_the_older_one_was(node: Node) -> None:
    node.dial(node.tls, epoch=1)
    node.link.sendall(DATA[:200_000])
    while True:
        at = node.wait("at")
        if at["received"] == 200_000:
            break
    older = node.link
    assert node.dial(node.tls, epoch=2) == {"wants": [[200_000, len(DATA)]]}
    older.close()
    node.link.sendall(DATA[200_000:])
    node.running.send({"op": "digests", "files": [[0, hashlib.sha256(DATA).hexdigest()]]})
    node.wait("done")
    assert node.final.read_bytes() == DATA


WRONG = bytes([DATA[0] ^ 1]) + DATA[1:]


def test_what_arrives_wrong_is_told_and_asked_for_again_from_the_next_link(node: Node) -> None:
    node.dial(node.tls, epoch=1)
    node.running.send({"op": "digests", "files": [[0, hashlib.sha256(DATA).hexdigest()]]})
    node.link.sendall(WRONG)
    assert {"file": 0, "epoch": 1}.items() <= node.wait("corrupt").items()
    liar = node.link
    assert node.dial(node.tls, epoch=2) == {"wants": [[0, len(DATA)]]}
    liar.close()
    assert node.finish()["problems"] == [] and node.final.read_bytes() == DATA


def test_what_the_source_cannot_give_never_gets_its_name(node: Node) -> None:
    node.dial(node.tls, epoch=7)
    node.link.sendall(WRONG)
    node.running.send({"op": "fail", "files": [[0, "changed"]]})
    assert node.wait("done")["problems"] == [["f", "changed"]] and not node.final.exists()


def test_a_file_is_not_given_up_in_the_middle_of_a_write(tmp_path: Path) -> None:
    """Once it is, its stage is taken away, and what it is written to is closed."""
    writing, go_on, order = threading.Event(), threading.Event(), list[str]()

    def write(*_: Any) -> bool:
        writing.set()
        go_on.wait(60)
        order.append("written")
        return False

    target = SimpleNamespace(name="", entries=[], stage=SimpleNamespace(write=write, drop=lambda entry: None))
    store = Store([target], [[0, "f", "f", 0o644, 100, 0, ""]])  # type: ignore[list-item]
    store.begin()
    receiver = threading.Thread(target=store.put, args=(0, memoryview(bytes(50))))
    loser = threading.Thread(target=lambda: (store.fail(0, "changed"), order.append("given up")))
    receiver.start()
    writing.wait(60)
    loser.start()
    loser.join(0.2)
    go_on.set()
    for thread in (receiver, loser):
        thread.join(60)
    assert order == ["written", "given up"] and store.settled()


def test_what_two_senders_brought_is_neither_ones_fault_and_asked_for_again(node: Node) -> None:
    node.dial(node.tls, epoch=1)
    node.running.send({"op": "digests", "files": [[0, hashlib.sha256(DATA).hexdigest()]]})
    node.link.sendall(WRONG[:200_000])
    while node.wait("at")["received"] < 200_000:
        pass
    first = node.link
    node.dial(node.tls, epoch=2)
    first.close()
    lines = node.link.makefile("rb")
    node.link.sendall(WRONG[200_000:])
    assert json.loads(lines.readline()) == {"wants": [[0, len(DATA)]]}
    assert node.finish()["problems"] == [] and node.final.read_bytes() == DATA


def test_idle_strangers_without_end_do_not_keep_the_predecessor_out(node: Node) -> None:
    silent = [socket.create_connection(("127.0.0.1", node.port)) for _ in range(200)]
    node.dial(node.tls)
    node.finish()
    for sock in silent:
        sock.close()


def test_nothing_is_left_of_the_key_and_the_port_closes(home: Path, node: Node) -> None:
    node.dial(node.tls)
    key = node.tls["key"].encode()
    for folder, _, names in os.walk("/dev/shm"):  # nowhere does it have a name, that a kill would leave there
        for path in (Path(folder, name) for name in names):
            with contextlib.suppress(OSError):  # others come and go there
                assert not path.is_file() or key not in path.read_bytes(), path
    node.finish()
    node.running.send({"op": "end"})
    for frame in node.frames:
        assert frame.kind in (b"J", b"X")
    node.running.process.wait(300)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", node.port), 2).close()
    assert sorted(p.name for p in (home / ".data.fleet-data").iterdir()) == ["lock", "state"]


def test_a_link_to_who_has_hung_up_already_is_closed() -> None:
    """Python's own wrapper leaves the socket open where its peer is gone: a ResourceWarning, which is an error here."""
    tls = make_certificate()
    context = tls_context(False, tls)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        plain = socket.create_connection(listener.getsockname())
        there, _ = listener.accept()
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        there.close()
        select.select([plain], [], [], 300.0)
        with pytest.raises(OSError):
            Link(plain, context, False, tls)
    gc.collect()


@pytest.mark.parametrize("path", ["../f", "/etc/f", "a/../../f", "a//f", "./f"])
def test_a_path_that_leads_out_of_the_destination_is_refused(home: Path, path: str) -> None:
    node = Node(home, [[0, path, "f", 0o644, 1, 1, ""]])
    try:
        answer = node.wait("need")
        assert answer["event"] == "failed" and "leads out of the destination" in answer["message"]
    finally:
        node.running.close()


class Successor:
    """The next node of the chain, asking for everything, or for what it is told to say."""

    def __init__(self, node: Node, says: bytes | None = None) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        pem = node.final.parent.parent / "pem"
        pem.write_text(node.tls["cert"] + node.tls["key"])
        context.load_cert_chain(pem)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(300)
            node.running.send(
                {"op": "next", "epoch": 1, "token": "other", "addresses": [["127.0.0.1", listener.getsockname()[1]]]}
            )
            plain = listener.accept()[0]
            plain.settimeout(300)
            self.link = context.wrap_socket(plain, server_side=True)
        assert json.loads(self.link.recv(1000)) == {"token": "other", "epoch": 1}
        self.got = bytearray()
        with contextlib.suppress(OSError):  # of what is too long only the beginning is read
            self.link.sendall((json.dumps({"wants": [[0, len(node.data)]]}).encode() if says is None else says) + b"\n")

    def read(self, count: int) -> bytearray:
        while len(self.got) < count:
            data = self.link.recv(65536)
            assert data, "closed early"
            self.got += data
        return self.got


def test_what_has_come_goes_on_before_the_rest_is_there(node: Node) -> None:
    successor = Successor(node)
    node.dial(node.tls)
    node.link.sendall(DATA[:100_000])
    assert successor.read(100_000) == DATA[:100_000]
    node.link.sendall(DATA[100_000:])
    assert successor.read(len(DATA)) == DATA
    successor.link.close()


@pytest.mark.parametrize("node", [LARGE], indirect=True, ids=["large"])
def test_a_successor_that_takes_nothing_holds_nobody_up(node: Node) -> None:
    successor = Successor(node)
    node.dial(node.tls)
    node.finish()
    assert node.final.read_bytes() == LARGE
    # and finds all of it later, though the part file has its final name by now
    assert successor.read(len(LARGE)) == LARGE
    successor.link.close()


ALL = json.dumps({"wants": [[0, len(DATA)]]}).encode()


@pytest.mark.parametrize(
    "says",
    [
        b'{"wants": [["0", "9"]]}',
        b'{"wants": [[0, 1e3]]}',
        b'{"wants": [[true, 9]]}',
        b'{"wants": [[0, 99999999999]]}',
        b'{"wants": [[9, 3]]}',
        b'{"wants": [[0, 9], [5, 12]]}',
        b'{"wants": [[3, 3]]}',
        b'{"wants": [[-5, 9]]}',
        b'{"wants": {}, "x": ' + b"9" * 900 + b"}",
        b'{"wants": 7}',
        b'{"wants": [0, 1]}',
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 1000,
        b'{"wants": [' + b"[0,1]," * 200_000 + b"[0,1]]}",
        b'{"wants": null}',
        b'{"wants": [[0, 1, 2]]}',
    ],
    ids=lambda says: says[:24].decode("latin-1"),
)
def test_a_successor_that_asks_for_what_cannot_be_is_told_of_and_nobody_else_suffers(node: Node, says: bytes) -> None:
    successor = Successor(node, says)
    link = node.wait("link")
    assert (link["epoch"], link["kind"]) == (1, "protocol")
    node.dial(node.tls)
    assert node.finish()["problems"] == [] and node.final.read_bytes() == DATA
    successor.link.close()


def test_a_successor_that_asks_for_everything_without_end(node: Node) -> None:
    node.dial(node.tls)
    node.finish()
    successor = Successor(node)
    for _ in range(4):
        successor.got.clear()
        successor.read(len(DATA))
        successor.link.sendall(ALL + b"\n")
    successor.got.clear()
    successor.read(len(DATA))
    successor.link.sendall(ALL + b"\n")
    assert node.wait("link")["kind"] == "protocol"
    successor.link.close()


def test_a_head_that_hangs_does_not_hold_the_lock_for_ever(home: Path) -> None:
    node = Node(home, patience=4.0)  # longer than a busy machine holds up a ping
    try:
        node.go()
        for _ in range(25):
            node.running.send({"op": "ping"})
            time.sleep(0.2)
        assert node.running.process.poll() is None
        assert node.running.process.wait(300) != 0
    finally:
        node.running.close()


def test_a_python_whose_contexts_have_no_class_of_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Older(ssl.SSLContext):  # of Python 3.6
        @property
        def sslsocket_class(self) -> Any:
            raise AttributeError

    monkeypatch.setattr(link, "ssl", SimpleNamespace(**{**vars(ssl), "SSLContext": Older}))
    assert tls_context(True, make_certificate()).verify_mode == ssl.CERT_REQUIRED


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_no_room_in_memory_for_the_key(tmp_path: Path) -> None:
    (tmp_path / "tls").write_text(json.dumps(make_certificate()))
    code = "import json, tempfile; from fleet.node.delivery.chain.link import tls_context\n"
    code += f"print(tls_context(True, json.load(open({str(tmp_path / 'tls')!r}))).cert_store_stats()['x509'])"
    full = "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero >/dev/shm/full"
    assert in_mounts(full, code) == "1\n"
