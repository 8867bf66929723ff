"""Files that a code sync's head sends itself, many in one parcel: unpacked into a folder, from where they are moved.

A parcel is zlib data: a JSON line [[path, offset, length], ...], then these bytes, end to end.
"""

import json
import os
import stat
import time
import zlib

from fleet.node.base.files import remove_tree
from fleet.node.base.processes import read_file
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.disk_space import write_sparse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable


class Parcels:
    """folder: where to unpack. needed: entries of the files that are to come; those that an interrupted sync has left
    here whole need not. left: path -> entry of what is still to come."""

    def __init__(self, folder: bytes, needed: "list[Any]") -> None:
        self.folder = folder
        self.left = {entry[0]: entry for entry in needed}
        self.made: set[bytes] = set()
        # what was written before this machine started may not have come to the disk
        self.booted = time.time() - float((read_file("/proc/uptime").split() or [b"0"])[0])
        remove_tree(folder + b".before")  # of an older version
        keep_only(folder, self.take_up)  # in place: on a full disk nothing can be made

    def take_up(self, path: str, st: "os.stat_result") -> bool:
        """Whether this file has come whole."""
        entry = self.left.get(path)
        if (
            entry is None
            or not stat.S_ISREG(st.st_mode)
            or st.st_ctime <= self.booted + 1
            or (st.st_size, st.st_mtime_ns) != (entry[3], entry[4])
        ):
            return False
        os.chmod(os.path.join(self.folder, encode(path)), entry[2])
        del self.left[path]
        return True

    def place(self, path: str) -> bytes:
        full = os.path.join(self.folder, encode(path))
        around = os.path.dirname(full)
        if around not in self.made:
            os.makedirs(around, 0o700, exist_ok=True)
            self.made.add(around)
        return full

    def unpack(self, data: bytes) -> None:
        line, _, rest = zlib.decompress(data).partition(b"\n")
        body, at = memoryview(rest), 0
        for path, offset, length in json.loads(line.decode()):
            self.write(self.left[path], offset, body[at : at + length])
            at += length

    def write(self, entry: "list[Any]", offset: int, data: memoryview) -> None:
        path, _kind, mode, size, mtime_ns, _link = entry
        fd = os.open(self.place(path), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (0 if offset else os.O_TRUNC), 0o600)
        try:
            write_sparse(fd, data, offset)
            if offset + len(data) == size:
                os.fchmod(fd, mode)
                os.utime(fd, ns=(mtime_ns, mtime_ns))
                del self.left[path]
        finally:
            os.close(fd)


def keep_only(folder: bytes, wanted: "Callable[..., Any]") -> None:
    """Take away what an interrupted sync has left here, but for files of which wanted(path, st) says so."""
    for around, folders, names in os.walk(folder, topdown=False):
        for name in names:
            full = os.path.join(around, name)
            if not wanted(decode(full[len(folder) + 1 :]), os.lstat(full)):
                os.unlink(full)
        for name in folders:
            try:
                os.rmdir(os.path.join(around, name))
            except OSError:
                pass  # something wanted is in it
