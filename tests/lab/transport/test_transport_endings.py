"""Losing a connection, ending one, cancelling."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from fleet import fanout
from fleet.errors import ConnectError, FleetError, Interrupted
from fleet.model import Host
from fleet.transport.base import Cancel
from fleet.transport.shell import run_line
from tests.lab.private_sshd import Head, Sshd, listener
from tests.lab.transport_tools import TIMEOUT, failure, open_files, swallow, transport, transport_threads, wait_until

KINDS = ("ssh", "openssh", "pdsh")


def test_a_killed_connection_is_lost_not_ended(tmp_path: Path, head: Head) -> None:
    server = Sshd(tmp_path / "s")
    try:
        head.trusted_by(server)
        session = transport(head).connect(server.host(), Cancel())
        channel = session.start("echo up; sleep 40")
        assert channel.recv(TIMEOUT) == b"up\n"
        for pid in server.children():
            os.kill(pid, 9)
        with pytest.raises(ConnectError) as caught:
            while channel.recv(5) is None:
                pass
        assert caught.value.kind == "lost"
        with pytest.raises(ConnectError):
            channel.send(b"x")
        with pytest.raises(ConnectError):
            session.start("true")
        session.close()
    finally:
        server.stop()


def test_close_does_not_wait_for_a_frozen_peer(tmp_path: Path, head: Head, kind: str) -> None:
    server = Sshd(tmp_path / "s")
    try:
        head.trusted_by(server)
        session = transport(head).connect(server.host(), Cancel())
        channel = session.start("cat >/dev/null")
        for pid in server.children():
            os.kill(pid, 19)
        sender = threading.Thread(target=swallow, args=(lambda: channel.send(bytes(64 << 20)),), daemon=True)
        sender.start()
        time.sleep(0.5)
        if kind == "ssh":  # where it is another process that asks for the channel, nothing waits for the answer
            session._timeout = 1.0  # until here a busy machine had all the time it needs
            with pytest.raises(ConnectError) as caught:
                session.start("true")
            assert caught.value.kind == "timeout"
        channel.close()
        session.close()
        sender.join(TIMEOUT)
        assert not sender.is_alive()
    finally:
        server.stop()


@pytest.mark.parametrize("stage", ["tcp", "banner", "kex"])
def test_cancel_in_the_middle_of_a_connect(head: Head, stage: str) -> None:
    cancel = Cancel()
    threading.Timer(0.3, cancel.set).start()
    with listener(None if stage != "kex" else lambda peer: peer.sendall(b"SSH-2.0-x\r\n")) as port:
        host = Host("gpu1", "127.0.0.1" if stage != "tcp" else "198.18.255.254", port=port)
        with pytest.raises(FleetError) as caught:
            transport(head).connect(host, cancel)
    if stage != "tcp":  # without a route to that network it is unreachable at once
        assert isinstance(caught.value, Interrupted)


def test_threads_and_files_go_back_to_where_they_were(head: Head, sshd: Sshd) -> None:
    made = transport(head)

    def one(_: int) -> int:
        session = made.connect(sshd.host(), Cancel())
        try:
            return run_line(session, "true").status
        finally:
            session.close()

    assert one(0) == 0
    wait_until(lambda: not transport_threads())
    threads, files = threading.active_count(), open_files()
    assert [r for _, r in fanout.run(range(16), one, limit=8, cancel=Cancel())] == [0] * 16
    with listener() as port:
        for _ in range(3):
            failure(head, Host("x", "127.0.0.1", port=port), 0.3)
    wait_until(lambda: threading.active_count() <= threads and open_files() <= files)
