"""Changes paramiko's channels where fleet needs it; a part of adapter.py, which lists the private names."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

from fleet.background import background
from fleet.transport.ssh.library import Message, PipeTimeout, paramiko

_SIGNALS = {"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9, "USR1": 10, "SEGV": 11, "USR2": 12}
_SIGNALS |= {"PIPE": 13, "ALRM": 14, "TERM": 15}


PASSED_BYTES = 1 << 10  # the window that passed beats may take, before the peer gets it back


class Bell(threading.Event):
    """Rung by each of two buffers that got something or ended. They would quieten it, too, as soon as one is empty."""

    def clear(self) -> None: ...

    def quiet(self) -> None:
        super().clear()


class NodeChannel(paramiko.Channel):  # type: ignore[misc]
    """A channel that understands exit-signal (status 128+n), and sends nothing more once it has sent CHANNEL_CLOSE.
    bell: rung when there is something to read, or nothing more will be. denied: a request was, as text.

    paramiko's own may send data, or the end of it, from one thread after the close from another. sshd
    answers that by dropping the whole connection, and with it all 63 other hosts of a gateway.
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

    def _feed(self, m: Message) -> None:
        """beat: what wakes no thread, where nothing else has come since it was set."""
        data = m.get_binary()
        # in this order: taken() unsets it before it takes anything
        if self.beat and not self.unread() and data == self.beat and self._passed - self._told < PASSED_BYTES:
            self.passed_at = time.monotonic()
            self._passed += len(data)
        else:
            self.in_buffer.feed(data)

    def unread(self) -> int:
        """Bytes that have come on stdout and stderr, and were not read."""
        return len(self.in_buffer) + len(self.in_stderr_buffer)

    def taken(self, nbytes: int) -> tuple[bytes, bytes]:
        """Returns what has come on stdout and stderr, up to so many bytes of each."""
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
        """Give the peer `count` bytes of window back. Holding _sending."""
        owed: int = self._check_add_window(count)
        if owed > 0 and not self._said_close:
            m = Message()
            m.add_byte(paramiko.common.cMSG_CHANNEL_WINDOW_ADJUST)
            m.add_int(self.remote_chanid)
            m.add_int(owed)
            self.transport._send_user_message(m)

    def ask(self, command: str) -> None:
        """Ask for a command to be run; `event` is set by the answer, `event_ready` with it when it is yes. A request on
        a channel that is closed already would cost the whole connection."""
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
        """how: 0 no more is read, 1 no more is written, 2 both."""
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
        """From the connection's own thread."""
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
