"""The head's side of a delivery's conversation, and the end of this program when that side is silent for too long."""

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
from fleet.node.base.wire import control_lines, in_parts, moved, send_exit, send_json, start_thread


class Head:
    """Ends the program, and its locks with it, when the head sends nothing, not even ping, for `patience` seconds while
    it is waited for. waits: since when it is waited for, None while it need not send anything. locks: descriptors of
    the locks that are held, which show others when the head last sent something."""

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
                continue  # it is this node that slept: what the head has sent meanwhile is still to be read
            if waits is not None and now - waits > self.patience:
                # what it does not read may fill the pipe: these messages then go with this program
                start_thread(self.part).join(1.0)
                os._exit(1)

    def part(self) -> None:
        with suppress(OSError):
            send_json(failed(Refused("the head said nothing for %g s" % self.patience, "run the sync again")))
            send_exit(1)

    def say(self, question: "Mapping[str, Any]") -> None:
        """Sends something that it has to read, and answer at the end."""
        self.waits = time.monotonic()
        send_json(question)

    def lines(self) -> "Iterator[dict[str, Any]]":
        """The control lines, until it is gone."""
        while True:
            self.waits = time.monotonic()
            message = next(self.control, None)
            self.waits = None
            if message is None:
                return
            for fd in self.locks:
                os.utime(fd)
            yield message

    def hear(self, *ops: str) -> "dict[str, Any] | None":
        """The next control line called one of ops; None when it is gone."""
        return next((message for message in self.lines() if message.get("op") in ops), None)

    def ask(self, event: str, items: "list[Any]") -> "Any":
        """Returns what the head answers when it has all of a list; None where there is none. Raises EOFError where the
        head is gone, or ends it all."""
        if not items:
            return None
        *parts, last = in_parts(items)
        for part in parts:
            self.say({"event": event, "items": part, "more": True})
        self.say({"event": event, "items": last, "more": False})
        message = self.hear("answer", "end")
        if message is None or message["op"] == "end":
            raise EOFError
        return json.loads(zlib.decompress(self.payload(message)).decode())

    def say_parts(self, lists: "Mapping[str, list[Any]]", **more: "Any") -> None:
        """Reports what the node lacks: the first parts of long lists, then the last ones with all else."""
        parts = {name: in_parts(items) for name, items in lists.items()}
        for name, some in parts.items():
            for part in some[:-1]:
                self.say({"event": "lacks", name: part})
        self.say({"event": "need", **{name: some[-1] for name, some in parts.items()}, **more})

    def pieces(self, size: int) -> "Iterator[bytes]":
        """Yields these bytes of what the head sends, as they come."""
        while size:
            self.waits = time.monotonic()
            part = sys.stdin.buffer.read1(min(size, 65536))  # type: ignore[union-attr]
            self.waits = None
            if not part:
                raise EOFError
            moved()
            size -= len(part)
            yield part

    def payload(self, message: "dict[str, Any]") -> bytes:
        """The bytes that follow a control line, as they were sent."""
        data = b"".join(self.pieces(message["size"]))
        if hashlib.sha256(data).hexdigest() != message["sha256"]:
            raise Refused("something arrived damaged", "run the sync again")
        return data


class Mixed(Refused):
    """Some of the destinations are this node's own, some another node writes; the head then takes them one by one."""


def fail(error: "Any") -> None:
    """Report what ends this program, and end it."""
    failure = failed(error, shown, again=", then run this again: it goes on where it ended")
    try:
        send_json(dict(failure, kind="mixed" if isinstance(error, Mixed) else "sync"))
        send_exit(1)
    finally:
        os._exit(1)


def worker(target: "Callable[..., Any]", *args: "Any") -> None:
    """A thread whose failure is this program's."""

    def run() -> None:
        try:
            target(*args)
        except BrokenPipeError:
            os._exit(1)
        except Exception as error:
            fail(error)

    start_thread(run)
