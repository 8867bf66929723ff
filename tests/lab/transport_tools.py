"""What transport tests share: connecting with a deadline that is held to, waiting, counting."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable

import pytest

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.ssh.transport import SshTransport
from tests.lab.private_sshd import Head

# generous where a real sshd has to answer on a busy machine, short where it is waited out
TIMEOUT = 10.0
WAIT = 1.5


def transport(head: Head, timeout: float = TIMEOUT, **more: object) -> SshTransport:
    return SshTransport(ConnectOptions(timeout), home=head.home, **more)  # type: ignore[arg-type]


def failure(head: Head, host: Host, timeout: float = TIMEOUT, **more: object) -> ConnectError:
    """The error of connecting, which must name the host, have a hint and come in time."""
    begin = time.monotonic()
    with pytest.raises(ConnectError) as caught:
        transport(head, timeout, **more).connect(host, Cancel())
    assert time.monotonic() - begin < timeout + 1
    error = caught.value
    assert error.host == host.name
    assert error.hint
    assert error.exit_code == 122
    return error


def wait_until(condition: Callable[[], object], seconds: float = 10.0) -> None:
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
