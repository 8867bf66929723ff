"""The same cases in the lab, with real sshd: hosts are cut off and frozen as a whole, heads are folders of one
machine. What a lab has no words for does not befall a case there."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fleet.lab.processes import freeze, inside, thaw
from fleet.transport.program import BOOT
from tests.fuzz.runs.draw import Case
from tests.fuzz.runs.world import HEADS, RANKS, process_of, read
from tests.lab.virtual_lab import VirtualLab, bring_up

SHARED = Path("/srv")  # the same on all hosts of a lab
HOME = Path("/root")
HEAD = "FUZZ_HEAD"  # in the environment of all that is typed on one
NODES = 3
HERE_ONLY = {"machine", "disk", "clock"}  # a lab's hosts lose their disks with their power


def in_lab(case: Case, names: list[str]) -> Case:
    """What may be played there, with the hosts' names."""
    faults = []
    for fault in case.faults:
        words = fault.name.split()
        elsewhere = words[0] == "b" and fault.actor in ("link", "all links")
        if fault.actor in HERE_ONLY or elsewhere or fault.what in ("reboot", "power", "flap", "reset"):
            continue
        known = {f"n{number + 1}": name for number, name in enumerate(names)}
        faults.append(replace(fault, name=" ".join(known.get(word, word) for word in words)))
    return replace(case, nodes=NODES, slots=1, slow=None, faults=tuple(faults))


class LabMachine:
    """A host of the lab, or a head: a folder that is typed in."""

    up, frozen = True, False

    def __init__(self, world: LabWorld, name: str, pid: int | None) -> None:
        self.world, self.name, self._pid = world, name, pid
        self.place = world.place / name
        self.place.mkdir()
        self.said = self.place / "said"
        self.home = Path(f"/proc/{pid}/root/root") if pid else self.place

    def look(self) -> list[dict[str, Any]]:
        found = []
        for pid in inside(self._pid) if self._pid else map(int, filter(str.isdigit, os.listdir("/proc"))):
            process, env = process_of(pid)
            if process is None or pid == self._pid or not self._pid and env.get(HEAD) != self.world.mark(self.name):
                continue
            if BOOT in process["argv"] and not process["comm"].startswith("fleet-"):
                process["ppid"] = 1  # a program of fleet's, whatever of sshd's it is below
            found.append(process)
        return found

    def kill(self, pid: int, signum: int) -> bool:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            return False
        return True

    def freeze(self) -> None:
        assert self._pid
        freeze(self._pid)

    def thaw(self) -> None:
        assert self._pid
        thaw(self._pid)

    def boot(self) -> None: ...

    def free(self) -> None: ...

    @property
    def runs(self) -> list[Path]:
        root = self.home / ".fleet/runs"
        return [path for path in root.glob("*-*") if not path.name.endswith(".stop") and self.world.is_ours(path.name)]

    def states(self) -> list[str]:
        return [str(read(path / "status.json").get("state")) for path in self.runs]


