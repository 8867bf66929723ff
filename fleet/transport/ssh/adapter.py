"""All that fleet bends of paramiko: its import, packets, channels, connection, authentication. Its private names are
used here only; PRIVATE is the whole list, which a test holds against the paramiko that is installed."""

from __future__ import annotations

import contextlib
import importlib
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

from fleet.transport.base import STDERR_BYTES
from fleet.transport.ssh.dial import start_thread


def _load() -> Any:
    # paramiko wants invoke only to run `Match exec`, which fleet never does: without it the import takes half the
    # time. The type is Any because the stubs leave out what is extended here.
    loaded = "invoke" in sys.modules
    if not loaded:
        sys.modules["invoke"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("paramiko")
    finally:
        if not loaded:
            del sys.modules["invoke"]


paramiko: Any = _load()

from paramiko.buffered_pipe import PipeTimeout as PipeTimeout  # noqa: E402
from paramiko.common import cMSG_CHANNEL_REQUEST, cMSG_CHANNEL_WINDOW_ADJUST  # noqa: E402
from paramiko.message import Message as Message  # noqa: E402
from paramiko.packet import Packetizer  # noqa: E402

# it prints tracebacks of its own for every failed connection
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)

# what of paramiko is nobody else's to use, by the class that it belongs to
PRIVATE = {
    "Transport": "_channel_handler_table _channels _next_channel _parse_channel_open_failure "
    "_parse_channel_open_success _parse_disconnect _send_user_message _unlink_channel _verify_key",
    "Channel": "_check_add_window _close_internal _feed_extended _handle_close _handle_request _request_failed _send "
    "_set_transport _set_window _wait_for_send_window",
    "AuthHandler": "_parse_userauth_failure",
    "agent.AgentSSH": "_connect",
}
# SSH_MSG_*
_CHANNEL_OPEN = b"\x5a"
_CHANNEL_EXTENDED_DATA = 95
_CHANNEL_CLOSE = 97
_CHANNEL_REQUEST = 98
WINDOW_BYTES = 4 * 1024 * 1024
PACKET_BYTES = 512 * 1024
IDLE_SECONDS = 0.5  # sockets are shut down to wake their thread, so this is only a fallback
# cheapest first of what is secure; older ones only for servers that have nothing else
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
_DIGESTS = (
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256",
    "hmac-sha2-512",
    "hmac-sha1",
)
_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12}
_SIGNALS |= {"PIPE": 13, "ALRM": 14, "TERM": 15}


class Bell(threading.Event):
    """Rung by each of two buffers that got something or ended. They would quieten it, too, as soon as one is empty."""

    def clear(self) -> None: ...

    def quiet(self) -> None:
        super().clear()


