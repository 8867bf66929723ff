"""What a channel of ssh does whose peer takes nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fleet.errors import ConnectError
from fleet.transport.ssh.channel import SshChannel
from fleet.transport.ssh.node_channel import ReadableEvent
from tests.hostile import HOST


def test_sending_to_a_process_that_reads_nothing_ends() -> None:
    class Full:
        """A channel without window, whose far end goes on writing."""

        transport = SimpleNamespace(is_active=lambda: True)
        readable = ReadableEvent()
        eof_received = closed = False

        def settimeout(self, seconds: float) -> None: ...

        def send(self, data: Any) -> int:
            raise TimeoutError

        def unread(self) -> int:
            return 1 << 20

        def read_available(self, size: int) -> tuple[bytes, bytes]:
            return b"x" * (1 << 20), b""

    Full.readable.set()
    channel = SshChannel(Full(), HOST)  # type: ignore[arg-type]
    with pytest.raises(ConnectError, match="reads nothing"):
        channel.send(b"y", patience=0.2)
    assert len(channel._early[0]) <= 64 << 20
