"""Connections through a gateway.

A gateway has one authenticated connection, shared by everything behind it; each host behind it is one
direct-tcpip channel, which neither MaxStartups nor MaxSessions counts.
"""

from __future__ import annotations

from typing import Any

from fleet.errors import ConnectError, FleetError, Interrupted, Reason
from fleet.transport.ssh.dial import Deadline
from fleet.transport.ssh.gates import of_gateway, refused_by_gateway
from fleet.transport.ssh.link import ChannelRefused, Link
from fleet.transport.ssh.node_channel import NodeChannel


def dial_through(gateway: Link, name: str, address: str, port: int, deadline: Deadline) -> NestedSocket:
    """A connection from the gateway to address:port. ConnectError says whose fault it is when it fails."""
    try:
        return NestedSocket(gateway, gateway.open("direct-tcpip", deadline, (address, port)))
    except ChannelRefused as error:
        raise refused_by_gateway(error.code, error.text, name, f"{address} port {port}") from error
    except Interrupted:
        raise
    except FleetError as error:
        must_answer(gateway, name)
        raise ConnectError(
            Reason(
                "no answer from {at} through gateway {gateway} within {s} s",
                gateway=name,
                at=f"{address} port {port}",
                s=f"{deadline.seconds:g}",
            ),
            kind="timeout",
            hint="is the host up, and does it let the gateway in?",
        ) from error


def must_answer(gateway: Link, name: str) -> None:
    """Raise ConnectError(kind="gateway") when it is the gateway that is lost or hangs, so that it is not taken for
    the host behind it. One that hangs is given up, and connected anew by whoever needs it next."""
    if gateway.broken or not gateway.answers():
        gateway.abort()
        raise ConnectError(
            of_gateway(name, "the connection was lost, or it stopped answering"),
            kind="gateway",
            hint="the gateway hangs or went down, or its sshd was stopped",
        )


class NestedSocket:
    """A direct-tcpip channel that looks like a socket to the Link on top of it."""

    def __init__(self, gateway: Link, channel: NodeChannel) -> None:
        self._gateway, self._channel = gateway, channel
        self.settimeout = channel.settimeout
        self.recv = channel.recv
        self.send = channel.send

    @property
    def gateway(self) -> Link:
        return self._gateway

    @property
    def _closed(self) -> bool:
        return bool(self._channel.closed)

    def getpeername(self) -> Any:
        return self._channel.getpeername()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Wake whoever reads, tell the gateway without waiting for it."""
        self._channel.in_buffer.close()
        if not self._channel.closed and self._gateway.is_active():
            self._gateway.quietly(self._channel.close)
