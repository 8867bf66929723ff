"""Finds the last collective calls of the ranks of this node, for each process group, in dumps of torch's flight
recorder.

A dump is a pickle that a rank writes into its run's folder after a timeout, or when fleet writes to the rank's pipe.
The dump is read on the rank's own node, and only as plain values: a pickle with anything else is refused."""

import json
import os
import re
import socket
import stat
import time

from fleet.node.base.errors import Refused
from fleet.node.base.processes import start_time
from fleet.node.base.types import TYPE_CHECKING, Any, stacks
from fleet.node.ports.listeners import age, holders, parse_listeners, table_of
from fleet.node.run.marks import marked
from fleet.node.run.plain_pickle import load_plain
from fleet.protocol.state import CALLS

if TYPE_CHECKING:
    from typing import BinaryIO

MAX_DUMP, MAX_LOCAL, MAX_GROUPS, MAX_RANKS, MAX_FRAMES, MAX_NAME = 32 << 20, 512, 32, 8192, 12, 300
RAS_PORT, RAS_SECONDS, MAX_RAS = 28028, 8.0, 16 << 10  # RAS: the status service of NCCL 2.24 and later
# so long a rank may take to write a dump after fleet wrote to its pipe; the greatest age of a dump if there is no pipe:
# an older dump may be of an earlier process
PIPE_SECONDS, FRESH_SECONDS = 4.0, 60.0
GRAIN = 0.2  # precision of a process's age, in seconds
READ_SECONDS = 20.0  # for all dumps of a node: one is read after the other


def opened(path: str) -> "BinaryIO":
    """Opens a dump. Raises Refused if it is no regular file, or too large, and OSError for a link."""
    f = os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    about = os.fstat(f.fileno())
    if stat.S_ISREG(about.st_mode) and about.st_size <= MAX_DUMP:
        return f
    f.close()
    raise Refused("its dump is no file of up to %d MiB" % (MAX_DUMP >> 20))


def load(data: bytes) -> "dict[str, Any]":
    """Returns the dump in these bytes. Raises Refused if they are no dump."""
    try:
        dump = load_plain(data)
    except Exception as error:  # an incomplete or malicious pickle may raise any error
        raise Refused("its dump cannot be read: %s" % str(error)[:MAX_NAME]) from None
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise Refused("its dump has no entries")
    return dump


# -- one dump ---------------------------------------------------------------------------------------------
def text(value: "Any") -> str:
    return value[:MAX_NAME] if isinstance(value, str) else ""


def whole(value: "Any", limit: int = 1 << 31) -> int:
    return value if type(value) is int and 0 <= value < limit else 0  # not isinstance(), as a bool is an int


def sizes(entry: "dict[str, Any]") -> str:
    """Returns the shapes and types of a call's tensors, as text: "[8] Float -> [8] Float"."""
    sides = []
    for side in ("input", "output"):
        shapes, kinds = (entry.get(side + what) for what in ("_sizes", "_dtypes"))
        shapes, kinds = (it if isinstance(it, (list, tuple)) else [] for it in (shapes, kinds))
        each = [",".join(str(whole(n)) for n in it[:8]) for it in shapes[:16] if isinstance(it, (list, tuple))]
        sides.append(" ".join(["[%s]" % it for it in each] + sorted({text(kind) for kind in kinds[:16]})))
    return " -> ".join(sides)[:MAX_NAME]


def call_of(entry: "dict[str, Any]", written: float, through: float = 0.0) -> "stacks.Call":
    """Returns a call. written: when its dump was written. through: when any call was last seen to be complete: since
    then, or since its creation if that was later, this call waits in the GPU's queue. Both in seconds since the epoch,
    0 if unknown."""
    frames = [it for it in (entry.get("frames") or [])[:MAX_FRAMES] if isinstance(it, dict)]
    return {
        "seq": whole(entry.get("collective_seq_id")),
        "op": text(entry.get("profiling_name")).partition(":")[2],
        "sizes": sizes(entry),
        "state": text(entry.get("state")),
        "age": max(0.0, written - max(when(entry, "created"), through)),
        "frames": [
            {
                "name": text(it.get("name")),
                "file": text(it.get("filename")),
                "line": whole(it.get("line")),
                "native": False,
            }
            for it in frames
        ],
    }


