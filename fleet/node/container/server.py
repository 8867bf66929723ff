"""Serves the port where containers meet: one loop over all connections, with limits of memory, number and time.

Any process may connect. The caller must admit a connection (`admitted`) within ADMISSION_SECONDS of its start. Up to
WAITING connections may wait for admission at once, and up to WAITING_HERE of one address. If more wait, the oldest one
is dropped of the address or network that has the most. So slow clients, however many, do not block others.
"""

import asyncio
import errno
import socket
from contextlib import suppress

from fleet.node.base.clock import Clock
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any
from fleet.node.base.wire import grouped
from fleet.node.container.channel import Channel, Mismatch, numeric
from fleet.node.ports.listeners import BACKLOG, listen_everywhere

ADMISSION_SECONDS = 5.0
LINGER_SECONDS = 2.0  # so long a closed connection may take to receive queued data
WAITING, WAITING_HERE = 64, 8
QUEUE_BYTES = 1 << 20  # a connection with more unsent data is dropped
MESSAGES = 16  # messages that a connection may have read in one turn
REPORT_SECONDS = 10.0  # between two events of the same mismatch


class Connection(asyncio.Protocol):
    """Handles one connection. address: the address of the other end; own: that of this end. admitted: set by the
    caller. received_at: the monotonic time of its last message. deadline: when the connection is dropped if it is not
    admitted yet, or is closing. known: the caller has had an event of it. waits: the buffer has whole lines for the
    next turn. closing: this end has closed it. gone: it has ended."""

    def __init__(self, server: "Server") -> None:
        self._server, self.channel = server, Channel(server.secret, True)
        self.admitted = self.known = self.waits = self.closing = self.gone = False

    def connection_made(self, transport: Any) -> None:
        self.transport, self.received_at = transport, self._server.clock.monotonic()
        self.deadline = self.received_at + ADMISSION_SECONDS
        self.address, self.own = (numeric(transport.get_extra_info(end)[0]) for end in ("peername", "sockname"))
        self._server.connections.append(self)
        self._server.make_room(WAITING, WAITING_HERE)

    @property
    def network(self) -> bytes:
        """Returns an IPv4 address, or the first 64 bits of an IPv6 address, which all addresses of one owner share."""
        if ":" in self.address:
            return socket.inet_pton(socket.AF_INET6, self.address)[:8]
        return self.address.encode()

    def data_received(self, data: bytes) -> None:
        """Handles up to MESSAGES messages. Pauses reading while further messages wait for the next turn."""
        if self.closing or self.gone:
            return
        try:
            messages = self.channel.feed(data, MESSAGES if self.admitted else 1)
        except Mismatch as error:
            self._server.mismatch(self, error)
            self.write(self.channel.take_outgoing())
            self.close()
            return
        except ValueError as error:
            self.drop(str(error))
            return
        self.write(self.channel.take_outgoing())
        for message in messages:
            self.known, self.received_at = True, self._server.clock.monotonic()
            self._server.happened("message", self, message)
        if self.waits != self.channel.waiting and not self.gone:
            self.waits = not self.waits
            (self.transport.pause_reading if self.waits else self.transport.resume_reading)()

    def eof_received(self) -> None:
        self.connection_lost(None)

    def connection_lost(self, error: "Exception | None") -> None:
        self.drop(getattr(error, "strerror", None) or "its connection ended")

    def send(self, message: "dict[str, Any]") -> None:
        """Queues a message, unless the connection is gone or closed. Raises ValueError if the message is too long."""
        if not self.closing and not self.gone:
            self.write(self.channel.pack(message))

    def write(self, data: bytes) -> None:
        self.transport.write(data)
        if self.transport.get_write_buffer_size() > QUEUE_BYTES:
            self.drop("it does not read what is sent to it")

    def refuse(self, reason: str, hint: "str | None" = None) -> None:
        """Sends why the container may not take part, then closes the connection."""
        self.send({"refused": reason, "hint": hint})
        self.close()

    def close(self) -> None:
        """Ends the connection once queued data is sent, or after LINGER_SECONDS. No event follows. Reading goes on
        until the other end closes, because unread input would reset the connection, and queued data would be lost."""
        if not self.closing and not self.gone:
            self.closing, self.deadline = True, self._server.clock.monotonic() + LINGER_SECONDS
            if self.waits:
                self.waits = False
                self.transport.resume_reading()
            with suppress(OSError):
                self.transport.write_eof()

    def drop(self, reason: "str | None") -> None:
        """Ends the connection at once. The event "gone" follows if turn() promises it."""
        if not self.gone:
            self.gone = True
            self.transport.abort()
            self._server.connections.remove(self)
            if self.known and not self.closing:
                self._server.happened("gone", self, reason)


