"""How a run under way is ended: who is lost, who is told to stop, and who does not."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from fleet.errors import ConnectError, FleetError, Reason
from fleet.ops.launch.failure import alone, fate
from fleet.ops.launch.follow import Follower
from fleet.ops.launch.gang import INTERRUPTED, Gang
from fleet.ops.launch.janitor import send_janitor
from fleet.ops.launch.record import RunRecord
from fleet.ops.launch.silence import Silence
from fleet.ops.launch.witness import Witness
from fleet.runtime import Runtime

STUBBORN_SECONDS = 12.0  # beyond the grace: SIGKILL takes up to 10 s to be told from hanging in the kernel
ENGINE_GRACE = 0.5  # of an engine that has no rank left: what torchrun and DeepSpeed do then helps nobody
# how often the user has asked to stop
GENTLY, AT_ONCE, LEAVE = 1, 2, 3


def of_host(host: str, text: str) -> Reason:
    """What may be said of many hosts at once."""
    return Reason("{hosts}", hosts=host) + Reason.of_node(text)


class Stopping:
    """Of one attempt. followers: by host; an elastic run replaces some. say: as Run.say."""

    def __init__(
        self,
        record: RunRecord,
        gang: Gang,
        followers: Mapping[str, Follower],
        runtime: Runtime,
        say: Callable[..., None],
    ) -> None:
        self.record, self.gang, self.runtime, self.say = record, gang, runtime, say
        self._followers = followers
        self._stop_by: float | None = None
        self._killed = False
        self._silence = Silence(record.node_timeout, record.lease)
        self._witness = Witness(record.run_id, runtime.transport)

    def stop_if(self, reason: str | None) -> None:
        """Tell all nodes to stop, once, where there is a reason to."""
        if reason is not None and self.gang.stop(reason, time.time()):
            self._tell_all(self.record.grace, reason)

    def rank_ended(self, host: str) -> None:
        """While all stop, an engine without ranks has nothing to wait for."""
        if self.gang.stopped_at is not None and self._has_no_rank_left(host):
            self._followers[host].stop(min(ENGINE_GRACE, self.record.grace), str(self.gang.reason))

    def lose(self, host: str, when: float, error: FleetError) -> None:
        """Give a node up. when: it was last heard of, in seconds since the epoch."""
        self._followers[host].give_up()
        reason = self.gang.node_lost(host, when, error)
        self.say("error", of_host(host, f" is lost: {error.message}"), "lost", host, hint=error.hint, kind=error.kind)
        self.stop_if(reason)

    def watch_silence(self) -> None:
        """Lose the nodes that are silent for too long."""
        live = {
            host: follower
            for host, follower in self._followers.items()
            if not self.gang.nodes[host].ended and self.gang.nodes[host].lost is None
        }
        since = {host: follower.silent_since for host, follower in live.items()}
        wait = self.gang.stopped_at is None and not self._link_is_whole(live, since)
        known = self._silence.alone
        for host, silent in self._silence.over(since, time.monotonic(), wait=wait).items():
            shut = live[host].shut
            self.lose(
                host,
                time.time() - silent,
                ConnectError(
                    f"silent for {silent:.0f} s" + (f": {shut.message}" if shut else ""),
                    kind="lost",
                    hint=shut.hint if shut else "the host hangs, or the link to it is cut",
                ),
            )
        if self._silence.alone and not known:
            self.say("warning", alone(len(live), self.record.lease), "alone")

    def _link_is_whole(self, live: Mapping[str, Follower], since: Mapping[str, float | None]) -> bool:
        """Ours, though all be silent."""
        if any(each.shut for each in live.values()) or (len(live) == 1 and self.record.spares > 0):
            return True  # a lone one that can be replaced: better in vain than not at all
        silent = [began for began in since.values() if began is not None]
        if not silent or len(silent) < len(since):
            return False
        nodes = self.gang.nodes
        over = [it for it in self.record.hosts if nodes[it.name].ended and nodes[it.name].lost is None]
        return self._witness.look(over, max(silent))

    def watch(self) -> None:
        """What the user asks for, and nodes that do not stop in time."""
        if self.runtime.cancel.count >= GENTLY:
            self.stop_if(INTERRUPTED)
        if self.runtime.cancel.count >= AT_ONCE and not self._killed:
            self._killed = True
            self._tell_all(0.0, f"{INTERRUPTED} twice")
        if self._stop_by is None or time.monotonic() < self._stop_by:
            return
        for host, follower in self._followers.items():
            node = self.gang.nodes[host]
            if not node.ended and node.lost is None:
                follower.give_up()
                self.gang.node_lost(host, time.time(), ConnectError("it did not stop in time", kind="stubborn"))
                self.say("error", of_host(host, " did not stop in time"), "stubborn", host)

    def clean_up(self) -> list[str]:
        """Whatever could not be reached is left to the janitor, who goes on after this process has ended: its hosts."""
        nodes = self.gang.nodes
        there = [it for it in self.record.hosts if it.name not in self.gang.absent]
        hosts = [it for it in there if nodes[it.name].lost is not None or not nodes[it.name].ended]
        left = [host.name for host in hosts]
        if not left:
            return left
        for host in left:
            self._followers[host].give_up()
        ends = fate(self.record.lease, send_janitor(self.record, hosts, self.runtime.transport))
        for host in left:
            self.say("warning", f"{host}: {ends}", "janitor", host)
        return left

    def _tell_all(self, grace: float, reason: str) -> None:
        self.say("info", f"stopping all nodes: {reason}", "stop", reason=reason, grace=grace)
        self._stop_by = time.monotonic() + grace + STUBBORN_SECONDS
        for host, follower in self._followers.items():
            if not self.gang.nodes[host].ended:
                follower.stop(min(grace, ENGINE_GRACE) if self._has_no_rank_left(host) else grace, reason)

    def _has_no_rank_left(self, host: str) -> bool:
        return not self.gang.restarts and not self.gang.unaccounted(host, self.record.node(host).ranks)
