"""Separates deliveries and runs: a run begins only from a complete delivery, and a sync waits for runs that begin.

The state folder of a code sync holds the journal (journal.py) and two locks:

    lock       A sync locks it from its first message to its end.
    begins     Runs lock it, shared, while they begin; the file has the id of the last run that did. A sync locks it
               exclusively while it puts files in place. So no run begins from a mixture of old and new modules.

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
# a larger module, or a larger other file, is compared by its size only; at most so many changed files are reported
MODULE_BYTES, OTHER_BYTES, CHANGED_MOST = 1 << 28, 1 << 20, 50
# limits of changed_data(): its time; the size of a journal's file "state", which suffices for about 200,000 files
LOOK_SECONDS, STATE_BYTES = 3.0, 1 << 24
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
    """Returns the host name and pid of the head that synced last, or that is syncing now."""
    with open(os.path.join(meta, encode(LOCK)), "rb") as lock:
        return held_by(lock.fileno())


def delivery(path: str, seconds: float) -> "dict[str, Any] | None":
    """Returns the facts of the code at path (a folder or file), or None if no sync delivered it: {"folder": the
    destination, "state": the state folder, "digest": see journal.identity(), None if unknown, "half": whether a sync
    was interrupted, "busy": the head that is syncing now, or None}. Waits up to `seconds` for a sync to end.

    If the state could be read, the facts also have "manifest": digest of the manifest, "source", and "file": the source
    if path is a file that is unchanged, else None. For a complete destination, they have "changed": changed_files()."""
    # both paths are tried: if a folder was moved and linked from its old path, its state folder is at the old path
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
        return facts  # the lock is another user's, or the file system has no locks
    if facts["busy"] and real == dest:
        return facts  # before the state is needed: a first sync that is under way has none yet
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
    """Returns the delivered files that have changed since: path -> the start of the sha256, "missing", or the size of a
    large file. It does not read files with unchanged size and times. It begins with modules, on which a run depends
    most."""
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
    """Locks the code while the run begins. Returns a descriptor, which the caller closes when the run has begun.
    Returns None if no lock is possible. Raises Refused if a sync is replacing the code, or has replaced it since
    preflight. code: {"state", "digest"} of delivery(), as preflight saw them. seconds: how long it waits for a sync."""
    meta = encode(code["state"])
    try:
        # another user may have put any kind of file there: fleet only locks it, and does not make or write it
        ours = os.stat(meta).st_uid == os.geteuid()
        fd = open_begins(meta) if ours else open_begins(meta, os.O_RDONLY | os.O_NONBLOCK)
        held = wait_for(fd, fcntl.LOCK_SH, seconds)
    except OSError:
        return None  # the folder is gone, or its file system has no locks: that must not prevent a run
    if not held:
        raise Refused("a sync from %s is replacing the code" % last_holder(meta), "launch again when it has ended")
    if identity(read_state(meta)) != code["digest"]:
        raise Refused("a sync from %s replaced the code while the run began" % last_holder(meta), "launch again")
    with suppress(OSError):  # if the disk is full, a sync that waits for the run cannot name it
        os.ftruncate(fd, 0)
        os.pwrite(fd, run.encode(), 0)
    return fd


def wait_for_runs(meta: bytes, waiting: "Callable[..., Any]") -> None:
    """Keeps runs from beginning until this program ends. Waits first for a run that is just beginning, and calls
    waiting(its id) before. Raises Refused if the run takes too long."""
    fd = open_begins(meta)
    if not try_lock(fd, fcntl.LOCK_EX):
        run = os.pread(fd, 256, 0).decode("utf-8", "replace")
        waiting(run)
        if not wait_for(fd, fcntl.LOCK_EX, BEGIN_SECONDS + 15):
            raise Refused("run %s is still beginning from this folder" % run, "run the sync again when it has begun")


def note_delivery(target: bytes, meta: bytes, whole: bool = False) -> None:
    """Writes a note of the data at target. whole: the data is complete, no mixture of old and new. meta: the state
    folder. Files below ~/.fleet get no note: fleet removes them after it has installed or loaded them."""
    if target.startswith(encode(os.path.realpath(below_home())) + b"/"):
        return
    record = {"node": os.uname()[1], "target": decode(target), "state": decode(meta), "whole": whole}
    with suppress(OSError, Refused):  # without a writable home, launches do not warn of incomplete data
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
    """Returns {"data_changed": {path: how_changed()}} for the complete deliveries of data. It compares sizes and times,
    and does not read the files. It stops after LOOK_SECONDS, and then misses some of the changed files."""
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
    """Returns how a file has changed since its row was written: "missing", its new size, or "changed". Returns "" if it
    has not changed, or if that is not known. row: None checks only whether the file is missing."""
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
    """Finds an incomplete delivery of data in, at or above `path`. Returns {"folder": its destination, "busy": the head
    that is syncing now, or None}. Returns None if there is no incomplete delivery."""
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
            remove_file(note)  # another process has removed the data and its state folder
        except OSError:
            continue  # the file system has no locks
    return None
