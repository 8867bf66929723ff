"""Changes paramiko for fleet: packets, connection, authentication; node_channel.py changes channels. Only these two
modules use private names of paramiko. PRIVATE lists them, and a test compares it with the installed paramiko."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from fleet.background import background
from fleet.transport.ssh.library import Message, Packetizer
from fleet.transport.ssh.library import paramiko as paramiko
from fleet.transport.ssh.node_channel import NodeChannel

# private names of paramiko, by class
PRIVATE = {
    "Transport": "_channel_handler_table _channels _next_channel _parse_channel_open_failure "
    "_parse_channel_open_success _parse_disconnect _send_user_message _unlink_channel _verify_key",
    "Channel": "_check_add_window _close_internal _feed _handle_close _handle_request _request_failed _send _send_eof "
    "_set_transport _set_window _wait_for_send_window",
    "AuthHandler": "_parse_userauth_failure",
    "agent.AgentSSH": "_connect",
}
# SSH_MSG_*
_CHANNEL_OPEN = b"\x5a"
_CHANNEL_DATA = 94
_CHANNEL_CLOSE = 97
_CHANNEL_REQUEST = 98
_CHANNEL_FAILURE = 100
WINDOW_BYTES = 4 * 1024 * 1024  # the receive window of a channel
PACKET_BYTES = 512 * 1024
IDLE_SECONDS = 5.0  # only a fallback: usually, shutting a socket down wakes its thread
# secure algorithms, cheapest first; the older ones are for servers that have no other
_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes256-ctr")
_DIGESTS = (
    "hmac-sha2-256-etm@openssh.com",
    "hmac-sha2-512-etm@openssh.com",
    "hmac-sha2-256",
    "hmac-sha2-512",
    "hmac-sha1",
)


class Packets(Packetizer):
    """Reads and writes packets, without paramiko's timer thread for each handshake. preamble: the text received before
    the banner."""

    preamble = ""

    def read_all(self, n: int, check_rekey: bool = False) -> bytes:
        """Refuses large packets: a server that is not verified yet may announce 4 GiB. OpenSSH has the same limit."""
        if n > PACKET_BYTES:
            raise paramiko.SSHException(f"it announces a packet of {n} bytes")
        data: bytes = super().read_all(n, check_rekey)
        return data

    def start_handshake(self, timeout: float) -> None:
        """Does nothing: the caller of the handshake waits with a limit."""

    def readline(self, timeout: float) -> str:
        line = super().readline(timeout)
        if not line.startswith("SSH-"):
            self.preamble = (self.preamble + " " + line.strip())[-200:].strip()
        return line


class Connection(paramiko.Transport):  # type: ignore[misc]
    """Extends paramiko's Transport: its channels are NodeChannels. judge: receives the host key during the key
    exchange; if it raises an exception, nothing more is sent. key_algorithms: the algorithms to request for host keys,
    best first. goodbye: the server's last message."""

    _channel_handler_table = {
        **paramiko.Transport._channel_handler_table,
        # called by name, because fabric's tunnels and agents have paramiko's own channels here
        _CHANNEL_DATA: lambda channel, m: channel._feed(m),
        _CHANNEL_CLOSE: lambda channel, m: channel._handle_close(m),
        _CHANNEL_REQUEST: lambda channel, m: channel._handle_request(m),
        _CHANNEL_FAILURE: lambda channel, m: channel._request_failed(m),
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
        """Returns a new channel, and the function that requests it. The response sets `event`. paramiko's open_channel
        confuses the responses for channels that are opened at the same time."""
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
            background("fleet-close", channel.close)

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
    """Extends paramiko's AuthHandler. allowed: the methods that the server allows; None before its first refusal.
    partial: the server accepted a method, and requires another one, too."""

    allowed: list[str] | None = None
    partial = False

    def _parse_userauth_failure(self, m: Message) -> None:
        self.allowed = m.get_list()
        self.partial = m.get_boolean()
        m.rewind()
        super()._parse_userauth_failure(m)


def agent_over(conn: Any) -> Any:
    """Returns paramiko's agent for a connection that the caller made. Raises any exception of its parser."""
    agent = paramiko.agent.AgentSSH()
    agent._connect(conn)
    return agent
