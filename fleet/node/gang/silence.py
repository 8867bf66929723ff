"""Decides what silence means: a node is lost, the leader's own link is down, no rank makes progress."""

from fleet.node.base.types import Mapping, Sequence
from fleet.node.gang.gang import NEVER

EARLY_SECONDS = 60.0  # a report follows if ranks go on for so long after another rank has ended with exit code 0
QUIET_SECONDS = 300.0  # a report follows if no rank writes for so long
MUTE_SECONDS = 900.0  # the same before any rank's first output, as imports and compilation take long
GAP_SECONDS = 3.0  # after a longer gap between two calls, this machine was asleep, and output may not be read yet


class Silence:
    """Decides which silent nodes are lost. A node that is silent for `patience` seconds is lost. If all nodes are
    silent (even a single one), and none refuses a connection, this machine's link is at fault, or the machine was
    asleep. Then the nodes are lost only after `lease` seconds, for which they go on without a head (None: for ever).

    alone: all nodes are silent now, for longer than `patience`."""

    def __init__(self, patience: float, lease: "float | None") -> None:
        self.patience, self.lease = patience, lease
        self.alone = False
        self._last = -NEVER  # the last time at which all were silent

    def over(self, since: "Mapping[str, float | None]", now: float, wait: bool) -> "dict[str, float]":
        """Returns {lost host: the seconds for which it was silent}. since: host -> when its silence began, or None if
        the host is not silent. wait: False if a host refuses a connection, or if all nodes are being stopped."""
        times = [began for began in since.values() if began is not None]
        together = wait and len(times) == len(since) > 0
        self.alone = False
        if together and (self.lease is None or now - min(times) < self.lease):
            self.alone, self._last = now - min(times) >= self.patience, now
            return {}
        last = -NEVER if together else self._last
        quiet = {host: now - max(began, last) for host, began in since.items() if began is not None}
        return {host: silent for host, silent in quiet.items() if silent >= self.patience}


class Watch:
    """Judges the silence of the ranks in one attempt of a run. timeout: the seconds of silence after which the run
    ends; None: never. since: when silence begins to count."""

    def __init__(self, timeout: "float | None", since: float) -> None:
        self.timeout, self.since, self.spoken = timeout, since, False
        self._early = self._stalled = False
        self._reported = -NEVER  # the time of the last progress in the last report
        self._next: dict[str, float] = {}  # kind -> seconds; the next stall is reported only if it is twice as long
        self._looked = 0.0

    def look(self, now: float, spoke: float, ends: "Sequence[float]", running: int, blind: bool) -> "str | None":
        """Returns the report that is due, or None: "early" (a rank ended well, others go on), "straggler" (most ranks
        have ended, the rest are silent), "silent", or "stalled" (silent for `timeout`). spoke: when a rank last wrote
        anything; 0: not yet. ends: when ranks ended well; empty if the engine may start ranks again. running: how many
        other ranks there are. blind: output of ranks may not be visible here."""
        if blind or now - self._looked > GAP_SECONDS:
            self.since = now
        self._looked = now
        self.spoken = self.spoken or spoke > 0
        progress = self.progress(spoke, ends)
        quiet = now - progress
        if not running:
            return None
        if self.timeout is not None and quiet >= self.timeout and not self._stalled:
            self._stalled = True
            return "stalled"
        most = len(ends) > running
        if ends and not self._early and now - (max(ends) if most else min(ends)) >= EARLY_SECONDS:
            self._early = True
            if not most or quiet < EARLY_SECONDS:
                return "early"
        kind = "straggler" if most else "silent"
        usual = EARLY_SECONDS if most else QUIET_SECONDS if self.spoken else MUTE_SECONDS
        if quiet < self._next.get(kind, usual) or progress == self._reported:
            return None
        self._reported, self._next[kind] = progress, 2 * quiet
        return kind

    def still_stalled(self, quiet: float) -> bool:
        """Returns whether a reported stall still lasts. If not, the next stall is reported again. quiet: the seconds
        since the last progress."""
        self._stalled = self.timeout is not None and quiet >= self.timeout
        return self._stalled

    def progress(self, spoke: float, ends: "Sequence[float]") -> float:
        """Returns the time of the last progress."""
        return max([self.since, spoke, *ends])
