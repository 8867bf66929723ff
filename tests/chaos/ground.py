"""The ground a fault is played on: a lab, a folder of its own, and ways to look at what is left."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import string
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.chaos.ranks import counted
from tests.lab.virtual_lab import VirtualLab, bring_up

LETTERS, NUMBERS = string.ascii_lowercase, itertools.count()
LIMIT = 90.0  # seconds that anything may take
SCRIPT = Path(__file__).with_name("ranks.py")
COMMON = ("-i", "lab", "launch", "--engine", "command", "--nproc-per-node", "2", "--grace", "3")
WHO = "import json, sys; who = json.load(open(sys.argv[1] + '/pid')); print(who['pid'], who['guardian']['pid'])"
# Every process of a host by its words, and every path where fleet may leave something.
PROCESSES = "for p in /proc/[0-9]*; do tr '\\0\\n' '  ' <$p/cmdline 2>/dev/null | cut -c1-160; echo; done"
# (/root shows what the machine below has there, too.)
PATHS = (
    "find /tmp /run /dev/shm /srv ! -path '/run/mount*'; "
    "find /root -maxdepth 1 ! -name .fleet; find /root/work /root/.ssh; "
    "find /root/.fleet -name '*.tmp' -o -name '.[!.]*' ! -path /root/.fleet; grep -rLs 'whole.*true' /root/.fleet/data"
)


class Unexpected(Exception):
    """A step of a fault's play did not come to pass."""


