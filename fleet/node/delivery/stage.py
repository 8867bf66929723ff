"""Stages received files in the state folder of a destination, until they are put in place. After a kill, the head does
not send staged files again. If another file system is mounted inside of the destination, its files are staged on it.

    stage/PATH    a file. It is complete if it has the source's size and mtime.
    blocks/KEY    digests of the 4 MiB blocks of a large file. KEY is made of its path, size and mtime.

An entry is [path, kind, mode, size, mtime_ns, link], as in journal.py.
"""

import hashlib
import os
import stat
import time
import zlib
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.beneath import HOLD, Beneath
from fleet.node.base.errors import closing
from fleet.node.base.files import lstat, remove_tree
from fleet.node.base.processes import read_file
from fleet.node.base.state_folder import mount_of, state_folder
from fleet.node.base.types import Any, Iterator
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.disk_space import write_sparse
from fleet.protocol.state import STAGE_THERE

BLOCK = 4 << 20
REPLACED = b"replaced"  # the folder, in a state folder, of files that were put aside
KEEP_SECONDS = 30 * 86400
NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX  # mode bits that writing to a file clears


def unpack_parcel(data: bytes) -> "Iterator[tuple[str, memoryview]]":
    """Yields (path, bytes) of the files in a parcel. A parcel is zlib data: a JSON line [[path, length], ...], then the
    bytes of these files, end to end."""
    line, _, rest = zlib.decompress(data).partition(b"\n")
    body, at = memoryview(rest), 0
    for path, length in json.loads(line.decode()):
        yield path, body[at : at + length]
        at += length


