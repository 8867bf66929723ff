"""Tries which other nodes this one reaches at the addresses that their ranks will have, with large packets.

spec: {"listen": [addresses of this node], "token": this node's, hex, "seconds": at most}; without addresses there is a
"way", see facts/way.py. The first message is {"addresses", "ports": [of each address, null where it cannot be listened
at], "error": why not, or null}. The control line
{"op": "dial", "seconds", "visits": [{"id": text, "address": a number, "port", "token": that node's}]} begins visits.
When they are over, {"reached": {id: how}, "links": {id: what was measured}} is sent; other visits may follow. seconds:
to send for, as fast as it goes; 0: PACKET_BYTES. For the values see fleet/protocol/messages/facts.py. The program
listens until its stdin ends, or {"op": "done"} comes, or the time is over.

A visit connects and sends PACKET_BYTES. It is over when the other kernel has them all and the other program has proved
by an HMAC that it has the token: an address that leads back here is no other host's. A node that is busy is slow to
prove it, and loses no packet; so what does not arrive is the network's doing. Each of two nodes sends to the other one.
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
PROOF_SECONDS = 12.0  # for all proofs, of nodes that are busy: less than the head waits for what came of the visits
MOST_CALLERS = 1024
BUSY = 0.8  # of the time of a processor, used or lacking: it is no more the network that is measured


def listen_at(address: str) -> socket.socket:
    """Returns a listener at a port that the kernel chose: on all interfaces where none of them has the address, as one
    that is translated on the way. Raises OSError."""
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
    """Returns for how long the processors of this machine have had nothing to do, all together; 0 where unknown."""
    try:
        with open("/proc/stat") as file:
            fields = file.readline().split()
        return sum(map(int, fields[4:6])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


class Caller:
    """A connection that a peer made: what it sends is dropped but for the nonce, which is answered with a proof."""

    def __init__(self, sock: socket.socket, token: str) -> None:
        self.sock, self.token, self.nonce = sock, token, b""

    def turn(self) -> bool:
        """Takes what has come; returns whether the connection goes on."""
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
    """Both sides of all pairs that this node is one of. callers: connections that others have here. dials: visits are
    under way."""

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
        """Takes a control line, in a thread of its own."""
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
        """Ends tries whose time is over, begins others, and reports once all visits are over."""
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
