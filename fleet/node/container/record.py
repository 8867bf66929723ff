"""runs/RUN as a head writes it, by the containers themselves: `fleet runs` and `fleet logs` know such a run, too. The
container that leads writes it of all; one that does not share its folder writes its own."""

import fcntl
import getpass
import os
import platform
import threading
import time

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.files import replace_file
from fleet.node.base.private import append_whole, link_beside, private
from fleet.node.base.run_folder import myself, no_room_for
from fleet.node.base.types import Any, Mapping, Sequence
from fleet.protocol.state import LATEST, OF_THE_HEAD, PROTOCOL, STATE, WRITER
from fleet.version import __version__


class Record:
    """path: runs/RUN. about: what its run.json holds of how it was started, see started_by()."""

    def __init__(self, runs: str, run: str, about: "Mapping[str, Any]") -> None:
        self.run, self.about = run, about
        self.path = os.path.join(os.path.abspath(runs), run)
        self.lock = threading.Lock()
        self.held: int | None = None

    def begin(self, hosts: "Mapping[str, Mapping[str, Any]]", master: str, port: int) -> bool:
        """Make the folder, and write there from now on. False: another container has made it. Refused: it cannot be.
        hosts: name -> {"node_rank", "ranks"}."""
        try:
            make_runs(os.path.dirname(self.path))
            os.mkdir(self.path, 0o700)
            self.held = os.open(os.path.join(self.path, WRITER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pass  # a file system without locks
            self.started = time.time()
            who = {"leader": myself(), "since": self.started, "leads": True, "lease": 0.0, "detached": False}
            self.write(STATE, who)
            self.world_size = sum(len(host["ranks"]) for host in hosts.values())
            plan = dict(
                self.about, run=self.run, world_size=self.world_size, master=master, master_port=port, logs=self.path
            )
            self.write("run.json", dict(plan, hosts=hosts, started=self.started))
        except FileExistsError:
            return False
        except OSError as error:
            raise Refused(
                "cannot make the log folder %s: %s" % (self.path, error.strerror),
                "give --runs-dir a folder that may be written to",
            ) from None
        self.event("version", version=PROTOCOL, fleet=__version__)
        first = {name: min(host["ranks"]) for name, host in hosts.items()}
        self.event("running", "all nodes have started", world_size=self.world_size, first_ranks=first, logs=self.path)
        link_beside(self.path, LATEST)
        return True

    def sign(self) -> None:
        """Of life, every few seconds."""
        try:
            if self.held is not None:
                os.utime(os.path.join(self.path, STATE))
        except OSError:
            pass

    def event(self, kind: str, message: str = "", level: str = "info", host: "str | None" = None, **more: Any) -> None:
        """Append a line to events.jsonl. What a full disk does not take is gone."""
        if self.held is None:
            return
        about = {"event": kind, "time": round(time.time(), 3), "level": level, "host": host, "message": message}
        try:
            with self.lock:
                append_whole(os.path.join(self.path, "events.jsonl"), json.dumps(dict(about, **more)).encode() + b"\n")
        except OSError:
            pass

    def end(self, code: int, hosts: "Mapping[str, Mapping[str, Any]]", first: "Mapping[str, Any] | None") -> None:
        """Write summary.json, and let go. hosts: name -> how it ended there, see ending(). OSError."""
        if self.held is None:
            return
        by = None
        if first and first["what"] == "signal":  # no failure, but the platform's wish
            by = {"by": "queue", "host": first["host"], "code": code, "who": "", "message": first["message"]}
        summary = {
            "verb": "launch",
            "ok": code == 0,
            "exit_code": code,
            "hosts": hosts,
            "run": self.run,
            "world_size": self.world_size,
            "seconds": round(time.time() - self.started, 3),
            "logs": self.path,
            "stopped": first["message"] if first else None,
            "end": by,
            "first_failure": None if by else first,
            "next": [],
            "tracebacks": [],
            "incomplete_logs": [],
            "unknown": sorted(name for name, host in hosts.items() if host["state"] == "unknown"),
            "killed": [],
        }
        self.event("summary", exit_code=code, first_failure=summary["first_failure"])
        try:
            self.write("summary.json", summary)
        finally:
            os.unlink(os.path.join(self.path, STATE))
            os.close(self.held)
            self.held = None

    def write(self, name: str, document: "Mapping[str, Any]") -> None:
        replace_file(os.fsencode(os.path.join(self.path, name)), json.dumps(document).encode() + b"\n", 0o600)


def ending(node: int, ended: "Mapping[str, Any] | None", else_: str = "unknown") -> "dict[str, Any]":
    """How a run ended in a container, as a summary has it. ended: its last message. else_: the state where there is
    none."""
    code = ended["code"] if ended else None
    return {
        "ok": code == 0,
        "exit_status": code,
        "stdout": "",
        "stderr": "",
        "error": None,
        "node_rank": node,
        "state": ended["state"] if ended else else_,
        "ranks": ended["ranks"] if ended else {},
        "reason": ended.get("reason") if ended else None,
        "left": [],
    }


def started_by(platform_name: str, options: Any, elastic: bool) -> "dict[str, Any]":
    """What run.json holds of how the run was started."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        user = str(os.getuid())
    return {
        "platform": platform_name,
        "engine": "torchrun",
        "name": options.name,
        "script": options.script[0],
        "args": list(options.script[1:]),
        "elastic": elastic,
        "lease": 0.0,  # without the container that leads, the others end it at once
        "owner": "%s@%s" % (user, own_name()),
        "fleet": {
            "version": __version__,
            "python": platform.python_version(),
            "folder": options.workdir,
            "transport": "env",
        },
    }


def own_name() -> str:
    """Of this container, as its run calls it where no other one has it."""
    return os.uname()[1].partition(".")[0]


def make_runs(path: str) -> None:
    """The folder of runs, which neither git nor a sync takes along. OSError."""
    try:
        os.makedirs(path, 0o700)
    except FileExistsError:
        return
    with open(os.path.join(path, ".gitignore"), "w", opener=private) as file:
        file.write(OF_THE_HEAD)


def check_runs(path: str) -> "str | None":
    """Why runs cannot have their folders there; None: they can. It, or what it will be made in, is tried."""
    found = no_room_for(os.path.abspath(path))
    if found is None:
        return None
    return found + (" cannot be written to" if os.path.isdir(found) else " is no folder")


def ranks_of(records: "Sequence[Mapping[str, Any]]") -> "dict[str, Any]":
    """Of rank<R>.json: rank -> how it ended."""
    return {str(it["rank"]): {name: it.get(name) for name in ("status", "signal", "attempt")} for it in records}
