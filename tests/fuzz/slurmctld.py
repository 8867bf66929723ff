"""A real slurmctld that is frozen, killed, restarted or late at drawn requests of fleet's, under runs that are
submitted, followed, left and stopped: never two jobs of one submission, never a lost one, never a false end.

`python -m tests.fuzz.slurmctld N SEED` plays N cases from a seed on, as root. A seed is a case. Slurm's commands stand
behind programs of the same names, which count requests: a fault is drawn for the third one, the fifth."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lab.virtual_lab import FLEET, VirtualLab, bring_up
from tests.standin import standin_python

ROOT = Path(__file__).parents[2]
COMMANDS = ("sbatch", "squeue", "scontrol", "scancel", "srun")
FAULTS = ("freeze", "freeze", "kill", "kill", "cut", "lost answer", "late")
WAYS = ("wait", "wait", "detach", "killed", "interrupt", "stop", "scancel")
LONG = 600  # seconds of a program that only a stop ends
COMMAND_SECONDS = 240
# for short tests: a request is given up soon, a job is forgotten soon
CONF = "MessageTimeout=4\\nMinJobAge=20\\nKillWait=30\\n"
SHIM = """\
#!/bin/bash
# counts the requests of a case, and does what is drawn for this one; only the healer outlives a job
name=${0##*/} real=/usr/bin/${0##*/}
cd_() { flock 9; read n <$at/count; echo $((n + 1)) >$at/count; echo $((n + 1)); }
at=/share/shim
n=$(cd_ 9>$at/lock)
echo "$n $name $*" >>$at/log
read -r seconds what 2>/dev/null <$at/plan/$n || exec $real "$@"
later() { echo "$1 $seconds" >$at/fifo; }
case $what in
freeze) pkill -STOP -x slurmctld; later CONT; exec $real "$@";;
kill) pkill -KILL -x slurmctld; later START; exec $real "$@";;
cut) $real "$@" & sleep 0.0$((RANDOM % 9 + 1)); pkill -STOP -x slurmctld; later CONT; wait $!;;
'lost answer') $real "$@" >/dev/null 2>&1; pkill -STOP -x slurmctld; later CONT
    echo "$name: error: Zero Bytes were transmitted or received" >&2; exit 1;;
late) sleep $seconds; exec $real "$@";;
esac
"""
HEALER = """
cd /share/shim; exec 3<>fifo
while sleep 2; do # what a slurmctld that has forgotten that it began a job holds, or begins only minutes later
    for job in $(timeout 5 /usr/bin/squeue -h -t PD -o '%i %r' | grep -E 'held|BeginTime' | cut -d' ' -f1); do
        timeout 5 /usr/bin/scontrol release $job; timeout 5 /usr/bin/scontrol update job=$job StartTime=now
    done
    timeout 5 /usr/bin/sinfo -h -o %T | grep -qE 'drain|down' &&
        timeout 5 /usr/bin/scontrol update nodename=$(hostname) state=resume
done >/dev/null 2>&1 &
while read -r what seconds <&3; do
    (sleep $seconds
     case $what in
     CONT) pkill -CONT -x slurmctld;;
     START) for i in 1 2 3 4 5; do pgrep -x slurmctld || slurmctld </dev/null; sleep 1; done;;
     esac) >/dev/null 2>&1 &
done
"""
PROGRAM = """\
import os, signal, sys, time

def note(*words):
    with open(f"ledger-{os.environ['FLEET_RUN_ID']}", "a") as file:
        file.write(" ".join(words) + "\\n")

def stopped(*_):
    note("stopped")
    os._exit(0)

signal.signal(signal.SIGTERM, stopped)
signal.signal(signal.SIGINT, stopped)
note("begin", os.environ["SLURM_JOB_ID"])
time.sleep(float(sys.argv[1]))
note("end", sys.argv[2])
sys.exit(int(sys.argv[2]))
"""


@dataclass(frozen=True)
class Case:
    """way: how the command that requests the run ends. at: seconds after which what ends it, or the run, is typed.
    faults: number of a request -> (what, for how many seconds)."""

    seed: int
    seconds: int
    code: int
    way: str
    at: float
    faults: dict[int, tuple[str, int]]

    @property
    def stops(self) -> bool:
        return self.way in ("interrupt", "stop", "scancel") or self.seconds == LONG


def make(seed: int) -> Case:
    draw = random.Random(seed)
    numbers = draw.sample(range(1, 9), draw.choice((1, 1, 2, 3)))
    faults = {number: (draw.choice(FAULTS), draw.choice((1, 3, 6, 11))) for number in numbers}
    way, seconds = draw.choice(WAYS), draw.choice((0, 1, 4, 8))
    if way in ("interrupt", "stop", "scancel"):
        seconds = draw.choice((4, LONG))
    return Case(seed, seconds, draw.choice((0, 0, 7)), way, round(draw.uniform(0.5, 12), 1), faults)


@dataclass
class Played:
    """texts: (what was typed, its exit code, what it printed). run: the run's id, "" where no folder is left."""

    case: Case
    texts: list[tuple[str, int | None, str]] = field(default_factory=list)
    run: str = ""
    runs: list[str] = field(default_factory=list)  # all of the case
    ledger: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)  # of the run: "plan" of an attempt, "summary CODE"
    there: str = ""  # the job, as squeue shows it after its end
    listed: dict[str, Any] = field(default_factory=dict)

    def wrong(self) -> Iterator[str]:
        case, first = self.case, self.texts[0]
        begun = [line.split()[1] for line in self.ledger if line.startswith("begin")]
        last = self.ledger[-1].split() if self.ledger else [""]  # of a job that Slurm began again the last counts
        ended = int(last[1]) if last[0] == "end" else None
        # one that was killed without a word, as slurmctld has forgotten its job, has no end that anyone knows
        truth = ended if ended is not None else 130 if last[0] == "stopped" else None
        for typed, code, text in self.texts:
            if code is None:
                yield f"{typed} does not end"
            if "Traceback" in text:
                yield f"{typed} ends in a traceback"
        if len(set(begun)) > 1:
            yield f"two jobs: {begun}"
        if "summary 0" in self.events[: max(at for at, it in enumerate(["plan", *self.events]) if it == "plan")]:
            yield f"a run that had ended began again: {self.events}"
        if len(self.runs) > 1:
            yield f"two runs: {self.runs}"
        if self.there:
            yield f"a lost job: {self.there}"
        if first[1] == 2 and (self.run or begun):
            yield "what was refused is there"
        early = case.way in ("killed", "interrupt")  # before anything was requested
        if first[1] != 2 and not self.run and (begun or not early):
            yield f"its folder is gone, exit code {first[1]}"
        if case.way in ("wait", "interrupt", "stop", "scancel"):
            left = (0,) if "goes on by itself" in first[2] else ()
            yield from self._false_end("the command", first[1], truth, (2, 122, *left))
        if not self.run:
            return
        *_, (_, found, _) = self.texts
        known = self.listed.get("exit_code")
        if begun:
            yield from self._false_end("attach", found, truth, ())
            goes_on = found == 122 and self.listed.get("state") == "followed"  # minutes, until its node is asked again
            if known != found and not goes_on:
                yield f"'fleet runs' has {known}, attach {found}"
        elif known == 0 or found == 0:
            yield f"a run that never began ended well: {known}, {found}"

    def _false_end(self, what: str, code: int | None, truth: int | None, more: tuple[int, ...]) -> Iterator[str]:
        fits = {truth, *more, *((130,) if self.case.stops else ()), *((130, 122) if truth is None else ())}
        if code not in fits:
            yield f"{what} ended with {code}, and the run with {truth}"


