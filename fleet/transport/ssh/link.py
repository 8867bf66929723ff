"""Implements one SSH connection by paramiko's Transport. Every wait has a timeout, even where paramiko has none.

The host key is checked during the key exchange. If it is wrong, nothing more is sent.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from fleet.background import background, thread_limit
from fleet.errors import ConnectError, FleetError, Interrupted, Reason
from fleet.transport.ssh.adapter import Connection
from fleet.transport.ssh.dial import Deadline, os_error, reached
from fleet.transport.ssh.gates import ended_during, no_banner
from fleet.transport.ssh.hostkeys import ALGORITHMS, HostKey, HostKeyCheck
from fleet.transport.ssh.library import Message, paramiko
from fleet.transport.ssh.node_channel import NodeChannel


class Link(Connection):
    """Extends Connection: handshake() verifies the host key. It does not authenticate."""

    def __init__(self, sock: Any, check: HostKeyCheck | None, key_types: tuple[str, ...]) -> None:
        super().__init__(sock, self._judge, tuple(a for kind in key_types for a in ALGORITHMS[kind]))
        self._check = check
        self.server_host_key: HostKey | None = None
        self.via: Link | None = None
        self.address = reached(sock)
        self.method = ""
        self._where = "?"

    def _judge(self, blob: bytes) -> None:
        self.server_host_key = HostKey(Message(blob).get_text(), blob)
        if self._check is not None:
            self._check.check(self.server_host_key)

    def handshake(self, where: str, deadline: Deadline) -> None:
        """Exchanges banners and keys. Raises ConnectError (banner, timeout, lost, protocol, host-key,
        unknown-host-key)."""
        self._where = where
        done = threading.Event()
        with thread_limit():
            self.start_client(event=done)
        in_time = deadline.wait(done)
        if in_time and self.is_active() and self.initial_kex_done:
            return
        raise self.failure(in_time, deadline.seconds, "the key exchange")

    def failure(self, in_time: bool, seconds: float, during: str) -> FleetError:
        """Returns the error for a connection that failed or timed out."""
        error = self.saved_exception
        if isinstance(error, FleetError):
            return error
        if not self.remote_version:
            preamble = getattr(self.packetizer, "preamble", "") or None
            return no_banner(self._where, preamble, None if in_time else seconds)
        if not in_time:
            return ended_during(during, self._where, seconds)
        if isinstance(error, OSError):
            return os_error(error, self._where)
        if error is None or isinstance(error, EOFError):
            return ended_during(during, self._where, None)
        return ConnectError(Reason("{at}: ", at=self._where) + str(error), kind="protocol", hint=self._way_out())

    def _way_out(self) -> str:
        """Returns the hint for a server with which paramiko has no algorithm in common; ssh knows more of them."""
        if re.match(r"SSH-[\d.]+-OpenSSH_[1-6]\.", self.remote_version):
            return "its sshd is very old: update it"
        return "--transport openssh may speak what its sshd offers; 'ssh -v' to it shows what that is"

    def open(self, kind: str, deadline: Deadline, target: tuple[str, int] | None = None) -> NodeChannel:
        """Opens a channel ("session", or "direct-tcpip" to `target`). Raises ChannelRefused if the server refuses."""
        if self.broken:
            raise self.failure(True, deadline.seconds, "the opening of a channel")
        event = threading.Event()
        channel, ask = self.begin_channel(kind, target, event)
        self.post(ask, deadline, "the opening of a channel")
        in_time = False
        try:
            in_time = deadline.wait(event)
        finally:
            channel.abandoned = not in_time
        if channel.refused:
            raise ChannelRefused(*channel.refused)
        if not in_time or not channel.active or not self.is_active():
            raise self.failure(in_time, deadline.seconds, "the opening of a channel")
        return channel

    def answers(self, deadline: Deadline) -> bool:
        """Returns whether the server responds. Requests a channel of an unknown kind: a refusal is a response, too.
        Raises Interrupted."""
        try:
            self.open("ping@fleet", deadline).close()
        except ChannelRefused:
            return True
        except Interrupted:
            raise
        except FleetError:
            return False
        return True

    def post(self, send: Callable[[], None], deadline: Deadline, during: str) -> None:
        """Calls `send`, which sends one message. Raises ConnectError if the connection is gone."""
        try:
            send()
        except (EOFError, OSError, paramiko.SSHException) as error:
            raise self.failure(True, deadline.seconds, during) from error

    @property
    def broken(self) -> bool:
        """Is true if the connection is gone, even before its channels notice."""
        return not self.is_active() or self.saved_exception is not None

    def quietly(self, send: Callable[[], None]) -> None:
        """Calls `send`, which sends a small message. A thread does it if the peer reads nothing."""
        try:
            writable = bool(select.select([], [self.sock], [], 0)[1]) if self.via is None else not self.via.broken
        except (OSError, ValueError):
            return
        if writable:
            send()
        else:
            background("fleet-close", send)

    def abort(self) -> None:
        """Closes the connection at once, in any state. Never blocks, never raises."""
        with contextlib.suppress(Exception):
            shut = getattr(self.sock, "abort", None)
            shut() if shut else self.sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            self.close()
            self.sock.close()


class ChannelRefused(Exception):
    """Reports that the server refused a channel. code: 1 prohibited, 2 connect failed, 3 unknown type, 4 resources."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code, self.text = code, text
