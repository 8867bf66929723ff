"""Runs under way: what following one costs this machine, whether it keeps up, how soon it speaks and ends.

All nodes of the lab share this machine's cores with the head, so that seconds say more of it than of fleet; processor
time, and ratios of what stood side by side, carry over.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pty
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.fleet_lab import FLEET, BenchLab
from tests.bench.harness import Contestant, command, spread

HERTZ = os.sysconf("SC_CLK_TCK")
LAUNCH = ("launch", "--engine", "command", "--nproc-per-node", "1", "--workdir", "/root")
IDLE = ("sh", "-c", "echo up; sleep 900")
WATCHED_SECONDS, SETTLE_SECONDS = 30.0, 5.0
FLOOD_SECONDS, LINES_A_SECOND = 15, 50_000
WAIT_SECONDS = 120.0
# argv: lines a second. A number in each line; when the last one was written is the last line.
FLOOD = f"""
import sys, time
rate, began, sent = int(sys.argv[1]), time.monotonic(), 0
while sent < rate * {FLOOD_SECONDS}:
    due = min(rate * {FLOOD_SECONDS}, int((time.monotonic() - began) * rate))
    sys.stdout.write("".join("line %d of a training that tells much of every step\\n" % i for i in range(sent, due)))
    sys.stdout.flush()
    sent = due
    time.sleep(0.02)
print("over", time.time(), flush=True)
"""
# One of many ends: when, it writes itself.
FAIL = "test $RANK = 5 || exec sleep 900; sleep 3; date +%s.%N >&2; exit 3"


@dataclass(frozen=True)
class Figure:
    """seen: in words, with its unit. aim: in words; "" where there is none."""

    what: str
    seen: str
    aim: str = ""
    met: bool = True

    def row(self) -> str:
        return f"| {self.what} | {self.seen} | {self.aim}{(' met' if self.met else ' not met') if self.aim else ''} |"


@dataclass
class OnTerminal:
    """A fleet command on a terminal that somebody reads."""

    lab: BenchLab
    argv: tuple[str, ...]
    text: bytearray = field(default_factory=bytearray)
    first: float = 0.0  # seconds from its start to its first word

    def __post_init__(self) -> None:
        began = time.monotonic()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(self.lab.home)
            os.execve(FLEET, [FLEET, "-i", "lab", *self.argv], {**self.lab.env, "TERM": "xterm", "NO_COLOR": "1"})
        self._reader = threading.Thread(target=self._read, args=(began,), daemon=True)
        self._reader.start()

    def _read(self, began: float) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self.fd, 1 << 16):
                self.first = self.first or time.monotonic() - began
                self.text += data

    def until(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not ready():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.argv}: {bytes(self.text[-500:])!r}")
            time.sleep(0.02)

    def interrupt(self) -> float:
        """Ctrl-C; seconds until it is answered on the terminal."""
        began = time.monotonic()
        os.write(self.fd, b"\x03")
        self.until(lambda: b"interrupted:" in self.text)
        return time.monotonic() - began

    def end(self) -> int:
        """Its exit code."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._reader.join(5)
        os.close(self.fd)
        return code

    @property
    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / HERTZ

    @property
    def mebibytes(self) -> float:
        return int(re.findall(r"VmRSS:\s+(\d+)", Path(f"/proc/{self.pid}/status").read_text())[0]) / 1024


def newest(lab: BenchLab) -> Path:
    return max((lab.home / "runs").glob("*-*"), key=lambda path: path.stat().st_mtime)


# -- 64 nodes ---------------------------------------------------------------------------------------------
def watched(lab: BenchLab, hosts: list[str], seconds: float) -> tuple[float, float]:
    """(percent of a core, MiB) of following an idle run on these hosts."""
    run = OnTerminal(lab, ("-w", ",".join(hosts), *LAUNCH, *IDLE))
    run.until(lambda: run.text.count(b"] up") >= len(hosts))
    time.sleep(SETTLE_SECONDS)
    processor, began = run.processor_seconds, time.monotonic()
    time.sleep(seconds)
    percent = 100 * (run.processor_seconds - processor) / (time.monotonic() - began)
    size = run.mebibytes
    run.interrupt()
    run.end()
    return percent, size


def idle(lab: BenchLab) -> list[Figure]:
    _, alone = watched(lab, lab.names[:1], 1.0)
    percent, size = watched(lab, lab.names, WATCHED_SECONDS)
    each = (size - alone) / (len(lab.names) - 1)
    what = f"following an idle run on {len(lab.names)} nodes"
    return [
        Figure(f"{what}, processor", f"{percent:.2f} % of a core", "< 2 %", percent < 2),
        Figure(f"{what}, memory", f"{each:.2f} MiB a node, {size:.0f} MiB in all", "< 1 MiB a node", each < 1),
    ]


