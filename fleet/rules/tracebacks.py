"""Python tracebacks in what a rank wrote: where they are, and which are the same. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

HEADER = "Traceback (most recent call last):"
DIRECT_CAUSE = "The above exception was the direct cause"
_CHAINED = ("During handling of the above exception", DIRECT_CAUSE)
_PREFIX = re.compile(r"^\[rank\d+\]:\s?")  # torch puts it before each line of an uncaught exception
_SYNTAX = re.compile(r'  File ".+", line \d+')  # a script's own syntax error stands without a header
# of what ends without a traceback: a syntax error, a wrong argument, native code
_LAST_WORDS = re.compile(
    r"(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?::|$)|[\w./-]+: error: |"
    r"Fatal Python error: |\s*what\(\): |fleet: cannot start "
)
_LAUNCHERS = re.compile(
    r"torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError|"
    r"subprocess\.CalledProcessError: Command '\[.*python"
)
_FRAME = re.compile(r'^  File "(.+)", line \d+', re.MULTILINE)
_OWN = re.compile(r"0x[0-9a-f]+|\d+")


def is_header(line: str) -> bool:
    bare = _PREFIX.sub("", line)
    return bare.strip() == HEADER or _SYNTAX.fullmatch(bare) is not None


def plain(lines: Sequence[str]) -> list[str]:
    """Lines without what torch puts before them."""
    return [_PREFIX.sub("", line) for line in lines]


def split(lines: Sequence[str]) -> Iterator[tuple[bool, int, int]]:
    """(whether it is a traceback, first line, line behind the last) of all parts, in order. A traceback goes with those
    that it is chained to."""
    bare, at = plain(lines), 0
    headers = [i for i, line in enumerate(bare) if is_header(line)]
    while headers:
        first, end = headers[0], _end(bare, headers[0])
        headers = [i for i in headers if i >= end]
        while headers and any(line.startswith(_CHAINED) for line in bare[end : headers[0]]):
            end = _end(bare, headers[0])
            headers = [i for i in headers if i >= end]
        if first > at:
            yield False, at, first
        yield True, first, end
        at = end
    if at < len(lines):
        yield False, at, len(lines)


def _end(bare: Sequence[str], start: int) -> int:
    """The exception's line is the first behind the header that is not indented; its message may go on."""
    end = start + 1
    while end < len(bare) and bare[end].startswith((" ", "\t")):
        end += 1
    while end < len(bare) and bare[end].strip() and bare[end].strip() != HEADER:
        end += 1
    return end


def last_of(text: str, limit: int = 60) -> str | None:
    """The last traceback in the text with those it is chained to, at most its last `limit` lines; that of a launcher
    which started the script only where there is no other."""
    lines = text.splitlines()
    found = ["\n".join(plain(lines[first:end])[-limit:]) for is_trace, first, end in split(lines) if is_trace]
    own = [trace for trace in found if not _LAUNCHERS.match(exception_of(trace))]
    return next(reversed(own or found), None)


def launchers(trace: str) -> bool:
    """Whether it is of a launcher, of the script that it started."""
    return _LAUNCHERS.match(exception_of(trace)) is not None


def parts_of(trace: str) -> Iterator[tuple[str, str]]:
    """(an exception and the file that raised it, how the next one follows from it) of a traceback and those that it is
    chained to."""
    lines, at = trace.split("\n"), 0
    links = [i for i, line in enumerate(lines) if line.startswith(_CHAINED)]
    for end in [*links, len(lines)]:
        part = "\n".join(lines[at:end])
        file = next(reversed(_FRAME.findall(part)), "")
        link = next((word for word in _CHAINED if end < len(lines) and lines[end].startswith(word)), "")
        yield f"{exception_of(part)}\nraised in {file}", link
        at = end + 1


def identity(trace: str) -> str:
    """The same for the same failure on any rank: the places in the code, and the message without its numbers."""
    lines = plain(trace.strip().split("\n"))
    return "\n".join(line if line.startswith((" ", "\t")) else _OWN.sub("#", line) for line in lines)


def cause_in(text: str) -> str | None:
    """In a line, what a process that wrote this last died of: the exception of its traceback, else what looks like
    one."""
    trace = last_of(text)
    if trace is not None:
        return exception_of(trace).partition("\n")[0] or None
    told = [line.strip() for line in plain(text.splitlines()) if _LAST_WORDS.match(line)]
    return told[-1] if told else None


def exception_of(trace: str) -> str:
    """Its exception, without the way there: "ValueError: learning rate is negative"; "" where it was cut short."""
    lines = trace.split("\n")
    at = max((i + 1 for i, line in enumerate(lines) if is_header(line)), default=0)
    while at < len(lines) and lines[at].startswith((" ", "\t")):
        at += 1
    return "\n".join(lines[at:])
