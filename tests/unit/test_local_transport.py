"""Channels of this machine itself, as channels of ssh are."""

from __future__ import annotations

from fleet.model import Host
from fleet.transport.base import Cancel
from fleet.transport.local import LocalTransport


def test_a_channel_that_another_thread_closes_reads_as_ended() -> None:
    channel = LocalTransport().connect(Host("h", "h"), Cancel()).start("cat")
    assert channel.recv(0.0) is None
    channel.close()
    assert channel.recv(0.1) == b"" and channel.wait(1.0) is not None
