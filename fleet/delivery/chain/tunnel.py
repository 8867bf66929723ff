"""Ways from this machine into a node's listener: dialled, or, past a bastion or firewall, over the SSH session."""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import partial
from typing import TYPE_CHECKING

from fleet.delivery.chain.member import Member
from fleet.errors import FleetError
from fleet.node.delivery.chain.send import way
from fleet.protocol.frames import PREAMBLE
from fleet.transport.base import Channel, Session
from fleet.transport.frames import NOISE_LIMIT
from fleet.transport.program import bootstrap, packed

if TYPE_CHECKING:
    from fleet.node.delivery.chain.send import Way

POLL_SECONDS = 0.5


def ways(member: Member, session: Session | None) -> list[Way]:
    """Where this machine can dial a member, best first."""
    direct = [way(address, port) for address, port in member.addresses]
    if session is None:
        return direct
    tunnel: Way = ("over its SSH connection", partial(_through, session, member))
    return [tunnel, *direct] if member.host.proxy_jump else [*direct, tunnel]


def _through(session: Session, member: Member) -> socket.socket:
    """A socket whose other end is the node's listener, by a program there."""
    try:
        channel = session.start(bootstrap(session.host))
        channel.send(packed("ports.tunnel", {"addresses": member.own_addresses}))
    except FleetError as error:
        raise OSError(error.message) from error
    near, far = socket.socketpair()
    threading.Thread(target=_push, args=(far, channel), daemon=True).start()
    threading.Thread(target=_pull, args=(channel, far), daemon=True).start()
    return near


def _pull(channel: Channel, far: socket.socket) -> None:
    noise: bytes | None = b""  # what a login shell's startup files print goes before the preamble
    with far, contextlib.suppress(FleetError, OSError):
        try:
            while (data := channel.recv(POLL_SECONDS)) != b"" and len(noise or b"") <= NOISE_LIMIT:
                if noise is not None:
                    noise += data or b""
                    if PREAMBLE not in noise:
                        continue
                    data, noise = noise.partition(PREAMBLE)[2], None
                far.sendall(data or b"")
            far.shutdown(socket.SHUT_RDWR)
        finally:
            channel.close()


def _push(far: socket.socket, channel: Channel) -> None:
    with contextlib.suppress(FleetError, OSError):
        while data := far.recv(1 << 17):
            channel.send(data)
        channel.send_eof()
