"""The stand-in for torchrun of tests/standin beside the real one: in each case both do the same."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.free_port import free_port
from tests.node.nodes import until
from tests.standin import standin_python

pytestmark = pytest.mark.real

# writes what it finds, and ends as its first argument has it; each waits until all of the case have begun
PROGRAM = (
    f"#!{sys.executable}"
    + """
import json, os, signal, sys, time

def note(name, found=None):
    with open(name + ".new", "w") as f:
        json.dump(found, f)
    os.rename(name + ".new", name)

def wait(name):
    while not os.path.exists(name):
        time.sleep(0.02)

def received(signum, frame):
    note("signal%s" % rank, signum)
    sys.exit(4)

how, rank = sys.argv[1], os.environ["RANK"]
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN if "stubborn" in how else received)
leads = os.getsid(0) == os.getpgrp() == os.getpid()
note("began" + rank, {"argv": sys.argv[1:], "env": dict(os.environ), "leads": leads, "cwd": os.getcwd(),
                      "unbuffered": sys.stdout.write_through, "words": sys.orig_argv[1:]})
for other in range(int(os.environ["WORLD_SIZE"])):
    wait("began%d" % other)
if rank == "1" and "exit" in how:
    sys.exit(3)
if rank == "1" and how == "kill":
    os.kill(os.getpid(), 9)
if rank == "0" and how == "barrier":
    note("early")
    sys.exit(0)
if how != "well":
    wait("over")
