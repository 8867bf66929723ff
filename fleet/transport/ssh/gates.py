"""Holds the connections to gateways, which hosts share. Waits between retries. Makes the errors of failed connections.
Needs no paramiko."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from fleet.errors import ConnectError, FleetError, Interrupted, Reason
from fleet.model import Host
from fleet.transport.base import Made, Once
from fleet.transport.ssh.dial import Deadline

# retries of a connection that sshd dropped before its banner: no login was tried, so they do no harm
EARLY_RETRIES = 4
# time in which all hosts of a gateway share its error, so that not every host tries it again
RETRY_SECONDS = 2.0


class ClosedEarly(ConnectError):
    """Reports a connection that was closed before the banner. sshd drops connections at random beyond MaxStartups, so a
    retry may help."""


def pause(retry: int, deadline: Deadline) -> bool:
    """Waits before retry number `retry`, longer each time. Returns False at once if there were too many, or if no time
    is left."""
    seconds = 0.1 * 2**retry * (0.5 + random.random())
    if retry > EARLY_RETRIES or deadline.left() < seconds:
        return False
    deadline.cancel.wait(seconds)
    return True


class Shareable(Protocol):
    """Describes a connection to a gateway."""

    @property
    def broken(self) -> bool: ...

    def abort(self) -> None: ...


L = TypeVar("L", bound=Shareable)


class Gateways(Generic[L]):
    """Holds the connection to each gateway."""

    def __init__(self) -> None:
        self._links: Once[L] = Once(_need_not_reopen)

    def get(self, key: Any, name: str, open_link: Callable[[], L]) -> L:
        """Returns the connection to the gateway `key`. The first thread opens it by open_link(), other threads wait.
        Raises ConnectError(kind="gateway") with the gateway's `name`, and Interrupted."""
        try:
            return self._links.get(key, open_link)
        except Interrupted:
            raise Interrupted("interrupted") from None
        except FleetError as failed:
            raise ConnectError(of_gateway(name, failed.message), kind="gateway", hint=failed.hint) from failed

    def close(self) -> None:
        for link in self._links.all():
            link.abort()


def _need_not_reopen(made: Made[L]) -> bool:
    """Returns whether the connection works, failed a moment ago, or would fail again."""
    failed = made.exception()
    if failed is None:
        return not made.result().broken
    final = isinstance(failed, FleetError) and (failed.kind == "auth" or "host-key" in failed.kind)
    return final or time.monotonic() - made.at < RETRY_SECONDS


def of_gateway(gateway: str, message: str) -> Reason:
    return Reason("gateway {gateway}: ", gateway=gateway) + message


def refused_by_gateway(code: int, text: str, gateway: str, where: str) -> ConnectError:
    """Returns the error of a gateway that refused a connection to `where`. code: the reason in
    SSH_MSG_CHANNEL_OPEN_FAILURE."""
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
    """Returns the error for a host that does not answer through its gateway, which itself works."""
    text = "no answer from {at} through gateway {gateway} within {s} s"
    return ConnectError(
        Reason(text, gateway=gateway, at=at, s=f"{seconds:g}"),
        kind="timeout",
        hint="is the host up, and does it let the gateway in?",
    )


def no_banner(at: str, received: str | None, seconds: float | None) -> ConnectError:
    """Returns the error for a host that did not send an SSH banner. received: the text that it sent instead; None if it
    sent nothing. seconds: the time that the host had; None if the host closed the connection."""
    if seconds is None and (received is None or "MaxStartups" in received):
        return ClosedEarly(
            Reason("{at} closed the connection before its SSH banner", at=at),
            kind="banner",
            hint="sshd is overloaded (MaxStartups), starting up, or turns this machine away",
        )
    if received is not None:
        return ConnectError(
            Reason("{at} ", at=at) + f"answers, but not as an SSH server does: {received!r}",
            kind="banner",
            hint="is this the port of sshd? or it turns this machine away for a while",
        )
    return ConnectError(
        Reason("{at} ", at=at) + f"accepts connections and sends nothing within {seconds:g} s",
        kind="banner",
        hint="its sshd is frozen or overloaded, or something else listens on that port",
    )


def ended_during(step: str, at: str, seconds: float | None) -> ConnectError:
    """Returns the error for a connection that ended during `step`. seconds: as for no_banner()."""
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
    """Returns the error for a connection that was lost. gateway: the connection that it went through."""
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
