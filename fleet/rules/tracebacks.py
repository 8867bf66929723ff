"""Finds Python tracebacks in the output of a rank, takes them apart, and recognizes equal ones. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

HEADER = "Traceback (most recent call last):"
DIRECT_CAUSE = "The above exception was the direct cause"
CHAINED = ("During handling of the above exception", DIRECT_CAUSE)
_PREFIX = re.compile(r"^\[rank\d+\]:\s?")  # torch puts it before each line of an uncaught exception
_SYNTAX = re.compile(r'  File ".+", line \d+')  # a script's own syntax error has no header
_FRAME = re.compile(r'\s*File "(.+)", line \d+(?:, in (.+))?')
_INSIDE = re.compile(r'^\s*File "(.+)", line \d+', re.MULTILINE)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")
_NESTED = "Traceback (most recent call last)"  # in an exception's message: the traceback of a worker or another rank
_GLUED = re.compile(rf"(?<=\])((?:\[rank\d+\]: ?)?{re.escape(HEADER)})$", re.MULTILINE)
_OWN = re.compile(r"0x[0-9a-f]+|\d+")


def is_header(line: str) -> bool:
    bare = _PREFIX.sub("", line)
    return bare.strip() == HEADER or _SYNTAX.fullmatch(bare) is not None


def plain(lines: Sequence[str]) -> list[str]:
    """Returns lines without the prefix that torch adds."""
    return [_PREFIX.sub("", line) for line in lines]


def states(text: str) -> list[str]:
    """Returns the lines of a text. Of a line that a progress bar rewrote, it returns the last state. If a traceback
    begins on the line of a progress bar, it begins a line of its own."""
    whole = _GLUED.sub(r"\n\1", text.replace("\0", ""))
    return [line.rstrip("\r").rpartition("\r")[2] for line in whole.split("\n")]


def split(lines: Sequence[str]) -> Iterator[tuple[bool, int, int]]:
    """Yields (whether the part is a traceback, its first line, the line after its last) for all parts, in order.
    Chained tracebacks are one part."""
    bare, at = plain(lines), 0
    headers = [i for i, line in enumerate(bare) if is_header(line)]
    while headers:
        first, end = _begin(bare, headers[0], at), _end(bare, headers[0])
        headers = [i for i in headers if i >= end]
        while headers and any(line.startswith(CHAINED) for line in bare[end : headers[0]]):
            end = _end(bare, headers[0])
            headers = [i for i in headers if i >= end]
        if first > at:
            yield False, at, first
        yield True, first, end
        at = end
    if at < len(lines):
        yield False, at, len(lines)


def _begin(bare: Sequence[str], start: int, least: int) -> int:
    """Returns the first line of a traceback at `start`. An exception that was never raised has no traceback, and is
    above the one that it caused."""
    while start - least >= 4 and bare[start - 2].startswith(CHAINED) and _EXCEPTION.match(bare[start - 4]):
        start -= 4
    return start


def _end(bare: Sequence[str], start: int) -> int:
    """Returns the line after a traceback at `start`. The first line without indentation is the exception; its message
    may go on."""
    end = start + 1
    while end < len(bare) and bare[end].startswith((" ", "\t")):
        end += 1
    while end < len(bare) and bare[end].strip() and bare[end].strip() != HEADER:
        end += 1
    return end


@dataclass(frozen=True)
class Part:
    """Holds one traceback of a chain. exception: its text. frames: (file, function or None) of each frame, the
    outermost first. line: the code of the innermost frame. file: the file that raised the exception; the worker's file,
    if the message has a worker's traceback. link: the phrase of CHAINED between this traceback and the next one."""

    exception: str
    frames: Sequence[tuple[str, str | None]]
    line: str
    file: str
    link: str

    @property
    def at(self) -> int:
        """Returns the line of the exception's text that shows the error. If the text has other tracebacks, the error is
        in the last of them."""
        lines = self.exception.split("\n")
        nested = max((n for n, line in enumerate(lines) if _NESTED in line), default=-1)
        after = (n for n, line in enumerate(lines) if n > nested and line.strip() and not line.startswith("  "))
        return next(after, 0)

    @property
    def root(self) -> str:
        """Returns the error in one line."""
        line, *more = [it.strip() for it in self.exception.split("\n")[self.at :]]
        return f"{line} {more[0]}" if line.endswith(":") and more and more[0] else line

    def translates(self, handled: Part) -> bool:
        """Returns whether this exception was raised by the code that handled the exception `handled`."""
        by_hand = re.search(r"\braise\b", self.line) is not None
        return handled.link == DIRECT_CAUSE or (by_hand and self.frames[-1:] == handled.frames[:1])


def parts_of(trace: str) -> list[Part]:
    """Returns the tracebacks of a chain, in the order in which they were raised."""
    lines, at, parts = trace.split("\n"), 0, list[Part]()
    links = [i for i, line in enumerate(lines) if line.startswith(CHAINED)]
    for end in [*links, len(lines)]:
        part = "\n".join(lines[at:end]).rstrip()
        exception = exception_of(part)
        above = part[: len(part) - len(exception)].split("\n")
        frames = [(found[1], found[2]) for line in above if (found := _FRAME.match(line))]
        code = [line for line in above if line.strip(" ^~") and not _FRAME.match(line)]
        file = next(reversed(_INSIDE.findall(part)), "")
        link = next((phrase for phrase in CHAINED if end < len(lines) and lines[end].startswith(phrase)), "")
        parts.append(Part(exception, frames, code[-1] if code else "", file, link))
        at = end + 1
    return parts


def identity(trace: str) -> str:
    """Returns a text that is equal for the same failure on any rank: the places in the code, and the message without
    numbers."""
    lines = plain(trace.strip().split("\n"))
    return "\n".join(line if line.startswith((" ", "\t")) else _OWN.sub("#", line) for line in lines)


def exception_of(trace: str) -> str:
    """Returns the exception of a traceback, without the frames: "ValueError: learning rate is negative"; "" if the
    traceback was cut short."""
    lines = trace.split("\n")
    at = max((i + 1 for i, line in enumerate(lines) if is_header(line)), default=0)
    while at < len(lines) and lines[at].startswith((" ", "\t")):
        at += 1
    return "\n".join(lines[at:])
