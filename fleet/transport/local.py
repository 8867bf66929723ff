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
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from fleet.background import background, thread_limit
from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions, Near, Session
from fleet.transport.streams import STDERR_BYTES, Started, Streams

READ_BYTES = 1 << 16
SLICE_SECONDS = 0.2
MOST_BYTES = 64 << 20  # that a command of this machine prints


def finish(
    argv: Sequence[str],
    stdin: bytes,
    seconds: float,
    cancel: Cancel | None = None,
    env: Mapping[str, str] | None = None,
    *,
    most: int = MOST_BYTES,
) -> tuple[int | None, bytes, bytes]:
    """Run a command of this machine to its end: (exit status, stdout, the first of stderr). The status is None where it
    had to be ended, with all that it started, after so many seconds. So it is, at once, where `cancel` is set, or where
    its stdout has more than `most` bytes, of which one more is returned. stdin: a file, for who reads /dev/stdin
    twice."""
    ended = threading.Event()
    with tempfile.TemporaryFile() as stdin_file, tempfile.TemporaryFile() as errors:
        stdin_file.write(stdin)
        stdin_file.seek(0)
        process = subprocess.Popen(
            argv, stdin=stdin_file, stdout=subprocess.PIPE, stderr=errors, env=env, start_new_session=True
        )

        def kill() -> None:
            ended.set()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        undo, timer = (cancel or Cancel()).on_set(kill), threading.Timer(seconds, kill)
        try:
            with process:
                assert process.stdout
                with thread_limit():
                    timer.start()
                out = process.stdout.read(most + 1)
                if len(out) > most:
                    kill()
        finally:
            timer.cancel()
            undo()
        errors.seek(0)
        return (None if ended.is_set() else process.returncode), out, errors.read(STDERR_BYTES)


def has_ended(process: subprocess.Popen[bytes], seconds: float = 0.0) -> bool:
    """Returns whether a child is over, or is within so many seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None


def end(process: subprocess.Popen[bytes], itself: float, terminated: float) -> None:
    """Ends a child that has so many seconds to go by itself, and then upon SIGTERM; never raises."""
    for seconds, signum in ((itself, signal.SIGTERM), (terminated, signal.SIGKILL)):
        if not has_ended(process, seconds):
            process.send_signal(signum)  # nothing where another thread has seen it end
    has_ended(process, 2.0)


class Helper:
    """A process of this machine that works for this one until it is ended. said: what it wrote to stderr so far, of
    much the end. reader: is done when it writes no more."""

    def __init__(
        self, argv: Sequence[str], name: str, *, pipes: int = subprocess.DEVNULL, env: Mapping[str, str] | None = None
    ) -> None:
        self.said = ""
        self.process = subprocess.Popen(
            argv, env=env, stdin=pipes, stdout=pipes, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            self.reader = background(name, self._read)
        except BaseException:
            end(self.process, 0.0, 1.0)
            assert self.process.stderr
            self.process.stderr.close()
            raise

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr as pipe:
            for line in pipe:
                self.said = (self.said + line.decode("utf-8", "replace"))[-STDERR_BYTES:]
                self._hear(line)

    def _hear(self, line: bytes) -> None:
        """Receives each line that it writes to stderr."""


class ProcessChannel(Streams):
    """A child process of this one, in a session of its own.

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
    ) -> None:
        super().__init__(host)
        self._patience = patience
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
        self._stdin, self._outputs = self._process.stdin, (self._process.stdout, self._process.stderr)
        os.set_blocking(self._stdin.fileno(), False)
        self._open = {pipe.fileno(): number for number, pipe in enumerate(self._outputs)}

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._stdin.fileno(), data)
        except BlockingIOError:
            return 0
        except (OSError, ValueError) as error:
            raise self._lost() from error

    def _pause(self, reading: bool) -> None:
        poll = self._poll(reading)
        try:
            poll.register(self._stdin, select.POLLOUT)
        except ValueError:  # closed, by another thread
            raise self._lost() from None
        poll.poll(SLICE_SECONDS * 1000)

    def _poll(self, reading: bool) -> select.poll:
        poll = select.poll()
        for fd in self._open if reading else ():
            poll.register(fd, select.POLLIN)
        return poll

    def _lost(self) -> ConnectError:
        return ConnectError("the process has ended", host=self._host.name, kind="lost")

    def send_eof(self) -> None:
        self._stdin.close()

    def _read(self, timeout: float) -> tuple[bytes, bytes] | None:
        received = [b"", b""]
        try:
            for fd, _ in self._poll(True).poll(timeout * 1000 if self._open else 0):
                data = os.read(fd, READ_BYTES)
                received[self._open[fd]] += data
                if not data:
                    del self._open[fd]
        except OSError:
            self._open.clear()
        if not any(received) and 0 not in self._open.values() and self._process.poll() is not None:
            self._open.clear()  # what it has left running may hold its stderr open
        return (received[0], received[1]) if any(received) or not self._open else None

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
        end(self._process, self._patience, self._patience)
        with self._reading:  # a number that is free may be another channel's before a reader has looked at it
            self._open.clear()
            for pipe in self._outputs:
                pipe.close()


class LocalSession(Started[ProcessChannel]):
    """A "connection" to this machine."""

    def _channel(self, command: str) -> ProcessChannel:
        return ProcessChannel(["/bin/sh", "-c", command], self.host, patience=2.0, cwd=Path.home())


class LocalTransport(Near):
    """Runs everything here, whatever the host's name is. Only used where the user requested it."""

    name = "local"

    def __init__(self, options: ConnectOptions | None = None, *, hosts: Iterable[Host] = ()) -> None:
        """Nothing to connect to, and no gateways."""

    def connect(self, host: Host, cancel: Cancel) -> Session:
        return LocalSession(host)
