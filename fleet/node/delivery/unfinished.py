"""Data that is being put in place: noted in ~/.fleet/data until all of it is there."""

import fcntl
import hashlib
import json
import os

from fleet.node.base.files import replace_file
from fleet.node.base.locks import holder_of, try_lock
from fleet.node.base.processes import read_file
from fleet.node.base.wire import decode, encode
from fleet.protocol.state import DATA, LOCK, below_home


def notes_folder() -> bytes:
    return encode(below_home(DATA))


def note_delivery(target: bytes, meta: bytes) -> None:
    """Note that what is at target is old and new mixed, until forget_delivery; meta: its state folder."""
    record = {"node": os.uname()[1], "target": decode(target), "state": decode(meta)}
    path = os.path.join(notes_folder(), hashlib.sha256(target).hexdigest()[:32].encode())
    try:
        os.makedirs(notes_folder(), 0o700, exist_ok=True)
        replace_file(path, json.dumps(record).encode())
    except OSError:
        pass  # a home that cannot be written: nobody is warned


def forget_delivery(target: bytes) -> None:
    try:
        os.unlink(os.path.join(notes_folder(), hashlib.sha256(target).hexdigest()[:32].encode()))
    except OSError:
        pass


def half_delivered(path: str) -> "dict[str, str | None] | None":
    """{"folder", "busy": who|null} of data in the folder at path, or around it, that has come in part; None without."""
    wanted = os.path.realpath(encode(path)).rstrip(b"/") + b"/"
    try:
        notes = [os.path.join(notes_folder(), name) for name in os.listdir(notes_folder())]
    except OSError:
        return None
    for note in notes:
        try:
            record = json.loads(read_file(note).decode())
            target = encode(record["target"]).rstrip(b"/") + b"/"
            near = target.startswith(wanted) or wanted.startswith(target)
            if not near or record["node"] != os.uname()[1]:
                continue
            fd = os.open(os.path.join(encode(record["state"]), encode(LOCK)), os.O_RDONLY)
        except FileNotFoundError:
            os.unlink(note)  # somebody took all of it away
            continue
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            continue
        try:
            busy = None if try_lock(fd, fcntl.LOCK_SH) else str(holder_of(fd).get("head", "?"))
            return {"folder": record["target"], "busy": busy}
        except OSError:
            continue  # a file system without locks
        finally:
            os.close(fd)
    return None
