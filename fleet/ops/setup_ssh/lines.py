"""Adding lines to a text file that others own, and taking those away again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


def text(line: bytes) -> str:
    """Bytes of a file as str for the record; raw() gives them back whatever they were."""
    return line.decode("utf-8", "surrogateescape")


def raw(line: str) -> bytes:
    """The inverse of text()."""
    return line.encode("utf-8", "surrogateescape")


def append(data: bytes | None, lines: Sequence[bytes]) -> tuple[bytes | None, list[str]]:
    """(`data` with `lines` behind it, the lines for the record); a last line without newline is ended first."""
    if not lines:
        return data, []
    newline = b"\n" if data and not data.endswith(b"\n") else b""
    return (data or b"") + newline + b"".join(line + b"\n" for line in lines), [text(line) for line in lines]


def remove(data: bytes, lines: Iterable[str]) -> bytes:
    """`data` without these lines. Of equal ones the last goes: the others are older, and somebody else's."""
    unwanted = Counter(map(raw, lines))
    kept = []
    for line in reversed(split(data)):
        bare = line.rstrip(b"\n")
        if unwanted[bare]:
            unwanted[bare] -= 1
        else:
            kept.append(line)
    return b"".join(reversed(kept))


def split(data: bytes) -> list[bytes]:
    """Lines with their "\\n". bytes.splitlines would also split at a lone "\\r"."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines
