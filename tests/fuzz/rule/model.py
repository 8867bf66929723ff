"""How a history must end, from what truly befell it and when: nothing here knows the rule.

Each cause has the span of times at which a head may place it: clocks are set right by messages, which take a while, and
a link that is down was up when the last message came. A cause may be the first where its span does not lie behind
another's.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.fuzz.rule.draw import BY_HAND, DARK, LATENCY, OF_ALL, SIGTERM, Event, History
from tests.fuzz.rule.drive import Played, Run
from tests.fuzz.rule.elastic import Outcome, allowed
from tests.fuzz.rule.head import outcome

TIE = 0.1
ERROR = LATENCY + 0.02  # of a time on another machine's clock
POLL = 0.05
NOTICED = {"engine": 0.45, "supervisor": 1.1, "signal": 0.05}  # seconds after which a node's own end is on record
NEVER = float("inf")


class Cause(NamedTuple):
    """begins, ends: when it may seem to have been. soonest, latest: when the leader hears of it. sure: it happens."""

    begins: float
    ends: float
    soonest: float
    latest: float
    outcomes: frozenset[Outcome]
    sure: bool = True
    sigterm: bool = False


class Truth:
    """What befell an attempt, in seconds from its begin."""

    def __init__(self, history: History, played: Played) -> None:
        self.history, self.hosts = history, played.hosts
        self.attempt = history.attempt(played.number)
        self.events = list(self.attempt.events)
        hang = min((event.at for event in self.events if event.what == "hang"), default=NEVER)
        self.frozen = [event for event in self.events if event.what in ("freeze", "all freeze")]
        works = self.attempt.works
        self.meant = [[NEVER if self.awake(n, at) >= hang else at for at in of] for n, of in enumerate(works)]
        self.works = [[self.awake(node, at) for at in works] for node, works in enumerate(self.meant)]
        self.over = max(max(works) for works in self.works)
        self.dark = [event for event in self.events if event.what in DARK]
        found = [cause for event in self.events for cause in self.causes(event)]
        self.all = [cause._replace(latest=self.heard(cause.latest)) for cause in found]
        self.hand = next((event for event in self.events if event.what in BY_HAND), None)

    def awake(self, node: int, at: float) -> float:
        """Returns when it is done what is due on a node then: no node does anything while it is frozen."""
        for event in self.frozen:
            if event.at <= at < event.at + event.lasts and (event.what == "all freeze" or event.node == node):
                return event.at + event.lasts
        return at

    def heard(self, at: float) -> float:
        """Returns when the leader hears what is sent to it then, at the latest: it may be frozen, or its link down."""
        for event in self.events:
            if event.what in OF_ALL + DARK and event.at - POLL <= at < event.at + event.lasts + 2.0:
                at = event.at + event.lasts + 2.0
        return at + LATENCY + POLL + self.history.slow

    def ranks(self, node: int) -> range:
        first = sum(self.history.ranks[:node])
        return range(first, first + self.history.ranks[node])

    def error(self, node: int) -> float:
        """Returns by how much later its times may seem to be: as much as the fastest message to a head took."""
        host = int(self.hosts[node][1:])
        latency = self.history.latency
        return (max(latency[host], latency[-1 - host]) if self.history.looks else latency[host]) + 0.012

    def lives(self, node: int, at: float) -> tuple[bool, bool]:
        """Returns whether a node's part has not ended then: surely, and perhaps."""
        last = max(self.works[node])
        return at < last, at < last + 1.5

    def causes(self, event: Event) -> list[Cause]:
        history, node, at = self.history, event.node, self.awake(event.node, event.at)
        host, end = self.hosts[node], event.at + event.lasts
        sure, perhaps = self.lives(node, at)
        if event.what == "fail":
            if event.at >= self.meant[node][event.rank]:
                return []
            before = [e for e in self.events if e.what not in OF_ALL + BY_HAND and e != event and e.node == node]
            sure = not any(-1.5 < at - self.awake(node, e.at) <= 1.5 or e.what in DARK and e.at < at for e in before)
            code = event.code if event.code > 0 else 128 - event.code
            rank = self.ranks(node)[event.rank]
            said = ("failure", code, host, rank, "rank")
            sigterm = event.code == -SIGTERM  # an engine passes a failure on so: not the first, within a tie
            return [Cause(at, at + self.error(node) + TIE * sigterm, at, at, frozenset([said]), sure, sigterm)]
        if event.what in NOTICED and perhaps:
            late, code = NOTICED[event.what], 1
            if event.what == "engine":
                code = 128 - event.code if event.code < 0 else event.code
            ends: set[Outcome] = {("failure", code, host, None, event.what)}
            hidden = any(e.at < at + 3.5 for e in self.events if e.what in OF_ALL or e.what in DARK and e.node == node)
            if hidden:  # nobody hears more than how its ranks answered
                ends |= {("failure", code, host, rank, "rank") for code in (1, 137, 143) for rank in self.ranks(node)}
            after = any(e.at < at and e.what in NOTICED and e.node == node for e in self.events)
            return [Cause(at, at + late + ERROR, at, at + late + 3.0, frozenset(ends), sure and not (hidden or after))]
        if event.what in DARK and self.lives(node, event.at)[1]:
            return self.goes_dark(event, host, self.lives(node, event.at)[0])
        if event.what in OF_ALL:
            return self.all_at_once(event, end)
        if event.what == "hang" and history.stall is not None and any(max(w) == NEVER for w in self.works):
            done = [at for works in self.works for at in works if at < NEVER]
            when = max([event.at, *done]) + history.stall
            blind = [
                e.at + e.lasts for e in self.events if e.what in DARK + OF_ALL and e.lasts < 1e9 and e.at < when + 2.5
            ]
            last = max([when, *(end + history.stall + history.timeout for end in blind)]) + 3.0
            said_by = [("stall", 124, h, rank, "stalled") for h in self.hosts for rank in range(sum(history.ranks))]
            return [Cause(when - TIE - history.timeout, last, when - TIE, last, frozenset(said_by))]
        return []

    def goes_dark(self, event: Event, host: str, sure: bool) -> list[Cause]:
        """A node is not heard of any more: short cuts and freezes are got over."""
        history, end = self.history, event.at + event.lasts
        lost, others = ("lost", 122, host, None, "node"), [e for e in self.dark if e.node != event.node]
        if event.what == "reboot":
            said = ("failure", 122, host, None, "reboot")
            begins = event.at - history.beat - ERROR
            said_by = frozenset([said, lost] if others else [said])
            return [Cause(begins, event.at + ERROR, event.at, end + 2.0, said_by, sure)]
        if event.lasts < history.timeout:
            return []
        long = [e for e in others if e.lasts > history.timeout]
        may: set[Outcome] = {lost}
        if long or sure is False:  # all were silent at once, perhaps: then it is waited for
            sure = sure and event.what == "power"
            own = {"cut": ("lease", 124), "freeze": ("failure", 122)}.get(event.what)
            may |= {("lost", 122, None, None, "link")}
            may |= {(*own, host, None, "lease" if event.what == "cut" else "frozen")} if own else set()
        if history.looks and event.what == "cut":  # another head reaches it
            sure = False
        soonest = event.at + history.timeout - history.beat - 1.0
        latest = event.at + history.timeout + 2.0 if not long else event.at + history.lease + 2 * history.timeout
        # who is silent with all others is silent by itself from their return on
        ends = max(
            [event.at, *(e.at + e.lasts + 2.0 for e in others if e.lasts < 1e9 and e.at < event.at + event.lasts)]
        )
        return [Cause(event.at - history.beat - ERROR, ends + ERROR, soonest, latest, frozenset(may), sure)]

    def all_at_once(self, event: Event, end: float) -> list[Cause]:
        """All nodes fall silent, or hear nothing of their head."""
        history, nodes = self.history, range(len(self.hosts))
        there = [node for node in nodes if self.lives(node, event.at)[1]]
        sure = any(self.lives(node, event.at)[0] for node in nodes)
        lost = {("lost", 122, self.hosts[node], None, "node") for node in there}
        link = ("lost", 122, None, None, "link")
        begins, ends = event.at - history.beat - ERROR, event.at + ERROR
        if not there or event.lasts < history.timeout:
            return []
        alone = len(self.events) == 1  # else the run may be stopping
        if event.what == "own link":
            if event.lasts > history.lease:
                soonest = event.at + history.timeout - history.beat - 1.0
                said = {link} if alone and all(self.lives(node, event.at + 0.1)[0] for node in nodes) else {link, *lost}
                return [Cause(begins, ends, soonest, event.at + history.lease + 5.0, frozenset(said), sure)]
            # waited for, unless the run is being stopped
            return [] if alone else [Cause(begins, ends, NEVER, NEVER, frozenset({link, *lost}), False)]
        if event.what == "all freeze":
            frozen = {("failure", 122, self.hosts[node], None, "frozen") for node in there}
            if history.spares:  # they answer
                soonest = event.at + history.timeout - history.beat - 1.0
                return [Cause(begins, end + 1.0, soonest, end + 3.0, frozenset({link, *frozen, *lost}), sure)]
            stopping = [] if alone else [Cause(begins, ends, NEVER, NEVER, frozenset({link, *lost}), False)]
            return [Cause(end, end + ERROR, end, end + 3.0, frozenset(frozen), sure), *stopping]
        if event.lasts < history.lease or history.looks:
            return []
        when = event.at + history.lease
        there = [node for node in nodes if self.lives(node, when - 5.0)[1]]
        sure = any(self.lives(node, when)[0] for node in nodes)
        lease = frozenset(("lease", 124, self.hosts[node], None, "lease") for node in there)
        return [Cause(when - 5.0 - ERROR, when + ERROR, end, end + 1.0, lease, sure)] if there else []

    # -- how it may end -------------------------------------------------------------------------------------------
    def firsts(self, second: bool) -> list[Cause]:
        """Returns those that may have been the first. second: to a head that may not know who was silent."""
        known = [
            cause for cause in self.all if not second or not any(said[4] in ("node", "link") for said in cause.outcomes)
        ]
        least = min((cause.ends for cause in known if cause.sure), default=NEVER)
        return [cause for cause in self.all if cause.begins <= least]

    def allowed(self, stopped: float | None, second: bool = False) -> set[Outcome]:
        """Returns how it may end. stopped: when a head had all stopped first. second: to a head that does not lead."""
        firsts = self.firsts(second)
        latest = min((cause.latest for cause in self.all if cause.sure), default=NEVER)
        found, hand = set[Outcome](), self.hand
        soonest = min((self.decided(cause) for cause in self.all), default=NEVER)
        surely = False
        if hand is not None:
            at, late = self.comes(hand), 0.1 if hand.what == "interrupt" else 0.4
            if second and any(event.what in DARK + OF_ALL for event in self.events):
                late = NEVER  # some nodes hear of it later
            other = (
                NEVER if hand.what == "stop" and any(e.what in DARK + OF_ALL for e in self.events) else 0.0
            )  # it comes first to those who hear no other
            if at <= latest + late + other and at < self.heard(self.over + 2.0):
                found.add((hand.what, 130, None, None, None))
            ends = [max(of) for n, of in enumerate(self.works) if not any(e.node == n for e in self.dark)]
            last = max(ends, default=0.0) if hand.what == "stop" else self.over  # who hears of it
            surely = at + late < min(soonest, last)
        if not surely:
            for cause in firsts:
                if second or not self.is_an_answer(cause, firsts, stopped):
                    found |= cause.outcomes
            if not any(cause.sure for cause in self.all) and self.over < NEVER:
                found.add(("done", 0, None, None, None))
        return found

    def decided(self, cause: Cause) -> float:
        """Returns when a cause may end the run: a lease does on nodes, before a stop comes to them from elsewhere."""
        by_nodes = self.hand is not None and self.hand.what == "stop" and any(it[0] == "lease" for it in cause.outcomes)
        return cause.begins if by_nodes else cause.soonest

    def comes(self, hand: Event) -> float:
        """Returns when a stop comes to who is to receive it, at the latest."""
        kinds, late = (("head freeze",), 0.0) if hand.what == "interrupt" else (("all freeze", "own link"), 0.5)
        ends = [e.at + e.lasts for e in self.events if e.what in kinds and e.at - late <= hand.at < e.at + e.lasts]
        return max([hand.at, *ends])

    @staticmethod
    def is_an_answer(cause: Cause, firsts: list[Cause], stopped: float | None) -> bool:
        """Returns whether a rank ended by SIGTERM while another one surely failed by itself: an engine passes it on."""
        return cause.sigterm and any(
            other.sure
            and not other.sigterm
            and other.outcomes != cause.outcomes
            and all(said[4] == "rank" for said in other.outcomes)
            and other.ends <= min(each.begins for each in firsts) + TIE
            and (stopped is None or other.ends <= stopped)
            for other in firsts
        )


