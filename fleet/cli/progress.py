"""One live line on a terminal for work that spreads over hosts, and remarks above it; where stderr is no terminal,
the remarks only."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType

from fleet.cli.output import clean, size_text, talk
from fleet.events import Event, Finished, Notice, Progress, Started

REDRAW_SECONDS = 0.1


class ProgressLine:
    """An Emit: sums Progress events over hosts, counts hosts that are through, says notices. quiet: nothing at all.

    Work may go over the hosts several times, to ask, to send, to install: each round has its own count."""

    info = ""  # what stands before a notice that is no warning

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = what
        self._quiet = quiet
        self._live = not quiet and sys.stderr.isatty()
        self._lock = threading.Lock()
        self._done: dict[str, float] = {}
        self._total: dict[str, float] = {}
        self._state: dict[str, str] = {}
        self._hosts: set[str] = set()
        self._through: set[str] = set()
        self._round = ""
        self._drawn = 0.0
        self._begun = time.monotonic()

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live and self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice) and not self._quiet:
            level = self.info if event.level == "info" else f"{event.level}: "
            host = f"host {event.host}: " if event.host else ""
            self.say(f"{level}{host}{clean(event.message)}")
        if not self._live:
            return
        with self._lock:
            if isinstance(event, Progress):
                name = event.host or ""
                self._done[name] = event.done
                self._total[name] = event.total or 0
                self._state[name] = event.what
            elif isinstance(event, Started):
                if event.host in self._through:
                    for last in (self._hosts, self._through, self._done, self._total, self._state):
                        last.clear()
                    self._begun = time.monotonic()
                self._hosts.add(event.host)
                self._round = event.what
            elif isinstance(event, Finished):
                self._through.add(event.host)
            now = time.monotonic()
            if now - self._drawn >= REDRAW_SECONDS:
                self._drawn = now
                self._draw(now)

    def say(self, text: str) -> None:
        """A remark above the line."""
        with self._lock:
            if self._live and self._drawn:
                sys.stderr.write("\r\x1b[K")
            talk(text)

    def _draw(self, now: float) -> None:
        parts = [f"{len(self._through)}/{len(self._hosts)} hosts", *self.words(now - self._begun)]
        # a line that wraps could not be drawn over
        sys.stderr.write("\r\x1b[K" + "  ".join(parts)[: shutil.get_terminal_size().columns - 1])
        sys.stderr.flush()

    def words(self, seconds: float) -> list[str]:
        """What the line says behind the count of hosts, `seconds` after the beginning."""
        total, done = sum(self._total.values()), sum(self._done.values())
        if not total:
            return [self._round] if self._round else []
        rate = done / max(seconds, 0.001)
        left = f", {(total - done) / rate:.0f} s left" if 0 < done < total else ""
        return [f"{self._what} {100 * done / total:3.0f}% of {size_text(total)}, {size_text(rate)}/s{left}"]
