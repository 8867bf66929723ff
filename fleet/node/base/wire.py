"""Starts every node program: sends frames to the head, and reads its control lines.

Its imports set the time of the shortest program. signal, struct and threading would import much that is not needed."""

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
at_end: "list[Callable[[], object]]" = []  # called before a program's last message


def write_all(fd: int, data: "bytes | memoryview") -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def frame(kind: bytes, payload: bytes = b"", stream: int = 0) -> None:
    """Sends one frame. Any thread may call it. Raises OSError (EPIPE) when the head is gone."""
    with _lock:
        write_all(_out, pack(HEADER, kind, stream, len(payload)) + payload)


def send_exit(status: int) -> None:
    while at_end:
        at_end.pop()()
    frame(EXIT, b'{"exit_status": %d}' % status)


def start(heartbeat: bool = True) -> "Any":
    """Sends the preamble and returns the spec. heartbeat: False for a program that will fork.

    A process may run several programs in turn. Only the first sends the preamble. The process ends here if the head
    requests no further program."""
    global _begun
    _signal.signal(_signal.SIGHUP, _signal.SIG_IGN)  # a closed stdin means that the head is gone
    if not _begun:
        write_all(_out, PREAMBLE)
    line = sys.stdin.buffer.readline()
    while _begun and line.startswith(b'{"op": '):  # a control line that the program before did not read
        line = sys.stdin.buffer.readline()
    if _begun and not line:
        os._exit(0)
    _begun = True
    spec = json.loads(line.decode("utf-8"))
    if heartbeat:
        start_heartbeat()
    return spec


def start_thread(target: "Callable[..., object]", *args: object) -> "Thread":
    """Starts a daemon thread, which does not keep the program from ending."""
    from threading import Thread

    thread = Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


def start_heartbeat(seconds: float = HEARTBEAT_SECONDS) -> None:
    """Starts a thread that sends heartbeats to the head, and ends when the head is gone. A later call only changes the
    period."""
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


def count_progress() -> None:
    """Counts a piece of work that is done, such as a block or a file. The next heartbeat sends the count to the
    head."""
    _moved[0] += 1


def control_lines() -> "Iterator[dict[str, Any]]":
    """Yields the head's control messages until the head closes the connection. Blocks."""
    while True:
        line = sys.stdin.buffer.readline()
        if not line:
            return
        try:
            yield json.loads(line.decode("utf-8"))
        except ValueError:
            continue


def listen(on_message: "Callable[[dict[str, Any]], object] | None", gone: "Callable[[], object]") -> None:
    """Starts a thread that calls on_message() with each control message, and gone() when the head is gone."""

    def work() -> None:
        for message in control_lines():
            if on_message is not None:
                on_message(message)
        gone()

    start_new_thread(work, ())


def send_json(message: "Mapping[str, Any]") -> None:
    frame(MESSAGE, json.dumps(message).encode("utf-8", "surrogateescape"))


def at_port(address: str, port: "int | str") -> str:
    """Returns ADDRESS:PORT, with an IPv6 address in brackets."""
    return ("[%s]:%s" if ":" in address else "%s:%s") % (address, port)


def grouped(pairs: "Iterable[tuple[K, T]]") -> "dict[K, list[T]]":
    """Returns key -> the list of its values. Keys are in order of first appearance, and values in order of the
    pairs."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def in_parts(items: "list[T]", size: int = 500) -> "list[list[T]]":
    """Splits a list into lists that each fit into one message. Returns at least one list."""
    return [items[at : at + size] for at in range(0, len(items), size)] or [[]]


def encode(text: str) -> bytes:
    """Returns the bytes of a string from the head, for exec and file names. They need not be valid UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def decode(data: bytes) -> str:
    """Returns bytes, such as a file's name, as the text that is sent to the head. It reverses encode()."""
    return data.decode("utf-8", "surrogateescape")
