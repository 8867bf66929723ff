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
    """Returns `fd`, a descriptor that was just opened, if it is of a regular file. Otherwise closes it and raises
    OSError. path: the path for the error."""
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file", path)


def open_regular(path: "bytes | str", flags: int = 0) -> "BinaryIO":
    """Opens a file to read. Raises OSError if it is no regular file. A FIFO without a writer does not block the call.

    flags: more flags for os.open()."""
    return os.fdopen(regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)), "rb")


def private(path: str, flags: int) -> int:
    """Opens a file; a new file gets the mode 0600. Raises OSError for a link, or for anything else that is no regular
    file. It can be the opener of open()."""
    return regular(os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600), path)


def remove_file(path: "bytes | str") -> None:
    """Removes a file or a link. Does nothing if it does not exist."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def append_whole(path: str, data: bytes) -> bool:
    """Appends all of the data to a file that only this user may read, or nothing: so a full disk leaves no half lines.
    Returns whether it appended the data. Raises OSError if the file cannot be opened or written."""
    with open(path, "ab", buffering=0, opener=private) as file:
        size = file.seek(0, os.SEEK_END)
        if file.write(data) == len(data):
            return True
        file.truncate(size)
        return False


def replace_file(path: bytes, data: bytes, mode: int = 0o666, durable: bool = True) -> None:
    """Writes PATH.new and renames it to `path`. In /tmp, any user can put a file or link at PATH.new. This never writes
    to such a file or through such a link: it removes it, or raises OSError.

    durable: waits until the data is on the disk. That may take long if much other data has just been written."""
    remove_file(path + b".new")  # a process that was killed may have left it
    with open(path + b".new", "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)) as f:
        f.write(data)
        f.flush()
        if durable:
            os.fsync(f.fileno())
    os.rename(path + b".new", path)


def filesystem(path: str, mounts: str) -> "tuple[str | None, str | None]":
    """Returns (type, source) of the mount that `path` lies on. Returns (None, None) if `mounts` has no such mount.

    path: an absolute path without links. mounts: the text of /proc/self/mounts."""
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
    """Makes a symbolic link to `target` in the state folder `meta`, and returns the link's path. The caller renames the
    link to its final path. A link that a killed process left in `meta` is replaced."""
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
    """Returns the end of an open log as text: at most `most` bytes, from the offset `since` on, and up to the offset
    `until` (None: up to the end of the file)."""
    size = file.seek(0, os.SEEK_END)
    end = size if until is None else min(size, until)
    begin = file.seek(max(0, min(since, end), end - most))
    return file.read(end - begin).decode("utf-8", "replace")


def version_of(info: "os.stat_result") -> str:
    """Returns a file's size, mtime, ctime and inode as text. If a later version of the same path differs, the file was
    changed or replaced."""
    return "%d %d %d %d" % (info.st_size, info.st_mtime_ns, info.st_ctime_ns, info.st_ino)


def nearest_folder(path: str) -> str:
    """Returns `path`, which is absolute, if it is a folder. Otherwise returns the nearest parent folder that exists."""
    while path != os.path.dirname(path) and not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def to_disk(path: bytes) -> None:
    """Waits until the data of a file, or the list of names in a folder, is on the disk."""
    with closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as fd:
        os.fsync(fd)


def remove_tree(folder: "bytes | str") -> None:
    try:
        os.rmdir(folder)  # this suffices most of the time, as the folder is empty
    except FileNotFoundError:
        pass
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def no_room_for(path: str) -> "str | None":
    """Returns None if this user can make folders at a path. Otherwise returns what prevents that: the path, or its
    nearest parent that exists, which is no folder, or not writable for this user."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return None if os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK) else path
