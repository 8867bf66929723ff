"""Separates deliveries and runs: a run begins only from a complete delivery, and a sync waits for runs that begin.

A code sync's state folder holds, next to its journal (journal.py),

    lock       held by a sync from its first message to its end.
    begins     held shared by runs that begin, and holds the id of the last one; held exclusively by a sync while it
               puts files in place. So no run begins from a mixture of old and new modules.

~/.fleet/data has a note for each delivery of data, complete or not."""

import fcntl
import glob
import hashlib
import os
import time
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.files import file_digest, lstat, remove_file, replace_file
from fleet.node.base.locks import held_by, try_lock, wait_for
from fleet.node.base.run_folder import read_json
from fleet.node.base.state_folder import own_home
from fleet.node.base.types import Any, Callable, Iterator, run_specs
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.journal import (
    DIGEST,
    KIND,
    MTIME,
    NODE_MTIME,
    NOTHING,
    PATH,
    SIZE,
    delivered_to,
    identity,
    read_state,
    rows_of,
    unchanged,
)
from fleet.protocol.state import CODE_STATE, DATA, LOCK, MODULES, below_home

SYNC_STATE = encode(CODE_STATE)
MODULE_BYTES, OTHER_BYTES, CHANGED_MOST = 1 << 28, 1 << 20, 50  # of larger files only the size is compared
LOOK_SECONDS, STATE_BYTES = 3.0, 1 << 24  # limits of changed_data(); the second suffices for about 200,000 files
BEGIN_SECONDS = 60.0  # no run takes longer to begin


def find_delivery(path: bytes) -> "tuple[bytes, bytes] | None":
    """Returns (destination, state folder) of the nearest sync at or above a path, or None."""
    folder = path
    while folder != b"/":
        for meta, _ in delivered_to(folder, (SYNC_STATE,)):
            return folder, meta
        folder = os.path.dirname(folder)
    return None


def last_holder(meta: bytes) -> str:
    """Returns the head (host name and pid) that synced last, or is syncing now."""
    with open(os.path.join(meta, encode(LOCK)), "rb") as lock:
        return held_by(lock.fileno())


def delivery(path: str, seconds: float) -> "dict[str, Any] | None":
    """Returns the state of the code at path (a folder or file), or None if no sync delivered it: {"folder", "state":
    the state folder, "digest": None if unknown, "half": whether a sync was interrupted, "busy": the head that is
    syncing now, or None}. Waits up to `seconds` for a sync to end. If the state could be read, it also has "manifest":
    its digest, "source", and "file": the source of a single file that is unchanged, or None."""
    # a moved folder that is linked from its old path has its state folder next to the old path
    ways = (os.path.realpath(encode(path)), os.path.abspath(encode(path)))
    real, found = next(((way, at) for way in ways for at in [find_delivery(way)] if at), (b"", None))
    if found is None:
        return None
    dest, meta = found
    facts: dict[str, Any] = {"folder": decode(dest), "state": decode(meta), "digest": None, "half": False, "busy": None}
    try:
        with open(os.path.join(meta, encode(LOCK)), "rb") as lock:
            idle = wait_for(lock.fileno(), fcntl.LOCK_SH, seconds)
            state = read_state(meta)
            facts["busy"] = None if idle else held_by(lock.fileno())
    except OSError:
        return facts  # another user's, or a file system without locks
    if facts["busy"] and real == dest:
        return facts  # also if it is the first sync, which has no state yet
    inside = decode(os.path.relpath(real, dest))
    if state is None or inside != "." and all(entry[0] != inside for entry in state["entries"] + state["begun"]):
        return None
    facts.update(digest=identity(state), half=state["digest"] is None and idle)
    facts.update(manifest=state["digest"], source=state["source"], file=None)
    st = lstat(real)
    if st is not None and [st.st_size, st.st_mtime_ns] in [
        e[SIZE : MTIME + 1] for e in state["entries"] if e[0] == inside
    ]:
        facts["file"] = state["source"]
    if inside == "." and not facts["half"]:
        facts["changed"] = changed_files(dest, state)
    return facts


def changed_files(dest: bytes, state: "dict[str, Any]") -> "dict[str, str]":
    """Returns delivered files that differ now: path -> a digest of the content, "missing", or the size of a large file.
    Files with unchanged size and times are not read. Modules come first, as a run depends on them most."""
    found: dict[str, str] = {}
    for row in sorted(rows_of(state), key=lambda row: not row[PATH].endswith(MODULES)):
        path = row[PATH]
        if row[KIND] != "f" or not row[DIGEST] or len(found) >= CHANGED_MOST:
            continue
        at = os.path.join(dest, encode(path))
        st = lstat(at)
        if st is not None and unchanged(row, st):
            continue
        if st is not None and st.st_size > (MODULE_BYTES if path.endswith(MODULES) else OTHER_BYTES):
            if st.st_size != row[SIZE]:
                found[path] = "%d bytes" % st.st_size
            continue
        try:
            digest = file_digest(at, os.O_NOFOLLOW, MODULE_BYTES) if st is not None else "missing"
        except OSError:
            continue
        if digest != row[DIGEST]:
            found[path] = digest[:12]
    return found


def open_begins(meta: bytes, how: int = os.O_RDWR | os.O_CREAT) -> int:
    return os.open(os.path.join(meta, b"begins"), how | os.O_NOFOLLOW, 0o600)


