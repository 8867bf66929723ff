"""Implements the protocol between a container and the one where all meet. It has no sockets: bytes in, messages out.

Each message is a line of JSON. The first lines are the handshake:

    client -> server   {"fleet": PROTOCOL, "nonce", "secret": whether it has one}
    server -> client   the same, and "serves": true; or {"refuse": a key of MISMATCHES}
    client -> server   {"proof"}, if both have a secret
    server -> client   {"proof"}, or {"refuse"}

A proof is an HMAC of both nonces with the secret as its key. The client sends its proof first, so that a program which
only reaches the port gets nothing to guess secrets with. With a secret, each later line begins with a MAC (message
authentication code) of direction, counter and message. Its key is derived for this connection and direction. A forged,
replayed, reordered, reflected or missing line ends the connection.
"""

import hashlib
import hmac
import os
import shlex
import stat

from fleet.node.base import json
from fleet.node.base.errors import Refused, on_os_error
from fleet.node.base.files import private
from fleet.node.base.types import Any, Mapping
from fleet.node.base.wire import encode
from fleet.protocol.state import PROTOCOL

LINE_BYTES, HANDSHAKE_BYTES = 1 << 16, 1 << 10  # the longest line; the longest one in the handshake
DEEPEST = 32  # levels to which a message may be nested
NONCE_BYTES, MAC_LENGTH = 32, 64
SECRET, SECRET_BYTES = "FLEET_SECRET", 4096
ALIKE = "give all containers of the run the same secret: %s, or --secret-file FILE" % SECRET
# why the two ends do not match: the message for the client, that for the server, the hint
MISMATCHES = {
    "none": (
        "the containers of this run have a secret (%s), this one has none" % SECRET,
        "a container without a secret (%s) was refused: this one has one" % SECRET,
        ALIKE,
    ),
    "unwanted": (
        "this container has a secret (%s), the one where all meet has none" % SECRET,
        "a container with a secret (%s) was refused: this one has none" % SECRET,
        ALIKE + "; or none any",
    ),
    "another": (
        "the containers of this run have another secret (%s) than this one" % SECRET,
        "a container with another secret (%s) than this one was refused" % SECRET,
        ALIKE,
    ),
    "protocol": (
        "the container where all meet has another version of fleet",
        "a container with another version of fleet was refused",
        "use the same fleet in all containers",
    ),
}


class Mismatch(ValueError):
    """Is raised if the two ends have different secrets or versions. code: a key of MISMATCHES. serves: this end is the
    server."""

    def __init__(self, code: str, serves: bool) -> None:
        ValueError.__init__(self, MISMATCHES[code][serves])
        self.code, self.hint = code, MISMATCHES[code][2]


class Channel:
    """Keeps the state of one end of a connection. secret: None if this end has none. serves: this end is the server.
    ready: the handshake is done. outgoing: bytes of the handshake that are to be sent."""

    def __init__(self, secret: "bytes | None", serves: bool) -> None:
        self.secret, self.serves = secret, serves
        self.ready, self.outgoing = False, b""
        self._nonce, self._nonces = os.urandom(NONCE_BYTES).hex(), ""
        self._buffer, self._searched, self._over = bytearray(), 0, False
        self._keys: dict[bool, bytes] = {}  # direction (True: the server sends) -> the key of its MACs
        self._counts = {True: 0, False: 0}  # direction -> messages so far

    def opening(self) -> bytes:
        """Returns the first bytes that this end sends; the server sends none."""
        return b"" if self.serves else line_of(self._introduction())

    def take_outgoing(self) -> bytes:
        data, self.outgoing = self.outgoing, b""
        return data

    @property
    def waiting(self) -> bool:
        """Returns whether the buffer has a whole line that feed() has not read yet."""
        return b"\n" in self._buffer

    def feed(self, data: bytes, most: int = LINE_BYTES) -> "list[dict[str, Any]]":
        """Adds received data. Returns up to `most` whole and authentic messages; others stay for the next call. Raises
        ValueError if a line is no such message, and at each later call."""
        if self._over:
            raise ValueError("the connection is over")
        self._buffer += data
        found: list[dict[str, Any]] = []
        try:
            while len(found) < most:
                line = self._next_line()
                if line is None:
                    break
                if self.ready:
                    found.append(message_of(self._authentic(line)))
                else:
                    self._shake_hands(message_of(line))
        except ValueError:
            self._over = True
            del self._buffer[:]
            raise
        return found

    def pack(self, message: "dict[str, Any]") -> bytes:
        """Returns the line of a message. Lines must be sent in the order of these calls. Raises ValueError if the line
        is too long for the other end."""
        line = line_of(message)
        if self._keys:
            line = self._mac(self.serves, line[:-1]) + b" " + line
        if len(line) > LINE_BYTES:
            raise ValueError("a message of %d bytes" % len(line))
        return line

    def _next_line(self) -> "bytes | None":
        end = self._buffer.find(b"\n", self._searched)
        if (end if end >= 0 else len(self._buffer)) > (LINE_BYTES if self.ready else HANDSHAKE_BYTES):
            raise ValueError("a line is too long")
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line, self._searched = bytes(self._buffer[:end]), 0
        del self._buffer[: end + 1]
        return line

    # -- the handshake ------------------------------------------------------------------------------------
    def _introduction(self) -> "dict[str, Any]":
        made = {"fleet": PROTOCOL, "nonce": self._nonce, "secret": self.secret is not None}
        return dict(made, serves=True) if self.serves else made

    def _shake_hands(self, message: "dict[str, Any]") -> None:
        code = message.get("refuse")
        if code is not None and not self.serves:
            raise Mismatch(code, False) if code in list(MISMATCHES) else ValueError("no fleet")
        if not self._nonces:
            self._compare(message)
        elif not hmac.compare_digest(self._proof(not self.serves), encode(str(message.get("proof")))):
            self._refuse("another")
        else:
            self._begin()
            if self.serves:
                self.outgoing += line_of({"proof": self._proof(True).decode()})

    def _compare(self, message: "dict[str, Any]") -> None:
        """Reads the other end's introduction, and queues the response to it."""
        nonce = message.get("nonce")
        if "fleet" not in message or bool(message.get("serves")) == self.serves:
            raise ValueError("no fleet")
        if message["fleet"] != PROTOCOL:
            self._refuse("protocol")
        if not isinstance(nonce, str) or len(nonce) != 2 * NONCE_BYTES:
            raise ValueError("no fleet")
        theirs, mine = message.get("secret") is True, self.secret is not None
        if theirs != mine:
            self._refuse("none" if mine == self.serves else "unwanted")
        self._nonces = nonce + self._nonce if self.serves else self._nonce + nonce
        if self.serves:
            self.outgoing += line_of(self._introduction())
        elif mine:
            self.outgoing += line_of({"proof": self._proof(False).decode()})
        self.ready = not mine

    def _refuse(self, code: str) -> None:
        if self.serves:
            self.outgoing += line_of({"refuse": code})
        raise Mismatch(code, self.serves)

    def _begin(self) -> None:
        self._keys = {end: self._derived("key", end) for end in (True, False)}
        self.ready = True

    def _proof(self, serves: bool) -> bytes:
        return encode(self._derived("proof", serves).hex())

    def _derived(self, use: str, serves: bool) -> bytes:
        text = "fleet %d %s %s %s" % (PROTOCOL, use, "server" if serves else "client", self._nonces)
        return hmac.new(self.secret or b"", encode(text), hashlib.sha256).digest()

    # -- messages -----------------------------------------------------------------------------------------
    def _authentic(self, line: bytes) -> bytes:
        if not self._keys:
            return line
        mac, body = line[:MAC_LENGTH], line[MAC_LENGTH + 1 :]
        if not hmac.compare_digest(mac, self._mac(not self.serves, body)):
            raise ValueError("a message is not authentic")
        return body

    def _mac(self, serves: bool, body: bytes) -> bytes:
        """Returns the MAC of the next message, and counts the message. serves: the server sends it."""
        head = b"%s %d\n" % (b"server" if serves else b"client", self._counts[serves])
        self._counts[serves] += 1
        return encode(hmac.new(self._keys[serves], head + body, hashlib.sha256).hexdigest())


