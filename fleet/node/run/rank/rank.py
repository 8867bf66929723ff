"""Runs one rank: its output to files of its own, its true end on record. rank.py ARGV...

The engine starts it once a rank. It appends the rank's stdout and stderr, which are pipes as under ssh, to rank<R>.out
and .err in $FLEET_RUN_DIR (drain.py, which stands beside it), passes signals on, writes rank<R>.json {"rank",
"local_rank", "pid", "wrapper": its own pid, "script": whether a shell runs it, "status": 0..255|null, "signal": n|null,
"time", "started", "attempt", "begins": [bytes of .out, of .err that earlier attempts wrote], "signalled": whether the
engine had it end, "until": bytes of .err that were written when SIGINT or SIGTERM came, where one did, "lost": [bytes
of .out, of .err that the disk did not take], where there are any} as soon as the rank has ended. What cannot be started
ends with 126 or 127 and a line in .err, as in a shell. A python is armed to tell where it stands, see arm.py.

It ends as the rank did, so that the engine sees the truth, but not before all ranks of the node have ended: an engine
that sees one fail ends the others by a clock of its own. An engine that starts ranks again sees it at once, unless the
supervisor has them stop. SIGINT and SIGTERM reach the rank once each, whoever sends them. What is below a rank gets
none of them before the rank has ended, then SIGTERM once; where the rank is a shell see addressed(). Python 3.6 syntax.
"""

import ctypes
import errno
import json
import os
import re
import select
import signal
import struct
import sys
import time
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from fleet.node.run.rank.drain import PIPE, Logs
except ImportError:  # in the run's folder it stands beside this file
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "drain.py"), encoding="utf-8") as f:
        exec(compile(f.read(), f.name, "exec"))

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
PASSED_ON = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}
RESERVED = 512
OWN_FAULT = 125  # as of fleet on the head
STACK_SIGNAL = 55  # a real-time one, which no library is known to use
ARM = "arm"  # the folder of arm.py
SFD_CLOEXEC = os.O_CLOEXEC
ONCE = {signal.SIGINT, signal.SIGTERM}
SHELLS = {"sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish", "csh", "tcsh", "busybox"}
FILTERS = {"tee"}  # it ends with who writes to it, and who prints while it saves its work must find it there
RELEASE = signal.SIGHUP  # from the supervisor, once the rank has ended
HELD, HELD_LONGEST = 50, 500  # ms between two looks whether the other ranks have ended
LONGEST_PAUSE = 8  # ms in which short lines gather in the pipe, and what waits gets onto the disk


def prctl(option: int, argument: "bytes | int") -> None:
    """Best effort: without it a safety net is missing, not the run."""
    try:
        ctypes.CDLL(None).prctl(option, argument, 0, 0, 0)
    except (OSError, AttributeError):
        pass


