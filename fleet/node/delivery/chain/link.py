"""Links of the chain: TCP with mutual TLS 1.3, both ends holding the one certificate made for this transfer. Where
there is a "peer" in an end's {"cert", "key"}, it accepts that certificate instead of its own.

The predecessor dials. It sends {"token", "epoch"}, the token being the HMAC-SHA256 of the epoch under the successor's
secret, made by the head: good for this link only. The successor answers {"wants": [[from, to], ...]}; then those
bytes follow, unframed, and the successor may ask again: {"wants": []} ends the link. Ranges are in order and apart. A
newer epoch takes the place of an older link; a peer without the token, or with another certificate, gets nothing.
"""

import errno
import hashlib
import hmac
import json
import socket
import ssl
import tempfile
from contextlib import suppress

from fleet.node.base.errors import on_failure
from fleet.node.base.types import Any
from fleet.node.base.wire import write_all

CHUNK = 1 << 20
HANDSHAKE_SECONDS = 5.0
GONE_MILLISECONDS = 30000
# what reading a peer's line may raise, besides OSError
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def link_token(secret: str, epoch: int) -> str:
    """Returns the token of this link only, so that an earlier receiver cannot return in another's place."""
    return hmac.new(secret.encode(), str(epoch).encode(), hashlib.sha256).hexdigest()


class Connected(ssl.SSLSocket):
    """One that was connected: whose peer has gone since fails in its handshake, and is closed there. Python's own
    leaves it open where it finds no peer."""

    def getpeername(self) -> "Any":
        try:
            return super().getpeername()
        except OSError:
            return None


def load_key(context: "ssl.SSLContext", pem: bytes, folder: "str | None") -> None:
    """From a file without a name, which a kill would leave."""
    with tempfile.TemporaryFile(buffering=0, dir=folder) as file:
        write_all(file.fileno(), pem)
        context.load_cert_chain("/proc/self/fd/%d" % file.fileno())


def tls_context(server: bool, tls: "dict[str, str]") -> "ssl.SSLContext":
    """Exactly one certificate at the other end, TLS 1.3."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    if hasattr(ssl, "TLSVersion"):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        context.options |= ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1 | ssl.OP_NO_TLSv1_2
    if hasattr(context, "sslsocket_class"):  # of Python 3.7
        context.sslsocket_class = Connected
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=tls.get("peer", tls["cert"]))
    if server and hasattr(context, "num_tickets"):
        context.num_tickets = 0
    pem = (tls["cert"] + tls["key"]).encode()
    try:
        load_key(context, pem, "/dev/shm")
    except OSError:  # what trains there has filled it
        load_key(context, pem, None)
    return context


def whole(text: str) -> int:
    """A number of a line; the digits of a long one would take for ever to read."""
    if len(text) > 20:
        raise ValueError("no number")
    return int(text)


class Link:
    """A TLS connection with lines and raw bytes on it; one thread at a time."""

    def __init__(self, plain: "socket.socket", context: "ssl.SSLContext", server: bool, tls: "dict[str, str]") -> None:
        plain.settimeout(HANDSHAKE_SECONDS)
        self.sock = context.wrap_socket(plain, server_side=server, do_handshake_on_connect=False)
        with on_failure(self.sock.close):
            self.sock.do_handshake()
            if self.sock.getpeercert(True) != ssl.PEM_cert_to_DER_cert(tls.get("peer", tls["cert"])):
                raise OSError(errno.EACCES, "another certificate")
            if self.sock.family != socket.AF_UNIX:
                self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                self.sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_USER_TIMEOUT", 18), GONE_MILLISECONDS)

    def send_line(self, message: "dict[str, Any]") -> None:
        self.sock.sendall(json.dumps(message).encode() + b"\n")

    def read_line(self, limit: int) -> "dict[str, Any]":
        """One of NONSENSE where it is no line of a member's."""
        data = bytearray()
        while not data.endswith(b"\n"):
            # lines go one way at a time: nothing follows one until it was answered
            more = self.sock.recv(65536)
            if not more:
                raise OSError(errno.ECONNRESET, "the other end closed the connection")
            if len(data) + len(more) > limit:
                raise ValueError("it says more than any member")
            data += more
        line: dict[str, Any] = json.loads(data.decode(), parse_int=whole)
        return line


def shut(sock: "socket.socket | ssl.SSLSocket") -> None:
    """Wake the threads that read or write; from any thread."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def reason_of(error: BaseException) -> str:
    if isinstance(error, socket.timeout):
        return "timed out"
    if isinstance(error, ssl.SSLError):
        return "TLS: %s" % (error.reason or error)
    return getattr(error, "strerror", None) or str(error)
