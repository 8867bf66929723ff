"""What it costs the others when a host goes out of the chain."""

from __future__ import annotations

from fleet.delivery.chain.order import Chain, Hop


class Losses:
    """The time between a hop's last byte from a host that went and its first one from another.

    known: [{"host": who went, "behind": who lost, "lost_seconds"}].
    """

    def __init__(self) -> None:
        self.known: list[dict[str, str | float]] = []
        self._open: dict[str, tuple[str, float, int]] = {}

    def begin(self, gone: str, behind: Hop) -> None:
        self._open[behind.name] = gone, behind.grown, behind.received

    def end(self, chain: Chain, name: str, now: float) -> tuple[str, float] | None:
        """(who went out, seconds) once `name` receives again; said once."""
        hop = chain.hops.get(name)
        if hop is None or name not in self._open or hop.received <= self._open[name][2]:
            return None
        gone, since, _received = self._open.pop(name)
        seconds = round(max(now - since, chain.behind(name)), 1)
        self.known.append({"host": gone, "behind": name, "lost_seconds": seconds})
        return gone, seconds
