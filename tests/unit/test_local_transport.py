"""Channels of this machine itself, as channels of ssh are."""

from __future__ import annotations

import pytest

from fleet.model import Host
from fleet.transport.base import Cancel
from fleet.transport.local import LocalTransport, ProcessChannel


def test_a_channel_that_another_thread_closes_reads_as_ended() -> None:
    channel = LocalTransport().connect(Host("h", "h"), Cancel()).start("cat")
    assert channel.recv(0.0) is None
    channel.close()
    assert channel.recv(0.1) == b"" and channel.wait(30.0) is not None


def test_closing_what_another_thread_has_seen_end(monkeypatch: pytest.MonkeyPatch) -> None:
    channel = LocalTransport().connect(Host("n1", "127.0.0.1"), Cancel()).start("exec sleep 60")

    def reaped_meanwhile(channel: ProcessChannel, timeout: float) -> None:
        channel._process.kill()
        channel._process.wait()

    monkeypatch.setattr(ProcessChannel, "wait", reaped_meanwhile)
    channel.close()  # there is nobody to be signalled any more
