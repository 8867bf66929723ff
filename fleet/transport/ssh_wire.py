"""The pieces of paramiko that fleet bends: its import, its packets, its channels. Private parts of it are touched
only here and in ssh_link.py."""

from __future__ import annotations

import importlib
import logging
import sys
from typing import Any


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

from paramiko.common import cMSG_CHANNEL_WINDOW_ADJUST  # noqa: E402
from paramiko.message import Message as Message  # noqa: E402
from paramiko.packet import Packetizer  # noqa: E402

# it prints tracebacks of its own for every failed connection
logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)

STDERR_BYTES = 64 * 1024
_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11,
            "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15}


class NodeChannel(paramiko.Channel):  # type: ignore[misc]
    """A channel that keeps only the tail of stderr, so that nobody reading it never blocks stdout, and that
    understands exit-signal (status 128+n)."""

    def __init__(self, chanid: int) -> None:
        super().__init__(chanid)
        self.stderr_tail = bytearray()
        self.refused: tuple[int, str] | None = None

    def _feed_extended(self, m: Message) -> None:
        m.get_int()
        data = m.get_binary()
        with self.lock:
            self.stderr_tail += data
            del self.stderr_tail[:-STDERR_BYTES]
            if not self.transport.clear_to_send.is_set():
                # this thread must not wait for a re-key that it has to carry out itself
                self.in_window_sofar += len(data)
                return
        self.acknowledge(len(data))

    def acknowledge(self, count: int) -> None:
        """Give the peer `count` bytes of window back."""
        owed: int = self._check_add_window(count)
        if owed > 0:
            m = Message()
            m.add_byte(cMSG_CHANNEL_WINDOW_ADJUST)
            m.add_int(self.remote_chanid)
            m.add_int(owed)
            self.transport._send_user_message(m)

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

    def start_handshake(self, timeout: float) -> None:
        """The handshake is bounded by whoever waits for it."""

    def readline(self, timeout: float) -> str:
        line = super().readline(timeout)
        if not line.startswith("SSH-"):
            self.preamble = (self.preamble + " " + line.strip())[-200:].strip()
        return line
