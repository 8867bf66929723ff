"""A case, drawn from a seed: what is launched, who looks on, what brings the run to its end, and what befalls whom at
which stage of it."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field, replace
from typing import Any

STAGES = ("preflight", "start", "rendezvous", "training", "stop", "pause", "drain", "over")
# how a run ends where nothing befalls it -> the exit code
ENDS = {"well": 0, "failure": 3, "interrupt": 130, "stop": 130, "stall": 124}
NODE_TIMEOUT, LEASE, LONG_LEASE, STALL = 2.0, 4.0, 30.0, 2.0
SHORT, LONG = 0.8, 7.0  # beyond lease and node-timeout, and what it takes to see that
BY_HAND = ("interrupt", "stop")
SLOW, TOGETHER = 250e3, 0.25


@dataclass(frozen=True)
class Fault:
    """actor: of ACTORS, with a node's or head's name behind it. what: of its faults. stage, delay: seconds after that
    has begun. lasts: seconds until it is undone; 0: it has no end, or is over at once."""

    actor: str
    name: str
    what: str
    stage: str
    delay: float
    lasts: float

    def __str__(self) -> str:
        lasts = f" for {self.lasts:g} s" if self.lasts else ""
        return f"{self.stage} + {self.delay:g} s: {self.actor} {self.name}: {self.what}{lasts}".replace(" :", ":")


@dataclass(frozen=True)
class Case:
    """looks: what else is typed while it trains: "" or a verb and its head. by: the head where it is stopped. patient:
    it comes to its end once what befell it in training is undone. early: it is stopped in the pause before its last
    attempt. slow: bytes a second between the head that leads and its nodes, once ranks come to their end."""

    seed: int
    nodes: int
    slots: int
    options: dict[str, Any]
    plan: dict[str, Any]
    end: str
    by: str
    end_delay: float
    detach: bool
    terminal: bool
    patient: bool
    early: bool
    slow: float | None
    looks: str
    look_delay: float
    faults: tuple[Fault, ...]

    @property
    def words(self) -> list[str]:
        given = [word for name, value in self.options.items() for word in (f"--{name}", f"{value:g}")]
        return [*given, *(["--detach"] if self.detach else [])]

    @property
    def names(self) -> list[str]:
        return [f"n{number + 1}" for number in range(self.nodes)]

    @property
    def attempts(self) -> int:
        return 1 + int(self.options.get("max-restarts", 0))

    def __str__(self) -> str:
        how = " ".join(self.words)
        end = f"{self.end} at {self.by}" if self.end in ("stop", "interrupt") else self.end
        return "\n".join(
            [
                f"{self.nodes} nodes of {self.slots}, launch {how}{' in a terminal' * self.terminal}",
                f"ranks {json.dumps(self.plan)}",
                f"ends: {end}, {self.end_delay:g} s after what befalls it in training{' is undone' * self.patient}"
                f"{', or in the pause' * self.early}{', over a slow link' * bool(self.slow)}; "
                f"looks on: {f'{self.looks} after {self.look_delay:g} s' if self.looks else 'nobody'}",
                *map(str, self.faults),
            ]
        )


@dataclass(frozen=True)
class Actor:
    """stages: when it may befall it, with weights. faults: name -> (weight, what it lasts: SHORT, LONG, both or 0)."""

    weight: float
    faults: dict[str, tuple[float, tuple[float, ...]]]
    stages: dict[str, float] = field(default_factory=dict)


ALWAYS = {"preflight": 1.0, "start": 1.5, "rendezvous": 1.0, "training": 4.0, "stop": 1.5, "pause": 1.0, "drain": 1.5}
ALWAYS |= {"over": 0.5}
LATER = {"training": 4.0, "stop": 1.5, "pause": 1.0, "drain": 1.5, "over": 0.5}
NOW: tuple[float, ...] = (0.0,)
BOTH = (SHORT, LONG)
PROCESS = {"kill -9": (3.0, NOW), "TERM": (1.0, NOW), "STOP": (1.0, BOTH)}
ACTORS = {
    # what was typed, in its terminal
    "head": Actor(4.0, {**PROCESS, "HUP": (2.0, NOW), "Ctrl-C": (1.0, NOW), "leave": (1.5, NOW)}, ALWAYS),
    # all of the machine where it was typed
    "machine": Actor(1.0, {"power": (1.0, NOW)}, ALWAYS),
    # processes of that machine which are not what was typed
    "helper": Actor(2.0, {**PROCESS, "HUP": (0.5, NOW)}, ALWAYS),
    "looker": Actor(2.0, {**PROCESS, "HUP": (1.0, NOW), "Ctrl-C": (2.0, NOW)}, LATER),
    "supervisor": Actor(1.0, PROCESS, LATER | {"rendezvous": 1.0}),
    "guardian": Actor(0.7, PROCESS, LATER | {"rendezvous": 1.0}),
    "both": Actor(0.7, {"kill -9": (1.0, NOW)}, LATER | {"rendezvous": 1.0}),
    "engine": Actor(0.7, PROCESS, LATER | {"rendezvous": 1.0}),
    "rank": Actor(1.0, PROCESS, LATER | {"rendezvous": 1.0}),
    "session": Actor(1.0, {"kill -9": (1.0, NOW), "reset": (2.0, NOW), "STOP": (0.5, BOTH)}, ALWAYS),
    "node": Actor(3.0, {"reboot": (1.0, NOW), "power": (1.0, (1.0, LONG)), "freeze": (1.5, BOTH)}, ALWAYS),
    "folder": Actor(0.7, {"removed": (1.0, NOW)}, {"training": 2.0, "stop": 0.5, "drain": 0.5}),
    # from the head that leads to a node, or from the one that looks on; "all": of that head
    "link": Actor(4.0, {"cut": (3.0, BOTH), "flap": (0.5, (3.0,))}, ALWAYS),
    "all links": Actor(2.0, {"cut": (1.0, BOTH)}, ALWAYS),
    "disk": Actor(1.0, {"full": (1.0, (1.5, LONG))}, ALWAYS),
    "clock": Actor(1.0, {"step": (1.0, NOW), "back": (1.0, NOW)}, LATER),
}
STEP_SECONDS = 3600.0


def chosen(rng: random.Random, weights: dict[str, float]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def make(seed: int) -> Case:
    rng = random.Random(f"a run, {seed}")
    nodes, slots = rng.choices((1, 2, 3), (1, 5, 3))[0], rng.choices((1, 2), (4, 1))[0]
    names = [f"n{number + 1}" for number in range(nodes)]
    end = chosen(rng, {"well": 8, "failure": 4, "interrupt": 2, "stop": 4, "stall": 1})
    by = rng.choices(("a", "b"), (2, 1))[0] if end == "stop" else "a"
    restarts = int(rng.random() < 0.2)
    options: dict[str, Any] = {
        "lease": rng.choices((LEASE, LONG_LEASE), (3, 1))[0],
        "grace": rng.choice((0.0, 1.0)),
        "node-timeout": NODE_TIMEOUT,
    }
    if restarts:
        options["max-restarts"] = restarts
    if end == "stall":
        options["stall-timeout"] = STALL
    plan: dict[str, Any] = {
        "wait": rng.choice((0.0, 0.0, 0.5)),
        "gap": rng.choice((0.01, 0.05)),
        "most": 45.0,
        "term": rng.choices(("die", "ignore", "save"), (4, 1, 1))[0],
        "flood": rng.choices((0, 600), (3, 1))[0],
        "fail": {},
    }
    ranks = nodes * slots
    if end == "failure":
        plan["fail"] = {f"{attempt}.{rng.randrange(ranks)}": 3 for attempt in range(1 + restarts)}
    elif restarts:  # of attempts but the last one
        plan["fail"] = {f"0.{rng.randrange(ranks)}": 3}
    detach = rng.random() < 0.3
    looks = rng.choices(("", "attach b", "logs -f a", "attach a", "stop latest c"), (5, 5, 1, 1, 0.5))[0]
    count = rng.choices((0, 1, 2), (1, 6, 3))[0]
    stages = [stage for stage in STAGES if possible(stage, end, restarts)]
    drawn = [draw(rng, names, slots, stages, looks) for _ in range(count)]
    faults = sorted(drawn, key=lambda it: STAGES.index(it.stage))
    case = Case(
        seed,
        nodes,
        slots,
        options,
        plan,
        end,
        by,
        round(rng.uniform(0.0, 0.6), 2),
        detach,
        rng.random() < 0.5 or any(it.what in ("HUP", "leave", "Ctrl-C") for it in faults),
        rng.random() < 0.4,
        restarts > 0 and end in BY_HAND and rng.random() < 0.4,
        SLOW if plan["flood"] and rng.random() < 0.7 else None,
        looks,
        round(rng.choice((0.0, rng.uniform(0.0, 1.5))), 2),
        tuple(faults),
    )
    return together(rng, case) if rng.random() < TOGETHER else case


def possible(stage: str, end: str, restarts: int) -> bool:
    """Whether a run with that end comes to such a stage."""
    if stage == "pause":
        return restarts > 0
    if stage == "drain":
        return end == "well"
    return stage != "stop" or end != "well"


def draw(rng: random.Random, names: list[str], slots: int, stages: list[str], looks: str) -> Fault:
    weights = {name: actor.weight for name, actor in ACTORS.items() if name != "looker" or looks}
    actor = chosen(rng, weights)
    what = chosen(rng, {name: weight for name, (weight, _) in ACTORS[actor].faults.items()})
    lasts = rng.choice(ACTORS[actor].faults[what][1])
    stage = chosen(rng, {name: weight for name, weight in ACTORS[actor].stages.items() if name in stages})
    name = {
        "head": "a",
        "machine": "a",
        "helper": "a",
        "looker": looks.rpartition(" ")[2],
        "all links": rng.choice("aab"),
        "link": f"{rng.choices('ab', (4, 1))[0]} {rng.choice(names)}",
        "rank": str(rng.randrange(len(names) * slots)),
        "disk": rng.choice([*names, *names, "a"]),
        "clock": rng.choice([*names, "a", "a"]),
    }.get(actor, rng.choice(names))
    early = {"preflight": 0.3, "start": 0.15, "over": 0.5}.get(stage, 0.4)
    return Fault(actor, name, what, stage, round(rng.uniform(0.0, early), 3), lasts)


def together(rng: random.Random, case: Case) -> Case:
    """What means something together, and is seldom drawn so by itself: each is a story of docs/runs.md."""
    some = rng.sample(case.names, min(2, case.nodes))
    story = rng.choice(("two nodes", "head and looker", "stop in an outage", "stop by mark", "blind", "drain"))
    if story == "two nodes" and case.nodes > 2:
        faults = [Fault("link", f"a {name}", "cut", "training", 0.1, LONG) for name in some]
        return replace(case, faults=tuple(faults), patient=True)
    if story == "head and looker":
        gone = rng.choice(("Ctrl-C", "kill -9", "HUP"))
        faults = [Fault("looker", "b", gone, "training", 0.8, 0.0), Fault("head", "a", "kill -9", "training", 1.4, 0.0)]
        return replace(case, faults=tuple(faults), looks="attach b", look_delay=0.0, detach=False, terminal=True)
    if story == "stop in an outage":
        head = rng.choice("ab")
        cut = Fault("link", f"{head} {some[0]}", "cut", "training", 1.6, LONG)
        faults = [Fault("helper", "a", "kill -9", "training", 1.5, 0.0), cut]
        return replace(case, faults=tuple(faults), looks="", detach=True, end="stop", by=head, patient=False)
    if story == "stop by mark":
        removed = Fault("folder", some[0], "removed", "training", 1.7, 0.0)
        faults = [Fault("helper", "a", "kill -9", "training", 1.5, 0.0), removed]
        return replace(case, faults=tuple(faults), looks="", detach=True, end="stop")
    if story == "drain":
        cut = Fault("link", f"a {some[0]}", "cut", "drain", round(rng.uniform(0.1, 0.6), 2), LONG)
        plan = {**case.plan, "flood": 600, "fail": {}}
        return replace(case, faults=(cut,), end="well", plan=plan, slow=SLOW, early=False)
    cut = Fault("link", f"b {some[0]}", "cut", "training", round(rng.uniform(0.0, 1.8), 2), LONG)
    return replace(case, faults=(cut,), looks="attach b", patient=True)
