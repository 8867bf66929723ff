"""A run in plain lines, as they come: what is left of a view in which a fault showed."""

from __future__ import annotations

import sys

from fleet.cli.screen.lines import Lines, last_state, write_line
from fleet.cli.screen.output import clean, talk, write_notice
from fleet.events import Event, Notice, Output


class PlainLines:
    """Shows events one by one. quiet: nothing that ranks write; json: events alone."""

    def __init__(self, *, json: bool, quiet: bool) -> None:
        self._json, self._quiet = json, quiet
        self._streams: dict[tuple[str, int | None, str], Lines] = {}

    def show(self, event: Event) -> None:
        if isinstance(event, Output) and not (self._quiet or self._json or event.rank is None):
            stream = (event.host, event.rank, event.stream)
            self._write(stream, self._streams.setdefault(stream, Lines()).feed(event.data))
        elif isinstance(event, Notice) and self._json:
            write_notice(event)
        elif isinstance(event, Notice) and event.level != "info":
            talk(f"{event.level}: {clean(event.message)}", event.hint)

    def flush(self) -> None:
        """Prints the text that no line end has come for."""
        for stream, lines in self._streams.items():
            if lines.rest:
                self._write(stream, [last_state(lines.rest)])
                lines.rest = b""
        sys.stdout.flush()

    def _write(self, stream: tuple[str, int | None, str], lines: list[bytes]) -> None:
        host, rank, name = stream
        for line in lines:
            write_line(f"{host}:{rank}", line, sys.stdout if name == "stdout" else sys.stderr)