def begin_from(code: "run_specs.CodeInUse", run: str, seconds: float) -> "int | None":
    """Locks the code as preflight saw it, {"state", "digest"}, while a run begins. Returns a descriptor to close after
    that, or None if no lock is possible. Raises Refused if a sync is replacing the code, or has replaced it."""
    meta = encode(code["state"])
    try:
        # in another user's folder it may be any kind of file: it is only locked, not made or written
        ours = os.stat(meta).st_uid == os.geteuid()
        fd = open_begins(meta) if ours else open_begins(meta, os.O_RDONLY | os.O_NONBLOCK)
        held = wait_for(fd, fcntl.LOCK_SH, seconds)
    except OSError:
        return None  # the folder is gone, or its file system has no locks: that must not prevent a run
    if not held:
        raise Refused("a sync from %s is replacing the code" % last_holder(meta), "launch again when it has ended")
    if identity(read_state(meta)) != code["digest"]:
        raise Refused("a sync from %s replaced the code while the run began" % last_holder(meta), "launch again")
    with suppress(OSError):  # a full disk: a sync that waits cannot name the run
        os.ftruncate(fd, 0)
        os.pwrite(fd, run.encode(), 0)
    return fd


def wait_for_runs(meta: bytes, waiting: "Callable[..., Any]") -> None:
    """Keeps runs from beginning until this program ends. Calls waiting(run) if it must first wait for a run that is
    beginning. Raises Refused if that takes too long."""
    fd = open_begins(meta)
    if not try_lock(fd, fcntl.LOCK_EX):
        run = os.pread(fd, 256, 0).decode("utf-8", "replace")
        waiting(run)
        if not wait_for(fd, fcntl.LOCK_EX, BEGIN_SECONDS + 15):
            raise Refused("run %s is still beginning from this folder" % run, "run the sync again when it has begun")


def note_delivery(target: bytes, meta: bytes, whole: bool = False) -> None:
    """Writes a note of the data at target. whole: it is complete, not a mixture of old and new. meta: its state folder.
    Files below ~/.fleet get no note: fleet removes them after it has installed or loaded them."""
    if target.startswith(encode(os.path.realpath(below_home())) + b"/"):
        return
    record = {"node": os.uname()[1], "target": decode(target), "state": decode(meta), "whole": whole}
    with suppress(OSError, Refused):  # the home cannot be written: there is no warning later
        own_home(DATA)
        note = below_home(DATA, hashlib.sha256(target).hexdigest()[:32])
        replace_file(encode(note), json.dumps(record).encode())


def deliveries() -> "Iterator[tuple[str, dict[str, Any]]]":
    """Yields (path, content) of the notes of data that was delivered to this node."""
    for note in glob.glob(below_home(DATA, "*")):
        record = read_json(note)
        if record.get("node") == os.uname()[1] and all(isinstance(record.get(n), str) for n in ("target", "state")):
            yield note, record


def changed_data() -> "dict[str, Any]":
    """Returns {"data_changed": {path: how}}: complete deliveries of data that differ now. Files are compared by size
    and time, and not read. Files that are not reached within LOOK_SECONDS are missing from it."""
    until = time.monotonic() + LOOK_SECONDS
    found: dict[str, str] = {}
    for _, record in deliveries():
        target = encode(record["target"])
        if not record.get("whole"):
            continue
        how, meta = how_changed(target, None), lstat(os.path.join(encode(record["state"]), b"state"))
        known = meta is not None and meta.st_size < STATE_BYTES and not how
        for row in rows_of(read_state(encode(record["state"])) or NOTHING) if known else ():
            if len(found) >= CHANGED_MOST or time.monotonic() > until:
                break
            at = os.path.join(os.path.dirname(target) if os.path.isfile(target) else target, encode(row[PATH]))
            change = how_changed(at, row) if row[KIND] == "f" else ""
            if change:
                found[decode(at)] = change
        if how:
            found[record["target"]] = how
    return {"data_changed": found}


def how_changed(path: bytes, row: "list[Any] | None") -> str:
    """Returns how the file of a row has changed, or "" if it has not, or if that is not known."""
    try:
        st = os.lstat(path)
    except FileNotFoundError:
        return "missing"
    except OSError:
        return ""
    if row is None or (st.st_size, st.st_mtime_ns) == (row[SIZE], row[NODE_MTIME]):
        return ""
    return "%d bytes" % st.st_size if st.st_size != row[SIZE] else "changed"


def half_delivered(path: str) -> "dict[str, str | None] | None":
    """Returns {"folder", "busy": the head that syncs now, or None} of an incomplete delivery of data in, at or above
    `path`, or None if there is none."""
    wanted = os.path.realpath(encode(path)).rstrip(b"/") + b"/"
    for note, record in deliveries():
        target = encode(record["target"]).rstrip(b"/") + b"/"
        if record.get("whole") or not (target.startswith(wanted) or wanted.startswith(target)):
            continue
        try:
            with open(os.path.join(encode(record["state"]), encode(LOCK)), "rb") as lock:
                busy = None if try_lock(lock.fileno(), fcntl.LOCK_SH) else held_by(lock.fileno())
            return {"folder": record["target"], "busy": busy}
        except FileNotFoundError:
            remove_file(note)  # another process removed all of it
        except OSError:
            continue  # a file system without locks
    return None
