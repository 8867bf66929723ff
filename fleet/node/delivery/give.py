"""Gives files of this node to the head: a list first, then what the head has not got yet of each.

spec: {"path", "run": only what was written since that run began here, or null}. Sends J {"event": "tree", ...}, as
often as it takes; waits for a control line {"op": "give", "wanted": [[path, offset, version]]}: the head has so many
bytes of that version; version null: it wants the digest alone. Then for each of them, in that order,
    J {"event": "begin", "index": in wanted, "offset", "size", "mtime", "version"}, O frames, with J {"event": "piece",
    "offset"} where zero bytes come first, which are not sent; J {"event": "given", "sha256", "growing"}
or "gone" or "moving" for what is no file any more, and what does not hold still. A file that changed while it was read
begins again.
"""

import errno
import fcntl
import hashlib
import os
import signal
import stat
import time
from contextlib import suppress

from fleet.node.base.beneath import made_in
from fleet.node.base.errors import Refused, failed
from fleet.node.base.files import filesystem, lstat, open_regular, version_of
from fleet.node.base.processes import read_file
from fleet.node.base.run_folder import run_folder
from fleet.node.base.types import Any, Callable, chain, give
from fleet.node.base.wire import control_lines, decode, encode, frame, moved, send_exit, send_json, start
from fleet.node.delivery.tree import Walk, tell
from fleet.protocol.frames import OUTPUT
from fleet.protocol.state import ATTEMPT, SPEC

say: "Callable[[give.Giving], None]" = send_json
CHUNK, FRAME = 1 << 20, 1 << 16  # what is read at once; what is sent: on a slow link, too, some come every minute
ZEROS = bytes(CHUNK)
TRIES = 4
# seconds: that one file is waited for, and all of them; that one is which may be a log
FILE_SECONDS, ALL_SECONDS, LOG_SECONDS = 10.0, 30.0, 0.3
# seconds without a change before it is read: the grain of a clock; that of one with whole seconds; and where writers on
# other machines are not seen, which send every five seconds what was written
GRAIN, SECOND, UNSEEN = 0.05, 2.1, 6.0
# file systems of this machine alone
LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "zfs", "bcachefs", "tmpfs", "ramfs", "overlay")
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL)  # the last one of open_regular()
QUIET_SECONDS, IDLE_SECONDS = 10.0, 300.0


