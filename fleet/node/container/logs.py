"""Copies what a container's ranks write from the node's folder of the run to runs/RUN/HOST/ and to the terminal."""

import errno
import os
import sys

from fleet.node.base.private import append_whole
from fleet.node.base.types import Any
from fleet.node.run.look.trim import is_log
from fleet.protocol.state import NODE_LOG

BLOCK = 1 << 20
LINE_BYTES = 1 << 16  # of a line that has not ended yet; a longer one is shown in pieces


class Logs:
    """folder: the run's on this node. target: runs/RUN/HOST. host: as the run calls it."""

    def __init__(self, folder: str, target: str, host: str) -> None:
        self.folder, self.target, self.host = folder, target, host
        self.offsets: dict[str, int] = {}
        self.rest: dict[str, bytes] = {}
        self.blocked: str | None = None  # why the target took nothing, the last time
        self.over = False  # nothing more will come

    def bring(self) -> bool:
        """Copies what is new; returns whether a rank wrote any of it."""
        before = dict(self.offsets)
        for name in sorted(os.listdir(self.folder)):
            if not is_log(name):
                continue
            with open(os.path.join(self.folder, name), "rb") as file:
                file.seek(self.offsets.get(name, 0))
                data = file.read(BLOCK)
                while data and self.put(name, data):
                    self.offsets[name] = file.tell()
                    if name != NODE_LOG:
                        self.show(name, data)
                    data = file.read(BLOCK)
        return any(size != before.get(name) for name, size in self.offsets.items() if name != NODE_LOG)

    def put(self, name: str, data: bytes) -> bool:
        """Append it, whole or not at all: what a full disk does not take now is copied again."""
        why = os.strerror(errno.ENOSPC)
        try:
            if append_whole(os.path.join(self.target, name), data):
                self.blocked = None
                return True
        except OSError as error:
            why = str(error.strerror)
        if why != self.blocked:
            report("%s takes no logs: %s; they wait in %s" % (self.target, why, self.folder))
            self.blocked = why
        return False

    def show(self, name: str, data: bytes) -> None:
        """Whole lines, each with whose it is."""
        whole, end, rest = (self.rest.get(name, b"") + data).rpartition(b"\n")
        if len(rest) > LINE_BYTES:
            whole, end, rest = whole + end + rest, b"\n", b""
        self.rest[name] = rest
        stream = sys.stdout if name.endswith(".out") else sys.stderr
        for line in whole.split(b"\n") if end else ():
            stream.write("[%s:%s] %s\n" % (self.host, name[4:-4], line.decode("utf-8", "replace")))
        stream.flush()

    def finish(self) -> None:
        """The last of all, also a line without an end."""
        if os.path.isdir(self.folder):
            self.bring()
        for name, rest in self.rest.items():
            if rest:
                self.show(name, b"\n")


def plain(text: str) -> str:
    return "".join(it if it.isprintable() else "?" for it in text)


def report(text: Any) -> None:
    """A line of fleet's own, between those of the ranks."""
    sys.stderr.write("fleet: " + plain(str(text)) + "\n")
    sys.stderr.flush()
