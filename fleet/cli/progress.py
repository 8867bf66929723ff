"""One live line on a terminal for work that spreads over hosts, naming those that it still waits for, and remarks
above it; elsewhere the remarks, and one line when it takes long."""

from __future__ import annotations

import sys
import threading
import time

from fleet.cli import terminal
from fleet.cli.output import clean, fold, talk
from fleet.events import Event, Finished, Notice, Progress, Round, Started
from fleet.rules.units import size_text

TICK_SECONDS = 0.1
FIRST_SECONDS = 0.4  # what is over by then needs no line
NAMES_SECONDS = 1.0  # from then on the hosts that are not through are named
PLAIN_SECONDS = 10.0  # where no line can be drawn over: when to say once what it waits for
FEW, FOLD_SHARE = 64, 20  # naming more hosts than that costs time: at most a twentieth of it goes there
LEAST_NAME = 8  # where there is not even room for this much of the names, they are left out


class ProgressLine:
    """An Emit: sums Progress events over hosts, knows who is not through, says notices. quiet: nothing at all.

    Work may go over the hosts several times, to ask, to send, to install: each round has its own count. A context
    manager: the line is drawn by a thread of its own, so that it goes on while nothing happens."""

    info = ""  # what stands before a notice that is no warning

    def __init__(self, what: str = "", *, quiet: bool = False) -> None:
        self._what = what
        self._quiet = quiet
        self._lock = threading.Lock()
        self._last: dict[str, Progress] = {}
        self._hosts: tuple[str, ...] = ()
        self._at_work: dict[str, str] = {}
        self._through: set[str] = set()
        self._round = ""
        self._made = self._begun = time.monotonic()
        self._reminded = False
        self._named: tuple[float, frozenset[str], str] = (0.0, frozenset(), "")
        self._over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="progress", daemon=True)

    def __enter__(self) -> ProgressLine:
        if not self._quiet:
            self._ticker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if not self._quiet:
            self._ticker.join()

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice) and not self._quiet:
            level = self.info if event.level == "info" else f"{event.level}: "
            host = f"host {event.host}: " if event.host else ""
            talk(f"{level}{host}{clean(event.message)}")
        self.feed(event)

    def feed(self, event: Event) -> None:
        """Only what the line is made of."""
        with self._lock:
            if isinstance(event, Round):
                for last in (self._at_work, self._through, self._last):
                    last.clear()
                self._hosts, self._round = event.hosts, event.what
                self._begun = time.monotonic()
            elif isinstance(event, Progress):
                self._last[event.host or ""] = event
            elif isinstance(event, Started):
                self._at_work[event.host] = event.what
            elif isinstance(event, Finished):
                self._at_work.pop(event.host, None)
                self._through.add(event.host)

    def _tick(self) -> None:
        live = terminal.live(sys.stderr)
        while not self._over.wait(TICK_SECONDS):
            now = time.monotonic()
            if not live:
                self.remind(now)
            elif now - self._made >= FIRST_SECONDS:
                terminal.draw(self.lines(now))
        terminal.draw([])

    def remind(self, now: float) -> None:
        """Where no line can be drawn over: say once what takes so long."""
        if not self._reminded and now - self._made >= PLAIN_SECONDS and (lines := self.lines(now)):
            self._reminded = True
            talk(lines[0])

    def lines(self, now: float) -> list[str]:
        """What is to be seen at `now`: one line, or none where no work is under way."""
        with self._lock:
            seconds = now - self._begun
            if not self._hosts and not self._last:
                return [f"{self._round} ... {seconds:.0f} s"] if self._round else []
            words = self.words(seconds)
            names = (
                self._names()
                if seconds >= NAMES_SECONDS and (not words or 2 * len(self._at_work) <= len(self._hosts))
                else ""
            )
            line = self._line(words, names, seconds)
            room = terminal.width(sys.stderr)
            if room is not None and names:  # rather the names are cut than what stands behind them
                fits = min(terminal.cells(names), terminal.cells(names) - terminal.cells(line) + room - 1)
                short = terminal.cut(names, fits, "...") if fits >= min(LEAST_NAME, terminal.cells(names)) else ""
                line = self._line(words, short, seconds)
            return [line]

    def _counted(self) -> bool:
        return any(event.unit == "count" for event in self._last.values())

    def _line(self, words: list[str], names: str, seconds: float) -> str:
        """ "installing: waiting for gpu[07,12] (2 of 64) ... 4 s"."""
        at, of = len(self._at_work), len(self._hosts)
        parts = [] if names or self._counted() else [f"{len(self._through)} of {of} hosts"]
        parts += words
        if names:
            parts.append(f"waiting for {names}{f' ({at} of {of})' if of > 1 else ''} ... {seconds:.0f} s")
        states = set(self._at_work.values())
        what = "" if words else states.pop() if len(states) == 1 else self._round
        return f"{what}: {'  '.join(parts)}" if what else "  ".join(parts)

    def words(self, seconds: float) -> list[str]:
        """What the line says of the amounts, `seconds` after the beginning of the round."""
        total = sum(event.total or 0 for event in self._last.values())
        done = sum(event.done for event in self._last.values())
        if not total:
            return []
        if self._counted():
            return [f"{next(iter(self._last.values())).what}: {done:.0f} of {total:.0f}"]
        rate = done / max(seconds, 0.001)
        left = f", {(total - done) / rate:.0f} s left" if 0 < done < total else ""
        return [f"{self._what} {100 * done / total:3.0f}% of {size_text(total)}, {size_text(rate)}/s{left}"]

    def _names(self) -> str:
        """The hosts at work, folded."""
        again, known, text = self._named
        names = frozenset(self._at_work)
        if names != known and (len(names) <= FEW or time.monotonic() >= again):
            begun = time.monotonic()
            text = clean(fold(names)) if names else ""
            ended = time.monotonic()
            self._named = (ended + FOLD_SHARE * (ended - begun), names, text)
        return text