def judge(history: History, run: Run) -> list[str]:
    """Returns what is not as it must be."""
    wrong, used, restarts = list[str](), set[str](), 0
    for index, played in enumerate(run.attempts):
        wrong += [f"attempt {played.number}: {text}" for text in _attempt(history, played)]
        if wrong:
            return wrong
        last = index == len(run.attempts) - 1
        used |= {host for host in played.hosts if int(host[1:]) >= len(history.ranks)}
        spares = history.spares - len(used)
        ended = outcome(played.verdict)
        lost = len(played.lost | ({str(ended[2])} if ended and ended[4] == "frozen" else set()))
        kind = ended and (ended[0] in (*BY_HAND, "done") or ended[4] in (None, "link") or bool(history.least))
        replaces = not kind and 0 < lost <= spares
        goes_on = not kind and (replaces or restarts < history.most)
        if goes_on == last and not (run.refused and last):
            wrong.append(
                f"attempt {played.number}: {restarts} restarts of {history.most}, {spares} spares, goes on: {not last}"
            )
        restarts += not last and not replaces
    if run.restarts > history.most:
        wrong.append(f"{run.restarts} restarts, of {history.most}")
    return wrong


def _attempt(history: History, played: Played) -> list[str]:
    wrong, verdict = list[str](), played.verdict
    if verdict is None or played.ended is None:
        return ["it has no verdict"]
    if played.story is not None and history.least:
        may = allowed(history, played.story, played.began, played.stopped)
        ended = outcome(verdict)
        return [] if ended in may else [f"it ended with {ended}, where {sorted(may, key=str)} may be"]
    truth = Truth(history, played)
    stopped = played.stopped_first and played.stopped_first - played.began
    may, ended = truth.allowed(stopped), outcome(verdict)
    if ended not in may:
        wrong.append(f"it ended with {ended}, where {sorted(may, key=str)} may be")
    wrong += _second(history, played, truth, may)
    dark = {played.hosts[event.node] for event in truth.dark if event.lasts > history.timeout or event.what == "reboot"}
    dark |= set(played.hosts) if any(event.what in OF_ALL for event in truth.events) else set()
    if not played.lost <= dark:
        wrong.append(f"it lost {sorted(played.lost - dark)}, which were there")
    for event in truth.dark:
        host = played.hosts[event.node]
        there = played.nodes[event.node].final or host in played.lost or event.at >= played.ended - played.began
        if verdict["first"] and event.what == "power" and event.at + 2.0 < truth.over and not there:
            wrong.append(f"it did not lose {host}")
    if played.reported is not None and (played.stopped is None or played.stopped > played.reported + 1.0):
        wrong.append(f"reported after {played.reported - played.began:.3f} s, stopped after {stopped} s")
    for node in played.nodes:
        if node.host in played.lost or node.host in dark or node.final and played.stopped is None:
            continue
        if not node.final:
            wrong.append(f"{node.host} still runs")
        elif played.stopped is not None and not truth.dark and not any(e.what in OF_ALL for e in truth.events):
            late = node.stop_heard is None or node.stop_heard > played.stopped + 1.0
            if (
                late
                and node.clock + played.stopped + 1.0 < node.status["time"]
                and node.status.get("cause") != "supervisor"
            ):
                wrong.append(f"{node.host} was not stopped within a second")
    return wrong


def _second(history: History, played: Played, truth: Truth, may: set[Outcome]) -> list[str]:
    """Of what another head decided by itself."""
    if not history.looks or any(event.what == "own link" for event in truth.events):
        return []
    wrong, second = list[str](), outcome(played.second)
    may |= truth.allowed(played.stopped and played.stopped - played.began, second=True)
    if second is None and not played.unknown:
        wrong.append("a second head has no verdict")
    if second is not None and second not in may:
        wrong.append(
            f"a second head says {second}, the leader {outcome(played.verdict)}; {sorted(may, key=str)} may be"
        )
    if not truth.all and truth.hand is None and played.why:
        wrong.append(f"it was stopped, and nothing failed: {played.why}")
    return wrong
