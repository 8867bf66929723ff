"""A head that follows an attempt, and drives the rule by what it hears, as fleet/ops/run/launch does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fleet.node.gang.elastic import ElasticGang, gang_of
from fleet.node.gang.ends import Failure, run_end
from fleet.node.gang.gang import Gang
from fleet.node.gang.silence import Silence, Watch
from fleet.node.gang.verdict import About, Outputs, decide, own_link
from fleet.protocol.codes import EXIT_TIMEOUT
from fleet.protocol.state import FINAL
from tests.fuzz.rule.elastic import ElasticNode, Outcome
from tests.fuzz.rule.node import NEVER, Link, Message, Node

if TYPE_CHECKING:
    from tests.fuzz.rule.drive import Play

LOOK_SECONDS = 0.5  # between two looks for a stall
WORDS = Outputs()
Verdict = dict[str, Any]


class Head:
    """Follows an attempt. number: 0 leads, 1 looks on."""

    def __init__(self, play: Play, number: int, clock: float) -> None:
        self.play, self.number, self.clock, self.leads = play, number, clock, number == 0
        history = play.history
        parts = {node.host: (rank, list(node.ranks)) for rank, node in enumerate(play.nodes)}
        self.gang: Gang = gang_of(parts, history.least)
        self.silence = Silence(history.timeout, history.lease)
        self.watch = Watch(history.stall if self.leads else None, play.world.now)
        self.silent: dict[str, float] = {}  # host -> since when
        self.well: list[float] = []
        self.spoke = self.looked = play.began
        self.thaw, self.done, self.ticking = 0.0, False, False
        self.verdict: Verdict | None = None
        if history.stall is not None and self.leads or history.least:
            self.tick_from(1.0)

    @property
    def time(self) -> float:
        return self.play.world.now + self.clock

    def receive(self, host: str, message: Message) -> None:
        world, node = self.play.world, self.gang.nodes[host]
        if self.thaw > world.now:
            return world.at(self.thaw, self.receive, host, message)
        if self.done or node.lost is not None or host in self.gang.unknown:
            return None
        if self.play.tells:
            self.play.tell(f"head {self.number} hears {host}: {brief(message)}")
        self.play.heard(self, message)
        reason = self.gang.receive(host, message, self.time)  # type: ignore[arg-type]
        if message.get("state") in FINAL:
            node.ended = True
        self.stop_if(reason)
        if message["event"] == "rank":
            if message["status"] == 0 and not self.gang.least:
                self.well.append(world.now)
            if self.gang.all_well:
                for each in self.play.nodes:
                    each.at(world.now + 0.05, each.over)
        return self.look() if message["event"] != "clock" or self.silent or self.gang.least else None

    # -- stops --------------------------------------------------------------------------------------------------
    def stop_if(self, end: Any) -> None:
        said: Any = end and {**end, "who": end["who"] or f"user@head{self.number}", "attempt": self.play.number}
        if said is None or not self.gang.stop(said, self.time):
            return
        self.play.stops(self, said)
        for node in self.play.nodes:
            if not self.gang.nodes[node.host].ended:
                self.send_stop(node, 0.0)

    def send_stop(self, node: Node, wait: float) -> None:
        link = node.links[self.number]
        self.play.world.at(self.play.world.now + wait + link.latency, self.stop_at, node, link)

    def stop_at(self, node: Node, link: Link) -> None:
        """It comes to a node, now or as soon as it is reached again."""
        world = self.play.world
        if not link.is_down:
            node.at(world.now, node.hear_stop, self.play.history.grace, self.gang.end)
        elif link.back < NEVER:
            world.at(link.back + 0.01, self.stop_at, node, link)

    def interrupt(self) -> None:
        if self.thaw > self.play.world.now:
            return self.play.world.at(self.thaw, self.interrupt)
        if not self.done and self.gang.stopped_at is None:
            self.stop_if(run_end("interrupt", "interrupted", 130))
        return self.look()

    # -- silence ------------------------------------------------------------------------------------------------
    def hears_nothing(self, host: str, link: Link) -> None:
        """A link is cut now: when that is noticed, the last message was some time ago."""
        world = self.play.world
        heard = max(
            world.now - world.rng.uniform(0.0, self.play.history.beat), min(link.last, world.now), self.play.began
        )
        if link.broken:
            world.at(heard + self.play.history.timeout / 3, self.is_silent, host, heard, link)
            world.at(link.back, self.is_back, host, link)

    def is_silent(self, host: str, since: float, link: Link) -> None:
        if link.is_down and not link.closed:
            self.silent.setdefault(host, since)
            self.tick_from(0.0)

    def is_back(self, host: str, link: Link) -> None:
        if not link.is_down:
            self.silent.pop(host, None)

    def tick_from(self, wait: float) -> None:
        if not self.ticking and not self.done:
            self.ticking = True
            self.play.world.at(self.play.world.now + wait, self.tick)

    def tick(self) -> None:
        self.ticking = False
        world = self.play.world
        if self.thaw > world.now:
            self.ticking = True
            return world.at(self.thaw, self.tick)
        self.look()
        if self.silent:
            self.tick_from(0.5)
        elif self.watch.timeout is not None or self.gang.least:
            self.tick_from(1.5)
        return None

    def look(self) -> None:
        """What the loop of a run does after each message, and some times a second."""
        if self.done:
            return
        if self.silent:
            self.watch_silence()
        if isinstance(self.gang, ElasticGang):
            self.watch_elastic(self.gang)
        if self.watch.timeout is not None and self.gang.stopped_at is None:
            self.watch_stall()
        if all(node.ended for node in self.gang.nodes.values()):
            self.conclude()

    def watch_silence(self) -> None:
        world, gang = self.play.world, self.gang
        live = {h: self.silent.get(h) for h, node in gang.nodes.items() if not node.ended and node.lost is None}
        wait = gang.stopped_at is None and not self.link_is_whole(live)
        for host, silent in self.silence.over(live, world.now, wait).items():
            self.lose(host, self.time - silent)

    def link_is_whole(self, live: dict[str, float | None]) -> bool:
        """Returns whether somebody else answers, while all that are live are silent."""
        if any(since is None for since in live.values()):
            return False
        over = [node for node in self.play.nodes if self.gang.nodes[node.host].ended]
        return any(self.reaches(node) for node in over if self.gang.nodes[node.host].lost is None) or self.has_spare

    def reaches(self, node: Node) -> bool:
        return not node.links[self.number].is_down and node.thaw <= self.play.world.now

    @property
    def has_spare(self) -> bool:
        return bool(self.play.spares) and self.play.own_link <= self.play.world.now

    def lose(self, host: str, when: float) -> None:
        node = self.gang.nodes[host]
        node.ended = True
        self.play.tell(f"head {self.number} loses {host}")
        if not self.leads:
            self.gang.unknown.add(host)
        elif node.state not in FINAL:
            self.stop_if(self.gang.node_lost(host, when, {"kind": "lost", "message": "silent", "hint": None}))

    # -- stalls, elastic runs -------------------------------------------------------------------------------------
    def watch_stall(self) -> None:
        now, nodes = self.play.world.now, self.play.nodes
        if now - self.looked < LOOK_SECONDS:
            return
        self.looked = now
        if any(node.live and not node.hung for node in nodes):
            self.spoke = now
        spoke = self.spoke if self.play.hung is None else self.play.hung
        left = [(node.host, rank) for node in nodes for rank in self.gang.nodes[node.host].unaccounted]
        blind = any(not self.gang.nodes[host].ended for host in self.silent)
        kind = self.watch.look(now, spoke, self.well, len(left), blind)
        if kind == "stalled" and self.watch.still_stalled(now - self.watch.progress(spoke, self.well)):
            host, rank = left[0]
            why: Any = {"kind": "stalled", "message": "no rank wrote anything", "hint": None}
            node_rank = self.gang.nodes[host].node_rank
            self.gang.stall = Failure(host, node_rank, EXIT_TIMEOUT, self.time, rank, 0, what="stalled", why=why)
            self.stop_if(self.gang.stall.reason("no rank wrote anything"))

    def watch_elastic(self, gang: ElasticGang) -> None:
        play = self.play
        turn = gang.look(play.world.now)
        for index, node in enumerate(play.nodes):
            if node.host in turn.went and gang.stopped_at is None:
                self.play.tell(f"{node.host} is out")
                play.world.at(play.world.now + 2.0, play.back, index)
            if isinstance(node, ElasticNode) and node.host in turn.renew and not node.links[0].is_down:
                self.play.tell(f"ranks of {node.host} are to be ended")
                node.at(play.world.now + node.links[0].latency, node.renew)
            if turn.over:
                node.at(play.world.now + 0.05, node.over)
        self.stop_if(turn.end)

    # -- the end --------------------------------------------------------------------------------------------------
    def conclude(self) -> None:
        self.done = True
        lost = {host for host, node in self.gang.nodes.items() if node.lost is not None}
        if lost and self.play.spares and own_link(self.gang) is not None:
            self.gang.link_is_whole = self.has_spare
        history = self.play.history
        about = About("run", "torchrun", self.play.number)
        self.verdict = self.gang.verdict or decide(about, self.gang, WORDS)  # type: ignore[assignment]
        self.play.tell(f"head {self.number}: {outcome(self.verdict)}")
        for node in self.play.nodes if lost and history else ():
            if node.host in lost and node.links[self.number].back < NEVER:
                self.stop_at(node, node.links[self.number])


def brief(message: Message) -> str:
    names = ("event", "rank", "status", "signal", "asked", "signalled", "state", "cause", "engine_status")
    return " ".join(f"{name}={message[name]}" for name in names if message.get(name) is not None)


def outcome(verdict: Verdict | None) -> Outcome | None:
    if verdict is None:
        return None
    first = verdict["first"]
    if first is None or first["what"] == "link":
        return verdict["by"], verdict["code"], None, None, first and first["what"]
    return verdict["by"], verdict["code"], first["host"], first["rank"], first["what"]
