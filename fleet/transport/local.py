"""The local transport: the same channels on this machine, through a plain shell as sshd would start it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from pathlib import Path

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.base import Cancel, Session


class LocalChannel:
    """A child process of this one, in a session of its own."""

    def __init__(self, command: str, host: Host) -> None:
        self._host = host
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=Path.home(),
            start_new_session=True,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._stderr = bytearray()
        self._reader = threading.Thread(target=self._drain, daemon=True)
        self._reader.start()

    def _drain(self) -> None:
        assert self._process.stderr
        with self._process.stderr as pipe:
            while data := pipe.read(65536):
                self._stderr += data
                del self._stderr[:-65536]

    def send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._stdin.fileno(), view) :]
        except (OSError, ValueError) as error:
            raise ConnectError("the process is gone", host=self._host.name, kind="lost") from error

    def send_eof(self) -> None:
        self._stdin.close()

    def recv(self, timeout: float) -> bytes | None:
        try:
            ready, _, _ = select.select([self._stdout], [], [], timeout)
            return os.read(self._stdout.fileno(), 1 << 16) if ready else None
        except ValueError:  # closed, by another thread
            return b""

    def recv_stderr(self) -> bytes:
        if self._process.poll() is not None:
            self._reader.join(1.0)
        data = bytes(self._stderr)
        self._stderr.clear()
        return data

    def wait(self, timeout: float) -> int | None:
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        """Closed stdin ends every fleet program; what ignores that is terminated, then killed."""
        if not self._stdin.closed:
            self._stdin.close()
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if self.wait(2.0) is not None:
                break
            os.kill(self._process.pid, signum)
        self.wait(2.0)
        self._reader.join(0.5)
        self._stdout.close()


class LocalSession:
    """A "connection" to this machine."""

    address: str | None = None

    def __init__(self, host: Host) -> None:
        self.host = host
        self._channels: list[LocalChannel] = []

    def start(self, command: str) -> LocalChannel:
        channel = LocalChannel(command, self.host)
        self._channels.append(channel)
        return channel

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


class LocalTransport:
    """Runs everything here, whatever the host is called. Only used where the user asked for it."""

    name = "local"

    def connect(self, host: Host, cancel: Cancel) -> Session:
        return LocalSession(host)

    def close(self) -> None:
        pass
