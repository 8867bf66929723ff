"""The ssh-agent: its keys and its signatures, each within a bound. One that hangs is named."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from typing import Any

from fleet.errors import ConnectError
from fleet.transport.ssh.adapter import agent_over
from fleet.transport.ssh.library import paramiko

HINT = "end that agent and start another, or do without: 'unset SSH_AUTH_SOCK'"


class Agent:
    """The agent at `address` (default: $SSH_AUTH_SOCK; "": there is none), asked for its keys once. trouble: what is
    wrong with it, in words."""

    def __init__(self, address: str | None = None) -> None:
        self.address = os.environ.get("SSH_AUTH_SOCK", "") if address is None else address
        self.trouble: str | None = None
        self._asked_at: float | None = None
        self._seconds = 0.0
        self._conn: socket.socket | None = None
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
        self._conn = conn = socket.socket(socket.AF_UNIX)
        try:
            conn.settimeout(self._seconds)
            conn.connect(self.address)
            return tuple(self._bounded(key) for key in agent_over(conn).get_keys())
        except (TimeoutError, BlockingIOError):  # it says nothing, or accepts nobody
            self._hangs()
        except Exception:  # nobody listens there, or no agent does: paramiko raises what its parser trips over
            self.close()
        return ()

    def _bounded(self, key: Any) -> Any:
        plain = key.sign_ssh_data

        def sign(data: Any, algorithm: str | None = None) -> Any:
            with self._lock:
                if self._conn is None:
                    raise self.error()
                self._asked_at = time.monotonic()
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
        self.close()

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

    def close(self) -> None:
        """Let go of it."""
        conn, self._conn = self._conn, None
        if conn is not None:
            with contextlib.suppress(OSError):  # wakes whoever waits for an answer
                conn.shutdown(socket.SHUT_RDWR)
            conn.close()
