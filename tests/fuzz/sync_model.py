"""The model fuzzer of code syncs and gets: `python -m tests.fuzz.sync_model --seconds 600`.

A case is made of a seed: names, a world, steps. Where the real thing does what the table does not have, the seed is
printed and the shortest list of steps that still shows it.
"""

from __future__ import annotations

import collections
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from fleet.delivery import lock_order, mirror
from tests.fuzz import hunting
from tests.fuzz.transport import Forker
from tests.fuzz.world import SOURCES, Fault, Step, World

PLAIN = ["a.py", "b.txt", "data", "out", "ckpt", "last.pt"]
ODD = [
    "-rf",
    " lead",
    "trail ",
    "new\nline",
    "caf\u00e9",
    "cafe\u0301",
    os.fsdecode(b"\xff\xfe"),
    os.fsdecode(b"latin-\xe9.py"),
    "x" * 250,
    "\u00fc" * 120,
    ".hidden",
    "*star?",
    "[b]",
    "#hash",
    "!bang",
    "back\\slash",
    "tab\t",
    "~",
    "{host}",
    "'q\"",
    "$(id)",
    ":",
    "a:b",
    "...",
    "stage",
    "switching",
    "%s",
]
SIZES = [8, 8, 8, 8, 20, 20, 60, 300, 9000]
MODES = [0o644, 0o600, 0o755, 0o640, 0o444, 0o400, 0o664, 0o4755]
FOLDER_MODES = [0o755, 0o700, 0o750, 0o2755, 0o1777, 0o555, 0o2770]


MOVES = ["exchange", "exchange", "copy", "again", "clean", "forgotten"]
GLOB = str.maketrans("", "", "[]!")


@dataclass
class Case:
    seed: int
    setup: dict[str, Any] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


