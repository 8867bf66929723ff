"""Decides what silence means: a node is lost, the leader's own link is down, no rank makes progress."""

from fleet.node.base.types import Mapping, Sequence
from fleet.node.gang.gang import NEVER

EARLY_SECONDS = 60.0  # that ranks may go on after another one has ended well, without a report
QUIET_SECONDS = 300.0  # that a whole run which has spoken may be silent without a report
MUTE_SECONDS = 900.0  # that it may be from its start on: imports, a compilation
GAP_SECONDS = 3.0  # between two looks: this machine itself slept, and has not read yet what ranks wrote meanwhile


class Silence:
    """A node that is silent for `patience` seconds is lost. All at once, be they but one, and none that refuses us, are
    this machine's own link, or its sleep: they are waited for as long as they go on without a head, which is `lease`
    seconds, None for ever."""

    def __init__(self, patience: float, lease: "float | None") -> None:
        self.patience, self.lease = patience, lease
        self.alone = False  # now, and for longer than a single node would be waited for
        self._last = -NEVER  # when all were silent

    def over(self, since: "Mapping[str, float | None]", now: float, wait: bool) -> "dict[str, float]":
        """Returns the hosts that are lost, and for how many seconds each was silent. since: when that of each live node
        began. wait: False where one of them refuses us, or all are being stopped."""
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
    """Judges the silence of the ranks in one attempt of a run. timeout: seconds of it after which the run is over,
    None: never. since: from when on it counts."""

    def __init__(self, timeout: "float | None", since: float) -> None:
        self.timeout, self.since, self.spoken = timeout, since, False
        self._early = self._stalled = False
        self._reported = -NEVER  # the progress that is the last, as was reported
        self._next: dict[str, float] = {}  # another stall is reported only when it is twice as long
        self._looked = 0.0

    def look(self, now: float, spoke: float, ends: "Sequence[float]", running: int, blind: bool) -> "str | None":
        """Returns what is to be reported now: "early", "straggler", "silent", "stalled" or nothing. spoke: when any
        rank wrote its last, 0: not yet. ends: when ranks ended well, where none of them is started again. running: how
        many others there are. blind: ranks may write what is not seen."""
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
        """Returns whether a stall lasts, some time after a look; where not, the next one is reported again."""
        self._stalled = self.timeout is not None and quiet >= self.timeout
        return self._stalled

    def progress(self, spoke: float, ends: "Sequence[float]") -> float:
        """Returns when there was the last sign of it."""
        return max([self.since, spoke, *ends])
