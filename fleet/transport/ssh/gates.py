"""How many connections may knock at one sshd at once, and connections that many hosts share. Needs no paramiko."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, Protocol, TypeVar

from fleet.errors import ConnectError, FleetError, Interrupted, Reason
from fleet.model import Host
from fleet.transport.base import Cancel, Made, Once
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


class Shareable(Protocol):
    """A connection that leads to others."""

    @property
    def broken(self) -> bool: ...

    def abort(self) -> None: ...


L = TypeVar("L", bound=Shareable)


class Gateways(Generic[L]):
    """Shared connections to gateways."""

    def __init__(self) -> None:
        self._links: Once[L] = Once(_stands)

    def get(self, key: Any, name: str, open_link: Callable[[], L], deadline: Deadline) -> L:
        """The link of the gateway `key`, connected and authenticated by the first who asks while the others wait.

        Raises ConnectError(kind="gateway") naming it, Interrupted.
        """
        link = self._links.made(key, open_link)
        ready = threading.Event()
        link.add_done_callback(lambda _: ready.set())
        if not deadline.wait(ready):
            raise ConnectError(
                of_gateway(name, f"no connection within {deadline.seconds:g} s"),
                kind="gateway",
                hint="is the gateway up?",
            )
        failed = link.exception()
        if isinstance(failed, Interrupted):
            raise Interrupted("interrupted")
        if isinstance(failed, FleetError):
            raise ConnectError(of_gateway(name, failed.message), kind="gateway", hint=failed.hint) from failed
        return link.result()

    def close(self) -> None:
        for link in self._links.all():
            link.abort()


def _stands(made: Made[L]) -> bool:
    """It need not be opened again: it works, or it failed just now, or in a way that is not tried twice."""
    failed = made.exception()
    if failed is None:
        return not made.result().broken
    final = isinstance(failed, FleetError) and (failed.kind == "auth" or "host-key" in failed.kind)
    return final or time.monotonic() - made.at < RETRY_SECONDS


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


def unanswered_through(gateway: str, at: str, seconds: float) -> ConnectError:
    """The error for who says nothing, though its gateway leads there."""
    said = "no answer from {at} through gateway {gateway} within {s} s"
    return ConnectError(
        Reason(said, gateway=gateway, at=at, s=f"{seconds:g}"),
        kind="timeout",
        hint="is the host up, and does it let the gateway in?",
    )


def no_banner(at: str, said: str | None, seconds: float | None) -> ConnectError:
    """The error for who did not say that it speaks SSH. said: what it said instead. seconds: those that it had; None
    where it closed the connection."""
    if seconds is None and (said is None or "MaxStartups" in said):
        return ClosedEarly(
            Reason("{at} closed the connection before its SSH banner", at=at),
            kind="banner",
            hint="sshd is overloaded (MaxStartups), starting up, or turns this machine away",
        )
    if said is not None:
        return ConnectError(
            Reason("{at} ", at=at) + f"answers, but not as an SSH server does: {said!r}",
            kind="banner",
            hint="is this the port of sshd? or it turns this machine away for a while",
        )
    return ConnectError(
        Reason("{at} ", at=at) + f"accepts connections and says nothing within {seconds:g} s",
        kind="banner",
        hint="its sshd is frozen or overloaded, or something else listens on that port",
    )


def ended_during(step: str, at: str, seconds: float | None) -> ConnectError:
    """The error for a connection that got as far as this. seconds: as for no_banner()."""
    if seconds is None:
        return ConnectError(
            Reason("{at} ", at=at) + f"closed the connection during {step}",
            kind="lost",
            hint="the host's sshd log says why (journalctl -u ssh)",
        )
    return ConnectError(
        Reason("{at} ", at=at) + f"stopped answering during {step} ({seconds:g} s)",
        kind="timeout",
        hint="the host hangs or is overloaded, or the link to it is cut",
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
