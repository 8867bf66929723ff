"""Plays a case: launches, watches for its stages, does what befalls it then, and undoes that; in the end all machines
are up, and nothing is cut."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

from tests.fuzz.runs.draw import STAGES, STEP_SECONDS, Case, Fault
from tests.fuzz.runs.world import Machine, Typed, World, read

TICK, LOOK_SECONDS = 0.03, 0.25
LEFT_SECONDS = 2.0
ALONE_SECONDS = 8.0  # longer than the shorter lease
IDLE_SECONDS, AGAIN_SECONDS = 1.5, 8.0  # of heads that have nobody to follow; where they may start the run again
REBOOT_SECONDS, FLAP_SECONDS = 0.7, 0.4
PLAY_SECONDS = 60.0  # in which all of a case has come to its end
FINAL = ("exited", "stopped", "lost")
SIGNALS = {"kill -9": signal.SIGKILL, "TERM": signal.SIGTERM, "STOP": signal.SIGSTOP, "HUP": signal.SIGHUP}
COMMON = ("launch", "--engine", "command", "--name", "case")


def lives(process: dict[str, Any]) -> bool:
    """Whether it is part of a run."""
    return bool(process["run"]) or process["comm"].startswith("fleet-")


def _go_on(machine: Machine, pids: list[int]) -> None:
    for pid in pids:
        machine.kill(pid, signal.SIGCONT)


class Play:
    """story: what happened, (seconds, what). done: faults that befell it."""

    def __init__(self, case: Case, world: World, say: Callable[[str], None] = lambda text: None) -> None:
        self.case, self.world, self._say = case, world, say
        self.story = list[tuple[float, str]]()
        self.done = list[Fault]()
        self.reached = dict[str, float]()
        self.later = list[tuple[float, str, Callable[[], object]]]()
        self.looker: Typed | None = None
        self.stopper: Typed | None = None
        self.gone = set[int]()  # attempts that were to come to their end
        self.unleased = set[str]()
        self.wrong = list[str]()
        self.ended_by: str | None = None  # what was to bring it to its end has happened
        self.began = self.looked = self.quiet = self.alone = time.monotonic()

    def tell(self, what: str) -> None:
        self.story.append((time.monotonic() - self.began, what))
        self._say(f"  {self.story[-1][0]:6.2f} s  {what}")

    # -- the course of it ------------------------------------------------------------------------------------
    def play(self) -> None:
        case, world = self.case, self.world
        plan = json.dumps({**case.plan, "stall": case.end == "stall"})
        words = (*COMMON, *case.words, str(world.place / "ranks"), str(world.own), plan)
        self.leader = world.type("a", *words, terminal=case.terminal)
        self.reached["preflight"] = time.monotonic()
        waiting = list(case.faults)
        while time.monotonic() - self.began < PLAY_SECONDS:
            self.notice()
            for fault in list(waiting):
                since = self.reached.get(fault.stage)
                if since is not None and time.monotonic() >= since + fault.delay:
                    waiting.remove(fault)
                    self.befall(fault)
            self.look_on()
            self.undo(time.monotonic())
            early = [it for it in waiting if STAGES.index(it.stage) <= STAGES.index("training")]
            self.bring_to_end(bool(early))
            if not self.later and (not waiting or self.nothing_comes(waiting)) and self.is_over():
                break
            time.sleep(TICK)
        self.heal()

    def notice(self) -> None:
        """Which stages have been reached."""
        now, case = time.monotonic(), self.case
        owns = [path.name.split(".") for path in self.world.owns()]
        states = [state for node in self.world.nodes.values() for state in node.states()]
        found = {
            "start": bool(states),
            "rendezvous": bool(owns),
            "training": any(map(self.trains, range(case.attempts))),
            "stop": "stopping" in states,
            "pause": case.attempts > 1 and self.has_event("restart"),
            "drain": self.ended_by == "well" and self.all_ended(),
            "over": bool(states) and all(state in FINAL for state in states) and "pause" not in self.hopes(),
        }
        for stage, is_there in found.items():
            if is_there and stage not in self.reached:
                self.reached[stage] = now
                self.tell(f"stage {stage}")

    def hopes(self) -> list[str]:
        """Stages between two attempts, where another one is still to come."""
        attempts = {path.name.split(".")[2] for path in self.world.owns()}
        if len(attempts) >= self.case.attempts:
            return []
        led = self.leader.code is None or any(head.look() for head in self.world.heads.values())
        return ["pause"] if led else []

    def trains(self, attempt: int) -> bool:
        """Whether each of its ranks has written something."""
        files = self.world.owns(attempt)
        ranks = {path.name.split(".")[1] for path in files}
        return len(ranks) == self.case.nodes * self.case.slots and all(path.stat().st_size for path in files)

    def all_ended(self) -> bool:
        last = str(self.case.attempts - 1)
        files = self.world.owns(last)
        ranks = {path.name.split(".")[1] for path in files if b"\nend " in path.read_bytes()[-20:]}
        return len(ranks) == self.case.nodes * self.case.slots

    def has_event(self, name: str) -> bool:
        folder = self.world.run_folder("a")
        if folder is None:
            return False
        try:
            return f'"event": "{name}"' in (folder / "events.jsonl").read_text()
        except OSError:
            return False

    def look_on(self) -> None:
        since = self.reached.get("training")
        if self.looker is not None or not self.case.looks or since is None:
            return
        verb, _, head = self.case.looks.rpartition(" ")
        run = self.world.run_folder("a")
        if run is not None and self.world.heads[head].up and time.monotonic() >= since + self.case.look_delay:
            words = verb.split() if "latest" in verb else [*verb.split(), run.name]
            self.looker = self.world.type(head, *words, terminal=self.case.terminal)
            self.tell(f"typed: {self.looker}")

    def bring_to_end(self, waits: bool) -> None:
        """What ends attempts, once what befalls it in training has."""
        case = self.case
        pause = self.reached.get("pause")
        if (
            case.early
            and self.ended_by is None
            and pause is not None
            and time.monotonic() >= pause + case.end_delay / 2
        ):
            self.ended_by = case.end
            self.stop()
        for attempt in range(case.attempts):
            last = attempt == case.attempts - 1
            if attempt in self.gone or self.ended_by is not None and not last:
                continue
            ready = self.trains(attempt) and not waits and not (case.patient and self.later)
            key = f"ready {attempt}"
            if ready and key not in self.reached:
                self.reached[key] = time.monotonic()
            if key not in self.reached or time.monotonic() < self.reached[key] + case.end_delay:
                continue
            if not last or case.end in ("well", "failure", "stall"):
                if last and case.slow:
                    self.world.link.slow(case.slow, *self.world.roads("a"))
                self.gone.add(attempt)
                self.world.go(self.world.own, attempt)
                self.tell(f"attempt {attempt} comes to its end" + (f": {case.end}" if last else ""))
                self.ended_by = case.end if last else None
            elif self.ended_by is None:
                self.ended_by = case.end
                self.stop()

    def stop(self) -> None:
        """By Ctrl-C where there is somebody to press it, else by the verb."""
        case, run = self.case, self.world.run_folder("a")
        if case.end == "interrupt" and self.leader.code is None and self.leader.killed is None:
            self.tell("Ctrl-C at a")
            self.interrupt(self.leader)
        elif run is not None and self.world.heads[case.by].up:
            self.stopper = self.world.type(case.by, "--connect-timeout", "2", "stop", run.name)
            self.tell(f"typed: {self.stopper}")

    def is_over(self) -> bool:
        """Nothing of it lives on any node, nobody waits for it; a helper on a head may yet start it again."""
        now = time.monotonic()
        if now < self.looked + LOOK_SECONDS or any(each.code is None for each in self.world.typed):
            return False
        self.looked = now
        if any(lives(each) for node in self.world.nodes.values() for each in node.look()):
            self.quiet = now
            self.look_at_leases()
            self.lead_again(now)
            return False
        if not any(head.look() for head in self.world.heads.values()):
            return now >= self.quiet + LOOK_SECONDS
        return now >= self.quiet + (AGAIN_SECONDS if self.hopes() else IDLE_SECONDS)

    def look_at_leases(self) -> None:
        """Nodes that need no head any more, though nobody has left the run."""
        mine = [typed for typed in self.world.typed if typed.head.name == "a" and typed.words[0] == "attach"]
        if self.case.detach or self.leader.killed == "leave" or mine:
            return
        for name, node in self.world.nodes.items():
            for run in node.runs:
                over = read(run / "status.json").get("state") in FINAL
                if not over and "lease" in (told := read(run / "lease")) and told["lease"] is None:
                    self.unleased.add(name)

    def lead_again(self, now: float) -> None:
        """Where nobody leads it any more, nor ends it, its user does, in the end."""
        if any(head.look() for head in self.world.heads.values()):
            self.alone = now
        elif now >= self.alone + ALONE_SECONDS and (run := self.world.run_folder("a")) is not None:
            self.alone = now
            self.tell(f"typed: {self.world.type('a', 'attach', run.name)}")

    def nothing_comes(self, waiting: list[Fault]) -> bool:
        """Of stages that are not reached any more."""
        return all(fault.stage not in self.reached for fault in waiting)

    # -- what befalls it -------------------------------------------------------------------------------------
    def befall(self, fault: Fault) -> None:
        hit = getattr(self, "_" + fault.actor.replace(" ", "_"))(fault)
        self.tell(f"{fault}{'' if hit else ' (nobody there)'}")
        if hit:
            self.done.append(fault)

    def after(self, seconds: float, what: str, action: Callable[[], object]) -> None:
        self.later.append((time.monotonic() + seconds, what, action))

    def undo(self, now: float) -> None:
        for entry in sorted(self.later, key=lambda it: it[0]):
            if entry[0] <= now:
                self.later.remove(entry)
                self.quiet = now  # what waited for that goes on now
                self.tell(entry[1])
                entry[2]()

    def heal(self) -> None:
        self.undo(float("inf"))
        for machine in self.world.machines():
            if not machine.up:
                machine.boot()
            machine.free()
        self.world.link.heal(*self.world.roads())
        self.world.link.slow(None, *self.world.roads())
        self.tell("all is up, nothing is cut")

    def interrupt(self, typed: Typed) -> None:
        if typed.screen is not None:
            typed.press(b"\x03")
        else:
            typed.signal(signal.SIGINT)

    def _typed(self, fault: Fault, typed: Typed | None) -> bool:
        if typed is None or typed.code is not None:
            return False
        if fault.what == "Ctrl-C":
            self.interrupt(typed)
        elif fault.what == "HUP":
            typed.hang_up()
        elif fault.what == "leave":
            typed.press(b"d")
        else:
            typed.signal(SIGNALS[fault.what])
        if fault.what == "STOP":
            self.after(fault.lasts, f"CONT {typed}", lambda: typed.signal(signal.SIGCONT))
        else:
            typed.killed = fault.what
        return True

    def _head(self, fault: Fault) -> bool:
        hit = self._typed(fault, self.leader)
        if hit and fault.what in ("kill -9", "HUP") and not self.case.detach:
            self.after(LEFT_SECONDS, "who led it has gone?", lambda: self.look_for_leader(fault))
        return hit

    def look_for_leader(self, fault: Fault) -> None:
        """Nobody leads it without its terminal, which did not leave it."""
        if any(typed.head.name == "a" and typed.code is None for typed in self.world.typed):
            return
        head = self.world.heads["a"]
        states = [json.loads(path.read_text()) for path in head.place.glob("**/runs/*/state.json")]
        stop = [who["pid"] for state in states for name, who in state.items() if name.startswith("stopper-") and who]
        found = [" ".join(each["argv"])[-60:] for each in head.look() if each["pid"] not in stop]
        if found:
            self.wrong.append(f"{LEFT_SECONDS:g} s after {fault.what} of its terminal it is led still: {found}")

    def _looker(self, fault: Fault) -> bool:
        return self._typed(fault, self.looker)

    def _machine(self, fault: Fault) -> bool:
        head = self.world.heads["a"]
        head.power_off()
        self.after(REBOOT_SECONDS, "a is up again", head.boot)
        return True

    def _signal(self, name: str, pids: list[int], fault: Fault) -> bool:
        machine = {**self.world.nodes, **self.world.heads}[name]
        hit = [pid for pid in pids if machine.kill(pid, SIGNALS[fault.what])]
        if fault.what == "STOP" and hit:
            self.after(
                fault.lasts, f"CONT {fault.actor} {name}", lambda: [machine.kill(pid, signal.SIGCONT) for pid in hit]
            )
        return bool(hit)

    def _helper(self, fault: Fault) -> bool:
        mine = {typed.pid for typed in self.world.typed}
        found = [each["pid"] for each in self.world.heads["a"].look() if each["pid"] not in mine]
        return self._signal("a", found, fault)

    def _processes(self, name: str, comm: str) -> list[dict[str, Any]]:
        return [each for each in self.world.nodes[name].look() if each["comm"] == comm]

    def _supervisor(self, fault: Fault) -> bool:
        return self._signal(fault.name, [it["pid"] for it in self._processes(fault.name, "fleet-supervise")], fault)

    def _guardian(self, fault: Fault) -> bool:
        return self._signal(fault.name, [it["pid"] for it in self._processes(fault.name, "fleet-guardian")], fault)

    def _both(self, fault: Fault) -> bool:
        found = [*self._processes(fault.name, "fleet-guardian"), *self._processes(fault.name, "fleet-supervise")]
        return self._signal(fault.name, [it["pid"] for it in found], fault)

    def _engine(self, fault: Fault) -> bool:
        bosses = {it["pid"] for it in self._processes(fault.name, "fleet-supervise")}
        found = [it["pid"] for it in self.world.nodes[fault.name].look() if it["ppid"] in bosses and it["run"]]
        return self._signal(fault.name, found, fault)

    def _rank(self, fault: Fault) -> bool:
        for name, node in self.world.nodes.items():
            wrappers = {it["pid"] for it in self._processes(name, "fleet-rank")}
            found = [it["pid"] for it in node.look() if it["ppid"] in wrappers and it["rank"] == fault.name]
            if found:
                return self._signal(name, found, fault)
        return False

    def _session(self, fault: Fault) -> bool:
        if fault.what == "reset":
            self.world.link.reset(*self.world.roads(node=fault.name))
            return True
        found = [
            it["pid"]
            for it in self.world.nodes[fault.name].look()
            if it["ppid"] == 1 and not it["run"] and not it["comm"].startswith("fleet-")
        ]
        return self._signal(fault.name, found, fault)

    def _node(self, fault: Fault) -> bool:
        node, roads, link = self.world.nodes[fault.name], self.world.roads(node=fault.name), self.world.link

        def up() -> None:
            node.boot()
            link.reset(*roads)
            link.heal(*roads)

        def thaw() -> None:
            node.thaw()
            link.heal(*roads)

        if fault.what == "freeze":
            link.cut(*roads)
            node.freeze()
            self.after(fault.lasts, f"{node.name} goes on", thaw)
            return True
        if fault.what == "power":  # nobody closes its connections
            link.cut(*roads)
        else:
            link.reset(*roads)
        node.power_off()
        self.after(fault.lasts or REBOOT_SECONDS, f"{node.name} is up again", up)
        return True

    def _folder(self, fault: Fault) -> bool:
        folder = self.world.nodes[fault.name].home / ".fleet"
        if not folder.exists():
            return False
        shutil.rmtree(folder, ignore_errors=True)
        return True

    def _cut(self, fault: Fault, roads: list[tuple[str, str]]) -> bool:
        link = self.world.link
        link.cut(*roads)
        self.after(fault.lasts, f"{fault.actor} {fault.name} is whole again", lambda: link.heal(*roads))
        for turn in range(int(fault.lasts / FLAP_SECONDS / 2) if fault.what == "flap" else 0):
            self.after((2 * turn + 1) * FLAP_SECONDS, "it flaps", lambda: link.heal(*roads))
            self.after((2 * turn + 2) * FLAP_SECONDS, "it flaps", lambda: link.cut(*roads))
        return True

    def _link(self, fault: Fault) -> bool:
        head, node = fault.name.split()
        return self._cut(fault, self.world.roads(head, node))

    def _all_links(self, fault: Fault) -> bool:
        return self._cut(fault, self.world.roads(fault.name))

    def _disk(self, fault: Fault) -> bool:
        machine = {**self.world.nodes, **self.world.heads}[fault.name]
        machine.fill()
        self.after(fault.lasts, f"the disk of {fault.name} has room", machine.free)
        return True

    def _clock(self, fault: Fault) -> bool:
        machine = {**self.world.nodes, **self.world.heads}[fault.name]
        machine.set_clock(STEP_SECONDS if fault.what == "step" else -STEP_SECONDS)
        return True
