"""Writes runs/RUN of a run of containers, as a head would. The leading container writes it; a container that does not
share the folder writes its own. Copies the output of ranks there, and to the terminal."""

import errno
import fcntl
import os
import platform
import sys
import time
from contextlib import suppress

from fleet.node.base.errors import Refused
from fleet.node.base.files import append_whole, no_room_for, private, tail_of
from fleet.node.base.locks import release, try_lock
from fleet.node.base.processes import myself
from fleet.node.base.record import Record, whoami
from fleet.node.base.types import Any, Mapping
from fleet.node.gang.gang import Gang
from fleet.node.gang.verdict import is_well, killed, rank_ends, status_of
from fleet.protocol.state import NODE_LOG, OF_THE_HEAD, PROTOCOL, STATE, WRITER, is_log
from fleet.version import __version__

BLOCK = 1 << 20  # bytes of a log that are copied at once
LINE_BYTES = 1 << 16  # a longer line is shown in pieces
TAIL = 4096  # bytes of a log's end that a report has
READER = "fleet.ops.run.end.sent"  # a module of the head half, which needs Python 3.10
OF_READERS = ("why", "left_early", "kernel", "traceback", "hint", "unfit", "log")  # fields that only READER fills


def plain(text: str) -> str:
    return "".join(it if it.isprintable() else "?" for it in text)


def report(text: Any) -> None:
    """Writes a line of fleet to stderr, between the lines of the ranks."""
    sys.stderr.write("fleet: " + plain(str(text)) + "\n")
    sys.stderr.flush()


