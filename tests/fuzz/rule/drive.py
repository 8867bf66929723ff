"""Plays a history: the rule of fleet/node/gang, driven as fleet/ops/run/launch does, by a clock that is simulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleet.node.gang.elastic import ElasticGang
from fleet.node.gang.ends import stopped_by
from fleet.node.gang.verdict import Attempts
from tests.fuzz.rule.draw import DARK, OF_A_RANK, OF_ALL, Event, History
from tests.fuzz.rule.elastic import ElasticNode, Gone, Story
from tests.fuzz.rule.head import Head, Verdict
from tests.fuzz.rule.node import CLOCKS, NEVER, Link, Message, Node, World

RESTARTS = 3  # of an elastic engine, where nobody asks for another number
CONNECT_SECONDS = 10.0  # for which a host is waited for when an attempt begins
LONGEST = 5000.0  # that an attempt may last


@dataclass
class Played:
    """An attempt. began: in seconds since the epoch. hosts: of its nodes. stopped, reported: when its leader had all
    stopped, and when the first message came that was a reason to. lost: that it was given up without. verdicts: that
    the leader and a second head came to. tale: what was sent."""

    number: int
    began: float
    hosts: list[str]
    nodes: list[Node] = field(default_factory=list)
    verdict: Verdict | None = None
    second: Verdict | None = None
    lost: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)  # to the second head
    stopped: float | None = None
    stopped_first: float | None = None  # by either head
    reported: float | None = None
    ended: float | None = None
    why: list[str] = field(default_factory=list)  # who had it stopped, by head
    told: dict[str, float] = field(default_factory=dict)
    tale: list[str] = field(default_factory=list)
    story: Story | None = None


class Play:
    """One attempt, from its begin until nothing of it is left. hosts: numbers of its nodes' hosts."""

    def __init__(self, history: History, number: int, began: float, hosts: list[int], spares: int, tells: bool) -> None:
        self.history, self.number, self.began, self.spares, self.tells = history, number, began, spares, tells
        self.world = world = World(began, history.seed * 31 + number)
        self.own_link = 0.0
        self.hung: float | None = None
        self.played = Played(number, began, [f"n{host}" for host in hosts])
        self.dark: dict[int, float] = {}  # host -> until when its leader does not reach it
        self.hosts = hosts
        attempt, first = history.attempt(number), 0
        self.nodes = self.played.nodes
        for works, count, host in zip(attempt.works, history.ranks, hosts, strict=True):
            ranks = range(first, first := first + count)
            clock = history.clocks[host]
            kind = ElasticNode if history.least else Node
            self.nodes.append(kind(world, f"n{host}", clock, ranks, works, history.timeout, history.lease))
            self.nodes[-1].deaf = attempt.deaf
        self.story = self.played.story = Story(self.nodes, history.least)
        self.heads = [Head(self, number, history.clocks[number - 2]) for number in range(1 + history.looks)]
        for node, host in zip(self.nodes, hosts, strict=True):
            self.join(node, host, 0)
        for index, _ in history.late:
            self.is_late(self.nodes[index])
        for event in attempt.events:
            world.at(began + event.at, self.befalls, event)

    def join(self, node: Node, host: int, round: int) -> None:
        """Heads begin to follow it."""
        for head in self.heads:
            latency = self.history.latency[host] if head.leads else self.history.latency[-1 - host]
            node.links.append(Link(self.world, node, latency, self.history.slow, head.receive))
        for when in CLOCKS:
            node.at(self.world.now + when, node.send_time)
        if isinstance(node, ElasticNode):
            node.begin(self.story, self.history.most or RESTARTS, round)

    def is_late(self, node: Node) -> None:
        """An elastic run begins without it."""
        gang = self.heads[0].gang
        node.power_off(NEVER, 0.0)
        node.engine = False
        gang.absent.add(node.host)
        gang.node_lost(node.host, self.heads[0].time, {"kind": "unreachable", "message": "no answer", "hint": None})
        gang.nodes[node.host].ended = True

    def back(self, index: int) -> None:
        """A host that went takes part again, as soon as it is reached."""
        world, leader, old = self.world, self.heads[0], self.nodes[index]
        if leader.done or leader.gang.stopped_at is not None:
            return
        late = self.began + dict(self.history.late).get(index, 0.0)
        when = max(late, old.thaw, old.links[0].back if old.links[0].is_down else 0.0)
        if when > world.now:
            if when < self.began + LONGEST:
                world.at(when + world.rng.uniform(0.5, 2.0), self.back, index)
            return
        assert isinstance(leader.gang, ElasticGang)
        old.gone += 1.0
        for link in old.links:
            link.closed = True
        new = ElasticNode(world, old.host, old.clock, old.ranks, (), old.timeout, old.lease)
        new.live, new.deaf = set(), old.deaf
        self.nodes[index] = new
        self.join(new, self.hosts[index], old.round + 1)
        leader.gang.back(new.host)
        leader.silent.pop(new.host, None)
        self.tell(f"{new.host} is back")
        self.story.backs.append((new.host, world.now))
        for node in self.nodes:
            if isinstance(node, ElasticNode):
                node.soon(0.5, 1.5, node.meet)

    def play(self) -> Played:
        world, last, leader = self.world, self.began + LONGEST, self.heads[0]
        while world.now < last and world.step():
            if leader.done and self.played.ended is None:
                self.played.ended = world.now
        played, gang = self.played, leader.gang
        played.verdict = leader.verdict
        played.lost = {host for host, node in gang.nodes.items() if node.lost is not None}
        if self.history.looks:
            played.second, played.unknown = self.heads[1].verdict, self.heads[1].gang.unknown
        return played

    # -- notes ----------------------------------------------------------------------------------------------------
    def tell(self, text: str) -> None:
        if self.tells:
            self.played.tale.append(f"{self.world.now - self.began:8.3f} s  {text}")

    def heard(self, head: Head, message: Message) -> None:
        """Notes when the leader got the first report of what no run goes on after."""
        if head.leads and self.played.reported is None and is_bad(message):
            self.played.reported = self.world.now

    def stops(self, head: Head, end: Verdict) -> None:
        self.played.why.append(f"{head.number} {end['by']}")
        self.tell(f"head {head.number} has all stopped: {end['message']}")
        self.played.stopped_first = self.played.stopped_first or self.world.now
        if head.leads:
            self.played.stopped = self.world.now
            if self.played.reported is None:
                self.played.reported = self.world.now

    # -- what befalls it ------------------------------------------------------------------------------------------
    def befalls(self, event: Event) -> None:
        if self.heads[0].done:
            return
        if self.history.least:
            self.goes(event, self.nodes[event.node])
        self.tell(str(event))
        world, node, leader = self.world, self.nodes[event.node], self.heads[0]
        if node.off and event.what in OF_A_RANK:
            return
        until = world.now + event.lasts if event.lasts < 1e9 else NEVER
        if event.what == "fail":
            node.at(world.now, node.end, event.rank, event.code)
        elif event.what == "engine":
            node.at(world.now, node.engine_killed, event.code)
        elif event.what == "supervisor":
            node.at(world.now, node.supervisor_killed)
        elif event.what == "signal":
            node.at(world.now, node.stop, "signal", self.history.grace)
        elif event.what == "hang":
            self.hung = world.now
            for each in self.nodes:
                each.hung = True
        elif event.what == "interrupt":
            leader.interrupt()
        elif event.what == "stop":
            for each in self.nodes:
                if not each.off:
                    each.soon(0.0, 0.3, each.hear_stop, self.history.grace, stopped_by("user@c"))
        elif event.what == "looker's link":
            for head in self.heads[1:]:
                self.cut(head, self.nodes, until)
        elif event.what == "head freeze":
            leader.thaw = until
            self.unheard(self.nodes, until)
        elif event.what in DARK:
            self.darken(event.what, node, until)
        elif event.what in OF_ALL:
            self.own_link = until if event.what == "own link" else 0.0
            for each in self.nodes:
                self.darken("freeze" if event.what == "all freeze" else "cut", each, until)

    def goes(self, event: Event, node: Node) -> None:
        """Notes what is a node's end."""
        now, host, lasts = self.world.now, node.host, event.lasts
        heard = node.final and node.status["time"] - node.clock < now - 0.2
        if heard or node.off:
            return
        now = max(now, node.thaw if node.thaw < NEVER else now)
        unsure = node.final or not node.engine or isinstance(node, ElasticNode) and node.done
        if event.what in ("supervisor", "signal") and not node.ending:
            said = ("failure", 1, host, None, event.what)
            self.story.gone.append(Gone(host, now, now + 1.1, now + 5.0, said, unsure=unsure))
        elif event.what == "engine" and not node.ending:
            code = event.code if event.code > 0 else 128 - event.code
            said = ("failure", code, host, None, "engine")
            self.story.gone.append(Gone(host, now, now + 0.5, now + 4.0, said, event.code > 0, unsure))
        elif event.what == "reboot":
            said = ("failure", 122, host, None, "reboot")
            begins = now - self.history.beat - 0.1
            self.story.gone.append(Gone(host, begins, now, now + lasts + 3.0, said, unsure=unsure))
        elif event.what in DARK and lasts > self.history.timeout:
            begins, latest = now - self.history.beat - 0.1, now + self.history.timeout + self.history.lease
            said = ("lost", 122, host, None, "node")
            self.story.gone.append(Gone(host, begins, now, latest, said, unsure=unsure))

    def darken(self, what: str, node: Node, until: float) -> None:
        self.dark[self.hosts[self.nodes.index(node)]] = until
        if what == "freeze":
            node.frozen(until)
        elif what in ("power", "reboot"):
            node.power_off(until, self.history.beat)
        for head in self.heads if what != "cut" else self.heads[:1]:
            self.cut(head, [node], until, what == "reboot")
        if what == "cut":
            self.unheard([node], until)

    def cut(self, head: Head, nodes: list[Node], until: float, breaks: bool = False) -> None:
        for node in nodes:
            link = node.links[head.number]
            if not link.is_down or until > link.back:
                link.cut(until, breaks)
                head.hears_nothing(node.host, link)

    def unheard(self, nodes: list[Node], until: float) -> None:
        for node in nodes if not self.history.looks else ():
            node.unheard(until)


