"""The time as an argument: code that watches or waits has a Clock, which a test moves manually."""

import time

from fleet.node.base.types import Any


class Clock:
    """This machine's own."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait(self, latch: Any, seconds: float) -> bool:
        """Waits up to `seconds` for an Event or a Cancel; True once it is set."""
        return bool(latch.wait(seconds))


CLOCK = Clock()
