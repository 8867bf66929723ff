"""Shows a launch: the steps before the ranks run, the ranks' lines after `[host:rank]`, live progress bars, and notices
on stderr.

A separate thread prints, from a bounded buffer: a stopped terminal or a slow pipe never delays reading from a node.
Output that does not fit is counted and reported; the log files are complete."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import click

from fleet.answers.run_events import Attempt, Back, Restart, Resumed, Room, StopAll, Unblocked
from fleet.answers.run_start_events import Attached, Planned, Running, StepDone, Submitted, Waiting, WaitsFor
from fleet.cli.line.values import Scrolling
from fleet.cli.screen import terminal
from fleet.cli.screen.board import KEYS, Board, Shown
from fleet.cli.screen.lines import (
    Folding,
    Tracebacks,
    flush_unfinished,
    label,
    show_bare,
    who,
    write_folded,
    write_line,
)
from fleet.cli.screen.output import clean, inform, write_notice
from fleet.cli.screen.progress import ProgressLine
from fleet.errors import Reason
from fleet.events import Event, Name, Notice, Output, Round
from fleet.model import grouped
from fleet.rules.causes import together
from fleet.rules.units import size_text

BUFFER_BYTES = 32 << 20
SCREEN_BYTES = 1 << 20  # for a terminal: no user reads more at once, and a smaller buffer shows newer output
PIPE_PROGRESS_SECONDS = 10.0
LIVE_SECONDS, IDLE_SECONDS = 0.1, 0.5  # between two drawings; IDLE_SECONDS if only the displayed time changes
STUCK_SECONDS = 10.0  # at the end: if a terminal reads no line for so long, the rest is dropped
PIPE_PATIENCE = 6  # a pipe gets so many times STUCK_SECONDS: its reader may be a pager, or a busy program
CALM_SECONDS, MAX_CALM_SECONDS = 0.05, 0.5  # least and longest pause between two redraws of the live lines
RUNNING, SPOKEN = "running, no output of the ranks yet", Round("", ())
# records whose notices are shown even without -v: steps, the place of the logs, the end of what a warning reported
STEPS = (Submitted, Waiting, WaitsFor, StepDone, Running, Attempt, Attached, Resumed, Unblocked, Room, Back)


def folded(events: Iterable[Event]) -> list[Event]:
    """Returns the events. Notices that differ only in their host are joined into one, in the place of the first."""

    def _alike(place: int, event: Event) -> object:
        if isinstance(event, Notice) and isinstance(event.message, Reason) and "hosts" in event.message.details:
            return event.level, event.message.template, event.hint
        return place

    def _as_one(first: Event, *others: Event) -> Event:
        messages = [each.message for each in (first, *others) if isinstance(each, Notice)]
        return replace(first, message=together(messages)) if others and isinstance(first, Notice) else first

    return [_as_one(*same) for same in grouped((_alike(*each), each[1]) for each in enumerate(events)).values()]


class LaunchView:
    """Shows events; an instance is an Emit. Use it as a context manager: its exit prints what is left. level: -1 with
    -q, 0, 1 or more with -v. names: the hosts, in node-rank order. scrolls: the ranks whose lines scroll; other ranks
    have one live line."""

    def __init__(
        self, names: Sequence[str], *, json: bool = False, level: int = 0, scrolls: Scrolling = Scrolling()
    ) -> None:
        self._json, self._level = json, level
        self._names, self._board = names, Board(names, scrolls)
        self._folding = Folding()
        outs = {"stdout": sys.stdout, "stderr": sys.stderr}
        self._folds = {name for name, out in outs.items() if scrolls.fold and terminal.interactive(out)}
        self._starting = ProgressLine("sending")
        self._queue: deque[Event] = deque()
        self._taken: deque[Event] = deque()  # taken from the queue, but not shown yet
        self._bytes = 0
        self._dropped = 0
        self._written = 0  # so many lines and events were shown
        self._wake = threading.Condition()
        self._closing = False
        # begun: ranks may run. leased: ranks end if no process leads them. leads: this command leads them
        self.begun, self.leased, self.leads = False, True, True
        self.tracebacks = Tracebacks()
        self._live = terminal.live(sys.stderr) and not json and level >= 0
        self._thread = threading.Thread(target=self._work, name="view", daemon=True)

    def __enter__(self) -> LaunchView:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        with self._wake:
            self._closing = True
            self._wake.notify()
        idle = 0  # waits in a row in which no line was written; a slow reader that still reads gets the time it needs
        while self._thread.is_alive() and idle < (1 if terminal.stopped() else PIPE_PATIENCE):
            before = self._written
            self._thread.join(STUCK_SECONDS)
            idle = idle + 1 if before == self._written else 0
        if self._thread.is_alive():
            terminal.give_up()
            inform("not all output is shown here, because no process reads it; the log files have it")

    def __call__(self, event: Event) -> None:
        size = len(event.data) if isinstance(event, Output) else 0
        for each in event.happened if isinstance(event, Notice) else ():
            if isinstance(each, Planned | Attached):  # from then on ranks may run
                self.begun, self.leased = True, each.lease is not None
                self.leads = isinstance(each, Planned) or each.leads
            elif isinstance(each, WaitsFor):  # no rank runs now
                self.begun, self.leased = False, True
        with self._wake:
            if self._closing:
                return
            limit = SCREEN_BYTES if self._live else BUFFER_BYTES
            if isinstance(event, Output) and (self._json or self._bytes + size > limit):
                self._dropped += 0 if self._json else size
                return
            self._queue.append(event)
            self._bytes += size
            self._wake.notify()

    # -- the printing thread ------------------------------------------------------------------------------
    def _work(self) -> None:
        # if no process reads our output, or its disk is full, the run still goes on, and its log files are written
        with suppress(OSError, ValueError):
            try:
                self._draw()
            except OSError:
                raise
            except Exception as fault:
                if not (sys.stdout.closed or sys.stderr.closed):
                    terminal.report_fault(fault)
                    self._go_on()

    def _turns(self) -> Iterator[tuple[bool, int]]:
        """Moves new events to `_taken` again and again; the caller shows them. Yields (True if no more will come, how
        many bytes of output were dropped since the last turn)."""
        closing = False
        while not closing:
            with self._wake:
                if not self._queue and not self._closing:
                    self._wake.wait(self._pause())
                self._taken.extend(self._queue)
                self._queue.clear()
                self._bytes = 0
                dropped, self._dropped = self._dropped, 0
                closing = self._closing
            yield closing, dropped

    def _draw(self) -> None:
        """Shows all events until the end, with live lines below them."""
        for closing, dropped in self._turns():
            began, some = time.monotonic(), bool(self._taken)
            if some or closing or self.tracebacks.waits() or self._folding.left(began) <= 0:
                terminal.block()
                with terminal.aside():
                    if not (self._json or self._level > 0):
                        self._taken = deque(folded(self._taken))
                    while self._taken:
                        self._show(self._taken[0])
                        self._taken.popleft()  # removed last: after a fault, _go_on() shows it in plain lines
                        self._written += 1
                    self._show_held(closing)
                    self._unfold()
                    self._report_dropped(dropped)
                    if closing:
                        self._flush()
                        return
            self._progress()
            sys.stdout.flush()
            if self._live and some:
                with self._wake:
                    calm = min(MAX_CALM_SECONDS, max(CALM_SECONDS, time.monotonic() - began))
                    soon = min(calm, max(0.0, self._folding.left(time.monotonic())))
                    self._wake.wait_for(lambda: self._closing, soon)

    def _go_on(self) -> None:
        """Shows the rest in plain lines, after a fault in _draw(). It avoids most parts that may have caused the fault.
        An event that causes a fault here, too, is shown unformatted."""
        held = list[Output]()
        with suppress(Exception):
            for stream, line, ranks in self._folding.due(time.monotonic(), everything=True):
                held += [Output(host, stream, line + b"\n", rank) for host, rank in ranks]
        with suppress(Exception):
            self.tracebacks.restarts()
            lines, _ = self.tracebacks.due(time.monotonic(), everything=True)
            held += [Output(host, "stderr", line + b"\n", rank) for (host, rank), line in lines]
        with suppress(Exception):
            held += self._board.streams.unfinished(self._taken[0] if self._taken else None)
        self._taken.extendleft(reversed(held))
        with Shown(self._names, quiet=self._level < 0, json=self._json, errors="stderr") as plain:
            for _, dropped in self._turns():
                while self._taken:
                    event = self._taken.popleft()
                    if not isinstance(event, Output) or self._level >= 0 and event.rank is not None:
                        try:
                            plain(event)
                        except OSError:
                            raise
                        except Exception:
                            show_bare(event)
                    self._written += 1
                self._report_dropped(dropped)

    def _report_dropped(self, count: int) -> None:
        if count:
            inform(f"({size_text(count)} of output not shown here; the log files have them)")

    def _pause(self) -> float:
        """Returns the seconds to wait if no event arrives."""
        live = IDLE_SECONDS if self._board.spoke and not self.tracebacks.waits() else LIVE_SECONDS
        return min(live if self._live else 1.0, max(0.0, self._folding.left(time.monotonic())))

    def _show(self, event: Event) -> None:
        if isinstance(event, Output):
            if self._level < 0 or (event.rank is None and self._level < 1):
                return
            if event.rank is not None:
                self._starting.feed(SPOKEN)
            whole = self._board.output(event)
            if event.stream == "stderr" and event.rank is not None and self._level == 0:
                whole = self.tracebacks.feed((event.host, event.rank), whole, time.monotonic())
            for line in whole:
                self._line(event.host, event.rank, event.stream, line)
        elif isinstance(event, Notice):
            self._notice(event)
            if self._live and event.has(Running):
                self._starting.feed(Round(RUNNING + self._keys(), ()))
        else:
            self._starting.feed(event)

    def _keys(self) -> str:
        return KEYS if terminal.interactive(sys.stdin) else ""

    def _show_held(self, closing: bool) -> None:
        lines, repeated = self.tracebacks.due(time.monotonic(), closing)
        for (host, rank), line in lines:
            self._line(host, rank, "stderr", line)
        if repeated:
            self._unfold(everything=True)
        for streams in repeated:
            hosts, ranks = zip(*streams, strict=True)
            inform(f"{who(ranks, dict.fromkeys(hosts))}: the same traceback as above")

    def _notice(self, notice: Notice) -> None:
        if notice.has(StopAll):
            self.tracebacks.stopping = True
        if notice.has(Restart, Attempt):
            self._flush()  # an unfinished line belongs to the last attempt
            self.tracebacks.restarts()
            self._show_held(True)
        self._board.notice(notice)
        if self._json:
            write_notice(notice)
        elif notice.level != "info" or self._level > 0 or notice.has(*STEPS):
            if self._level < 0 and notice.level != "error":
                return
            self._unfold(everything=True)
            mark = {"error": click.style("error: ", fg="red"), "warning": click.style("warning: ", fg="yellow")}
            inform(mark.get(notice.level, "") + clean(notice.message), notice.hint)

    def _line(self, host: str, rank: int | None, stream: Name, line: bytes) -> None:
        if rank is not None and stream in self._folds:
            self._folding.feed((host, rank), stream, line, time.monotonic())
            if self._folding.full:
                self._unfold()
            return
        out = sys.stdout if stream == "stdout" else sys.stderr
        write_line(label(host, rank, self._board.streams.tint(host), out), line, out)
        self._written += 1

    def _unfold(self, everything: bool = False) -> None:
        """Prints the ranks' lines that are due."""
        for stream, line, ranks in self._folding.due(time.monotonic(), everything):
            write_folded(ranks, line, sys.stdout if stream == "stdout" else sys.stderr, self._board.streams.tint)
            self._written += 1

    def _flush(self) -> None:
        for host, rank, stream, rest in flush_unfinished(self._board.scrolling()):
            self._line(host, rank, stream, rest)
        self._unfold(everything=True)
        sys.stdout.flush()

    # -- live lines ---------------------------------------------------------------------------------------
    def _progress(self) -> None:
        """Shows what the start waits for, and then a line for each node. Without live lines it prints the state of
        progress bars every PIPE_PROGRESS_SECONDS."""
        now = time.monotonic()
        if self._live:
            board = self._board.lines(time.time(), *terminal.size(sys.stderr), self._keys())
            terminal.draw(self._starting.lines(now) + board)
            return
        if self._json or self._level < 0:
            return
        self._starting.remind(now)
        for (host, rank, stream), lines in self._board.scrolling().items():
            if lines.live and now - lines.shown_at >= PIPE_PROGRESS_SECONDS:
                lines.shown_at = now
                self._line(host, rank, stream, lines.live)
