"""Opens, replaces, hashes, identifies and removes single files and folders."""

import errno
import hashlib
import os
import re
import stat

from fleet.node.base.errors import Refused
from fleet.node.base.types import BinaryIO
from fleet.node.base.wire import moved


def lstat(path: bytes) -> "os.stat_result | None":
    try:
        return os.lstat(path)
    except OSError:
        return None


def open_regular(path: "bytes | str", flags: int = 0) -> "BinaryIO":
    """Opens a file to read. Raises OSError if it is no regular file; a FIFO without a writer does not block this.

    flags: more flags for os.open()."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return os.fdopen(fd, "rb")
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file")


def replace_file(path: bytes, data: bytes, mode: int = 0o666, durable: bool = True) -> None:
    """Writes PATH.new and renames it to `path`. A file or link that another user put at PATH.new, as anyone can in
    /tmp, is never written through: it is removed, or OSError is raised.

    durable: waits until the data is on the disk, which may take long if much else has just been written."""
    try:
        os.unlink(path + b".new")  # of a process that was killed
    except FileNotFoundError:
        pass
    with open(path + b".new", "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)) as f:
        f.write(data)
        f.flush()
        if durable:
            os.fsync(f.fileno())
    os.rename(path + b".new", path)


def filesystem(path: str, mounts: str) -> "tuple[str | None, str | None]":
    """Returns (type, source) of the mount that `path` lies on, (None, None) if none fits.

    path: absolute, without links. mounts: the text of /proc/self/mounts."""
    best: tuple[str, str | None, str | None] = ("", None, None)
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m.group(1), 8)), fields[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):  # a later mount covers an earlier one
            best = (point, fields[2], fields[0])
    return best[1], best[2]


def waiting_link(meta: bytes, target: bytes) -> bytes:
    """Makes a symbolic link to `target` in the state folder `meta`, and returns its path. The caller renames it to its
    place. A link that a killed process left at that path is replaced."""
    path = os.path.join(meta, b"link.new")
    if os.path.lexists(path):
        os.unlink(path)
    os.symlink(target, path)
    return path


def check_inside(path: str) -> None:
    parts = path.split("/")
    if path.startswith("/") or "" in parts or "." in parts or ".." in parts:
        raise Refused("the path %r leads out of the destination" % path, None)


def file_digest(path: "bytes | str", flags: int = 0, size: int = 1 << 62) -> str:
    """Returns the sha256 of the first `size` bytes of a file, in hexadecimal. flags: more flags for os.open()."""
    digest, left = hashlib.sha256(), size
    with open_regular(path, flags) as f:
        while True:
            block = f.read(min(1 << 20, left))
            if not block:
                return digest.hexdigest()
            moved()
            digest.update(block)
            left -= len(block)


def version_of(info: "os.stat_result") -> str:
    """Returns size, mtime, ctime and inode as text. If it differs from an earlier one of the same path, the file was
    changed or replaced."""
    return "%d %d %d %d" % (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


def to_disk(path: bytes) -> None:
    """Waits until the data of a file, or the entries of a folder, are on the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_tree(folder: "bytes | str") -> None:
    try:
        os.rmdir(folder)  # enough most of the time: it is empty
    except FileNotFoundError:
        pass
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)
