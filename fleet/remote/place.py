"""What the programs that write into a folder of the node share: refusals, names, the lock against a second one.

Paths travel as UTF-8 with surrogateescape. A lock lives in a state folder beside what it guards.
"""
import errno
import fcntl
import hashlib


class Refused(Exception):
    """message, hint"""


def enc(path):
    return path.encode("utf-8", "surrogateescape")


def dec(path):
    return path.decode("utf-8", "surrogateescape")


def lstat(path):
    try:
        return os.lstat(path)
    except OSError:
        return None


def take_lock(meta, spec):
    """The lock's descriptor; None when another host of this very sync has it: one folder, several nodes."""
    fd = os.open(os.path.join(meta, b"lock"), os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + spec.get("wait", 0)
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
        try:
            holder = json.loads(os.pread(fd, 4096, 0).decode())
        except ValueError:
            holder = {}
        if holder.get("sync") == spec["sync"]:
            return None, holder.get("host")
        if time.monotonic() >= deadline:
            raise Refused("another sync to the same folder is under way, from %s" % holder.get("head", "?"),
                          "wait for it to end, then run this again")
        time.sleep(0.1)
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps({k: spec[k] for k in ("sync", "host", "head")}).encode(), 0)
    return fd, None


def check_inside(path):
    parts = path.split("/")
    if path.startswith("/") or "" in parts or "." in parts or ".." in parts:
        raise Refused("the path %r leads out of the destination" % path, None)


def file_digest(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while True:
            block = f.read(1 << 20)
            if not block:
                return digest.hexdigest()
            digest.update(block)
