"""Holds the files of a broadcast on this node as ONE stream of bytes, in manifest order. It writes the ranges that the
node requested and receives. It reads any part that has been received, to send it on.

A file is received into the stage, read again, compared with the head's digest, and renamed to its final path.
"""

import os
import queue
import threading

from fleet.node.base.errors import Refused, closing
from fleet.node.base.files import file_digest
from fleet.node.base.types import Any, Callable, Iterable, chain
from fleet.node.base.wire import decode, encode, send_json
from fleet.node.delivery.journal import DELIVERED
from fleet.node.delivery.stage import BLOCK
from fleet.node.delivery.stream import Stopped, Stream
from fleet.node.delivery.target import Target

say: "Callable[[chain.Corrupt], None]" = send_json


class File:
    """Describes one regular file of the manifest. have: how many bytes from the file's start this node has. received:
    the stage has all bytes, and no thread verifies them yet. state: "wanted" (not in place yet), "held" (in place, or
    not needed here) or "failed" (given up). entry: the entry for the stage, whose mode lets the owner read and
    write."""

    def __init__(self, target: "Target", entry: "Any") -> None:
        self.target = target
        self.name, _kind, self.mode, self.size, self.mtime_ns, _link = entry
        self.entry = [self.name, "f", self.mode | 0o600, self.size, self.mtime_ns, ""]
        self.have, self.state = 0, "wanted"
        self.epoch = 0  # number of the link that sent all bytes; 0 if several links or an earlier broadcast did
        self.digest = ""
        self.received = False

    @property
    def final(self) -> bytes:
        """Returns the file's final path. The caller must use the path at once."""
        return self.target.full(self.name)

    @property
    def part(self) -> bytes:
        return self.target.stage.at(self.name)

    def note(self, status: str) -> None:
        """Records in the journal that the file is in place. status: DELIVERED or SEEN."""
        st = os.lstat(self.final)
        row = [self.name, "f", self.mode, self.size, self.mtime_ns, "", self.digest, status]
        self.target.journal.add([*row, st.st_mtime_ns, st.st_ctime_ns])


def joined(ranges: "Iterable[tuple[int, int]]") -> "list[list[int]]":
    """Returns sorted ranges as [[from, to]], with adjacent ranges merged."""
    found: list[list[int]] = []
    for begin, end in ranges:
        if found and found[-1][1] == begin:
            found[-1][1] = end
        else:
            found.append([begin, end])
    return found


def of_inner(targets: "list[Target]", entries: "list[Any]") -> "set[int]":
    """Returns the numbers of the entries to be ignored: another target, inside of the entry's target, has an entry for
    the same path, or for one of the path's parent folders."""
    full = [os.path.join(targets[number].path, encode(path)).rstrip(b"/") for number, path, *_ in entries]
    goes: dict[bytes, tuple[int, str]] = {}  # path -> the innermost target with an entry for it, and the entry's kind
    for index in sorted(range(len(entries)), key=lambda index: len(targets[entries[index][0]].path)):
        goes[full[index]] = entries[index][0], entries[index][2]

    def is_others(number: int, path: bytes, kind: str) -> bool:
        owner, other = goes.get(path, (number, kind))
        if owner != number and (kind, other) != ("d", "d"):
            return True
        around = os.path.dirname(path)
        return around in goes and is_others(number, around, "d")

    return {index for index, path in enumerate(full) if is_others(entries[index][0], path, entries[index][2])}


