"""Connects two members of a chain: TCP with mutual TLS 1.3. Both ends have the same certificate, which is made for this
transfer. If an end's {"cert", "key"} also has "peer", that end accepts the certificate "peer" instead of its own.

The predecessor, which sends, connects to the successor. It sends {"token", "epoch": number of the link}. The token is
the HMAC-SHA256 of the epoch with the successor's secret. The head made it for this link only. The successor sends
{"wants": [[from, to], ...]}, ranges of the stream in order, which do not touch. The predecessor sends their bytes,
without frames. Then the successor may send another request; {"wants": []} ends the link. A link with a newer epoch
replaces an older one. A peer without the token, or with another certificate, gets nothing.
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
GONE_MILLISECONDS = 30000  # a peer that acknowledges no data for this time is gone
# errors that a peer's invalid line may raise, besides OSError
NONSENSE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


def link_token(secret: str, epoch: int) -> str:
    """Returns the token for one link. The token is valid for this link only, so that an earlier predecessor cannot
    connect in place of a later one. secret: the successor's."""
    return hmac.new(secret.encode(), str(epoch).encode(), hashlib.sha256).hexdigest()


class Connected(ssl.SSLSocket):
    """Counts as connected even if the peer is gone already. Then the handshake fails, and Link closes the socket.
    Python's own class would leave the socket open."""

    def getpeername(self) -> "Any":
        try:
            return super().getpeername()
        except OSError:
            return None


def load_key(context: "ssl.SSLContext", pem: bytes, folder: "str | None") -> None:
    """Loads a certificate and its key into the context. It uses a temporary file without a name, so that a kill leaves
    no file. folder: that of the temporary file; None means the default."""
    with tempfile.TemporaryFile(buffering=0, dir=folder) as file:
        write_all(file.fileno(), pem)
        context.load_cert_chain("/proc/self/fd/%d" % file.fileno())


def tls_context(server: bool, tls: "dict[str, str]") -> "ssl.SSLContext":
    """Returns a TLS 1.3 context that accepts exactly one certificate at the other end. tls: {"cert", "key"}, and "peer"
    if the other end has another certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    if hasattr(ssl, "TLSVersion"):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    else:
        context.options |= ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1 | ssl.OP_NO_TLSv1_2
    if hasattr(context, "sslsocket_class"):  # Python 3.6 lacks it
        context.sslsocket_class = Connected
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=tls.get("peer", tls["cert"]))
    if server and hasattr(context, "num_tickets"):
        context.num_tickets = 0
    pem = (tls["cert"] + tls["key"]).encode()
    try:
        load_key(context, pem, "/dev/shm")
    except OSError:  # a training program has filled /dev/shm
        load_key(context, pem, None)
    return context


def whole(text: str) -> int:
    """Returns an integer of a JSON line. Raises ValueError for a text of more than 20 characters: a very long number
    would take long to parse."""
    if len(text) > 20:
        raise ValueError("no number")
    return int(text)


class Link:
    """Sends lines and raw bytes over a TLS connection. Only one thread may use it at a time."""

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
        """Returns the JSON object of the next line. Raises OSError if the connection is lost. Raises one of NONSENSE
        for an invalid line, or for a line of more than `limit` bytes."""
        data = bytearray()
        while not data.endswith(b"\n"):
            # this reads no byte after the line: the peer sends more only when it has the response to the line
            more = self.sock.recv(65536)
            if not more:
                raise OSError(errno.ECONNRESET, "the other end closed the connection")
            if len(data) + len(more) > limit:
                raise ValueError("it says more than any member")
            data += more
        line: dict[str, Any] = json.loads(data.decode(), parse_int=whole)
        return line


def shut(sock: "socket.socket | ssl.SSLSocket") -> None:
    """Shuts a socket down, which wakes the threads that read or write it. Any thread may call it."""
    with suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def reason_of(error: BaseException) -> str:
    if isinstance(error, socket.timeout):
        return "timed out"
    if isinstance(error, ssl.SSLError):
        return "TLS: %s" % (error.reason or error)
    return getattr(error, "strerror", None) or str(error)