"""
)


@dataclass(frozen=True)
class Case:
    """how: what the program does. nodes: the number of ranks of each. sent: which node's agent gets which signal, once
    all ranks have begun."""

    how: str = "well"
    nodes: tuple[int, ...] = (2,)
    sent: tuple[tuple[int, signal.Signals], ...] = ()
    command: tuple[str, ...] = ("--no-python", "--", "./rank.py")
    env: tuple[tuple[str, str], ...] = ()


TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
PLAIN = Case().command
VARIABLES = (("OMP_NUM_THREADS", "3"), ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"), ("PET_RDZV_ID", "theirs"))
CASES = {
    "all well": Case(),
    "two nodes": Case(nodes=(1, 2)),
    "a rank fails": Case("exit"),
    "a rank fails, and another one ignores SIGTERM": Case("exit stubborn"),
    "a rank is killed": Case("kill"),
    "a rank of the second node fails": Case("exit", (1, 1), ((0, TERM),)),
    "SIGTERM": Case("wait", sent=((0, TERM),)),
    "SIGINT": Case("wait", sent=((0, INT),)),
    "SIGHUP to both nodes": Case("wait", (1, 1), ((0, HUP), (1, HUP))),
    "SIGTERM that ranks ignore": Case("stubborn", sent=((0, TERM),), command=("--shutdown-timeout=1", *PLAIN)),
    "a script": Case(command=("rank.py",)),
    "a module": Case(command=("-m", "rank")),
    "variables": Case(env=VARIABLES),
    "ranks without the agent's store": Case(env=(("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1"),)),
    "standalone": Case(command=("--standalone", *PLAIN)),
    "an unknown option": Case(command=("--no-such-option=1", *PLAIN)),
}


class Side:
    """One of the two launchers, and what comes of a case by it."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python, self.folder = python, folder
        self.agents: list[subprocess.Popen[bytes]] = []
        (folder / "tmp").mkdir(parents=True)
        (folder / "rank.py").write_text(PROGRAM)
        (folder / "rank.py").chmod(0o755)

    def start(self, case: Case) -> None:
        port = free_port()
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            **dict(case.env),
        }
        for node, count in enumerate(case.nodes):
            argv = [self.python, "-m", "torch.distributed.run", f"--nnodes={len(case.nodes)}", f"--node_rank={node}"]
            argv += [f"--nproc-per-node={count}", "--master-addr=127.0.0.1", f"--master-port={port}"]
            argv += [*case.command, case.how, "--lr", "1 2", "$$", "${local_rank}", "$HOME", "--", ""]
            with (self.folder / f"err{node}").open("wb") as err:
                self.agents.append(
                    subprocess.Popen(argv, cwd=self.folder, env=env, stderr=err, stdin=subprocess.DEVNULL)
                )

    def began(self, count: int) -> bool:
        return len([*self.folder.glob("began?")]) == count

    def pids(self) -> list[int]:
        """Returns the ranks that are alive."""
        found = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cwd") if leads_to(path, self.folder)]
        return [pid for pid in found if pid not in [agent.pid for agent in self.agents]]

    def found(self) -> dict[str, Any]:
        """Returns all that is compared, once the agents have ended."""
        codes = [agent.wait(300) for agent in self.agents]
        files = {path.name: json.loads(path.read_text()) for path in sorted(self.folder.glob("[bs]*[0-9]"))}
        for name in [name for name in files if name.startswith("began")]:
            files[name]["env"] = {key: self.plain(value) for key, value in sorted(files[name]["env"].items())}
            files[name]["cwd"] = self.plain(files[name]["cwd"])
        errors = [lines(self.plain((self.folder / f"err{node}").read_text())) for node in range(len(codes))]
        return {"codes": codes, "files": files, "errors": errors, "pids": self.pids()}

    def plain(self, text: str) -> str:
        """Returns the text without what no two runs have alike."""
        text = text.replace(str(self.folder), "FOLDER").replace(self.python, "PYTHON")
        for pattern, name in (
            (r"FOLDER/tmp/.*/(\d)/error.json", r"FOLDER/\1"),
            (r"(?m)^[WE]\d{4} [\d:.]+ +\d+ torch/distributed/elastic/\S+\.py:\d+\]", "LOG"),
            (r"\b(pid|PID|[Pp]rocess):? \d+", r"\1 N"),
            (r"(?m)^  time +: .*", "TIME"),
            (r"(?m)^[=-]{5,}$|\*{5,}", "EDGE"),
            (r"^\d{4,5}$", "PORT"),
            (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
        ):
            text = re.sub(pattern, name, text)
        return text

    def end(self) -> None:
        for agent in self.agents:
            agent.kill()
            agent.wait()
        for pid in self.pids():
            os.kill(pid, signal.SIGKILL)


def leads_to(link: Path, folder: Path) -> bool:
    try:
        return link.readlink() == folder
    except OSError:
        return False


def lines(text: str) -> list[str]:
    """Returns what it logs and why it ended, without the lines of its code."""
    shown = [line.rstrip() for line in text.splitlines() if line.strip()]
    of_its_store = r"\[W\d{4} .*TCPStore|frame #\d|Exception raised from "  # on a busy machine
    return [line for line in shown if not re.match(rf'Traceback|  File "|    |  \.\.\.|{of_its_store}', line)]


@pytest.fixture
def sides(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    """The real one and the stand-in."""
    both = (Side(sys.executable, tmp_path / "real"), Side(standin_python(), tmp_path / "standin"))
    yield both
    for side in both:
        side.end()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_both_do_the_same(case: Case, sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.start(case)
    for node, signum in case.sent:
        for side in sides:
            until(lambda side=side: side.began(sum(case.nodes)))  # type: ignore[misc]
            if case.how == "exit":  # the other agent has ended
                assert side.agents[1 - node].wait(300) == 1
            side.agents[node].send_signal(signum)
    real, standin = (side.found() for side in sides)
    assert standin == real
    assert real["pids"] == []


def test_the_first_that_is_done_waits_for_the_others(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.start(Case("barrier", (1, 1)))
    for side in sides:
        until((side.folder / "early").exists)
        until(lambda side=side: len(side.pids()) == 1)  # type: ignore[misc]
        with pytest.raises(subprocess.TimeoutExpired):
            side.agents[0].wait(1.0)
        (side.folder / "over").touch()
    real, standin = (side.found() for side in sides)
    for errors in real["errors"]:  # of torch's own store, which may be gone before the other agent has left
        if any("exit barrier" in line for line in errors):
            errors.clear()
    assert standin == real and real["codes"] == [0, 0]


def test_ranks_outlive_an_agent_that_is_killed(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.start(Case("wait"))
    for side in sides:
        until(lambda side=side: side.began(2))  # type: ignore[misc]
        side.agents[0].kill()
        assert side.agents[0].wait(60) == -9 and len(side.pids()) == 2
        (side.folder / "over").touch()
        until(lambda side=side: not side.pids())  # type: ignore[misc]


def test_the_version_is_the_one_that_is_tested() -> None:
    argv = [standin_python(), "-c", "from torch.version import __version__ as it; print(it)"]
    standin = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert standin.partition("+")[0] == metadata.version("torch").partition("+")[0]
