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


PASSED_BYTES = 1 << 10  # of the window, that beats may use up before a reader returns it to the peer


class Bell(threading.Event):
    """Is set by each of two buffers when it gets data or ends. A buffer that is empty calls clear(), which does nothing
    here, because the other buffer may hold data. quiet() clears it."""

    def clear(self) -> None: ...

    def quiet(self) -> None:
        super().clear()


class NodeChannel(paramiko.Channel):  # type: ignore[misc]
    """Adds to paramiko's channel: exit-signal sets the status 128+n; nothing is sent after CHANNEL_CLOSE.

    bell: set when there is data to read, or the stream has ended. beat: data that wakes no reader, see _feed().
    passed_at: when such data came last, by time.monotonic(). refused: code and text of a refusal to open the channel.
    denied: a request on it was refused. abandoned: the thread that opened it has given up.

    paramiko's own channel may send data or EOF in one thread after another thread has sent the close. sshd then drops
    the whole connection; that of a gateway carries the channels of many hosts.
    """

    def __init__(self, chanid: int) -> None:
        super().__init__(chanid)
        self.bell = Bell()
        self.in_buffer.set_event(self.bell)
        self.in_stderr_buffer.set_event(self.bell)
        self.refused: tuple[int, str] | None = None
        self.abandoned = self.denied = False
        self.beat, self.passed_at = b"", 0.0
        self._passed = self._told = 0
        self._sending = threading.Lock()
        self._said_close = False

    def __del__(self) -> None:
        """Does nothing. paramiko's own sends the close: in any thread, under any lock, because the garbage collector
        calls it."""

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

    def _feed(self, m: Message) -> None:
        """Takes data from the peer. If all before it was read, data equal to `beat` sets `passed_at` and wakes no
        reader, as long as such data is less than PASSED_BYTES."""
        data = m.get_binary()
        # `beat` is read first: taken() clears it before it takes anything
        if self.beat and not self.unread() and data == self.beat and self._passed - self._told < PASSED_BYTES:
            self.passed_at = time.monotonic()
            self._passed += len(data)
        else:
            self.in_buffer.feed(data)

    def unread(self) -> int:
        """Returns the number of bytes of stdout and stderr that wait for a reader."""
        return len(self.in_buffer) + len(self.in_stderr_buffer)

    def taken(self, nbytes: int) -> tuple[bytes, bytes]:
        """Returns what has come on stdout and stderr, at most `nbytes` of each, without waiting. Clears `beat`."""
        self.beat = b""
        passed, self._told = self._passed - self._told, self._passed
        pipes = (self.in_buffer, self.in_stderr_buffer)
        out, err = (bytes(pipe.read(nbytes, 0)) if len(pipe) else b"" for pipe in pipes)
        with self._sending:
            self._acknowledge(passed + len(out) + len(err))
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
        """Returns `count` bytes of the window to the peer. The caller holds _sending."""
        owed: int = self._check_add_window(count)
        if owed > 0 and not self._said_close:
            m = Message()
            m.add_byte(paramiko.common.cMSG_CHANNEL_WINDOW_ADJUST)
            m.add_int(self.remote_chanid)
            m.add_int(owed)
            self.transport._send_user_message(m)

    def ask(self, command: str) -> None:
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
        self._say_close(messages)

    def _request_failed(self, m: Message) -> None:
        self.denied = True
        with self.lock:
            messages = self._close_internal()
        self._say_close_soon(messages)

    def _handle_close(self, m: Message) -> None:
        with self.lock:
            messages = self._close_internal()
            self.transport._unlink_channel(self.chanid)
        self._say_close_soon(messages)

    def _say_close_soon(self, messages: Any) -> None:
        """Sends the close for the connection's own thread, which must not wait: if it would, another thread does it."""
        if self.transport.clear_to_send.is_set() and not self._sending.locked():
            self._say_close(messages)
        else:
            background("fleet-close", lambda: self._say_close(messages))

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