@dataclass
class Ground:
    """lab: four enrolled hosts with ranks.py in their workdir. folder: where fleet is run; new for each fault.

    undo: what brings the lab back, run when the fault has been played. made: what the fault may leave on hosts."""

    lab: VirtualLab
    folder: Path
    undo: ExitStack = field(default_factory=ExitStack)
    made: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        return self.lab.names

    # -- fleet ------------------------------------------------------------------------------------------------
    def fleet(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.lab.fleet(*args, cwd=self.folder, timeout=LIMIT, **options)

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Fleet in the background; its words go to files, so that nobody has to drain it."""
        folder = options.pop("cwd", self.folder)
        number = len(list(folder.glob("said.*")))
        with (folder / f"said.{number}").open("wb") as said:
            process = self.lab.popen(
                *args, cwd=folder, stdout=options.pop("stdout", said), stderr=options.pop("stderr", said), **options
            )
        process.said = folder / f"said.{number}"  # type: ignore[attr-defined]
        self.undo.callback(end, process)
        return process

    def launch(self, *args: str, count: int = 8, **options: Any) -> subprocess.Popen[bytes]:
        """A launch of which `count` ranks have written something."""
        folder = options.get("cwd", self.folder)
        process = self.start(*COMMON, *args, **options)
        until(
            lambda: (
                process.poll() is not None
                or len([p for p in folder.glob("runs/*-*/*/rank*.out") if p.stat().st_size]) >= count
            ),
            "ranks to write",
        )
        return process

    def heal(self, *hosts: str) -> None:
        self.fleet("lab", "heal", ",".join(hosts), check=True)

    def lame(self, how: str, *hosts: str) -> None:
        """`fleet lab cut|freeze` now; healed when the fault is over at the latest."""
        self.fleet("lab", how, ",".join(hosts), check=True)
        self.undo.callback(self.heal, *hosts)

    def slow(self, rate: str) -> None:
        self.fleet("lab", "link", ",".join(self.names), rate, check=True)
        self.undo.callback(self.fleet, "lab", "link", ",".join(self.names), "none", check=True)

    def fast(self, *hosts: str) -> None:
        """The links of these hosts as they were: what slow() was for has happened."""
        self.fleet("lab", "link", ",".join(hosts), "none", check=True)

    def power_off(self, host: str) -> None:
        self.undo.callback(self.revive)
        self.fleet("lab", "kill", host, check=True)

    def revive(self) -> None:
        self.fleet("lab", "up", check=True)
        self.lab.refresh()
        prepare(self.lab)

    # -- looking ----------------------------------------------------------------------------------------------
    def run(self, folder: Path | None = None) -> Path:
        (path,) = (folder or self.folder).glob("runs/*-*")
        return path

    def summary(self, folder: Path | None = None) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.run(folder) / "summary.json").read_text())
        return document

    def events(self) -> list[dict[str, Any]]:
        lines = (self.run() / "events.jsonl").read_text().splitlines(True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def owners(self, host: str) -> tuple[str, str]:
        """The pids, as the host sees them, of a run's supervisor and guardian."""
        supervisor, guardian = self.lab.sh(host, f'python3 -c "{WHO}" ~/.fleet/runs/{self.run().name}').split()
        return supervisor, guardian

    def rank_pid(self, host: str, rank: int) -> str:
        """The pid of a rank itself, as the host sees it."""
        find = f"grep -lzx RANK={rank} /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"
        for pid in self.lab.sh(host, find).split():
            if "ranks.py" in self.lab.sh(host, f"tr '\\0' ' ' </proc/{pid}/cmdline", check=False):
                return pid
        raise Unexpected(f"rank {rank} is not on {host}")

    def log_digests(self, folder: Path | None = None) -> str:
        """How the head's logs of the ranks stand to the nodes' own, by sha256."""
        run = self.run(folder)
        verdicts: dict[str, list[str]] = {}
        count = 0
        for host in self.names:
            line = f"cd ~/.fleet/runs/{run.name} 2>/dev/null && sha256sum rank*.out rank*.err"
            theirs = self.lab.sh(host, line, check=False)
            sums = {name: digest for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", theirs, re.M)}
            if not sums:
                verdicts.setdefault("unread", []).append(host)
                continue
            here = run / host
            if not here.is_dir():  # a spare took its place: what it has is an earlier attempt's
                here = max(run.glob(f"attempt*/{host}"), default=here)
            for name in sorted(sums):
                count += 1
                mine = (here / name).read_bytes() if (here / name).exists() else b""
                if hashlib.sha256(mine).hexdigest() != sums[name]:
                    head = self.lab.sh(host, f"head -c {len(mine)} ~/.fleet/runs/{run.name}/{name} | sha256sum")
                    kind = "cut" if head.split()[0] == hashlib.sha256(mine).hexdigest() else "OTHER"
                    if host not in verdicts.setdefault(kind, []):
                        verdicts[kind].append(host)
        odd = [f"{kind} at {','.join(hosts)}" for kind, hosts in sorted(verdicts.items())]
        return "; ".join(odd) or ("logs equal" if count else "no logs")

    def counted(self, steps: int) -> str:
        """log_digests, and whether each line of ranks that count is there, once."""
        odd = []
        for rank in range(8):
            for stream, written in zip(
                ("out", "err"), zip(*(counted(rank, i) for i in range(steps)), strict=True), strict=True
            ):
                logs = list(self.run().glob(f"*/rank{rank}.{stream}"))
                if [log.read_bytes() for log in logs] != [b"".join(written)]:
                    odd.append(f"rank{rank}.{stream}")
        return f"{self.log_digests()}, {'NOT whole: ' + ', '.join(odd) if odd else 'whole'}"

    def processes(self, host: str) -> set[str]:
        lines = {line.strip() for line in self.lab.sh(host, PROCESSES, check=False).splitlines() if line.strip()}
        return {
            line
            for line in lines
            if "for p in /proc/" not in line and not line.startswith(("tr ", "cut ")) and "[listener]" not in line
        }  # sshd itself

    def paths(self, host: str) -> set[str]:
        return set(self.lab.sh(host, f"({PATHS}) 2>/dev/null", check=False).splitlines())

    def head_paths(self) -> set[str]:
        """Temporary files of this head (its TMPDIR is its own)."""
        ssh = self.lab.home / ".ssh"
        return {str(p) for p in Path(self.lab.env["TMPDIR"]).iterdir()} | {str(p) for p in ssh.glob(".fleet*")}

    def head_processes(self) -> set[str]:
        """Programs of this head outside of its hosts, by pid and words."""
        found, space = set(), os.readlink("/proc/self/ns/pid")
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                mine = f"HOME={self.lab.home}".encode() in (entry / "environ").read_bytes().split(b"\0")
                if mine and os.readlink(entry / "ns/pid") == space:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    found.add(f"{entry.name} {words[:120]}")
            except OSError:
                continue
        return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill it if it still runs, stopped or not."""
    if process.poll() is None:
        process.kill()
    process.wait(10)


def said(process: subprocess.Popen[bytes]) -> str:
    return process.said.read_text(errors="replace")  # type: ignore[attr-defined,no-any-return]


def wait(process: subprocess.Popen[bytes], seconds: float = LIMIT) -> int:
    """Its exit code. It is stopped for good when it takes longer than a fault may."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        raise Unexpected(f"no end within {seconds:g} s") from None


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Unexpected(f"waited {seconds:g} s for {what}")
        time.sleep(0.1)


def prepare(lab: VirtualLab) -> None:
    """Keys everywhere, and ranks.py in every host's workdir."""
    lab.enrolled = False
    lab.enrol()
    for host in lab.names:
        line = "mkdir -p ~/work && cat >~/work/ranks.py; chmod +x ~/work/ranks.py"
        lab.inside(host, "sh", "-c", line, stdin=SCRIPT.read_bytes())


@contextmanager
def chaos_lab() -> Iterator[VirtualLab]:
    """Four hosts with a disk of their own, and a head with a home and a TMPDIR of its own; gone at the end."""
    with tempfile.TemporaryDirectory(prefix="fleet-chaos.", ignore_cleanup_errors=True) as folder:
        home = Path(folder, "home")
        home.mkdir()
        Path(folder, "tmp").mkdir()
        lab = bring_up(home, f"chaos{os.getpid()}{LETTERS[next(NUMBERS) % 26]}", ["4"])
        try:
            lab.env["TMPDIR"] = str(Path(folder, "tmp"))
            prepare(lab)
            yield lab
        finally:
            lab.fleet("lab", "down", "-q", timeout=120)
