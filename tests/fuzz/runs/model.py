"""What must be true of a case, whatever befell it: all heads have the same end, none calls a run done that was not,
no line is lost in silence, nothing is left anywhere, and the next launch works."""

from __future__ import annotations

import json
import re
import shlex
import time
from pathlib import Path
from typing import Any

from fleet.inventory.nodeset import expand
from tests.fuzz.runs.draw import ENDS, SHORT, STAGES, Case, Fault
from tests.fuzz.runs.play import COMMON, Play, lives
from tests.fuzz.runs.world import HEADS, Typed, read, until

SETTLE_SECONDS = 20.0  # once all is whole: leases, grace, and what tries again
LOOK_SECONDS = 40.0
FAULTY = re.compile(r"Traceback \(most recent|a fault in fleet itself.*")
# of who speaks to one that is gone: nobody hears it
ENDS_OF_ONE = r"(?:ConnectionReset|BrokenPipe)Error.*|\S*JSONDecodeError: .*char 0\)"
NO_FAULT = re.compile(rf"(?:Exception ignored .*\n)?Traceback.*\n(?:  .*\n)*(?:{ENDS_OF_ONE})\n")
START_CODES = {1, 2, 122, 123, 124, 130}  # of what never ran
BEGINNING = STAGES[: STAGES.index("training")]
LOST = {122}
# codes that a fault may bring about, besides the one that the run was to end with
MAY_BRING: dict[tuple[str, str], set[int]] = {
    ("head", "kill -9"): {124},
    ("head", "HUP"): {124},
    ("head", "TERM"): {130},
    ("head", "Ctrl-C"): {130},
    ("head", "STOP"): {124, 122},
    ("machine", "power"): {124},
    ("helper", "kill -9"): {124, 130},
    ("helper", "TERM"): {124, 130},
    ("helper", "HUP"): {124, 130},
    ("helper", "STOP"): {124, 122},
    ("supervisor", "kill -9"): {1, 143},
    ("supervisor", "TERM"): {1},
    ("supervisor", "STOP"): {1, 122, 124},
    ("both", "kill -9"): {1, 143, 137},  # what that does to the engine may be all that is known
    ("guardian", "TERM"): {1},
    ("engine", "kill -9"): {137},
    ("engine", "TERM"): {143, 1},
    ("rank", "kill -9"): {137},
    ("rank", "TERM"): {143},
    ("node", "reboot"): LOST,
    ("node", "power"): LOST,
    ("node", "freeze"): LOST | {124},
    ("folder", "removed"): {1, 122},
    ("link", "cut"): LOST,
    ("all links", "cut"): LOST | {124},
    ("disk", "full"): {1, 7, 122, 124, 125, 126, 127},
}


def harmless(fault: Fault, case: Case) -> bool:
    """What the run is to get over, whatever comes of who is hit."""
    if fault.stage in BEGINNING:
        return False
    if fault.what == "STOP" and fault.lasts == SHORT and fault.actor not in ("session",):
        return True
    if fault.actor == "link" and (fault.name.startswith("b") and case.by != "b" or fault.what == "flap"):
        return True
    if fault.actor in ("link", "all links", "node") and fault.lasts == SHORT and fault.what in ("cut", "freeze"):
        return True
    if fault.actor == "all links" and fault.name == "b" and case.by != "b":
        return True
    return fault.actor in ("session", "clock", "looker")


def allowed(case: Case, faults: list[Fault]) -> set[int]:
    """Exit codes that the run may have."""
    codes = {ENDS[case.end]}
    for fault in faults:
        if case.detach and fault.actor in ("head", "helper") and fault.what in ("kill -9", "HUP"):
            late = fault.stage not in BEGINNING
            codes |= {3} if fault.actor == "head" or late else START_CODES  # it needs no terminal, later no leader
            continue
        if fault.stage in BEGINNING:
            codes |= START_CODES
        if not harmless(fault, case):
            codes |= MAY_BRING.get((fault.actor, fault.what), set())
        if fault.stage == "pause" or case.attempts > 1:
            codes |= {3, 122}  # the attempt before, where no other one could begin
        if fault.actor == "looker" and case.looks == "attach a" or fault.actor in ("head", "helper", "machine"):
            codes |= {3}  # nobody is there to start it again
            if case.looks.startswith("attach"):
                codes |= {ENDS["well"]}  # who attached keeps it alive, and ends it for nobody
        if fault.actor == "machine" and case.end in ("interrupt", "stop"):
            codes |= {ENDS["well"]}  # nobody was there to end it
        if (fault.actor, fault.what, case.end) == ("helper", "kill -9", "interrupt"):
            codes |= {ENDS["well"]}  # the launch had ended with its leader when Ctrl-C came
        if fault.actor == "looker" and fault.what in ("TERM", "Ctrl-C"):
            codes |= {ENDS[case.end]}
    return codes


