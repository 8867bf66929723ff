"""What a program of fleet/remote says, as frames; see fleet/remote/wire.py for the wire."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fleet.errors import ConnectError

PREAMBLE = b"\0FLEET1\n"
HEADER = struct.Struct(">cII")
NOISE_LIMIT = 64 * 1024
# What a frame of each kind may hold: a node that announces more is broken, and must not fill this machine's memory.
FRAME_LIMITS = {"O": 1 << 20, "J": 16 << 20, "H": 1024, "X": 1024}
# JSON takes far more memory than its text
ITEM_LIMIT = 500_000


def _finite(text: str) -> float:
    """Neither NaN nor Infinity is JSON, and what they are compared with comes out wrong; 1e999 is one of them."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


@dataclass(frozen=True)
class Frame:
    """One frame from the node; see fleet/remote/wire.py for the kinds."""

    kind: str
    stream: int
    payload: bytes
    host: str | None = None

    def json(self) -> dict[str, Any]:
        """The payload of a J or X frame. ConnectError(kind="protocol") when it is no JSON object."""
        try:
            if sum(map(self.payload.count, b"[{,")) > ITEM_LIMIT:
                raise ValueError
            value = json.loads(self.payload, parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise Nonsense(f"{self.payload[:60]!r} where a JSON object belongs", self.host)
        return value


# what code that reads a node's JSON raises when something in it is not what it must be
MISFITS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class Nonsense(ConnectError):
    """A node that was reached and then said what no program of fleet says."""

    def __init__(self, what: str, host: str | None = None) -> None:
        super().__init__(
            f"the node does not keep to fleet's protocol: {what}",
            host=host,
            kind="protocol",
            hint="something else answers in place of fleet's program, or the node is broken",
        )


class Decoder:
    """Bytes as they come -> frames. host: for errors."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._buffer = bytearray()
        self.started = False

    @property
    def rest(self) -> bytes:
        """What came and is no frame (yet)."""
        return bytes(self._buffer)

    @property
    def noisy(self) -> bool:
        """More came than a chatty login shell says, and no program of fleet."""
        return not self.started and len(self._buffer) > NOISE_LIMIT

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. Nonsense for what no program sends."""
        buffer = self._buffer
        buffer += data
        if not self.started:
            at = buffer.find(PREAMBLE)
            if at < 0:
                return
            del buffer[: at + len(PREAMBLE)]
            self.started = True
        offset = 0
        while len(buffer) - offset >= HEADER.size:
            kind, stream, length = HEADER.unpack_from(buffer, offset)
            name = kind.decode("latin-1")
            if length > FRAME_LIMITS.get(name, -1):
                raise Nonsense(f"a frame of kind {name!r} with {length} bytes", self._host)
            end = offset + HEADER.size + length
            if len(buffer) < end:
                break
            frame = Frame(name, stream, bytes(buffer[offset + HEADER.size : end]), self._host)
            offset = end
            if frame.kind == "X":
                self._check_exit(frame)
            yield frame
        del buffer[:offset]

    def _check_exit(self, frame: Frame) -> None:
        status = frame.json().get("exit_status")
        if type(status) is not int or not 0 <= status <= 255:
            raise Nonsense(f"exit status {str(status)[:60]!r}", self._host)
