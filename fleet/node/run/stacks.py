"""Reads the stacks of a run's ranks without disturbing the run.

spec: {"run", "ranks": [...] or null for all, "ended": bool, "native": bool}. Sends J {"event": "stacks", "ranks":
[...], ...}: see fleet/protocol/messages/stacks.py; {"event": "failed", ...} if no such run is known.

It uses py-spy if the rank's own PATH has it. To read native frames, py-spy stops the rank for some tenths of a second;
to read Python frames, it does not. Otherwise it uses faulthandler, if rank.py has armed the rank. Otherwise it reads
the kernel's stack."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress

from fleet.node.base.errors import Refused, answer
from fleet.node.base.processes import environment, is_ours, open_files, read_file, state_of, status_of
from fleet.node.base.run_folder import known_folder
from fleet.node.base.types import TYPE_CHECKING, Any, stacks
from fleet.node.base.wire import start_thread
from fleet.node.facts.way import is_here
from fleet.node.run.calls import calls_of, ras_of
from fleet.node.run.marks import marked
from fleet.node.run.rank.rank import STACK_SIGNAL, stack_file
from fleet.node.run.trainers import trainers
from fleet.protocol.state import RANK_WRAPPER

if TYPE_CHECKING:
    Threads = list[stacks.Thread]

NATIVE_SECONDS, PYTHON_SECONDS, SIGNAL_SECONDS = 10.0, 4.0, 5.0
MAX_NAME, MAX_FRAMES, MAX_THREADS = 300, 150, 100
STOPPED, UNINTERRUPTIBLE = "Tt", "D"
# patterns of a command line: a launcher, its number of nodes, and the address where these meet
LAUNCHER = re.compile(rb"torchrun|torch\.distributed|accelerate|deepspeed|colossalai")
NODES = re.compile(rb"\0--(?:nnodes|num[_-](?:machines|nodes))[=\0](?:\d+:)?(\d+)")
MASTER = re.compile(rb"\0--(?:master[_-]addr|rdzv[_-]endpoint|main[_-]process[_-]ip)[=\0]([^\0]+)")
_FRAME = re.compile(r'  File "?(.*?)"?, line (\d+|\?+) in (.*)')


def frame(name: str, file: str, line: int = 0, native: bool = False) -> "stacks.Frame":
    return {"name": name[:MAX_NAME], "file": file[-MAX_NAME:], "line": line, "native": native}


def threads_of(pid: int) -> "list[str]":
    return os.listdir("/proc/%d/task" % pid)


# -- py-spy -----------------------------------------------------------------------------------------------
def py_spy_of(pid: int) -> "str | None":
    """Returns the path of py-spy on the rank's PATH, or on this program's PATH, or None."""
    own = os.environ.get("PATH", os.defpath)
    path = os.fsdecode(environment(pid).get(b"PATH", b"")) if is_ours(pid) else ""
    return shutil.which("py-spy", path=path + os.pathsep + own if path else own)


def ask_py_spy(tool: str, pid: int, native: bool) -> "list[dict[str, Any]]":
    """Returns the threads as py-spy reports them. Raises Refused if py-spy fails."""
    argv = [tool, "dump", "--json", "--pid", str(pid), "--native" if native else "--nonblocking"]
    seconds = NATIVE_SECONDS if native else PYTHON_SECONDS
    try:
        done = subprocess.run(  # noqa: UP022 (Python 3.6)
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        if native:
            os.kill(pid, signal.SIGCONT)  # if py-spy was killed while the rank was stopped
        raise Refused("py-spy took longer than %g s" % seconds) from None
    except OSError as error:
        raise Refused("%s: %s" % (tool, error.strerror)) from None
    with suppress(ValueError):
        if done.returncode == 0:
            return list(json.loads(done.stdout.decode("utf-8", "replace")))
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["exit status %d" % done.returncode]
    raise Refused("py-spy: " + lines[0][:MAX_NAME])


def by_py_spy(tool: str, pid: int, native: bool) -> "Threads":
    held = set(STOPPED + UNINTERRUPTIBLE)  # in these states, a thread cannot be stopped by a tracer
    if native and not held & {state_of(pid, "/task/" + tid) for tid in threads_of(pid)}:
        with suppress(Refused):
            return _threads(ask_py_spy(tool, pid, True), pid)
    return _threads(ask_py_spy(tool, pid, False), pid)


def _threads(dump: "list[dict[str, Any]]", pid: int) -> "Threads":
    found = []
    for thread in dump[:MAX_THREADS]:
        frames = [
            frame(each["name"], each["filename"], each.get("line") or 0, bool(each.get("module")))
            for each in thread["frames"][:MAX_FRAMES]
        ]
        main = thread.get("os_thread_id") == pid or thread.get("thread_name") == "MainThread"
        found.append(_thread(thread.get("thread_name") or "", main, frames))
    return found


def _thread(name: str, main: bool, frames: "list[stacks.Frame]") -> "stacks.Thread":
    return {"name": name[:MAX_NAME], "main": main, "frames": frames}


# -- faulthandler -----------------------------------------------------------------------------------------
def has_signal(values: "list[bytes]") -> bool:
    """Returns whether STACK_SIGNAL is in a signal mask that status_of() returned."""
    return bool(values) and int(values[0], 16) >> (STACK_SIGNAL - 1) & 1 == 1


def is_armed(pid: int, path: str) -> bool:
    """Returns whether the process would write its stack to that file. The signal would end any other process, or make
    it write into another file."""
    try:
        return has_signal(status_of(pid, b"SigCgt")) and any(os.path.samefile(it, path) for it, _ in open_files(pid))
    except OSError:
        return False


def answering(pid: int) -> "set[str]":
    """Returns the ids of the threads that block the signal now. A thread blocks it while it handles the signal."""
    return {tid for tid in threads_of(pid) if has_signal(status_of(pid, b"SigBlk", "/task/" + tid))}


def by_faulthandler(pid: int, path: str) -> "Threads":
    """Returns the main thread with its frames. Raises Refused if the process is not armed, or does not respond."""
    if not is_armed(pid, path):
        raise Refused("fleet has not armed it (python -I or -E, or no python)")
    if state_of(pid) in STOPPED + UNINTERRUPTIBLE:
        raise Refused("it answers no signal now")
    begin, deaf = os.stat(path).st_size, answering(pid)
    os.kill(pid, STACK_SIGNAL)
    begun = time.monotonic()
    while os.stat(path).st_size == begin or answering(pid) - deaf:
        if time.monotonic() - begun > SIGNAL_SECONDS:
            break
        time.sleep(0.01)
    with open(path, "rb") as f:
        f.seek(begin)
        frames = parse(f.read().decode("utf-8", "replace"))
    if not frames:
        raise Refused("it has not answered within %g s" % SIGNAL_SECONDS)
    return [_thread("MainThread", True, frames)]


def parse(text: str) -> "list[stacks.Frame]":
    """Returns the frames in faulthandler's output."""
    found = [_FRAME.match(line) for line in text.splitlines()]
    return [frame(it.group(3), it.group(1), int(it.group(2)) if it.group(2).isdigit() else 0) for it in found if it]


