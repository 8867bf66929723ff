"""Chooses, starts and ends the container of a run's engine. The supervisor runs outside the container. A container's
client is the process that starts it, such as `docker run`."""

import os
import signal
from contextlib import suppress

from fleet.node.base.errors import Refused
from fleet.node.base.processes import (
    descendants_of,
    is_inside,
    is_ours,
    own_pid,
    pids,
    read_file,
    send_signal,
    start_time,
)
from fleet.node.base.run_folder import NODE, read_json, run_folder
from fleet.node.base.types import Any, BinaryIO, Collection, run_specs
from fleet.node.base.wire import encode
from fleet.node.delivery.sync_state import deliveries
from fleet.node.facts import runtimes
from fleet.node.facts.ask import last_line
from fleet.node.facts.containers import DAEMONS, client, sealed
from fleet.node.facts.environment import working_folder
from fleet.node.run.marks import limit_of
from fleet.protocol.state import NAME_CHARACTERS, NODE_LOG, RUN_MARK, SPEC, is_run_id

CLIENT_SECONDS, REMOVE_SECONDS = 5.0, 30.0  # limits: for the client of an empty container to end; for its removal


def chosen(spec: "run_specs.Starting", cwd: str) -> "run_specs.Container":
    """Returns the container of a run, with the runtime that starts it on this node. Raises Refused if this node has no
    runtime or no image for it."""
    given: Any = spec["container"]
    found = runtimes.require(given["image"], None, cwd)
    if found["id"] is None:
        text = "%s has no image %s here" % (found["runtime"], found["image"])
        raise Refused(text, "fleet sync --image %s" % found["image"])
    return dict(found, args=given["args"])  # type: ignore[return-value]


def name_of(run: str) -> str:
    return "fleet-%s-%s" % (run, "".join(each if each in NAME_CHARACTERS else "-" for each in NODE))


def mounted(cwd: str) -> "list[str]":
    """Returns the folders of this node that a container has at the same paths, without the run's own folder."""
    data = [str(record["target"]) for _, record in deliveries()]
    return [path for path in dict.fromkeys([cwd, *data]) if path != "/" and os.path.exists(path)]


def engine_client(spec: "run_specs.Starting", folder: str, cwd: str) -> "list[str]":
    """Returns the argv that starts a run's engine in its container, up to the engine's own argv."""
    found: Any = spec["container"]
    mounts = [folder, *mounted(cwd)]
    return client(found, found["args"], name_of(spec["run"]), mounts, [RUN_MARK + "=" + spec["run"]])


def is_apart(found: Any) -> bool:
    """Returns whether a container's processes are no children of its client."""
    return bool(found) and found["runtime"] in DAEMONS


def sealed_env(spec: "run_specs.Starting", env: "dict[bytes, bytes]") -> "tuple[BinaryIO, dict[bytes, bytes]]":
    """Returns (a file that gives the variables to the container as stdin, the environment of its client). The client
    has the run's mark if the container's processes are its children."""
    names = {encode(name) for name in (*(spec.get("env") or ()), *(spec.get("env_expand") or ()), "PWD")}
    given = {n: value for n, value in env.items() if n in names or n.startswith((b"FLEET_", b"PYTHONUNBUFFERED"))}
    own = dict(os.environb)
    if not is_apart(spec["container"]):
        own[RUN_MARK.encode()] = env[RUN_MARK.encode()]
    return sealed(given, working_folder(spec["cwd"]), spec["umask"], limit_of(spec["run"])), own


class Apart:
    """Describes a run's container whose processes are no children of its client. It is removed by its name."""

    def __init__(self, run: str, found: "dict[str, Any]", folder: str) -> None:
        self.name, self.path, self.log = name_of(run), found["path"], os.path.join(folder, NODE_LOG)
        self.line = [self.path, "rm", "--force", *["--time=0"] * (found["runtime"] == "podman"), self.name]

    @classmethod
    def of(cls, run: str) -> "Apart | None":
        """Returns the container of a run of this node, or None if the run has no such container."""
        folder = run_folder(run) if is_run_id(run) else None
        found: Any = read_json(os.path.join(folder, SPEC)).get("container") if folder else None
        return cls(run, found, folder) if folder and is_apart(found) else None

    def firsts(self, pids: "Collection[int]") -> "list[int]":
        """Returns the container's first process (pid 1 inside), as a list, if it is among `pids`."""
        return [pid for pid in pids if is_inside(pid) and own_pid(pid) == 1]

    @staticmethod
    def ended(status: "int | None") -> "int | None":
        """Converts the wait status of the client to that of the engine: the client exits with 128+n after signal n."""
        code = os.WEXITSTATUS(status) if status is not None and os.WIFEXITED(status) else 0
        return code - 128 if 128 < code < 128 + signal.NSIG else status

    def is_gone(self, under: "Collection[int]", patience: float) -> bool:
        """Removes the container, in which no process is left. Returns False while its client is alive, as the client
        may still be starting the container, and should end by itself. Kills the client after CLIENT_SECONDS. under:
        pids of processes below the supervisor. patience: seconds since the container was found empty."""
        found = [*under, *filter(self._is_of_client, pids())]
        outside = {
            pid: born for pid, born in ((pid, start_time(pid)) for pid in [*found, *descendants_of(found)]) if born
        }
        if outside and patience < CLIENT_SECONDS:
            return False
        for pid, born in outside.items():
            send_signal(pid, born, signal.SIGKILL)
        status, _, error = runtimes.output(self.line, REMOVE_SECONDS)
        if status == 0 or "no such container" in error.lower():
            return not outside
        if patience < CLIENT_SECONDS + REMOVE_SECONDS:
            return False
        text = "fleet: container %s is left: %s: %s\n" % (self.name, " ".join(self.line), last_line(error))
        with suppress(OSError), open(self.log, "a", encoding="utf-8") as log:
            log.write(text)
        return True

    def _is_of_client(self, pid: int) -> bool:
        words = read_file("/proc/%d/cmdline" % pid).decode("utf-8", "replace").split("\0")
        named = "--name=" + self.name in words or os.path.basename(words[0]) == "conmon" and self.name in words
        return named and is_ours(pid)
