"""The ssh-agent: its keys and its signatures, each within a bound. One that hangs is named."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Any

from fleet.errors import ConnectError
from fleet.transport.ssh.adapter import agent_over, paramiko

HINT = "end that agent and start another, or do without: 'unset SSH_AUTH_SOCK'"


class _Bounded:
    """A connection to an agent on which an answer takes until `until` (time.monotonic()) at most."""

    def __init__(self, address: str, until: float) -> None:
        self.until = until
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            while True:
                self._socket.settimeout(self._left())
                try:
                    self._socket.connect(address)
                    return
                except BlockingIOError:  # too many wait for it to accept them
                    time.sleep(0.05)
        except BaseException:
            self._socket.close()
            raise

    def _left(self) -> float:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def send(self, data: bytes) -> None:
        self._socket.settimeout(self._left())
        self._socket.sendall(data)

    def recv(self, count: int) -> bytes:
        self._socket.settimeout(self._left())
        return self._socket.recv(count)

    def close(self) -> None:
        """Also wakes whoever waits for an answer."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Agent:
    """The agent at `address` (default: $SSH_AUTH_SOCK; "": there is none), asked for its keys once. trouble: what is
    wrong with it, in words."""

    def __init__(self, address: str | None = None) -> None:
        self.address = os.environ.get("SSH_AUTH_SOCK", "") if address is None else address
        self.trouble: str | None = None
        self._asked_at: float | None = None
        self._seconds = 0.0
        self._conn: _Bounded | None = None
        self._keys: tuple[Any, ...] | None = None
        # one question at a time, and many hosts' threads sign with its keys
        self._lock = threading.Lock()

    def keys(self, seconds: float) -> tuple[Any, ...]:
        """Its keys; none when there is no agent, or it does not answer within `seconds`."""
        with self._lock:
            if self._keys is None:
                self._seconds = seconds
                self._keys = self._ask() if self.address else ()
            return self._keys

    def _ask(self) -> tuple[Any, ...]:
        try:
            self._conn = _Bounded(self.address, time.monotonic() + self._seconds)
            return tuple(self._bounded(key) for key in agent_over(self._conn).get_keys())
        except TimeoutError:
            self._hangs()
        except Exception:  # nobody listens there, or no agent does: paramiko raises what its parser trips over
            self._shut()
        return ()

    def _bounded(self, key: Any) -> Any:
        plain = key.sign_ssh_data

        def sign(data: Any, algorithm: str | None = None) -> Any:
            with self._lock:
                if self._conn is None:
                    raise self.error()
                self._asked_at = time.monotonic()
                self._conn.until = self._asked_at + self._seconds
                try:
                    return plain(data, algorithm)
                except TimeoutError:
                    self._hangs()
                    raise self.error() from None
                finally:
                    self._asked_at = None

        key.sign_ssh_data = sign
        return key

    def _hangs(self) -> None:
        self._say(self._seconds)
        self._shut()

    def _say(self, waited: float) -> None:
        self.trouble = f"the ssh-agent at {self.address} does not answer (waited {waited:.1f} s)"

    def error(self) -> ConnectError:
        """What is wrong with it, or that it is gone."""
        return ConnectError(self.trouble or f"the ssh-agent at {self.address} is gone", kind="auth", hint=HINT)

    def hung(self, key: Any) -> bool:
        """Whether it is this agent's signature with `key` that is waited for in vain."""
        if self._asked_at is None or not isinstance(vars(key).get("key", key), paramiko.agent.AgentKey):
            return False
        self._say(time.monotonic() - self._asked_at)
        return True

    def _shut(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            conn.close()

    def close(self) -> None:
        """Let go of it."""
        self._shut()
