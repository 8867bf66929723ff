"""Connections that many hosts share, trying again, and the errors for those that fail. Needs no paramiko."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from fleet.errors import ConnectError, FleetError, Interrupted, Reason
from fleet.model import Host
from fleet.transport.base import Made, Once
from fleet.transport.ssh.dial import Deadline

# what sshd dropped before its banner is tried again: nothing was attempted, so that does no harm
EARLY_RETRIES = 4
# a gateway that failed is not tried again at once by the thousand hosts reached through it
RETRY_SECONDS = 2.0


class ClosedEarly(ConnectError):
    """Closed before the banner: sshd drops connections at random beyond MaxStartups; trying again is harmless."""


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

    def get(self, key: Any, name: str, open_link: Callable[[], L]) -> L:
        """The link of the gateway `key`, connected and authenticated by the first who asks while the others wait: no
        longer than that may take. Raises ConnectError(kind="gateway") naming it, Interrupted."""
        try:
            return self._links.get(key, open_link)
        except Interrupted:
            raise Interrupted("interrupted") from None
        except FleetError as failed:
            raise ConnectError(of_gateway(name, failed.message), kind="gateway", hint=failed.hint) from failed

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
    """Returns the error of a gateway that refused a connection to `where`. code: as in SSH's OPEN_FAILURE."""
    text = text.lower()
    of = {"at": where, "gateway": gateway, "text": text or "refused"}
    for phrase, kind in (
        ("refused", "refused"),
        ("route", "unreachable"),
        ("unreachable", "unreachable"),
        ("timed out", "timeout"),
        ("unknown host", "resolve"),
        ("name or service", "resolve"),
        ("resol", "resolve"),
    ):
        if code == 2 and phrase in text:
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
    """The error for a silent host, though its gateway leads there."""
    text = "no answer from {at} through gateway {gateway} within {s} s"
    return ConnectError(
        Reason(text, gateway=gateway, at=at, s=f"{seconds:g}"),
        kind="timeout",
        hint="is the host up, and does it let the gateway in?",
    )


def no_banner(at: str, said: str | None, seconds: float | None) -> ConnectError:
    """The error for a host that did not open with SSH's banner. said: what it sent instead. seconds: those that it had;
    None where it closed the connection."""
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
        hint="the host hangs or is overloaded, or the file server of its home (~/.ssh) does, or the link to it is cut",
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
