"""Connections to the nodes of a run, which serve one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from fleet.each import over
from fleet.errors import FleetError
from fleet.events import Started
from fleet.model import Host, Result
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.program import Program

T = TypeVar("T")
START_SECONDS = 30.0
STOP_SECONDS = 30.0  # beyond the grace: for a supervisor that does not answer, and for what does not die
START, ASK = (f"run.{first} run.follow" for first in ("supervise", "list_runs"))  # and go on in the same process


class Sessions:
    """Open connections by host name, made on first use, and of programs there those that wait for what is to be
    followed. Close them all with close()."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._open: dict[str, Session] = {}
        self._waiting: dict[str, Program] = {}

    def get(self, host: Host) -> Session:
        if host.name not in self._open:
            self._open[host.name] = self.runtime.transport.connect(host, self.runtime.cancel)
        return self._open[host.name]

    def drop(self, host: Host) -> None:
        """The next get() makes another one."""
        self._waiting.pop(host.name, None)
        if host.name in self._open:
            self._open.pop(host.name).close()

    def adopt(self, opened: Mapping[str, Session | None]) -> None:
        """For get(). opened: by host."""
        self._open |= {name: session for name, session in opened.items() if session is not None}

    def keep(self, program: Program) -> None:
        """For take_all(): it waits, with run.follow after it."""
        before = self._waiting.pop(program.host.name, None)
        if before is not None:
            before.close()
        self._waiting[program.host.name] = program

    def take_all(self, names: Iterable[str]) -> dict[str, Program]:
        """Hand over the programs that wait on these hosts, and with each its connection; close the others."""
        taken = {name: self._waiting[name] for name in names if name in self._waiting}
        for name in taken:
            del self._open[name]
        self.close()
        return taken

    def close(self) -> None:
        for session in self._open.values():
            session.close()
        self._open.clear()
        self._waiting.clear()

    def each(
        self,
        hosts: tuple[Host, ...],
        work: Callable[[Host], T],
        what: str,
        cancel: Cancel | None = None,
        fanout: int | None = None,
    ) -> tuple[dict[str, T], dict[str, FleetError]]:
        """Do `work` for all hosts at once: (answers, errors) by host name, both in the order of `hosts`. what: as
        text. fanout: at most so many at once."""
        answers: dict[str, T] = {}

        def one(host: Host) -> Result:
            self.runtime.emit(Started(host.name, what))
            answers[host.name] = work(host)
            return Result(host.name, True)

        runtime = replace(self.runtime, fanout=fanout or len(hosts), cancel=cancel or self.runtime.cancel)
        results = over(hosts, runtime, one, what)
        errors = {result.host: result.error for result in results if result.error is not None}
        return {result.host: answers[result.host] for result in results if result.ok}, errors
