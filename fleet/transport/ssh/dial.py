"""Connects a TCP socket to a name within a deadline. Makes the errors of such connections."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import select
import socket
import threading
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

from fleet.background import background
from fleet.errors import ConnectError, FleetError, Interrupted, LimitError, Reason
from fleet.transport.base import Cancel

SLICE_SECONDS = 0.2
STALLED_SECONDS = 30


@dataclass(frozen=True)
class Deadline:
    """Holds a point in time, by time.monotonic(), and the latch that ends a wait earlier. seconds: the whole time, for
    messages."""

    at: float
    cancel: Cancel
    seconds: float

    @classmethod
    def after(cls, seconds: float, cancel: Cancel) -> Deadline:
        return cls(time.monotonic() + seconds, cancel, seconds)

    def left(self) -> float:
        """Returns the seconds left, at least 0. Raises Interrupted."""
        if self.cancel.is_set():
            raise Interrupted("interrupted")
        return max(0.0, self.at - time.monotonic())

    def wait(self, event: threading.Event) -> bool:
        """Waits for the event. Returns False after the deadline. Raises Interrupted as soon as the latch is set."""
        if not event.is_set():
            with self.cancel.calling(event.set):
                event.wait(self.left())
            self.left()
        return event.is_set()


def dial(address: str, port: int, deadline: Deadline) -> socket.socket:
    """Returns a connected socket. Raises ConnectError (resolve, refused, unreachable, timeout), LimitError,
    Interrupted."""
    targets = resolve_name(address, port, deadline)
    for left in range(len(targets), 0, -1):
        # the addresses share the time, so that a dead IPv6 address leaves some for the IPv4 address
        share = Deadline(time.monotonic() + deadline.left() / left, deadline.cancel, deadline.seconds)
        try:
            return _connect(*targets[-left], share, f"{address} port {port}")
        except ConnectError:
            if left == 1:
                raise
    raise AssertionError("a name resolves to something")


def resolve_name(address: str, port: int, deadline: Deadline) -> list[tuple[int, Any]]:
    """Returns [(family, sockaddr), ...]. A resolver that hangs is abandoned in its daemon thread."""
    with contextlib.suppress(ValueError):
        version = ipaddress.ip_address(address).version
        return [(socket.AF_INET if version == 4 else socket.AF_INET6, (address, port))]
    done = threading.Event()
    lookup = background("fleet-resolve", partial(socket.getaddrinfo, address, port, type=socket.SOCK_STREAM))
    lookup.add_done_callback(lambda _: done.set())
    if not deadline.wait(done):
        raise ConnectError(
            Reason("no answer from the resolver for '{at}' within {s} s", at=address, s=f"{deadline.seconds:g}"),
            kind="resolve",
            hint="is DNS reachable? an IP address in the inventory does without it",
        )
    try:
        return [(family, sockaddr) for family, _, _, _, sockaddr in lookup.result()]
    except (OSError, UnicodeError) as error:
        raise unresolved(address, getattr(error, "strerror", None) or "not a valid name") from None


def unresolved(name: str, why: str) -> ConnectError:
    """Returns the error for an unknown name."""
    return ConnectError(
        Reason("the name '{at}' does not resolve: " + why, at=name),
        kind="resolve",
        hint="correct 'address' in the inventory, or make the name known (/etc/hosts, DNS, HostName in ~/.ssh/config)",
    )


def _connect(family: int, sockaddr: Any, deadline: Deadline, where: str) -> socket.socket:
    try:
        with contextlib.ExitStack() as unless_connected:
            sock = unless_connected.enter_context(socket.socket(family, socket.SOCK_STREAM))
            sock.setblocking(False)
            code = sock.connect_ex(sockaddr)
            if code == errno.EINPROGRESS:
                poll = select.poll()
                poll.register(sock, select.POLLOUT)
                while not poll.poll(min(SLICE_SECONDS, deadline.left()) * 1000):
                    if deadline.left() == 0:
                        raise ConnectError(
                            Reason("no answer from {at} within {s} s", at=where, s=f"{deadline.seconds:g}"),
                            kind="timeout",
                            hint="is the host up, is the address right, does a firewall drop the port?",
                        )
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, errno.errorcode.get(code, str(code)))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                # a writer must not wait for ever for a peer that is frozen or cut off
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STALLED_SECONDS * 1000)
            unless_connected.pop_all()
            return sock
    except OSError as error:
        raise os_error(error, where) from error


_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_WAY = (
    *(errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL),
    *(errno.EACCES, errno.EPERM, errno.EINVAL, errno.EAFNOSUPPORT),
)
# the kernel's error: (fleet's text, kind, hint)
_OS_ERRORS = {
    errno.ECONNREFUSED: ("{at} refused the connection", "refused", "is sshd running there, and on this port?"),
    errno.ETIMEDOUT: ("no answer from {at}", "timeout", "is the host up, does a firewall drop the port?"),
    **dict.fromkeys(
        _NO_WAY,
        (
            "{at} cannot be reached: {why}",
            "unreachable",
            "is the host up, is the address right, is there a route to its network?",
        ),
    ),
}
_LOST = (
    "the connection to {at} was lost: {why}",
    "lost",
    "the host went down, or something on the way cut the connection",
)


def os_error(error: OSError, where: str) -> FleetError:
    """Returns the FleetError for the kernel's error about a connection to `where`."""
    code = error.errno
    if code in _FULL:
        return LimitError(
            "this machine has no open file left for another connection", hint="lower --fanout, or raise 'ulimit -n'"
        )
    text, kind, hint = _OS_ERRORS.get(code or 0, _LOST)
    why = os.strerror(code).lower() if code else "closed"
    return ConnectError(Reason(text.replace("{why}", why), at=where), kind=kind, hint=hint)


def reached(sock: Any) -> str | None:
    """Returns the address at the other end, None for a loopback address or if there is no address."""
    try:
        address = sock.getpeername()[0] if isinstance(sock, socket.socket) else ""
        return None if ipaddress.ip_address(address).is_loopback else str(address)
    except (OSError, ValueError, IndexError):
        return None