class Judge:
    """wrong: what is not as it must be."""

    def __init__(self, play: Play) -> None:
        self.play, self.case, self.world = play, play.case, play.world
        self.wrong = list[str]()

    def judge(self) -> list[str]:
        self.settle()
        self.wrong += self.play.wrong
        if self.play.unleased:
            self.wrong.append(f"{' '.join(sorted(self.play.unleased))} need no head any more, and nobody left the run")
        run = self.world.run_folder("a")
        known = [name for name, node in self.world.nodes.items() if node.runs]
        if run is not None and known and not self.wrong:
            self.ends(run.name)
        self.next_launch()
        self.texts()
        return self.wrong

    # -- nothing is left -------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Nothing of the run is left on nodes, nor of fleet on heads, once everything is whole again."""
        then = time.monotonic()

        def left() -> list[str]:
            found = []
            for name, node in self.world.nodes.items():
                found += [f"{name}: {each['pid']} {each['comm']}" for each in node.look() if lives(each)]
            for name, head in self.world.heads.items():
                found += [f"{name}: {each['pid']} {' '.join(each['argv'])[-60:]}" for each in head.look()]
            return found

        until(lambda: not left(), SETTLE_SECONDS, 0.1)
        still = left()
        self.play.tell(f"settled after {time.monotonic() - then:.1f} s")
        if still:
            self.wrong.append(f"left after {SETTLE_SECONDS:g} s: {'; '.join(still)}")
        for path in self.world.heads["a"].place.glob("**/runs/*/state.json"):
            # else who reads the end there, where it was launched, starts it again
            path.write_text(json.dumps({**json.loads(path.read_text()), "leads": False}))
        for typed in self.world.typed:
            if typed.code is None:
                self.wrong.append(f"no end: {typed}; it says {typed.text[-300:]!r}")

    # -- the end ---------------------------------------------------------------------------------------------
    def looks(self, run: str) -> dict[str, dict[str, Any]]:
        """As each head has it, that attaches now."""
        attached = {head: self.world.type(head, "attach", run) for head in HEADS}
        until(lambda: all(typed.code is not None for typed in attached.values()), LOOK_SECONDS)
        listed = {head: self.world.type(head, "runs", "--json") for head in HEADS}
        until(lambda: all(typed.code is not None for typed in listed.values()), LOOK_SECONDS)
        return {head: self.end_at(head, run, attached[head], listed[head]) for head in HEADS}

    def end_at(self, head: str, run: str, attached: Typed, listed: Typed) -> dict[str, Any]:
        if attached.code is None:
            self.wrong.append(f"{attached} does not end; it says {attached.text[-300:]!r}")
        summary = read(self.world.heads[head].home / "runs" / run / "summary.json")
        failure = summary.get("first_failure") or {}
        what = [failure.get(key) for key in ("what", "host", "rank", "exit_code")] if failure else None
        return {
            "code": attached.code,
            "exit_code": summary.get("exit_code"),
            "end": summary.get("end"),
            "failure": what,
            "unknown": summary.get("unknown"),
            "incomplete": summary.get("incomplete_logs"),
            "state": {each["run"]: each["state"] for each in document(listed).get("runs", [])}.get(run),
        }

    def ends(self, run: str) -> None:
        launched, before = self.play.leader.code, read(self.world.heads["a"].home / "runs" / run / "summary.json")
        seen = self.looks(run)
        typed = self.world.type("c", "ps", "-a", "--json")
        typed.wait(LOOK_SECONDS)
        nodes = {each["run"]: each["state"] for each in document(typed).get("runs", [])}
        self.play.tell(f"launch ended with {launched}; ps: {nodes.get(run)}")
        for head in HEADS:
            self.play.tell(f"{head}: {seen[head]}")
        if "error" in before:  # it never ran
            return
        self.logs(run, seen)
        if any(fault.actor == "folder" for fault in self.play.done):
            return  # what a node has forgotten, heads that come later cannot know
        first = seen["a"]
        for head in ("b", "c"):
            odd = [key for key in first if seen[head][key] != first[key] and key != "incomplete"]
            if odd:
                told = "; ".join(f"{key} {first[key]} at a, {seen[head][key]} at {head}" for key in odd)
                self.wrong.append(f"another end at {head} than at a: {told}")
        for head, it in seen.items():
            if it["code"] is not None and it["exit_code"] is not None and it["code"] != it["exit_code"]:
                self.wrong.append(f"attach at {head} ends with {it['code']}, its summary says {it['exit_code']}")
        if nodes.get(run) != first["state"]:
            self.wrong.append(f"ps -a says {nodes.get(run)}, runs at a {first['state']}")
        self.codes(launched, before, seen)
        self.steps(before)
        looker = self.play.looker
        on = looker if looker is not None and looker.killed is None and self.case.looks == "attach b" else None
        if on is not None and on.code not in (None, 122, final := seen["a"]["exit_code"]):
            self.wrong.append(f"{on} ended with {on.code}, attach later with {final}")
        interrupted = any(fault.actor == "looker" and fault.what == "Ctrl-C" for fault in self.play.done)
        if looker is not None and "latest" in looker.words and looker.code not in (2, 122, 137, *[130] * interrupted):
            self.wrong.append(f"{looker} ends with {looker.code}: it means another head's run")

    def steps(self, before: dict[str, Any]) -> None:
        """The next launch leaves out each node that was lost; how long it took is told by no clock that was set."""
        errors = {name: host["error"] or {} for name, host in before.get("hosts", {}).items()}
        lost = {
            name for name, error in errors.items() if error.get("kind") == "lost"
        }  # not where a supervisor was killed
        for step in before.get("next", ()):
            words = shlex.split(step)
            out = set(expand(words[words.index("-x") + 1])) if "-x" in words else lost
            if (before.get("first_failure") or {}).get("what") == "node" and not lost <= out:
                self.wrong.append(f"{', '.join(sorted(lost))} were lost, next: {step}")
        seconds, most = before.get("seconds", 0.0), time.monotonic() - self.play.began
        if not 0.0 <= seconds <= most:
            self.wrong.append(f"it took {seconds} s, says its summary, of {most:.1f} s")

    def codes(self, launched: int | None, before: dict[str, Any], seen: dict[str, Any]) -> None:
        may = allowed(self.case, self.play.done)
        if self.play.stopper is not None and self.play.stopper.code == 122 and self.case.by != "a":
            may |= {0, *START_CODES, 3}  # that head knew nothing of it, and its node did not answer
        final = seen["a"]["exit_code"]
        if final not in may:
            self.wrong.append(f"exit code {final}, where {sorted(may)} may be")
        zeros = [head for head, it in seen.items() if it["exit_code"] == 0 or it["state"] == "done"]
        zeros += ["launch"] if launched == 0 and before.get("exit_code") == 0 else []
        failed = self.failed()
        if zeros and failed:
            self.wrong.append(f"done, says {' '.join(zeros)}; but {'; '.join(failed)}")
        lost = [host for host in before.get("hosts", {}).values() if host.get("state") == "lost"]
        provisional = not before.get("end") or len(lost) == self.case.nodes  # no node has heard of it
        known = before.get("exit_code")
        if (
            known is not None
            and launched not in (None, 137)
            and self.play.leader.killed is None
            and not self.case.detach
        ):
            mended = launched == 122 and known == final and self.case.looks == "attach a"
            if launched != known and not mended:
                self.wrong.append(f"launch ended with {launched}, its summary says {known}")
            elif launched != final and not provisional and not mended:
                self.wrong.append(f"launch ended with {launched}, attach later with {final}")

    def failed(self) -> list[str]:
        """Ranks that did not end with 0, by their own word."""
        ends: dict[int, dict[int, str]] = {}
        for path in self.world.owns():
            _, rank, attempt, _ = path.name.split(".")
            word = re.search(rb"^end (\d+)\n\Z", path.read_bytes(), re.MULTILINE)
            ended = word[1].decode() if word else "killed"
            ends.setdefault(int(attempt), {})[int(rank)] = ended
        last = ends.get(max(ends, default=0), {})
        ranks = range(self.case.nodes * self.case.slots)
        return [f"rank {rank}: {last.get(rank, 'never began')}" for rank in ranks if last.get(rank) != "0"]

    # -- logs ------------------------------------------------------------------------------------------------
    def logs(self, run: str, seen: dict[str, Any]) -> None:
        for head in HEADS:
            named = {*(seen[head]["incomplete"] or ()), *(seen[head]["unknown"] or ())}
            folder, lacking = self.world.heads[head].home / "runs" / run, dict[str, str]()
            named |= gaps(folder / "events.jsonl")
            last = str(read(folder / "summary.json").get("attempt", 0))
            for path in self.world.owns():
                host, rank, attempt, _ = path.name.split(".")
                if head != "a" and attempt != last:
                    continue  # a head that comes later brings the last one's
                logs = [*folder.glob(f"{host}/rank{rank}.out"), *folder.glob(f"attempt*/{host}/rank{rank}.out")]
                here = {line for log in logs for line in log.read_bytes().splitlines(True)}
                wrote = [line for line in path.read_bytes().splitlines(True) if not line.startswith(b"end ")]
                missing = [line for line in wrote if line.endswith(b"\n") and line not in here]
                if missing and host not in named and not self.was_lost(host):
                    text = missing[0][:60].decode("utf-8", "replace").strip()
                    lacking.setdefault(host, f"{len(missing)} of {len(wrote)} lines of rank {rank}, first {text!r}")
            for host, what in lacking.items():
                self.wrong.append(f"logs of {host} at {head} lack {what}, and nothing says so")

    def was_lost(self, host: str) -> bool:
        """Its own copy is gone."""
        return any(fault.actor == "folder" and fault.name == host for fault in self.play.done)

    # -- and then --------------------------------------------------------------------------------------------
    def next_launch(self) -> None:
        own = self.world.place / "own2"
        self.world.go(own, 0)
        plan = {**self.case.plan, "fail": {}, "flood": 0, "wait": 0.0, "stall": False}
        quick = ["--no-preflight"] if self.case.seed % 3 else []
        words = (*COMMON, *quick, "--lease", "20", str(self.world.place / "ranks"), str(own), json.dumps(plan))
        typed = self.world.type("a", *words)
        if typed.wait(LOOK_SECONDS) != 0:
            self.wrong.append(f"the next launch ends with {typed.code}: {typed.text[-400:]}")

    def texts(self) -> None:
        """Nothing that fleet says is a fault of its own."""
        says: list[tuple[str, Path]] = [(str(typed), typed.out) for typed in self.world.typed]
        says += [(f"a program on {name}", node.said) for name, node in self.world.nodes.items()]
        for name, head in self.world.heads.items():
            says += [(f"{log.name} at {name}", log) for log in head.home.glob("runs/*/*.log")]
        for who, path in says:
            text = NO_FAULT.sub("", path.read_text(errors="replace")) if path.exists() else ""
            if found := FAULTY.search(text):
                self.wrong.append(f"{who}: {text[found.start() : found.start() + 1500]}")


def gaps(events: Path) -> set[str]:
    """Hosts whose disk did not take all that a rank wrote, or was full when the run ended there, as the run's events
    name them."""
    lines = events.read_text().splitlines() if events.exists() else []
    signs = '{"event": "gap"', '"disk_full": true'
    return {str(json.loads(line)["host"]) for line in lines if any(sign in line for sign in signs)}


def document(typed: Typed) -> dict[str, Any]:
    """The JSON that it wrote, amid what it said."""
    for line in typed.text.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    found = re.search(r"^\{.*^\}", typed.text, re.MULTILINE | re.DOTALL)
    try:
        return dict(json.loads(found[0])) if found else {}
    except ValueError:
        return {}
