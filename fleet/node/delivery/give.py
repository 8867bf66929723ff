"""Sends files of this node to the head: first a list, then the bytes of each file that the head lacks.

spec: {"path", "run": a run's id, to send only files that were written since that run began here, or null,
"copy_unsafe_links": true sends the file that a link leads to, if it is outside of path}. The node sends the list in
messages J {"event": "tree", ...}, and waits for a control line {"op": "give", "wanted": [[path, offset, version]]}. The
head has `offset` bytes of that version. Offset null means that the head seems to have all bytes: the node then sends
the digest only, or nothing if the file still has that version. The node sends these messages for each wanted file, in
that order: J {"event": "begin", "index": in wanted, "offset", "size", "mtime", "version"}; O frames with the bytes; J
{"event": "piece", "offset"} after zero bytes, which are not sent; J {"event": "given", "sha256", "growing"}. For a path
that is no longer a file, the node sends "gone" instead; for a file that keeps changing, "moving". A file that changed
while it was read is sent again, from its "begin" on. Small files at rest, and files that still have the head's version,
are sent together: J {"event": "few", "index": of the first, "files": ["VERSION SHA256", or "" for an unchanged file]},
then an O frame with the bytes of all.
"""

import errno
import fcntl
import gc
import hashlib
import os
import re
import signal
import stat
import time
from contextlib import suppress

from fleet.node.base.errors import Refused, answer
from fleet.node.base.files import filesystem, lstat, open_regular, version_of
from fleet.node.base.processes import read_file
from fleet.node.base.types import Any, Callable, Iterable, give
from fleet.node.base.wire import control_lines, count_progress, decode, encode, frame, send_json
from fleet.node.delivery.since import beginning, delivered, written_since
from fleet.node.delivery.tree import Walk, send_entries
from fleet.protocol.frames import OUTPUT

say: "Callable[[give.Giving], None]" = send_json
SMALL, MANY = 1 << 16, 500  # limits of files that are sent together: bytes, of each file and of all; number of files
CHUNK, FRAME = 1 << 20, 1 << 16  # bytes of a read; bytes of a frame, few, so that a frame arrives soon on a slow link
ZEROS = bytes(CHUNK)
TRIES = 4
# seconds to wait until one file is at rest; until all files are; until a file that may be a log is
FILE_SECONDS, ALL_SECONDS, LOG_SECONDS = 10.0, 30.0, 0.3
# seconds without a change after which a file is at rest: on a local disk; on a local disk that stores whole seconds; on
# a file server, whose other clients may send their writes only every five seconds
GRAIN, SECOND, UNSEEN = 0.05, 2.1, 6.0
# types of local file systems
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "ramfs", "overlay")
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)  # open_regular() raises the last one
QUIET_SECONDS, IDLE_SECONDS = 10.0, 300.0
LAST = (b"last", b"latest", b"current")  # stems of files that programs overwrite each time


