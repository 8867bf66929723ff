"""Checks which other nodes this one reaches, with large packets, at the addresses that their ranks will have.

spec: {"listen": [addresses of this node], "token": this node's token, hex, "seconds": how long the program runs at
most}. The first message is {"addresses", "ports": [the port at each address, null if listening there fails], "error":
the reason of a failure, or null}. The control line {"op": "dial", "seconds", "visits": [[numeric address, port, token
of that node]]} begins visits. When all of them have ended, the program sends {"reached": [how], "links": [measurements
or null]}, both in the order of the visits. Then the head may begin other visits. "seconds" of "dial" is how long each
visit sends, as fast as possible. With 0, a visit sends PACKET_BYTES, and is not measured. For the values see
fleet/protocol/messages/facts.py. The program listens until stdin ends, {"op": "done"} comes, or the time is over.

A visit connects, and sends PACKET_BYTES that begin with a nonce. It succeeds when the other program has received these
bytes, and has sent a proof: a digest of the nonce and of the other node's token. So an address that leads back to this
node does not count. A busy node sends its proof late, but its kernel acknowledges data at once: if data is not
acknowledged, the network is at fault. Each node of a pair visits the other.
"""

import errno
import os
import time
from _socket import socket
from select import EPOLLIN, EPOLLOUT, epoll

from fleet.node.base.gather import begin, finish
from fleet.node.base.types import Any, Callable
from fleet.node.base.wire import send_json
from fleet.node.preflight.visit import OPEN, PACKET_BYTES, PROOF_BYTES, UNKNOWN, Visit, open_socket, proof

TRIES = 2
ANSWER_SECONDS = 12.0  # how long visits wait for busy nodes: less than the head waits for the result of the visits
WATCH_SECONDS = 0.05
MOST_CALLERS = min(512, os.sysconf("SC_OPEN_MAX") // 2)  # half of the descriptors; the other half is for visits
BACKLOG = 1024
BUSY = 0.8  # share of a processor: if this process uses more, or less is idle, the processor limits the measurement
BUFFER = memoryview(bytearray(256 * 1024))  # receives the data of all callers


def listen_at(address: str) -> socket:
    """Returns a socket that listens at a port which the kernel chooses. If no interface has the address, the socket
    listens on all interfaces: address translation may lead here. Raises OSError if listening fails."""
    listener, at = open_socket(address)
    try:
        listener.bind(at)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        listener.bind(("", 0))
    listener.listen(BACKLOG)
    return listener


def idle_seconds() -> float:
    """Returns the idle seconds of all processors of this machine together since its boot, or 0 if unknown."""
    try:
        with open("/proc/stat") as file:
            fields = file.readline().split()
        return sum(map(int, fields[4:6])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


class Caller:
    """Handles a connection that a peer made. Sends a proof for the nonce once PACKET_BYTES have come, which begin with
    the nonce. Drops all other data. left: how many of these bytes are still to come."""

    def __init__(self, fd: int, token: str) -> None:
        self.fd, self.token, self.nonce, self.left = fd, token, b"", PACKET_BYTES

    def turn(self) -> bool:
        """Receives data, and sends the proof when it is due. Returns False if the connection has ended."""
        try:
            count = os.readv(self.fd, [BUFFER])
            if self.left > 0:
                self.nonce += bytes(BUFFER[: min(count, PROOF_BYTES - len(self.nonce))])
                self.left -= count
                if self.left <= 0:
                    os.write(self.fd, proof(self.token, self.nonce))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return count > 0


class Pairs:
    """Handles this node's side of all its pairs: visits other nodes, and serves their visits. open: descriptor -> visit
    that is under way. callers: descriptor -> connection from another node. dials: visits have begun, and their result
    is not sent yet. orders: control lines that are not carried out yet. bell, ring: ends of a pipe that wakes
    serve()."""

    def __init__(self) -> None:
        self.token, self.epoll = "", epoll()
        self.listeners: dict[int, socket] = {}
        self.callers: dict[int, Caller] = {}
        self.open: dict[int, Visit] = {}
        self.visits: list[Visit] = []
        self.dials = self.done = False
        self.orders: list[dict[str, Any]] = []
        self.bell, self.ring = os.pipe()
        self.epoll.register(self.bell, EPOLLIN)

    def queue_order(self, message: "dict[str, Any]") -> None:
        """Queues a control line for serve(). Another thread calls it."""
        self.orders.append(message)
        os.write(self.ring, b"\0")

    def listen(self, addresses: "list[str]") -> None:
        ports: list[int | None] = []
        why = None
        for address in addresses:
            try:
                listener = listen_at(address)
                self.epoll.register(listener, EPOLLIN)
                self.listeners[listener.fileno()] = listener
                ports.append(listener.getsockname()[1])
            except OSError as error:
                why = "%s: %s" % (address, error.strerror or error)
                ports.append(None)
        send_json({"addresses": addresses, "ports": ports, "error": why})

    def serve(self, until: float) -> None:
        due = 0.0
        while not self.done and time.monotonic() < until:
            for fd, events in self.epoll.poll(WATCH_SECONDS if self.dials else 1.0):
                if fd in self.open:
                    self.open[fd].turn(time.monotonic())
                    self.follow(fd, time.monotonic(), events)
                elif fd in self.callers:
                    if not self.callers[fd].turn():
                        self.drop(fd)
                elif fd in self.listeners:
                    self.accept(self.listeners[fd])
                elif fd == self.bell:
                    self.carry_out_orders()
            now = time.monotonic()
            if self.dials and now >= due:
                due = now + WATCH_SECONDS
                self.watch(now, min(until - 0.5, self.over))
            if self.dials and not self.open:
                self.report(now)

    def carry_out_orders(self) -> None:
        os.read(self.bell, 64)
        while self.orders:
            order = self.orders.pop(0)
            if order.get("op") == "done":
                self.done = True
            elif order.get("op") == "dial" and not self.dials:
                self.visits, self.dials = [Visit(each, order["seconds"]) for each in order["visits"]], True
                self.dialled, self.cpu, self.idle = time.monotonic(), time.process_time(), idle_seconds()
                self.over = self.dialled + order["seconds"] + ANSWER_SECONDS
                for visit in self.visits:
                    self.begin(visit)

    def accept(self, listener: socket) -> None:
        """Takes a connection. If there are too many, ends the oldest: strangers may keep connections open."""
        try:
            fd: int = listener._accept()[0]  # type: ignore[attr-defined]
            os.set_blocking(fd, False)
            self.callers[fd] = Caller(fd, self.token)
            self.epoll.register(fd, EPOLLIN)
        except OSError:
            return
        if len(self.callers) > MOST_CALLERS:
            self.drop(next(iter(self.callers)))

    def drop(self, fd: int) -> None:
        del self.callers[fd]
        os.close(fd)

    def begin(self, visit: Visit) -> None:
        """Begins the next try of a visit, if its last try failed and tries are left."""
        while visit.how not in (OPEN, UNKNOWN) and visit.tries < TRIES:
            visit.begin(time.monotonic())
            if visit.how is None and visit.sock:
                self.open[visit.sock.fileno()] = visit
                self.epoll.register(visit.sock, EPOLLOUT)
                return

    def follow(self, fd: int, now: float, events: int) -> None:
        """Ends a try that has an outcome. If a try has sent all its data, makes epoll wait for the response only. now:
        monotonic time. events: those of epoll for the descriptor `fd`."""
        visit = self.open[fd]
        if visit.how is not None:
            del self.open[fd]
            visit.close()
            self.begin(visit)
        elif events & EPOLLOUT and not visit.wants(now):
            self.epoll.modify(fd, EPOLLIN)

    def watch(self, now: float, until: float) -> None:
        """Ends the tries that are late; after `until`, ends all tries. Both times are monotonic."""
        for fd, visit in list(self.open.items()):
            visit.settle(now)
            visit.how = visit.how or visit.is_late(now) or (UNKNOWN if now > until else None)
            self.follow(fd, now, EPOLLOUT)

    def report(self, now: float) -> None:
        """Sends the result of all visits."""
        self.dials = False
        took = now - self.dialled
        busy = time.process_time() - self.cpu > BUSY * took or idle_seconds() - self.idle < (1 - BUSY) * took
        links = [visit.link and dict(visit.link, busy=busy) for visit in self.visits]
        send_json({"reached": [visit.how for visit in self.visits], "links": links})


def main(listen: "Callable[[dict[str, Any]], list[str]]" = lambda spec: spec["listen"]) -> None:
    """Runs the program. listen: returns the addresses to listen at, from the spec."""
    pairs = Pairs()
    spec = begin(pairs.queue_order)
    pairs.token = spec["token"]
    pairs.listen(listen(spec))
    pairs.serve(time.monotonic() + spec["seconds"])
    finish({})