def line_of(message: "dict[str, Any]") -> bytes:
    return encode(json.dumps(message)) + b"\n"


def message_of(line: bytes) -> "dict[str, Any]":
    """Returns the JSON object of a line. Raises ValueError if it is no object, or nested too deep."""
    try:
        message = json.loads(line.decode("utf-8"))
    except RecursionError:
        raise ValueError("a message is nested too deep") from None
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise ValueError("a line is no message")
    check_depth(message, DEEPEST)
    return message


def check_depth(value: Any, most: int) -> None:
    """Raises ValueError for a value with more than `most` levels."""
    if isinstance(value, (dict, list)):
        if not most:
            raise ValueError("a message is nested too deep")
        for item in value.values() if isinstance(value, dict) else value:
            check_depth(item, most - 1)


def bounded(value: Any, most: int) -> int:
    """Returns `value` if it is a whole number from 0 to `most` - 1. Raises ValueError for any other value."""
    if type(value) is not int or not 0 <= value < most:
        raise ValueError("a number is out of bounds")
    return value


def numeric(address: str) -> str:
    """Returns a socket's address as people write it. An IPv4 address that is mapped into IPv6 becomes plain IPv4."""
    address = address.partition("%")[0]
    return address[7:] if address.startswith("::ffff:") and "." in address else address


def secret_of(environ: "Mapping[str, str]", path: "str | None") -> "bytes | None":
    """Returns the secret of the run's containers: FLEET_SECRET if that is set, otherwise the content of the file
    `path`. Returns None if neither is given. Raises Refused if the secret is empty or too long, or if other users own
    the file or may read it."""
    if SECRET in environ:
        return nonempty(encode(environ[SECRET]), SECRET, "export %s=$(head -c 32 /dev/urandom | base64)" % SECRET)
    if path is None:
        return None
    at = shlex.quote(path)
    with on_os_error(
        Refused,
        "%s, of the secret, cannot be read" % path,
        "--secret-file names a regular file, no link, that this user may read",
    ), open(path, "rb", opener=private) as file:
        about = os.fstat(file.fileno())
        if about.st_uid != os.geteuid():
            raise Refused("%s, of the secret, is another user's" % path, "chown %d %s" % (os.geteuid(), at))
        if stat.S_IMODE(about.st_mode) not in (0o600, 0o400):
            mode = stat.S_IMODE(about.st_mode)
            raise Refused("%s, of the secret, has mode %04o, not 0600" % (path, mode), "chmod 600 %s" % at)
        data = file.read(SECRET_BYTES + 1)
    make = "(umask 077; head -c 32 /dev/urandom | base64 >%s)" % at
    if len(data) > SECRET_BYTES:
        raise Refused("%s, of the secret, has more than %d bytes" % (path, SECRET_BYTES), make)
    return nonempty(data, path, make)


def nonempty(secret: bytes, where: str, hint: str) -> bytes:
    if not secret.strip():
        raise Refused("%s holds no secret: it is empty" % where, hint)
    return secret.strip()
