"""What a run that says nothing costs the head: whom a heartbeat wakes, and whom it does not."""

from __future__ import annotations

import json

import pytest

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.protocol.frames import EXIT, PREAMBLE
from fleet.transport.frames import BEAT, HEADER
from fleet.transport.program import Program
from fleet.transport.ssh.channel import SshChannel
from fleet.transport.ssh.library import Message
from fleet.transport.ssh.node_channel import SKIPPED_BYTES, NodeChannel
from tests.clock import HandClock


def fed(channel: NodeChannel, *packets: bytes) -> None:
    for packet in packets:
        message = Message()
        message.add_string(packet)
        message.rewind()
        channel._feed(message)


@pytest.fixture
def channel() -> NodeChannel:
    channel = NodeChannel(1)
    channel.ignored_heartbeat = BEAT
    return channel


def test_a_heartbeat_wakes_nobody(channel: NodeChannel) -> None:
    fed(channel, BEAT)
    assert not channel.readable.is_set() and not channel.unread() and channel.heartbeat_at > 0
    fed(channel, b"J")
    assert channel.readable.is_set() and channel.read_available(99) == (b"J", b"")


def test_nobody_asked_for_quiet() -> None:
    channel = NodeChannel(1)
    fed(channel, BEAT)
    assert channel.readable.is_set() and channel.read_available(99) == (BEAT, b"")


def test_what_looks_like_one_within_a_frame_is_kept(channel: NodeChannel) -> None:
    fed(channel, b"half of a frame", BEAT)
    assert channel.read_available(99) == (b"half of a frame" + BEAT, b"")
    fed(channel, BEAT)  # nobody has said that a frame may begin here
    assert channel.read_available(99) == (BEAT, b"")


def test_what_is_passed_over_is_told_to_the_peer(channel: NodeChannel, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    monkeypatch.setattr(channel, "_acknowledge", told.append)
    for _ in range(1000):
        channel.ignored_heartbeat = BEAT
        fed(channel, BEAT)
        if channel.readable.is_set():
            channel.read_available(99)
            channel.readable.reset()
    fed(channel, b"J")
    channel.read_available(99)
    assert sum(told) == 1000 * len(BEAT) + 1
    assert len(told) <= 1 + 1000 * len(BEAT) // SKIPPED_BYTES, told


def test_who_reads_is_woken_by_the_end_of_input(channel: NodeChannel) -> None:
    ssh = SshChannel(channel, Host("gpu1", "gpu1"))
    ssh.send_eof()
    assert channel.readable.is_set()


class Beating:
    """A program whose heartbeats wake nobody: beats of them, one in each second that its reader waits, then nothing."""

    def __init__(self, beats: int, last: bytes) -> None:
        self.clock, self.beats, self.last = HandClock(100.0), beats, last
        self.heartbeat_at, self.asked = 0.0, list[bytes]()

    def start(self, command: str, *, with_stderr: bool = False) -> Beating:
        return self

    host = Host("gpu1", "gpu1")

    def send(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def ignore_heartbeat(self, heartbeat: bytes) -> None:
        self.asked.append(heartbeat)

    def recv(self, timeout: float) -> bytes | None:
        if not self.asked:
            self.asked = [b""]
            return PREAMBLE
        self.clock.now += 1.0
        self.beats -= 1
        if self.beats >= 0:
            self.heartbeat_at = self.clock.now
        elif self.last:
            return self.last
        return None


def test_a_node_that_only_beats_is_not_silent() -> None:
    data = json.dumps({"exit_status": 0}).encode()
    node = Beating(50, HEADER.pack(EXIT, 0, len(data)) + data)
    frames = list(Program(node, "run.follow", {}).frames(silence=5.0, ping=1000.0))  # type: ignore[arg-type]
    assert [frame.kind for frame in frames] == [EXIT] and set(node.asked[1:]) == {BEAT}


def test_a_node_that_stops_beating_is_silent() -> None:
    node = Beating(50, b"")
    with pytest.raises(ConnectError, match="silent for 5 s"):
        list(Program(node, "run.follow", {}).frames(silence=5.0, ping=1000.0))  # type: ignore[arg-type]
    assert node.clock.now == 100.0 + 50 + 5
