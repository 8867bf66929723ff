"""Changes paramiko's channels for fleet. It uses private names of paramiko, which adapter.py lists."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from fleet.background import background
from fleet.transport.ssh.library import Message, PipeTimeout, paramiko

_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12}
_SIGNALS |= {"PIPE": 13, "ALRM": 14, "TERM": 15}


SKIPPED_BYTES = 1 << 10  # ignored heartbeats may use up so much of the window until a reader acknowledges them


class ReadableEvent(threading.Event):
    """Defines an event that two buffers set when they receive data or end. An empty buffer calls clear(), which does
    nothing here, because the other buffer may hold data. reset() clears the event."""

    def clear(self) -> None: ...

    def reset(self) -> None:
        super().clear()


class NodeChannel(paramiko.Channel):  # type: ignore[misc]
    """Adds to paramiko's channel: exit-signal sets the status 128+n; nothing is sent after CHANNEL_CLOSE.

    readable: set when there is data to read, or the stream has ended. ignored_heartbeat: data that wakes no reader, see
    _feed(). heartbeat_at: when such data last came, by time.monotonic(). refused: (code, text) if the server refused to
    open the channel. denied: the server refused a request on the channel. abandoned: the thread that opened it has
    given up.

    paramiko's own channel may send data or EOF in one thread after another thread has sent the close. sshd then drops
    the whole connection, which may be a gateway's with the channels of many hosts.
    """

    def __init__(self, chanid: int) -> None:
        super().__init__(chanid)
        self.readable = ReadableEvent()
        self.in_buffer.set_event(self.readable)
        self.in_stderr_buffer.set_event(self.readable)
        self.refused: tuple[int, str] | None = None
        self.abandoned = self.denied = False
        self.ignored_heartbeat, self.heartbeat_at = b"", 0.0
        self._skipped_beats = self._acknowledged_beats = 0
        self._sending = threading.Lock()
        self._close_sent = False

    def __del__(self) -> None:
        """Does nothing. The garbage collector calls this method in any thread, under any lock, and paramiko's method
        sends the close."""

    def _send(self, s: Any, m: Message) -> int:
        with self.lock:
            if self.closed:
                raise OSError("the channel is closed")
            size: int = self._wait_for_send_window(len(s))
            if size == 0:
                return 0
            m.add_string(bytes(s[:size]))
        with self._sending:
            if self._close_sent:
                raise OSError("the channel is closed")
            self.transport._send_user_message(m)
        return size

    def _feed(self, m: Message) -> None:
        """Receives data from the peer. A heartbeat equal to `ignored_heartbeat` only sets `heartbeat_at`, and wakes no
        reader. The heartbeat wakes the reader only if earlier data is unread, or after SKIPPED_BYTES of heartbeats."""
        data = m.get_binary()
        has_room = self._skipped_beats - self._acknowledged_beats < SKIPPED_BYTES
        # the order matters: read_available() clears `ignored_heartbeat` before it reads
        if self.ignored_heartbeat and not self.unread() and data == self.ignored_heartbeat and has_room:
            self.heartbeat_at = time.monotonic()
            self._skipped_beats += len(data)
        else:
            self.in_buffer.feed(data)

    def unread(self) -> int:
        """Returns the number of unread bytes of stdout and stderr."""
        return len(self.in_buffer) + len(self.in_stderr_buffer)

    def read_available(self, nbytes: int) -> tuple[bytes, bytes]:
        """Returns the bytes received on stdout and stderr, at most `nbytes` of each, without waiting. Clears
        `ignored_heartbeat`."""
        self.ignored_heartbeat = b""
        skipped, self._acknowledged_beats = self._skipped_beats - self._acknowledged_beats, self._skipped_beats
        pipes = (self.in_buffer, self.in_stderr_buffer)
        out, err = (bytes(pipe.read(nbytes, 0)) if len(pipe) else b"" for pipe in pipes)
        with self._sending:
            self._acknowledge(skipped + len(out) + len(err))
        return out, err

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
        """Returns `count` bytes of the window to the peer. The caller holds _sending, and has data that must not be
        lost: a broken connection raises nothing here."""
        owed: int = self._check_add_window(count)
        if owed <= 0 or self._close_sent:
            return
        with contextlib.suppress(EOFError, OSError, paramiko.SSHException):
            m = Message()
            m.add_byte(paramiko.common.cMSG_CHANNEL_WINDOW_ADJUST)
            m.add_int(self.remote_chanid)
            m.add_int(owed)
            self.transport._send_user_message(m)

    def request_exec(self, command: str) -> None:
        """Requests to run a command. The response sets `event`, and `event_ready` if the server accepts. Sends nothing
        on a closed channel: the server would drop the whole connection."""
        m = Message()
        m.add_byte(paramiko.common.cMSG_CHANNEL_REQUEST)
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

    def shutdown(self, how: int) -> None:
        """Ends one direction or both. how: 0 for reading, 1 for writing (sends EOF), 2 for both."""
        if how != 1:
            super().shutdown(0)
        if how != 0:
            with self._sending:
                with self.lock:
                    message = None if self.closed else self._send_eof()
                if message is not None:
                    self.transport._send_user_message(message)

    def close(self) -> None:
        with self.lock:
            messages = self._close_internal() if self.active and not self.closed else ()
        self._send_close(messages)

    def _request_failed(self, m: Message) -> None:
        self.denied = True
        with self.lock:
            messages = self._close_internal()
        self._send_close_soon(messages)

    def _handle_close(self, m: Message) -> None:
        with self.lock:
            messages = self._close_internal()
            self.transport._unlink_channel(self.chanid)
        self._send_close_soon(messages)

    def _send_close_soon(self, messages: Any) -> None:
        """Sends the close from the connection's own thread, which must not wait. If it would have to wait, another
        thread sends the close."""
        if self.transport.clear_to_send.is_set() and not self._sending.locked():
            self._send_close(messages)
        else:
            background("fleet-close", lambda: self._send_close(messages))

    def _send_close(self, messages: Any) -> None:
        with self._sending, contextlib.suppress(EOFError, OSError, paramiko.SSHException):
            for message in messages:
                if message is not None:
                    self.transport._send_user_message(message)
                    self._close_sent = True

    def _handle_request(self, m: Message) -> None:
        start = m.packet.tell()
        if m.get_text() != "exit-signal":
            m.packet.seek(start)
            super()._handle_request(m)
            return
        m.get_boolean()
        self.exit_status = 128 + _SIGNALS.get(m.get_text(), 127)
        self.status_event.set()
