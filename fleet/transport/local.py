"""Processes of this machine: run to their end, or as channels (the `ssh` that leads to another machine); and the local
transport, whose channels are plain shells, as sshd would start them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.base import (
    EARLY_BYTES,
    SEND_PATIENCE,
    STDERR_BYTES,
    Cancel,
    ConnectOptions,
    Session,
    reads_nothing,
)

READ_BYTES = 1 << 16
SLICE_SECONDS = 0.2


def finish(
    argv: Sequence[str],
    stdin: bytes,
    seconds: float,
    cancel: Cancel | None = None,
    env: Mapping[str, str] | None = None,
) -> tuple[int | None, bytes, bytes]:
    """Run a command of this machine to its end: (exit status, stdout, stderr). The status is None where it had to be
    ended, with all that it started, after so many seconds. So it is, at once, where `cancel` is set. stdin: a file,
    for who reads /dev/stdin twice."""
    with tempfile.TemporaryFile() as file:
        file.write(stdin)
        file.seek(0)
        pipe = subprocess.PIPE
        process = subprocess.Popen(argv, stdin=file, stdout=pipe, stderr=pipe, env=env, start_new_session=True)

    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    undo = (cancel or Cancel()).on_set(end)
    try:
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        end()
        out, err = process.communicate()
        return None, out, err
    finally:
        undo()


class ProcessChannel:
    """A child process of this one, in a session of its own. recv, send and wait may be called from different threads.

    patience: seconds it is given to end by itself once its stdin is closed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        host: Host,
        *,
        patience: float,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        with_stderr: bool = False,
    ) -> None:
        self._host, self._patience = host, patience
        self._process = subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            start_new_session=True,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        os.set_blocking(self._stdin.fileno(), False)
        self._early, self._stderr = bytearray(), bytearray()
        self._read_lock = threading.Lock()
        self._open = {self._stdout.fileno(): 0, self._process.stderr.fileno(): 1}
        self._reader = threading.Thread(target=self._drain, name="fleet-stderr", daemon=True)
        if not with_stderr:
            self._reader.start()

    def _drain(self) -> None:
        assert self._process.stderr
        with self._process.stderr as pipe:
            while data := pipe.read(READ_BYTES):
                self._stderr += data
                del self._stderr[:-STDERR_BYTES]

    def send(self, data: bytes) -> None:
        """Blocks while the process takes nothing. What it writes meanwhile is taken in, so that one which writes
        before it reads on cannot make both wait for ever."""
        view = memoryview(data)
        moved = time.monotonic()
        try:
            while view:
                try:
                    view = view[os.write(self._stdin.fileno(), view) :]
                    moved = time.monotonic()
                except BlockingIOError:
                    if time.monotonic() - moved >= SEND_PATIENCE:
                        raise reads_nothing(self._host) from None
                    self._take_in()
        except (OSError, ValueError) as error:
            raise self._lost() from error

    def _take_in(self) -> None:
        """Wait until it takes something, or says something, which is kept."""
        poll = select.poll()
        poll.register(self._stdin, select.POLLOUT)
        mine = len(self._early) < EARLY_BYTES and self._read_lock.acquire(blocking=False)
        try:
            if mine:
                poll.register(self._stdout, select.POLLIN)
            if any(fd == self._stdout.fileno() for fd, _ in poll.poll(SLICE_SECONDS * 1000)):
                data = os.read(self._stdout.fileno(), READ_BYTES)
                self._early += data
                if not data:  # it says no more, and may yet listen
                    time.sleep(SLICE_SECONDS)
        finally:
            if mine:
                self._read_lock.release()

    def _lost(self) -> ConnectError:
        return ConnectError("the process has ended", host=self._host.name, kind="lost")

    def send_eof(self) -> None:
        self._stdin.close()

    def recv(self, timeout: float) -> bytes | None:
        with self._read_lock:
            if self._early:
                data = bytes(self._early)
                self._early.clear()
                return data
            try:
                poll = select.poll()
                poll.register(self._stdout, select.POLLIN)
                return os.read(self._stdout.fileno(), READ_BYTES) if poll.poll(timeout * 1000) else None
            except (OSError, ValueError):  # closed, by another thread
                return b""

    def recv_both(self, timeout: float) -> tuple[bytes, bytes] | None:
        with self._read_lock:
            said = [bytes(self._early), b""]
            self._early.clear()
            poll = select.poll()
            for fd in self._open:
                poll.register(fd, select.POLLIN)
            try:
                for fd, _ in poll.poll(timeout * 1000 if self._open and not said[0] else 0):
                    data = os.read(fd, READ_BYTES)
                    said[self._open[fd]] += data
                    if not data:
                        del self._open[fd]
            except OSError:
                self._open.clear()
            return (said[0], said[1]) if any(said) or not self._open else None

    def recv_stderr(self) -> bytes:
        if self._reader.is_alive() and self._process.poll() is not None:
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
            if ProcessChannel.wait(self, self._patience) is not None:
                break
            self._process.send_signal(signum)  # nothing where another thread has seen it end
        ProcessChannel.wait(self, 2.0)
        if self._reader.ident is not None:
            self._reader.join(min(self._patience, 0.5))
        with self._read_lock:  # a number that is free may be another channel's before a reader has looked at it
            self._open.clear()
            if self._reader.ident is None and self._process.stderr:
                self._process.stderr.close()
            self._stdout.close()


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
