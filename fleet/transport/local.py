"""Runs processes of this machine: to their end, alongside, or as channels (such as an `ssh` to a host). The local
transport's channels are plain shells, as sshd would start them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from fleet.background import background
from fleet.best_effort import best_effort
from fleet.errors import ConnectError
from fleet.model import Host
from fleet.node.base.errors import on_failure
from fleet.transport.base import Cancel, ConnectOptions, Session, Unrouted
from fleet.transport.streams import STDERR_BYTES, Started, Streams

READ_BYTES = 1 << 16
SLICE_SECONDS = 0.2
END_SECONDS = 2.0  # how long to wait for the end of a killed process
MOST_BYTES = 64 << 20  # limit of the output of a command of this machine


def finish(
    argv: Sequence[str],
    stdin: bytes,
    seconds: float,
    cancel: Callable[[], bool] | None = None,
    env: Mapping[str, str] | None = None,
    *,
    most: int = MOST_BYTES,
) -> tuple[int | None, bytes, bytes]:
    """Runs a command of this machine. Returns (exit status, stdout, the first part of stderr).

    It kills the command and its process group after `seconds`, once `cancel` returns True, or when stdout has more than
    `most` bytes. The status is then None, and stdout has at most `most` + 1 bytes. It does not wait for a process that
    left the group and keeps stdout open. stdin is a file, so that the command can read /dev/stdin twice."""
    over, out = time.monotonic() + seconds, bytearray()

    def ends() -> bool:
        return len(out) > most or time.monotonic() >= over or (cancel is not None and cancel())

    with tempfile.TemporaryFile() as stdin_file, tempfile.TemporaryFile() as errors:
        stdin_file.write(stdin)
        stdin_file.seek(0)
        process = subprocess.Popen(
            argv, stdin=stdin_file, stdout=subprocess.PIPE, stderr=errors, env=env, start_new_session=True
        )
        assert process.stdout
        ended = True
        try:
            with process.stdout as pipe:
                poll = select.poll()
                poll.register(pipe, select.POLLIN)
                while not (ended := ends()):
                    is_over = process.poll() is not None and not _is_group(process.pid)
                    if poll.poll(0 if is_over else SLICE_SECONDS * 1000):  # 0: all output is there
                        received = os.read(pipe.fileno(), min(READ_BYTES, most + 1 - len(out)))
                        out += received
                        if not received:
                            break
                    elif is_over:
                        break
            while not (ended or has_ended(process, SLICE_SECONDS)):  # the command closed its stdout
                ended = ends()
        finally:
            if ended or process.poll() is None:
                with best_effort("end a command of this machine"), contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                has_ended(process, END_SECONDS)
        errors.seek(0)
        return (None if ended else process.returncode), bytes(out), errors.read(STDERR_BYTES)


def _is_group(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # the group is another user's
    return True


def has_ended(process: subprocess.Popen[bytes], seconds: float = 0.0) -> bool:
    """Returns True if a child has ended, or ends within so many seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.poll() is not None


def end(process: subprocess.Popen[bytes], itself: float, terminated: float) -> None:
    """Ends a child process. The process has `itself` seconds before SIGTERM, then `terminated` seconds before SIGKILL.
    Never raises."""
    for seconds, signum in ((itself, signal.SIGTERM), (terminated, signal.SIGKILL)):
        if not has_ended(process, seconds):
            process.send_signal(signum)  # sends nothing if another thread has reaped the process
    has_ended(process, END_SECONDS)


class ChildProcess:
    """Controls a process of this machine that runs alongside this one. stderr: the last part of its error output.
    reader: a future that is done when stderr has ended."""

    def __init__(
        self, argv: Sequence[str], name: str, *, pipes: int = subprocess.DEVNULL, env: Mapping[str, str] | None = None
    ) -> None:
        self.stderr = ""
        self.process = subprocess.Popen(
            argv, env=env, stdin=pipes, stdout=pipes, stderr=subprocess.PIPE, start_new_session=True
        )
        with on_failure(partial(end, self.process, 0.0, 1.0)):
            self.reader = background(name, self._read)

    def _read(self) -> None:
        assert self.process.stderr
        with self.process.stderr as pipe:
            for line in pipe:
                self.stderr = (self.stderr + line.decode("utf-8", "replace"))[-STDERR_BYTES:]
                self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        """Handles a line of its stderr."""


class ProcessChannel(Streams):
    """Runs a child process as a channel, in a session of its own. patience: seconds that the process has to end after
    its stdin is closed."""

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
        except ValueError:  # another thread has closed it
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
        # The end is checked before the poll, so that the poll sees all that the process wrote. The end of stderr is not
        # waited for: another process may keep it open.
        over = 0 not in self._open.values() and self._process.poll() is not None
        try:
            for fd, _ in self._poll(True).poll(timeout * 1000 if self._open and not over else 0):
                data = os.read(fd, READ_BYTES)
                received[self._open[fd]] += data
                if not data:
                    del self._open[fd]
        except OSError:
            self._open.clear()
        if over and not any(received):
            self._open.clear()
        return (received[0], received[1]) if any(received) or not self._open else None

    def wait(self, timeout: float) -> int | None:
        try:
            status = self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else 128 - status

    def close(self) -> None:
        """Closes stdin, which ends every fleet program. Terminates a process that runs on, then kills it."""
        if not self._stdin.closed:
            self._stdin.close()
        end(self._process, self._patience, self._patience)
        with self._reading:  # a reader must not poll a descriptor number that another channel may reuse
            self._open.clear()
            for pipe in self._outputs:
                pipe.close()


class LocalSession(Started[ProcessChannel]):
    """Starts channels on this machine, without a connection."""

    def _channel(self, command: str) -> ProcessChannel:
        return ProcessChannel(["/bin/sh", "-c", command], self.host, patience=2.0, cwd=Path.home())


class LocalTransport(Unrouted):
    """Runs all commands on this machine, whatever the host's name is. It is used on request only."""

    name = "local"

    def __init__(self, options: ConnectOptions | None = None, *, hosts: Iterable[Host] = ()) -> None:
        """Ignores the arguments: it connects to no host and uses no gateway."""

    def connect(self, host: Host, cancel: Cancel) -> Session:
        return LocalSession(host)