class Kept(Record):
    """Writes the record of a run of containers. runs: the folder of runs. about: fields of run.json, see started_by().
    held: the locked descriptor; None if this process does not write the record."""

    def __init__(self, runs: str, run: str, about: "Mapping[str, Any]") -> None:
        Record.__init__(self, os.path.join(os.path.abspath(runs), run))
        self.run, self.about = run, about
        self.held: int | None = None
        self.started = time.time()

    def begin(self, hosts: "Mapping[str, Any]", world_size: int, master: str) -> bool:
        """Makes the run's folder. From then on this process writes the record. Returns False if another container has
        made the folder. Raises Refused if the folder cannot be made. hosts: name -> {"node_rank", "ranks"}. master:
        ADDRESS:PORT where ranks meet."""
        try:
            make_runs(os.path.dirname(self.path))
            os.mkdir(self.path, 0o700)
            self.held = os.open(os.path.join(self.path, WRITER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try_lock(self.held, fcntl.LOCK_EX, fcntl.flock)
            who = {"leader": myself(), "since": self.started, "leads": True, "lease": 0.0, "detached": False}
            self.replace(STATE, who)
            plan = dict(self.about, run=self.run, world_size=world_size, master=master, logs=self.path)
            self.replace("run.json", dict(plan, hosts=hosts, started=self.started))
        except FileExistsError:
            return False
        except OSError as error:
            raise Refused(
                "cannot make the log folder %s: %s" % (self.path, error.strerror),
                "give --runs-dir a folder that may be written to",
            ) from None
        self.event("version", version=PROTOCOL, fleet=__version__)
        first = {name: min(host["ranks"], default=0) for name, host in hosts.items()}
        self.event("running", "all nodes have started", world_size=world_size, first_ranks=first, logs=self.path)
        self.be_latest()
        return True

    def sign(self) -> None:
        """Touches a file to show that a process leads the run. Must be called every few seconds."""
        with suppress(OSError):
            if self.held is not None:
                os.utime(os.path.join(self.path, STATE))

    def event(self, event: str, message: str = "", level: str = "info", host: "str | None" = None, **more: Any) -> None:
        if self.held is not None:
            about = {"event": event, "time": round(time.time(), 3), "level": level, "host": host, "message": message}
            self.append(dict(about, **more))

    def end(self, summary: "Mapping[str, Any]") -> None:
        """Writes summary.json, and releases the lock."""
        if self.held is None:
            return
        self.event("summary", exit_code=summary["exit_code"], first_failure=summary["first_failure"])
        try:
            self.replace("summary.json", dict(summary, logs=self.path, seconds=round(time.time() - self.started, 3)))
        except OSError as error:
            report("the summary in %s cannot be written: %s" % (self.path, error.strerror))
        with suppress(OSError):
            os.unlink(os.path.join(self.path, STATE))
        release(self.held)
        self.held = None


def summary_of(run: str, gang: Gang, verdict: "Mapping[str, Any]", restarts: "list[Any]") -> "dict[str, Any]":
    """Returns the content of summary.json. The fields that need the ranks' output are null."""
    first = verdict["first"] and dict.fromkeys(OF_READERS)
    if first is not None:
        first.update((name, value) for name, value in verdict["first"].items() if name not in ("time", "why"))
        first["message"] = verdict["message"]
    return {
        "verb": "launch",
        "ok": verdict["code"] == 0,
        "exit_code": verdict["code"],
        "hosts": {host: ending(gang, host) for host in gang.nodes},
        "run": run,
        "world_size": sum(len(node.ranks) for node in gang.nodes.values()),
        "stopped": verdict["message"] if verdict["by"] != "done" else None,
        "end": verdict,
        "first_failure": first,
        "next": [],
        "tracebacks": [],
        "incomplete_logs": [],
        "unknown": verdict["unknown"],
        "killed": killed(gang),
        "attempt": verdict["attempt"],
        "restarts": restarts,
    }


def ending(gang: Gang, host: str) -> "dict[str, Any]":
    """Returns the host's entry in summary.json: how the run ended in that container."""
    node = gang.nodes[host]
    why = node.why or ({"kind": "lost", "message": "it was lost", "hint": None} if node.lost is not None else None)
    return {
        "ok": is_well(gang, node),
        "exit_status": status_of(gang, node),
        "stdout": "",
        "stderr": "",
        "error": why,
        "node_rank": node.node_rank,
        "state": "lost" if node.lost is not None else node.state,
        "ranks": rank_ends(node),
        "reason": node.status.get("reason"),
        "left": node.status.get("left") or [],
    }


def started_by(platform_name: str, options: Any) -> "dict[str, Any]":
    """Returns the fields of run.json about how the run was started."""
    return {
        "platform": platform_name,
        "engine": options.engine,
        "name": options.name,
        "script": options.script,
        "args": options.args,
        "lease": 0.0,  # if the leading container is gone, the others end the run
        "max_restarts": options.max_restarts,
        "stall_timeout": options.stall_timeout,
        "owner": whoami(),
        "fleet": {
            "version": __version__,
            "python": platform.python_version(),
            "folder": options.workdir,
            "transport": "env",
        },
    }


def make_runs(path: str) -> None:
    """Makes the folder of runs, with a .gitignore so that git and syncs ignore it. Raises OSError."""
    try:
        os.makedirs(path, 0o700)
    except FileExistsError:
        return
    with open(os.path.join(path, ".gitignore"), "w", opener=private) as file:
        file.write(OF_THE_HEAD)


def check_runs(path: str) -> "str | None":
    """Returns why runs cannot have their folders in `path`, or None if they can. If `path` does not exist, checks the
    parent folder in which it will be made."""
    found = no_room_for(os.path.abspath(path))
    if found is None:
        return None
    return found + (" cannot be written to" if os.path.isdir(found) else " is no folder")


def reader_half() -> Any:
    """Returns the module that reads the ranks' output, or None if this Python has none."""
    if sys.version_info < (3, 10):
        return None
    try:
        return __import__(READER, fromlist=["written_by_ranks"])
    except ImportError:
        return None


class Logs:
    """Copies the logs of a run. folder: the run's folder on this node. target: runs/RUN/HOST. host: this container's
    name in the run."""

    def __init__(self, folder: str, target: str, host: str) -> None:
        self.folder, self.target, self.host = folder, target, host
        self.offsets: dict[str, int] = {}  # log -> bytes that are copied
        self.rest: dict[str, bytes] = {}  # log -> its last line, which has no end yet
        self.blocked: str | None = None  # why the last write to the target failed
        self.over = False  # the ranks will write no more

    def bring(self) -> bool:
        """Copies new output. Returns whether ranks wrote any of it."""
        before = dict(self.offsets)
        for name in sorted(os.listdir(self.folder)):
            if not is_log(name):
                continue
            with open(os.path.join(self.folder, name), "rb") as file:
                file.seek(self.offsets.get(name, 0))
                data = file.read(BLOCK)
                while data and self.put(name, data):
                    self.offsets[name] = file.tell()
                    if name != NODE_LOG:
                        self.show(name, data)
                    data = file.read(BLOCK)
        return any(size != before.get(name) for name, size in self.offsets.items() if name != NODE_LOG)

    def put(self, name: str, data: bytes) -> bool:
        """Appends either all of the data or nothing to the copy of a log, and returns whether the data was appended.
        After a failure, bring() tries again."""
        why = os.strerror(errno.ENOSPC)
        try:
            if append_whole(os.path.join(self.target, name), data):
                self.blocked = None
                return True
        except OSError as error:
            why = str(error.strerror)
        if why != self.blocked:
            report("%s takes no logs: %s; they wait in %s" % (self.target, why, self.folder))
            self.blocked = why
        return False

    def show(self, name: str, data: bytes) -> None:
        """Shows whole lines, each with the name of its rank."""
        whole, end, rest = (self.rest.get(name, b"") + data).rpartition(b"\n")
        if len(rest) > LINE_BYTES:
            whole, end, rest = whole + end + rest, b"\n", b""
        self.rest[name] = rest
        stream = sys.stdout if name.endswith(".out") else sys.stderr
        for line in whole.split(b"\n") if end else ():
            stream.write("[%s:%s] %s\n" % (self.host, name[4:-4], line.decode("utf-8", "replace")))
        stream.flush()

    def finish(self) -> None:
        """Copies and shows the last output, including a last line without an end."""
        if os.path.isdir(self.folder):
            self.bring()
        for name, rest in self.rest.items():
            if rest:
                self.show(name, b"\n")


def last_of(folder: str, name: str, since: int, until: "int | None") -> str:
    """Returns the end of a log, from byte `since` at the earliest to byte `until`. Returns "" if it cannot be read."""
    try:
        with open(os.path.join(folder, name), "rb") as file:
            return tail_of(file, TAIL, since, until)[-TAIL:]
    except OSError:
        return ""