class Ground:
    """A lab of one host: where it is typed, slurmctld and the node."""

    def __init__(self, lab: VirtualLab) -> None:
        self.lab, self.host = lab, lab.names[0]
        lab.sh(
            self.host, f"printf '{CONF}' >>/etc/slurm/slurm.conf; mkdir -p /share/shim/plan; mkfifo /share/shim/fifo"
        )
        for name in COMMANDS:
            self.write(f"/share/shim/{name}", SHIM)
        lab.sh(self.host, f"cd /share/shim && echo 0 >count && chmod +x {' '.join(COMMANDS)}")
        lab.sh(self.host, "pkill -x slurmctld; pkill -x slurmd; sleep 1; slurmctld </dev/null; slurmd </dev/null")
        self.healer = self.popen(HEALER)
        self.heal()

    def write(self, path: str, text: str) -> None:
        self.lab.inside(self.host, "sh", "-c", f"cat >{path}", stdin=text.encode())

    def popen(self, line: str) -> subprocess.Popen[bytes]:
        argv = ["nsenter", "-t", str(self.lab.hosts[self.host]["pid"]), "-a", "bash", "-c", line]
        env = {"PATH": f"/share/shim:{os.environ['PATH']}", "HOME": "/root", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}
        return subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )

    def typed(self, folder: str, line: str) -> tuple[str, int | None, str]:
        process = self.popen(f"cd {folder} && exec timeout -s KILL {COMMAND_SECONDS} {FLEET} {line}")
        text = process.communicate()[0].decode(errors="replace")
        return line, None if process.returncode == 137 else process.returncode, text

    def heal(self) -> None:
        """Ends the faults, and waits until slurmctld answers and its node is free of jobs that end."""
        self.lab.sh(self.host, "rm -f /share/shim/plan/*; pkill -CONT -x slurmctld; true")
        until = time.monotonic() + 90
        up = "pgrep -x slurmctld || slurmctld </dev/null >/dev/null 2>&1; timeout 9 scontrol ping | grep -q UP"
        while self.lab.inside(self.host, "sh", "-c", up, check=False).returncode:
            assert time.monotonic() < until, "slurmctld does not come back"
            time.sleep(0.5)

    def play(self, case: Case) -> Played:
        played, folder, lab = Played(case), f"/share/{case.seed}", self.lab
        lab.sh(self.host, f"mkdir -p {folder}; cd /share/shim; rm -f plan/* log; echo 0 >count")
        self.write(f"{folder}/p.py", PROGRAM)
        for number, (what, seconds) in case.faults.items():
            self.write(f"/share/shim/plan/{number}", f"{seconds} {what}\n")
        options = "--nodes 1 --gres gpu:1 --nproc-per-node 1 --no-preflight" + " --detach" * (case.way == "detach")
        line = f"launch --on slurm {options} --python {standin_python()} p.py {case.seconds} {case.code}"
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(self.typed, folder, line)
            timer = threading.Timer(case.at, self._meanwhile, (case, folder, played, first))
            if case.way in ("killed", "interrupt", "stop", "scancel"):
                timer.start()
            played.texts.insert(0, first.result())
            timer.cancel()
            if timer.is_alive():
                timer.join()
        self.heal()
        listing = f"cd {folder}; ls runs 2>/dev/null | grep -v latest || true"
        played.run = (lab.sh(self.host, listing).split() or [""])[0]
        if played.run:
            if case.seconds == LONG:
                played.texts.append(self.typed(folder, f"stop {played.run}"))
            played.texts.append(self.typed(folder, f"attach {played.run}"))
        # one that is over may be COMPLETING for as long as slurmctld asks its node, again every few minutes
        jobs = f"squeue -h -o '%i %T %o' | grep {folder}/ | grep -v COMPLETING || true"
        until = time.monotonic() + 30
        while (there := lab.sh(self.host, jobs)) and time.monotonic() < until:
            time.sleep(1)
        played.there = there
        played.runs = lab.sh(self.host, listing).split()
        made = lab.sh(self.host, f"cat {folder}/runs/*-*/events.jsonl 2>/dev/null || true").splitlines()
        found = [f"{it['event']} {it.get('exit_code', '')}".strip() for it in map(json.loads, made)]
        played.events = [it for it in found if it.startswith(("plan", "summary"))]
        played.ledger = lab.sh(self.host, f"cat {folder}/ledger-* 2>/dev/null || true").splitlines()
        if played.run:
            _, _, text = self.typed(folder, "--json runs")
            found = json.loads(text[text.index("{") :])["runs"]
            played.listed = next((it for it in found if it["run"] == played.run), {})
        lab.sh(self.host, "scancel --me; true")
        return played

    def _meanwhile(self, case: Case, folder: str, played: Played, first: Future[Any]) -> None:
        """Ends the run, or who looks on, as its user does: again where the first time had no effect."""
        for _ in range(1 if case.way == "killed" else 4):
            self._end(case, folder, played)
            if wait([first], 15).done:
                return

    def _end(self, case: Case, folder: str, played: Played) -> None:
        which = f"pgrep -f '^[^ ]*python[^ ]* {FLEET} launch .* p.py {case.seconds} {case.code}$'"
        if case.way == "stop":
            played.texts.append(self.typed(folder, "stop latest"))
        elif case.way == "scancel":
            self.lab.sh(self.host, "timeout 20 scancel --me; true")
        else:
            signal = "KILL" if case.way == "killed" else "INT"
            # not while Python itself starts, of which no line is fleet's: that takes seconds on a busy machine
            begun = "until grep -qs lib-dynload /proc/$pid/maps || ! [ -e /proc/$pid ]; do sleep 0.1; done"
            self.lab.sh(self.host, f"for pid in $({which}); do {begun}; kill -{signal} $pid; done; true")

    def close(self) -> None:
        self.healer.kill()
        self.healer.wait()