def when(entry: "dict[str, Any]", what: str) -> float:
    """Returns the time of an event of a call, such as "created" or "discovered_completed", or 0 if it is unknown."""
    return whole(entry.get("time_%s_ns" % what), 1 << 63) / 1e9


def ranks_of(config: "Any", name: str) -> "list[int] | None":
    """Returns the ranks of a process group, or None if the dump does not have them."""
    try:
        ranks = json.loads(config[name]["ranks"])
        odd = len(ranks) > MAX_RANKS or any(type(it) is not int or whole(it) != it for it in ranks)
        return None if odd else sorted(set(ranks)) or None
    except (TypeError, KeyError, ValueError, RecursionError):
        return None


def groups_of(dump: "dict[str, Any]", written: float) -> "list[stacks.Group]":
    """Returns the groups in which a rank made calls, the last used ones first. Omits calls between two ranks, and
    gloo's calls, as a dump does not show whether such calls are complete. written: when the dump was written."""
    found: dict[str, list[dict[str, Any]]] = {}
    seen = [when(entry, "discovered_completed") for entry in dump["entries"] if isinstance(entry, dict)]
    for entry in dump["entries"]:
        if not isinstance(entry, dict) or entry.get("is_p2p") or text(entry.get("profiling_name")).startswith("gloo:"):
            continue
        name = entry.get("process_group")
        if isinstance(name, (list, tuple)) and len(name) == 2 and whole(entry.get("collective_seq_id")):
            calls = found.pop(text(name[0]), [])
            if calls and whole(calls[-1].get("pg_id")) != whole(entry.get("pg_id")):
                calls = []  # the group was destroyed and made again: its calls are counted from 1
            found[text(name[0])] = calls
            calls.append(entry)
    groups: list[stacks.Group] = []
    for name, calls in list(found.items())[: -MAX_GROUPS - 1 : -1]:
        # calls end in order; of calls with the same number (coalesced ones), the last shows their state
        last = {whole(it.get("collective_seq_id")): it for it in calls}
        through = max((seq for seq, it in last.items() if it.get("state") == "completed"), default=0)
        later = min((seq for seq in last if seq > through), default=0)
        groups.append(
            {
                "name": name,
                "desc": text(calls[-1]["process_group"][1]),
                "ranks": ranks_of(dump.get("pg_config"), name),
                "last": whole(calls[-1].get("collective_seq_id")),
                "completed": call_of(last[through], written) if through else None,
                "pending": call_of(last[later], written, max(seen)) if later else None,
            }
        )
    return groups


def is_apart(entries: "list[Any]") -> bool:
    """Returns whether a rank may wait in a call that groups_of() omits: an incomplete call between two ranks, or a
    gloo call that is the rank's last call. The calls of a coalesced batch never get another state: they are complete
    when the batch is."""
    waits: dict[str, bool] = {}
    gloo = False
    for entry in entries:
        if isinstance(entry, dict):
            through, name = entry.get("state") == "completed", entry.get("process_group")
            gloo = not through and text(entry.get("profiling_name")).startswith("gloo:")
            coalesced = text(entry.get("profiling_name")).endswith(":coalesced")
            if entry.get("is_p2p") or through and coalesced:
                waits[text(name[0]) if isinstance(name, (list, tuple)) and name else ""] = not through
    return gloo or any(waits.values())