class NodeChannel(paramiko.Channel):  # type: ignore[misc]
    """A channel that keeps only the tail of stderr, unless told, so that nobody reading it never blocks stdout; that
    understands exit-signal (status 128+n); and that says nothing more once it has said CHANNEL_CLOSE.

    paramiko's own may send data from one thread behind the close from another. sshd answers that by dropping the
    whole connection, and with it all 63 other hosts behind a gateway.
    """

    def __init__(self, chanid: int) -> None:
        super().__init__(chanid)
        self.stderr_tail = bytearray()
        self.bell: Bell | None = None
        self.refused: tuple[int, str] | None = None
        self.abandoned = False
        self._sending = threading.Lock()
        self._said_close = False

    def __del__(self) -> None:
        """paramiko's would send from within the garbage collector, in whatever thread and under whatever lock."""

    def _send(self, s: Any, m: Message) -> int:
        with self.lock:
            if self.closed:
                raise OSError("the channel is closed")
            size: int = self._wait_for_send_window(len(s))
            if size == 0:
                return 0
            m.add_string(bytes(s[:size]))
        with self._sending:
            if self._said_close:
                raise OSError("the channel is closed")
            self.transport._send_user_message(m)
        return size

    def keep_stderr(self) -> None:
        """Before anything comes: all of it, for `taken`; the bell rings for both outputs."""
        self.bell = Bell()
        self.in_buffer.set_event(self.bell)
        self.in_stderr_buffer.set_event(self.bell)

    def taken(self, pipe: Any, nbytes: int) -> bytes:
        """What is in one of the two buffers."""
        data: bytes = pipe.read(nbytes, 0) if len(pipe) else b""
        with self._sending:
            self._acknowledge(len(data))
        return data

    def recv(self, nbytes: int) -> bytes:
        return self._read(self.in_buffer, nbytes)

    def recv_stderr(self, nbytes: int) -> bytes:
        return self._read(self.in_stderr_buffer, nbytes)

    def _read(self, pipe: Any, nbytes: int) -> bytes:
        try:
            data: bytes = pipe.read(nbytes, self.timeout)
        except PipeTimeout:
            raise TimeoutError from None
        with self._sending:
            self._acknowledge(len(data))
        return data

    def _acknowledge(self, count: int) -> None:
        """Give the peer `count` bytes of window back. Holding _sending."""
        owed: int = self._check_add_window(count)
        if owed > 0 and not self._said_close:
            m = Message()
            m.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            m.add_int(self.remote_chanid)
            m.add_int(owed)
            self.transport._send_user_message(m)

    def _feed_extended(self, m: Message) -> None:
        m.get_int()
        data = m.get_binary()
        if self.bell is not None:
            self.in_stderr_buffer.feed(data)
            return
        with self.lock:
            self.stderr_tail += data
            del self.stderr_tail[:-STDERR_BYTES]
        # The connection's own thread must not wait: neither for a re-key, which it has to carry out itself, nor
        # for whoever is sending. What it cannot acknowledge now is acknowledged with what comes next.
        if self.transport.clear_to_send.is_set() and self._sending.acquire(blocking=False):
            try:
                self._acknowledge(len(data))
            finally:
                self._sending.release()
        else:
            with self.lock:
                self.in_window_sofar += len(data)

    def ask(self, command: str) -> None:
        """Ask for a command to be run; `event` is set by the answer, `event_ready` with it when it is yes. A request on
        a channel that is closed already would cost the whole connection."""
        m = Message()
        m.add_byte(cMSG_CHANNEL_REQUEST)
        m.add_int(self.remote_chanid)
        m.add_string("exec")
        m.add_boolean(True)
        m.add_string(command)
        with self._sending:
            with self.lock:
                if self.closed:
                    return
                self.event.clear()
                self.event_ready = False
            self.transport._send_user_message(m)

    def close(self) -> None:
        with self.lock:
            messages = self._close_internal() if self.active and not self.closed else ()
        self._say_close(messages)

    def _request_failed(self, m: Message) -> None:
        with self.lock:
            messages = self._close_internal()
        self._say_close_soon(messages)

    def _handle_close(self, m: Message) -> None:
        with self.lock:
            messages = self._close_internal()
            self.transport._unlink_channel(self.chanid)
        self._say_close_soon(messages)

    def _say_close_soon(self, messages: Any) -> None:
        """From the connection's own thread."""
        if self.transport.clear_to_send.is_set() and not self._sending.locked():
            self._say_close(messages)
        else:
            start_thread(lambda: self._say_close(messages), "fleet-close")

    def _say_close(self, messages: Any) -> None:
        with self._sending, contextlib.suppress(EOFError, OSError, paramiko.SSHException):
            for message in messages:
                if message is not None:
                    self.transport._send_user_message(message)
                    self._said_close = True

    def _handle_request(self, m: Message) -> None:
        start = m.packet.tell()
        if m.get_text() != "exit-signal":
            m.packet.seek(start)
            super()._handle_request(m)
            return
        m.get_boolean()
        self.exit_status = 128 + _SIGNALS.get(m.get_text(), 127)
        self.status_event.set()


class Packets(Packetizer):
    """Without the thread that paramiko starts for each handshake's timer, and with what came before the banner."""

    preamble = ""

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """A server may announce 4 GiB in clear text, before anybody knows who it is; OpenSSH's limit is as low."""
        if n > PACKET_BYTES:
            raise paramiko.SSHException(f"it announces a packet of {n} bytes")
        data: bytes = super().read_all(n, check_rekey)
        return data

    def start_handshake(self, timeout: float) -> None:
        """The handshake is bounded by whoever waits for it."""

    def readline(self, timeout: float) -> str:
        line = super().readline(timeout)
        if not line.startswith("SSH-"):
            self.preamble = (self.preamble + " " + line.strip())[-200:].strip()
        return line


