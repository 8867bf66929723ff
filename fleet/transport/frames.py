"""Takes a node program's output apart into frames; fleet/protocol/frames.py defines them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeVar

from fleet.codec import Misfit, decode
from fleet.errors import ProtocolError
from fleet.protocol import frames

if TYPE_CHECKING:
    from typing_extensions import TypeForm

T = TypeVar("T")
HEADER = struct.Struct(frames.HEADER)
BEAT = HEADER.pack(frames.HEARTBEAT, 0, 0)
NOISE_LIMIT = 64 * 1024
# JSON takes far more memory than its text
ITEM_LIMIT = 500_000
Exit = TypedDict("Exit", {"exit_status": Annotated[int, lambda status: 0 <= status <= 255]})


def _finite(text: str) -> float:
    """Neither NaN nor Infinity is JSON, and what they are compared with comes out wrong; 1e999 is one of them."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


@dataclass(frozen=True)
class Frame:
    """One frame from the node. kind: one of fleet/protocol/frames.py's."""

    kind: bytes
    stream: int
    payload: bytes
    host: str | None = None

    def json(self) -> dict[str, Any]:
        """The object that it holds. ProtocolError where that is no JSON object."""
        try:
            if sum(map(self.payload.count, b"[{,")) > ITEM_LIMIT:
                raise ValueError
            value = json.loads(self.payload, parse_float=_finite, parse_constant=_finite)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise ProtocolError(f"{self.payload[:60]!r} where a JSON object belongs", self.host)
        return value

    def decode(self, kind: TypeForm[T]) -> T:
        """The message that it holds. ProtocolError where it is no such message."""
        return decoded(kind, self.json(), self.host)


def decoded(kind: TypeForm[T], value: Any, host: str | None) -> T:
    """Returns a node's value as the kind that it must be. Raises ProtocolError where it is not. value: out of JSON."""
    try:
        return decode(kind, value)
    except Misfit as error:
        raise ProtocolError(str(error), host) from None


class Decoder:
    """Bytes as they come -> frames. host: for errors."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._buffer = bytearray()
        self.started = False

    @property
    def rest(self) -> bytes:
        """Returns what came and is no frame (yet)."""
        return bytes(self._buffer)

    @property
    def between_frames(self) -> bool:
        """Is true where what comes next begins a frame."""
        return self.started and not self._buffer

    @property
    def noisy(self) -> bool:
        """More came than a chatty login shell prints, and no program of fleet."""
        return not self.started and len(self._buffer) > NOISE_LIMIT

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are complete now. ProtocolError for what no program sends."""
        buffer = self._buffer
        buffer += data
        if not self.started:
            at = buffer.find(frames.PREAMBLE)
            if at < 0:
                return
            del buffer[: at + len(frames.PREAMBLE)]
            self.started = True
        while len(buffer) >= HEADER.size:
            kind, stream, length = HEADER.unpack_from(buffer)
            if length > frames.LIMITS.get(kind, -1):
                raise ProtocolError(f"a frame of kind {kind.decode('latin-1')!r} with {length} bytes", self._host)
            end = HEADER.size + length
            if len(buffer) < end:
                break
            frame = Frame(kind, stream, bytes(buffer[HEADER.size : end]), self._host)
            del buffer[:end]  # who stops here finds the rest with the next call
            if kind == frames.EXIT:
                frame.decode(Exit)
            yield frame


def behind_preamble(recv: Callable[[], bytes | None]) -> Iterator[bytes]:
    """Yields a channel's output, to its end, after what a login shell's startup files print first."""
    noise: bytes | None = b""
    while (data := recv()) != b"":
        if noise is not None:
            _, begun, rest = (noise + (data or b"")).partition(frames.PREAMBLE)
            data, noise = rest, None if begun else (noise + (data or b""))[-NOISE_LIMIT:]
        if data:
            yield data
