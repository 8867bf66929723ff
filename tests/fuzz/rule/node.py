"""A node as it looks from a head: what fleet/node/run sends when its ranks, its engine or itself come to an end. Time
is simulated: a heap of what is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import Any

from tests.fuzz.rule.draw import SIGKILL, SIGTERM

Message = dict[str, Any]
NEVER = float("inf")
CLOCKS = (0.0, 0.5, 1.5, 3.5, 7.5)  # when a node sends how its clock stands
UP_SECONDS = 4.0  # between those of an elastic run


class World:
    """What is due, and what time it is. rng: of whatever the history does not say."""

    def __init__(self, now: float, seed: int) -> None:
        self.now, self.rng = now, Random(seed)
        self._due: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def at(self, when: float, work: Callable[..., None], *args: Any) -> None:
        self._count += 1
        heapq.heappush(self._due, (when, self._count, work, args))

    def step(self) -> bool:
        """Does what is due next; returns whether there was anything."""
        if not self._due:
            return False
        self.now, _, work, args = heapq.heappop(self._due)
        work(*args)
        return True


class Link:
    """To one head: what is sent arrives in order. down: from when to when nothing passes it. resent: whether the
    connection breaks by that, and all is sent once more."""

    def __init__(self, world: World, node: Node, latency: float, slow: float, receive: Callable[..., None]) -> None:
        self.world, self.node, self.latency, self.slow, self.receive = world, node, latency, slow, receive
        self.last, self.down, self.back, self.broken, self.closed = 0.0, NEVER, NEVER, False, False

    def cut(self, until: float, breaks: bool) -> None:
        world = self.world
        self.down, self.back, self.broken = (
            min(self.down, world.now),
            until,
            breaks or until - world.now > self.node.timeout / 3,
        )
        if self.broken and until < NEVER:
            self.back = until + world.rng.uniform(0.2, 1.5)
            world.at(self.back, self.resend)

    @property
    def is_down(self) -> bool:
        return self.down <= self.world.now < self.back

    def resend(self) -> None:
        if not self.is_down:  # else it was cut again meanwhile
            self.down = NEVER
            self.node.hello(self)

    def send(self, message: Message, fast: bool = False) -> None:
        world, late = self.world, 0.0
        if self.is_down:
            if self.broken:
                return
            late = self.back - world.now
        elif self.slow and not fast and world.rng.random() < 0.1:
            late = world.rng.uniform(0.0, self.slow)
        sent = dict(message, sent=world.now + self.node.clock)
        self.last = max(self.last, world.now + self.latency + late + world.rng.random() * 0.01)
        world.at(self.last, self.arrive, sent)

    def arrive(self, message: Message) -> None:
        if not self.closed:
            self.receive(self.node.host, message)


class Node:
    """A node's part of an attempt. ranks: their numbers. works: when each of them ends well."""

    def __init__(
        self,
        world: World,
        host: str,
        clock: float,
        ranks: range,
        works: tuple[float, ...],
        timeout: float,
        lease: float,
    ) -> None:
        self.world, self.host, self.clock, self.ranks = world, host, clock, ranks
        self.timeout, self.lease = timeout, lease
        self.live = set(range(len(ranks)))
        self.ends: dict[int, Message] = {}
        self.status: Message = {"event": "status", "state": "running"}
        self.engine = self.supervisor = True
        self.round = 0  # how often an elastic engine has started them
        self.ending = self.final = self.hung = self.off = self.deaf = False
        self.thaw = self.gone = 0.0
        self.stop_heard: float | None = None
        self.links: list[Link] = []
        self.unsent: list[Message] = []
        self.exit: dict[str, Any] = {}  # of the engine
        for rank, when in enumerate(works):
            self.at(world.now + when, self.end_well, rank, 0)

    def at(self, when: float, work: Callable[..., None], *args: Any) -> None:
        """Has it done then, unless the node is not there any more; later, where it is frozen."""
        self.world.at(when, self._do, self.gone, work, args)

    def _do(self, gone: float, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        if self.thaw > self.world.now:
            self.world.at(self.thaw, self._do, gone, work, args)
        elif self.gone == gone:
            work(*args)

    def soon(self, least: float, most: float, work: Callable[..., None], *args: Any) -> None:
        self.at(self.world.now + self.world.rng.uniform(least, most), work, *args)

    @property
    def time(self) -> float:
        return self.world.now + self.clock

    # -- what it sends ----------------------------------------------------------------------------------------
    def hello(self, link: Link) -> None:
        """All that is known, to who connects. Its time comes last, as from a node."""
        for message in [*sorted(self.ends.values(), key=lambda end: end["time"]), self.status]:
            if message.get("state") != "running":
                link.send(message)
        self.send_time()

    def send_time(self) -> None:
        for link in self.links:
            link.send({"event": "clock", "up": None}, fast=True)

    def report(self, message: Message) -> None:
        self.unsent.append(message)
        self.soon(0.01, 0.04, self.send_all)

    def send_all(self) -> None:
        """What is on record there, and not sent yet."""
        for message in self.unsent:
            for link in self.links:
                link.send(message)
        self.unsent = []

    def put(self, **status: Any) -> None:
        self.status = {"event": "status", "time": self.time, **status}
        self.final = status["state"] != "stopping"
        self.report(self.status)

    # -- ranks ------------------------------------------------------------------------------------------------
    def end_well(self, rank: int, round: int) -> None:
        if round == self.round:
            self.end(rank, 0)

    def end(self, rank: int, code: int, signalled: bool = False) -> None:
        """code: a status; below 0, a signal."""
        if rank not in self.live or self.final or self.hung and code == 0 and not self.ending:
            return
        self.live.discard(rank)
        status, signal = (code, None) if code >= 0 else (None, -code)
        end = {"event": "rank", "rank": self.ranks[rank], "local_rank": rank, "status": status, "signal": signal}
        end.update(time=self.time, attempt=self.round, signalled=signalled)
        if self.status.get("cause") == "asked":
            end["asked"] = True
        self.ends[rank] = end
        self.report(end)
        if self.ending:
            self.finish_if()
        elif code and self.engine and not signalled:
            self.soon(0.02, 0.3, self.engine_reacts)
        elif not self.live and self.engine and not any(e["status"] or e["signal"] for e in self.ends.values()):
            self.soon(0.9, 1.1, self.engine_ends, {"engine_status": 0})

    def engine_reacts(self) -> None:
        """It passes a failure on to the rank's neighbours, and ends."""
        if self.engine and not self.ending:
            for rank in list(self.live):
                self.soon(0.005, 0.2, self.end, rank, -SIGTERM, True)
            self.soon(0.25, 0.5, self.engine_ends, {"engine_status": 1})

    def engine_ends(self, how: dict[str, Any]) -> None:
        if self.engine:
            self.engine, self.exit = False, how
            self.soon(0.0, 0.03 if "engine_status" in how else 0.4, self.engine_ended)

    def engine_killed(self, code: int) -> None:
        """Ranks end with it: at once, where it was killed."""
        if self.engine and not self.final:
            for rank in list(self.live) if code < 0 else ():
                self.soon(0.005, 0.05, self.end, rank, -SIGTERM)
            self.engine_ends({"signal": -code} if code < 0 else {"engine_status": code})

    def engine_ended(self) -> None:
        if not self.ending:
            self.end_all(2.0, state="exited", cause="engine", began=self.time)

    def over(self) -> None:
        """All ranks on all nodes ended well."""
        if self.engine and not self.live and not self.ending:
            self.engine_ends({"engine_status": 0})

    # -- its own end ------------------------------------------------------------------------------------------
    def stop(self, cause: str, grace: float, end: Any = None) -> None:
        if self.off:  # nobody keeps it
            self.bury("reboot")
        if not self.engine and self.supervisor and not self.ending:  # it sees that first
            self.engine_ended()
        if self.ending or self.final or not self.supervisor:
            return
        began = self.time
        self.put(state="stopping", reason=cause, cause=cause, began=began, end=end)
        self.end_all(grace, state="stopped", reason=cause, cause=cause, began=began, end=end)

    def end_all(self, grace: float, **status: Any) -> None:
        self.ending, self.last = True, status
        for rank in list(self.live):
            kind, (least, most) = self.world.rng.random(), (0.01, min(0.6, grace))
            if grace <= 0.0 or kind < 0.1 or self.hung or self.deaf:  # it does not listen
                self.soon(grace, grace + 0.05, self.end, rank, -SIGKILL)
            else:
                self.soon(least, most, self.end, rank, -SIGTERM if kind < 0.75 else 1 if kind < 0.9 else 0)
        self.finish_if()

    def finish_if(self) -> None:
        if not self.live:
            self.soon(0.03, 0.05, self.finish)

    def finish(self) -> None:
        if not self.final:
            self.put(**{"engine_status": None, "signal": None, **self.last, **self.exit})

    def supervisor_killed(self) -> None:
        """The guardian, or who follows the run, ends what is left."""
        if self.supervisor and not self.final:
            self.supervisor = False
            if not self.ending:
                early = self.world.rng.random() < 0.3  # it takes its engine with it before anybody notices
                for rank in list(self.live) if early else ():
                    self.soon(0.005, 0.05, self.end, rank, -SIGTERM)
            self.engine = False
            self.soon(0.0, 1.0, self.bury, "supervisor")

    def bury(self, cause: str) -> None:
        self.off = False
        if not self.final:
            began = self.last_sign if cause == "reboot" else self.time
            said = self.status if self.status["state"] == "stopping" else {"cause": cause, "began": began, "end": None}
            self.exit = {}
            first = {name: said[name] for name in ("cause", "began", "end")}  # the first word counts
            self.end_all(2.0, state="lost", reason=first["cause"], **first)

    def frozen(self, until: float) -> None:
        self.thaw = until
        if until - self.world.now > self.timeout:
            self.world.at(until, self.stop, "frozen", 3.0)

    def power_off(self, until: float, beat: float) -> None:
        """beat: seconds between two renewals of its lease, the last sign of life that it finds."""
        self.gone, self.off = self.gone + 1.0, True
        self.last_sign = self.time - self.world.rng.uniform(0.0, beat)
        self.live = set()
        if until < NEVER:
            self.at(until + self.world.rng.uniform(0.0, 0.5), self.bury, "reboot")

    def unheard(self, until: float) -> None:
        """No head renews its lease, until then."""
        ends = self.world.now - self.world.rng.uniform(0.0, 5.0) + self.lease
        if ends < until:
            self.at(ends, self.stop, "lease", 3.0)

    def hear_stop(self, grace: float, end: Any) -> None:
        if self.stop_heard is None:
            self.stop_heard = self.world.now
        self.stop("asked", grace, end)
