"""Plays a history: the rule of fleet/node/gang, driven as fleet/ops/run/launch does, by a clock that is simulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fleet.node.gang.attempts import Attempts
from fleet.node.gang.elastic import ElasticGang, gang_of
from fleet.node.gang.ends import Failure, run_end, stopped_by
from fleet.node.gang.gang import Gang
from fleet.node.gang.silence import Silence, Watch
from fleet.node.gang.verdict import About, Words, decide, own_link
from fleet.protocol.codes import EXIT_TIMEOUT
from fleet.protocol.state import FINAL
from tests.fuzz.rule.draw import DARK, OF_ALL, Event, History
from tests.fuzz.rule.elastic import ElasticNode, Gone, Outcome, Story
from tests.fuzz.rule.node import CLOCKS, NEVER, Link, Message, Node, World

RESTARTS = 3  # of an elastic engine, where nobody asks for another number
CONNECT_SECONDS = 10.0  # for which a host is waited for when an attempt begins
LOOK_SECONDS = 0.5  # between two looks for a stall
LONGEST = 5000.0  # that an attempt may last
WORDS = Words()
Verdict = dict[str, Any]


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
    reported: float | None = None
    ended: float | None = None
    why: list[str] = field(default_factory=list)  # who had it stopped, by head
    told: dict[str, float] = field(default_factory=dict)
    tale: list[str] = field(default_factory=list)
    story: Story | None = None


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
        reason = self.gang.heard(host, message, self.time)  # type: ignore[arg-type]
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
        said = end and {**end, "who": end["who"] or f"user@head{self.number}", "attempt": self.play.number}
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


class Play:
    """One attempt, from its begin until nothing of it is left. hosts: numbers of its nodes' hosts."""

    def __init__(self, history: History, number: int, began: float, hosts: list[int], spares: int, tells: bool) -> None:
        self.history, self.number, self.began, self.spares, self.tells = history, number, began, spares, tells
        self.world = world = World(began, history.seed * 31 + number)
        self.own_link, self.hung = 0.0, None
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
            node.at(self.world.now + when, node.tell_time)
        if isinstance(node, ElasticNode):
            node.begin(self.story, self.history.most or RESTARTS, round)

    def is_late(self, node: Node) -> None:
        """An elastic run begins without it."""
        gang = self.heads[0].gang
        node.power_off(NEVER)
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
            self.hung: float | None = world.now
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
        if heard or node.off or node.thaw > now:
            return
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
            self.story.gone.append(Gone(host, now, now + lasts + 1.0, now + lasts + 3.0, said, unsure=unsure))
        elif event.what in DARK and lasts > self.history.timeout:
            begins, latest = now - self.history.beat - 0.1, now + self.history.timeout + self.history.lease
            said = ("lost", 122, host, None, "node")
            self.story.gone.append(Gone(host, begins, now, latest, said, unsure=unsure))

    def darken(self, what: str, node: Node, until: float) -> None:
        self.dark[self.hosts[self.nodes.index(node)]] = until
        if what == "freeze":
            node.frozen(until)
        elif what in ("power", "reboot"):
            node.power_off(until)
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
