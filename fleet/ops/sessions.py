"""Keeps connections to the nodes of a run. Several steps use the same connections, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from fleet.codec import T
from fleet.each import answers_of
from fleet.errors import FleetError
from fleet.model import Host
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.program import Program

START_SECONDS = 30.0
ANSWER_SECONDS = 30.0  # for a request whose work on a node takes no time
STOP_SECONDS = 30.0  # time after the grace period for a supervisor that does not answer and processes that do not die
# each runs two node programs in one process on the node: run.follow comes second
START, ASK = (f"run.{first} run.follow" for first in ("supervise", "list_runs"))


class Sessions:
    """Holds open connections by host name, opened on first use, and programs that wait to start run.follow. close()
    closes all of them."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self._open: dict[str, Session] = {}
        self._waiting: dict[str, Program] = {}

    def get(self, host: Host) -> Session:
        if host.name not in self._open:
            self._open[host.name] = self.runtime.transport.connect(host, self.runtime.cancel)
        return self._open[host.name]

    def drop(self, host: Host) -> None:
        """Closes the connection to a host. The next get() opens another one."""
        self._waiting.pop(host.name, None)
        if host.name in self._open:
            self._open.pop(host.name).close()

    def adopt(self, opened: Mapping[str, Session | None]) -> None:
        """Adds open connections. opened: host name -> connection."""
        self._open |= {name: session for name, session in opened.items() if session is not None}

    def keep(self, program: Program) -> None:
        """Keeps a program that waits to start run.follow, for take_all()."""
        before = self._waiting.pop(program.host.name, None)
        if before is not None:
            before.close()
        self._waiting[program.host.name] = program

    def take_all(self, names: Iterable[str]) -> dict[str, Program]:
        """Returns the waiting programs of these hosts, with their connections. Closes all other connections."""
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
        """Runs `work` for all hosts at once. Returns (results, errors) by host name, both in the order of `hosts`.
        what: the work as text. fanout: the most hosts to work on at once; None: all."""
        runtime = replace(self.runtime, fanout=fanout or len(hosts), cancel=cancel or self.runtime.cancel)
        answers, failures = answers_of(hosts, runtime, work, what)
        return answers, {name: result.error for name, result in failures.items() if result.error is not None}
