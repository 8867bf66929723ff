"""Prints the output of a run, or of `fleet logs`, on a terminal: lines of some ranks scroll, and a board stays below
them. The board has the state of the run, and for each node the last line of the ranks that do not scroll."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from fleet.answers.event import Begun
from fleet.answers.run_events import RankOver, Restart, StopAll
from fleet.cli.line.values import Scrolling
from fleet.cli.screen import terminal
from fleet.cli.screen.lines import Folding, Key, Lines, Streams, flush_unfinished, label, write_folded, write_line
from fleet.cli.screen.output import clean, inform, without_colours, write_notice
from fleet.events import Event, Name, Notice, Output

QUIET_SECONDS = 5.0  # if ranks are silent for longer, the board says so
SHARE = 3  # of a terminal's rows, one in so many is for nodes
KEYS = "  (d leaves it to itself)"


class Board:
    """Holds the board. names: the hosts, in node-rank order. scrolls: decides which ranks' lines scroll."""

    def __init__(self, names: Sequence[str], scrolls: Scrolling = Scrolling()) -> None:
        self.streams = Streams(names)
        self._scrolls = scrolls
        self._first_ranks: Mapping[str, int] = {}
        self._last: dict[str, tuple[int, bytes]] = {}
        self._bar = b""  # rank 0's last progress bar
        self._received: dict[str, float] = {}
        self._world, self._began = 0, 0.0
        self._ended = set[int]()
        self._state, self._by = "running", 0.0

    def output(self, event: Output) -> list[bytes]:
        """Takes output. Returns the complete lines that scroll."""
        whole = self.streams.feed(event)
        if event.rank is None:
            return whole
        self._received[event.host] = event.time
        if event.rank == 0:
            self._bar = self.streams.all[event.host, 0, event.stream].live or self._bar
        if self._scrolls(event.rank, self._first_ranks.get(event.host)):
            return whole
        if whole and whole[-1].strip():
            self._last[event.host] = event.rank, whole[-1]
        return []

    def scrolling(self) -> dict[Key, Lines]:
        """Returns the streams that scroll."""
        return {
            (host, rank, stream): lines
            for (host, rank, stream), lines in self.streams.all.items()
            if rank is None or self._scrolls(rank, self._first_ranks.get(host))
        }

    def notice(self, notice: Notice) -> None:
        """Updates the state of the run by its events."""
        for event in notice.happened:
            match event:
                case Begun():
                    self._world = event.world_size
                    self._began = event.started or notice.time
                    self._first_ranks = event.first_ranks
                    self._ended.clear()
                    self.streams.all.clear()
                    self._state = "running"
                case RankOver():
                    self._ended.add(event.rank)
                case Restart():
                    self._state = "restarting"
                case StopAll():
                    self._state, self._by = "stopping", notice.time + (event.grace or 0.0)

    @property
    def spoke(self) -> bool:
        """Returns whether a rank has printed something, or has ended."""
        return bool(self._received or self._ended)

    def lines(self, now: float, columns: int, rows: int, keys: str = "") -> list[str]:
        """Returns the lines of the board, none before the ranks' first output. now: seconds since the epoch. keys: a
        help text about keys."""
        if not self.spoke:
            return []
        nodes = self._nodes()
        hosts = sorted(nodes, key=self.streams.tint)
        room = max(2, rows // SHARE)
        shown = hosts if len(hosts) <= room else hosts[: room - 1]
        zero = any(nodes[host][0] == 0 for host in shown)
        status = self._status(now, b"" if zero else self._bar)
        fits = keys if terminal.cells(status) + len(keys) < columns else ""
        lines = [terminal.cut(status, columns - 1) + fits] if status else []
        lines += [self._node(host, *nodes[host], columns) for host in shown]
        if len(hosts) > len(shown):
            lines.append(terminal.cut(self._folded(hosts[len(shown) :], now), columns - 1))
        return lines

    def _nodes(self) -> dict[str, tuple[int, bytes]]:
        """Returns node -> (rank, line): the progress bar of the lowest rank that has one; without a bar, the node's
        last line that does not scroll."""
        live: dict[str, tuple[int, bytes]] = {}
        for (host, rank, _), lines in self.streams.all.items():
            if rank is not None and lines.live and (host not in live or rank < live[host][0]):
                live[host] = rank, lines.live
        return {**self._last, **live}

    def _node(self, host: str, rank: int, text: bytes, columns: int) -> str:
        lead = label(host, rank, self.streams.tint(host), sys.stderr)
        line = without_colours(text.decode("utf-8", "replace"))
        return lead + terminal.cut(line, max(0, columns - 1 - terminal.cells(lead)))

    def _folded(self, hosts: Sequence[str], now: float) -> str:
        more = f"... and {len(hosts)} more nodes"
        longest = min(hosts, key=lambda host: self._received.get(host, now))
        silent = now - self._received.get(longest, now)
        return f"{more}; {longest} has been silent for {clock(silent)}" if silent >= QUIET_SECONDS else more

    def _status(self, now: float, bar: bytes) -> str:
        """Returns "running 1:02:03, 31 of 32 ranks up, silent for 0:12, rank 0: 45%|####"."""
        up = max(0, self._world - len(self._ended))
        parts = [f"{self._state} {clock(now - self._began)}", f"{up} of {self._world} ranks up"] if self._world else []
        if self._state == "stopping" and up and now < self._by:
            parts.append(f"killed in {clock(self._by - now)}")
        silent = now - max(self._received.values(), default=self._began)
        parts += [f"silent for {clock(silent)}"] if silent >= QUIET_SECONDS else []
        parts += [f"rank 0: {without_colours(bar.decode('utf-8', 'replace'))}"] if bar else []
        return ", ".join(parts)


def clock(seconds: float) -> str:
    """Returns "0:07", "1:02:03" or "2 d 01:02:03"."""
    minutes, s = divmod(max(0, int(seconds)), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{days} d {h:02}:{m:02}:{s:02}" if days else f"{h}:{m:02}:{s:02}" if h else f"{m}:{s:02}"


class Shown(terminal.Ticking):
    """Prints events (an Emit): complete lines, each after `[host:rank]` unless `bare`. Use it as a context manager: its
    exit also prints unfinished lines. names: the hosts, in node-rank order. live: shows a board below the lines, if
    stdout and stderr are terminals; otherwise no code of the board runs. quiet: prints no warnings. errors: the stream
    to which stderr of ranks goes. json: notices are printed as JSON. fold: on a live terminal, equal lines of several
    ranks are printed once."""

    def __init__(
        self,
        names: Sequence[str] = (),
        *,
        bare: bool = False,
        live: bool = False,
        quiet: bool = False,
        json: bool = False,
        errors: Literal["stdout", "stderr"] = "stdout",
        fold: bool = True,
    ) -> None:
        super().__init__(live and terminal.live(sys.stderr) and terminal.interactive(sys.stdout))
        self._board = Board(names) if self.on else None
        self._streams = self._board.streams if self._board is not None else Streams(names)
        self._bare, self._quiet, self._json, self._errors = bare, quiet, json, errors
        self._folding = Folding() if fold and self.on and not bare else None
        self._lock = threading.Lock()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self._flush()

    def _flush(self) -> None:
        for host, rank, stream, rest in flush_unfinished(self._streams.all):
            self._write(host, rank, stream, [rest])
        self._unfold(everything=True)

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Output):
                feed = self._streams.feed if self._board is None else self._board.output
                self._write(event.host, event.rank, event.stream, feed(event))
            elif isinstance(event, Notice) and self._json:
                write_notice(event)
            elif isinstance(event, Notice):
                if event.has(Begun):
                    self._flush()  # an incomplete line of the last attempt does not continue in this one
                self._unfold(everything=True)
                if self._board is not None:
                    self._board.notice(event)
                if event.level == "error" or event.level == "warning" and not self._quiet:
                    inform(f"{event.level}: {clean(event.message)}", event.hint)

    def _write(self, host: str, rank: int | None, stream: Name, lines: Sequence[bytes]) -> None:
        if self._folding is not None and rank is not None:
            for line in lines:
                self._folding.feed((host, rank), stream, line, time.monotonic())
            self._unfold()
            return
        out = sys.stderr if stream == "stderr" and self._errors == "stderr" else sys.stdout
        lead = "" if self._bare else label(host, rank, self._streams.tint(host), out)
        if lines:
            with terminal.aside():
                for line in lines:
                    write_line(lead, line, out)

    def _unfold(self, everything: bool = False) -> None:
        """Writes the lines that are due."""
        now = time.monotonic()
        if self._folding is not None and self._folding.ready(now, everything):
            with terminal.aside():
                for _, line, ranks in self._folding.due(now, everything):
                    write_folded(ranks, line, sys.stdout, self._streams.tint)

    def tick(self) -> None:
        with self._lock:
            self._unfold()
            lines = self._board.lines(time.time(), *terminal.size(sys.stderr)) if self._board is not None else []
        terminal.draw(lines)
