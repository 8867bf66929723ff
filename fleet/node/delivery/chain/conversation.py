"""What both roles of a chain say to the head, and how they end."""

import errno
import hashlib
import json
import os
import sys
import time
import zlib

from fleet.node.base.beneath import shown
from fleet.node.base.errors import Refused
from fleet.node.base.wire import control_lines, send_exit, send_json
from fleet.node.delivery.chain.link import start_thread


class Mixed(Refused):
    """Some of the destinations are this node's own, some another node writes; the head then takes them one by one."""


def fail(error):
    """Report what ends this program, and end it."""
    if isinstance(error, Refused):
        message, hint = error.args[:2]
    else:
        name = getattr(error, "filename", None)
        name = shown(name) + ": " if isinstance(name, bytes) else "%s: " % name if name else ""
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        message = name + (getattr(error, "strerror", None) or "%s: %s" % (type(error).__name__, error))
        hint = "free some space there, then run this again: it goes on where it ended" if full else None
    try:
        kind = "mixed" if isinstance(error, Mixed) else "sync"
        send_json({"event": "failed", "message": message, "hint": hint, "kind": kind})
        send_exit(1)
    finally:
        os._exit(1)


def worker(target, *args):
    """A thread whose failure is this program's."""

    def run():
        try:
            target(*args)
        except BrokenPipeError:
            os._exit(1)
        except Exception as error:
            fail(error)

    start_thread(run)


class Watch:
    """Ends this program, and its locks with it, when it waits for a head that says nothing, not even ping."""

    def __init__(self, seconds):
        self.seconds, self.waits = seconds, None
        start_thread(self.run)

    def run(self):
        while True:
            time.sleep(1.0)
            since = self.waits
            if since is not None and time.monotonic() - since > self.seconds:
                os._exit(1)

    def lines(self):
        """The control lines; watched while there is none."""
        lines = control_lines()
        while True:
            self.waits = time.monotonic()
            message = next(lines, None)
            self.waits = None
            if message is None:
                return
            yield message


def read_manifest(message):
    data = sys.stdin.buffer.read(message["size"])
    if hashlib.sha256(data).hexdigest() != message["sha256"]:
        raise Refused("the list of files arrived damaged", "run the sync again")
    return json.loads(zlib.decompress(data).decode())
