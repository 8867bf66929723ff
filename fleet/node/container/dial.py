"""Connects a container to the one where all meet."""

import select
import socket
import threading
from contextlib import suppress

from fleet.node.base.clock import Clock
from fleet.node.base.errors import Refused, on_failure
from fleet.node.base.types import Any, Callable
from fleet.node.base.wire import at_port
from fleet.node.container.channel import Channel, Mismatch

DIAL_SECONDS, HANDSHAKE_SECONDS, SEND_SECONDS = 3.0, 5.0, 10.0  # limits: to connect; of the handshake; of one write
RETRY_SECONDS = 0.5  # between two tries
REPORT_SECONDS = 10.0  # between two lines about waiting
READ_BYTES = 1 << 14
MISSED = "is the container of MASTER_ADDR there, and does its network lead to the others?"
NO_FLEET = "another program has MASTER_PORT there: give it another value in all containers"


class Line:
    """Sends and receives messages over the connection to the container where all meet. Any thread may send; only one
    may receive."""

    def __init__(self, sock: socket.socket, secret: "bytes | None", clock: Clock) -> None:
        self.sock, self.clock, self.channel = sock, clock, Channel(secret, False)
        self._lock = threading.Lock()
        self._messages: list[dict[str, Any]] = []
        sock.settimeout(SEND_SECONDS)

    def send(self, **message: Any) -> None:
        """Sends a message. Raises OSError if the connection is gone, or if the other end does not read for
        SEND_SECONDS."""
        with self._lock:
            self._write(self.channel.pack(message))

    def receive(self, seconds: float) -> "dict[str, Any] | None":
        """Returns the next message, or None if no whole message comes within `seconds`. Raises OSError if the
        connection is gone, and ValueError if the data is no message, or not authentic."""
        until = self.clock.monotonic() + seconds
        while not self._messages:
            if not self._read(until):
                return None
        return self._messages.pop(0)

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that receives
        self.sock.close()

    def shake_hands(self) -> None:
        """Does the handshake. Raises OSError if the other end is gone or late. Raises ValueError if the other end is
        another program, or has another secret or version (Mismatch)."""
        self._write(self.channel.opening())
        until = self.clock.monotonic() + HANDSHAKE_SECONDS
        while not self.channel.ready:
            if not self._read(until):
                raise OSError("what listens there does not respond")

    def _read(self, until: float) -> bool:
        """Reads once. Returns whether any data came before the time `until`."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        if not poll.poll(max(0.0, until - self.clock.monotonic()) * 1000):
            return False
        data = self.sock.recv(READ_BYTES)
        if not data:
            raise OSError("what listens there has closed the connection")
        self._messages += self.channel.feed(data)
        outgoing = self.channel.take_outgoing()
        if outgoing:
            self._write(outgoing)
        return True

    def _write(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except socket.timeout:  # a part of the data may be sent, after which no other message can follow
            self.close()
            raise OSError("the other end does not read what is sent to it") from None


def dial(
    address: str,
    port: int,
    secret: "bytes | None",
    hello: "dict[str, Any]",
    wait: float,
    report: "Callable[[str], None]",
    clock: Clock,
) -> Line:
    """Connects, does the handshake, sends the hello, and returns the connection. Tries for `wait` seconds, then raises
    Refused. Raises Refused at once if secrets or versions differ, or if another program listens there. report: is
    called with a line to show, every REPORT_SECONDS."""
    began = clock.monotonic()
    reported = began - REPORT_SECONDS
    where = at_port(address, port)
    while True:
        found = connected(address, port, secret, clock, where)
        if isinstance(found, Line):
            try:
                found.send(**hello)
                return found
            except OSError as error:
                found.close()
                found = str(error)
        now = clock.monotonic()
        if now >= began + wait:
            raise Refused("within %g s nothing responded at %s: %s" % (wait, where, found), MISSED)
        if now >= reported + REPORT_SECONDS:
            reported = now
            report("waiting for %s, which begins first: %s" % (where, found))
        clock.sleep(RETRY_SECONDS)


def connected(address: str, port: int, secret: "bytes | None", clock: Clock, where: str) -> "Line | str":
    """Tries once to connect. Returns a connection to one of the name's addresses, or the reason why there is none.
    Raises Refused if another try makes no sense. where: address and port, for messages."""
    try:
        return reached(address, port, secret, clock)
    except Mismatch as error:
        raise Refused("%s: %s" % (where, error), error.hint) from None
    except (socket.gaierror, UnicodeError) as error:  # UnicodeError: the name is too long
        return "%s does not resolve: %s" % (address, getattr(error, "strerror", None) or error)
    except ValueError:
        raise Refused("what responds at %s is no fleet" % where, NO_FLEET) from None
    except OSError as error:
        return "nothing listens there (%s)" % error.strerror if error.strerror else str(error)


def reached(address: str, port: int, secret: "bytes | None", clock: Clock) -> Line:
    """Returns the connection after the handshake. Raises OSError, or ValueError as Channel.feed() does."""
    sock = socket.create_connection((address, port), DIAL_SECONDS)
    with on_failure(sock.close):
        if sock.getsockname() == sock.getpeername():  # the kernel chose the same port for this end: it met itself
            raise OSError("nothing listens there")
        line = Line(sock, secret, clock)
        line.shake_hands()
        return line
