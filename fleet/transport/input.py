"""Distributes standard input to the commands of several hosts, no faster than the slowest one reads it."""

from __future__ import annotations

import io
import queue
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import BinaryIO

from fleet.errors import FleetError
from fleet.transport.base import POLL_SECONDS


class Feed(queue.Queue[bytes | Exception]):
    """Queues the input for one host. over: the host's command reads no more, or the host is given up."""

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
    """Puts each chunk of the source into all feeds. At the end it puts b"" or, if reading failed, the error into them.
    It ends early if all feeds are over."""
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    while not all(feed.over for feed in feeds):
        try:
            data = getattr(file, "read1", file.read)(1 << 16)  # read1 does not wait for a whole chunk
        except (OSError, ValueError) as error:
            data = error
        for feed in feeds:
            while not feed.over:
                with suppress(queue.Full):
                    feed.put(data, timeout=POLL_SECONDS)
                    break
        if not data or isinstance(data, Exception):
            return
