"""Watches a rank and the processes that it leaves: forwards signals and output. It is a part of rank.py, imports no
module of fleet, and has Python 3.6 syntax."""

import ctypes
import json
import os
import select
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fleet.node.run.rank.drain import Logs

FOR_RANKS = (signal.SIGUSR1, signal.SIGUSR2)  # as in protocol/codes.py; they never mean a stop
PASSED_ON = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, *FOR_RANKS}
ONCE = {signal.SIGINT, signal.SIGTERM}
SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "busybox"}
FILTERS = {"tee"}  # these are signalled last: they end with their writer, which may print while it saves its work
RELEASE = signal.SIGHUP  # from the supervisor, once the rank has ended
HELD = 100  # ms between two checks of whether the other ranks have ended
SFD_CLOEXEC = os.O_CLOEXEC
LONGEST_PAUSE = 8  # ms between reads, in which short lines gather in the pipe and the queue is written to the disk


def signal_file() -> int:
    """Returns a descriptor from which the blocked signals are read."""
    bits = sum(1 << (signum - 1) for signum in PASSED_ON | {signal.SIGCHLD})
    return int(ctypes.CDLL(None).signalfd(-1, (ctypes.c_ulong * 16)(bits), SFD_CLOEXEC))


def program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return ""


def stat_of(pid: str) -> "list[bytes]":
    """Returns the fields of /proc/PID/stat after the name (the state's letter, the parent, the group, ...), or [] if
    the process is gone."""
    try:
        with open("/proc/%s/stat" % pid, "rb") as f:
            return f.read().rpartition(b")")[2].split()
    except OSError:
        return []


def processes() -> "dict[int, tuple[int, int]]":
    """Returns {pid: (its parent, its process group)}."""
    stats = {int(name): stat_of(name) for name in os.listdir("/proc") if name.isdigit()}
    return {pid: (int(stat[1]), int(stat[2])) for pid, stat in stats.items() if stat}


def addressed(pid: int, signum: int, starts_ranks: bool = False) -> "list[int]":
    """Returns the processes that must get a rank's signal, the outermost first, as a script must not go on after its
    command has ended. If the rank is a shell, or a program that starts ranks itself, SIGINT goes to its process group,
    as SIGINT from a terminal does. If it is a shell, SIGTERM goes to it and its children, down to the first process
    that is no shell, as a waiting shell does not forward SIGTERM."""
    reached = [pid]
    if starts_ranks or program(pid) in SHELLS:
        found = processes()
        if signum == signal.SIGINT:
            reached += [it for it, (_, group) in found.items() if group == pid != it]
        for shell in reached if signum == signal.SIGTERM else ():
            if program(shell) in SHELLS:
                reached += [it for it, (parent, _) in found.items() if parent == shell]
    return [it for it in reached if it == pid or program(it) not in FILTERS]


class Watch:
    """Watches a rank until it has ended, then the processes that it leaves. pid: that of the rank. bosses: pids of the
    senders whose signals mean a stop: the supervisor and its guardian. starts_ranks: the rank was started once per
    node, and may start the node's ranks itself. status: the rank's wait status, None while it lives. stopping: the
    supervisor stops it. signalled: its engine sent it SIGTERM. until: bytes of .err when the first SIGINT or SIGTERM
    came. alone: this process has no children. released: this process may end. reached: signal -> the pids that got it.
    passed: which of SIGINT and SIGTERM have come."""

    def __init__(self, pid: int, bosses: "set[int]", logs: "Logs", starts_ranks: bool = False) -> None:
        self.pid, self.bosses, self.logs, self.signals = pid, bosses, logs, signal_file()
        self.starts_ranks = starts_ranks
        self.status: int | None = None
        self.until: int | None = None
        self.stopping = self.signalled = self.alone = self.released = False
        self.reached: dict[int, set[int]] = {signum: set() for signum in ONCE}
        self.passed: set[int] = set()
        self.pause = 0
        self.only_signals = select.poll()
        self.only_signals.register(self.signals, select.POLLIN)

    def turn(self, most: "int | None" = None) -> None:
        """Waits up to `most` ms for a signal or output. Forwards one signal, and copies the output."""
        poll = select.poll()
        due = [log.reader for log in self.logs.all if log.is_due()]
        for fd in [self.signals] + due:
            poll.register(fd, select.POLLIN)
        full = len(due) < sum(not log.over for log in self.logs.all)
        ready = dict(poll.poll(LONGEST_PAUSE if full else most))
        if self.signals in ready:
            signum, _, _, sender = struct.unpack_from("IiiI", os.read(self.signals, 128))
            if signum == signal.SIGCHLD:
                self.reap()
            else:
                self.take(signum, sender in self.bosses and signum not in FOR_RANKS)
        taken = self.logs.read(ready)
        if taken and self.status is None:
            # a pause collects many lines for one read; after a large read there is none, before the pipe is full
            self.pause = 0 if taken >= self.logs.flood else min(self.pause + 1, LONGEST_PAUSE)
            self.only_signals.poll(self.pause)

    def reap(self) -> None:
        ended = 1
        try:
            while ended:
                ended, status = os.waitpid(-1, os.WNOHANG)
                if ended == self.pid:
                    self.status = status
        except ChildProcessError:
            self.alone = True  # this cannot change: a process without children gets no orphans

    def take(self, signum: int, is_stop: bool) -> None:
        self.stopping = self.stopping or is_stop
        if self.status is not None:
            self.released = not self.stopping or signum == RELEASE and is_stop
        if signum in ONCE and self.until is None:
            self.until = self.logs.all[1].begins + self.logs.all[1].taken
        if signum not in self.passed and self.pid and self.status is None:
            self.send(self.pid, signum)
            self.signalled = self.signalled or signum == signal.SIGTERM and not is_stop
        if signum in ONCE:
            self.passed.add(signum)

    def send(self, pid: int, signum: int) -> None:
        for it in addressed(pid, signum, self.starts_ranks and pid == self.pid):
            try:
                os.kill(it, signum)
            except OSError:
                continue  # it has just ended, or runs as another user
            self.reached.setdefault(signum, set()).add(it)

    def end_orphans(self) -> None:
        """Sends SIGTERM once to each process that the rank has left. A process that got SIGINT gets SIGTERM only after
        a SIGTERM for the rank has come."""
        me = os.getpid()
        left = [pid for pid, (parent, _) in processes().items() if parent == me]
        signalled = self.reached[signal.SIGTERM].union(
            () if signal.SIGTERM in self.passed else self.reached[signal.SIGINT]
        )
        for pid in [pid for pid in left if program(pid) not in FILTERS] or left:
            if pid not in signalled:
                self.send(pid, signal.SIGTERM)

    def hold(self, folder: str) -> None:
        """Waits until all ranks of this node have ended. During a stop, waits until the supervisor has seen that no
        rank has left any process."""
        while not self.released and (self.stopping or any_up(folder)):
            if self.stopping and not self.alone:
                self.end_orphans()
            self.turn(HELD)


def any_up(folder: str) -> bool:
    """Returns whether any rank of this node has no record yet. Returns False if the run's spec cannot be read."""
    try:
        with open(os.path.join(folder, "spec.json"), "rb") as f:
            ranks = json.loads(f.read().decode())["ranks"]
    except (OSError, ValueError, KeyError):
        return False
    return not all(os.path.exists(os.path.join(folder, "rank%d.json" % rank)) for rank in ranks)
