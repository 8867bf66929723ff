"""What the programs that write into a folder of the node share: refusals, names, the lock against a second one.

Paths travel as UTF-8 with surrogateescape. A lock lives in a state folder beside what it guards.
"""
import errno
import fcntl
import hashlib
import stat


class Refused(Exception):
    """message, hint"""


enc = encode


def dec(path):
    return path.decode("utf-8", "surrogateescape")


def lstat(path):
    try:
        return os.lstat(path)
    except OSError:
        return None


def own_uid(folder):
    """Our user as what we make in `folder` shows it: NFS squashes root, mounts map users."""
    probe = os.path.join(folder, b".fleet-who-%d-%d" % (os.getpid(), time.monotonic() * 1e6))
    fd = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        return os.fstat(fd).st_uid
    finally:
        os.close(fd)
        os.unlink(probe)


def state_folder(target, suffix, folder=True):
    """Make or find the state folder (0700) of target: .NAME+suffix beside it; suffix inside it, where target is a
    mount point or the parent is not ours. folder: target is one. Refused when somebody else made it: below /tmp anybody
    may have, to put other files into a stage behind our back."""
    around, name = os.path.split(target)
    meta, inside = os.path.join(around, b"." + name + suffix), os.path.join(target, suffix)
    if folder and (os.path.isdir(inside) or os.lstat(target).st_dev != os.lstat(around).st_dev
                   or not os.access(around, os.W_OK | os.X_OK)):
        meta = inside
    try:
        os.mkdir(meta, 0o700)
        return meta
    except FileExistsError:
        found = os.lstat(meta)
    except OSError as error:
        raise Refused("cannot make %s: %s" % (dec(meta), error.strerror), "choose another folder") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), own_uid(os.path.dirname(meta))):
        raise Refused("%s was made by somebody else (user id %d)" % (dec(meta), found.st_uid),
                      "do this as that user, remove it there, or choose another folder")
    if stat.S_IMODE(found.st_mode) & 0o077:
        os.chmod(meta, 0o700)
    return meta


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
            raise Refused("another sync to the same folder is under way, from %s" % holder.get("head", "?"),
                          "wait for it to end, then run this again")
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