class Connection(paramiko.Transport):  # type: ignore[misc]
    """paramiko's Transport with NodeChannels. judge: told the host key inside the key exchange; when it raises, not one
    byte more is sent. key_algorithms: for host keys, best first. goodbye: what the server said at last."""

    _channel_handler_table = {
        **paramiko.Transport._channel_handler_table,
        # by name: what else speaks paramiko (fabric's tunnels and agents) has plain channels on it
        _CHANNEL_EXTENDED_DATA: lambda channel, m: channel._feed_extended(m),
        _CHANNEL_CLOSE: lambda channel, m: channel._handle_close(m),
        _CHANNEL_REQUEST: lambda channel, m: channel._handle_request(m),
    }

    def __init__(self, sock: Any, judge: Callable[[bytes], None], key_algorithms: tuple[str, ...]) -> None:
        old = {"pubkeys": ["ssh-rsa"]}
        super().__init__(sock, default_window_size=WINDOW_BYTES, packetizer_class=Packets, disabled_algorithms=old)
        self.sock.settimeout(IDLE_SECONDS)
        wanted = self.get_security_options()
        wanted.ciphers, wanted.digests, wanted.key_types = _CIPHERS, _DIGESTS, key_algorithms
        wanted.kex = tuple(name for name in wanted.kex if not name.endswith("sha1"))
        self.judge = judge
        self.saved_exception: BaseException | None = None
        self.goodbye = ""

    def _verify_key(self, host_key: bytes, sig: bytes) -> None:
        super()._verify_key(host_key, sig)
        self.judge(host_key)

    def begin_channel(
        self, kind: str, target: tuple[str, int] | None, event: threading.Event
    ) -> tuple[NodeChannel, Callable[[], None]]:
        """A new channel, and what asks for it; `event` is set by the answer. paramiko's own open_channel mixes up the
        answers to channels opened at the same time."""
        m = Message()
        with self.lock:
            chanid = self._next_channel()
            m.add_byte(_CHANNEL_OPEN)
            m.add_string(kind)
            m.add_int(chanid)
            m.add_int(WINDOW_BYTES)
            m.add_int(self.default_max_packet_size)
            if target is not None:
                m.add_string(target[0])
                m.add_int(target[1])
                m.add_string("127.0.0.1")
                m.add_int(0)
            channel = NodeChannel(chanid)
            self._channels.put(chanid, channel)
            self.channel_events[chanid] = event
            self.channels_seen[chanid] = True
            channel._set_transport(self)
            channel._set_window(WINDOW_BYTES, self.default_max_packet_size)
        return channel, lambda: self._send_user_message(m)

    def _parse_channel_open_success(self, m: Message) -> None:
        channel = self._channels.get(m.get_int())
        m.rewind()
        super()._parse_channel_open_success(m)
        if getattr(channel, "abandoned", False):
            start_thread(channel.close, "fleet-close")

    def _parse_channel_open_failure(self, m: Message) -> None:
        chanid, code, text = m.get_int(), m.get_int(), m.get_text()
        channel = self._channels.get(chanid)
        if channel is not None:
            channel.refused = (code, text)
        m.rewind()
        super()._parse_channel_open_failure(m)
        self.saved_exception = None

    def _parse_disconnect(self, m: Message) -> None:
        m.get_int()
        self.goodbye = m.get_text()[:200]
        self.saved_exception = EOFError()


class Auth(paramiko.AuthHandler):  # type: ignore[misc]
    """Remembers which methods the server allows, which paramiko drops."""

    allowed: list[str] | None = None
    partial = False

    def _parse_userauth_failure(self, m: Message) -> None:
        self.allowed = m.get_list()
        self.partial = m.get_boolean()
        m.rewind()
        super()._parse_userauth_failure(m)


def agent_over(conn: Any) -> Any:
    """paramiko's agent at the other end of a connection that the caller made; raises what that raises, or its parser
    trips over."""
    agent = paramiko.agent.AgentSSH()
    agent._connect(conn)
    return agent
