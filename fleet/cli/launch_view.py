"""What a launch shows: ranks' lines behind `[host:rank]`, live progress bars, and remarks on stderr.

Printing happens in a thread of its own behind a bounded buffer: a stopped terminal or a slow pipe never
holds up the reading of a node. What does not fit is counted and said; the log files have it all.
"""

from __future__ import annotations

import os
import select
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import BinaryIO

import click

from fleet.cli.output import clean, hint_line, write_json
from fleet.events import Event, Notice, Output

BUFFER_BYTES = 32 << 20
PIPE_PROGRESS_SECONDS = 10.0
LIVE_SECONDS = 0.1
LINE_LIMIT = 64 << 10


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


class LaunchView:
    """An Emit. Use as a context manager; leaving it prints what is left. level: -1 quiet, 0, 1 verbose."""

    def __init__(self, names: Mapping[str, int], *, json: bool = False, level: int = 0) -> None:
        self._json, self._level = json, level
        self._width = max(map(len, names), default=0)
        self._node_ranks = names
        self._queue: deque[Event] = deque()
        self._bytes = 0
        self._dropped = 0
        self._wake = threading.Condition()
        self._closing = False
        self._lines: dict[tuple[str, int | None, str], Lines] = {}
        self._tty = sys.stderr.isatty() and not json and level >= 0
        self._drawn = 0
        self._thread = threading.Thread(target=self._work, name="view", daemon=True)

    def __enter__(self) -> LaunchView:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        # a terminal that is stopped for good must not keep fleet from ending, nor must the locks of its files
        self._thread.join(10.0)
        if self._thread.is_alive():
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            if not select.select([], [2], [], 0)[1]:
                sys.stderr = open(os.devnull, "w")  # noqa: SIM115

    def __call__(self, event: Event) -> None:
        size = len(event.data) if isinstance(event, Output) else 0
        with self._wake:
            if isinstance(event, Output) and (self._json or self._bytes + size > BUFFER_BYTES):
                self._dropped += 0 if self._json else size
                return
            self._queue.append(event)
            self._bytes += size
            self._wake.notify()

    # -- the printing thread ------------------------------------------------------------------------------
    def _work(self) -> None:
        try:
            while True:
                with self._wake:
                    if not self._queue and not self._closing:
                        self._wake.wait(LIVE_SECONDS if self._tty else 1.0)
                    events, self._queue = self._queue, deque()
                    self._bytes = 0
                    dropped, self._dropped = self._dropped, 0
                    closing = self._closing
                self._erase()
                for event in events:
                    self._show(event)
                if dropped:
                    click.echo(f"({dropped} bytes of output not shown here; the log files have them)", err=True)
                if closing:
                    self._flush()
                    return
                self._progress()
                sys.stdout.flush()
        except (OSError, ValueError):
            # whoever read our output has gone, or its disk is full: the run goes on, its files are written
            return

    def _show(self, event: Event) -> None:
        if isinstance(event, Output):
            if self._level < 0 or (event.rank is None and self._level < 1):
                return
            lines = self._lines.setdefault((event.host, event.rank, event.stream), Lines())
            for line in lines.feed(event.data):
                self._line(event.host, event.rank, event.stream, line)
        elif isinstance(event, Notice):
            self._notice(event)

    def _notice(self, notice: Notice) -> None:
        if self._json:
            data = notice.data or {"event": "notice", "time": notice.time, "host": notice.host,
                                   "level": notice.level, "message": notice.message, "hint": notice.hint}
            for record in [data] if isinstance(data, Mapping) else data:
                write_json(record)
            sys.stdout.flush()
        elif notice.level != "info" or self._level > 0:
            if self._level < 0 and notice.level != "error":
                return
            mark = {"error": click.style("error: ", fg="red"), "warning": click.style("warning: ", fg="yellow")}
            click.echo(mark.get(notice.level, "") + clean(notice.message), err=True)
            if notice.hint:
                click.echo(hint_line(notice.hint), err=True)

    def _line(self, host: str, rank: int | None, stream: str, line: bytes) -> None:
        out: BinaryIO = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
        who = host if rank is None else f"{host}:{rank}"
        text = line if not self._terminal(stream) else clean(line.decode("utf-8", "replace")).encode()
        out.write(f"[{who}] ".encode() + text + b"\n")
        out.flush()

    @staticmethod
    def _terminal(stream: str) -> bool:
        return (sys.stdout if stream == "stdout" else sys.stderr).isatty()

    def _flush(self) -> None:
        for (host, rank, stream), lines in self._lines.items():
            if lines.rest:
                self._line(host, rank, stream, last_state(lines.rest))
        sys.stdout.flush()

    # -- progress bars ------------------------------------------------------------------------------------
    def _progress(self) -> None:
        """One live line a node on a terminal; in a pipe the bars' state now and then, as a line."""
        now = time.monotonic()
        if self._tty:
            live: dict[str, tuple[int | None, bytes]] = {}
            for (host, rank, _), lines in self._lines.items():
                if lines.live and (host not in live or (rank or 0) < (live[host][0] or 0)):
                    live[host] = rank, lines.live
            width = shutil.get_terminal_size().columns
            for host in sorted(live, key=lambda h: self._node_ranks.get(h, 0)):
                rank, state = live[host]
                text = f"[{host}:{rank}] " + clean(state.decode("utf-8", "replace"))
                sys.stderr.write(text[: width - 1] + "\n")
            self._drawn = len(live)
            sys.stderr.flush()
            return
        for (host, rank, stream), lines in self._lines.items():
            if lines.live and now - lines.shown_at >= PIPE_PROGRESS_SECONDS and self._level >= 0:
                lines.shown_at = now
                self._line(host, rank, stream, lines.live)

    def _erase(self) -> None:
        if self._drawn:
            sys.stderr.write(f"\x1b[{self._drawn}F\x1b[J")
            sys.stderr.flush()
            self._drawn = 0
