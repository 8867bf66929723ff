"""Reads and writes a run's folder on its node, and finds the run's processes.

fleet/protocol/files.py lists the files of the folder. fleet replaces a file by rename, and does not sync it to disk. A
power cut may lose the file, but also ends the run: "boot" in the file PID then differs from the machine's boot id.
"""

import _signal
import os
import time
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.processes import (
    boot_id,
    descendants_of,
    names_in,
    rank_wrappers,
    read_file,
    start_time,
    stuck,
    with_env,
)
from fleet.node.base.types import Any
from fleet.node.base.wire import write_all
from fleet.protocol.state import (
    ATTEMPT,
    FINAL,
    LEASE,
    NEXT,
    NODE_LOG,
    PID,
    PROTOCOL,
    RUN_MARK,
    RUNS,
    SPEC,
    STATUS,
    STOP,
    VERDICT,
    below_home,
    is_run_id,
)

# causes for which a node ends a run: "engine" (the engine ended), "asked" (the head requested it), "lease" (no message
# came from the head for the time of the lease), "frozen" (the node was frozen for longer than the head waits), "signal"
# (the supervisor got one), "supervisor" (it was killed), "removed" (the folder is gone), "reboot" (the machine booted)
MOST_STUCK = 20  # a status describes at most so many of the processes that SIGKILL did not end
NODE = os.uname()[1].replace("/", "_")


def runs_root() -> str:
    return below_home(RUNS)


def own_runs() -> "list[str]":
    """Returns the folder names of runs that may be this node's. If nodes share a home folder, names may end "@NODE"."""
    names = sorted(names_in(runs_root()))
    return [name for name in names if name[0] != "." and name.partition("@")[2] in ("", NODE)]


def rank_records(folder: str) -> "list[dict[str, Any]]":
    """Returns the content of rank<R>.json for each rank that has ended on this node."""
    names = [
        name for name in names_in(folder) if name.startswith("rank") and name.endswith(".json") and name[4:-5].isdigit()
    ]
    return [record for record in (read_json(os.path.join(folder, name)) for name in names) if "status" in record]


def run_names(run: str) -> "list[str]":
    """Returns the folder names that a run may have on this node. Raises ValueError for an invalid run id."""
    if not is_run_id(run):
        raise ValueError("not a run id: %r" % run)
    return [run, run + "@" + NODE]


def run_folder(run: str) -> "str | None":
    """Returns the folder of a run that was started on this very node. Returns None for any other run."""
    for name in run_names(run):
        folder = os.path.join(runs_root(), name)
        if read_json(os.path.join(folder, SPEC)).get("node") == NODE:
            return folder
    return None


def has_protocol(spec: "dict[str, Any]") -> bool:
    """Returns whether a fleet with the same PROTOCOL started the run. spec: the content of its file SPEC."""
    return spec.get("protocol") == PROTOCOL


def only(record: "dict[str, Any]", *names: str) -> "dict[str, Any]":
    return {name: record[name] for name in names if name in record}


def attempt_of(spec: "dict[str, Any]") -> int:
    """Returns the number of the attempt: how many starts of the run came before it."""
    return int((spec.get("about") or {}).get("attempt") or 0)


def known_folder(run: str, attempt: "int | None" = None) -> str:
    """Returns the folder of an attempt of a run that was started on this very node. attempt: its number; None means the
    last attempt. Raises Refused if the folder does not exist."""
    folder = run_folder(run) if is_run_id(run) else None
    if folder and attempt is not None and attempt != attempt_of(read_json(os.path.join(folder, SPEC))):
        folder = os.path.join(folder, "%s%d" % (ATTEMPT, attempt))  # the run's folder holds those of earlier attempts
    if folder is None or not os.path.isdir(folder):
        raise Refused("run %s is not known on this node" % run, "its folder there, ~/.fleet/runs, was removed")
    return folder


