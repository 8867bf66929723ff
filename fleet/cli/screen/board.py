"""Draws what is below a run's lines on a terminal: the state of the run, and a line for each node of what does not
scroll. It also shows `fleet logs`: the lines of ranks, above that board while a run is followed on a terminal."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence

from fleet.answers.run_events import Begun, RankOver, Restart, StopAll
from fleet.cli.line.values import Scrolling
from fleet.cli.screen import terminal
from fleet.cli.screen.lines import Lines, label, last_state, write_line
from fleet.cli.screen.output import clean, talk, without_colours
from fleet.events import Event, Notice, Output

QUIET_SECONDS = 5.0  # of silence, after which the board shows it
SHARE = 3  # of a terminal's rows, one in so many is for nodes
KEYS = "  (d leaves it to itself)"


class Board:
    """Pure, but for the terminal's colours. names: of the hosts, in node-rank order. scrolls: whose lines do."""

    def __init__(self, names: Sequence[str], scrolls: Scrolling = Scrolling()) -> None:
        self._node_ranks = {name: node_rank for node_rank, name in enumerate(names)}
        self._scrolls = scrolls
        self._first_ranks: Mapping[str, int] = {}
        self._last: dict[str, tuple[int, bytes]] = {}
        self._bar = b""  # rank 0's last one
        self._heard: dict[str, float] = {}
        self._world, self._began = 0, 0.0
        self._ended = set[int]()
        self._state, self._by = "running", 0.0
        self._streams: dict[tuple[str, int | None, str], Lines] = {}

    def tint(self, host: str) -> int:
        """Returns the number by which a host's colour is chosen."""
        return self._node_ranks.setdefault(host, len(self._node_ranks))

    def output(self, event: Output) -> list[bytes]:
        """The whole lines that scroll now."""
        lines = self._streams.setdefault((event.host, event.rank, event.stream), Lines())
        whole = lines.feed(event.data)
        if event.rank is None:
            return whole
        self._heard[event.host] = event.time
        if event.rank == 0:
            self._bar = lines.live or self._bar
        if self._scrolls(event.rank, self._first_ranks.get(event.host)):
            return whole
        if whole and whole[-1].strip():
            self._last[event.host] = event.rank, whole[-1]
        return []

    def scrolling(self) -> list[tuple[str, int | None, str, Lines]]:
        """The streams that scroll: host, rank, stream, and what came of it."""
        return [
            (host, rank, stream, lines)
            for (host, rank, stream), lines in self._streams.items()
            if rank is None or self._scrolls(rank, self._first_ranks.get(host))
        ]

    def notice(self, notice: Notice) -> None:
        """The state of the run, from what is reported of it."""
        for event in notice.happened:
            match event:
                case Begun():
                    self._world = event.world_size
                    self._began = event.started or notice.time
                    self._first_ranks = event.first_ranks
                    self._ended.clear()
                    self._streams.clear()
                    self._state = "running"
                case RankOver():
                    self._ended.add(event.rank)
                case Restart():
                    self._state = "restarting"
                case StopAll():
                    self._state, self._by = "stopping", notice.time + (event.grace or 0.0)

    @property
    def spoke(self) -> bool:
        """Is true where a rank has printed something, or has ended."""
        return bool(self._heard or self._ended)

    def lines(self, now: float, columns: int, rows: int, keys: str = "") -> list[str]:
        """Returns what is shown at `now`, in seconds since the epoch; nothing before the ranks' first output. keys:
        what the keyboard does."""
        if not self.spoke:
            return []
        nodes = self._nodes()
        hosts = sorted(nodes, key=self.tint)
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
        """Returns for each node the lowest rank at a progress bar; else the last output of one that does not scroll."""
        live: dict[str, tuple[int, bytes]] = {}
        for (host, rank, _), lines in self._streams.items():
            if rank is not None and lines.live and (host not in live or rank < live[host][0]):
                live[host] = rank, lines.live
        return {**self._last, **live}

    def _node(self, host: str, rank: int, text: bytes, columns: int) -> str:
        who = f"{host}:{rank}"
        line = without_colours(text.decode("utf-8", "replace"))
        line = terminal.cut(line, max(0, columns - 1 - terminal.cells(f"[{who}] ")))
        return f"{label(who, self.tint(host), sys.stderr)} {line}"

    def _folded(self, hosts: Sequence[str], now: float) -> str:
        more = f"... and {len(hosts)} more nodes"
        longest = min(hosts, key=lambda host: self._heard.get(host, now))
        silent = now - self._heard.get(longest, now)
        return f"{more}; {longest} has been silent for {clock(silent)}" if silent >= QUIET_SECONDS else more

    def _status(self, now: float, bar: bytes) -> str:
        """ "running 1:02:03, 31 of 32 ranks up, silent for 0:12, rank 0: 45%|####"."""
        up = max(0, self._world - len(self._ended))
        parts = [f"{self._state} {clock(now - self._began)}", f"{up} of {self._world} ranks up"] if self._world else []
        if self._state == "stopping" and up and now < self._by:
            parts.append(f"killed in {clock(self._by - now)}")
        silent = now - max(self._heard.values(), default=self._began)
        parts += [f"silent for {clock(silent)}"] if silent >= QUIET_SECONDS else []
        parts += [f"rank 0: {without_colours(bar.decode('utf-8', 'replace'))}"] if bar else []
        return ", ".join(parts)


def clock(seconds: float) -> str:
    """ "0:07", "1:02:03", "2 d 01:02:03"."""
    minutes, s = divmod(max(0, int(seconds)), 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    return f"{days} d {h:02}:{m:02}:{s:02}" if days else f"{h}:{m:02}:{s:02}" if h else f"{m}:{s:02}"


class Shown(terminal.Ticking):
    """An Emit: whole lines, after `[host:rank]` where more than one rank is shown. live: with a board below them,
    where that can be. A context manager; leaving it shows what no line end has come for. names: of the hosts."""

    def __init__(
        self, names: Sequence[str] = (), *, bare: bool = False, live: bool = False, quiet: bool = False
    ) -> None:
        super().__init__(live and terminal.live(sys.stderr) and terminal.interactive(sys.stdout))
        self._board, self._bare, self._quiet = Board(names), bare, quiet
        self._lock = threading.Lock()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        for host, rank, stream, lines in self._board.scrolling():
            if lines.rest:
                self._write(host, rank, stream, [last_state(lines.rest)])

    def __call__(self, event: Event) -> None:
        with self._lock:
            if isinstance(event, Output):
                self._write(event.host, event.rank, event.stream, self._board.output(event))
            elif isinstance(event, Notice):
                self._board.notice(event)
                if event.level == "error" or event.level == "warning" and not self._quiet:
                    talk(f"{event.level}: {clean(event.message)}", event.hint)

    def _write(self, host: str, rank: int | None, stream: str, lines: Sequence[bytes]) -> None:
        who = "" if self._bare else host if rank is None else f"{host}:{rank}"
        if lines:
            with terminal.aside():
                for line in lines:
                    write_line(who, line, sys.stdout, self._board.tint(host))

    def tick(self) -> None:
        with self._lock:
            lines = self._board.lines(time.time(), *terminal.size(sys.stderr))
        terminal.draw(lines)
