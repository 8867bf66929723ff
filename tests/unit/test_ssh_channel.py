"""What an ssh connection takes from its peer, and what it does where that takes nothing."""

from __future__ import annotations

import socket
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.transport.ssh.adapter import Packets, paramiko
from fleet.transport.ssh.channel import SshChannel
from fleet.transport.ssh.node_channel import Bell
from tests.hostile import HOST


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


def test_sending_to_a_process_that_reads_nothing_ends() -> None:
    class Full:
        """A channel without window, whose far end goes on writing."""

        transport = SimpleNamespace(is_active=lambda: True)
        bell = Bell()
        eof_received = closed = False

        def settimeout(self, seconds: float) -> None: ...

        def send(self, data: Any) -> int:
            raise TimeoutError

        def unread(self) -> int:
            return 1 << 20

        def taken(self, size: int) -> tuple[bytes, bytes]:
            return b"x" * (1 << 20), b""

    Full.bell.set()
    channel = SshChannel(Full(), HOST)  # type: ignore[arg-type]
    with pytest.raises(Exception, match="reads nothing"):
        channel.send(b"y", patience=0.2)
    assert len(channel._early[0]) <= 64 << 20