def whole(name: str, default: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default


def count_attempts() -> int:
    """How many starts of this rank came before, by fleet and by an elastic engine; scripts that ask in the engine's
    words are told so, too."""
    count = whole("TORCHELASTIC_RESTART_COUNT", 0) + whole("FLEET_ATTEMPT", 0)
    if "TORCHELASTIC_RESTART_COUNT" in os.environ:
        most = max(whole("TORCHELASTIC_MAX_RESTARTS", 0), whole("FLEET_MAX_RESTARTS", 0))
        os.environ.update(TORCHELASTIC_RESTART_COUNT=str(count), TORCHELASTIC_MAX_RESTARTS=str(most))
    return count


def supervisors(folder: str) -> "set[int]":
    """The pids of the run's supervisor and guardian: where one of them sends a signal, the run stops."""
    try:
        with open(os.path.join(folder, "pid"), "rb") as f:
            record = json.loads(f.read().decode())
        return {record["pid"], record["guardian"]["pid"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def write_record(path: str, record: "dict[str, Any]") -> None:
    """Replace `path` in one step, in space claimed at the start: a full disk does not hide how a rank ended."""
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, (json.dumps(record) + "\n").encode().ljust(RESERVED))
    os.close(fd)
    os.rename(path + ".new", path)


def reserve(path: str) -> None:
    try:
        fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(fd, b" " * RESERVED)
        os.close(fd)
    except OSError:
        pass


def unplanned(plan: "dict[str, Any]", rank: int, argv: "list[str]") -> "str | None":
    """Returns what is not as the supervisor has planned it (planned() there); None: nothing, as far as can be known."""
    env, (first, count), at = os.environ, plan.get("ranks", (rank, 1)), plan.get("local_rank_at")
    words = argv if at is None else argv[:at] + argv[at + 1 :]
    if not first <= rank < first + count:
        return "it is rank %d, this node has ranks %d to %d" % (rank, first, first + count - 1)
    if "world" in plan and env.get("WORLD_SIZE") != str(plan["world"]):
        return "WORLD_SIZE is %s, there are %d ranks" % (env.get("WORLD_SIZE"), plan["world"])
    if plan.get("argv") not in (None, crc32(b"\0".join(map(os.fsencode, words)))):
        return "it is another command"
    for name, wanted in plan.get("env", {}).items():
        if name not in env or wanted not in (None, crc32(os.fsencode(env[name]))):
            return "the variable %s has %s" % (name, "another value" if name in env else "none")
    try:
        astray = "cwd" in plan and not os.path.samefile(".", plan["cwd"])
    except OSError:
        return None
    return "its working folder is %s, not %s" % (os.getcwd(), plan["cwd"]) if astray else None


def start_rank(argv: "list[str]", base: str, logs: Logs, rank: int, plan: "dict[str, Any]") -> int:
    """Fork and exec; returns the pid. The child has a process group of its own, so that a signal to the
    engine's group reaches it once, through us."""
    parent = os.getpid()
    pid = os.fork()
    if pid != 0:
        return pid
    status = 127
    try:
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(status)
        for target, log in enumerate(logs.all, 1):
            os.dup2(log.writer, target)
        for signum in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        wrong = unplanned(plan, rank, argv)
        if wrong is None:
            arm(argv, base)
            execute(argv)
        status = OWN_FAULT
        os.write(2, ("fleet: a fault in fleet itself: %s\n" % wrong).encode("utf-8", "surrogateescape"))
    except OSError as error:
        status = 126 if isinstance(error, PermissionError) else 127
        os.write(2, ("fleet: cannot start %s: %s\n" % (argv[0], error.strerror)).encode("utf-8", "surrogateescape"))
    finally:
        os._exit(status)


def stack_file(folder: str, rank: int) -> str:
    return os.path.join(folder, "rank%d.stack" % rank)


def arm(argv: "list[str]", base: str) -> None:
    """Have a python import arm.py as it starts, see there; the environment of other programs stays as it is."""
    folder = os.path.join(os.path.dirname(base), ARM)
    words = interpreter(argv) + argv
    named = [re.match(r"python[0-9.]*$", os.path.basename(word)) is not None for word in words]
    # it, or what the first line of a script names, maybe behind /usr/bin/env
    if not any(named[: len(words) - len(argv) + 1]) or not os.path.isdir(folder):
        return
    options = iter(words[named.index(True) + 1 :])
    for word in options:
        if not word.startswith("-"):
            break
        if word in ("-W", "-X", "--check-hash-based-pycs"):
            next(options, None)
        elif not word.startswith("--") and set(word) & set("IES"):
            return  # it would not look at PYTHONPATH
    was = os.environ.get("PYTHONPATH")
    told = "%d:%d:%s.stack" % (os.getpid(), STACK_SIGNAL, base)
    os.environ["FLEET_ARM"] = told if was is None else told + "\n" + was
    os.environ["PYTHONPATH"] = folder if not was else folder + os.pathsep + was


def interpreter(argv: "list[str]") -> "list[str]":
    try:
        return interpreter_of(argv[0]) or []
    except OSError:
        return []  # what may be executed need not be readable


def is_script(argv: "list[str]") -> bool:
    """Returns whether a shell runs it."""
    words = " ".join(interpreter(argv) or argv[:1]).split()
    return any(os.path.basename(word) in SHELLS for word in words)


def execute(argv: "list[str]") -> None:
    """Become that program, which is looked for on the PATH, then here. A script that may not be executed, or names no
    interpreter, is started by the one of its first line, else by a shell."""
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        failed = error
    if "/" not in argv[0] and os.path.isfile(argv[0]):
        execute(["./" + argv[0]] + argv[1:])
    interpreter = interpreter_of(argv[0])
    if interpreter and failed.errno == errno.ENOENT:
        raise FileNotFoundError(errno.ENOENT, "its first line names no program: %r" % interpreter[0])
    if interpreter is None or failed.errno not in (errno.EACCES, errno.ENOEXEC):
        raise failed
    os.execvp(interpreter[0], interpreter + argv)


def interpreter_of(path: str) -> "list[str] | None":
    """What a script names behind "#!", else a shell for what is one's; None for what is no script."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as f:
        line = f.readline(4096)
    if line.startswith(b"#!"):
        return os.fsdecode(line[2:].strip()).split(None, 1) or None
    if b"\0" in line or not (path.endswith(".sh") or os.access(path, os.X_OK)):
        return None
    return ["/bin/bash" if os.path.exists("/bin/bash") else "sh"]


def signal_file() -> int:
    """A descriptor to read the blocked signals from."""
    bits = sum(1 << (signum - 1) for signum in PASSED_ON | {signal.SIGCHLD})
    return int(ctypes.CDLL(None).signalfd(-1, (ctypes.c_ulong * 16)(bits), SFD_CLOEXEC))


def program(pid: int) -> str:
    try:
        return os.path.basename(os.readlink("/proc/%d/exe" % pid))
    except OSError:
        return ""


def processes() -> "dict[int, tuple[int, int]]":
    """{pid: (its parent, its process group)}."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, "rb") as f:
                    stat = f.read().rpartition(b")")[2].split()
            except OSError:
                continue
            found[int(name)] = int(stat[1]), int(stat[2])
    return found


def addressed(pid: int, signum: int) -> "list[int]":
    """Returns the processes that a rank's signal is for, the outermost first: a script whose command has ended must not
    go on. A shell that waits for its children does not pass signals on: SIGINT is for its process group, as a terminal
    sends it, SIGTERM for the shell and its children, down to the first that is no shell."""
    reached = [pid]
    if program(pid) in SHELLS:
        found = processes()
        if signum == signal.SIGINT:
            reached += [it for it, (_, group) in found.items() if group == pid != it]
        for shell in reached if signum == signal.SIGTERM else ():
            if program(shell) in SHELLS:
                reached += [it for it, (parent, _) in found.items() if parent == shell]
    return [it for it in reached if it == pid or program(it) not in FILTERS]


class Watch:
    """A rank until it has ended, and what it leaves. status: its wait status. stopping: the supervisor has it end.
    signalled: its engine has. until: bytes of .err when the first request to stop came."""

    def __init__(self, pid: int, bosses: "set[int]", logs: Logs) -> None:
        self.pid, self.bosses, self.logs, self.signals = pid, bosses, logs, signal_file()
        self.status: int | None = None
        self.until: int | None = None
        self.stopping = self.signalled = self.alone = self.released = False
        self.reached: dict[int, set[int]] = {signum: set() for signum in ONCE}
        self.passed: set[int] = set()
        self.pause = 0
        self.only_signals = select.poll()
        self.only_signals.register(self.signals, select.POLLIN)

    def turn(self, most: "int | None" = None) -> None:
        """Pass one signal on, and what there is of output; wait for either, `most` ms."""
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
                self.take(signum, sender in self.bosses)
        taken = self.logs.read(ready)
        if taken and self.status is None:
            # lines are read many at once, and a flood before the pipe is full of it
            self.pause = 0 if taken >= PIPE // 4 else min(self.pause + 1, LONGEST_PAUSE)
            self.only_signals.poll(self.pause)

    def reap(self) -> None:
        ended = 1
        while ended and not self.alone:
            try:
                ended, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.alone = True
                return
            if ended == self.pid:
                self.status = status

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
        for it in addressed(pid, signum):
            try:
                os.kill(it, signum)
            except OSError:
                continue  # it has just ended, or runs as another user
            self.reached.setdefault(signum, set()).add(it)

    def end_orphans(self) -> None:
        """SIGTERM once to what the rank has left; to what was sent SIGINT not before all are sent SIGTERM."""
        me = os.getpid()
        left = [pid for pid, (parent, _) in processes().items() if parent == me]
        told = self.reached[signal.SIGTERM].union(() if signal.SIGTERM in self.passed else self.reached[signal.SIGINT])
        for pid in [pid for pid in left if program(pid) not in FILTERS] or left:
            if pid not in told:
                self.send(pid, signal.SIGTERM)

    def hold(self, folder: str) -> None:
        """Until all ranks of this node have ended; in a stop until the supervisor sees that none of them has left any
        process."""
        pause = HELD
        self.reap()
        while not self.released and (self.stopping or any_up(folder)):
            if self.stopping and not self.alone:
                self.end_orphans()
            self.turn(pause)
            pause = HELD if self.stopping else min(2 * pause, HELD_LONGEST)


def any_up(folder: str) -> bool:
    """Returns whether ranks of this node have no record yet. Where none can be read, nothing is waited for."""
    try:
        with open(os.path.join(folder, "spec.json"), "rb") as f:
            ranks = json.loads(f.read().decode())["ranks"]
    except (OSError, ValueError, KeyError):
        return False
    return not all(os.path.exists(os.path.join(folder, "rank%d.json" % rank)) for rank in ranks)


def finish(logs: Logs) -> None:
    """Read what stands in the pipes now, and whether that was the end."""
    for _ in range(2):
        logs.read([log.reader for log in logs.all if not log.over])
    logs.settle()


def drain(logs: Logs) -> None:
    """Those that the rank has left, and the pipes with them, are read by a process of its own, for as long as they
    live, which is no longer than the run: the engine hears of the rank's end at once."""
    try:
        child = all(log.over for log in logs.all) or os.fork()
    except OSError:
        return  # no process to be had: they write to nobody, as behind an ssh that has ended
    if not child:
        try:
            prctl(PR_SET_NAME, b"fleet-drain")  # the rank has ended
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            logs.begin()
            watch = Watch(0, set(), logs)
            while not all(log.over for log in logs.all):
                watch.turn()
            finish(logs)
        finally:
            os._exit(0)


def main() -> None:
    argv = sys.argv[1:]
    once_a_node = os.environ.pop("FLEET_FIRST_RANK", None)
    local_rank = whole("LOCAL_RANK", 0) if once_a_node is None else 0
    rank = whole("RANK", local_rank) if once_a_node is None else int(once_a_node)
    folder = os.environ["FLEET_RUN_DIR"]
    base = os.path.join(folder, "rank%d" % rank)
    started = time.time()
    prctl(PR_SET_NAME, b"fleet-rank")
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    restarts = whole("TORCHELASTIC_MAX_RESTARTS", 0)  # the engine's own, before it is fleet's
    reserve(base + ".json")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})
    attempt, logs = count_attempts(), Logs(base)
    pid = start_rank(argv, base, logs, rank, json.loads(os.environ.pop("FLEET_PLAN", "{}")))
    logs.begin()
    watch = Watch(pid, supervisors(folder), logs)
    while watch.status is None:
        watch.turn()
    finish(logs)
    status = watch.status
    killed = os.WIFSIGNALED(status)
    record = {
        "rank": rank,
        "local_rank": local_rank,
        "pid": pid,
        "wrapper": os.getpid(),
        "script": is_script(argv),
        "started": started,
        "time": time.time(),
        "status": None if killed else os.WEXITSTATUS(status),
        "signal": os.WTERMSIG(status) if killed else None,
        "attempt": attempt,
        "begins": [log.begins for log in logs.all],
        "signalled": watch.signalled,
    }
    lost = [log.lost + log.gap + log.taken - log.written for log in logs.all]
    if any(lost):
        record["lost"] = lost
    if watch.until is not None:
        record["until"] = watch.until
    try:
        write_record(base + ".json", record)
        prctl(PR_SET_NAME, b"fleet-ended")
        if watch.stopping or not restarts:
            watch.hold(folder)
            finish(logs)
    except OSError as error:
        os.write(2, ("fleet: rank %d: %s\n" % (rank, error)).encode())
    drain(logs)
    if not killed:
        os._exit(os.WEXITSTATUS(status))
    signum = os.WTERMSIG(status)
    prctl(PR_SET_DUMPABLE, 0)
    if signum not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
    os._exit(128 + signum)


if __name__ == "__main__":
    main()
