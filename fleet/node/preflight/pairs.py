"""Checks which other nodes this one reaches, with large packets, at the addresses that their ranks will have.

spec: {"listen": [addresses of this node], "token": this node's, hex, "seconds": how long the program runs at most};
without addresses there is a "way", see facts/way.py. The first message is {"addresses", "ports": [of each address, null
if listening there fails], "error": the reason, or null}. The control line {"op": "dial", "seconds", "visits": [{"id":
text, "address": numeric, "port", "token": of that node}]} begins visits. When all are over, {"reached": {id: how},
"links": {id: measurements}} is sent; other visits may follow. "seconds" of "dial": how long each visit sends, as fast
as possible; 0: it sends PACKET_BYTES. For the values see fleet/protocol/messages/facts.py. The program listens until
its stdin ends, or {"op": "done"} comes, or the time is over.

A visit connects and sends at least PACKET_BYTES. It succeeds when the other kernel has acknowledged them, and the other
program has proved by an HMAC that it has its node's token; so an address that leads back here does not count. A busy
node sends its proof late, but its kernel acknowledges data. So the network is at fault if data is not acknowledged.
Both nodes of a pair send.
"""

import errno
import os
import selectors
import socket
import time
from contextlib import suppress

from fleet.node.base.gather import begin, finish
from fleet.node.base.types import Any
from fleet.node.base.wire import send_json
from fleet.node.facts.way import network
from fleet.node.preflight.visit import NONCE_BYTES, OPEN, PACKET_BYTES, UNKNOWN, Visit, proof

TRIES = 2
PROOF_SECONDS = 12.0  # for the proofs of busy nodes: less than the head waits for the result of the visits
MOST_CALLERS = 1024
BUSY = 0.8  # share of a processor: if this process uses more, or less is idle, the processor limits the measurement


def listen_at(address: str) -> socket.socket:
    """Returns a listener at a port that the kernel chooses. If no interface has the address, as with address
    translation, it listens on all interfaces. Raises OSError."""
    family, _, _, _, at = socket.getaddrinfo(address, 0, 0, socket.SOCK_STREAM)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.bind(at)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        listener.bind(("", 0))
    listener.listen(MOST_CALLERS)
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
    """Handles a connection that a peer made. Sends a proof in response to the peer's nonce, and drops all other
    data."""

    def __init__(self, sock: socket.socket, token: str) -> None:
        self.sock, self.token, self.nonce = sock, token, b""

    def turn(self) -> bool:
        """Handles received data. Returns False if the connection is over."""
        try:
            data = self.sock.recv(PACKET_BYTES)
            if len(self.nonce) < NONCE_BYTES:
                self.nonce = (self.nonce + data)[:NONCE_BYTES]
                if len(self.nonce) == NONCE_BYTES:
                    self.sock.send(proof(self.token, self.nonce))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return bool(data)


class Pairs:
    """Handles this node's side of all its pairs: visits others, and serves their visits. callers: the number of
    connections from others. dials: visits are under way."""

    def __init__(self) -> None:
        self.token, self.selector = "", selectors.DefaultSelector()
        self.visits: list[Visit] = []
        self.callers = 0
        self.dials = False
        self.done = False
        self.orders: list[dict[str, Any]] = []
        self.bell, self.ring = socket.socketpair()
        self.bell.setblocking(False)
        self.selector.register(self.bell, selectors.EVENT_READ, None)

    def heed(self, message: "dict[str, Any]") -> None:
        """Queues a control line for serve(). Another thread calls it."""
        self.orders.append(message)
        self.ring.send(b"\0")

    def listen(self, addresses: "list[str]") -> None:
        ports: list[int | None] = []
        why = None
        for address in addresses:
            try:
                listener = listen_at(address)
                listener.setblocking(False)
                self.selector.register(listener, selectors.EVENT_READ, listener)
                ports.append(listener.getsockname()[1])
            except OSError as error:
                why = "%s: %s" % (address, error.strerror or error)
                ports.append(None)
        send_json({"addresses": addresses, "ports": ports, "error": why})

    def serve(self, until: float) -> None:
        while not self.done and time.monotonic() < until:
            for key, _ in self.selector.select(0.05 if self.dials else 1.0):
                if key.data is None:
                    self.obey()
                elif isinstance(key.data, Visit):
                    key.data.turn(time.monotonic())
                elif isinstance(key.data, Caller):
                    if not key.data.turn():
                        self.close(key.data.sock)
                        self.callers -= 1
                else:
                    self.accept(key.data)
            if self.dials:
                self.watch(time.monotonic(), min(until - 0.5, self.over))

    def obey(self) -> None:
        with suppress(BlockingIOError):
            self.bell.recv(64)
        while self.orders:
            order = self.orders.pop(0)
            if order.get("op") == "done":
                self.done = True
            elif order.get("op") == "dial" and not self.dials:
                self.visits, self.dials = [Visit(each, order["seconds"]) for each in order["visits"]], True
                self.dialled, self.cpu, self.idle = time.monotonic(), time.process_time(), idle_seconds()
                self.over = self.dialled + order["seconds"] + PROOF_SECONDS
                for visit in self.visits:
                    self.begin(visit)

    def accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            sock = listener.accept()[0]
            if self.callers >= MOST_CALLERS:
                return sock.close()
            sock.setblocking(False)
            self.callers += 1
            self.selector.register(sock, selectors.EVENT_READ, Caller(sock, self.token))
        return None

    def begin(self, visit: Visit) -> None:
        visit.begin(time.monotonic())
        if visit.how is None and visit.sock:
            self.selector.register(visit.sock, selectors.EVENT_WRITE | selectors.EVENT_READ, visit)

    def watch(self, now: float, until: float) -> None:
        """Ends tries that are late, begins second tries, and sends the result when all visits are over."""
        for visit in self.visits:
            if visit.sock is None:
                continue
            if visit.how is None:
                visit.sample(now)
                visit.settle(now)
                visit.how = visit.how or visit.is_late(now) or (UNKNOWN if now > until else None)
            if visit.how is None:
                if not visit.wants(now):
                    self.selector.modify(visit.sock, selectors.EVENT_READ, visit)
                continue
            self.close(visit.sock)
            visit.sock = None
            if visit.how not in (OPEN, UNKNOWN) and visit.tries < TRIES:
                self.begin(visit)
        if all(visit.sock is None for visit in self.visits):
            self.dials = False
            reached = {visit.id: visit.how for visit in self.visits}
            took = now - self.dialled
            busy = time.process_time() - self.cpu > BUSY * took or idle_seconds() - self.idle < (1 - BUSY) * took
            links = {visit.id: dict(visit.link, busy=busy) for visit in self.visits if visit.link}
            send_json({"reached": reached, "links": links})

    def close(self, sock: socket.socket) -> None:
        with suppress(KeyError, ValueError):
            self.selector.unregister(sock)
        sock.close()


def main() -> None:
    pairs = Pairs()
    spec = begin(pairs.heed)
    pairs.token = spec["token"]
    own = [] if spec["listen"] else [network(spec, os.environ)["network"]["advertised"]]
    pairs.listen(spec["listen"] or [address for address in own if address])
    pairs.serve(time.monotonic() + spec["seconds"])
    finish({})
