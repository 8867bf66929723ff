"""Keeps deliveries and runs apart: what runs rely on that begin from a folder, and what keeps a sync waiting.

A code sync's state folder holds, next to its journal (journal.py),

    lock       held by a sync from its first message to its end.
    begins     held by runs that begin, together, with the id of the last one; held by a sync, alone, while it puts
               files in place. So no run begins from a mixture, and what is imported later fits what was before.

Data that is being put in place, or is whole, is noted in ~/.fleet/data."""

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
MODULE_BYTES, OTHER_BYTES, CHANGED_MOST = 1 << 28, 1 << 20, 50  # of larger ones the size is compared
LOOK_SECONDS, STATE_BYTES = 3.0, 1 << 24  # at data that was delivered; of some 200,000 files
BEGIN_SECONDS = 60.0  # no run takes longer to begin


def find_delivery(path: bytes) -> "tuple[bytes, bytes] | None":
    """(destination, state folder) of the sync that path may have come by: the nearest at or above it; or None."""
    folder = path
    while folder != b"/":
        for meta, _ in delivered_to(folder, (SYNC_STATE,)):
            return folder, meta
        folder = os.path.dirname(folder)
    return None


def last_holder(meta: bytes) -> str:
    """Returns who has synced last, or does so now."""
    with open(os.path.join(meta, encode(LOCK)), "rb") as lock:
        return held_by(lock.fileno())


def delivery(path: str, seconds: float) -> "dict[str, Any] | None":
    """The state of the code at path (a folder or file): {"folder", "state", "digest", "half": bool, "busy": who|null},
    or None when no sync delivered it. digest: null where it cannot be determined. Waits `seconds` for a sync to end.
    manifest: digest of what came last; source: whence; file: that of a file which is as it came, else null."""
    # a folder that was moved, and is linked from where it was, left its state folder there
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
        return facts  # also when its first files are on their way
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
    """Returns the files that a sync delivered and that differ now: path -> a digest of the content, or "missing". Those
    that are unchanged by size and times are not read. Modules come first, as a run depends on them most."""
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
    if identity(read_state(meta)) != code["digest"]:
        raise Refused("a sync from %s replaced the code while the run began" % last_holder(meta), "launch again")
    with suppress(OSError):  # a full disk: a sync that waits will not know the holder
        os.ftruncate(fd, 0)
        os.pwrite(fd, run.encode(), 0)
    return fd


def wait_for_runs(meta: bytes, waiting: "Callable[..., Any]") -> None:
    """Keep runs from beginning, until this program ends; waiting(run) receives one that has to end that first."""
    fd = open_begins(meta)
    if not try_lock(fd, fcntl.LOCK_EX):
        run = os.pread(fd, 256, 0).decode("utf-8", "replace")
        waiting(run)
        if not wait_for(fd, fcntl.LOCK_EX, BEGIN_SECONDS + 15):
            raise Refused("run %s is still beginning from this folder" % run, "run the sync again when it has begun")


def note_delivery(target: bytes, meta: bytes, whole: bool = False) -> None:
    """Note what is at target: old and new mixed, or whole. meta: its state folder. What fleet itself carries, and
    removes once it is installed or loaded, is no data."""
    if target.startswith(encode(os.path.realpath(below_home())) + b"/"):
        return
    record = {"node": os.uname()[1], "target": decode(target), "state": decode(meta), "whole": whole}
    with suppress(OSError, Refused):  # a home that cannot be written: no warning is possible
        own_home(DATA)
        note = below_home(DATA, hashlib.sha256(target).hexdigest()[:32])
        replace_file(encode(note), json.dumps(record).encode())


def deliveries() -> "Iterator[tuple[str, dict[str, Any]]]":
    """(path, content) of the notes of data that came to this node."""
    for note in glob.glob(below_home(DATA, "*")):
        record = read_json(note)
        if record.get("node") == os.uname()[1] and all(isinstance(record.get(n), str) for n in ("target", "state")):
            yield note, record


def changed_data() -> "dict[str, Any]":
    """Data that came whole and is another now: {"data_changed": {path: how}}. Files are compared by size and time, and
    not read; those that are not looked at within LOOK_SECONDS are not named."""
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
    """Returns how the file of a row is another now, "" where it is not, or where that is not known."""
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
    """{"folder", "busy": who|null} of data in the folder at path, or around it, that has come in part; None without."""
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
