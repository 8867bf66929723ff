"""What `fleet logs` shows: the lines of ranks and, while a run is followed on a terminal, its board below them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence

from fleet.cli import terminal
from fleet.cli.board import Board
from fleet.cli.lines import last_state, write_line
from fleet.cli.output import clean, talk
from fleet.events import Event, Notice, Output

TICK_SECONDS = 0.1


class Shown:
    """An Emit: whole lines, behind `[host:rank]` where more than one rank is shown. live: with a board below them,
    where that can be. A context manager; leaving it shows what no line end has come for. names: of the hosts."""

    def __init__(
        self, names: Sequence[str] = (), *, bare: bool = False, live: bool = False, quiet: bool = False
    ) -> None:
        self._board, self._bare, self._quiet = Board(names), bare, quiet
        self._live = live and terminal.live(sys.stderr) and terminal.interactive(sys.stdout)
        self._lock, self._over = threading.Lock(), threading.Event()
        self._ticker = threading.Thread(target=self._tick, name="board", daemon=True)

    def __enter__(self) -> Shown:
        if self._live:
            self._ticker.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        if self._live:
            self._ticker.join()
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

    def _tick(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            with self._lock:
                lines = self._board.lines(time.time(), *terminal.size(sys.stderr))
            terminal.draw(lines)
        terminal.draw([])
