"""Behind CHANNEL_CLOSE a channel sends nothing: sshd drops the whole connection for that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from fleet.transport.ssh.library import Message
from fleet.transport.ssh.node_channel import NodeChannel
from tests.node.nodes import until

CHANNEL_DATA, CHANNEL_EOF, CHANNEL_CLOSE = 94, 96, 97


class Wire:
    """A connection that is slow to send the first message: `during` is called meanwhile."""

    def __init__(self, during: Callable[[], None]) -> None:
        self.sent: list[int] = []
        self.clear_to_send = SimpleNamespace(is_set=lambda: True)
        self._during = during

    def _send_user_message(self, m: Message) -> None:
        if threading.current_thread() is threading.main_thread() and not self.sent:
            self._during()
        self.sent.append(m.asbytes()[0])

    def _unlink_channel(self, chanid: int) -> None: ...


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        (lambda channel: channel.shutdown_write(), CHANNEL_EOF),
        (lambda channel: channel.shutdown(2), CHANNEL_EOF),
        (lambda channel: channel.send(b"x"), CHANNEL_DATA),
    ],
)
def test_the_peer_closes_while_we_send(ours: Callable[[Any], None], message: int) -> None:
    def closes() -> None:
        there = threading.Thread(target=channel._handle_close, args=(Message(),))
        there.start()
        there.join(5.0)

    channel = NodeChannel(1)
    channel.transport = wire = Wire(closes)
    channel.active, channel.remote_chanid, channel.out_window_size, channel.out_max_packet_size = True, 1, 100, 100
    ours(channel)
    until(lambda: CHANNEL_CLOSE in wire.sent)
    assert wire.sent[0] == message and wire.sent[-1] == CHANNEL_CLOSE
    channel.shutdown_write()
    assert wire.sent[-1] == CHANNEL_CLOSE


def test_what_came_is_read_though_the_connection_broke_behind_it() -> None:
    def breaks() -> None:
        raise EOFError

    channel = NodeChannel(1)
    channel.transport, channel.active, channel.remote_chanid = Wire(breaks), True, 1
    channel._set_window(1000, 1000)
    channel.in_buffer.feed(b"x" * 200)  # so many that the peer is owed a message
    assert channel.read_available(1000) == (b"x" * 200, b"")
    channel.in_buffer.feed(b"x" * 200)
    assert channel.recv(1000) == b"x" * 200
