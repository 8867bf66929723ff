"""What code syncs have put on this node, for those who start runs from it: preflight and supervise.

In the state folder of a sync (base/state_folder.py) lie
    state      JSON {"digest": of the manifest, "also": [entry]: what of older ones is still there, "source": {"host",
               "path"}: the folder that it came from}, a line break, and the manifest as the head packed it: zlib JSON
               [[path, ...]]
    switching  zlib JSON [entry]: what is being put in place, by this switch or one before it that was cut short; there
               until the state says so, too
    lock       held by a sync from its first question to its end
    begins     held by runs that begin, together, with the id of the last one; and by a sync, alone, while it puts
               files in place: so no run begins from a mixture, and what is imported later fits what was before
"""

import fcntl
import json
import os
import stat
import zlib

from fleet.node.base.errors import Refused
from fleet.node.base.files import lstat, replace_file
from fleet.node.base.locks import holder_of, try_lock, wait_for
from fleet.node.base.wire import decode, encode
from fleet.protocol.state import CODE_STATE, LOCK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from fleet.protocol.messages.code import Source
    from fleet.protocol.messages.run import CodeInUse

SYNC_STATE = encode(CODE_STATE)
BEGIN_SECONDS = 60.0  # no run takes longer to begin
BROKEN = (OSError, ValueError, LookupError, TypeError, zlib.error)
NOTHING: "dict[str, Any]" = {"digest": None, "entries": [], "also": [], "begun": [], "packed": b"", "source": None}
COLUMNS = (str, str, int, int, int, str)  # of an entry: path, kind, mode, size, mtime_ns, link


def unpack(packed: bytes) -> "list[Any]":
    """The entries in it; one of BROKEN where they are none."""
    return check_entries(json.loads(zlib.decompress(packed).decode()))


def check_entries(entries: "Any") -> "list[Any]":
    """Cheap also with tens of thousands: preflight reads them, too."""
    if entries != [] and (
        set(map(len, entries)) != {len(COLUMNS)}
        or [set(map(type, column)) for column in zip(*entries)] != [{kind} for kind in COLUMNS]
    ):
        raise ValueError("these are no entries")
    return list(entries)


def read_state(meta: bytes) -> "dict[str, Any] | None":
    """What is delivered: {"digest", "entries", "also", "begun", "packed": the entries as they came, "source": null
    where none was recorded, as by older versions}, or None where no sync has come as far as putting files in place.
    digest None: a switch was cut short, it had begun to put in place what "begun" lists; of a path that is listed
    several times, any version may be there, or none.
    """
    try:
        with open(os.path.join(meta, b"state"), "rb") as f:
            line, packed = json.loads(f.readline().decode()), f.read()
        found = dict(
            NOTHING, digest=line["digest"], also=check_entries(line["also"]), entries=unpack(packed), packed=packed
        )
        if not isinstance(line["digest"], str):
            raise ValueError("this is no digest")
        source = line.get("source")
        if isinstance(source, dict) and isinstance(source.get("host"), str) and isinstance(source.get("path"), str):
            found["source"] = {"host": source["host"], "path": source["path"]}
        state: dict[str, Any] | None = found
    except BROKEN:
        state = None
    try:
        with open(os.path.join(meta, b"switching"), "rb") as f:
            switching = unpack(f.read())
    except FileNotFoundError:
        return state
    except BROKEN:
        switching = []
    state = state or NOTHING
    return dict(state, digest=None, entries=state["entries"] + switching, begun=switching)


def mark_switch(meta: bytes, entries: "list[Any]") -> None:
    """From here on what is there is a mixture, as far as anybody knows."""
    entries = list({tuple(entry): entry for entry in entries}.values())
    replace_file(os.path.join(meta, b"switching"), zlib.compress(json.dumps(entries).encode(), 1))


def save_state(meta: bytes, digest: str, packed: bytes, also: "list[Any]", source: "Source") -> None:
    """The switch is over."""
    line = {"digest": digest, "also": also, "source": source}
    replace_file(os.path.join(meta, b"state"), json.dumps(line).encode() + b"\n" + packed)
    try:
        os.unlink(os.path.join(meta, b"switching"))
    except FileNotFoundError:
        pass


