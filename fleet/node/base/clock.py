"""Makes time an argument: code that watches or waits takes a Clock. A test passes a clock that the test sets itself."""

import time

from fleet.node.base.types import Any


class Clock:
    """Reads the clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, latch: Any, seconds: float) -> bool:
        """Waits up to `seconds` for an Event or a Cancel. Returns whether it is set."""
        return bool(latch.wait(seconds))


CLOCK = Clock()
