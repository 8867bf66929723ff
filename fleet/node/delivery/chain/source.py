"""Implements the source of a chain, on the head or a node: sends files as one stream, and computes their digests."""

import os
import queue
import time
from contextlib import suppress

from fleet.node.base.files import file_digest
from fleet.node.base.types import TYPE_CHECKING, Any, Callable, Iterable, Sequence, chain
from fleet.node.base.wire import encode, start_thread
from fleet.node.delivery.chain.send import Limit, Sender
from fleet.node.delivery.stream import Stream

if TYPE_CHECKING:
    from fleet.node.delivery.chain.send import Way

AHEAD_BYTES = 1 << 30  # digests are at most this far ahead of the senders, which then find data in the page cache
BATCH_FILES, BATCH_SECONDS = 500, 0.2


class Source(Stream):
    """Sends the files of a manifest. files: [number of a root, path, kind, mode, size, ...] of each. roots: folders (or
    single files) that the files are in. inodes: the inode of each file. limit: bytes a second, or None. digests: file
    number -> sha256. changed: numbers of files that changed since the manifest: no host can receive them. grown:
    numbers of files that are longer than in the manifest; a digest is of the manifest's length. senders: host -> its
    Sender.

    on_news: called with new digests and changed files. on_link: called with the message about a link that failed. Both
    are called in other threads.
    """

    def __init__(
        self,
        files: "Sequence[Any]",
        roots: "Sequence[bytes]",
        inodes: "Sequence[int]",
        tls: "dict[str, str]",
        limit: "int | None",
    ) -> None:
        Stream.__init__(self, [entry[4] for entry in files])
        self.files, self.roots, self.inodes, self.tls = files, roots, inodes, tls
        self.limit = Limit(limit) if limit else None
        self.digests: dict[int, str] = {}
        self.changed: set[int] = set()
        self.grown: set[int] = set()
        self.on_news: Callable[[dict[int, str], set[int]], None] = lambda digests, changed: None
        self.on_link: Callable[[chain.Link], None] = lambda message: None
        self.senders: dict[str, Sender] = {}
        self.requested: set[int] = set()
        self.todo: queue.Queue[int | None] = queue.Queue()
        start_thread(self.work)

    # -- sending -------------------------------------------------------------------------------------------
    @property
    def sent(self) -> int:
        return sum(sender.sent for sender in list(self.senders.values()))

    def send_to(self, name: str, epoch: int, token: str, ways: "list[Way]") -> None:
        """Starts to send to a host, in addition to the hosts so far. epoch: number of the link. ways: see Sender."""
        if name not in self.senders:
            self.senders[name] = Sender(self, self.tls, lambda message: self.on_link(message), self.limit)
        self.senders[name].connect_to(epoch, token, ways)

    def end(self) -> None:
        self.todo.put(None)
        for sender in self.senders.values():
            sender.epoch = -1

    def here(self, index: int, offset: int, wait: bool, cancelled: "Callable[[], bool]") -> int:
        return int(self.files[index][4])

    def read(self, index: int, offset: int, size: int) -> bytes:
        data = b""
        with suppress(OSError), open(self.path(index), "rb", buffering=0) as file:
            data = os.pread(file.fileno(), size, offset)
            if len(data) == size and self.is_same(index, os.fstat(file.fileno())):
                return data
        self.has_changed(index)
        return data

    def path(self, index: int) -> bytes:
        number, path, *_ = self.files[index]
        return os.path.join(self.roots[number], encode(path)) if path else self.roots[number]

    def is_same(self, index: int, info: "os.stat_result") -> bool:
        size, mtime_ns = self.files[index][4:6]
        if info.st_size > size and info.st_ino == self.inodes[index]:
            self.grown.add(index)
            return True
        return (info.st_size, info.st_mtime_ns) == (size, mtime_ns)

    def has_changed(self, index: int) -> None:
        if index not in self.changed:
            self.changed.add(index)
            self.on_news({}, {index})

    # -- digests -------------------------------------------------------------------------------------------
    def ask(self, files: "Iterable[int]") -> "set[int]":
        """Starts to compute digests of files. Returns the numbers of the files whose digest is not known yet."""
        missing = set(files) - self.digests.keys() - self.changed
        for index in sorted(missing - self.requested):
            self.requested.add(index)
            self.todo.put(index)
        return missing

    def work(self) -> None:
        fresh: dict[int, str] = {}
        then = time.monotonic()
        while True:
            index = self.todo.get()
            if index is None:
                return
            begin = self.starts[index]
            while any(s.at is not None and begin > s.at + AHEAD_BYTES for s in list(self.senders.values())):
                time.sleep(0.1)
            try:
                digest = file_digest(self.path(index), size=self.files[index][4])
                if self.is_same(index, os.stat(self.path(index))):
                    fresh[index] = digest
                else:
                    self.has_changed(index)
            except OSError:
                self.has_changed(index)
            if self.todo.empty() or len(fresh) >= BATCH_FILES or time.monotonic() - then > BATCH_SECONDS:
                self.digests.update(fresh)
                self.on_news(fresh, set())
                fresh, then = {}, time.monotonic()
