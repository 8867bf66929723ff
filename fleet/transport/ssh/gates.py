"""How many connections may knock at one sshd at once, and connections that many hosts share. Needs no paramiko."""

from __future__ import annotations

import collections
import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from fleet.errors import ConnectError, FleetError, Interrupted, Reason
from fleet.model import Host
from fleet.transport.base import Cancel
from fleet.transport.ssh.dial import SLICE_SECONDS, Deadline

# sshd drops unauthenticated connections at random from the 10th on (MaxStartups 10:30:100)
KNOCKS_AT_ONCE = 8
# what sshd dropped before its banner is tried again: nothing was attempted, so that harms nobody
EARLY_RETRIES = 4
# a gateway that failed is not tried again at once by the thousand hosts behind it
RETRY_SECONDS = 2.0
# reasons that hold for everybody who knocks at the same sshd
_SHARED = ("timeout", "banner", "unreachable")


class ClosedEarly(ConnectError):
    """Closed before the banner: sshd drops connections at random beyond MaxStartups; trying again is harmless."""


class Gate:
    """At most KNOCKS_AT_ONCE unauthenticated connections to one sshd. Who waits when it turns out not to answer
    shares that failure instead of waiting for it once more."""

    def __init__(self) -> None:
        self._free = KNOCKS_AT_ONCE
        self._changed = threading.Condition()
        self._failure: ConnectError | None = None

    @contextlib.contextmanager
    def knock(self, cancel: Cancel) -> Iterator[None]:
        """Hold one of the places. Raises Interrupted, or the failure shared with whoever held one."""
        with self._changed:
            before = self._failure
            while self._free == 0:
                self._changed.wait(SLICE_SECONDS)
                if cancel.is_set():
                    raise Interrupted("interrupted")
                if self._failure is not None and self._failure is not before:
                    raise self._failure.but(host=None)
            self._free -= 1
        failure: ConnectError | None = None
        try:
            yield
        except ConnectError as error:
            # a drop beyond MaxStartups hits at random; it says nothing about the next
            failure = error if error.kind in _SHARED and not isinstance(error, ClosedEarly) else None
            raise
        finally:
            with self._changed:
                self._free += 1
                self._failure = failure or self._failure
                self._changed.notify() if failure is None else self._changed.notify_all()


def pause(retry: int, deadline: Deadline) -> bool:
    """Wait before the first, second, ... retry; False where there is to be none."""
    seconds = 0.1 * 2**retry * (0.5 + random.random())
    if retry > EARLY_RETRIES or deadline.left() < seconds:
        return False
    deadline.cancel.wait(seconds)
    return True


class Gates:
    """One Gate for each sshd, by whatever identifies it."""

    def __init__(self) -> None:
        self._gates: dict[Any, Gate] = collections.defaultdict(Gate)
        self._lock = threading.Lock()

    def of(self, key: Any) -> Gate:
        with self._lock:
            return self._gates[key]


class Shareable(Protocol):
    """A connection that leads to others."""

    @property
    def broken(self) -> bool: ...

    def abort(self) -> None: ...


L = TypeVar("L", bound=Shareable)


class _Shared(Generic[L]):
    """One gateway's connection, or why there is none."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ready: threading.Event | None = None
        self.link: L | None = None
        self.error: FleetError | None = None
        self.failed_at = 0.0

    def stands(self) -> bool:
        """It need not be opened again: it works, or it failed just now, or in a way that is not tried twice."""
        if self.error is not None:
            final = self.error.kind == "auth" or "host-key" in self.error.kind
            return final or time.monotonic() - self.failed_at < RETRY_SECONDS
        return self.link is not None and not self.link.broken


class Gateways(Generic[L]):
    """Shared connections to gateways. `open_link` connects and authenticates one."""

    def __init__(self) -> None:
        self._shared: dict[Any, _Shared[L]] = collections.defaultdict(_Shared)
        self._lock = threading.Lock()

    def get(self, key: Any, name: str, open_link: Callable[[], L], deadline: Deadline) -> L:
        """The link of the gateway `key`, opened by the first who asks while the others wait.

        Raises ConnectError(kind="gateway") naming it, Interrupted.
        """
        with self._lock:
            shared = self._shared[key]
        with shared.lock:
            ready, mine = shared.ready, False
            if ready is None and not shared.stands():
                ready = shared.ready = threading.Event()
                mine = True
        if mine:
            assert ready is not None
            shared.link, shared.error = None, None
            try:
                shared.link = open_link()
            except FleetError as error:
                shared.error, shared.failed_at = error, time.monotonic()
            finally:
                shared.ready = None
                ready.set()
        elif ready is not None and not deadline.wait(ready):
            raise ConnectError(
                of_gateway(name, f"no connection within {deadline.seconds:g} s"),
                kind="gateway",
                hint="is the gateway up?",
            )
        failed, link = shared.error, shared.link
        if isinstance(failed, Interrupted):
            raise Interrupted("interrupted")
        if failed is not None:
            raise ConnectError(of_gateway(name, failed.message), kind="gateway", hint=failed.hint) from failed
        if link is None:
            raise ConnectError(of_gateway(name, "the connection was lost"), kind="gateway", hint="is it up?")
        return link

    def close(self) -> None:
        with self._lock:
            shared, self._shared = list(self._shared.values()), collections.defaultdict(_Shared)
        for one in shared:
            if one.link is not None:
                one.link.abort()


def of_gateway(gateway: str, message: str) -> Reason:
    return Reason("gateway {gateway}: ", gateway=gateway) + message


def refused_by_gateway(code: int, text: str, gateway: str, where: str) -> ConnectError:
    """What a gateway said when it was asked for a connection to `where`. code: as in SSH's OPEN_FAILURE."""
    text = text.lower()
    of = {"at": where, "gateway": gateway, "text": text or "refused"}
    for words, kind in (
        ("refused", "refused"),
        ("route", "unreachable"),
        ("unreachable", "unreachable"),
        ("timed out", "timeout"),
        ("unknown host", "resolve"),
        ("name or service", "resolve"),
        ("resol", "resolve"),
    ):
        if code == 2 and words in text:
            return ConnectError(
                Reason("{at}, as seen from gateway {gateway}: {text}", **of),
                kind=kind,
                hint="is the host up, is sshd running there, is the address right from there?",
            )
    return ConnectError(
        Reason("gateway {gateway} does not forward to {at}: {text}", **of),
        kind="gateway",
        hint="AllowTcpForwarding and PermitOpen in the gateway's sshd_config; can it reach the host?",
    )


def lost(host: Host, gateway: Shareable | None) -> ConnectError:
    """The error for a connection that is gone; gateway: what it went through."""
    if gateway is not None and gateway.broken:
        return ConnectError(
            "the connection to its gateway was lost",
            host=host.name,
            kind="gateway",
            hint="the gateway went down, or its sshd was stopped",
        )
    return ConnectError(
        "the connection was lost, or the process there has ended",
        host=host.name,
        kind="lost",
        hint="the host went down, or its sshd was stopped",
    )
