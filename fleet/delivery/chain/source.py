"""This machine as the one that has everything: reads its files as one stream, knows their digests, sends."""

from __future__ import annotations

import bisect
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fleet.delivery.manifest import Manifest
from fleet.delivery.rsync import local
from fleet.node.base.files import file_digest
from fleet.node.delivery.chain.link import link_token
from fleet.node.delivery.chain.send import Limit, Sender
from fleet.protocol.messages.chain import Link

if TYPE_CHECKING:
    from fleet.node.delivery.chain.send import Way

AHEAD_BYTES = 1 << 30  # what sending has just read is still in memory
BATCH_FILES, BATCH_SECONDS = 500, 0.2


class Source:
    """roots: where each target's files lie. digests: file number -> sha256. changed: files that nobody can have.

    on_news: told of digests and changed files; on_link: of links that broke. Both are called in threads of their own.
    """

    def __init__(self, manifest: Manifest, roots: Sequence[Path], tls: dict[str, str], limit: int | None) -> None:
        self._manifest, self._roots, self._tls = manifest, roots, tls
        self._limit = Limit(limit) if limit else None
        self.total, self.count = manifest.size, len(manifest.files)
        self.digests: dict[int, str] = {}
        self.changed: set[int] = set()
        self.on_news: Callable[[dict[int, str], set[int]], None] = lambda digests, changed: None
        self.on_link: Callable[[Link], None] = lambda message: None
        self._senders: dict[str, Sender] = {}
        self._asked: set[int] = set()
        self._todo: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="digests", daemon=True).start()

    # -- sending -------------------------------------------------------------------------------------------
    @property
    def sent(self) -> int:
        return sum(sender.sent for sender in list(self._senders.values()))

    def send_to(self, name: str, epoch: int, secret: str, ways: list[Way]) -> None:
        """Serve a host, beside the others."""
        if name not in self._senders:
            self._senders[name] = Sender(self, self._tls, lambda message: self.on_link(message), self._limit)
        self._senders[name].connect_to(epoch, link_token(secret, epoch), ways)

    def end(self) -> None:
        self._todo.put(None)
        for sender in self._senders.values():
            sender.epoch = -1

    def take(self, position: int, end: int, cancelled: Callable[[], bool]) -> bytes:
        """Bytes of the stream, for a Sender. A stream cannot skip: what cannot be read goes out as zeros."""
        parts = []
        while position < end:
            index = bisect.bisect_right(self._manifest.starts, position) - 1
            offset = position - self._manifest.starts[index]
            size = min(end - position, self._manifest.files[index][4] - offset)
            parts.append(self._read(index, offset, size))
            position += size
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read(self, index: int, offset: int, size: int) -> bytes:
        data = b""
        try:
            with open(self._path(index), "rb", buffering=0) as file:
                data = os.pread(file.fileno(), size, offset)
                same = self._is_same(index, os.fstat(file.fileno()))
        except OSError:
            same = False
        if not same or len(data) < size:
            self._has_changed(index)
        return data + bytes(size - len(data))

    def _path(self, index: int) -> str:
        number, path, *_ = self._manifest.files[index]
        return os.path.join(self._roots[number], local(path)) if path else os.fspath(self._roots[number])

    def _is_same(self, index: int, info: os.stat_result) -> bool:
        return (info.st_size, info.st_mtime_ns) == self._manifest.files[index][4:6]

    def _has_changed(self, index: int) -> None:
        if index not in self.changed:
            self.changed.add(index)
            self.on_news({}, {index})

    # -- digests -------------------------------------------------------------------------------------------
    def ask(self, files: Iterable[int]) -> set[int]:
        """Have these digests worked out; those that are not known yet."""
        missing = set(files) - self.digests.keys() - self.changed
        for index in sorted(missing - self._asked):
            self._asked.add(index)
            self._todo.put(index)
        return missing

    def _work(self) -> None:
        fresh, then = dict[int, str](), time.monotonic()
        while (index := self._todo.get()) is not None:
            begin = self._manifest.starts[index]
            while any(s.at is not None and begin > s.at + AHEAD_BYTES for s in list(self._senders.values())):
                time.sleep(0.1)
            try:
                digest = file_digest(self._path(index))
                if self._is_same(index, os.stat(self._path(index))):
                    fresh[index] = digest
                else:
                    self._has_changed(index)
            except OSError:
                self._has_changed(index)
            if self._todo.empty() or len(fresh) >= BATCH_FILES or time.monotonic() - then > BATCH_SECONDS:
                self.digests.update(fresh)
                self.on_news(fresh, set())
                fresh, then = {}, time.monotonic()
