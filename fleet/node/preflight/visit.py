"""Visits a port of another node: connects, sends data, and verifies who answers. The socket does not block."""

import errno
import fcntl
import hmac
import os
import socket
import struct
import termios

from fleet.node.base.types import Any

PACKET_BYTES = 64 * 1024
NONCE_BYTES = PROOF_BYTES = 32
CONNECT_SECONDS = 1.3  # per try: the kernel sends a lost SYN again after 1 s
ACK_SECONDS = 2.5  # per try, until all that was sent is acknowledged
ZEROS = b"\0" * 256 * 1024
SLOW_START = 0.4  # share of the sending time that is not measured
REFUSED = {errno.ECONNREFUSED: "refused", errno.EHOSTUNREACH: "unreachable", errno.ENETUNREACH: "unreachable"}
OPEN, SILENT, STALLED, OTHER, UNKNOWN = "open", "silent", "stalled", "other", "unknown"


def proof(token: str, nonce: bytes) -> bytes:
    return hmac.new(token.encode(), nonce, "sha256").digest()


class Visit:
    """Visits one port.

    seconds: how long it sends. how: the outcome (OPEN, SILENT, ...), None while it is under way. link: measurements if
    the outcome is OPEN: bytes that arrived in `seconds`, mtu (bytes), again (retransmitted segments), rtt (s)."""

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
            # a numeric address: resolving a name would block all other visits
            found = socket.getaddrinfo(self.address, self.port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
            family, _, _, _, at = found[0]
            self.sock = socket.socket(family, socket.SOCK_STREAM)  # a kernel may have no IPv6
            self.sock.setblocking(False)
            if self.seconds:  # data that is still queued at the end would delay the next visit
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            code = self.sock.connect_ex(at)
        except OSError as error:
            code = error.errno or errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            self.how = REFUSED.get(code, "unreachable")

    def turn(self, now: float) -> None:
        """Connects, sends and receives as far as that is possible without waiting."""
        assert self.sock
        if not self.connected:
            code = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self.how = REFUSED.get(code, SILENT)
                return
            self.connected, self.began = True, now
        try:
            if self.wants(now):  # one piece per turn: other visits go on, too
                more = ZEROS if self.seconds else ZEROS[: PACKET_BYTES - self.sent]
                self.sent += self.sock.send(self.nonce[self.sent :] or more)
        except BlockingIOError:
            pass
        except OSError:
            self.how = OTHER  # another program listens there: it closed before all was sent
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
        """Sets the outcome once the proof is here, all is sent, and the peer has acknowledged PACKET_BYTES."""
        if self.how is None and len(self.answer) >= PROOF_BYTES and not self.wants(now):
            if not hmac.compare_digest(self.answer, proof(self.token, self.nonce)):
                self.how = OTHER
            elif self.arrived() >= PACKET_BYTES and len(self.samples) > 1:
                self.how = OPEN
                self.measure(now)

    def measure(self, now: float) -> None:
        """Fills `link` with the kernel's data about the connection."""
        pmtu, rtt, again, least = (struct.unpack_from("I", self.info(), at)[0] for at in (60, 68, 100, 148))
        began, before = self.samples[0]
        until, after = self.samples[-1]
        # not below 0: the segment size may have shrunk between the samples
        self.link = {"bytes": max(0, after - before), "seconds": max(until - began, 1e-6), "mtu": pmtu, "again": again}
        self.link["rtt"] = (least or rtt) / 1e6

    def sample(self, now: float) -> None:
        """Records how many bytes have arrived: once after the slow start, once after the sending time."""
        due = self.began + self.seconds * (1.0 if self.samples else SLOW_START)
        if self.connected and len(self.samples) < 2 and now >= due:
            mss, delivered = (struct.unpack_from("I", self.info(), at)[0] for at in (16, 192))
            # `delivered` counts segments in any order; a kernel before 4.19 lacks it: then acknowledged bytes count
            self.samples.append((now, mss * delivered or self.arrived()))

    def info(self) -> bytes:
        """Returns the kernel's struct tcp_info, with zeros for what it lacks."""
        assert self.sock
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 196).ljust(196, b"\0")

    def arrived(self) -> int:
        """Returns how many bytes the peer has acknowledged."""
        assert self.sock
        return self.sent - int(struct.unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, b"\0" * 4))[0])

    def is_late(self, now: float) -> "str | None":
        """Returns the outcome of a try that is late, or None if it is not."""
        if not self.connected:
            return SILENT if now - self.began > CONNECT_SECONDS else None
        if self.arrived() < PACKET_BYTES:
            return STALLED if now - self.began > self.seconds + ACK_SECONDS else None
        return None