def is_bad(message: Message) -> bool:
    if message["event"] == "rank":
        return bool(message["status"] or message["signal"]) and not message.get("asked")
    state = message.get("state", "running")
    return state != "running" and (state != "exited" or bool(message.get("engine_status") or message.get("signal")))


@dataclass
class Run:
    """All attempts. gave_up: nodes that no attempt could begin on again. after: what the rule said of going on."""

    attempts: list[Played] = field(default_factory=list)
    replaced: list[bool] = field(default_factory=list)
    refused: bool = False
    restarts: int = 0


def play(history: History, tells: bool = False) -> Run:
    """Returns how a history goes by the rule."""
    run, now = Run(), 1_700_000_000.0
    hosts, spares = (
        list(range(len(history.ranks))),
        list(range(len(history.ranks), len(history.ranks) + history.spares)),
    )
    attempts, dark, number = Attempts(history.most), dict[int, float](), 0
    while True:
        one = Play(history, number, now, hosts, len(spares), tells)
        played = one.play()
        run.attempts.append(played)
        dark.update(one.dark)
        if played.verdict is None or played.ended is None or number > 20:
            return run
        first = played.verdict["first"]
        lost = played.lost | ({first["host"]} if first and first["what"] == "frozen" else set())
        verdict: Any = played.verdict
        after = attempts.after(verdict, len(lost), len(spares), played.ended - now, history.least)
        if after is None:
            return run
        attempts, run.restarts = after, after.restarts
        run.replaced.append(after.replaces)
        gone = {host for host in hosts if f"n{host}" in lost} if after.replaces else set[int]()
        now, number = played.ended + after.pause, number + 1
        refusing = {hosts[node] for node in history.attempt(number).refuses} | {
            host for host in hosts if dark.get(host, 0.0) > now + CONNECT_SECONDS
        }
        gone |= refusing
        if len(gone) > len(spares) or (gone and one.own_link > now + CONNECT_SECONDS):
            run.refused = True
            return run
        hosts = [spares.pop(0) if host in gone else host for host in hosts]
        now = max([now, *(dark.get(host, 0.0) + 1.0 for host in hosts)])
