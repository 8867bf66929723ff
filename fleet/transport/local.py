"""The local transport: the same channels on this machine, through a plain shell as sshd would start it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions, Session
from fleet.transport.process import ProcessChannel


class LocalSession:
    """A "connection" to this machine."""

    address: str | None = None

    def __init__(self, host: Host) -> None:
        self.host = host
        self._channels: list[ProcessChannel] = []

    def start(self, command: str, *, with_stderr: bool = False) -> ProcessChannel:
        argv = ["/bin/sh", "-c", command]
        channel = ProcessChannel(argv, self.host, patience=2.0, cwd=Path.home(), with_stderr=with_stderr)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class LocalTransport:
    """Runs everything here, whatever the host is called. Only used where the user asked for it."""

    name = "local"

    def __init__(self, options: ConnectOptions | None = None, *, hosts: Iterable[Host] = ()) -> None:
        """Nothing to connect to, and no gateways."""

    def connect(self, host: Host, cancel: Cancel) -> Session:
        return LocalSession(host)

    def resolve(self, host: Host) -> None:
        return None

    def route(self, host: Host) -> tuple[Host, ...]:
        return ()

    def close(self) -> None:
        pass