class Store(Stream):
    """Receives the files of a manifest and puts them in place. entries: the manifest, [number of a target, path, kind,
    mode, size, mtime_ns, link]. left: the number of files that are neither in place nor given up. received: the number
    of received bytes. ready: the condition that guards the files' states, and wakes threads when they change."""

    def __init__(self, targets: "list[Target]", entries: "list[Any]") -> None:
        self.ready = threading.Condition()
        self.writing = threading.Lock()  # held during a write, so that fail() waits; a thread takes it before `ready`
        self.targets = targets
        self.files: list[File] = []
        inner = of_inner(targets, entries) if len(targets) > 1 else set()
        for index, (number, path, *rest) in enumerate(entries):
            target = targets[number]
            entry = [path or target.name, *rest]
            if index not in inner:
                target.entries.append(entry)
            if entry[1] == "f":
                self.files.append(File(target, entry))
                if index in inner:
                    self.files[-1].state, self.files[-1].have = "held", entry[3]
        Stream.__init__(self, [f.size for f in self.files])
        self.received, self.left, self.at_least = 0, 0, 0  # no file before number at_least lacks bytes
        self.problems: list[tuple[str, str]] = []  # (path, reason) of files that were given up
        self.folders: set[tuple[Target, bytes]] = set()  # folders whose entries have changed
        self.to_place: queue.Queue[int] = queue.Queue()  # numbers of files that may be complete
        self.epoch = 0  # number of the link that sends to this store
        self.doubted: set[int] = set()  # numbers of files that this link sent damaged: another link must send them

    # -- the received parts --------------------------------------------------------------------------------
    def wants(self) -> "list[list[int]]":
        """Returns the ranges [[from, to]] of the stream that are still to be received."""
        return joined(
            (start + f.have, start + f.size)
            for index, (start, f) in enumerate(zip(self.starts, self.files))
            if f.state == "wanted" and f.have < f.size and index not in self.doubted
        )

    def wanted_files(self) -> "list[list[int]]":
        """Returns the ranges [[from, to]] of the numbers of files that are not in place."""
        return joined((index, index + 1) for index, f in enumerate(self.files) if f.state == "wanted")

    def position(self) -> int:
        """Returns the position of the first byte that is still to be received; at the end, the stream's length."""
        for i in range(self.at_least, len(self.files)):
            f = self.files[i]
            if f.state == "wanted" and f.have < f.size:
                self.at_least = i
                return self.starts[i] + f.have
        return self.total

    def begin(self) -> None:
        """Counts the wanted files. The caller has decided before which files are wanted."""
        self.left = sum(f.state == "wanted" for f in self.files)

    def settled(self) -> bool:
        return self.left == 0

    # -- the hosts that it is received from --------------------------------------------------------------------------
    def from_another(self, epoch: int) -> None:
        """Begins to receive from another link, and requests the doubted files from it. epoch: the link's number. The
        caller holds `ready`."""
        self.epoch = epoch
        self.doubted.clear()
        self.ready.notify_all()

    # -- receiving -----------------------------------------------------------------------------------------
    def put(self, position: int, view: memoryview) -> None:
        """Writes bytes of the stream from `position` on. Only one thread calls it, and in order within a range."""
        while len(view):
            index, offset = self.at(position)
            f = self.files[index]
            piece = view[: f.size - offset]
            with self.writing:
                if f.state == "wanted" and offset == f.have:
                    whole = f.target.stage.write(f.entry, offset, piece)
                    f.epoch = self.epoch if offset == 0 or f.epoch == self.epoch else 0
                    with self.ready:
                        f.have += len(piece)
                        self.received += len(piece)
                        f.received = whole
                        self.ready.notify_all()
                    if whole:
                        self.to_place.put(index)
            view = view[len(piece) :]
            position += len(piece)

    # -- sending on ----------------------------------------------------------------------------------------
    def here(self, index: int, offset: int, wait: bool, cancelled: "Callable[[], bool]") -> int:
        f = self.files[index]
        with self.ready:
            while wait and f.have <= offset and f.state != "failed":
                if cancelled():
                    raise Stopped()
                self.ready.wait(1.0)
            return f.size if f.state == "failed" else f.have

    def read(self, index: int, offset: int, size: int) -> bytes:
        with closing(self.open(self.files[index])) as fd:
            return os.pread(fd, size, offset)

    def open(self, f: "File") -> int:
        """Opens a file in the stage, or at its final path if it is no longer in the stage."""
        try:
            return os.open(f.part, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return os.open(f.final, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)

    # -- putting in place ----------------------------------------------------------------------------------
    def set_digest(self, index: int, digest: str) -> None:
        self.files[index].digest = digest
        if self.files[index].state == "wanted":
            self.to_place.put(index)

    def fail(self, index: int, reason: str) -> None:
        """Gives a file up: the node does not put it in place."""
        f = self.files[index]
        with self.writing, self.ready:
            if f.state != "wanted":
                return
            f.state = "failed"
            self.left -= 1
            self.problems.append((f.name, reason))
            self.ready.notify_all()
        f.target.stage.drop(f.entry)

    def place_forever(self) -> None:
        """Verifies complete files whose digest is known, and renames them. Several threads run it."""
        while True:
            index = self.to_place.get()
            f = self.files[index]
            with self.ready:
                if not (f.received and f.digest and f.state == "wanted"):
                    continue
                f.received = False  # so that no other thread verifies the file, too
            self.place(index, f)

    def place(self, index: int, f: "File") -> None:
        part = f.part
        with closing(os.open(part, os.O_RDWR | os.O_CLOEXEC)) as fd:
            if os.fstat(fd).st_size == f.size and file_digest(part) == f.digest:
                os.fchmod(fd, f.mode)
                os.fsync(fd)
                self.enter(f, part)
                return
        good = f.target.stage.verified(f.entry)
        with self.ready:
            # if a block differs from its digest, this disk damaged it: the file is requested from there on. If all
            # blocks are as they were received, the whole file is requested again
            f.have, self.at_least = good if good < f.size else 0, 0
            # then the link is to blame, if it sent the whole file
            blamed = not f.have and f.epoch == self.epoch
            if blamed:
                self.doubted.add(index)
            f.epoch = 0
            self.ready.notify_all()
        if blamed:
            say({"event": "corrupt", "file": index, "epoch": self.epoch})

    def enter(self, f: "File", part: bytes) -> None:
        comparison, commit = f.target.comparison, f.target.commit
        try:
            if f.name in comparison.aside:
                commit.put_aside([f.name], comparison.found)
            commit.check(f.name, comparison.found.get(f.name))
            commit.enter(part, f.name)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise Refused("%s changed on the node meanwhile" % decode(f.target.path), "run this again") from None
        if f.size > BLOCK:
            f.target.stage.drop(f.entry)  # its block digests
        with self.ready:
            f.note(DELIVERED)
            f.state = "held"
            self.left -= 1
            self.folders.add((f.target, encode(f.name).rpartition(b"/")[0]))
            self.ready.notify_all()
