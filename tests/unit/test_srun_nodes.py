"""A node of a step that lies: it has what srun tells all of them, and a token of its own.

Nodes are played: what stands for srun (tests/unit/test_srun.py) starts a script in the place of a node's agent, and the
test dials.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import ssl
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import ConnectError
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.srun import SrunTransport
from tests.node.nodes import until
from tests.sessions import shell
from tests.unit.test_srun import HOSTS, folder  # noqa: F401

OWN, OTHER = "0" * 64, "1" * 64  # tokens: of node b, and of node a where that is played, too
A, B = HOSTS


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Nodes:
    """The step, of which some nodes are played."""

    def __init__(self, folder: Path) -> None:  # noqa: F811
        self.folder = folder
        self.head = SrunTransport(ConnectOptions(15.0), hosts=HOSTS)
        self._open: list[ssl.SSLSocket] = []

    def play(self, host: str, *lines: str) -> None:
        """The task of this host prints these lines, and does nothing else."""
        prints = "".join(f"echo '{line}'\n" for line in lines)
        (self.folder / f"played-{host}").write_text(f"{prints}touch {self.folder}/printed-{host}; cat >/dev/null\n")

    def told(self) -> dict[str, Any]:
        """What srun has told all nodes."""
        said = self.folder / "said"
        until(lambda: said.exists() and said.read_bytes().endswith(b"}\n"))
        text = said.read_bytes()  # behind the program
        found: dict[str, Any] = json.loads(text[text.rindex(b'{"head"') :])
        return found

    def dial(self, **said: object) -> ssl.SSLSocket:
        """What any process does that has what a node was told."""
        told = self.told()
        (self.folder / "pem").write_text(told["tls"]["cert"] + told["tls"]["key"])
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.load_cert_chain(self.folder / "pem")
        sock = context.wrap_socket(socket.create_connection(tuple(told["head"][0]), 20.0))
        self._open.append(sock)
        sock.sendall(json.dumps(said).encode() + b"\n")
        return sock

    def close(self) -> None:
        for sock in self._open:
            sock.close()
        self.head.close()


@pytest.fixture
def nodes(folder: Path) -> Iterator[Nodes]:  # noqa: F811
    """Node b is played."""
    made = Nodes(folder)
    made.play("b", f"fleet agent {digest(OWN)}")
    yield made
    made.close()


def closed(sock: ssl.SSLSocket) -> bool:
    """It heard nothing, and never will."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return sock.recv(4096) == b""
    return True


def ended(status: int) -> bytes:
    """A process's end, as an agent says it."""
    payload = json.dumps({"exit_status": status}).encode()
    return b"\0FLEET1\n" + struct.pack(">cII", b"X", 0, len(payload)) + payload


@pytest.mark.parametrize("token", [OWN, digest(OTHER), None, 7, "x\ud800"], ids=ascii)
def test_a_node_is_given_no_command_of_another(nodes: Nodes, token: object) -> None:
    """It shows its own token, what passed by of the other's, and nonsense."""
    nodes.play("a", f"fleet agent {digest(OTHER)}")
    with ThreadPoolExecutor(2) as pool:
        session = pool.submit(nodes.head.connect, A, Cancel())
        assert closed(nodes.dial(host="a", token=token))
        real = nodes.dial(host="a", token=OTHER)
        channel = pool.submit(session.result(120.0).start, "echo secret")
        asked = json.loads(real.recv(4096))
        assert asked["command"] == "echo secret"
        nodes.dial(host="a", token=OTHER, channel=asked["start"]).sendall(ended(7))
        with contextlib.closing(channel.result(120.0)) as process:
            assert process.wait(120.0) == 7


@pytest.mark.parametrize("name", ["a", "b"])
def test_nor_says_how_it_ended(nodes: Nodes, name: str) -> None:
    """It dials for the channel of another's command, whose number is no secret, and says that all is well."""
    nodes.play("a", f"fleet agent {digest(OTHER)}")
    with ThreadPoolExecutor(2) as pool:
        session = pool.submit(nodes.head.connect, A, Cancel())
        real = nodes.dial(host="a", token=OTHER)
        channel = pool.submit(session.result(120.0).start, "exit 7")
        number = json.loads(real.recv(4096))["start"]
        forged = nodes.dial(host=name, token=OWN, channel=number)
        with contextlib.suppress(OSError):
            forged.sendall(ended(0))
        assert closed(forged)
        nodes.dial(host="a", token=OTHER, channel=number).sendall(ended(7))
        with contextlib.closing(channel.result(120.0)) as process:
            assert process.wait(120.0) == 7


def test_nor_says_for_it_that_the_job_is_over(nodes: Nodes) -> None:
    cancel = Cancel()
    session = nodes.head.connect(A, cancel)
    assert closed(nodes.dial(host="a", token=OWN, signal=15))
    assert shell(session, "echo ok").stdout == b"ok\n" and not cancel.is_set()


def test_a_place_is_taken_once(nodes: Nodes) -> None:
    """A second token, printed after the first, or as if another node had, is nobody's."""
    second = "2" * 64
    nodes.play("b", *(f"{before}fleet agent {digest(it)}" for before, it in (("", OWN), ("", second), ("0: ", second))))
    session = nodes.head.connect(A, Cancel())
    until(lambda: (nodes.folder / "printed-b").exists())
    for name in ("a", "b", "c"):
        assert closed(nodes.dial(host=name, token=second))
    assert shell(session, "echo ok").stdout == b"ok\n"
    nodes.dial(host="b", token=OWN)
    assert nodes.head.connect(B, Cancel()).address == "127.0.0.1"


def test_who_is_absent_is_not_believed_to_be_there(nodes: Nodes) -> None:
    nodes.head = SrunTransport(ConnectOptions(3.0), hosts=HOSTS)
    nodes.play("a", f"fleet agent {digest(OTHER)}")
    with ThreadPoolExecutor(1) as pool:
        session = pool.submit(nodes.head.connect, A, Cancel())
        assert closed(nodes.dial(host="a", token=OWN))
        with pytest.raises(ConnectError, match=r"within 3 s; 127\.0\.0\.1 claimed to be a, without its token"):
            session.result(120.0)


def test_the_heads_key_and_the_tokens_are_told_to_nobody(nodes: Nodes) -> None:
    """Not by what srun is given either, in arguments and environment."""
    nodes.head.connect(A, Cancel())
    (step,) = nodes.head._steps.all()
    told, asked = json.dumps(nodes.told()), (nodes.folder / "asked").read_text()
    assert json.dumps(step._tls["key"]) not in told and "token" not in told
    assert "PRIVATE KEY" not in asked and "PRIVATE KEY" in told
