"""Where tests act between the head and a node: the local transport with a tap."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping

from fleet.model import Host
from fleet.transport.base import Cancel, Session
from fleet.transport.local import LocalTransport, ProcessChannel
from fleet.transport.program import shipped
from tests.changed import changed

Hook = Callable[[bytes], object]


def nothing(data: bytes) -> None:
    pass


def at(part: bytes, action: Callable[[], object], times: int = 1) -> Hook:
    """Returns a hook that runs the action for the first data that hold this part, `times` times at most."""
    left = [times]

    def hook(data: bytes) -> None:
        if part in data and left[0]:
            left[0] -= 1
            action()

    return hook


class Tap(LocalTransport):
    """The local transport. first: text of Python that a program runs on each node before it begins, by the program's
    name. sending, received: what the head sends, and what came from a node, before the other end has it. only: the
    host that all this is for; None for each."""

    def __init__(
        self,
        first: Mapping[str, str] | None = None,
        *,
        sending: Hook = nothing,
        received: Hook = nothing,
        only: str | None = None,
    ) -> None:
        super().__init__()
        self._first, self._sending, self._received, self._only = first or {}, sending, received, only

    def connect(self, host: Host, cancel: Cancel) -> Session:
        session = super().connect(host, cancel)
        if self._only in (None, host.name):
            start = session.start
            session.start = lambda command: self._tapped(start(command))  # type: ignore[method-assign, arg-type]
        return session

    def _tapped(self, channel: ProcessChannel) -> ProcessChannel:
        plain_send, plain_recv = channel.send, channel.recv

        def send(data: bytes, **how: float) -> None:
            for name, lines in self._first.items():
                if data.startswith(honest := shipped(name)):
                    data = changed(name, lines) + data[len(honest) :]
            self._sending(data)
            plain_send(data, **how)

        def recv(timeout: float) -> bytes | None:
            data = plain_recv(timeout)
            self._received(data or b"")
            return data

        channel.send, channel.recv = send, recv  # type: ignore[method-assign]
        return channel


def in_mounts(mounts: str, code: str) -> str:
    """Returns what this code prints in a process with mounts of its own, which these lines of shell make. By root."""
    line = f'{mounts} && exec "$@"'
    argv = ["unshare", "-m", "sh", "-c", line, "sh", sys.executable, "-c", code]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout
