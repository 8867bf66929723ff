"""The port where containers meet: one loop over all connections, whose memory, places and time have bounds.

Anybody may dial it. A connection has ADMISSION_SECONDS from its first byte to the caller's leave to stay (`admitted`),
however it dribbles. Of those that have no leave yet there are up to WAITING at once, and WAITING_HERE of one address;
over that the oldest one of the fullest network gives way: who is slow, and many, keeps nobody out.
"""

import errno
import selectors
import socket

from fleet.node.base.clock import Clock
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any
from fleet.node.container.channel import Channel, Mismatch, numeric
from fleet.node.run.look.rendezvous import listen_everywhere

ADMISSION_SECONDS = 5.0
LINGER_SECONDS = 2.0  # in which a closed connection may still take what was sent
WAITING, WAITING_HERE = 64, 8
QUEUE_BYTES = 1 << 20
READ_BYTES, READ_FIRST = 1 << 16, 1 << 12  # at once, of a connection; of one that is not admitted
MESSAGES = 16  # of a connection in a turn
ACCEPTS = 16  # in a turn
PAUSE_SECONDS = 0.5  # of accepting, where there are too many open files
REPORT_SECONDS = 10.0  # between two events of the same mismatch


class Connection:
    """address: the other end's; own: this end's on it. admitted: set by the caller. heard: when its last message came,
    by the clock."""

    def __init__(self, server: "Server", sock: socket.socket, now: float) -> None:
        self._server, self.sock = server, sock
        self.address, self.own = numeric(sock.getpeername()[0]), numeric(sock.getsockname()[0])
        self.admitted, self.heard, self.deadline = False, now, now + ADMISSION_SECONDS
        self.channel, self.queue = Channel(server.secret, True), bytearray()
        self.known = False  # to the caller, by an event
        self.closing, self.gone = False, False

    @property
    def network(self) -> bytes:
        """Returns what one owner of many addresses has in common: 64 bits of IPv6."""
        if ":" in self.address:
            return socket.inet_pton(socket.AF_INET6, self.address)[:8]
        return self.address.encode()

    def send(self, message: "dict[str, Any]") -> None:
        """Queues a message; nothing where the connection is gone or closed. Raises ValueError where it is too long."""
        if not self.closing and not self.gone:
            self._server.queue(self, self.channel.pack(message))

    def refuse(self, reason: str, hint: "str | None" = None) -> None:
        """Sends why it may not take part, then closes."""
        self.send({"refused": reason, "hint": hint})
        self.close()

    def close(self) -> None:
        """Ends it once what is queued is sent, LINGER_SECONDS from now at the latest. No event follows."""
        self._server.let_go(self)


