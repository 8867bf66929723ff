"""The lines of ranks: taken apart and written; tracebacks among them held back.

Tracebacks of ranks are held back for a moment: those that end the run are shown once, by its summary; of others, and
of those that end an attempt, each is shown once, whatever number of ranks it came from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

import click

from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean_output, fold
from fleet.rules.tracebacks import identity, is_header, split

LINE_LIMIT = 64 << 10
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta", "bright_blue")

HOLD_SECONDS = 3.0  # in which a rank that failed has ended, mostly
ANEW_SECONDS = 30.0  # after which an equal one is news
MAX_LINES = 5000

Stream = tuple[str, int]  # host, rank


class Lines:
    """Splits one stream of a rank into whole lines; what follows the last `\\r` is its live state."""

    def __init__(self) -> None:
        self.rest = b""
        self.live = b""
        self.shown_at = 0.0

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are whole now. A line that a progress bar rewrote counts in its last state."""
        *lines, self.rest = (self.rest + data).split(b"\n")
        if len(self.rest) > LINE_LIMIT and b"\r" not in self.rest[-LINE_LIMIT:]:
            lines, self.rest = [*lines, self.rest], b""
        self.rest = self.rest[-LINE_LIMIT:]
        if b"\r" in self.rest:
            self.live = last_state(self.rest)
        elif lines:
            self.live = b""
        return [last_state(line) for line in lines]


def last_state(line: bytes) -> bytes:
    """Returns what a terminal would show of a line with carriage returns in it."""
    states = [part for part in line.split(b"\r") if part.strip()]
    return states[-1] if states else b""


def label(who: str, tint: int, out: TextIO) -> str:
    """ "[gpu01:0]", in the colour of its host where `out` shows colours."""
    text = f"[{who}]"
    return click.style(text, fg=COLOURS[tint % len(COLOURS)]) if terminal.colored(out) else text


def on(out: TextIO, text: bytes) -> bytes:
    """Returns a node's output as `out` is to have it: byte for byte where that is no terminal."""
    if not terminal.interactive(out):
        return text
    return clean_output(text.decode("utf-8", "replace"), terminal.colored(out)).encode()


def write_line(who: str, line: bytes, out: TextIO, tint: int = 0) -> None:
    """A line of a rank, byte for byte where `out` is no terminal. who: what is put before it. tint: its colour's
    number."""
    out.buffer.write((f"{label(who, tint, out)} ".encode() if who else b"") + on(out, line) + b"\n")
    out.buffer.flush()


class Tracebacks:
    """Holds back what ranks write to stderr, from the head of a traceback on, until it is due. stopping: the run stops
    by now."""

    def __init__(self) -> None:
        self.stopping = False
        self._held: dict[Stream, tuple[float, list[bytes]]] = {}
        self._shown: dict[str, float] = {}
        self._ended: dict[str, tuple[Stream, list[bytes]]] = {}  # what the summary shows, or else the next attempt

    def feed(self, stream: Stream, lines: list[bytes], now: float) -> list[bytes]:
        """Returns those of these lines to show at once."""
        if stream in self._held:
            self._held[stream][1].extend(lines)
            return []
        at = next((i for i, line in enumerate(lines) if is_header(_text(line))), len(lines))
        if at < len(lines):
            self._held[stream] = now, lines[at:]
        return lines[:at]

    def due(self, now: float, everything: bool = False) -> tuple[list[tuple[Stream, bytes]], list[list[Stream]]]:
        """(lines to show by now, the ranks that had a traceback that was shown of another: a list for each)."""
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
                    if now - self._shown.get(same, -ANEW_SECONDS) < ANEW_SECONDS:
                        repeated.setdefault(same, []).append(stream)
                        continue
                    self._shown[same] = now
                lines += [(stream, line) for line in part]
        return lines, list(repeated.values())

    def restarts(self) -> None:
        """There is no summary of this attempt: all that is held is due now, before the next one speaks."""
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
    """Ranks for people: ranks 0-30 on gpu[1-4]."""
    ranks = list(ranks)
    listed = fold(map(str, ranks)).strip("[]")
    return f"rank{'s' * (len(ranks) > 1)} {listed} on {fold(hosts)}"
