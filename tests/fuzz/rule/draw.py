"""Draws a history: nodes, their clocks and links, what is asked of the run, and what befalls each of its attempts."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

SIGTERM, SIGKILL = 15, 9
LATENCY = 0.045  # at most, of a message that nothing delays
# what happens to one node; to all of them; to the run
OF_A_RANK = ("fail", "engine", "supervisor", "signal")
DARK = ("cut", "freeze", "power", "reboot")
OF_ALL = ("own link", "all freeze", "head freeze")
BY_HAND = ("interrupt", "stop")


class Event(NamedTuple):
    """at, lasts: seconds, from the attempt's begin. rank: local. code: an exit status, below 0 a signal."""

    at: float
    what: str
    node: int = 0
    rank: int = 0
    code: int = 0
    lasts: float = 0.0


class Attempt(NamedTuple):
    """works: when each rank of each node ends well, if nothing hinders it. refuses: nodes that do not start it. deaf:
    whether ranks pass over SIGTERM."""

    works: tuple[tuple[float, ...], ...]
    events: tuple[Event, ...] = ()
    refuses: tuple[int, ...] = ()
    deaf: bool = False


class History(NamedTuple):
    """ranks: of each node. clocks: how wrong they are, of nodes and spares, then of two heads. latency: of each host.
    slow: seconds by which some messages are late. looks: whether a second head follows the run. least: of an elastic
    run, else 0. late: nodes that an elastic run begins without, and when they come."""

    seed: int
    ranks: tuple[int, ...]
    clocks: tuple[float, ...]
    latency: tuple[float, ...]
    attempts: tuple[Attempt, ...]
    most: int = 0
    spares: int = 0
    least: int = 0
    stall: float | None = None
    timeout: float = 15.0
    lease: float = 60.0
    grace: float = 3.0
    slow: float = 0.0
    looks: bool = False
    late: tuple[tuple[int, float], ...] = ()

    @property
    def beat(self) -> float:
        """Returns the seconds between two signs of life of a node."""
        return min(2.0, self.timeout / 7.5)

    def attempt(self, number: int) -> Attempt:
        """Returns what befalls that one: nothing, where nothing was drawn."""
        return (
            self.attempts[number] if number < len(self.attempts) else self.attempts[-1]._replace(events=(), refuses=())
        )

    def __str__(self) -> str:
        told = [f"{name} {value}" for name, value in self._asdict().items() if name != "attempts"]
        for number, attempt in enumerate(self.attempts):
            told.append(f"attempt {number}: works {attempt.works}, refuses {attempt.refuses}")
            told += [f"    {event}" for event in attempt.events]
        return "\n".join(told)


def make(seed: int) -> History:
    """Returns the history of a seed."""
    rng = Random(seed)
    nodes = rng.randint(2, 5)
    ranks = tuple(rng.randint(1, 3) for _ in range(nodes))
    elastic = rng.random() < 0.25
    most, spares = rng.randint(0, 3), 0 if elastic else rng.choice((0, 0, 1, 2))
    least = rng.randint(1, nodes) if elastic else 0
    stall = rng.choice((None, None, 20.0, 40.0)) if not elastic else None
    timeout, lease = rng.choice((6.0, 15.0)), rng.choice((40.0, 120.0))
    hosts = nodes + spares
    clocks = tuple(rng.choice((0.0, rng.uniform(-1, 1), rng.uniform(-3600, 3600))) for _ in range(hosts + 2))
    latency = tuple(rng.uniform(0.0, LATENCY) for _ in range(hosts))
    late: tuple[tuple[int, float], ...] = ()
    if elastic and rng.random() < 0.4:
        absent = rng.sample(range(1, nodes), rng.randint(0, nodes - max(1, least)))
        late = tuple((node, rng.choice((rng.uniform(2.0, 12.0), 1e9))) for node in absent)
    base = History(seed, ranks, clocks, latency, (), most, spares, least, stall, timeout, lease, late=late)
    base = base._replace(
        slow=rng.choice((0.0, 0.0, 3.0)), looks=not elastic and rng.random() < 0.5, grace=rng.choice((0.0, 3.0, 10.0))
    )
    count = 1 if elastic else rng.randint(1, 1 + most + spares)
    return base._replace(attempts=tuple(_attempt(rng, base, number) for number in range(count)))