class Stage:
    """Stages files in the state folder `meta`. The caller holds that folder's lock. For a file that is written in
    pieces, the stage also has the digests of the file's blocks; with the last digest the file is complete. dest: the
    destination, in which file systems may be mounted; None means that all files are staged in `meta`."""

    def __init__(self, meta: bytes, dest: "Beneath | None" = None) -> None:
        self.meta, self.dest = meta, dest
        self.metas = {"": meta}  # folder of the destination -> the state folder for files in it
        self.made: set[bytes] = set()  # folders of the stage that exist
        self.digests: dict[str, str] = {}  # path -> sha256, of files that were received in one piece
        self.writer: Writer | None = None
        self.around: str | None = None  # the folder of which `inside` is a descriptor
        self.inside = -1
        self.umask = os.umask(0o077)
        os.umask(self.umask)
        # Unix time of the boot: after a crash, a file that was written before the boot may be incomplete on disk
        self.booted = time.time() - float((read_file("/proc/uptime").split() or [b"0"])[0])

    def at(self, path: str) -> bytes:
        return self.meta_of(path) + b"/stage/" + encode(path)

    def meta_of(self, path: str) -> bytes:
        """Returns the state folder on the same mount as the path's final place: a rename works only within a mount."""
        inside = path.rpartition("/")[0]
        if inside not in self.metas:
            around = self.meta_of(inside)
            self.metas[inside] = self.dest and self.other(self.dest, encode(inside)) or around
        return self.metas[inside]

    def other(self, dest: "Beneath", inside: bytes) -> "bytes | None":
        """Returns a state folder in the folder `inside` if that is a mount point, otherwise None."""
        try:
            here, around = Beneath(os.dup(dest.folder(inside))), dest.folder(inside.rpartition(b"/")[0])
        except OSError:  # the folder does not exist yet, or a link or file that will be replaced has its path
            return None
        if mount_of(here.top) == mount_of(around):
            os.close(here.top)
            return None
        key = hashlib.sha256(os.readlink(self.meta)).hexdigest()[:16]
        return state_folder(Beneath(os.dup(around)), b"", encode("." + key + STAGE_THERE), here)

    def place(self, full: bytes) -> bytes:
        """Makes the folder around the path `full`. Returns `full`."""
        around = full[: full.rindex(b"/")]
        if around not in self.made:
            os.makedirs(around, 0o700, exist_ok=True)
            self.made.add(around)
        return full

    def blocks_of(self, entry: "list[Any]") -> bytes:
        key = hashlib.sha256(("%d %d " % (entry[3], entry[4])).encode() + encode(entry[0])).hexdigest()[:32]
        return os.path.join(self.meta, b"blocks", key.encode())

    def sweep(self, wanted: "dict[str, Any]") -> "dict[str, Any]":
        """Removes staged files that are not in `wanted` (path -> entry). Returns the wanted files that are not complete
        in the stage. Makes no new file, as the disk may be full."""
        whole: set[str] = set()
        blocks = {self.blocks_of(entry) for entry in wanted.values() if entry[3] > BLOCK}
        for around, _folders, names in os.walk(os.path.join(self.meta, b"blocks")):
            for full in {os.path.join(around, name) for name in names} - blocks:
                os.unlink(full)
        stages = {os.path.join(meta, b"stage") for meta in [self.meta, *map(self.meta_of, wanted)]}
        for stage, (around, folders, names) in [(top, each) for top in stages for each in os.walk(top, topdown=False)]:
            for name in names:
                full = os.path.join(around, name)
                path, st = decode(full[len(stage) + 1 :]), os.lstat(full)
                entry = wanted.get(path)
                if entry and self.is_whole(entry, st):
                    os.chmod(full, entry[2])
                    whole.add(path)
                elif not (entry and stat.S_ISREG(st.st_mode) and st.st_mode & stat.S_IWUSR):
                    os.unlink(full)
            for name in folders:
                with suppress(OSError):  # a wanted file is in the folder
                    os.rmdir(os.path.join(around, name))
        return {path: entry for path, entry in wanted.items() if path not in whole}

    def is_whole(self, entry: "list[Any]", st: "os.stat_result") -> bool:
        known = (st.st_size, st.st_mtime_ns) == (entry[3], entry[4])
        return known and stat.S_ISREG(st.st_mode) and st.st_ctime > self.booted + 1

    def needs(self, entry: "list[Any]", size: int, have: int = 0) -> "tuple[bytes, int, int]":
        """Returns a need of one file for check_space(): (folder, bytes still to be written, 1 if it needs an inode).

        size: the bytes that the file takes on disk. have: number of staged bytes from the file's start. Staged bytes
        may take no blocks, as zeros become holes, or as the disk compresses."""
        staged = lstat(self.at(entry[0]))
        full, rest = ((count + 4095) // 4096 * 4096 for count in (size, entry[3] - have))
        space = max(0, min(rest, full - (staged.st_blocks * 512 if staged else 0)))
        return self.meta_of(entry[0]), space, staged is None

    def put(self, entry: "list[Any]", data: memoryview) -> None:
        """Stages a whole file with few system calls, as there may be tens of thousands of files."""
        around, _, name = entry[0].rpartition("/")
        if around != self.around:
            self.leave()
            self.inside = os.open(os.path.dirname(self.place(self.at(entry[0]))), HOLD)
            self.around = around
        path, mode = encode(name), entry[2]
        self.digests[entry[0]] = hashlib.sha256(data).hexdigest()
        try:
            fd = os.open(path, NEW, mode, dir_fd=self.inside)
        except FileExistsError:  # a kill has left an incomplete file
            os.unlink(path, dir_fd=self.inside)
            fd = os.open(path, NEW, mode, dir_fd=self.inside)
        with closing(fd):
            write_sparse(fd, data, 0)
            if mode & (self.umask | SPECIAL):
                os.fchmod(fd, mode)
            os.utime(fd, ns=(entry[4], entry[4]))

    def write(self, entry: "list[Any]", offset: int, data: "bytes | memoryview") -> bool:
        """Stages bytes of a file from `offset` on. Returns whether the file is complete now. The caller writes a file's
        pieces in order."""
        writer = self.writer
        if writer is None or writer.entry is not entry or writer.at != offset:
            self.flush()
            writer = self.writer = Writer(self, entry, offset)
        writer.write(memoryview(data))
        if writer.at < entry[3]:
            return False
        seal(writer.fd, entry)
        self.flush()
        return True

    def leave(self) -> None:
        if self.around is not None:
            os.close(self.inside)
        self.around = None

    def flush(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.writer = None

    def drop(self, entry: "list[Any]") -> None:
        """Removes the staged data of a file that is given up, or that is in place already."""
        for path in (self.at(entry[0]), self.blocks_of(entry)):
            with suppress(OSError):  # it does not exist
                os.unlink(path)

    def verified(self, entry: "list[Any]") -> int:
        """Returns how many bytes at the start of a staged file match its block digests. Truncates the file and the list
        of digests after these bytes. Returns 0 for a small file, which has no block digests."""
        size, good = entry[3], 0
        if size <= BLOCK:
            return 0
        try:
            with open(self.at(entry[0]), "r+b") as data, open(self.blocks_of(entry), "r+b") as digests:
                while good < size:
                    block = data.read(min(BLOCK, size - good))
                    if len(block) < min(BLOCK, size - good) or digests.read(32) != hashlib.sha256(block).digest():
                        break
                    good += len(block)
                data.truncate(good)
                digests.truncate((good + BLOCK - 1) // BLOCK * 32)
        except OSError:
            self.drop(entry)
        return good

    def remove(self) -> None:
        """Removes all staged files, and the files that were put aside more than KEEP_SECONDS ago."""
        self.flush()
        self.leave()
        for meta in set(self.metas.values()):
            forget_replaced(meta)
            for name in (b"stage", b"blocks"):
                remove_tree(os.path.join(meta, name))
            if meta != self.meta:
                with suppress(OSError):  # the folder still holds files that were put aside
                    os.rmdir(os.readlink(meta))


def forget_replaced(meta: bytes) -> None:
    folder = os.path.join(meta, REPLACED)
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        if os.lstat(os.path.join(folder, name)).st_mtime < time.time() - KEEP_SECONDS:
            remove_tree(os.path.join(folder, name))
    with suppress(OSError):
        os.rmdir(folder)


def seal(fd: int, entry: "list[Any]") -> None:
    """Sets the mode and mtime of the entry for a staged file. They mark the file as complete."""
    os.fchmod(fd, entry[2])
    os.utime(fd, ns=(entry[4], entry[4]))


class Writer:
    """Writes a staged file from an offset on. If the file is large, also appends the digest of each complete block to
    the file's list of digests. at: offset of the next byte."""

    def __init__(self, stage: "Stage", entry: "list[Any]", offset: int) -> None:
        self.entry, self.at = entry, offset
        path = stage.place(stage.at(entry[0]))
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self.fd = os.open(path, flags | (0 if offset else os.O_TRUNC), 0o600)
        self.blocks: int | None = None
        if entry[3] > BLOCK:
            os.ftruncate(self.fd, offset)
            self.blocks = os.open(stage.place(stage.blocks_of(entry)), flags, 0o600)
            os.ftruncate(self.blocks, offset // BLOCK * 32)
            os.lseek(self.blocks, 0, os.SEEK_END)
            with open(path, "rb") as f:
                f.seek(offset // BLOCK * BLOCK)
                self.hash = hashlib.sha256(f.read(offset % BLOCK))

    def write(self, view: memoryview) -> None:
        write_sparse(self.fd, view, self.at)
        if self.blocks is None:
            self.at += len(view)
            return
        while len(view):
            piece = view[: BLOCK - self.at % BLOCK]
            self.hash.update(piece)
            self.at += len(piece)
            if self.at % BLOCK == 0 or self.at == self.entry[3]:
                os.write(self.blocks, self.hash.digest())
                self.hash = hashlib.sha256()
            view = view[len(piece) :]

    def close(self) -> None:
        os.close(self.fd)
        if self.blocks is not None:
            os.close(self.blocks)
