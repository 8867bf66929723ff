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
from fleet.transport.base import Channel, Session
from fleet.transport.frames import behind_preamble
from fleet.transport.program import bootstrap, packed

if TYPE_CHECKING:
    from fleet.node.delivery.chain.send import Way

POLL_SECONDS = 0.5


def ways(member: Member) -> list[Way]:
    """Returns where this machine can dial a member, best first."""
    direct = [way(address, port) for address, port in member.addresses]
    if member.session is None:
        return direct
    tunnel: Way = ("over its SSH connection", partial(_through, member.session, member))
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
    with far, contextlib.suppress(FleetError, OSError), contextlib.closing(channel):
        for data in behind_preamble(partial(channel.recv, POLL_SECONDS)):
            far.sendall(data)
        far.shutdown(socket.SHUT_RDWR)


def _push(far: socket.socket, channel: Channel) -> None:
    with contextlib.suppress(FleetError, OSError):
        while data := far.recv(1 << 17):
            channel.send(data)
        channel.send_eof()