def find_delivery(path: bytes) -> "tuple[bytes, bytes] | None":
    """(destination, state folder) of the sync that path may have come by: the nearest at or above it; or None."""
    folder = path
    while folder != b"/":
        around, name = os.path.split(folder)
        for meta in (os.path.join(folder, SYNC_STATE), os.path.join(around, b"." + name + SYNC_STATE)):
            found, of = lstat(meta), lstat(folder)
            # anybody may have put a folder of that name below /tmp, to be in the way of runs
            if found and of and stat.S_ISDIR(found.st_mode) and found.st_uid in (os.geteuid(), of.st_uid):
                return folder, meta
        folder = around
    return None


def last_holder(meta: bytes) -> str:
    """Who has synced last, or does so now."""
    fd = os.open(os.path.join(meta, encode(LOCK)), os.O_RDONLY)
    try:
        return str(holder_of(fd).get("head", "?"))
    finally:
        os.close(fd)


def delivery(path: str, seconds: float) -> "dict[str, Any] | None":
    """How the code at path (a folder or file) stands: {"folder", "state", "digest", "half": bool, "busy": who|null}, or
    None when no sync delivered it. digest: null where it cannot be told. Waits `seconds` for a sync to end."""
    real = os.path.realpath(encode(path))
    found = find_delivery(real)
    if found is None:
        return None
    dest, meta = found
    facts = {"folder": decode(dest), "state": decode(meta), "digest": None, "half": False, "busy": None}
    try:
        fd = os.open(os.path.join(meta, encode(LOCK)), os.O_RDONLY)
        try:
            idle = wait_for(fd, fcntl.LOCK_SH, seconds)
            state = read_state(meta)
        finally:
            os.close(fd)
        facts["busy"] = None if idle else last_holder(meta)
    except OSError:
        return facts  # another user's, or a file system without locks
    if facts["busy"] and real == dest:
        return facts  # also when its first files are on their way
    inside = decode(os.path.relpath(real, dest))
    if state is None or inside != "." and all(entry[0] != inside for entry in state["entries"]):
        return None
    facts.update(digest=state["digest"], half=state["digest"] is None and idle)
    return facts


def open_begins(meta: bytes, how: int = os.O_RDWR | os.O_CREAT) -> int:
    return os.open(os.path.join(meta, b"begins"), how | os.O_NOFOLLOW, 0o600)


def begin_from(code: "CodeInUse", run: str, seconds: float) -> "int | None":
    """Hold the code as preflight saw it, {"state", "digest"}, while a run begins: a descriptor to close when it has,
    None where nothing can be held. Refused when a sync puts other files in place, or has done so."""
    meta = encode(code["state"])
    try:
        # in another's folder it may be anything by now: to be locked, not to be made or written
        ours = os.stat(meta).st_uid == os.geteuid()
        fd = open_begins(meta) if ours else open_begins(meta, os.O_RDONLY | os.O_NONBLOCK)
        held = wait_for(fd, fcntl.LOCK_SH, seconds)
    except OSError:
        return None  # the folder has gone, or its file system knows no locks: no reason not to train
    if not held:
        raise Refused("a sync from %s is replacing the code" % last_holder(meta), "launch again when it has ended")
    if (read_state(meta) or {}).get("digest") != code["digest"]:
        raise Refused("a sync from %s replaced the code while the run began" % last_holder(meta), "launch again")
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, run.encode(), 0)
    except OSError:
        pass  # a full disk: a sync that waits will not know for whom
    return fd


def wait_for_runs(meta: bytes, waiting: "Callable[..., Any]") -> None:
    """Keep runs from beginning, until this program ends; waiting(run) is told of one that has to end that first."""
    fd = open_begins(meta)
    if not try_lock(fd, fcntl.LOCK_EX):
        run = os.pread(fd, 256, 0).decode("utf-8", "replace")
        waiting(run)
        if not wait_for(fd, fcntl.LOCK_EX, BEGIN_SECONDS + 15):
            raise Refused("run %s is still beginning from this folder" % run, "run the sync again when it has begun")
