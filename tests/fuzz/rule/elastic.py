"""Nodes of an elastic run: their engines start ranks again, and take part anew when they come back; how such a run must
end, from what they did."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.fuzz.rule.draw import BY_HAND, LATENCY, SIGKILL, SIGTERM, History
from tests.fuzz.rule.node import UP_SECONDS, Node

Outcome = tuple[str, int, "str | None", "int | None", "str | None"]  # by, code, host, rank, what
ERROR = LATENCY + 0.1


class Gone(NamedTuple):
    """A node is out, in seconds since the epoch. begins, ends: when that may seem to have been. latest: when its leader
    knows. fatal: whatever is left."""

    host: str
    begins: float
    ends: float
    latest: float
    outcome: Outcome
    fatal: bool = False
    unsure: bool = False  # its ranks, or its engine, had ended


@dataclass
class Story:
    """What nodes of an elastic run did. nodes: those that are there now. least: that ranks need to start. failures: of
    ranks, by themselves. stuck: when ranks could not be started again, for too few meet."""

    nodes: list[Node]
    least: int
    gone: list[Gone] = field(default_factory=list)
    backs: list[tuple[str, float]] = field(default_factory=list)
    failures: list[tuple[float, Outcome]] = field(default_factory=list)
    stuck: float | None = None

    @property
    def able(self) -> int:
        """Returns how many engines may start ranks."""
        return sum(isinstance(it, ElasticNode) and it.engine and not it.ending and not it.done for it in self.nodes)


class ElasticNode(Node):
    """left: restarts that its engine has."""

    def begin(self, story: Story, left: int, round: int) -> None:
        self.story, self.left, self.round, self.reacts, self.told_over = story, left, round, -1, False
        self.at(self.world.now + UP_SECONDS, self.tell_up)

    def tell_up(self) -> None:
        self.send_time()
        if not self.final:
            self.at(self.world.now + UP_SECONDS, self.tell_up)

    def send_time(self) -> None:
        up = len(self.live)
        self.send_all()
        for link in self.links:
            link.send({"event": "clock", "up": up}, fast=True)

    @property
    def done(self) -> bool:
        """Returns whether its ranks have all ended well: it meets nobody any more."""
        ends = [end for end in self.ends.values() if end["attempt"] == self.round and end["status"] == 0]
        return not self.live and len(ends) == len(self.ranks)

    def end(self, rank: int, code: int, signalled: bool = False) -> None:
        there = rank in self.live
        super().end(rank, code, signalled)
        if there and rank not in self.live and code and not signalled and not self.ending:
            said = ("failure", code if code > 0 else 128 - code, self.host, self.ranks[rank], "rank")
            self.story.failures.append((self.world.now, said))

    def engine_reacts(self) -> None:
        """After a failure all ranks are started again, here and on the nodes that have met; at last it gives up."""
        if not self.engine or self.ending or self.reacts == self.round:
            return
        self.reacts = self.round
        if self.left:
            self.left -= 1
            self.meet()
            for peer in self.story.nodes:
                if peer is not self and isinstance(peer, ElasticNode):
                    peer.soon(0.2, 1.5, peer.meet)
            return
        when, said = next(it for it in reversed(self.story.failures) if it[1][2] == self.host)
        self.story.gone.append(Gone(self.host, when, when, self.world.now + 1.5, said, True))
        for rank in list(self.live):
            self.soon(0.005, 0.2, self.end, rank, -SIGTERM, True)
        self.soon(0.25, 0.5, self.engine_ends, {"engine_status": 1})

    def meet(self) -> None:
        """It ends its ranks, and starts them anew with those of the others."""
        if self.engine and not self.ending and not self.done:
            self.reacts = self.round
            for rank in list(self.live):
                self.end(rank, -SIGTERM, True)
            self.soon(0.5, 1.5, self.start, self.round)

    def start(self, after: int) -> None:
        """after: the round of those that it ended."""
        if not self.engine or self.ending or self.live or self.done or self.round != after:
            return
        if self.story.able < self.story.least:
            self.story.stuck = self.world.now
            return
        self.round += 1
        self.live = set(range(len(self.ranks)))
        for rank in self.live:
            self.soon(4.0, 12.0, self.end_well, rank, self.round)

    def engine_ends(self, how: dict[str, Any]) -> None:
        """Done, it waits for the others."""
        if how == {"engine_status": 0} and not self.told_over and self.story.able:
            self.soon(1.0, 1.0, self.engine_ends, how)
        else:
            super().engine_ends(how)

    def over(self) -> None:
        self.told_over = True
        if self.engine and not self.live and not self.ending:
            super().engine_ends({"engine_status": 0})

    def renew(self) -> None:
        """Its ranks are killed: they wait for one that is gone."""
        if self.engine and not self.ending and self.live:
            self.left += 1  # this is none of those that it has
            for rank in list(self.live):
                self.end(rank, -SIGKILL)


def allowed(history: History, story: Story, began: float, stopped: float | None) -> set[Outcome]:
    """Returns how an elastic run may end."""
    hosts, late = [node.host for node in story.nodes], dict(history.late)
    sure, perhaps = list[Gone](), list[Gone]()
    dark = [it for it in story.gone if it.outcome[4] == "node"]
    together = len(dark) > 1 or bool(dark and (late or len(story.gone) > 1))  # all that are there are silent, perhaps
    for gone in story.gone:
        others = [it for it in story.gone if it.host != gone.host]
        maybe = {it.host for it in others if it.begins <= gone.latest and not _back(story, it, gone.begins)}
        surely = {it.host for it in others if it.latest <= gone.begins and not _back(story, it, gone.latest)}
        for node in late:
            back = next((at for host, at in story.backs if host == hosts[node]), 1e18)
            maybe |= {hosts[node]} if back >= gone.begins else set()
            surely |= {hosts[node]} if back > gone.latest else set()
        maybe |= {node.host for node in story.nodes if _done(node) < gone.latest + 10.0}  # they start no ranks again
        first, left = gone.host == hosts[0], len(hosts) - 1
        if gone.fatal or first or left - len(maybe - {gone.host}) < story.least:
            perhaps.append(gone)
            hidden = gone.unsure or together or any(it.host == gone.host and it.begins < gone.begins for it in dark)
            if not hidden and (gone.fatal or first or left - len(surely - {gone.host}) < story.least):
                sure.append(gone)
    ends = min((it.ends for it in sure), default=1e18) + ERROR
    known = min((it.latest for it in sure), default=1e18) + history.slow
    unheard = [it for it in story.gone if it.latest >= min((each.begins for each in perhaps), default=1e18)]
    found = {it.outcome for it in [*perhaps, *unheard] if it.begins - ERROR <= ends}
    if together:
        found.add(("lost", 122, None, None, "link"))
        found |= {("failure", 122, it.host, None, "frozen") for it in dark}
        found |= {("lease", 124, it.host, None, "lease") for it in dark}
    reacts = 4.0 + max((event.lasts for event in history.attempt(0).events if "freeze" in event.what), default=0.0)
    for at, said in story.failures:
        if story.stuck is not None or any(it.begins - reacts <= at <= it.ends + ERROR for it in perhaps):
            found.add(said)
        if any(
            it.host == said[2] and it.outcome[4] in ("node", "reboot") for it in story.gone
        ):  # nobody hears that it goes on
            found.add(said)
    if story.stuck is not None:  # too few can start ranks again
        found |= {it.outcome for it in story.gone} | {("failure", 1, None, None, None)}
        found |= {("failure", 1, host, None, None) for host in hosts}
        found |= {("lost", 122, hosts[node], None, "node") for node in late}
    if not sure:
        found.add(("done", 0, None, None, None))
    hand = next((event for event in history.attempt(0).events if event.what in BY_HAND), None)
    if hand is not None and (began + hand.at <= known + 0.5 or dark):
        said = (hand.what, 130, None, None, None)
        soonest = min([it.begins for it in story.gone if it in perhaps], default=1e18)
        over = all(node.final and node.status["time"] - node.clock < began + hand.at for node in story.nodes)
        if not over and soonest > began + hand.at + 0.5 and stopped is not None and story.stuck is None:
            return {said}
        found.add(said)
    return found


def _done(node: Node) -> float:
    """Returns since when its ranks have all ended well."""
    ended = isinstance(node, ElasticNode) and node.done
    return max(end["time"] for end in node.ends.values()) - node.clock if ended else 1e18


def _back(story: Story, gone: Gone, at: float) -> bool:
    """Returns whether it had come back until then."""
    return any(host == gone.host and gone.begins < when <= at for host, when in story.backs)
