"""Parses a node program's output into frames; fleet/protocol/frames.py defines them."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from fleet.codec import Misfit, T, decode
from fleet.errors import ProtocolError
from fleet.protocol import frames

if TYPE_CHECKING:
    from typing_extensions import TypeForm

HEADER = struct.Struct(frames.HEADER)
BEAT = HEADER.pack(frames.HEARTBEAT, 0, 0)
NOISE_LIMIT = 64 * 1024
# JSON takes far more memory than its text
ITEM_LIMIT = 500_000
Exit = TypedDict("Exit", {"exit_status": Annotated[int, lambda status: 0 <= status <= 255]})


def _finite(text: str) -> float:
    """Returns the number. Raises ValueError for NaN and Infinity (1e999 is one), which are no JSON."""
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


@dataclass(frozen=True)
class Frame:
    """Holds one frame of a node. kind: one of fleet/protocol/frames.py."""

    kind: bytes
    stream: int
    payload: bytes
    host: str | None = None

    def json(self) -> dict[str, Any]:
        """Returns the JSON object in the payload. Raises ProtocolError if it is none."""
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
        """Returns the message in the payload. Raises ProtocolError if it is not of that kind."""
        return decoded(kind, self.json(), self.host)


def decoded(kind: TypeForm[T], value: Any, host: str | None) -> T:
    """Returns a node's value, parsed from JSON, as that kind. Raises ProtocolError if it is not of that kind."""
    try:
        return decode(kind, value)
    except Misfit as error:
        raise ProtocolError(str(error), host) from None


class Decoder:
    """Decodes received bytes to frames. host: for errors."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._buffer = bytearray()
        self.started = False

    @property
    def rest(self) -> bytes:
        """Returns the bytes that are not a complete frame yet."""
        return bytes(self._buffer)

    @property
    def between_frames(self) -> bool:
        """Returns whether the next byte begins a frame."""
        return self.started and not self._buffer

    @property
    def noisy(self) -> bool:
        """Returns whether more than NOISE_LIMIT bytes came, but no preamble. The startup files of a login shell print
        less."""
        return not self.started and len(self._buffer) > NOISE_LIMIT

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that are complete now. Raises ProtocolError for bytes that no program sends."""
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
            del buffer[:end]  # before the yield: a caller that stops here gets the rest from its next call
            if kind == frames.EXIT:
                frame.decode(Exit)
            yield frame


def after_preamble(recv: Callable[[], bytes | None]) -> Iterator[bytes]:
    """Yields a channel's output from the preamble to the end, without the noise of a login shell's startup files. recv:
    returns bytes, b"" at the end, None if nothing came yet."""
    noise, begun = b"", b""
    while (data := recv()) != b"":
        if not begun:
            noise, begun, data = (noise[-NOISE_LIMIT:] + (data or b"")).partition(frames.PREAMBLE)
        if data:
            yield data
