"""How a container reaches the one where all meet, and the connection to it."""

import select
import socket
import threading
from contextlib import suppress

from fleet.node.base.clock import Clock
from fleet.node.base.errors import Refused, on_failure
from fleet.node.base.types import Any, Callable
from fleet.node.base.wire import at_port
from fleet.node.container.channel import Channel, Mismatch

DIAL_SECONDS, HANDSHAKE_SECONDS, SEND_SECONDS = 3.0, 5.0, 10.0
RETRY_SECONDS = 0.5
REPORT_SECONDS = 10.0  # between two reports of what is waited for
READ_BYTES = 1 << 14
MISSED = "is the container of MASTER_ADDR there, and does its network lead to the others?"
NO_FLEET = "another program has MASTER_PORT there: give it another value in all containers"


class Line:
    """A connection to where all meet. Any thread may send, one receives."""

    def __init__(self, sock: socket.socket, secret: "bytes | None", clock: Clock) -> None:
        self.sock, self.clock, self.channel = sock, clock, Channel(secret, False)
        self._lock = threading.Lock()
        self._messages: list[dict[str, Any]] = []
        sock.settimeout(SEND_SECONDS)

    def send(self, **message: Any) -> None:
        """Raises OSError where the connection is gone, also where the other end has not read for SEND_SECONDS."""
        with self._lock:
            self._write(self.channel.pack(message))

    def receive(self, seconds: float) -> "dict[str, Any] | None":
        """Returns the next message; None: none within so long, however it dribbles. Raises OSError where the
        connection is gone, ValueError where what came is no message, or not authentic."""
        until = self.clock.monotonic() + seconds
        while not self._messages:
            if not self._read(until):
                return None
        return self._messages.pop(0)

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # or a thread that receives waits on
        self.sock.close()

    def shake_hands(self) -> None:
        """Raises OSError where the other end is gone or late, ValueError where it is not the right one."""
        self._write(self.channel.opening())
        until = self.clock.monotonic() + HANDSHAKE_SECONDS
        while not self.channel.ready:
            if not self._read(until):
                raise OSError("what listens there does not respond")

    def _read(self, until: float) -> bool:
        """Returns whether anything came until then."""
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
        except socket.timeout:  # a part of it may be sent: nothing can follow
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
    """Returns the connection, once the other end is known to be the right one and the hello is sent. Raises Refused
    where there is none within `wait` seconds; at once where the secrets differ, or what listens there is no fleet."""
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
    """Returns a connection to the first of a name's addresses that has one, or why there is none."""
    try:
        return reached(address, port, secret, clock)
    except Mismatch as error:
        raise Refused("%s: %s" % (where, error), error.hint) from None
    except (socket.gaierror, UnicodeError) as error:  # the latter: a name longer than names are
        return "%s does not resolve: %s" % (address, getattr(error, "strerror", None) or error)
    except ValueError:
        raise Refused("what responds at %s is no fleet" % where, NO_FLEET) from None
    except OSError as error:
        return "nothing listens there (%s)" % error.strerror if error.strerror else str(error)


def reached(address: str, port: int, secret: "bytes | None", clock: Clock) -> Line:
    """Returns the connection, once the handshake is done. OSError; ValueError as of Channel.feed()."""
    sock = socket.create_connection((address, port), DIAL_SECONDS)
    with on_failure(sock.close):
        if sock.getsockname() == sock.getpeername():  # the kernel chose the very port for this end
            raise OSError("nothing listens there")
        line = Line(sock, secret, clock)
        line.shake_hands()
        return line