def tombstone(run: str) -> str:
    """Returns the path of a file that forbids to start a run: the run was stopped before it began, or between two
    attempts. A number in the file forbids only attempts up to that number."""
    return os.path.join(runs_root(), run_names(run)[1] + ".stop")


def is_forbidden(run: str, attempt: int) -> bool:
    try:
        with open(tombstone(run)) as f:
            last = f.read()
    except OSError:
        return False
    return not last.isdigit() or attempt <= int(last)


def read_json(path: str) -> "dict[str, Any]":
    """Returns the JSON object in a file. Returns {} if the file is missing or unreadable, or holds no JSON object."""
    return json.loads_object(read_file(path))


def reserve(path: str, size: int = 4096) -> None:
    """Makes PATH.new, `size` bytes long, for the last replacement of `path`: the disk may be full by then."""
    with open(path + ".new", "wb") as f:
        f.write(b" " * size)


def write_json(path: str, value: "dict[str, Any]", suffix: str = ".tmp") -> None:
    """Replaces `path` atomically. The suffix ".new" uses the space that reserve() took, and so works on a full disk."""
    data = json.dumps(value).encode() + b"\n"
    fd = os.open(path + suffix, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        write_all(fd, data.ljust(os.fstat(fd).st_size))
    finally:
        os.close(fd)
    os.rename(path + suffix, path)


def note(folder: str, text: str) -> None:
    """Adds a line of fleet to the node's log, unless the disk is full."""
    from fleet.node.base.files import append_whole  # imported only here: the modules that files.py imports load slowly

    with suppress(OSError):
        append_whole(os.path.join(folder, NODE_LOG), ("fleet: %s\n" % text).encode("utf-8", "replace"))


def stamp_of(path: str) -> "tuple[int, int] | None":
    """Returns a value that changes whenever the file is touched or replaced, or None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino


def written_at(path: str) -> "float | None":
    """Returns the time of a file's last change, or None if there is no file."""
    stamp = stamp_of(path)
    return stamp[0] / 1e9 if stamp else None


def disk_is_full(folder: str) -> bool:
    """Returns whether the disk of `folder` is so full that output of ranks may be lost."""
    disk = os.statvfs(folder)
    return bool(disk.f_blocks) and disk.f_bavail * disk.f_frsize < 65536


def read_status(folder: str) -> "dict[str, Any]":
    return read_json(os.path.join(folder, STATUS))


def final_status(
    state: str,
    reason: "str | None",
    left: "list[int]",
    cause: "str | None" = None,
    began: "float | None" = None,
    end: Any = None,
) -> "dict[str, Any]":
    """Returns the last status of a run. cause, began: why and when (Unix time) this node began to end the run. Later
    failures of ranks are consequences. end: the Verdict of a head's request, or None. left: pids that still live."""
    now = time.time()
    status = {
        "state": state,
        "engine_status": None,
        "signal": None,
        "reason": reason,
        "time": now,
        "left": left,
        "cause": cause,
        "began": began or now,
        "end": end,
    }
    return dict(status, stuck=list(map(stuck, left[:MOST_STUCK]))) if left else status


def try_write(path: str, value: "dict[str, Any]", suffixes: "tuple[str, ...]" = (".tmp",)) -> bool:
    """Tries write_json() with each suffix. Returns whether one succeeded: a full disk must not end the run."""
    for suffix in suffixes:
        try:
            write_json(path, value, suffix)
            return True
        except OSError:
            continue
    return False


def write_final(folder: str, status: "dict[str, Any]") -> None:
    """Writes the last status, into the reserved space or else into a new file. Ignores a failure of both."""
    try_write(os.path.join(folder, STATUS), status, (".new", ".tmp"))


def verdict_of(folder: str) -> "dict[str, Any] | None":
    """Returns the verdict, which says how the run ended. Returns None if there is no verdict yet."""
    return read_json(os.path.join(folder, VERDICT)) or None


def put_verdict(folder: str, verdict: "Any") -> None:
    """Writes the verdict, unless there is one already."""
    new = os.path.join(folder, "%s.%d" % (VERDICT, os.getpid()))
    with suppress(OSError):  # a full disk
        write_json(new, verdict)
        with suppress(FileExistsError):
            os.link(new, os.path.join(folder, VERDICT))
        os.unlink(new)


def lease_of(folder: str, spec: "dict[str, Any]") -> "float | None":
    """Returns the seconds for which the run goes on without a head. None means for ever. A detach changes the lease."""
    lease: float | None = read_json(os.path.join(folder, LEASE)).get("lease", spec.get("lease"))
    return lease


def request_stop(folder: str, grace: float, reason: str, end: Any = None, signum: int = _signal.SIGTERM) -> None:
    """Writes the file STOP, by which the supervisor stops the run. If the file cannot be written, sends the supervisor
    a signal: SIGTERM means its own grace period, SIGINT none. grace: seconds. signum: the signal that ranks get."""
    request = {"grace": grace, "reason": reason, "end": end, "signal": signum}
    if try_write(os.path.join(folder, STOP), request, (".tmp", ".new")):
        return
    for who in live_supervisors(folder)[:1]:
        os.kill(who["pid"], _signal.SIGTERM if grace > 0 else _signal.SIGINT)


# -- processes ------------------------------------------------------------------------------------------


def since_boot(folder: str) -> bool:
    """Returns whether the run was started after this machine's last boot. Otherwise none of its processes is alive."""
    return read_json(os.path.join(folder, PID)).get("boot") == boot_id()


def why_gone(folder: str) -> "tuple[str, str, float | None]":
    """Returns (cause, reason, Unix time of the cause, or None if that is now) of a run that has neither a supervisor
    nor a final status."""
    if not os.path.exists(os.path.join(folder, PID)):
        return "removed", "the run's folder there was removed", None
    if since_boot(folder):
        return "supervisor", "the supervisor was killed", None
    return "reboot", "the node was restarted", written_at(os.path.join(folder, LEASE))


def live_supervisors(folder: str) -> "list[dict[str, Any]]":
    """Returns {"pid", "start"} of each live process of the run's supervisor and guardian. The guardian ends the run if
    the supervisor is killed."""
    return live_processes(read_json(os.path.join(folder, PID)))


def ranks_up(folder: str) -> int:
    """Counts the live ranks in /proc. Records do not show that: an engine may have restarted the recorded ranks."""
    spec = read_json(os.path.join(folder, SPEC))
    found = set(descendants_of(who["pid"] for who in live_supervisors(folder)))
    if spec.get("container"):  # ranks in docker's containers are descendants of docker's daemon, not of the supervisor
        found.update(with_env(RUN_MARK, spec["run"]))
    return len(rank_wrappers(found))


def status_and_life(folder: str) -> "tuple[dict[str, Any], bool]":
    """Returns (status, whether a supervisor or guardian of the run is alive). It checks the processes first: one that
    has ended has written its last status. Without a last status it checks again: another attempt may have begun."""
    kept = bool(live_supervisors(folder))
    status = read_status(folder)
    if not kept and status.get("state") not in FINAL:
        kept = bool(live_supervisors(folder))
    return status, kept


def next_attempt_state(folder: str) -> "str | None":
    """Returns RESTARTING while a head waits before the next attempt, STARTING while it begins that one, or None."""
    record = read_json(os.path.join(folder, NEXT))
    return record.get("state") if live_processes(record) else None


def live_processes(record: "dict[str, Any]") -> "list[dict[str, Any]]":
    """Returns the live processes of a record: the content of PID or NEXT, or {} of a missing file."""
    if record.get("boot") != boot_id():
        return []
    return [
        who
        for who in (record, record.get("guardian") or {})
        if who.get("pid") and start_time(who["pid"]) == who["start"]
    ]
