"""Shell lines on a host that may have no python3 yet."""

from __future__ import annotations

import contextlib
import time

from fleet.errors import ConnectError, DeadlineError, Interrupted, ProtocolError
from fleet.transport.base import POLL_SECONDS, Cancel, Completed, Session

OUTPUT_LIMIT = 64 << 20


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
                raise ProtocolError(f"output of more than {OUTPUT_LIMIT >> 20} MiB", session.host.name)
        status = channel.wait(max(0.1, deadline - time.monotonic()))
        if status is None:
            raise ConnectError("the connection was lost", host=session.host.name, kind="lost")
        return Completed(status, bytes(out), channel.recv_stderr())
    finally:
        channel.close()
