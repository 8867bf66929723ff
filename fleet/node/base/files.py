"""Opens, replaces, hashes, identifies and removes single files and folders."""

import errno
import hashlib
import os
import re
import stat
from contextlib import suppress

from fleet.node.base.errors import Refused, closing
from fleet.node.base.types import BinaryIO
from fleet.node.base.wire import count_progress


def lstat(path: bytes) -> "os.stat_result | None":
    try:
        return os.lstat(path)
    except OSError:
        return None


def regular(fd: int, path: "str | None" = None) -> int:
    """Returns a descriptor that was just opened, if it is one of a regular file. Else closes it, and raises OSError."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", path)


def open_regular(path: "bytes | str", flags: int = 0) -> "BinaryIO":
    """Opens a file to read. Raises OSError if it is no regular file; a FIFO without a writer does not block this.

    flags: more flags for os.open()."""
    return os.fdopen(regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)), "rb")


def private(path: str, flags: int) -> int:
    """Opens a file with mode 0600, as an opener for open(). Raises OSError for a link, or for anything but a regular
    file."""
    return regular(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600), path)


def remove_file(path: "bytes | str") -> None:
    """Removes a file or a link, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def append_whole(path: str, data: bytes) -> bool:
    """Appends all of the data to a private file, or nothing, so that a full disk leaves no half lines. Returns whether
    it was appended. Raises OSError."""
    with open(path, "ab", buffering=0, opener=private) as file:
        size = file.seek(0, os.SEEK_END)
        if file.write(data) == len(data):
            return True
        file.truncate(size)
        return False


def replace_file(path: bytes, data: bytes, mode: int = 0o666, durable: bool = True) -> None:
    """Writes PATH.new and renames it to `path`. A file or link that another user put at PATH.new, as anyone can in
    /tmp, is never written through: it is removed, or OSError is raised.

    durable: waits until the data is on the disk, which may take long if much else has just been written."""
    remove_file(path + b".new")  # of a process that was killed
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
    remove_file(path)
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
            count_progress()
            digest.update(block)
            left -= len(block)


def tail_of(file: "BinaryIO", most: int, since: int = 0, until: "int | None" = None) -> str:
    """Returns the end of an open log as text: `most` bytes, none of them before `since`, none from `until` on."""
    size = file.seek(0, os.SEEK_END)
    end = size if until is None else min(size, until)
    begin = file.seek(max(0, min(since, end), end - most))
    return file.read(end - begin).decode("utf-8", "replace")


def version_of(info: "os.stat_result") -> str:
    """Returns size, mtime, ctime and inode as text. If it differs from an earlier one of the same path, the file was
    changed or replaced."""
    return "%d %d %d %d" % (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


def nearest_folder(path: str) -> str:
    """Returns an absolute path, or the nearest folder above it that exists."""
    while path != os.path.dirname(path) and not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def to_disk(path: bytes) -> None:
    """Waits until the data of a file, or the entries of a folder, are on the disk."""
    with closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as fd:
        os.fsync(fd)


def remove_tree(folder: "bytes | str") -> None:
    try:
        os.rmdir(folder)  # enough most of the time: it is empty
    except FileNotFoundError:
        pass
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def no_room_for(path: str) -> "str | None":
    """Returns None if this user can make folders at a path. Otherwise returns the path, or its nearest parent that
    exists: it is no folder, or this user cannot write to it."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return None if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK) else path
