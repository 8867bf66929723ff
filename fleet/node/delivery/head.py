"""Exchanges a delivery's messages with the head, and ends this program if the head is silent for too long."""

import hashlib
import os
import sys
import time
import zlib
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.beneath import shown
from fleet.node.base.errors import Refused, failed
from fleet.node.base.types import Any, Callable, Iterable, Iterator, Mapping
from fleet.node.base.wire import control_lines, count_progress, in_parts, send_exit, send_json, start_thread


class Head:
    """Receives the head's messages. Ends the program, and so releases its locks, if this program waits for the head and
    the head sends nothing for `patience` seconds, not even ping.

    waits: monotonic time at which waiting began; None while the head need not send anything. locks: descriptors of the
    locked files. The mtime of these files shows other processes when the head last sent a message."""

    def __init__(self, patience: float, locks: "Iterable[int | None]" = ()) -> None:
        self.patience, self.locks = patience, [fd for fd in locks if fd is not None]
        self.waits: float | None = None
        self.control = control_lines()
        start_thread(self.watch)

    def watch(self) -> None:
        pause = min(1.0, self.patience / 4)
        while True:
            slept = time.monotonic()
            time.sleep(pause)
            waits, now = self.waits, time.monotonic()
            if now - slept > 2 * pause:
                continue  # this node stood still: the pipe may have messages that the head sent meanwhile
            if waits is not None and now - waits > self.patience:
                # in a thread, for 1 s at most: if the head does not read, the pipe may be full, and sending blocks
                start_thread(self.part).join(1.0)
                os._exit(1)

    def part(self) -> None:
        with suppress(OSError):
            send_json(failed(Refused("the head sent nothing for %g s" % self.patience, "run the sync again")))
            send_exit(1)

    def request(self, question: "Mapping[str, Any]") -> None:
        """Sends a message to which the head must respond. The time to wait for the response begins now."""
        self.waits = time.monotonic()
        send_json(question)

    def lines(self) -> "Iterator[dict[str, Any]]":
        """Yields the control lines until the head is gone."""
        while True:
            self.waits = time.monotonic()
            message = next(self.control, None)
            self.waits = None
            if message is None:
                return
            for fd in self.locks:
                os.utime(fd)
            yield message

    def next_of(self, *ops: str) -> "dict[str, Any] | None":
        """Returns the next control line whose op is one of `ops`, or None if the head is gone."""
        return next((message for message in self.lines() if message.get("op") in ops), None)

    def ask(self, event: str, items: "list[Any]") -> "Any":
        """Sends a list in parts, and returns the head's response. Sends nothing and returns None if the list is empty.
        Raises EOFError if the head is gone, or ends the delivery."""
        if not items:
            return None
        *parts, last = in_parts(items)
        for part in parts:
            self.request({"event": event, "items": part, "more": True})
        self.request({"event": event, "items": last, "more": False})
        message = self.next_of("answer", "end")
        if message is None or message["op"] == "end":
            raise EOFError
        return json.loads(zlib.decompress(self.payload(message)).decode())

    def send_parts(self, lists: "Mapping[str, list[Any]]", **more: "Any") -> None:
        """Sends lists of what the node lacks. Each first part is a message "lacks". The last parts of all lists are one
        message "need", which also has the keys of `more`."""
        parts = {name: in_parts(items) for name, items in lists.items()}
        for name, some in parts.items():
            for part in some[:-1]:
                self.request({"event": "lacks", name: part})
        self.request({"event": "need", **{name: some[-1] for name, some in parts.items()}, **more})

    def pieces(self, size: int) -> "Iterator[bytes]":
        """Yields the next `size` bytes from the head as they come. Raises EOFError if the head is gone."""
        while size:
            self.waits = time.monotonic()
            part = sys.stdin.buffer.read1(min(size, 65536))  # type: ignore[union-attr]
            self.waits = None
            if not part:
                raise EOFError
            count_progress()
            size -= len(part)
            yield part

    def payload(self, message: "dict[str, Any]") -> bytes:
        """Returns the bytes that follow a control line. Raises Refused if their digest is wrong."""
        data = b"".join(self.pieces(message["size"]))
        if hashlib.sha256(data).hexdigest() != message["sha256"]:
            raise Refused("something arrived damaged", "run the sync again")
        return data


class Mixed(Refused):
    """Is raised if nodes share some of the destinations: another node has the locks of these, and this node the locks
    of the others. The head then delivers to the destinations one by one."""


def fail(error: "Any") -> None:
    """Reports the error, and ends this program."""
    failure = failed(error, shown, again=", then run this again: it goes on where it ended")
    try:
        send_json(dict(failure, kind="mixed" if isinstance(error, Mixed) else "sync"))
        send_exit(1)
    finally:
        os._exit(1)


def worker(target: "Callable[..., Any]", *args: "Any") -> None:
    """Starts a thread whose failure ends this program."""

    def run() -> None:
        try:
            target(*args)
        except BrokenPipeError:
            os._exit(1)
        except Exception as error:
            fail(error)

    start_thread(run)