class LabTyped:
    """As Typed."""

    def __init__(self, head: LabMachine, words: tuple[str, ...], *, terminal: bool = False) -> None:
        self.head, self.words, self.terminal = head, words, terminal
        self.out = head.place / f"out.{len(list(head.place.glob('out.*')))}"
        self.began = time.monotonic()
        self.killed: str | None = None
        self.screen: int | None = None
        inventory = [] if words[0] == "runs" else ["-i", "lab"]
        lab = head.world.lab
        env = {**lab.env, HEAD: head.world.mark(head.name), "TERM": "xterm"}
        with open(self.out, "ab") as out:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            if terminal:
                self.screen, theirs = pty.openpty()
                streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
            argv = ["setsid", "--ctty", "--wait"] if terminal else []
            argv += [lab.program, *inventory, *words]
            self._process = subprocess.Popen(argv, cwd=head.place, env=env, start_new_session=not terminal, **streams)
        if terminal:
            os.close(theirs)
            threading.Thread(target=self._copy, args=(self.screen,), daemon=True).start()

    def _copy(self, screen: int) -> None:
        with open(self.out, "ab", 0) as out, suppress(OSError):
            while data := os.read(screen, 1 << 16):
                out.write(data)

    @property
    def pid(self) -> int:
        """Of fleet itself, below what gives it a terminal."""
        with suppress(OSError):
            children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
            if self.terminal and children:
                return int(children[0])
        return self._process.pid

    @property
    def code(self) -> int | None:
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def wait(self, seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.code

    def signal(self, signum: int) -> None:
        if self.code is None:
            self.head.kill(self.pid, signum)

    def press(self, key: bytes) -> None:
        if self.screen is not None:
            with suppress(OSError):
                os.write(self.screen, key)

    def hang_up(self) -> None:
        if self.screen is not None:
            screen, self.screen = self.screen, None
            os.close(screen)
        else:
            self.signal(signal.SIGHUP)

    @property
    def text(self) -> str:
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def __str__(self) -> str:
        return f"{self.head.name}$ fleet {' '.join(self.words)}"


class LabLink:
    """Hosts' cables: for all heads at once."""

    def __init__(self, lab: VirtualLab) -> None:
        self._lab = lab

    def cut(self, *roads: tuple[str, str]) -> None:
        self._lab.fleet("lab", "cut", ",".join(sorted({node for _, node in roads})), check=True)

    def heal(self, *roads: tuple[str, str]) -> None:
        self._lab.fleet("lab", "heal", ",".join(sorted({node for _, node in roads})), check=True)

    def slow(self, rate: float | None, *roads: tuple[str, str]) -> None: ...

    def reset(self, *roads: tuple[str, str]) -> None: ...


class LabWorld:
    """As World, for one case in a lab that others had before."""

    def __init__(self, lab: VirtualLab, seed: int) -> None:
        self.lab = lab
        self.place = Path(tempfile.mkdtemp(prefix=f"fuzz-{seed}-", dir=SHARED))
        self.place.chmod(0o755)
        self._before = {path.name for name in lab.names for path in self._seen(name, HOME).glob(".fleet/runs/*")}
        self.own = self.place / "own"
        for name in lab.names:  # which see what is there, and write beside it
            self._seen(name, self.own).mkdir(parents=True)
        self.nodes = {name: LabMachine(self, name, lab.hosts[name]["pid"]) for name in lab.names}
        self.heads = {name: LabMachine(self, name, None) for name in HEADS}
        self.link = LabLink(lab)
        shutil.copy(RANKS, self.place / "ranks")
        (self.place / "ranks").chmod(0o755)
        self.typed = list[LabTyped]()

    def _seen(self, name: str, path: Path) -> Path:
        """A host's own view of a path."""
        return Path(f"/proc/{self.lab.hosts[name]['pid']}/root{path}")

    def owns(self, attempt: int | str = "*") -> list[Path]:
        found = [self._seen(name, self.own).glob(f"*.*.{attempt}.*") for name in self.lab.names]
        return sorted(path for each in found for path in each)

    def go(self, own: Path, attempt: int) -> None:
        for name in self.lab.names:
            there = self._seen(name, own)
            there.mkdir(exist_ok=True)
            (there / f"go.{attempt}").touch()

    def is_ours(self, run: str) -> bool:
        return run not in self._before

    def mark(self, head: str) -> str:
        return f"{self.place}/{head}"

    def start(self) -> None: ...

    def machines(self) -> Iterator[LabMachine]:
        yield from self.nodes.values()
        yield from self.heads.values()

    def type(self, head: str, *words: str, terminal: bool = False) -> LabTyped:
        typed = LabTyped(self.heads[head], words, terminal=terminal)
        self.typed.append(typed)
        return typed

    def roads(self, head: str | None = None, node: str | None = None) -> list[tuple[str, str]]:
        return [(h, n) for h in HEADS for n in self.nodes if head in (None, h) and node in (None, n)]

    def run_folder(self, head: str) -> Path | None:
        return next(iter(sorted(self.heads[head].home.glob("runs/*-*-*-*"))), None)

    def close(self) -> None:
        for head in self.heads.values():
            for process in head.look():
                head.kill(process["pid"], signal.SIGKILL)
        for node in self.nodes.values():
            for process in node.look():
                if process["run"] or process["comm"].startswith("fleet-"):
                    node.kill(process["pid"], signal.SIGKILL)
        shutil.rmtree(self.place, ignore_errors=True)


@contextmanager
def a_lab(folder: Path) -> Iterator[VirtualLab]:
    home = folder / "home"
    home.mkdir()
    lab = bring_up(home, f"fuzz{os.getpid()}", [str(NODES)])
    try:
        for name in lab.enrol().names:
            lab.sh(name, "mkdir -p ~/work")
        yield lab
    finally:
        lab.fleet("lab", "down", "-q", timeout=120)
