"""What transport tests share: connecting with a deadline that is held to, waiting, counting."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.transport import TRANSPORTS
from fleet.transport.base import Cancel, ConnectOptions
from tests.lab.private_sshd import Head

# generous where a real sshd has to answer on a busy machine; what is waited out begins short: stuck()
TIMEOUT = 120.0
WAIT = 1.5


# the transport that the running test is about; the fixture `kind` sets it
KIND = ["ssh"]
F = TypeVar("F", bound=Callable[..., object])


def over(*kinds: str) -> Callable[[F], F]:
    """Decorator: this test is about these transports, not about its module's KINDS."""

    def mark(test: F) -> F:
        test.kinds = kinds  # type: ignore[attr-defined]
        return test

    return mark


def transport(head: Head, timeout: float = TIMEOUT, **more: object) -> Any:
    """One of the kind that the test is about, with this head's home; the fixture `kind` closes it."""
    if KIND[0] != "local":
        more["home"] = head.home
    made = TRANSPORTS.get(KIND[0])(ConnectOptions(timeout), **more)
    MADE.append(made)
    return made


MADE: list[Any] = []


def failure(head: Head, host: Host, timeout: float = TIMEOUT, **more: object) -> ConnectError:
    """The error of connecting, which must name the host, have a hint and come in time."""
    begin = time.monotonic()
    made = transport(head, timeout, **more)
    with pytest.raises(ConnectError) as caught:
        made.connect(host, Cancel())
    made.close()
    MADE.remove(made)
    error = caught.value
    assert time.monotonic() - begin < timeout + 60, error
    assert error.host == host.name
    assert error.hint
    assert error.exit_code == 122
    return error


def stuck(head: Head, host: Host, kind: str, said: str = "", limit: float = WAIT, **more: object) -> ConnectError:
    """failure() at a peer that falls silent at some step: the error of that step, or the one of an earlier step that a
    busy machine has not done in 16 times the limit, either."""
    for times in (1, 4, 16):
        error = failure(head, host, times * limit, **more)
        if error.kind == kind and said in error.message:
            break
    return error


def wait_until(condition: Callable[[], object], seconds: float = TIMEOUT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, threading.enumerate()
        time.sleep(0.02)


def transport_threads() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if type(t).__name__ == "Link"]


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def swallow(work: Callable[[], object]) -> None:
    with contextlib.suppress(FleetError):
        work()
