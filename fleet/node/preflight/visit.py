"""Visits a port of another node: connects, sends data, and verifies that the right program answers. No call blocks.

The modules socket and hashlib are not used: their imports take longer than all visits of a node."""

import _socket as socket
import errno
import fcntl
import os
import termios
from _struct import pack, unpack, unpack_from

from fleet.node.base.types import Any, Sequence

try:
    from _sha256 import sha256  # type: ignore[import-not-found]  # Python before 3.12
except ImportError:
    try:
        from _sha2 import sha256  # type: ignore[import-not-found]
    except ImportError:  # a distribution may leave out both modules, and use its OpenSSL instead
        from hashlib import sha256

PACKET_BYTES = 64 * 1024
PROOF_BYTES = 32  # size of a proof, and of a nonce
CONNECT_SECONDS = 1.3  # the longest time for a try to connect: the kernel sends a lost SYN again after 1 s
ACK_SECONDS = 2.5  # the longest time until the peer has acknowledged all that a try sent
ZEROS = memoryview(bytes(256 * 1024))
SLOW_START = 0.4  # share of the sending time, at its beginning, that is not measured: TCP is still slow then
OPEN, SILENT, STALLED, OTHER, UNKNOWN = "open", "silent", "stalled", "other", "unknown"
FAILED = {
    errno.ECONNREFUSED: "refused",
    errno.EHOSTUNREACH: "unreachable",
    errno.ENETUNREACH: "unreachable",
    errno.ECONNRESET: OTHER,  # a program accepted the connection, and closed it
    errno.EPIPE: OTHER,
    # errors that show limits of this node, and nothing about the network
    errno.EMFILE: UNKNOWN,
    errno.ENFILE: UNKNOWN,
    errno.ENOBUFS: UNKNOWN,
    errno.ENOMEM: UNKNOWN,
}


def proof(token: str, nonce: bytes) -> bytes:
    """Returns a digest that only a program with the token can send. Token and nonce have fixed lengths, so that a plain
    sha256 is as safe as an HMAC."""
    digest: bytes = sha256(token.encode() + nonce).digest()
    return digest


def open_socket(address: str, port: int = 0) -> "tuple[socket.socket, Any]":
    """Returns (a socket for a numeric address, the address as the socket's calls take it). Raises OSError for a name:
    looking a name up would block all other visits."""
    found = socket.getaddrinfo(address.encode(), port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)[0]
    # this also raises OSError for an IPv6 address, if the kernel has no IPv6
    return socket.socket(found[0], socket.SOCK_STREAM | socket.SOCK_NONBLOCK), found[4]


class Visit:
    """Visits one port. order: (address, port, token).

    seconds: how long the visit sends. tries: number of tries so far. how: the outcome of the last try (OPEN, SILENT,
    ...), None while the try is under way. link: measurements if the outcome is OPEN and `seconds` is not 0: "bytes"
    that arrived in "seconds", "mtu" of the path (bytes), "again" (number of retransmitted segments), "rtt" (s).
    samples: (monotonic time, bytes that had arrived by then)."""

    def __init__(self, order: "Sequence[Any]", seconds: float) -> None:
        self.address, self.port, self.token = order
        self.seconds, self.tries = seconds, 0
        self.how: str | None = None
        self.link: dict[str, Any] | None = None
        self.sock: socket.socket | None = None

    def begin(self, now: float) -> None:
        self.tries += 1
        self.began, self.connected, self.sent, self.answer, self.how = now, False, 0, b"", None
        self.samples: list[tuple[float, int]] = []
        self.nonce = os.urandom(PROOF_BYTES)
        try:
            self.sock, at = open_socket(self.address, self.port)
            if self.seconds:  # closing drops queued data, which would delay the next visit
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, pack("ii", 1, 0))
            code = self.sock.connect_ex(at)
        except OSError as error:
            code = error.errno or errno.EHOSTUNREACH
        if code not in (0, errno.EINPROGRESS):
            self.how = FAILED.get(code, "unreachable")
            self.close()

    def close(self) -> None:
        if self.sock:
            self.sock.close()

    def turn(self, now: float) -> None:
        """Sends and receives as far as that is possible without waiting."""
        assert self.sock
        try:
            if self.wants(now):  # one piece per turn, so that other visits also go on
                more = ZEROS if self.seconds else ZEROS[max(self.sent, PROOF_BYTES) : PACKET_BYTES]
                self.sent += self.sock.sendmsg([self.nonce[self.sent :], more])
                if not self.connected:
                    self.connected, self.began = True, now
            else:
                data = self.sock.recv(PROOF_BYTES)
                self.answer += data
                if not data and len(self.answer) < PROOF_BYTES:
                    self.how = OTHER
        except BlockingIOError:
            pass
        except OSError as error:
            # after connecting, an error shows another program, which closed before all was sent
            self.how = OTHER if self.connected else FAILED.get(error.errno or 0, SILENT)
        self.settle(now)

    def wants(self, now: float) -> bool:
        """Returns whether there is more to send."""
        return self.sent < PACKET_BYTES or now < self.began + self.seconds

    def settle(self, now: float) -> None:
        """Sets the outcome once all is sent and the proof has come. The proof shows that PACKET_BYTES have arrived."""
        self.sample(now)
        if self.how is None and len(self.answer) >= PROOF_BYTES and not self.wants(now):
            if self.answer != proof(self.token, self.nonce):
                self.how = OTHER
                return
            if len(self.samples) > 1:
                self.measure()
            if self.link or not self.seconds:
                self.how = OPEN

    def measure(self) -> None:
        """Sets `link` to the kernel's data about the connection."""
        pmtu, rtt, again, least = (unpack_from("I", self.info(), at)[0] for at in (60, 68, 100, 148))
        began, before = self.samples[0]
        until, after = self.samples[-1]
        # not below 0: the segment size may have shrunk between the samples
        self.link = {"bytes": max(0, after - before), "seconds": max(until - began, 1e-6), "mtu": pmtu, "again": again}
        self.link["rtt"] = (least or rtt) / 1e6

    def sample(self, now: float) -> None:
        """Records how many bytes have arrived: once after the slow start, once after the sending time."""
        due = self.began + self.seconds * (1.0 if self.samples else SLOW_START)
        if self.seconds and self.connected and len(self.samples) < 2 and now >= due:
            mss, delivered = (unpack_from("I", self.info(), at)[0] for at in (16, 192))
            # `delivered` counts segments in any order. A kernel before 4.19 lacks it: 0. Acknowledged bytes then count
            self.samples.append((now, mss * delivered or self.arrived()))

    def info(self) -> bytes:
        """Returns the kernel's struct tcp_info. An older kernel's lacks fields: zeros take their places."""
        assert self.sock
        return self.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 196).ljust(196, b"\0")

    def arrived(self) -> int:
        """Returns how many bytes the peer has acknowledged."""
        assert self.sock
        return self.sent - int(unpack("i", fcntl.ioctl(self.sock, termios.TIOCOUTQ, b"\0" * 4))[0])

    def is_late(self, now: float) -> "str | None":
        """Returns the outcome of a try that is late: SILENT or STALLED. Returns None if the try is not late."""
        took = now - self.began
        if not self.connected:
            return SILENT if took > CONNECT_SECONDS else None
        return STALLED if took > self.seconds + ACK_SECONDS and self.arrived() < PACKET_BYTES else None
