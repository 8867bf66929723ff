"""Runs one rank, writes its output to the rank's files, and records how it ended. rank.py ARGV...

The engine starts it once per rank. The rank's stdout and stderr are pipes, as under ssh. This process appends their
bytes to rank<R>.out and .err in $FLEET_RUN_DIR (drain.py), and forwards signals. When the rank has ended, it writes
rank<R>.json, with these keys:
    "rank", "local_rank", "attempt"; "pid": the rank's; "wrapper": the pid of this process
    "script": whether a shell runs the rank; "started", "time": when it started and ended, in seconds since 1970
    "status": 0..255 or null; "signal": its number or null; "signalled": whether the engine sent it SIGTERM
    "begins": [size of .out, size of .err] when the rank started: earlier attempts wrote these bytes
    "until": size of .err when the first SIGINT or SIGTERM came; no such key if none came
    "lost": [bytes of .out, bytes of .err] that were not written to the disk; no such key if all were written
A command that cannot be started ends with 126 or 127 and a line in .err, as in a shell. A Python is armed to report its
stack, see arm.py.

It ends with the rank's exit code or signal, so that the engine sees it, but only after all ranks of the node have
ended: an engine ends the others soon after one has failed. An engine that restarts ranks sees it at once, unless the
supervisor stops them. SIGINT and SIGTERM reach the rank once each, whichever process sends them. The rank's
descendants get neither before the rank has ended; then they get SIGTERM once. For a rank that is a shell, see
addressed() in watch.py. This file has Python 3.6 syntax.
"""

import ctypes
import errno
import json
import os
import re
import signal
import sys
import time
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

try:
    from fleet.node.run.rank.drain import Logs
    from fleet.node.run.rank.watch import PASSED_ON, SHELLS, Watch
except ImportError:  # in the run's folder they are next to this file
    for part in ("drain.py", "watch.py"):
        with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), part), encoding="utf-8") as f:
            exec(compile(f.read(), f.name, "exec"))

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 4, 15, 36
RESERVED = 512
OWN_FAULT = 125  # the same exit code as fleet's on the head
STACK_SIGNAL = 55  # a real-time one, which no library is known to use
ARM = "arm"  # the folder of arm.py


def prctl(option: int, argument: "bytes | int") -> None:
    """Calls prctl(2) and ignores errors: each use of it is a safety net only."""
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
    """Returns how often fleet and an elastic engine have started this rank before. Sets the engine's variables to that
    number, too, as scripts read them."""
    count = whole("TORCHELASTIC_RESTART_COUNT", 0) + whole("FLEET_ATTEMPT", 0)
    if "TORCHELASTIC_RESTART_COUNT" in os.environ:
        most = max(whole("TORCHELASTIC_MAX_RESTARTS", 0), whole("FLEET_MAX_RESTARTS", 0))
        os.environ.update(TORCHELASTIC_RESTART_COUNT=str(count), TORCHELASTIC_MAX_RESTARTS=str(most))
    return count


def supervisors(folder: str) -> "set[int]":
    """Returns the pids of the run's supervisor and guardian. A signal from one of them means that the run stops."""
    try:
        with open(os.path.join(folder, "pid"), "rb") as f:
            record = json.loads(f.read().decode())
        return {record["pid"], record["guardian"]["pid"]}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def fill(path: str, data: bytes) -> None:
    """Writes PATH.new. Its space is reserved at the start, so that a rank's end is recorded even on a full disk."""
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, data.ljust(RESERVED))
    os.close(fd)


