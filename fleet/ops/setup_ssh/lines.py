"""Adding lines to a text file that others own, and taking exactly those away again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Added:
    """What fleet put into one file: enough to take it out again, byte for byte.

    lines: without their newline. newline: the last line that was there had none, fleet ended it.
    created: there was no such file.
    """

    lines: list[str] = field(default_factory=list)
    newline: bool = False
    created: bool = False

    def __bool__(self) -> bool:
        return bool(self.lines) or self.created

    def merge(self, later: Added) -> None:
        """Take in what a later run added to the same file."""
        self.lines += [line for line in later.lines if line not in self.lines]
        self.newline |= later.newline
        self.created |= later.created


def text(line: bytes) -> str:
    """Bytes of a file as str for the record; raw() gives them back whatever they were."""
    return line.decode("utf-8", "surrogateescape")


def raw(line: str) -> bytes:
    """The inverse of text()."""
    return line.encode("utf-8", "surrogateescape")


def append(data: bytes | None, lines: Sequence[bytes]) -> tuple[bytes | None, Added]:
    """`data` (None: no such file) with `lines` behind it; a last line without newline is ended first."""
    if not lines:
        return data, Added()
    before = data or b""
    newline = bool(before) and not before.endswith(b"\n")
    body = before + (b"\n" if newline else b"") + b"".join(line + b"\n" for line in lines)
    return body, Added([text(line) for line in lines], newline, data is None)


def remove(data: bytes | None, added: Added) -> bytes | None:
    """`data` without what append() added, everything else untouched; None when the file should go.

    Lines that are no longer there are nothing to do. Of equal lines the last one goes: the others are older.
    """
    if data is None:
        return None
    kept = split(data)
    at_end = False
    for line in map(raw, reversed(added.lines)):
        for i in range(len(kept) - 1, -1, -1):
            if kept[i].rstrip(b"\n") == line:
                at_end = i == len(kept) - 1
                del kept[i]
                break
    result = b"".join(kept)
    if added.newline and at_end and result.endswith(b"\n"):
        result = result[:-1]
    return None if added.created and not result else result


def without(data: bytes, unwanted: Iterable[int]) -> bytes:
    """`data` without the lines of these indexes (0 is the first)."""
    drop = set(unwanted)
    return b"".join(line for i, line in enumerate(split(data)) if i not in drop)


def split(data: bytes) -> list[bytes]:
    """Lines with their "\\n". bytes.splitlines would also split at a lone "\\r"."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines
