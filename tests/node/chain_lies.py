"""What a member of a broadcast's chain does that lies: run in its process, in front of its main()."""

import time
from typing import Any, Callable  # noqa: UP035 (runs on nodes' Python)

from fleet.node.delivery import head, store
from fleet.node.delivery.chain import link, member, send

# what is changed here is none of their types' business
LINK, MEMBER, SEND, STORE, HEAD = (link, member, send, store, head)  # type: Any, Any, Any, Any, Any


def garbage() -> None:
    STORE.Store.read = lambda self, f, offset, size: bytes(size)


def mute() -> None:
    STORE.Store.take = lambda *args: time.sleep(600)


def accuses() -> None:
    def dial(self: Any, ways: Any) -> None:
        raise ValueError("it talks nonsense")

    SEND.Sender.dial = dial


def asks(instead: Callable[[Any], None]) -> None:
    """What is sent in place of the ranges that are wanted."""
    honest = LINK.Link.send_line

    def send_line(self: Any, message: Any) -> None:
        if "wants" in message:
            instead(self)
        else:
            honest(self, message)

    LINK.Link.send_line = send_line


def odd_wants() -> None:
    honest = LINK.Link.send_line
    asks(lambda link: honest(link, {"wants": [["x", 1 << 70]]}))


def huge_wants() -> None:
    asks(lambda link: link.sock.sendall(b"[0,1]," * 10000000))


def false_done() -> None:
    honest = MEMBER.report

    def report(*args: Any) -> None:
        MEMBER.send_json({"event": "done", "files": 9, "bytes": 9, "problems": [], "left": [], "aside": []})
        honest(*args)

    MEMBER.report = report


def says(event: str, **lie: Any) -> None:
    """These fields in each message of this event."""
    honest = MEMBER.send_json

    def lied(message: Any) -> None:
        honest(dict(message, **lie) if message["event"] == event else message)

    MEMBER.say = MEMBER.send_json = HEAD.send_json = lied


def complains() -> None:
    STORE.file_digest = lambda path: "no such"


LIES = {
    "garbage": garbage,
    "mute": mute,
    "accuses": accuses,
    "odd-wants": odd_wants,
    "huge-wants": huge_wants,
    "false-done": false_done,
    "far-ahead": lambda: says("at", position=1 << 60, received=1 << 60),
    "elsewhere": lambda: says("need", address="198.51.100.7"),
    "complains": complains,
}