class Server:
    """port: 0 for any; what it is, then. secret: of this run, or None. Refused: the port cannot be had."""

    def __init__(self, port: int, secret: "bytes | None", clock: Clock) -> None:
        self.secret, self.clock = secret, clock
        try:
            self.listener = listen_everywhere(port)
        except OSError as error:
            hint = "another process of this container has it: give MASTER_PORT another value in all containers"
            if error.errno == errno.EACCES:
                hint = "ports below 1024 are root's: give MASTER_PORT another value in all containers"
            raise Refused("port %d cannot be listened at here: %s" % (port, error.strerror), hint) from None
        self.listener.setblocking(False)
        self.port = self.listener.getsockname()[1]
        self.connections: list[Connection] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(self.listener, selectors.EVENT_READ)
        self._paused: float | None = None  # until when nothing is accepted
        self._unread: set[Connection] = set()  # whole lines of which wait
        self._events: list[tuple[str, Connection, Any]] = []
        self._reported: dict[str, float] = {}

    def turn(self, seconds: float) -> "list[tuple[str, Connection, Any]]":
        """Accepts, reads and writes once, waiting for it up to so long; returns what happened, which may be nothing:
        ("message", connection, message), ("gone", connection, reason) of one that the caller knows by a message and
        has not closed, ("refused", connection, reason) of one with another secret or version."""
        self._expire()
        ready = {key.fileobj: mask for key, mask in self._selector.select(self._patience(seconds))}
        for connection in list(self.connections):
            mask = ready.get(connection.sock, 0)
            if mask & selectors.EVENT_WRITE and not connection.gone:
                self._write(connection)
            if (mask & selectors.EVENT_READ or connection in self._unread) and not connection.gone:
                self._read(connection)
        if self.listener in ready:
            self._accept()
        events, self._events = self._events, []
        return events

    def close(self, seconds: float = LINGER_SECONDS) -> None:
        """Nobody comes any more; connections may take what is queued for so long."""
        if self._paused is None:
            self._selector.unregister(self.listener)
        self._paused = float("inf")
        self.listener.close()
        for connection in list(self.connections):
            connection.close()
        until = self.clock.monotonic() + seconds
        while self.connections and self.clock.monotonic() < until:
            self.turn(until - self.clock.monotonic())
        for connection in list(self.connections):
            self._drop(connection, None)
        self._selector.close()

    # -- time and places ----------------------------------------------------------------------------------
    def _patience(self, seconds: float) -> float:
        if self._events or self._unread:
            return 0.0
        due = [it.deadline for it in self._timed()] + ([] if self._paused is None else [self._paused])
        return max(0.0, min([seconds] + [when - self.clock.monotonic() for when in due]))

    def _timed(self) -> "list[Connection]":
        return [it for it in self.connections if it.closing or not it.admitted]

    def _expire(self) -> None:
        now = self.clock.monotonic()
        for connection in self._timed():
            if now >= connection.deadline:
                self._drop(connection, "it was not admitted in time")
        if self._paused is not None and now >= self._paused:
            self._paused = None
            self._selector.register(self.listener, selectors.EVENT_READ)

    def _accept(self) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, _ = self.listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    self._make_room(0, 0)
                    self._paused = self.clock.monotonic() + PAUSE_SECONDS
                    self._selector.unregister(self.listener)
                    return
                continue  # it was gone again
            sock.setblocking(False)
            try:
                connection = Connection(self, sock, self.clock.monotonic())
            except OSError:
                sock.close()
                continue
            self.connections.append(connection)
            self._selector.register(sock, selectors.EVENT_READ, connection)
            self._make_room(WAITING, WAITING_HERE)

    def _make_room(self, most: int, here: int) -> None:
        """Drops the oldest connection of the fullest address or network that waits, where more wait than may."""
        waiting = [it for it in self.connections if not it.admitted]
        for limit, shared in ((here, "address"), (most, "network")):
            of: dict[Any, list[Connection]] = {}
            for it in waiting:
                of.setdefault(getattr(it, shared), []).append(it)
            fullest = max(of.values(), key=len, default=[])
            if len(fullest if shared == "address" else waiting) > limit:
                self._drop(fullest[0], "others took its place")
                return

    # -- bytes --------------------------------------------------------------------------------------------
    def _read(self, connection: Connection) -> None:
        data = b""
        if connection not in self._unread:
            try:
                data = connection.sock.recv(READ_BYTES if connection.admitted else READ_FIRST)
            except BlockingIOError:
                return
            except OSError as error:
                self._drop(connection, error.strerror or "its connection ended")
                return
            if not data:
                self._drop(connection, "its connection ended")
                return
        if connection.closing:
            return
        try:
            messages = connection.channel.feed(data, MESSAGES if connection.admitted else 1)
        except ValueError as error:
            self._misfit(connection, error)
            return
        self._answer(connection)
        (self._unread.add if connection.channel.waiting else self._unread.discard)(connection)
        for message in messages:
            connection.known, connection.heard = True, self.clock.monotonic()
            self._events.append(("message", connection, message))

    def _misfit(self, connection: Connection, error: ValueError) -> None:
        """The other end sent what ends the connection, after what is to be sent of it."""
        if not isinstance(error, Mismatch):
            self._drop(connection, str(error))
            return
        now = self.clock.monotonic()
        if now >= self._reported.get(error.code, now):
            self._reported[error.code] = now + REPORT_SECONDS
            self._events.append(("refused", connection, str(error)))
        self._answer(connection)
        self.let_go(connection)

    def _answer(self, connection: Connection) -> None:
        data = connection.channel.take_outgoing()
        if data:
            self.queue(connection, data)

    def queue(self, connection: Connection, data: bytes) -> None:
        if len(connection.queue) + len(data) > QUEUE_BYTES:
            self._drop(connection, "it does not read what is sent to it")
            return
        connection.queue += data
        self._selector.modify(connection.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)

    def _write(self, connection: Connection) -> None:
        try:
            del connection.queue[: connection.sock.send(connection.queue)]
        except BlockingIOError:
            return
        except OSError as error:
            self._drop(connection, error.strerror or "its connection ended")
            return
        if not connection.queue:
            self._selector.modify(connection.sock, selectors.EVENT_READ, connection)
            self._shut(connection)

    # -- ends ---------------------------------------------------------------------------------------------
    def let_go(self, connection: Connection) -> None:
        """See Connection.close()."""
        if not connection.closing and not connection.gone:
            connection.closing, connection.deadline = True, self.clock.monotonic() + LINGER_SECONDS
            self._unread.discard(connection)
            self._shut(connection)

    def _shut(self, connection: Connection) -> None:
        """Shuts the sending side of a closing connection. What was sent reaches the other end only if its input is read
        until it closes."""
        if connection.closing and not connection.queue:
            try:
                connection.sock.shutdown(socket.SHUT_WR)
            except OSError:
                self._drop(connection, None)

    def _drop(self, connection: Connection, reason: "str | None") -> None:
        self._selector.unregister(connection.sock)
        connection.sock.close()
        connection.gone = True
        self.connections.remove(connection)
        self._unread.discard(connection)
        if connection.known and not connection.closing:
            self._events.append(("gone", connection, reason))