# -- the kernel -------------------------------------------------------------------------------------------
def by_kernel(pid: int) -> "Threads":
    """Returns the main thread with the kernel functions that it is in. Only root can read them."""
    lines = read_file("/proc/%d/stack" % pid).decode("ascii", "replace").splitlines()
    frames = [frame(line.split()[-1].partition("+")[0], "kernel", 0, True) for line in lines if line.strip()]
    return [_thread(read_file("/proc/%d/comm" % pid).decode("utf-8", "replace").strip(), True, frames)]


# -- the address of this node at which launchers or ranks that a user's script started wait for other nodes --------
def own_master(run: str) -> "str | None":
    """Returns the address of this node at which a launcher or rank waits for other nodes; None if there is none.
    Ignores addresses that fleet has set."""
    found = {pid: environment(pid) for pid in sorted(marked(run))}
    given = {env.get(b"MASTER_ADDR") for pid, env in found.items() if read_file("/proc/%d/comm" % pid) == RANK_WRAPPER}
    for pid, env in found.items():
        address = master_of(read_file("/proc/%d/cmdline" % pid), env)
        if address and address not in given and is_own(address.decode("utf-8", "replace")):
            return address.decode("utf-8", "replace")
    return None


def master_of(argv: bytes, env: "dict[bytes, bytes]") -> "bytes | None":
    """Returns the address where a process meets others, or None if its world has one node, or if it has no world."""
    if LAUNCHER.search(argv):
        nodes, master = NODES.search(argv), MASTER.search(argv)
        several = nodes is not None and int(nodes.group(1)) > 1
        return (master.group(1) if master else env.get(b"PET_MASTER_ADDR", b"127.0.0.1")) if several else None
    size, here = env.get(b"WORLD_SIZE", b""), env.get(b"LOCAL_WORLD_SIZE", b"1")
    several = size.isdigit() and here.isdigit() and int(size) > int(here)
    return env.get(b"MASTER_ADDR") if several and b"RANK" in env else None


