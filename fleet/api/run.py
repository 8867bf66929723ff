"""Runs work in a thread of its own, and offers a run's events to iterate over."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import AbstractContextManager, suppress
from typing import Generic

from fleet.background import background
from fleet.best_effort import best_effort
from fleet.codec import T
from fleet.errors import FleetError, PreflightError
from fleet.events import Emit, Event, Output
from fleet.fanout import TURN_SECONDS
from fleet.model import Report
from fleet.ops.plans import Plan
from fleet.rules.causes import by_cause
from fleet.runtime import Runtime

UNREAD_BYTES = 64 << 20  # ranks' output that waits for a caller's iteration; more is only in the log files


class Task(Generic[T]):
    """Runs work in a thread of its own. On Ctrl-C, the waiting thread sets `cancel` and lets the work clean up."""

    def __init__(
        self, work: Callable[[Runtime], T], runtime: Runtime, at_end: Callable[[], None] = lambda: None
    ) -> None:
        def do() -> T:
            try:
                return work(runtime)
            finally:
                with best_effort("close the connections"):
                    at_end()

        self._cancel, self.future = runtime.cancel, background("fleet", do)

    def wait(self) -> None:
        while not self.future.done():
            wait([self.future], TURN_SECONDS)

    def result(self) -> T:
        try:
            self.wait()
        except BaseException:  # Ctrl-C, or an exception from a signal handler of the caller
            self._cancel.set()
            self.wait()
            raise
        error = self.future.exception()
        if isinstance(error, PreflightError) and error.findings:
            raise in_full(error)
        return self.future.result()


def in_full(error: PreflightError) -> FleetError:
    """Returns the error with its findings in the message. The command line, in contrast, prints the findings before the
    error."""
    causes = by_cause((each, each["message"], each["remedy"]) for each in error.findings)
    found = [f"  {cause.message}\n    hint: {cause.hint}" for cause in causes]
    return error.but(message="\n".join([error.message, *found]), hint="preflight=False starts in spite of them")


class Run:
    """Controls a launch, or another verb, that is under way. Iterate over its events, or wait() for its report. As a
    context manager, it stops a run that is not over when the block ends. If the program ends first, the ranks end when
    their lease runs out."""

    def __init__(
        self,
        reach: Callable[[Emit], AbstractContextManager[Runtime]],
        plan: Plan,
        work: Callable[[Runtime], Report],
    ) -> None:
        self.plan = plan
        self._unread = 0
        self._lock = threading.Lock()
        self._events: queue.Queue[Event | None] = queue.Queue()
        self._entered = reach(self._put)
        runtime = self._entered.__enter__()
        self._cancel, self._detach = runtime.cancel, runtime.detach
        self._task = Task(work, runtime, self._end)

    @property
    def id(self) -> str:
        """Returns the run's id, or "" for a verb without one. The run's logs are in RUNS_DIR/ID on this machine."""
        return str(getattr(self.plan, "run_id", ""))

    def _put(self, event: Event) -> None:
        if isinstance(event, Output):
            with self._lock:
                if self._unread > UNREAD_BYTES:
                    return
                self._unread += len(event.data)
        self._events.put(event)

    def _end(self) -> None:
        try:
            self._entered.__exit__(None, None, None)
        finally:
            self._events.put(None)

    def _next(self) -> Event | None:
        while True:
            with suppress(queue.Empty):
                return self._events.get(timeout=TURN_SECONDS)

    def __iter__(self) -> Iterator[Event]:
        """Yields each event of the run once, until it is over. Then raises FleetError if the run was refused."""
        try:
            while (event := self._next()) is not None:
                if isinstance(event, Output):
                    with self._lock:
                        self._unread -= len(event.data)
                yield event
        except KeyboardInterrupt:
            self.stop()
            self.wait()
            raise
        self._events.put(None)  # for the next reader
        self.wait()

    def wait(self) -> Report:
        """Waits until the run is over, and returns its report. Raises FleetError if the run was refused, so that
        nothing was started."""
        return self._task.result()

    @property
    def report(self) -> Report:
        """Waits and returns the report, as wait() does."""
        return self.wait()

    def stop(self) -> None:
        """Stops all ranks: SIGTERM, then SIGKILL after `grace`. A second call sends SIGKILL at once."""
        self._cancel.set()

    def leave(self) -> Report:
        """Detaches from the run, as the key d does. The run goes on; `attach` follows it again."""
        self._detach.set()
        return self.wait()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self._task.future.done():
            self.stop()
            self._task.wait()