# -- the ranks of a run -----------------------------------------------------------------------------------
def poke(pipe: str) -> bool:
    """Requests a dump from a rank that reads its pipe. Returns whether the request was written."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISFIFO(os.fstat(fd).st_mode) and os.write(fd, b"1") == 1
    except OSError:
        return False
    finally:
        os.close(fd)


def recorded(rank: int, data: bytes, written: float) -> "stacks.Recorded":
    """Returns the rank's last calls. data: its dump, made at the time `written`. Raises Refused if it is no dump."""
    dump = load(data)
    try:
        first = dump["entries"][0] if dump["entries"] else {}
        groups = groups_of(dump, written)
        cut = len(groups) >= MAX_GROUPS  # other groups may be missing
        return {
            "rank": rank,
            "whole": not first.get("record_id") and not cut,
            "apart": cut or is_apart(dump["entries"]),
            "old": max(0.0, time.time() - written),
            "groups": groups,
            "why": None,
        }
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise Refused("its dump has odd values: %s" % str(error)[:MAX_NAME]) from None


def when_new(rank: int, path: str, newer: float, oldest: float, seconds: float) -> "stacks.Recorded":
    """Returns a rank's last calls from its dump. Waits up to `seconds` for a dump that was written at `newer` or later;
    then accepts a dump that was written at `oldest` or later. Reads an invalid dump again only after it has changed."""
    until, seen, why = time.monotonic() + seconds, None, ""
    while True:
        waits = time.monotonic() < until
        try:
            with opened(path) as f:
                about = os.fstat(f.fileno())
                if about.st_mtime < (newer if waits else oldest):
                    raise Refused("it has written no new dump")
                if seen != (about.st_mtime, about.st_size):
                    seen = about.st_mtime, about.st_size
                    return recorded(rank, f.read(about.st_size), about.st_mtime)
        except OSError as error:
            why = "it has written no dump: %s" % error.strerror
        except Refused as error:
            why = str(error)[:MAX_NAME]
        if not waits:
            return {"rank": rank, "whole": False, "apart": False, "old": 0.0, "groups": [], "why": why}
        time.sleep(0.05)


def calls_of(folder: str, pids: "dict[int, int]", ended: bool) -> "list[stacks.Recorded]":
    """Returns the last calls of ranks that have a dump or a pipe in the folder. pids: rank -> pid of each live rank; a
    dump that is older than that process is ignored. ended: True includes ranks that are not alive."""
    names = (re.match(CALLS + r"(\d{1,7})(?:\.pipe)?$", name) for name in os.listdir(folder))
    ranks = sorted(rank for rank in {int(name.group(1)) for name in names if name} if ended or rank in pids)
    begun, clock = time.time(), time.monotonic()
    paths = {rank: os.path.join(folder, "%s%d" % (CALLS, rank)) for rank in ranks[:MAX_LOCAL]}
    poked = {rank for rank, path in paths.items() if poke(path + ".pipe")}
    found: list[stacks.Recorded] = []
    for rank, path in paths.items():
        took = time.monotonic() - clock
        if took > READ_SECONDS:
            break
        began = start_time(pids[rank]) if rank in pids else None
        lived = age(began) if began is not None else None
        oldest = begun - min(FRESH_SECONDS, FRESH_SECONDS if lived is None else lived + GRAIN)
        found.append(when_new(rank, path, begun, oldest, PIPE_SECONDS - took if rank in poked else 0.0))
    return found


def ras_of(run: str, port: int = RAS_PORT) -> str:
    """Returns the report of NCCL's RAS about the run, or "" if no process of the run serves RAS."""
    tables = [parse_listeners(table_of(table), {port}) for table in ("tcp", "tcp6")]
    listeners = {inode: address for table in tables for _, address, _, inode in table}
    own = set(marked(run)) if listeners else set()
    held = [inode for inode, pids in holders(list(listeners)).items() if own.intersection(pids)]
    if not held:
        return ""
    text, until = b"", time.monotonic() + RAS_SECONDS
    try:
        with socket.create_connection((listeners[held[0]], port), 1.0) as sock:
            sock.sendall(b"timeout 5\nverbose status\n")
            while len(text) < MAX_RAS and time.monotonic() < until:
                sock.settimeout(max(0.1, until - time.monotonic()))
                part = sock.recv(4096)
                if not part:
                    break
                text += part
    except OSError:
        pass  # the part that was received is returned
    return text[:MAX_RAS].decode("utf-8", "replace")