def is_written(fd: int) -> bool:
    """Returns whether a process of this node has a file open for writing. The kernel shows that: it then grants no read
    lease on the file. If it grants one, this function releases the lease at once."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:  # any other error, such as that of another user's file, does not show a writer
        return isinstance(error, BlockingIOError)
    return False


def is_torn(fd: int, size: int) -> bool:
    """Returns whether a file is an incomplete zip file. torch writes checkpoints as zip files."""
    return os.pread(fd, 4, 0) == b"PK\3\4" and b"PK\5\6" not in os.pread(fd, 1 << 17, max(0, size - (1 << 17)))


def is_log(fd: int) -> bool:
    """Returns whether an incomplete copy of a growing file is useful: the file has lines of text, or is a log of
    tensorboard or wandb."""
    begin = os.pread(fd, 4096, 0)
    return (
        b"\0" not in begin and bool({10, 13} & set(begin)) or b"brain.Event:" in begin[:64] or begin.startswith(b":W&B")
    )


def age(info: "os.stat_result") -> float:
    return time.time() - max(info.st_mtime, info.st_ctime)


def is_idle(info: "os.stat_result") -> bool:
    """Returns whether a file has not changed for long. Such a file may be a database that stays open. An empty file is
    idle after a few seconds already: it may be a log without output."""
    return age(info) >= (IDLE_SECONDS if info.st_size else SECOND)


def rest_of(info: "os.stat_result", local: bool) -> float:
    """Returns the seconds without a change after which a file is at rest."""
    whole_seconds = not (info.st_mtime_ns % 10**9 or info.st_ctime_ns % 10**9)
    return GRAIN if local and not whole_seconds else SECOND if local else UNSEEN


class Giver:
    """Sends files. root: the folder that the paths are relative to. followed: paths of links that are sent as the files
    that they lead to. waits: seconds left to wait until files are at rest. seen: device number -> whether its file
    system is local; only there does is_written() see all writers. few, bytes: rows and bytes of collected small
    files."""

    def __init__(self, root: bytes, followed: "Iterable[str]" = ()) -> None:
        self.root, self.followed, self.waits = root, frozenset(followed), ALL_SECONDS
        self.seen: dict[int, bool] = {}
        self.few: list[str] = []
        self.bytes = b""

    def give(self, wanted: "list[Any]") -> None:
        """Sends the requested files, small ones many at a time."""
        for index, (path, offset, version) in enumerate(wanted):
            count_progress()
            full = os.path.join(self.root, encode(path)) if path else os.path.realpath(self.root)
            flags = 0 if path in self.followed else os.O_NOFOLLOW
            row, data = "", b""
            if offset is not None or version is None or version != self.version(full, flags):
                if not offset:
                    row, data = self.small(full, flags)
                if offset is None:
                    data = b""
                if not row or len(self.bytes) + len(data) > SMALL:
                    self.flush(index)
                if not row:
                    self.large(full, flags, index, offset, version)
                    continue
            self.few.append(row)
            self.bytes += data
            if len(self.few) >= MANY:
                self.flush(index + 1)
        self.flush(len(wanted))

    def flush(self, end: int) -> None:
        """Sends the collected small files. end: index of the file after them."""
        if self.few:
            say({"event": "few", "index": end - len(self.few), "files": self.few})
        if self.bytes:
            frame(OUTPUT, self.bytes)
        self.few, self.bytes = [], b""

    def version(self, full: bytes, flags: int) -> "str | None":
        with suppress(OSError):
            info = os.lstat(full) if flags else os.stat(full)
            if self.is_local(full, info):
                return version_of(info)
            with open_regular(full, flags) as file:  # opening it makes NFS query its server
                return version_of(os.fstat(file.fileno()))
        return None

    def small(self, full: bytes, flags: int) -> "tuple[str, bytes]":
        """Returns ("VERSION SHA256", bytes) of a small file that is at rest and complete; ("", b"") for others."""
        with suppress(OSError), open_regular(full, flags) as file:
            fd, before = file.fileno(), os.fstat(file.fileno())
            version, local = version_of(before), self.is_local(full, before)
            if before.st_size <= SMALL and age(before) >= rest_of(before, local):
                data = os.pread(fd, SMALL + 1, 0)
                if not local:
                    open_regular(full, flags).close()
                is_part = len(data) != before.st_size or local and is_written(fd) or is_torn(fd, len(data))
                if version_of(os.fstat(fd)) == version and not is_part:
                    return "%s %s" % (version, hashlib.sha256(data).hexdigest()), data
        return "", b""

    def large(self, full: bytes, flags: int, index: int, offset: "int | None", version: "str | None") -> None:
        until = time.monotonic() + min(FILE_SECONDS, self.waits)
        for _ in range(TRIES):
            try:
                file = open_regular(full, flags)
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                say({"event": "gone", "index": index})
                return
            with file:
                if self.send(full, flags, file.fileno(), index, offset, version, until):
                    return
        say({"event": "moving", "index": index, "quiet": quiet_versions(full)})

    def send(
        self,
        full: bytes,
        flags: int,
        fd: int,
        index: int,
        offset: "int | None",
        version: "str | None",
        until: float,
    ) -> bool:
        """Sends a file. Returns whether the sent bytes are the file's at one moment, or a log's up to one moment.
        until: monotonic time up to which it waits until the file is at rest."""
        local = self.is_local(full, os.fstat(fd))
        rested = self.settle(fd, until, local)
        before = os.fstat(fd)
        begins = version_of(before)
        since = before.st_size if offset is None else offset if version == begins else 0
        say(
            {
                "event": "begin",
                "index": index,
                "offset": since,
                "size": before.st_size,
                "mtime": before.st_mtime_ns,
                "version": begins,
            }
        )
        digest = self.read(fd, before.st_size, since)
        with suppress(OSError):  # opening it makes NFS query its server
            open_regular(full, flags).close()
        after, written = os.fstat(fd), local and is_written(fd) or is_torn(fd, before.st_size)
        whole = rested and version_of(after) == begins
        if not whole or written:
            if after.st_size < before.st_size or not (after.st_size and is_log(fd) or is_idle(after)):
                return False
            if not whole and digest != self.read(fd, before.st_size, before.st_size):
                return False
        say({"event": "given", "sha256": digest, "growing": bool(not whole or written)})
        return True

    def read(self, fd: int, size: int, since: int) -> str:
        """Sends the bytes from `since` to `size`. Returns the digest of all bytes up to `size`."""
        digest, at, announced = hashlib.sha256(), 0, since
        while at < size:
            data = os.pread(fd, min(CHUNK, (size if at >= since else since) - at), at)
            if not data:
                break
            count_progress()
            digest.update(data)
            if at >= since and data != ZEROS[: len(data)]:
                if announced != at:
                    say({"event": "piece", "offset": at})
                for part in range(0, len(data), FRAME):
                    frame(OUTPUT, data[part : part + FRAME])
                announced = at + len(data)
            at += len(data)
        return digest.hexdigest()

    def is_local(self, full: bytes, info: "os.stat_result") -> bool:
        if info.st_dev not in self.seen:
            mounts = read_file("/proc/self/mounts").decode("utf-8", "surrogateescape")
            self.seen[info.st_dev] = filesystem(decode(os.path.realpath(full)), mounts)[0] in LOCAL
        return self.seen[info.st_dev]

    def settle(self, fd: int, until: float, local: bool) -> bool:
        """Waits until the file is at rest, or `until`. Returns whether it is at rest."""
        began, seen = time.monotonic(), ""
        while True:
            info, written = os.fstat(fd), local and is_written(fd)
            now = time.monotonic()
            if version_of(info) != seen:
                seen, since = version_of(info), now
            wanted = rest_of(info, local)
            if not written and (now - since >= wanted or age(info) >= wanted):
                return True
            log = max(now - began, age(info)) >= LOG_SECONDS and info.st_size and is_log(fd)
            if now >= until or log or written and is_idle(info):
                self.waits -= now - began
                return False
            time.sleep(GRAIN / 2)


def is_version(name: bytes, other: bytes) -> bool:
    """Returns whether `other` is another version of the file `name`: the names differ in numbers alone, or `name` has a
    stem such as "last"."""
    one, two = (re.sub(b"[0-9]+", b"0", each) for each in (name, other))
    stem, ending = os.path.splitext(name)
    is_last = bool(ending) and os.path.splitext(other)[1] == ending and stem.lower() in LAST and b"0" in two
    return name != other and (one == two or is_last)


def quiet_versions(full: bytes) -> "list[tuple[str, int]]":
    """Returns (name, age in seconds) of the newest versions of a file in its folder that are complete and at rest."""
    folder, own = os.path.split(full)
    found, now = [], time.time()
    with suppress(OSError):
        for name in os.listdir(folder):
            info = lstat(os.path.join(folder, name)) if is_version(own, name) else None
            if info and stat.S_ISREG(info.st_mode) and info.st_size and now - info.st_ctime >= QUIET_SECONDS:
                found.append((max(0, int(now - info.st_mtime)), name))
    return [(decode(name), old) for old, name in sorted(found)[:9] if is_whole(os.path.join(folder, name))][:3]


def is_whole(path: bytes) -> bool:
    with suppress(OSError), open_regular(path, os.O_NOFOLLOW) as file:
        return not is_written(file.fileno()) and not is_torn(file.fileno(), os.fstat(file.fileno()).st_size)
    return False


def converse(spec: "give.GiveSpec") -> None:
    root = os.path.expanduser(os.fsdecode(encode(spec["path"])))
    walk = Walk(root, changing=True, follows=spec["copy_unsafe_links"])
    entries = list(walk.entries()) if os.path.exists(root) else []
    if spec["run"] is not None and entries:
        entries = written_since(beginning(spec["run"], root), walk, entries, delivered(root))
    send_entries(walk, entries)
    wanted: list[Any] = next((line["wanted"] for line in control_lines() if line.get("op") == "give"), [])
    Giver(os.fsencode(root), walk.followed).give(wanted)


def main() -> None:
    gc.disable()  # it would scan long lists again and again, which live to the end
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # the kernel sends it if a process opens a file during is_written()
    answer(converse, (Refused, OSError))