class Server:
    """Listens on a port, and has the loop over its connections. port: the argument 0 means any free port; the attribute
    is the real port. secret: that of the run, or None. Raises Refused if the port is not available."""

    def __init__(self, port: int, secret: "bytes | None", clock: Clock) -> None:
        self.secret, self.clock = secret, clock
        self.connections: list[Connection] = []
        self._events: list[tuple[str, Connection, Any]] = []
        self._reported: dict[str, float] = {}
        try:
            listener = listen_everywhere(port)
        except OSError as error:
            hint = "another process of this container has it: give MASTER_PORT another value in all containers"
            if error.errno == errno.EACCES:
                hint = "ports below 1024 are root's: give MASTER_PORT another value in all containers"
            raise Refused("port %d cannot be listened at here: %s" % (port, error.strerror), hint) from None
        self.port = listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._fault: Exception | None = None
        self._loop.set_exception_handler(self._failed)
        made = self._loop.create_server(lambda: Connection(self), sock=listener)
        self._listening = self._loop.run_until_complete(made)
        listener.listen(BACKLOG)  # asyncio's own backlog is smaller, as it accepts so many connections in a turn

    def _failed(self, loop: Any, context: "dict[str, Any]") -> None:
        """Drops a waiting connection if there are too many open files. Keeps any other error, which is a fault of
        fleet, for turn() to raise."""
        error = context.get("exception")
        if isinstance(error, OSError):
            if error.errno in (errno.EMFILE, errno.ENFILE):
                self.make_room(0, 0)
        elif error is not None:
            self._fault = error
            loop.stop()

    def turn(self, seconds: float) -> "list[tuple[str, Connection, Any]]":
        """Accepts, reads and writes. Waits up to `seconds` for events, and returns them. ("message", connection,
        message). ("gone", connection, reason): the connection ended; only if the caller has had a message of it and has
        not closed it. ("refused", connection, reason): the other end has another secret or version."""
        now, timed = self.clock.monotonic(), [it for it in self.connections if it.closing or not it.admitted]
        for connection in timed:
            if now >= connection.deadline:
                connection.drop("it was not admitted in time")
        for connection in [it for it in self.connections if it.waits]:
            connection.data_received(b"")
        if self._events or any(it.waits for it in self.connections):
            seconds = 0.0
        stop = self._loop.call_later(min([seconds] + [it.deadline - now for it in timed]), self._loop.stop)
        self._loop.run_forever()
        stop.cancel()
        if self._fault is not None:
            raise self._fault
        events, self._events = self._events, []
        return events

    def happened(self, kind: str, connection: Connection, what: Any) -> None:
        self._events.append((kind, connection, what))
        self._loop.stop()

    def mismatch(self, connection: Connection, error: Mismatch) -> None:
        now = self.clock.monotonic()
        if now >= self._reported.get(error.code, now):
            self._reported[error.code] = now + REPORT_SECONDS
            self.happened("refused", connection, str(error))

    def close(self, seconds: float = LINGER_SECONDS) -> None:
        """Stops listening. Sends queued data for up to `seconds`, then drops the connections that are still open."""
        self._listening.close()
        for connection in list(self.connections):
            connection.close()
        until = self.clock.monotonic() + seconds
        while self.connections and self.clock.monotonic() < until:
            self.turn(until - self.clock.monotonic())
        for connection in list(self.connections):
            connection.drop(None)
        self.turn(0.0)
        self._loop.close()

    def make_room(self, most: int, here: int) -> None:
        """Drops a connection if too many wait for admission. If more than `here` wait from one address, drops the
        oldest one of the address with the most. If more than `most` wait altogether, drops the oldest one of the
        network with the most."""
        waiting = [it for it in self.connections if not it.admitted]
        for limit, shared in ((here, "address"), (most, "network")):
            fullest = max(grouped((getattr(it, shared), it) for it in waiting).values(), key=len, default=[])
            if len(fullest if shared == "address" else waiting) > limit:
                fullest[0].drop("others took its place")
                return
