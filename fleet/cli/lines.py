"""The lines of ranks, taken apart and written."""

from __future__ import annotations

from typing import TextIO

import click

from fleet.cli import terminal
from fleet.cli.output import clean_output

LINE_LIMIT = 64 << 10
COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green", "bright_magenta", "bright_blue")


class Lines:
    """Splits one stream of a rank into whole lines; what stands behind the last `\\r` is its live state."""

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
    """What a terminal would show of a line with carriage returns in it."""
    states = [part for part in line.split(b"\r") if part.strip()]
    return states[-1] if states else b""


def label(who: str, tint: int, out: TextIO) -> str:
    """ "[gpu01:0]", in the colour of its host where `out` shows colours."""
    text = f"[{who}]"
    return click.style(text, fg=COLOURS[tint % len(COLOURS)]) if terminal.colored(out) else text


def write_line(who: str, line: bytes, out: TextIO, tint: int = 0) -> None:
    """A line of a rank, byte for byte where `out` is no terminal. who: what stands before it. tint: its colour's
    number."""
    if terminal.interactive(out):
        line = clean_output(line.decode("utf-8", "replace"), terminal.colored(out)).encode()
    out.buffer.write((f"{label(who, tint, out)} ".encode() if who else b"") + line + b"\n")
    out.buffer.flush()
