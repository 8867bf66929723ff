"""Whose fault silence is: a node's, or this machine's own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf


@dataclass
class Silence:
    """A node that is silent for `patience` seconds is lost. All at once, be they but one, and none that refuses us, are
    this machine's own link, or its sleep: they are waited for as long as they go on without a head, which is `lease`
    seconds, None for ever."""

    patience: float
    lease: float | None
    alone: bool = False  # now, and for longer than a single node would be waited for
    _last: float = -inf  # when all were silent

    def over(self, since: Mapping[str, float | None], now: float, *, wait: bool) -> dict[str, float]:
        """The hosts that are lost, and for how many seconds each was silent. since: when that of each live node began.
        wait: False where one of them refuses us, or all are being stopped."""
        times = [began for began in since.values() if began is not None]
        together = wait and len(times) == len(since) > 0
        self.alone = False
        if together and (self.lease is None or now - min(times) < self.lease):
            self.alone, self._last = now - min(times) >= self.patience, now
            return {}
        last = -inf if together else self._last
        quiet = {host: now - max(began, last) for host, began in since.items() if began is not None}
        return {host: silent for host, silent in quiet.items() if silent >= self.patience}
