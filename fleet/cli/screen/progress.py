"""Shows work on many hosts. On a terminal it has one live line with the hosts that are still at work, and messages
above it. Without a terminal it prints the messages, and the line once if the work takes long."""

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

FIRST_SECONDS = 0.4  # shorter work has no line
NAMES_SECONDS = 1.0  # from then on the line names the hosts at work
PLAIN_SECONDS = 10.0  # without live lines, the line is printed once, after so long
FEW, FOLD_SHARE = 64, 20  # folding more than FEW names is slow: it may take one part in FOLD_SHARE of the time
BAR, WIDE = 20, 160  # a bar has so many cells on a terminal with WIDE columns
LEAST_NAME = 8  # names are left out if there is less room


class ProgressLine(terminal.Ticking):
    """Shows progress; an instance is an Emit. It sums Progress events over hosts, records which hosts are done, and
    prints notices. With -q or --json it prints nothing. what: the verb before the amounts, such as "sending".

    Work may go over the hosts several times (to ask, to send, to install): each round has its own count. Use it as a
    context manager: a separate thread draws the line, so that it changes even without events."""

    info = ""  # text before a notice of level info

    def __init__(self, what: str = "") -> None:
        self._what, self._quiet = what, settings_of().silent
        super().__init__(not self._quiet)
        self._lock = threading.Lock()
        self._last: dict[str, Progress] = {}
        self._hosts: tuple[str, ...] = ()
        self._at_work: dict[str, str] = {}
        self._through: set[str] = set()  # the hosts that are done in this round
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
        """Updates the line, and prints no notice."""
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
        """Prints the line once if the work takes long, for a terminal without live lines."""
        if not self._reminded and now - self._made >= PLAIN_SECONDS and (lines := self.lines(now)):
            self._reminded = True
            inform(lines[0])

    def lines(self, now: float) -> list[str]:
        """Returns the lines for the time `now`: one, or none if no work runs."""
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
            if room is not None and names:  # the names are cut, not the text after them
                fits = min(terminal.cells(names), terminal.cells(names) - terminal.cells(line) + room - terminal.EDGE)
                short = terminal.cut(names, fits, "...") if fits >= min(LEAST_NAME, terminal.cells(names)) else ""
                line = self._line(details, short, seconds)
            return [line]

    def _counted(self) -> bool:
        return any(event.unit == "count" for event in self._last.values())

    def _line(self, details: list[str], names: str, seconds: float) -> str:
        """Returns "installing: waiting for gpu[07,12] (2 of 64), gpu03 failed ... 4 s"."""
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
        # a host that is done counts with its total, of which it may have needed less
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
        """Returns the hosts at work, folded."""
        again, known, text = self._named
        names = frozenset(self._at_work)
        if names != known and (len(names) <= FEW or time.monotonic() >= again):
            begun = time.monotonic()
            text = clean(fold(names)) if names else ""
            ended = time.monotonic()
            self._named = (ended + FOLD_SHARE * (ended - begun), names, text)
        return text


def bar(share: float, least: int = 1) -> str:
    """Returns "[###-------] " on a terminal with at least `least` columns; elsewhere an empty text. share: 0 to 1."""
    columns = terminal.width(sys.stderr) or 0
    size = BAR * columns // WIDE if columns >= least else 0
    full = int(size * min(1.0, share))
    return f"[{'#' * full}{'-' * (size - full)}] " if size else ""


# -- what -v adds to every verb: each host's address and time, and the traceback of a fault in fleet
def detailed(emit: Emit, inventory: Inventory, transport: Transport, say: Callable[[str], None] = inform) -> Emit:
    """Returns the Emit. With -v it returns one that also reports each host that is done."""
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
            what = what if what != "connecting" else ""  # every task begins with connecting
            took = f"{time.monotonic() - since:.2f} s"
            parts = [place(event.host, inventory, transport), what, took, how]
            say(clean(f"{event.host}: {', '.join(part for part in parts if part)}"))
            if error is not None and error.__traceback__ is not None and error.kind == "internal":
                say(clean_lines("".join(traceback.format_exception(error)).rstrip("\n")))

    return report


def place(name: str, inventory: Inventory, transport: Transport) -> str:
    """Returns "root@10.0.0.1:22", by the inventory, then ~/.ssh/config, then defaults; an empty text if this transport
    has no addresses."""
    with suppress(FleetError, KeyError):
        return str(transport.resolve(inventory.host(name)) or "")
    return ""
