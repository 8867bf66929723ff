"""One live line on a terminal for work that spreads over hosts, naming those that it still waits for, and remarks
above it; elsewhere the remarks, and one line when it takes long."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress

from fleet.cli.line.line import settings_of
from fleet.cli.screen import terminal
from fleet.cli.screen.output import clean, clean_lines, fold, inform
from fleet.errors import FleetError, Interrupted
from fleet.events import Emit, Event, Finished, Notice, Progress, Round, Started
from fleet.model import Inventory
from fleet.rules.units import few, size_text
from fleet.transport.base import Transport

FIRST_SECONDS = 0.4  # what is over by then needs no line
NAMES_SECONDS = 1.0  # from then on the hosts that are not through are named
PLAIN_SECONDS = 10.0  # where no line can be drawn over: when to print once what it waits for
FEW, FOLD_SHARE = 64, 20  # naming more hosts than that costs time: at most a twentieth of it goes there
BAR, WIDE = 20, 160  # a bar's cells, on a terminal of so many columns
LEAST_NAME = 8  # where there is not even room for this much of the names, they are left out


class ProgressLine(terminal.Ticking):
    """An Emit: sums Progress events over hosts, knows who is not through, prints notices; nothing at all with -q and
    --json.

    Work may go over the hosts several times, to ask, to send, to install: each round has its own count. A context
    manager: the line is drawn by a thread of its own, so that it goes on while nothing happens."""

    info = ""  # what is put before a notice that is no warning

    def __init__(self, what: str = "") -> None:
        self._what, self._quiet = what, settings_of().silent
        super().__init__(not self._quiet)
        self._lock = threading.Lock()
        self._last: dict[str, Progress] = {}
        self._hosts: tuple[str, ...] = ()
        self._at_work: dict[str, str] = {}
        self._through: set[str] = set()
        self._failed: dict[str, None] = {}
        self._round = ""
        self._made = self._begun = time.monotonic()
        self._reminded = False
        self._named: tuple[float, frozenset[str], str] = (0.0, frozenset(), "")

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice) and not self._quiet:
            level = self.info if event.level == "info" else f"{event.level}: "
            host = f"host {event.host}: " if event.host else ""
            inform(f"{level}{host}{clean(event.message)}", event.hint)
        self.feed(event)

    def feed(self, event: Event) -> None:
        """Only what the line is made of."""
        with self._lock:
            if isinstance(event, Round):
                for last in (self._at_work, self._through, self._failed, self._last):
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
                if not event.result.ok and not isinstance(event.result.error, Interrupted):
                    self._failed[event.host] = None

    def tick(self) -> None:
        now = time.monotonic()
        if not terminal.live(sys.stderr):
            self.remind(now)
        elif now - self._made >= FIRST_SECONDS:
            terminal.draw(self.lines(now))

    def remind(self, now: float) -> None:
        """Prints, once, what takes so long, where no line can be drawn over."""
        if not self._reminded and now - self._made >= PLAIN_SECONDS and (lines := self.lines(now)):
            self._reminded = True
            inform(lines[0])

    def lines(self, now: float) -> list[str]:
        """Returns what is shown at `now`: one line, or none where no work is under way."""
        with self._lock:
            seconds = now - self._begun
            if not self._hosts and not self._last:
                return [f"{self._round} ... {seconds:.0f} s"] if self._round else []
            details = self.details(seconds)
            names = (
                self._names()
                if seconds >= NAMES_SECONDS and (not details or 2 * len(self._at_work) <= len(self._hosts))
                else ""
            )
            line = self._line(details, names, seconds)
            room = terminal.width(sys.stderr)
            if room is not None and names:  # rather the names are cut than what follows them
                fits = min(terminal.cells(names), terminal.cells(names) - terminal.cells(line) + room - terminal.EDGE)
                short = terminal.cut(names, fits, "...") if fits >= min(LEAST_NAME, terminal.cells(names)) else ""
                line = self._line(details, short, seconds)
            return [line]

    def _counted(self) -> bool:
        return any(event.unit == "count" for event in self._last.values())

    def _line(self, details: list[str], names: str, seconds: float) -> str:
        """ "installing: waiting for gpu[07,12] (2 of 64), gpu03 failed ... 4 s"."""
        at, of = len(self._at_work), len(self._hosts)
        parts = [] if names or self._counted() else [f"{len(self._through)} of {of} hosts"]
        parts += details
        if names:
            failed = f", {clean(few(self._failed))} failed" if self._failed else ""
            parts.append(f"waiting for {names}{f' ({at} of {of})' if of > 1 else ''}{failed} ... {seconds:.0f} s")
        states = set(self._at_work.values())
        what = "" if details else states.pop() if len(states) == 1 else self._round
        return f"{what}: {'  '.join(parts)}" if what else "  ".join(parts)

    def details(self, seconds: float) -> list[str]:
        """Returns the line's part about amounts, `seconds` after the beginning of the round."""
        total = sum(event.total or 0 for event in self._last.values())
        # a host that is through may have needed less than was thought
        done = sum((at.total or at.done) if host in self._through else at.done for host, at in self._last.items())
        if not total:
            return []
        if self._counted():
            return [f"{next(iter(self._last.values())).what}: {done:.0f} of {total:.0f}"]
        rate = done / max(seconds, 0.001)
        left = f", {(total - done) / rate:.0f} s left" if 0 < done < total else ""
        share = f"{bar(done / total)}{100 * done / total:3.0f}%"
        return [f"{self._what} {share} of {size_text(total)}, {size_text(rate)}/s{left}"]

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


def bar(share: float, least: int = 1) -> str:
    """ "[###-------] " on a terminal of at least so many columns; nothing elsewhere."""
    columns = terminal.width(sys.stderr) or 0
    size = BAR * columns // WIDE if columns >= least else 0
    full = int(size * min(1.0, share))
    return f"[{'#' * full}{'-' * (size - full)}] " if size else ""


# -- what -v adds to every verb: where each host was reached, how long it took, and where a fault of fleet itself is
def detailed(emit: Emit, inventory: Inventory, transport: Transport, say: Callable[[str], None] = inform) -> Emit:
    """The Emit; with -v one that passes all on to it, and reports each host that is through."""
    if not settings_of().verbose or settings_of().json:
        return emit
    begun: dict[str, tuple[float, str]] = {}

    def report(event: Event) -> None:
        emit(event)
        if isinstance(event, Started):
            since, _ = begun.get(event.host, (time.monotonic(), ""))
            begun[event.host] = since, event.what
        elif isinstance(event, Finished):
            since, what = begun.pop(event.host, (time.monotonic(), ""))
            error = event.result.error
            how = "ok" if event.result.ok else error.kind if error else f"exit status {event.result.exit_status}"
            what = what if what != "connecting" else ""  # how everything begins
            took = f"{time.monotonic() - since:.2f} s"
            parts = [place(event.host, inventory, transport), what, took, how]
            say(clean(f"{event.host}: {', '.join(part for part in parts if part)}"))
            if error is not None and error.__traceback__ is not None and error.kind == "internal":
                say(clean_lines("".join(traceback.format_exception(error)).rstrip("\n")))

    return report


def place(name: str, inventory: Inventory, transport: Transport) -> str:
    """ "root@10.0.0.1:22": the inventory over ~/.ssh/config over defaults, as far as this transport knows of such."""
    with suppress(FleetError, KeyError):
        return str(transport.resolve(inventory.host(name)) or "")
    return ""
