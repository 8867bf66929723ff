"""Runs the programs of fleet/remote on a host: a constant bootstrap, source and JSON in, frames back."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from fleet.errors import ConnectError, DeadlineError, FleetError, HostFailed, Interrupted
from fleet.model import Host
from fleet.transport.base import Cancel, Channel, Completed, Session

PREAMBLE = b"\0FLEET1\n"
HEADER = struct.Struct(">cII")
NOISE_LIMIT = 64 * 1024
# What a frame of each kind may hold: a node that announces more is broken, and must not fill this machine's memory.
FRAME_LIMITS = {"O": 16 << 20, "J": 256 << 20, "H": 1024, "X": 1024}
OUTPUT_LIMIT = 64 << 20
POLL_SECONDS = 0.5
PING_SECONDS = 2.0

# One text for every host, whatever its login shell: sh, csh and fish all read this the same way. The system's
# python3 comes first because it starts fastest; -I and -S keep the user's site-packages and PYTHON* out.
_BOOT = (
    "for p in /usr/bin/python3 python3 /usr/local/bin/python3 /usr/libexec/platform-python \"$@\"; do "
    "if command -v \"$p\" >/dev/null 2>&1; then exec \"$p\" -I -S -c "
    "\"import sys;f=sys.stdin.buffer;exec(f.read(int(f.readline())))\"; fi; done; "
    "echo fleet: no python3 >&2; exit 127"
)


def bootstrap(host: Host) -> str:
    """The command line that starts any remote program on this host."""
    extra = [host.python] if host.python and host.python.startswith("/") else []
    return " ".join(["exec sh -c", shlex.quote(_BOOT), "fleet", *map(shlex.quote, extra)])


@cache
def source(name: str) -> bytes:
    """The text of a remote program, with wire.py and common.py in front, and the parts its "# parts:" line names.

    A program that says "# only: wire" gets nothing but that: it is to start as fast as an interpreter can.
    """
    root = files("fleet") / "remote"
    text = (root / f"{name}.py").read_bytes()
    named = re.search(rb"^# (parts|only): (.+)$", text, re.MULTILINE)
    parts = ["wire", "common"] if named is None or named[1] == b"parts" else []
    parts += named[2].decode().split() if named else []
    return b"\n".join([*((root / f"{part}.py").read_bytes() for part in parts), text])


@dataclass(frozen=True)
class Frame:
    """One frame from the node; see fleet/remote/wire.py for the kinds."""

    kind: str
    stream: int
    payload: bytes

    def json(self) -> dict[str, Any]:
        """The payload of a J or X frame. ConnectError(kind="protocol") when it is no JSON object."""
        try:
            value = json.loads(self.payload)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise Nonsense(f"{self.payload[:60]!r} where a JSON object belongs")
        return value


# what code that reads a node's JSON raises when something in it is not what it must be
MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Nonsense(ConnectError):
    """A node that was reached and then said what no program of fleet says."""

    def __init__(self, what: str, host: str | None = None) -> None:
        super().__init__(f"the node does not keep to fleet's protocol: {what}", host=host, kind="protocol",
                         hint="something else answers in place of fleet's program, or the node is broken")


class Program:
    """A running remote program. Use as a context manager; leaving it ends the program on the node."""

    def __init__(self, session: Session, name: str, spec: Mapping[str, Any]) -> None:
        self.host = session.host
        self.name = name
        self._deaf = False
        self._sending = threading.Lock()
        self._channel: Channel = session.start(bootstrap(session.host))
        text = source(name)
        self._send_raw(b"%d\n" % len(text) + text + json.dumps(spec).encode() + b"\n")

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one control line, a JSON object with "op". From any thread, as send_bytes: each goes out whole."""
        self._send_raw(json.dumps(message).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        """Send raw bytes behind the spec, for programs that read a payload."""
        self._send_raw(data)

    def ping(self) -> None:
        """Let the program know that we live; what is being sent just now tells it as well."""
        if self._sending.acquire(blocking=False):
            try:
                self._transmit(b'{"op": "ping"}\n')
            finally:
                self._sending.release()

    def send_eof(self) -> None:
        self._channel.send_eof()

    def _send_raw(self, data: bytes) -> None:
        with self._sending:
            self._transmit(data)

    def _transmit(self, data: bytes) -> None:
        # The node may have ended already (no python3): then reading tells why, better than this does.
        # What could not be sent once is not tried again: a ping must not wait for a node that reads nothing.
        try:
            if not self._deaf:
                self._channel.send(data)
        except ConnectError:
            self._deaf = True

    def frames(
        self, *, silence: float | None = None, deadline: float | None = None, cancel: Cancel | None = None
    ) -> Iterator[Frame]:
        """Frames as they come, up to and including X; heartbeats are swallowed.

        silence: seconds without any byte after which the host counts as lost. deadline: a time.monotonic()
        value. Raises ConnectError (lost, no-python, protocol), DeadlineError, Interrupted.
        """
        buffer = bytearray()
        started = False
        heard = pinged = time.monotonic()
        while True:
            data = self._channel.recv(POLL_SECONDS)
            now = time.monotonic()
            if cancel is not None and cancel.is_set():
                raise Interrupted("interrupted", host=self.host.name)
            if deadline is not None and now >= deadline:
                raise DeadlineError("ran out of its time", host=self.host.name)
            if now - pinged >= PING_SECONDS:
                pinged = now
                self.ping()
            if data is None:
                if silence is not None and now - heard >= silence:
                    raise ConnectError(
                        f"silent for {silence:g} s", host=self.host.name, kind="lost",
                        hint="the host hangs, or the link to it is cut",
                    )
                continue
            heard = now
            if data == b"":
                raise self._ended(bytes(buffer), started)
            buffer += data
            if not started:
                at = buffer.find(PREAMBLE)
                if at < 0:
                    if len(buffer) > NOISE_LIMIT:
                        raise self._ended(bytes(buffer), started)
                    continue
                del buffer[: at + len(PREAMBLE)]
                started = True
            offset = 0
            while len(buffer) - offset >= HEADER.size:
                kind, stream, length = HEADER.unpack_from(buffer, offset)
                name = kind.decode("latin-1")
                if length > FRAME_LIMITS.get(name, -1):
                    raise Nonsense(f"a frame of kind {name!r} with {length} bytes", self.host.name)
                end = offset + HEADER.size + length
                if len(buffer) < end:
                    break
                frame = Frame(name, stream, bytes(buffer[offset + HEADER.size : end]))
                offset = end
                if frame.kind == "X":
                    self._check_exit(frame)
                if frame.kind != "H":
                    yield frame
                if frame.kind == "X":
                    return
            del buffer[:offset]

    def _check_exit(self, frame: Frame) -> None:
        status = frame.json().get("exit_status")
        if type(status) is not int or not 0 <= status <= 255:
            raise Nonsense(f"exit status {str(status)[:60]!r}", self.host.name)

    def _ended(self, rest: bytes, started: bool) -> FleetError:
        """Why the stream ended before its X frame."""
        status = self._channel.wait(2.0)
        said = self._channel.recv_stderr().decode("utf-8", "replace").strip()
        name = self.host.name
        if status == 127 and not started:
            return ConnectError(
                "no python3 on the node", host=name, kind="no-python",
                hint="install python3 (3.6 or newer) there, or set 'python' in the inventory",
            )
        if status is None:
            return ConnectError("the connection was lost", host=name, kind="lost",
                                hint="the host went down, or its sshd was stopped")
        if not started:
            text = said or rest.decode("utf-8", "replace").strip() or f"exit status {status}"
            return ConnectError(
                f"the login shell did not start fleet's program: {text[-300:]!r}", host=name, kind="protocol",
                hint="try 'ssh HOST true': a forced command, a restricted shell or a broken rc file",
            )
        last = said.splitlines()[-1] if said else f"exit status {status}"
        return HostFailed(f"fleet's program '{self.name}' failed there: {last[-300:]}", host=name)


def call(
    session: Session,
    name: str,
    spec: Mapping[str, Any],
    *,
    timeout: float | None = None,
    silence: float | None = 15.0,
    cancel: Cancel | None = None,
) -> dict[str, Any]:
    """Run a remote program to its end, return its last JSON frame ({} when it sent none)."""
    deadline = None if timeout is None else time.monotonic() + timeout
    answer: dict[str, Any] = {}
    with Program(session, name, spec) as program:
        for frame in program.frames(silence=silence, deadline=deadline, cancel=cancel):
            if frame.kind == "J":
                answer = frame.json()
    return answer


def run_line(
    session: Session, command: str, stdin: bytes = b"", *, timeout: float = 60.0, cancel: Cancel | None = None
) -> Completed:
    """Run a constant (or shlex-quoted) shell line to its end; for nodes that have no python yet."""
    deadline = time.monotonic() + timeout
    channel = session.start(command)
    out = bytearray()
    try:
        if stdin:
            # it may have ended already (a nologin shell): then reading tells why, better than this does
            with contextlib.suppress(ConnectError):
                channel.send(stdin)
        channel.send_eof()
        while True:
            if cancel is not None and cancel.is_set():
                raise Interrupted("interrupted", host=session.host.name)
            left = deadline - time.monotonic()
            if left <= 0:
                raise DeadlineError(f"no answer within {timeout:g} s", host=session.host.name)
            data = channel.recv(min(left, POLL_SECONDS))
            if data == b"":
                break
            out += data or b""
            if len(out) > OUTPUT_LIMIT:
                raise Nonsense(f"output of more than {OUTPUT_LIMIT >> 20} MiB", session.host.name)
        status = channel.wait(max(0.1, deadline - time.monotonic()))
        if status is None:
            raise ConnectError("the connection was lost", host=session.host.name, kind="lost")
        return Completed(status, bytes(out), channel.recv_stderr())
    finally:
        channel.close()
