"""What the programs that write into a folder of the node share: refusals, names, the lock against a second one.

Paths travel as UTF-8 with surrogateescape. A lock lives in a state folder beside what it guards.
"""

import errno
import fcntl
import hashlib


class Refused(Exception):
    """message, hint; and "busy" where another one is at it just now"""


enc = encode


def dec(path):
    return path.decode("utf-8", "surrogateescape")


def lstat(path):
    try:
        return os.lstat(path)
    except OSError:
        return None


def in_parts(items, size=500):
    """A list as lists that fit into a message each, one at least."""
    return [items[at : at + size] for at in range(0, len(items), size)] or [[]]


def waiting_link(meta, target):
    """A link to target, in the state folder until it is renamed to its place; one that a kill left there is in nobody's
    way."""
    path = os.path.join(meta, b"link.new")
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)
    return path


def take_lock(meta, spec):
    """The lock's descriptor; None when another host of this very sync has it: one folder, several nodes."""
    fd = os.open(os.path.join(meta, b"lock"), os.O_RDWR | os.O_CREAT, 0o600)
    until = time.monotonic() + spec.get("wait", 0)
    while not try_lock(fd, fcntl.LOCK_EX):
        holder = holder_of(fd)
        if holder.get("sync") == spec["sync"]:
            return None, holder.get("host")
        if time.monotonic() >= until:
            raise Refused(
                "another sync to the same folder is under way, from %s" % holder.get("head", "?"),
                "wait for it to end, then run this again",
                "busy",
            )
        time.sleep(0.1)
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps({k: spec[k] for k in ("sync", "host", "head")}).encode(), 0)
    return fd, None


def try_lock(fd, kind):
    try:
        fcntl.lockf(fd, kind | fcntl.LOCK_NB)
        return True
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False


def holder_of(fd):
    """Who took the lock last, alone: {"sync", "host", "head"}, or {}."""
    try:
        holder = json.loads(os.pread(fd, 4096, 0).decode())
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


# -- data that is being put in place: noted in ~/.fleet/data until all of it is there ---------------------------
def notes_folder():
    return enc(os.path.join(expand_user("~"), ".fleet", "data"))


def note_delivery(target, meta):
    """Note that what is at target is old and new mixed, until forget_delivery; meta: its state folder."""
    record = {"node": os.uname()[1], "target": dec(target), "state": dec(meta)}
    path = os.path.join(notes_folder(), hashlib.sha256(target).hexdigest()[:32].encode())
    try:
        os.makedirs(notes_folder(), 0o700, exist_ok=True)
        with open(path + b".new", "w") as f:
            json.dump(record, f)
        os.rename(path + b".new", path)
    except OSError:
        pass  # a home that cannot be written: nobody is warned


def forget_delivery(target):
    try:
        os.unlink(os.path.join(notes_folder(), hashlib.sha256(target).hexdigest()[:32].encode()))
    except OSError:
        pass


def half_delivered(path):
    """{"folder", "busy": who|null} of data in the folder at path, or around it, that has come in part; None without."""
    path = os.path.realpath(enc(path)).rstrip(b"/") + b"/"
    try:
        notes = [os.path.join(notes_folder(), name) for name in os.listdir(notes_folder())]
    except OSError:
        return None
    for note in notes:
        try:
            record = json.loads(read_file(note).decode())
            target = enc(record["target"]).rstrip(b"/") + b"/"
            near = target.startswith(path) or path.startswith(target)
            if not near or record["node"] != os.uname()[1]:
                continue
            fd = os.open(os.path.join(enc(record["state"]), b"lock"), os.O_RDONLY)
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


def check_inside(path):
    parts = path.split("/")
    if path.startswith("/") or "" in parts or "." in parts or ".." in parts:
        raise Refused("the path %r leads out of the destination" % path, None)


def file_digest(path, flags=0):
    digest = hashlib.sha256()
    with open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as f:
        while True:
            block = f.read(1 << 20)
            if not block:
                return digest.hexdigest()
            digest.update(block)
