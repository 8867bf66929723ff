"""Shows a launch: what it does until the ranks run, their lines after `[host:rank]`, live progress bars, and notices on
stderr.

Printing happens in a thread of its own after a bounded buffer: a stopped terminal or a slow pipe never holds up the
reading of a node. What does not fit is counted and reported; the log files have it all."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import click

from fleet.answers.run_events import (
    Attached,
    Attempt,
    Back,
    Planned,
    Restart,
    Resumed,
    Room,
    Running,
    StepDone,
    StopAll,
    Submitted,
    Unblocked,
    Waiting,
)
from fleet.cli.line.values import Scrolling
from fleet.cli.run.plain import PlainLines
from fleet.cli.screen import terminal
from fleet.cli.screen.board import KEYS, Board
from fleet.cli.screen.lines import Tracebacks, last_state, who, write_line
from fleet.cli.screen.output import clean, talk, write_notice
from fleet.cli.screen.progress import ProgressLine
from fleet.errors import Reason
from fleet.events import Event, Notice, Output, Round
from fleet.rules.causes import together
from fleet.rules.units import size_text

BUFFER_BYTES = 32 << 20
SCREEN_BYTES = 1 << 20  # no user reads more at once: a terminal shows what is new rather than all of a flood
PIPE_PROGRESS_SECONDS = 10.0
LIVE_SECONDS, IDLE_SECONDS = 0.1, 0.5  # between two drawings; while nothing but the time moves
STUCK_SECONDS = 10.0  # without a line that its reader takes, at the end
PIPE_PATIENCE = 6  # times as long, for a pager or a busy program
CALM_SECONDS, MAX_CALM_SECONDS = 0.05, 0.5  # between two times that the live lines make room for others
RUNNING, SPOKEN = "running, the ranks have said nothing yet", Round("", ())
# what is done so far, where the logs are, and the end of what was warned of, is shown to everybody
STEPS = (Submitted, Waiting, StepDone, Running, Attempt, Attached, Resumed, Unblocked, Room, Back)


def folded(events: Iterable[Event]) -> list[Event]:
    """Returns the events, with notices of this moment that differ only in their host as one, in the place of the
    first."""
    kept: list[Event] = []
    same: dict[tuple[str, str, str | None], tuple[int, list[str]]] = {}
    for event in events:
        if isinstance(event, Notice) and isinstance(event.message, Reason) and "hosts" in event.message.details:
            at, messages = same.setdefault((event.level, event.message.template, event.hint), (len(kept), []))
            messages.append(event.message)
            if len(messages) > 1:
                kept[at] = replace(event, message=together(messages))
                continue
        kept.append(event)
    return kept


class LaunchView:
    """An Emit. Use as a context manager; leaving it prints what is left. level: -1 quiet, 0, 1 verbose.

    names: of the hosts, in node-rank order. scrolls: whose lines do; of the others the last one is live."""

    def __init__(
        self, names: Sequence[str], *, json: bool = False, level: int = 0, scrolls: Scrolling = Scrolling()
    ) -> None:
        self._json, self._level = json, level
        self._board = Board(names, scrolls)
        self._starting = ProgressLine("sending")
        self._queue: deque[Event] = deque()
        self._taken: deque[Event] = deque()  # out of the queue, and not shown yet
        self._bytes = 0
        self._dropped = 0
        self._written = 0  # lines and events
        self._wake = threading.Condition()
        self._closing = False
        # whether ranks may run; whether they end where no process leads them; whether this command does
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
        idle = 0  # a slow reader, or machine, has what it takes
        while self._thread.is_alive() and idle < (1 if terminal.stopped() else PIPE_PATIENCE):
            before = self._written
            self._thread.join(STUCK_SECONDS)
            idle = idle + 1 if before == self._written else 0
        if self._thread.is_alive():
            terminal.give_up()
            talk("not all output is shown here, as nobody reads it; the log files have it")

    def __call__(self, event: Event) -> None:
        size = len(event.data) if isinstance(event, Output) else 0
        for each in event.happened if isinstance(event, Notice) else ():
            if isinstance(each, Planned | Attached):  # from then on ranks may run
                self.begun, self.leased = True, each.lease is not None
                self.leads = isinstance(each, Planned) or each.leads
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
        try:
            try:
                self._draw()
            except OSError:
                raise
            except Exception as fault:
                if not (sys.stdout.closed or sys.stderr.closed):
                    terminal.tell_fault(fault)
                    self._go_on()
        except (OSError, ValueError):
            # the reader of our output has gone, or its disk is full: the run goes on, its files are written
            return

    def _take(self) -> tuple[bool, int]:
        """Takes what came meanwhile, to show it. Returns (True where no more will come, bytes that had no room)."""
        with self._wake:
            if not self._queue and not self._closing:
                self._wake.wait(self._pause())
            self._taken.extend(self._queue)
            self._queue.clear()
            self._bytes = 0
            dropped, self._dropped = self._dropped, 0
            return self._closing, dropped

    def _draw(self) -> None:
        """Everything, live, to the end."""
        closing = False
        while not closing:
            closing, dropped = self._take()
            began, some = time.monotonic(), bool(self._taken)
            if some or closing or self.tracebacks.waits():
                terminal.block()
                with terminal.aside():
                    if not (self._json or self._level > 0):
                        self._taken = deque(folded(self._taken))
                    while self._taken:
                        self._show(self._taken[0])
                        self._taken.popleft()  # one in which a fault shows is shown in plain lines
                        self._written += 1
                    self._show_held(closing)
                    self._tell_dropped(dropped)
                    if closing:
                        self._flush()
                        return
            self._progress()
            sys.stdout.flush()
            if self._live and some:
                with self._wake:
                    calm = min(MAX_CALM_SECONDS, max(CALM_SECONDS, time.monotonic() - began))
                    self._wake.wait_for(lambda: self._closing, calm)

    def _go_on(self) -> None:
        """The same in plain lines, after a fault."""
        plain, closing = PlainLines(json=self._json, quiet=self._level < 0), False
        while not closing:
            closing, dropped = self._take()
            with terminal.aside():
                while self._taken:
                    plain.show(self._taken.popleft())
                    self._written += 1
                self._tell_dropped(dropped)
        plain.flush()

    def _tell_dropped(self, count: int) -> None:
        if count:
            talk(f"({size_text(count)} of output not shown here; the log files have them)")

    def _pause(self) -> float:
        """How long nothing need be done where nothing happens."""
        if not self._live:
            return 1.0
        return IDLE_SECONDS if self._board.spoke and not self.tracebacks.waits() else LIVE_SECONDS

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
            self._board.notice(event)
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
        for streams in repeated:
            hosts = dict.fromkeys(host for host, _ in streams)
            talk(f"{who((rank for _, rank in streams), hosts)}: the same traceback as above")

    def _notice(self, notice: Notice) -> None:
        if notice.has(StopAll):
            self.tracebacks.stopping = True
        if notice.has(Restart, Attempt):
            self._flush()  # half a line of the last attempt is none of this one's
            self.tracebacks.restarts()
            self._show_held(True)
        if self._json:
            write_notice(notice)
            sys.stdout.flush()
        elif notice.level != "info" or self._level > 0 or notice.has(*STEPS):
            if self._level < 0 and notice.level != "error":
                return
            mark = {"error": click.style("error: ", fg="red"), "warning": click.style("warning: ", fg="yellow")}
            talk(mark.get(notice.level, "") + clean(notice.message), notice.hint)

    def _line(self, host: str, rank: int | None, stream: str, line: bytes) -> None:
        out = sys.stdout if stream == "stdout" else sys.stderr
        write_line(host if rank is None else f"{host}:{rank}", line, out, self._board.tint(host))
        self._written += 1

    def _flush(self) -> None:
        for host, rank, stream, lines in self._board.scrolling():
            if lines.rest:
                self._line(host, rank, stream, last_state(lines.rest))
                lines.rest = b""  # it is shown once
        sys.stdout.flush()

    # -- what is live -------------------------------------------------------------------------------------
    def _progress(self) -> None:
        """Shows what it waits for before the start, then a line a node; in a pipe the bars' state now and then."""
        now = time.monotonic()
        if self._live:
            columns, rows = terminal.size(sys.stderr)
            board = self._board.lines(time.time(), columns, rows, self._keys())
            terminal.draw(self._starting.lines(now) + board)
            return
        if self._json or self._level < 0:
            return
        self._starting.remind(now)
        for host, rank, stream, lines in self._board.scrolling():
            if lines.live and now - lines.shown_at >= PIPE_PROGRESS_SECONDS:
                lines.shown_at = now
                self._line(host, rank, stream, lines.live)
