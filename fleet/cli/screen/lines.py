"""Splits the output of ranks into lines and writes them, and holds back tracebacks.

Tracebacks of ranks are held back for a moment, and each is shown once, however many ranks wrote it. The summary shows
tracebacks that end the run. Tracebacks that end an attempt are shown before the next attempt."""

from __future__ import annotations

import sys
from bisect import bisect
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import TextIO

import click

from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean_output, fold
from fleet.events import Event, Name, Notice, Output
from fleet.node.gang.ends import ranks_text
from fleet.rules.tracebacks import identity, is_header, split

LINE_LIMIT = 64 << 10
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta", "bright_blue")

FOLD_SECONDS, MOST_FOLDED = 0.2, 2000  # how long a line is held back to be folded; how many lines at most
HOLD_SECONDS = 3.0  # how long a traceback is held back: a rank that failed has mostly ended by then
REPEAT_SECONDS = 30.0  # after that time an equal traceback is shown again
MAX_LINES = 5000  # of one rank's stderr that are held back

Stream = tuple[str, int]  # host, rank
Key = tuple[str, int | None, Name]


class Lines:
    """Splits one stream of a rank into whole lines. rest: the unfinished line. live: the last state of that line, if a
    progress bar rewrote it by `\\r`. shown_at: the time when `live` was last printed."""

    def __init__(self) -> None:
        self.rest = b""
        self.live = b""
        self.shown_at = 0.0

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the lines that are complete now. Of a line that a progress bar rewrote, it returns the last state."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > LINE_LIMIT and b"\r" not in self.rest[-LINE_LIMIT:]:
            lines, self.rest = [*lines, self.rest], b""
        self.rest = self.rest[-LINE_LIMIT:]
        if b"\r" in self.rest:
            self.live = last_state(self.rest)
        elif lines:
            self.live = b""
        return [last_state(line) for line in lines]


class Streams:
    """Holds the lines of each stream (host, rank, name), and the order of hosts. names: the first hosts in that
    order."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._places = {name: place for place, name in enumerate(names)}
        self.all: dict[Key, Lines] = {}
        self._last: tuple[Output, bytes] | None = None  # the last output, and the unfinished line before it

    def tint(self, host: str) -> int:
        """Returns the number that selects a host's colour."""
        return self._places.setdefault(host, len(self._places))

    def feed(self, event: Output) -> list[bytes]:
        """Returns the lines that are complete now."""
        lines = self._of(event)
        self._last = event, lines.rest
        return lines.feed(event.data)

    def _of(self, event: Output) -> Lines:
        return self.all.setdefault((event.host, event.rank, event.stream), Lines())

    def unfinished(self, event: Event | None) -> list[Output]:
        """Returns the unfinished lines of all streams, unchanged. event: an event that the caller shows once more. If
        it was the last output, the returned lines do not include its data."""
        if self._last is not None and self._last[0] is event:
            self._of(self._last[0]).rest = self._last[1]
        return [Output(host, name, of.rest, rank) for (host, rank, name), of in self.all.items() if of.rest]


def flush_unfinished(streams: Mapping[Key, Lines]) -> Iterator[tuple[str, int | None, Name, bytes]]:
    """Yields the unfinished lines, and clears them: host, rank, stream, and what a terminal would show of the line."""
    for (host, rank, stream), lines in streams.items():
        if lines.rest:
            rest, lines.rest = lines.rest, b""
            yield host, rank, stream, last_state(rest)


def last_state(line: bytes) -> bytes:
    """Returns what a terminal would show of a line with carriage returns in it."""
    states = [part for part in line.split(b"\r") if part.strip()]
    return states[-1] if states else b""


def label(host: str, rank: int | None, tint: int | None, out: TextIO) -> str:
    """Returns "[gpu01:0] ", in the colour of its host if `out` shows colours. tint: see Streams.tint(); None for
    several hosts."""
    text = f"[{host}]" if rank is None else f"[{host}:{rank}]"
    return (
        f"{click.style(text, fg=COLOURS[tint % len(COLOURS)]) if tint is not None and terminal.colored(out) else text} "
    )


def for_output(out: TextIO, text: bytes) -> bytes:
    """Returns a node's output for `out`: unchanged, or cleaned if that is a terminal."""
    if not terminal.interactive(out):
        return text
    return clean_output(text.decode("utf-8", "replace"), terminal.colored(out)).encode()


def write_line(lead: str, line: bytes, out: TextIO) -> None:
    """Writes a line of a node; unchanged unless `out` is a terminal. lead: the text before it."""
    out.buffer.write(lead.encode() + for_output(out, line) + b"\n")
    out.buffer.flush()


def show_bare(event: Event) -> None:
    """Shows an event after a fault in the code that shows it otherwise. Only ASCII is written, which cannot control a
    terminal."""
    if isinstance(event, Output):
        out = sys.stdout if event.stream == "stdout" else sys.stderr
        out.writelines(f"[{event.host}:{event.rank}] {ascii(line)[2:-1]}\n" for line in event.data.splitlines())
        out.flush()
    elif isinstance(event, Notice):
        sys.stderr.write(f"{event.level}: {ascii(str(event.message))[1:-1]}\n")


@dataclass
class _Held:
    """A line that is held back. number: its place in the order. since: the time when it arrived. ranks: the ranks that
    wrote it."""

    number: int
    since: float
    stream: Name
    line: bytes
    ranks: list[Stream] = field(default_factory=list)


