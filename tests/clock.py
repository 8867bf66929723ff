"""A clock that its test moves by hand: nobody who sleeps by it waits."""

from __future__ import annotations

from typing import Any

from fleet.node.base.clock import Clock


class HandClock(Clock):
    """now: both times of day and monotonic seconds. slept: what was slept, in order."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now, self.slept = now, list[float]()

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def wait(self, latch: Any, seconds: float) -> bool:
        if not latch.is_set():
            self.sleep(seconds)
        return bool(latch.is_set())
