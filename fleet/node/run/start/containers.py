"""The container of a run's engine: how it is chosen, started and ended. The supervisor stays outside."""

import os
from contextlib import suppress

from fleet.node.base.clock import Clock
from fleet.node.base.errors import Refused
from fleet.node.base.processes import is_inside, own_pid, read_file, send_signal
from fleet.node.base.run_folder import NODE, read_json, run_folder
from fleet.node.base.types import Any, Callable, Collection, run_specs
from fleet.node.delivery.sync_state import deliveries
from fleet.node.facts import runtimes
from fleet.node.facts.containers import DAEMONS, client
from fleet.protocol.state import NAME_CHARACTERS, RUN_MARK, SPEC, is_run_id

CLIENT_SECONDS, REMOVE_SECONDS = 2.0, 30.0


def chosen(spec: "run_specs.Starting", cwd: str) -> "run_specs.Container":
    """Returns the container of a run with the runtime of this node that starts it. Raises Refused."""
    given: Any = spec["container"]
    found = runtimes.require(given["image"], None, cwd)
    if found["id"] is None:
        raise Refused(
            "%s has no image %s here" % (found["runtime"], found["image"]), "fleet sync --image " + found["image"]
        )
    return dict(found, args=given["args"])  # type: ignore[return-value]


def name_of(run: str) -> str:
    return "fleet-%s-%s" % (run, "".join(each if each in NAME_CHARACTERS else "-" for each in NODE))


def engine_client(spec: "run_specs.Starting", folder: str, cwd: str) -> "list[str]":
    """Returns what starts a run's engine in its container, up to the engine's own argv."""
    found: Any = spec["container"]
    data = [str(record["target"]) for _, record in deliveries()]
    mounts = [folder] + [path for path in [cwd, *data] if path != "/" and os.path.exists(path)]
    return client(found, found["args"], name_of(spec["run"]), mounts, [RUN_MARK + "=" + spec["run"]])


def is_apart(found: Any) -> bool:
    """Is true where a container has processes of its own, which are not its client's."""
    return bool(found) and found["runtime"] in DAEMONS


class Apart:
    """A run's container whose processes are not its client's. It is ended by its name."""

    def __init__(self, run: str, found: "dict[str, Any]") -> None:
        self.name, self.path = name_of(run), found["path"]
        self.time = ["--time=0"] * (found["runtime"] == "podman")

    @classmethod
    def of(cls, run: str) -> "Apart | None":
        """Returns that of a run of this node; None where it has none."""
        folder = run_folder(run) if is_run_id(run) else None
        found: Any = read_json(os.path.join(folder, SPEC)).get("container") if folder else None
        return cls(run, found) if is_apart(found) else None

    def firsts(self, pids: "Collection[int]") -> "list[int]":
        """Returns the container's first process among the run's."""
        return [pid for pid in pids if is_inside(pid) and own_pid(pid) == 1]

    def remove(self, outside: "Callable[[], dict[int, int]]", clock: Clock) -> None:
        """Ends the container, of which no process is left. outside: finds the processes of its client, which end by
        themselves if they can."""
        until = clock.monotonic() + CLIENT_SECONDS
        while True:
            left = {pid: born for pid, born in outside().items() if self.name in self._line(pid)}
            if not left or clock.monotonic() > until:
                break
            clock.sleep(0.02)
        for pid, born in left.items():
            send_signal(pid, born, 9)
        with suppress(OSError):
            runtimes.output([self.path, "rm", "--force", *self.time, self.name], REMOVE_SECONDS)

    def _line(self, pid: int) -> str:
        return read_file("/proc/%d/cmdline" % pid).decode("utf-8", "replace")
