"""Tries which other nodes this one reaches at the addresses that their ranks will have, with large packets.

spec: {"listen": [addresses of this node], "token": this node's, hex, "seconds": at most}; without addresses there is a
"way", see facts/way.py. The first message is {"addresses", "ports": [of each address, null where it cannot be listened
at], "error": why not, or null}. The control line
{"op": "dial", "seconds", "visits": [{"id": text, "address", "port", "token": that node's}]} begins visits. When they
are over, {"reached": {id: how}, "links": {id: what was measured}} is sent; other visits may follow. seconds: to send
for, as fast as it goes; 0: PACKET_BYTES. For the words see fleet/protocol/messages/facts.py. The program listens until
its stdin ends, or {"op": "done"} comes, or the time is over.

A visit connects, sends PACKET_BYTES, and is over when the other kernel has them all and the other program has proved by
an HMAC that it has the token: an address that leads back here is nobody else's. A node that is busy is slow to prove
it, and loses no packet; so what does not arrive is the network's doing. Each of two nodes sends to the other one.
"""

import errno
import fcntl
import hmac
import os
import selectors
import socket
import struct
import termios
import time
from contextlib import suppress

from fleet.node.base.gather import begin, finish
from fleet.node.base.types import Any
from fleet.node.base.wire import send_json
from fleet.node.facts.way import network

PACKET_BYTES = 64 * 1024
NONCE_BYTES = PROOF_BYTES = 32
TRIES = 2
CONNECT_SECONDS = 1.3  # of a try: a lost SYN is sent again after 1 s
ACK_SECONDS = 2.5  # of a try, for what was sent
PROOF_SECONDS = 12.0  # for all proofs, of nodes that are busy: less than the head waits for what came of the visits
MOST_CALLERS = 1024
ZEROS = b"\0" * 256 * 1024
SLOW_START = 0.4  # of the time in which it sends
BUSY = 0.8  # of the time of a processor, used or lacking: it is no more the network that is measured
REFUSED = {errno.ECONNREFUSED: "refused", errno.EHOSTUNREACH: "unreachable", errno.ENETUNREACH: "unreachable"}
OPEN, SILENT, STALLED, OTHER, UNKNOWN = "open", "silent", "stalled", "other", "unknown"


def proof(token: str, nonce: bytes) -> bytes:
    return hmac.new(token.encode(), nonce, "sha256").digest()


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
            words = file.readline().split()
        return sum(map(int, words[4:6])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return 0.0


class Caller:
    """A connection that somebody made: what it sends is dropped but for the nonce, which is answered with a proof."""

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


class Visit:
    """One to another node. seconds: in which it sends. how: what came of it, None while it is under way. link: what was
    measured of one that is open."""

    def __init__(self, order: "dict[str, Any]", seconds: float) -> None:
        self.id, self.address, self.port, self.token = order["id"], order["address"], order["port"], order["token"]
        self.seconds, self.tries = seconds, 0
        self.how: str | None = None
        self.link: dict[str, Any] = {}
        self.sock: socket.socket | None = None

    def begin(self, now: float) -> None:
        self.tries += 1
        self.began, self.connected, self.sent, self.answer, self.how = now, False, 0, b"", None
        self.samples: list[tuple[float, int]] = []
        self.nonce = os.urandom(NONCE_BYTES)
        try:
            family, _, _, _, at = socket.getaddrinfo(self.address, self.port, 0, socket.SOCK_STREAM)[0]
            self.sock = socket.socket(family, socket.SOCK_STREAM)  # a kernel may have no IPv6
            self.sock.setblocking(False)
            code = self.sock.connect_ex(at)
        except OSError as error:
            code = error.errno or errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            self.how = REFUSED.get(code, "unreachable")

    def turn(self, now: float) -> None:
        """Connects, sends, and takes the answer, as far as that goes without waiting."""
        assert self.sock
        if not self.connected:
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.how = REFUSED.get(code, SILENT)
                return
            self.connected, self.began = True, now
        try:
            if self.wants(now):  # one piece: others have their turn
                more = ZEROS if self.seconds else ZEROS[: PACKET_BYTES - self.sent]
                self.sent += self.sock.send(self.nonce[self.sent :] or more)
        except BlockingIOError:
            pass
        except OSError:
            self.how = OTHER  # who answers there does not wait for what it is sent
            return
        try:
            data = self.sock.recv(PROOF_BYTES)
            self.answer += data
            if not data and len(self.answer) < PROOF_BYTES:
                self.how = OTHER
        except BlockingIOError:
            pass
        except OSError:
            self.how = OTHER
        self.settle(now)

    def wants(self, now: float) -> bool:
        """Returns whether there is more to send."""
        return self.sent < PACKET_BYTES or now < self.began + self.seconds

    def settle(self, now: float) -> None:
        """It is over once the proof is here and nothing of what was sent is on its way any more."""
        if self.how is None and len(self.answer) >= PROOF_BYTES and not self.wants(now):
            if not hmac.compare_digest(self.answer, proof(self.token, self.nonce)):
                self.how = OTHER
            elif not self.unacknowledged() and len(self.samples) > 1:
                self.how = OPEN
                self.measure(now)

    def measure(self, now: float) -> None:
        """Notes what the kernel knows of the connection."""
        pmtu, rtt, again, least = (struct.unpack_from("I", self.info(), at)[0] for at in (60, 68, 100, 148))
        began, before = self.samples[0]
        until, after = self.samples[-1]
        # segments may be smaller by now
        self.link = {"bytes": max(0, after - before), "seconds": max(until - began, 1e-6), "mtu": pmtu, "again": again}
        self.link["rtt"] = (least or rtt) / 1e6

    def sample(self, now: float) -> None:
        """Notes what has arrived when the slow start is over, and when it sends no more."""
        due = self.began + self.seconds * (1.0 if self.samples else SLOW_START)
        if self.connected and len(self.samples) < 2 and now >= due:
            mss, delivered = (struct.unpack_from("I", self.info(), at)[0] for at in (16, 192))
            # also what came in another order; a kernel before 4.19 knows what came in order alone
            self.samples.append((now, mss * delivered or self.sent - self.unacknowledged()))

    def info(self) -> bytes:
        """Returns the kernel's struct tcp_info, with zeros for what it lacks."""
        assert self.sock
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 196).ljust(196, b"\0")

    def unacknowledged(self) -> int:
        """Returns how many bytes the other kernel does not have."""
        assert self.sock
        on_its_way = struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, b"\0" * 4))[0]
        return int(on_its_way) + max(0, PACKET_BYTES - self.sent)

    def is_late(self, now: float) -> "str | None":
        """Returns what a try has come to whose time is over."""
        if not self.connected:
            return SILENT if now - self.began > CONNECT_SECONDS else None
        if self.unacknowledged():
            return STALLED if now - self.began > self.seconds + ACK_SECONDS else None
        return None


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