def first_words(lab: BenchLab, rounds: int) -> Figure:
    times = []
    for _ in range(rounds):
        run = OnTerminal(lab, (*LAUNCH, "true"))
        run.end()
        times.append(run.first * 1000)
    seen = f"{spread(times, 0)} ms"
    return Figure(
        f"from Enter to the first words, {len(lab.names)} nodes", seen, "< 300 ms", sorted(times)[rounds // 2] < 300
    )


AIMS = {"fleet exec -- true": 1.5}


def asked(lab: BenchLab) -> list[tuple[str, Contestant, list[Contestant]]]:
    """(title, it, `exec` beside it) of ps, of logs where they are followed, and of logs from another machine's folder.
    Begins a run, which rest() ends."""
    lab.fleet(*LAUNCH, "--detach", *IDLE)
    elsewhere = lab.home / "elsewhere"
    elsewhere.mkdir()

    def fleet(name: str, *argv: str, folder: Path = lab.home, says: str = "") -> Contestant:
        run = command([FLEET, "-i", "lab", *argv], lab.env, str(folder))
        return Contestant(
            name, run, lambda done: done.output[-300:] if done.status or says not in done.output else None
        )

    def beside() -> list[Contestant]:
        python = ("exec", "--", "/usr/bin/python3", "-I", "-S", "-c", "import json")
        return [
            fleet("fleet exec -- true", "exec", "--", "true"),
            fleet("fleet exec -- python3 -c 'import json'", *python),
        ]

    last = f"[{lab.names[-1]}:{len(lab.names) - 1}] up"
    count = len(lab.names)
    return [
        (f"`ps`, {count} nodes", fleet("fleet ps", "ps", says="running"), beside()),
        (f"`logs`, {count} nodes, followed here", fleet("fleet logs", "logs", says=last), beside()),
        (
            f"`logs`, {count} nodes, another head's run",
            fleet("fleet logs", "logs", folder=elsewhere, says=last),
            beside(),
        ),
    ]


def rest(lab: BenchLab) -> None:
    lab.fleet("stop", "latest")


# -- 16 nodes ---------------------------------------------------------------------------------------------
def digests(lab: BenchLab, run: Path) -> dict[str, str]:
    """Of the ranks' logs on the nodes, by host."""
    said = json.loads(lab.fleet("--json", "exec", "--shell", f"sha256sum <~/.fleet/runs/{run.name}/rank*.out"))
    return {name: host["stdout"].split()[0] for name, host in said["hosts"].items()}


def flood(lab: BenchLab) -> list[Figure]:
    """Every node writes; the terminal is read, and spoken to in the middle of it."""
    (lab.home / "job").mkdir()
    (lab.home / "job/flood.py").write_text(FLOOD)
    lab.fleet("sync", "job", "--to", "/root/flood")
    rate = LINES_A_SECOND // len(lab.names)
    argv = (*LAUNCH, "--workdir", "/root/flood", "/usr/bin/python3", "flood.py", str(rate))
    run = OnTerminal(lab, argv)
    run.until(lambda: b" of a training that tells" in run.text)
    processor, began = run.processor_seconds, time.monotonic()
    time.sleep(FLOOD_SECONDS / 2)
    percent = 100 * (run.processor_seconds - processor) / (time.monotonic() - began)
    code = run.end()
    folder = newest(lab)
    logs = {path.parent.name: path for path in folder.glob("*/rank*.out")}
    here = {host: hashlib.sha256(path.read_bytes()).hexdigest() for host, path in logs.items()}
    lags = [path.stat().st_mtime - float(path.read_text().split()[-1]) for path in logs.values()]
    lines = sum(path.read_bytes().count(b"\n") for path in logs.values()) - len(logs)
    wanted = rate * FLOOD_SECONDS * len(lab.names)
    whole = code == 0 and here == digests(lab, folder) and lines == wanted
    shown = bytes(run.text).count(b" of a training that tells")
    again = OnTerminal(lab, argv)
    again.until(lambda: b" of a training that tells" in again.text)
    time.sleep(FLOOD_SECONDS / 5)  # any one line may be among those that are not shown
    answered = again.interrupt()
    again.end()
    what = f"{len(lab.names)} nodes write {LINES_A_SECOND} lines a second for {FLOOD_SECONDS} s"
    return [
        Figure(f"{what}: logs", f"{lines} of {wanted} lines, exit code {code}, equal by digest: {whole}", "all", whole),
        Figure(f"{what}: from the last line's writing to the head's disk", f"{spread(lags)} s", "< 1 s", max(lags) < 1),
        Figure(f"{what}: the head's processor", f"{percent:.0f} % of a core"),
        Figure(f"{what}: lines shown on the terminal", f"{100 * shown / wanted:.0f} %"),
        Figure(f"{what}: from Ctrl-C to its answer on the terminal", f"{answered:.2f} s", "< 1 s", answered < 1),
    ]


def alive(run_id: str) -> bool:
    """Whether a process of a run is left on any node of this machine's lab."""
    mark = f"FLEET_RUN_ID={run_id}".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in path.read_bytes():
                return True
    return False


def ending(lab: BenchLab, rounds: int) -> list[Figure]:
    """From a rank's exit to the last process, and to fleet's own end."""
    gone, told = [], []
    for _ in range(rounds):
        run = OnTerminal(lab, (*LAUNCH, "sh", "-c", FAIL))
        run.until(lambda run=run: b"logs in" in run.text)  # type: ignore[misc]
        folder, ended, last = newest(lab), list[float](), 0.0
        waiting = threading.Thread(target=lambda run=run, ended=ended: (run.end(), ended.append(time.time())))
        waiting.start()
        while waiting.is_alive() or alive(folder.name):
            last = time.time() if alive(folder.name) else last
        (failed,) = [path for path in folder.glob("*/rank*.err") if path.stat().st_size]
        exit_at = float(failed.read_text().split()[0])
        gone.append(last - exit_at)
        told.append(ended[0] - exit_at)
    what = f"{len(lab.names)} nodes, from a rank's exit"
    return [
        Figure(f"{what} to the last process's end", f"{spread(gone)} s", "< 2 s", max(gone) < 2),
        Figure(f"{what} to the end of fleet itself", f"{spread(told)} s"),
    ]


def table(title: str, figures: list[Figure]) -> str:
    return (
        "\n".join([f"### {title}", "", "| | seen | aim |", "| --- | --- | --- |", *(f.row() for f in figures)]) + "\n"
    )