@contextmanager
def a_ground(number: int) -> Iterator[Ground]:
    with tempfile.TemporaryDirectory(prefix="fleet-slurmctld.") as home:
        lab = bring_up(Path(home), f"sc{os.getpid() % 10000}{'abcdefgh'[number]}", ["1", "--slurm"])
        try:
            ground = Ground(lab)
            yield ground
            ground.close()
        finally:
            lab.fleet("lab", "down", "-q")


def told(played: Played, wrong: list[str], log: str) -> str:
    texts = "\n".join(f"  fleet {typed}: exit code {code}\n{indented(text)}" for typed, code, text in played.texts)
    facts = f"  ledger: {played.ledger}, runs: {played.listed}"
    return f"seed {played.case.seed}: {'; '.join(wrong)}\n{played.case}\n{texts}\n{facts}\n{indented(log)}"


def indented(text: str) -> str:
    return "\n".join(f"      {line}" for line in text.splitlines()[-14:])


def main(count: int, first: int, workers: int = 1) -> int:
    """Returns how many cases found something."""
    seeds, lock, faults, began = iter(range(first, first + count)), threading.Lock(), list[int](), time.monotonic()
    done = list[str]()

    def work(number: int) -> None:
        with a_ground(number) as ground:
            while True:
                with lock:
                    seed = next(seeds, None)
                if seed is None:
                    return
                played = ground.play(make(seed))
                wrong = [*played.wrong()]
                with lock:
                    done.append(played.case.way)
                    if len(done) % 20 == 0:
                        print(f"{len(done)} cases, {time.monotonic() - began:.0f} s", flush=True)
                    if wrong:
                        faults.append(seed)
                        log = ground.lab.sh(ground.host, "cat /share/shim/log || true")
                        print(told(played, wrong, re.sub("(?m)^(.{200}).*$", r"\1", log)), flush=True)

    with ThreadPoolExecutor(workers) as pool:
        for finished in [pool.submit(work, number) for number in range(workers)]:
            finished.result()
    print(f"{len(done)} cases from seed {first} on, in {time.monotonic() - began:.0f} s: {len(faults)} faults {faults}")
    return len(faults)


if __name__ == "__main__":
    numbers = [int(it) for it in sys.argv[1:]]
    sys.exit(bool(main(numbers[0], numbers[1], *numbers[2:3])))
