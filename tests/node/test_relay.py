"""The agent of a step: whom it talks to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.transport.certificate import make_certificate
from tests.node.nodes import Running


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(30.0)
        yield server


def accepted(listener: socket.socket, tls: dict[str, str], folder: Path) -> ssl.SSLSocket:
    """The next to dial, by somebody with this key. OSError where that one hangs up."""
    (folder / "pem").write_text(tls["cert"] + tls["key"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pem")
    plain, _ = listener.accept()
    plain.settimeout(30.0)
    try:
        return context.wrap_socket(plain, server_side=True)
    except OSError:
        plain.close()
        raise


def line(sock: ssl.SSLSocket) -> bytes:
    said = bytearray()
    while not said.endswith(b"\n") and (data := sock.recv(4096)):
        said += data
    return bytes(said)


def test_it_knows_the_head_by_its_key(home: Path, listener: socket.socket) -> None:
    """What all agents of a step hold makes nobody their head: such a one hears nothing."""
    head, agents = make_certificate(), make_certificate()
    spec: dict[str, Any] = {
        "head": [listener.getsockname()],
        "tls": agents | {"peer": head["cert"]},
        "step": "0" * 16,
        "scope": "slurm:7",
        "name": "SLURMD_NODENAME",
        "unset": "PMI_.*",
    }
    with Running("relay.agent", spec, home, env={"SLURMD_NODENAME": "a"}) as agent:
        assert agent.process.stdout
        for _ in range(2):
            with contextlib.suppress(OSError), accepted(listener, agents, home) as impostor:
                assert line(impostor) == b""
        with accepted(listener, head, home) as sock:
            said = json.loads(line(sock))
            printed = agent.process.stdout.readline()
            assert said["host"] == "a"
            assert printed == b"fleet agent %s\n" % hashlib.sha256(said["token"].encode()).hexdigest().encode()
            sock.sendall(b'{"end": true}\n')
            assert agent.process.wait(30) == 0