def unplanned(plan: "dict[str, Any]", rank: int, argv: "list[str]") -> "str | None":
    """Returns a text about a difference from the supervisor's plan (see expected_by_rank()), or None."""
    env, (first, count), at = os.environ, plan.get("ranks", (rank, 1)), plan.get("local_rank_at")
    arguments = argv if at is None else argv[:at] + argv[at + 1 :]
    if not first <= rank < first + count:
        return "it is rank %d, this node has ranks %d to %d" % (rank, first, first + count - 1)
    if "world" in plan and env.get("WORLD_SIZE", str(plan["world"])) != str(plan["world"]):
        return "WORLD_SIZE is %s, there are %d ranks" % (env.get("WORLD_SIZE"), plan["world"])
    if plan.get("argv") not in (None, crc32(b"\0".join(map(os.fsencode, arguments)))):
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
    """Forks and executes the rank, and returns its pid. The rank has its own process group, so that a
    signal to the engine's group reaches it only once, through this process."""
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
    """Makes a Python import arm.py when it starts. Does not change the environment of any other program."""
    folder = os.path.join(os.path.dirname(base), ARM)
    command = (interpreter_of(argv[0]) or []) + argv
    named = [re.match(r"python[0-9.]*$", os.path.basename(arg)) is not None for arg in command]
    # Python may be argv[0] itself, or a word of the script's "#!" line, such as the one after /usr/bin/env
    if not any(named[: len(command) - len(argv) + 1]) or not os.path.isdir(folder):
        return
    options = iter(command[named.index(True) + 1 :])
    for arg in options:
        if not arg.startswith("-"):
            break
        if arg in ("-W", "-X", "--check-hash-based-pycs"):
            next(options, None)
        elif not arg.startswith("--") and set(arg) & set("IES"):
            return  # with this option, Python ignores PYTHONPATH
    was = os.environ.get("PYTHONPATH")
    setting = "%d:%d:%s.stack" % (os.getpid(), STACK_SIGNAL, base)
    os.environ["FLEET_ARM"] = setting if was is None else setting + "\n" + was
    os.environ["PYTHONPATH"] = folder if not was else folder + os.pathsep + was


def is_script(argv: "list[str]") -> bool:
    """Returns whether a shell runs the command."""
    command = " ".join(interpreter_of(argv[0]) or argv[:1]).split()
    return any(os.path.basename(arg) in SHELLS for arg in command)


def execute(argv: "list[str]") -> None:
    """Replaces this process by the program, which is searched on the PATH, then here. If a script is not executable or
    has no "#!" line, it is run by the interpreter in its first line, or else by a shell."""
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
    """Returns the interpreter after a script's "#!", or a shell for a script without it. Returns None for a file that
    is no script, or that cannot be read: an executable file need not be readable."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        return None
    with open(path, "rb") as f:
        line = f.readline(4096)
    if line.startswith(b"#!"):
        return os.fsdecode(line[2:].strip()).split(None, 1) or None
    if b"\0" in line or not (path.endswith(".sh") or os.access(path, os.X_OK)):
        return None
    return ["/bin/bash" if os.path.exists("/bin/bash") else "sh"]


def finish(logs: Logs) -> None:
    """Reads the rest of the pipes, and waits until it is written."""
    for _ in range(2):
        logs.read([log.reader for log in logs.all if not log.over])
    logs.settle()


def drain(logs: Logs) -> None:
    """Forks a process that adopts the pipes if processes of the rank still have them. It reads until they end, at the
    run's end at the latest. So this process can end, and the engine sees the rank's end at once."""
    try:
        child = all(log.over for log in logs.all) or os.fork()
    except OSError:
        return  # fork failed: then their output has no reader, as with an ssh that has ended
    if not child:
        try:
            prctl(PR_SET_NAME, b"fleet-drain")  # no name of rank.py: this is no rank's wrapper
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
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON | {signal.SIGCHLD})
    prctl(PR_SET_NAME, b"fleet-rank")  # the supervisor finds it by this name
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    restarts = whole("TORCHELASTIC_MAX_RESTARTS", 0)  # read before count_attempts() changes it
    try:
        fill(base + ".json", b"")
    except OSError:
        pass
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    attempt, logs = count_attempts(), Logs(base)
    plan = json.loads(os.environ.pop("FLEET_PLAN", "{}"))
    pid = start_rank(argv, base, logs, rank, plan)
    logs.begin()
    # apart: a daemon started the container, in its own pid namespace. A sender outside of that namespace has pid 0
    senders = {0} if plan.get("apart") else supervisors(folder)
    watch = Watch(pid, senders, logs, once_a_node is not None)
    while watch.status is None:
        watch.turn()
    finish(logs)
    status, killed = watch.status, os.WIFSIGNALED(watch.status)
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
        fill(base + ".json", (json.dumps(record) + "\n").encode())
        os.rename(base + ".json.new", base + ".json")
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
