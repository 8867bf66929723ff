"""Ways into nodes that this machine cannot dial, because of a bastion or a firewall: over the SSH session to them.

A local port stands for the node's listener. Whoever connects to it is where anybody in the nodes' network is: at a
listener that wants the transfer's certificate and token.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from typing import Any

from fleet.delivery.chain.member import Member
from fleet.errors import FleetError
from fleet.protocol.frames import PREAMBLE
from fleet.transport.base import Channel, Session
from fleet.transport.frames import NOISE_LIMIT
from fleet.transport.program import bootstrap, packed

POLL_SECONDS = 0.5
BEGIN_POLLS = 40
AT_ONCE = 4  # any user of this machine can knock here


class Tunnels:
    """sessions: those to the members, by host name, as they come up."""

    def __init__(self, sessions: Mapping[str, Session]) -> None:
        self._sessions = sessions
        self._listeners: dict[str, socket.socket] = {}

    def addresses(self, member: Member) -> list[list[Any]]:
        """Where this machine can dial a member, best first: [[address, port, what to call it]]."""
        direct = [[address, port, f"{address}:{port}"] for address, port in member.addresses]
        name = member.host.name
        if name not in self._sessions:
            return direct
        if name not in self._listeners:
            try:
                listener = self._listeners[name] = socket.create_server(("127.0.0.1", 0))
            except OSError:
                return direct
            threading.Thread(target=self._serve, args=(listener, member), daemon=True).start()
        tunnel = [*self._listeners[name].getsockname(), "over its SSH connection"]
        return [tunnel, *direct] if member.host.proxy_jump else [*direct, tunnel]

    def close(self) -> None:
        for listener in self._listeners.values():
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _serve(self, listener: socket.socket, member: Member) -> None:
        room = threading.BoundedSemaphore(AT_ONCE)
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                if room.acquire(blocking=False):
                    threading.Thread(target=self._carry, args=(client, member, room), daemon=True).start()
                else:
                    client.close()

    def _carry(self, client: socket.socket, member: Member, room: threading.Semaphore) -> None:
        with client, contextlib.suppress(FleetError, OSError):
            session = self._sessions[member.host.name]
            channel = session.start(bootstrap(session.host))
            try:
                channel.send(packed("ports.tunnel", {"addresses": member.own_addresses}))
                threading.Thread(target=_push, args=(client, channel), daemon=True).start()
                data = _begin(channel)
                while data is None or data:
                    client.sendall(data or b"")
                    data = channel.recv(POLL_SECONDS)
                client.shutdown(socket.SHUT_WR)
            finally:
                channel.close()
        room.release()


def _begin(channel: Channel) -> bytes | None:
    """What follows the preamble; b"" where none comes."""
    said = b""
    for _ in range(BEGIN_POLLS):
        data = channel.recv(POLL_SECONDS)
        said += data or b""
        if PREAMBLE in said:
            return said.partition(PREAMBLE)[2] or None
        if data == b"" or len(said) > NOISE_LIMIT:
            break
    return b""


def _push(client: socket.socket, channel: Channel) -> None:
    with contextlib.suppress(FleetError, OSError):
        while data := client.recv(1 << 17):
            channel.send(data)
        channel.send_eof()
