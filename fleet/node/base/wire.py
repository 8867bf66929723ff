"""Begins every program of the node half: the frames to the head and the control lines from it.

Its imports are what the shortest program takes: signal, struct and threading import more than they are needed for."""

import _signal
import os
import sys
import time
from _struct import pack
from _thread import allocate_lock, start_new_thread

from fleet.node.base import json
from fleet.node.base.types import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping
from fleet.protocol.frames import EXIT, HEADER, HEARTBEAT, HEARTBEAT_SECONDS, MESSAGE, PREAMBLE

if TYPE_CHECKING:
    from threading import Thread
    from typing import TypeVar

    T = TypeVar("T")
    K = TypeVar("K")

_lock = allocate_lock()
_out = 1
_begun = False
_pause: "list[float]" = []  # seconds between heartbeats, once there are any
_moved = [0]
at_end: "list[Callable[[], object]]" = []  # what is done before a program's last message


def write_all(fd: int, data: "bytes | memoryview") -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def frame(kind: bytes, payload: bytes = b"", stream: int = 0) -> None:
    """Send one frame; safe from several threads. Raises OSError (EPIPE) when the head is gone."""
    with _lock:
        write_all(_out, pack(HEADER, kind, stream, len(payload)) + payload)


def send_exit(status: int) -> None:
    while at_end:
        at_end.pop()()
    frame(EXIT, b'{"exit_status": %d}' % status)


def start(heartbeat: bool = True) -> "Any":
    """Send the preamble, return the spec. heartbeat: not for a program that will fork. Of programs that begin one after
    the other only the first sends it, and a later one need not be requested: then this process ends."""
    global _begun
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)  # a closed stdin means that the head is gone
    if not _begun:
        write_all(_out, PREAMBLE)
    line = sys.stdin.buffer.readline()
    while _begun and line.startswith(b'{"op": '):  # meant for the program before, which took long and read none
        line = sys.stdin.buffer.readline()
    if _begun and not line:
        os._exit(0)
    _begun = True
    spec = json.loads(line.decode("utf-8"))
    if heartbeat:
        start_heartbeat()
    return spec


def start_thread(target: "Callable[..., object]", *args: object) -> "Thread":
    """One that does not keep the program from ending."""
    from threading import Thread

    thread = Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


def start_heartbeat(seconds: float = HEARTBEAT_SECONDS) -> None:
    """A thread that sends the head heartbeats; it ends quietly when the head is gone. From an earlier call there is
    one: this sets the period from now on."""
    begun = bool(_pause)
    _pause[:] = [seconds]

    def beat() -> None:
        sent = 0
        try:
            while True:
                time.sleep(_pause[0])
                now = _moved[0]
                frame(HEARTBEAT, b"%d" % now if now != sent else b"")
                sent = now
        except OSError:
            pass

    if not begun:
        start_new_thread(beat, ())


def moved() -> None:
    """A piece of work is done, of many that are not reported to the head: a block, a file. The next heartbeat reports
    it."""
    _moved[0] += 1


def control_lines() -> "Iterator[dict[str, Any]]":
    """Control messages (dicts) until the head closes; blocking."""
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        try:
            yield json.loads(line.decode("utf-8"))
        except ValueError:
            continue


def listen(heed: "Callable[[dict[str, Any]], object] | None", gone: "Callable[[], object]") -> None:
    """In a thread: `heed` gets to see each control message; `gone` is called when the head is."""

    def work() -> None:
        for message in control_lines():
            if heed is not None:
                heed(message)
        gone()

    start_new_thread(work, ())


def send_json(message: "Mapping[str, Any]") -> None:
    frame(MESSAGE, json.dumps(message).encode("utf-8", "surrogateescape"))


def at_port(address: str, port: "int | str") -> str:
    """Returns ADDRESS:PORT, with an IPv6 address in brackets."""
    return ("[%s]:%s" if ":" in address else "%s:%s") % (address, port)


def grouped(pairs: "Iterable[tuple[K, T]]") -> "dict[K, list[T]]":
    """Returns key -> its values, both in order of first appearance."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def in_parts(items: "list[T]", size: int = 500) -> "list[list[T]]":
    """A list as lists that fit into a message each, one at least."""
    return [items[at : at + size] for at in range(0, len(items), size)] or [[]]


def encode(text: str) -> bytes:
    """A string of the head's as the bytes that exec and files take, also where it is no valid UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def decode(data: bytes) -> str:
    """Returns the text, as sent to the head, of what encode() made of it, or of a file's name."""
    return data.decode("utf-8", "surrogateescape")
