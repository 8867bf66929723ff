"""Standard input for the commands of several hosts: read once, sent to each, no faster than the slowest takes it."""

from __future__ import annotations

import io
import queue
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import BinaryIO

from fleet.errors import FleetError
from fleet.transport.base import POLL_SECONDS


class Feed(queue.Queue[bytes | Exception]):
    """One host's share. over: its command takes no more, or the host is given up."""

    over = False

    def chunks(self) -> Iterator[bytes]:
        while not self.over:
            with suppress(queue.Empty):
                data = self.get(timeout=POLL_SECONDS)
                if isinstance(data, Exception):
                    raise FleetError(f"standard input cannot be read: {data}", hint="give it a file or a pipe")
                if not data:
                    return
                yield data


def distribute(source: bytes | BinaryIO, feeds: Collection[Feed]) -> None:
    """To its end, or until all are over: a chunk as it comes, then b"", or what kept it from being read."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    while not all(feed.over for feed in feeds):
        try:
            data = getattr(file, "read1", file.read)(1 << 16)  # not one that waits for the whole chunk
        except (OSError, ValueError) as error:
            data = error
        for feed in feeds:
            while not feed.over:
                with suppress(queue.Full):
                    feed.put(data, timeout=POLL_SECONDS)
                    break
        if not data or isinstance(data, Exception):
            return