class Chooser:
    """Makes the steps of one case."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        pick = self.random
        odd = pick.random() < 0.4
        names = pick.sample(ODD, 3) + pick.sample(PLAIN, 2) if odd else pick.sample(PLAIN, 4)
        folders = names[:2]
        self.names = names
        self.paths = [*names, *(f"{folder}/{name}" for folder in folders for name in names[1:4])]
        self.paths += [f"{folders[0]}/{names[1]}/{name}" for name in names[:2]]
        self.folders = folders
        self.dest = "n1:work"
        self.dests = [self.dest] * 6
        kind = pick.random()
        if kind < 0.15:
            self.dests += [f"n1:work/{folders[0]}"] * 4  # one destination in another
        elif kind < 0.25:
            self.dests += ["n2:work"] * 2
        self.two_sources = pick.random() < 0.2
        self.setup: dict[str, Any] = {}
        if pick.random() < 0.15:
            self.setup["whole"] = {"n1": pick.choice([1, 2])}
        if pick.random() < 0.1:
            self.setup["ahead"] = {"n1": pick.choice([-300, 300, 86400])}
        if pick.random() < 0.2:
            self.setup["git"] = ["A"]
        if random.Random(f"locks {seed}").random() < 0.1:  # drawn apart: other draws are what they were
            self.setup["lockless"] = {"n1": "ENOLCK"}
        self.faulty = pick.random() < 0.4
        self.ignoring = pick.random() < 0.5
        self.getting = pick.random() < 0.35
        self.moving = not self.getting and pick.random() < 0.2
        if self.moving:
            self.two_sources = True

    def source(self) -> str:
        return self.random.choice(SOURCES) if self.two_sources else "A"

    def path(self) -> str:
        return self.random.choice(self.paths)

    def pattern(self) -> str:
        pick = self.random
        name = pick.choice(
            [
                name
                for name in self.names
                if name.isascii() and name.isprintable() and name[0] not in "#!*[ ~" and not set(name) & set("\\*?[ ")
            ]
            or ["zz"]
        )
        return pick.choice([name, name, f"{name}/", f"/{name}", "*.py", "*.txt", f"!{name}"])

    def write(self, where: str) -> Step:
        pick = self.random
        kind = pick.random()
        if kind < 0.5:
            how = pick.choice(["", "", "rename", "kept", "rename kept"])
            return ("write", where, self.path(), pick.choice(SIZES), how)
        if kind < 0.6:
            return ("remove", where, self.path())
        if kind < 0.68:
            return ("mkdir", where, self.path(), pick.choice(FOLDER_MODES))
        if kind < 0.76:
            targets = [
                "a.py",
                "../x",
                "{outside}/victim",
                "{outside}/folder",
                "{outside}",
                ".",
                "nowhere",
                *self.names[:2],
            ]
            return ("link", where, self.path(), pick.choice(targets))
        if kind < 0.84:
            return ("move", where, self.path(), self.path())
        if kind < 0.92:
            return ("chmod", where, self.path(), pick.choice(MODES))
        if kind < 0.98:
            return ("touch", where, self.path())
        return ("fifo", where, self.path())

    def fault(self) -> dict[str, Any]:
        pick = self.random
        kind = pick.random()
        if kind < 0.7:
            return {"kill": pick.choice([pick.randint(1, 30), pick.randint(1, 90)])}
        if kind < 0.85:
            return {"late": pick.uniform(0.0, 0.02)}
        return {"cut": pick.randint(60_000, 90_000)}

    def options(self) -> dict[str, Any]:
        kind = self.random.random()
        if kind < 0.12:
            return {"force": True}
        if kind < 0.16:
            return {"force": (self.random.choice([*self.names, "*.py", "*"]).translate(GLOB) or "*",)}
        if kind < 0.22:
            return {"keep": True}
        if kind < 0.26:
            return {"delete_excluded": True}
        if kind < 0.4:
            return {"max_delete": self.random.choice([None, None, 1])}
        return {}

    def story(self) -> list[Step]:
        """Steps that belong together."""
        pick = self.random
        name, where, path, safe = self.source(), pick.choice(self.dests), self.path(), self.pattern().strip("/!")
        goes: Step = ("sync", name, where, {}, {})
        hidden: Step = ("rules", name, pick.choice([".gitignore", ".fleetignore"]), [safe])
        stories: list[list[Step]] = [
            [("write", name, safe, 8, ""), goes, hidden, goes],
            [("write", name, f"{safe}/{path}", 8, ""), goes, hidden, ("remove", name, safe), goes],
            [("write", name, safe, 8, ""), ("itself", name, "plain"), hidden, ("itself", name, "link")],
            [("write", where, path, 20, ""), ("get", name, where, path), ("write", where, path, 20, ""), goes],
            [("write", where, path, 20, ""), ("get", name, where, path), goes, ("remove", name, path), goes],
            [
                ("write", name, path, 8, ""),
                goes,
                ("write", where, path, 8, ""),
                goes,
                ("write", name, path, 8, ""),
                goes,
            ],
            [("write", name, path, 8, ""), goes, ("write", where, path, 8, "kept"), ("remove", name, path), goes],
            [goes, ("remove", name, path), ("write", name, f"{path}/{safe}", 8, ""), goes],
            [("copy", name, where, path), goes, ("remove", name, path), goes],
            [("link", name, path, "1"), goes, ("link", where, path, "2"), ("remove", name, path), goes],
            [("link", name, path, "1"), goes, ("link", where, path, "2"), ("link", name, path, "3"), goes],
            [("link", where, path, "1"), ("copy", where, name, path), goes, ("remove", name, path), goes],
            [goes, ("remove", name, path), goes, ("copy", where, name, path), goes, ("remove", name, path), goes],
        ]
        return pick.choice(stories)

    def steps(self) -> list[Step]:
        pick = self.random
        steps: list[Step] = []
        for _ in range(pick.randint(1, 6)):
            steps.append(self.write("A"))
        for _ in range(pick.choice([0, 0, 1, 3])):  # a first sync into a folder with files
            steps.append(self.write(pick.choice(self.dests)))
        for _ in range(pick.choice([0, 0, 1, 3])):  # which may be what the source has
            steps.append(("copy", "A", pick.choice(self.dests), self.path()))
        for _ in range(pick.randint(3, 24)):
            if self.moving and pick.random() < 0.1:
                steps.append(("come_and_go", pick.choice(MOVES)))
                continue
            if pick.random() < 0.1:
                steps += self.story()
                continue
            kind = pick.random()
            if kind < 0.36:
                faults = self.fault() if self.faulty and pick.random() < 0.4 else {}
                steps.append(("sync", self.source(), pick.choice(self.dests), self.options(), faults))
            elif kind < 0.57:
                steps.append(self.write(self.source()))
            elif kind < 0.80:
                steps.append(self.write(pick.choice(self.dests)))
            elif kind < 0.84:
                steps.append(("copy", self.source(), pick.choice(self.dests), self.path()))
            elif kind < 0.91 and self.ignoring:
                folder = pick.choice(["", "", "", self.folders[0] + "/"])
                lines = [self.pattern() for _ in range(pick.choice([0, 1, 1, 2]))]
                which = pick.choice([".gitignore", ".gitignore", ".fleetignore"])
                if which == ".fleetignore":
                    lines = [line.lstrip("!") for line in lines]
                steps.append(("rules", self.source(), folder + which, lines))
            elif kind < 0.93 and "git" in self.setup:
                steps.append(("track", "A", self.path()))
            elif kind < 0.97 and self.getting:
                faults = {"kill": pick.randint(1, 60)} if self.faulty and pick.random() < 0.4 else {}
                steps.append(("get", self.source(), pick.choice(self.dests), self.path(), {}, faults))
            elif kind < 0.975:
                steps.append(("itself", self.source(), pick.choice(["plain", "plain", "link", "below"])))
            elif kind > 0.985:
                where = pick.choice(self.dests)
                steps.append(("two", (self.source(), where, {}), (self.source(), where, {})))
        steps.append(("sync", "A", self.dest, {}, {}))
        return steps


def make(seed: int) -> Case:
    chooser = Chooser(seed)
    steps = chooser.steps()
    return Case(seed, chooser.setup, steps)


def run(
    case: Case, forker: Forker, counts: collections.Counter[str] | None = None
) -> tuple[str, int, list[str]] | None:
    """What is wrong, the number of the step, and what was seen; None where all is as it should be."""
    base = Path(tempfile.mkdtemp(prefix="fleet-fuzz-"))
    number = 0
    world = None
    try:
        with (
            mock.patch.dict(os.environ, {"HOME": str(base / "home")}),
            mock.patch.object(mirror, "BLOCK", 4096),
            mock.patch.object(mirror, "PATIENCE_SECONDS", 5.0),
            mock.patch.object(lock_order, "LOCK_WAIT_SECONDS", 1.0),
        ):
            world = World(base, forker, case.setup)
            world.outside()
            for number in range(len(case.steps)):
                step = case.steps[number]
                if counts is not None:
                    counts[step[0]] += 1
                world.do(step)
        return None
    except Fault as fault:
        return str(fault), number, world.events if world else []
    except Exception:
        return traceback.format_exc(), number, world.events if world else []
    finally:
        if counts is not None and world is not None:
            counts["syncs"] += world.syncs
        for folder, _folders, _names in os.walk(os.fsencode(base)):
            os.chmod(folder, 0o700)
        shutil.rmtree(os.fsencode(base), ignore_errors=True)


MARKS = (
    "against the rules",
    "to itself",
    "in its source",
    "went on",
    "a second sync",
    "no copy is left",
    "without a reason",
    "an empty folder",
    "that was refused",
    "get replaced",
    "get wrote",
    "get said",
    "changed its source",
    "canary",
    "links lead to",
    "it is None",
    "it was",
)


def kind_of(text: str) -> str:
    """So that the shortest list shows the same thing as the first one did."""
    last = text.strip().splitlines()[-1]
    return next((mark for mark in MARKS if mark in last), last[:30])


def shrink(case: Case, forker: Forker, text: str, seconds: float = 60.0) -> tuple[Case, str]:
    """Leaves out steps, and simplifies those that stay, as long as the same kind of thing comes of it."""
    until, wanted = time.monotonic() + seconds, kind_of(text)
    found = run(case, forker)
    if found is None:
        return case, text + " (not again)"
    best, text = Case(case.seed, case.setup, list(case.steps[: found[1] + 1])), found[0]

    def still(setup: dict[str, Any], steps: Sequence[Step]) -> bool:
        nonlocal best, text
        again = run(Case(case.seed, setup, list(steps)), forker)
        if again is None or kind_of(again[0]) != wanted:
            return False
        best, text = Case(case.seed, setup, list(steps[: again[1] + 1])), again[0]
        return True

    size = max(1, len(best.steps) // 2)
    while time.monotonic() < until:
        at = 0
        while at < len(best.steps) and time.monotonic() < until:
            if not still(best.setup, best.steps[:at] + best.steps[at + size :]):
                at += size
        if size == 1:
            break
        size //= 2
    for key in list(best.setup):
        still({name: value for name, value in best.setup.items() if name != key}, best.steps)
    return best, text


def tell(case: Case, text: str) -> str:
    lines = [f"seed {case.seed}: {text.strip()}", f"  setup {case.setup}"]
    return "\n".join([*lines, *(f"  {step!r}" for step in case.steps)])


def hunt(
    first: int, seconds: float, most: int = 1, shrinking: float = 60.0, say: Callable[[str], None] = print
) -> list[str]:
    """Cases from a seed on, for so long, or until so many faults are found; those, told."""
    forker, found, kinds = Forker(), list[str](), collections.Counter[str]()
    counts: collections.Counter[str] = collections.Counter()
    began, seed = time.monotonic(), first
    try:
        while time.monotonic() - began < seconds and len(found) < most:
            case = make(seed)
            wrong = run(case, forker, counts)
            if wrong is not None:
                kinds[kind_of(wrong[0])] += 1
                took = time.monotonic() - began
                small, text = shrink(case, forker, wrong[0], shrinking)
                found.append(f"after {took:.1f} s, " + tell(small, text))
                say(found[-1])
            seed += 1
    finally:
        forker.close()
    took = time.monotonic() - began
    steps = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    say(f"seeds {first} to {seed - 1} in {took:.0f} s: {steps}; {len(found)} faults {dict(kinds) or ''}")
    return found


def main() -> int:
    parser = hunting.parser()
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for that, of each")
    given = parser.parse_args()
    if given.one is not None:
        case, forker = make(given.one), Forker()
        wrong = run(case, forker)
        print(tell(case, wrong[0] if wrong else "nothing is wrong"))
        print(*(wrong[2] if wrong else ()), sep="\n")
        return int(wrong is not None)
    first = given.seed if given.seed is not None else int(time.time()) % 10**6 * 1000
    print(f"first seed {first}", flush=True)
    return int(bool(hunt(first, given.seconds, given.faults, given.shrink, lambda text: print(text, flush=True))))


if __name__ == "__main__":
    sys.exit(main())