def is_written(fd: int) -> bool:
    """Whether somebody here has it open for writing: the kernel gives nobody a lease then; ours ends at once."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:  # or another user's
        return isinstance(error, BlockingIOError)
    return False


def is_torn(fd: int, size: int) -> bool:
    """Whether it is a zip file, which torch writes, without its end."""
    return os.pread(fd, 4, 0) == b"PK\3\4" and b"PK\5\6" not in os.pread(fd, 1 << 17, max(0, size - (1 << 17)))


def is_log(fd: int) -> bool:
    """Whether what grows is of use as far as it is: lines of text, and what tensorboard and wandb write."""
    begin = os.pread(fd, 4096, 0)
    return (
        b"\0" not in begin and bool({10, 13} & set(begin)) or b"brain.Event:" in begin[:64] or begin.startswith(b":W&B")
    )


def age(info: "os.stat_result") -> float:
    return time.time() - max(info.st_mtime, info.st_ctime)


def is_idle(info: "os.stat_result") -> bool:
    """Whether it has been so for long: what is kept open, as a database is; of an empty file nobody knows what it
    becomes, but a log that says nothing has been so for a while."""
    return age(info) >= (IDLE_SECONDS if info.st_size else SECOND)


class Giver:
    """root: of the paths. waits: seconds that files may still be waited for. seen: by device, whether all who write
    there are seen here."""

    def __init__(self, root: bytes) -> None:
        self.root, self.waits = root, ALL_SECONDS
        self.seen: dict[int, bool] = {}

    def give(self, path: str, index: int, offset: int, version: "str | None") -> None:
        full = os.path.join(self.root, encode(path)) if path else os.path.realpath(self.root)
        until = time.monotonic() + min(FILE_SECONDS, self.waits)
        for _ in range(TRIES):
            try:
                file = open_regular(full, os.O_NOFOLLOW)
            except OSError as error:
                if error.errno not in NO_FILE:
                    raise
                say({"event": "gone", "index": index})
                return
            with file:
                if self.send(full, file.fileno(), index, offset, version, until):
                    return
        say({"event": "moving", "index": index, "quiet": quiet_beside(full)})

    def send(self, full: bytes, fd: int, index: int, offset: int, version: "str | None", until: float) -> bool:
        """Whether it came whole, as it was at one moment."""
        local = self.is_local(full, fd)
        rested = self.settle(fd, until, local)
        before = os.fstat(fd)
        begins = version_of(before)
        since = before.st_size if version is None else offset if version == begins else 0
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
        with suppress(OSError):  # NFS asks its server then
            open_regular(full, os.O_NOFOLLOW).close()
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
        """The digest of its first `size` bytes; those behind `since` are sent."""
        digest, at, announced = hashlib.sha256(), 0, since
        while at < size:
            data = os.pread(fd, min(CHUNK, (size if at >= since else since) - at), at)
            if not data:
                break
            moved()
            digest.update(data)
            if at >= since and data != ZEROS[: len(data)]:
                if announced != at:
                    say({"event": "piece", "offset": at})
                for part in range(0, len(data), FRAME):
                    frame(OUTPUT, data[part : part + FRAME])
                announced = at + len(data)
            at += len(data)
        return digest.hexdigest()

    def is_local(self, full: bytes, fd: int) -> bool:
        device = os.fstat(fd).st_dev
        if device not in self.seen:
            mounts = read_file("/proc/self/mounts").decode("utf-8", "surrogateescape")
            self.seen[device] = filesystem(decode(os.path.realpath(full)), mounts)[0] in LOCAL
        return self.seen[device]

    def settle(self, fd: int, until: float, local: bool) -> bool:
        """Wait until nobody writes to it, for a while; whether it came to that."""
        began, seen = time.monotonic(), ""
        while True:
            info, written = os.fstat(fd), local and is_written(fd)
            now = time.monotonic()
            if version_of(info) != seen:
                seen, since = version_of(info), now
            whole_seconds = not (info.st_mtime_ns % 10**9 or info.st_ctime_ns % 10**9)
            wanted = GRAIN if local and not whole_seconds else SECOND if local else UNSEEN
            if not written and (now - since >= wanted or age(info) >= wanted):
                return True
            log = max(now - began, age(info)) >= LOG_SECONDS and info.st_size and is_log(fd)
            if now >= until or log or written and is_idle(info):
                self.waits -= now - began
                return False
            time.sleep(GRAIN / 2)


def quiet_beside(full: bytes) -> "list[tuple[str, int]]":
    """The newest files of that kind in its folder that have not changed for a while, and their age."""
    folder, ending = os.path.dirname(full), os.path.splitext(full)[1]
    found, now = [], time.time()
    with suppress(OSError):
        for name in os.listdir(folder):
            is_alike = os.path.splitext(name)[1] == ending and name[:1] != b"."
            info = lstat(os.path.join(folder, name)) if is_alike else None
            if info and stat.S_ISREG(info.st_mode) and info.st_size and now - info.st_ctime >= QUIET_SECONDS:
                found.append((decode(name), max(0, int(now - info.st_mtime))))
    return sorted(found, key=lambda each: each[1])[:3]


def clock(folder: str) -> "float | None":
    """What the clock is that files in this folder get their times from."""
    probe = made_in(os.fsencode(folder))
    return probe.st_mtime if probe else None


def beginning(run: str, root: str) -> int:
    """When a run began, in nanoseconds of the clock of root's file system: a file that fleet wrote then is the mark."""
    folder = run_folder(run)
    if folder is None:
        raise Refused("run %s is not known here any more" % run, "a path of what it wrote: fleet get ./PATH")
    starts = [folder, *(os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(ATTEMPT))]
    marks = [os.stat(mark) for mark in (os.path.join(start, SPEC) for start in starts) if os.path.exists(mark)]
    mark = min(mark.st_mtime_ns for mark in marks)
    if marks[0].st_dev != os.stat(root).st_dev:
        here, there = clock(folder), clock(root)
        apart = there - here if here and there else 0.0
        if abs(apart) > 0.5:  # a file server's own clock; another disk of this machine has the same
            return mark + int((apart - 1.0) * 1e9)
    return mark


def written_since(mark: int, root: str, entries: "list[chain.Entry]") -> "list[chain.Entry]":
    """The files and links, and the folders that they are in."""
    kept: set[str] = set()
    for path, kind, _mode, _size, mtime, _link in reversed(entries):  # a folder comes behind what it holds
        if kind == "l":
            info = lstat(os.path.join(os.fsencode(root), encode(path)))
            mtime = info.st_mtime_ns if info else 0  # it went away since it was listed
        # some file systems keep whole seconds
        if path in kept or kind != "d" and mtime >= (mark if mtime % 10**9 else mark // 10**9 * 10**9):
            kept.update((path, path.rpartition("/")[0]))
    return [entry for entry in entries if entry[0] in kept]


def converse(spec: "give.GiveSpec") -> None:
    root = os.path.expanduser(os.fsdecode(encode(spec["path"])))
    walk = Walk(root, changing=True)
    entries = list(walk.entries()) if os.path.exists(root) else []
    if spec["run"] is not None and entries:
        entries = written_since(beginning(spec["run"], root), root, entries)
    tell(walk, entries)
    wanted: list[Any] = next((line["wanted"] for line in control_lines() if line.get("op") == "give"), [])
    giver = Giver(os.fsencode(root))
    for index, (path, offset, version) in enumerate(wanted):
        giver.give(path, index, offset, version)


def main() -> None:
    spec = start()
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # somebody opens what is_written() holds just then
    try:
        converse(spec)
    except (Refused, OSError) as error:
        send_json(failed(error, shown=decode))
    send_exit(0)
