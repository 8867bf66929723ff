"""A clock that its test moves by hand: nobody who sleeps by it waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fleet.node.base.clock import Clock

LIMIT_SECONDS = 60.0  # for which it holds


class HandClock(Clock):
    """now: both the time of day and monotonic seconds. holds: while it says so, what a process does is waited for and
    the time stands still. least: by how much whoever sleeps moves it, at least."""

    def __init__(self, now: float = 1000.0, holds: Callable[[], bool] = lambda: False, least: float = 0.0) -> None:
        self.now, self._holds, self._least = now, holds, least
        self._until = time.monotonic() + LIMIT_SECONDS
        self._due: list[tuple[float, Callable[[], object]]] = []

    def at(self, when: float, action: Callable[[], object]) -> None:
        """Has the action happen once somebody sleeps beyond that time."""
        self._due.append((when, action))

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        if self._holds():
            assert time.monotonic() < self._until, "what is waited for does not come"
            time.sleep(0.01)
            return
        self.now += max(seconds, self._least)
        for due in [due for due in self._due if due[0] <= self.now]:
            self._due.remove(due)
            due[1]()

    def wait(self, latch: Any, seconds: float) -> bool:
        if not latch.is_set():
            self.sleep(seconds)
        return bool(latch.is_set())