def _attempt(rng: Random, base: History, number: int) -> Attempt:
    nodes, last = (
        len(base.ranks),
        rng.choice((rng.uniform(6.0, 40.0), rng.uniform(6.0, 40.0), rng.uniform(90.0, 200.0))),
    )
    together = rng.random() < 0.6
    works = tuple(
        tuple(last + (rng.uniform(0.0, 0.3) if together else rng.uniform(0.0, 30.0)) for _ in range(count))
        for count in base.ranks
    )
    events = list[Event]()
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 2, 3))):
        event = _event(rng, base, last)
        if _fits(events, event):
            events.append(event)
    for event in list(events):
        if event.what != "hang" and rng.random() < 0.4:  # what fails because of it, or with it
            after = event.at + rng.choice((rng.uniform(-0.05, 0.05), rng.uniform(0.0, 0.5), rng.uniform(0.5, 4.0)))
            node = rng.randrange(nodes)
            events.append(Event(max(0.5, after), "fail", node, rng.randrange(base.ranks[node]), _code(rng)))
        if event.what == "fail" and base.ranks[event.node] > 1 and rng.random() < 0.3:  # its engine ends a neighbour
            rank = (event.rank + 1) % base.ranks[event.node]
            events.append(Event(max(0.5, event.at + rng.uniform(-0.03, 0.03)), "fail", event.node, rank, -SIGTERM))
    if any(event.what == "hang" for event in events) and base.stall is None:
        events.append(Event(rng.uniform(60.0, 90.0), rng.choice(BY_HAND)))
    ordered = sorted({(event.node, event.rank): event for event in events if event.what == "fail"}.values())
    others = [event for event in events if event.what != "fail"]
    refuses = (rng.randrange(nodes),) if number and rng.random() < 0.15 else ()
    return Attempt(works, tuple(sorted([*ordered, *others])), refuses, rng.random() < 0.15)


def _code(rng: Random) -> int:
    return rng.choice((1, 7, 42, -SIGKILL, -11, -SIGTERM))


def _event(rng: Random, base: History, last: float) -> Event:
    at, node = rng.uniform(1.5, min(last, 60.0) + 2.0), rng.randrange(len(base.ranks))
    kind = rng.random()
    if kind < 0.4:
        what = rng.choice(("fail", "fail", "fail", *OF_A_RANK))
        code = rng.choice((-SIGKILL, -SIGKILL, 2)) if what == "engine" else _code(rng)
        return Event(at, what, node, rng.randrange(base.ranks[node]), code)
    if kind < 0.65:
        what = rng.choice(DARK)
        short, long = rng.uniform(0.5, base.timeout / 2 - 0.5), rng.uniform(2.0, 6.0) * base.timeout
        lasts = 1e9 if what == "power" else short if what == "reboot" or rng.random() < 0.4 else long
        return Event(at, what, node, lasts=lasts)
    if kind < 0.8 and not base.least:
        what = rng.choice(OF_ALL)
        between = rng.uniform(base.timeout * 1.5, base.lease * 0.6)
        lasts = rng.choice((rng.uniform(0.5, base.timeout / 2 - 0.5), between, base.lease * rng.uniform(1.6, 3.0)))
        if what == "all freeze":
            lasts = min(lasts, between)
        return Event(at, what, lasts=lasts)
    if kind < 0.88:
        return Event(at, rng.choice(BY_HAND))
    if kind < 0.93 and not base.least:
        return Event(at, "hang")
    if kind < 0.96 and base.looks:
        return Event(at, "looker's link", lasts=rng.uniform(0.5, 4.0) * base.timeout)
    return Event(at, "fail", node, rng.randrange(base.ranks[node]), _code(rng))


def _fits(events: list[Event], event: Event) -> bool:
    """Returns whether the model tells what comes of both: a link is not cut twice, nor hidden behind another."""
    dark = [each for each in events if each.what in DARK + OF_ALL]
    if event.what in OF_ALL:
        return not dark
    if event.what in DARK:
        return not any(each.what in OF_ALL or each.node == event.node for each in dark)
    if event.what in BY_HAND:
        return not any(each.what in BY_HAND for each in events)
    return event.what == "fail" or not any(each[1:3] == event[1:3] for each in events)