class Folding:
    """Holds complete lines back for FOLD_SECONDS. A line that several ranks write in that time is shown once. The lines
    of each rank stay in order."""

    def __init__(self) -> None:
        self._held: deque[_Held] = deque()  # in order: their numbers have no gap
        self._same: dict[tuple[Name, bytes], deque[int]] = {}  # (stream, line) -> numbers of the equal held lines
        self._last: dict[Stream, int] = {}  # the number of each rank's last line
        self._count = 0

    def feed(self, rank: Stream, stream: Name, line: bytes, now: float) -> None:
        """Adds a line. It joins the first equal line that is held and comes after the last line of its rank."""
        same = self._same.setdefault((stream, line), deque())
        place = bisect(same, self._last.get(rank, 0))
        if place == len(same):
            self._count += 1
            self._held.append(_Held(self._count, now, stream, line))
            same.append(self._count)
        self._held[same[place] - self._held[0].number].ranks.append(rank)
        self._last[rank] = same[place]

    def due(self, now: float, everything: bool = False) -> Iterator[tuple[Name, bytes, list[Stream]]]:
        """Yields the lines to show now: (stream, line, the ranks that wrote it). Each stays held until the caller
        requests the next one, so that a line that could not be shown is not lost."""
        while self.ready(now, everything):
            it = self._held[0]
            yield it.stream, it.line, it.ranks
            self._held.popleft()
            same = self._same[it.stream, it.line]
            same.popleft()  # the numbers of equal lines are in order, so the first one is this line's
            if not same:
                del self._same[it.stream, it.line]

    @property
    def full(self) -> bool:
        """Returns whether too many lines are held."""
        return len(self._held) > MOST_FOLDED

    def ready(self, now: float, everything: bool = False) -> bool:
        """Returns whether a line is due, so that due() yields it."""
        return bool(self._held) and (everything or self.full or self.left(now) <= 0)

    def left(self, now: float) -> float:
        """Returns the seconds until a line is due; infinity if none is held."""
        return self._held[0].since + FOLD_SECONDS - now if self._held else inf


class Tracebacks:
    """Holds back the ranks' stderr from the header of a traceback on, until it is due. stopping: the run is being
    stopped."""

    def __init__(self) -> None:
        self.stopping = False
        self._held: dict[Stream, tuple[float, list[bytes]]] = {}  # rank -> (since when, its lines)
        self._shown: dict[str, float] = {}  # identity of a traceback -> when it was last shown
        self._ended: dict[str, tuple[Stream, list[bytes]]] = {}  # shown by the summary, or before the next attempt

    def feed(self, stream: Stream, lines: list[bytes], now: float) -> list[bytes]:
        """Returns the lines to show at once."""
        if stream in self._held:
            self._held[stream][1].extend(lines)
            return []
        at = next((i for i, line in enumerate(lines) if is_header(_text(line))), len(lines))
        if at < len(lines):
            self._held[stream] = now, lines[at:]
        return lines[:at]

    def due(self, now: float, everything: bool = False) -> tuple[list[tuple[Stream, bytes]], list[list[Stream]]]:
        """Returns (lines to show now, a list of ranks for each traceback that was shown already)."""
        lines: list[tuple[Stream, bytes]] = []
        repeated: dict[str, list[Stream]] = {}
        ready = [
            stream
            for stream, (since, held) in self._held.items()
            if everything or now - since >= HOLD_SECONDS or len(held) > MAX_LINES
        ]
        for stream in ready:
            held = self._held.pop(stream)[1]
            for is_trace, first, end in split([_text(line) for line in held]):
                part = held[first:end]
                if is_trace:
                    same = identity(_text(b"\n".join(part)))
                    if self.stopping:
                        self._ended.setdefault(same, (stream, part))
                        continue
                    if now - self._shown.get(same, -REPEAT_SECONDS) < REPEAT_SECONDS:
                        repeated.setdefault(same, []).append(stream)
                        continue
                    self._shown[same] = now
                lines += [(stream, line) for line in part]
        return lines, list(repeated.values())

    def restarts(self) -> None:
        """Makes all held lines due, before the next attempt begins: this attempt has no summary."""
        self.stopping = False
        for stream, part in self._ended.values():
            since, held = self._held.get(stream, (-HOLD_SECONDS, []))
            self._held[stream] = since, part + held
        self._ended.clear()

    def waits(self) -> bool:
        return bool(self._held)

    def was_shown(self, trace: str | None) -> bool:
        return trace is not None and identity(trace) in self._shown


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace").rstrip("\r")


def who(ranks: Iterable[int], hosts: Iterable[str]) -> str:
    """Returns ranks for people: "ranks 0-30 on gpu[1-4]"."""
    ranks = list(ranks)
    listed = fold(map(str, ranks)).strip("[]")
    return f"rank{'s' * (len(ranks) > 1)} {listed} on {fold(hosts)}"


def write_folded(ranks: Sequence[Stream], line: bytes, out: TextIO, tint: Callable[[str], int]) -> None:
    """Writes a line of one rank, or one line for several ranks. tint: host -> the number that selects its colour."""
    hosts = {host for host, _ in ranks}
    who, number = (ranks_text(rank for _, rank in ranks), None) if len(ranks) > 1 else ranks[0]
    write_line(label(who, number, tint(ranks[0][0]) if len(hosts) == 1 else None, out), line, out)
