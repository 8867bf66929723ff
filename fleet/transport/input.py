"""Standard input for the commands of several hosts: read once, sent to each, no faster than the slowest takes it."""

from __future__ import annotations

import queue
import select
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import BinaryIO

from fleet.errors import FleetError
from fleet.transport.base import POLL_SECONDS

CHUNK_BYTES = 1 << 16
AHEAD = 16  # chunks that one host may be ahead of another


class Feed:
    """One host's share. over: set when its command takes no more, or the host is given up."""

    def __init__(self) -> None:
        self._queue: queue.Queue[bytes | FleetError | None] = queue.Queue(AHEAD)
        self.over = threading.Event()

    def put(self, data: bytes | FleetError | None) -> None:
        """Waits while it is full. None ends it, an error breaks it off."""
        while not self.over.is_set():
            with suppress(queue.Full):
                return self._queue.put(data, timeout=POLL_SECONDS)

    def chunks(self) -> Iterator[bytes]:
        """What comes, to its end, or until it is over. Raises what broke it off."""
        while not self.over.is_set():
            with suppress(queue.Empty):
                data = self._queue.get(timeout=POLL_SECONDS)
                if data is None:
                    return
                if isinstance(data, FleetError):
                    raise data
                yield data


class Input:
    """feeds: by host. Nothing is read any more when all of them are over."""

    def __init__(self, source: bytes | BinaryIO, hosts: Iterable[str]) -> None:
        self.feeds = {host: Feed() for host in hosts}
        self._source = source
        threading.Thread(target=self._read, name="input", daemon=True).start()

    def _read(self) -> None:
        failed: str | None = None
        try:
            for data in chunks(self._source):
                if all(feed.over.is_set() for feed in self.feeds.values()):
                    return
                for feed in self.feeds.values():
                    feed.put(data)
        except (OSError, ValueError) as error:
            failed = f"standard input cannot be read: {getattr(error, 'strerror', None) or error}"
        for feed in self.feeds.values():  # an error each: it gets its host's name
            feed.put(FleetError(failed, hint="give it a file or a pipe that can be read") if failed else None)


def chunks(source: bytes | BinaryIO) -> Iterator[bytes]:
    """What it holds, as it comes."""
    if isinstance(source, bytes):
        yield from (source[at : at + CHUNK_BYTES] for at in range(0, len(source), CHUNK_BYTES))
        return
    read = getattr(source, "read1", source.read)  # not one that waits for the whole chunk
    while (data := read(CHUNK_BYTES)) != b"":
        if data is None:  # whoever gave it made it nonblocking
            select.select([source], [], [], POLL_SECONDS)
        else:
            yield data