def is_own(address: str) -> bool:
    """Returns whether this node has an address or name; a port may follow it."""
    return is_here(re.sub(r"^\[(.*)\](:\d+)?$|^([^:]*):\d+$", r"\1\3", address))


# -- a run ------------------------------------------------------------------------------------------------
def stack_of(rank: int, pid: int, folder: str, native: bool) -> "stacks.RankStack":
    state, waits = state_of(pid), read_file("/proc/%d/wchan" % pid).decode("ascii", "replace")
    found: stacks.RankStack = {
        "rank": rank,
        "pid": pid,
        "by": "py-spy",
        "state": state,
        "waits": "" if waits == "0" else waits[:MAX_NAME],
        "threads": [],
        "why": None,
    }
    tool = py_spy_of(pid)
    try:
        if tool is None:
            raise Refused("no py-spy there")
        found["threads"] = by_py_spy(tool, pid, native)
    except (Refused, OSError, KeyError, TypeError, AttributeError) as error:
        found["why"] = str(error)[:MAX_NAME]
        try:
            found["by"], found["threads"] = "faulthandler", by_faulthandler(pid, stack_file(folder, rank))
        except (Refused, OSError) as unarmed:
            found["why"] = "%s; %s" % (found["why"], str(unarmed)[:MAX_NAME])
            found["by"], found["threads"] = "kernel", by_kernel(pid)
    return found


def stacks_of(spec: "stacks.StacksSpec") -> "stacks.Stacks":
    folder = known_folder(spec["run"])
    requested = spec["ranks"]
    wanted = {rank: pid for rank, pid in trainers(spec["run"]).items() if requested is None or rank in requested}
    found: list[stacks.RankStack] = []
    native = bool(spec["native"])
    calls: list[stacks.Recorded] = []
    ras: list[str] = []
    threads = [
        start_thread(lambda rank, pid: found.append(stack_of(rank, pid, folder, native)), rank, pid)
        for rank, pid in wanted.items()
    ]
    if requested is None:  # these are useful only for all ranks
        threads += [
            start_thread(lambda: calls.extend(calls_of(folder, wanted, spec["ended"]))),
            start_thread(lambda: ras.append(ras_of(spec["run"]))),
        ]
    for thread in threads:
        thread.join()
    ranks = sorted(found, key=lambda it: it["rank"])
    return {
        "event": "stacks",
        "ranks": ranks,
        "own_master": own_master(spec["run"]),
        "calls": calls,
        "ras": "".join(ras),
    }


def main() -> None:
    answer(stacks_of)
