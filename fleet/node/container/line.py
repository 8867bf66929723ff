"""The connection between a container and the one where all meet: lines of JSON, see meeting.py."""

import re
import socket
import threading
import time

from fleet.node.base import json
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Callable
from fleet.protocol.state import PROTOCOL, is_run_id

LINE_BYTES = 1 << 16
MOST = 1 << 20  # of nodes, and of ranks
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:%-]{0,254}\Z")  # of a host, or an address
HELLO_SECONDS, DIAL_SECONDS = 5.0, 3.0
REPORT_SECONDS = 10.0  # between two lines about what is waited for
MISSED = "is the container of MASTER_ADDR there, and does its network lead to the others?"


class Line:
    """heard: when the other end last sent anything."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock, self.rest, self.heard = sock, b"", time.monotonic()
        self.lock = threading.Lock()

    def send(self, **message: Any) -> None:
        """OSError where it is gone."""
        with self.lock:
            self.sock.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, seconds: float) -> "dict[str, Any] | None":
        """The next message; None: none within so long, however it dribbles. OSError: it is gone; ValueError: none."""
        until = time.monotonic() + seconds
        while b"\n" not in self.rest:
            self.sock.settimeout(max(0.001, until - time.monotonic()))
            if len(self.rest) > LINE_BYTES:
                raise ValueError("a line without an end")
            try:
                data = self.sock.recv(1 << 14)
            except socket.timeout:
                return None
            if not data:
                raise OSError("closed")
            self.rest += data
        line, _, self.rest = self.rest.partition(b"\n")
        self.heard = time.monotonic()
        try:
            message = json.loads(line.decode("utf-8"))
        except RecursionError:
            raise ValueError("nested too deep") from None
        if not isinstance(message, dict):
            raise ValueError("no message")
        return message


def is_here(address: str) -> bool:
    """Whether a name or address is this machine's own."""
    try:
        found = socket.getaddrinfo(address, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
        with socket.socket() as probe:
            probe.bind((found, 0))
            return True
    except (OSError, UnicodeError):  # the latter: a name longer than names are
        return False


def dial(
    address: str, port: int, hello: "dict[str, Any]", wait: float, report: "Callable[[str], None]"
) -> "tuple[Line, dict[str, Any]]":
    """(the line, what the run begins with). Refused where it does not within `wait` seconds, or may not."""
    until, reported, why = time.monotonic() + wait, 0.0, "others are missing"
    where = "%s:%d" % (address, port)
    while time.monotonic() < until:
        sock = None
        try:
            sock = socket.create_connection((address, port), DIAL_SECONDS)
            line = Line(sock)
            line.send(fleet=PROTOCOL, **hello)
            begin = begin_of(line, until, where)
            if begin is not None:
                sock = None
                return line, begin
            why = "others are missing"
        except (socket.gaierror, UnicodeError) as error:
            why = "%s does not resolve: %s" % (address, getattr(error, "strerror", None) or error)
        except OSError as error:
            why = "nothing listens there (%s)" % (error.strerror or error)
        finally:
            if sock is not None:
                sock.close()
        if time.monotonic() > reported + REPORT_SECONDS:
            reported = time.monotonic()
            report("waiting for %s, which begins first: %s" % (where, why))
        time.sleep(0.5)
    raise Refused("within %g s no run began at %s: %s" % (wait, where, why), MISSED)


def begin_of(line: Line, until: float, where: str) -> "dict[str, Any] | None":
    """What the run begins with; None: it does not until then. Refused: it may not; OSError."""
    while True:
        left = until - time.monotonic()
        if left <= 0:
            return None
        try:
            message = line.receive(min(HELLO_SECONDS, left))
        except ValueError:
            raise Refused("what answers at %s is no fleet" % where, "MASTER_PORT is another program's") from None
        if message is None:
            line.send(beat=1)
        elif "refused" in message:
            raise Refused(str(message["refused"]), str(message.get("hint")))
        elif "begin" in message:
            return checked_begin(message["begin"], where)


def checked_begin(found: Any, where: str) -> "dict[str, Any]":
    """Returns what a run begins with, of which a path and a command are made here. Refused where it is none."""
    try:
        bounds = {"port": 1 << 16, "nodes": MOST, "node": MOST, "first": MOST}
        begin: dict[str, Any] = {name: bounded(found[name], most) for name, most in bounds.items()}
        begin.update({name: str(found[name]) for name in ("run", "host", "master")})
        if is_run_id(begin["run"]) and NAME.match(begin["host"]) and NAME.match(begin["master"]):
            return begin
    except (KeyError, TypeError, ValueError):
        pass
    raise Refused("what answers at %s begins no run of fleet's" % where, "MASTER_PORT is another program's")


def bounded(value: Any, most: int) -> int:
    """Returns a number from 0 to below `most`. ValueError, TypeError."""
    if 0 <= int(value) < most:
        return int(value)
    raise ValueError("out of bounds")
