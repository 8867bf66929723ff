"""Holds the inventory, transport and passwords that tasks share while they run. Assigns the output of a thread to its
host. Does not import fabric."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fleet.errors import ConnectError, UsageError
from fleet.events import Emit, Name, Output
from fleet.model import Host, Inventory
from fleet.runtime import Runtime
from fleet.spool import Spool, Spooled, Stream
from fleet.transport.ssh.config import SshConfig
from fleet.transport.ssh.endpoint import parse_hop


class Sink:
    """Collects the output of one host's commands and of the task that runs for it, and emits it as events. Several
    threads may write to it."""

    def __init__(self, host: str, emit: Emit, spool: Spool) -> None:
        self._host, self._emit, self._lock = host, emit, threading.Lock()
        self._streams: dict[Name, Stream] = {"stdout": Stream(spool), "stderr": Stream(spool)}

    def write(self, name: Name, text: str) -> None:
        data = text.encode("utf-8", "surrogateescape")
        with self._lock:
            self._streams[name].add(data)
            self._emit(Output(self._host, name, data))

    def whole(self) -> tuple[bytes | Spooled, bytes | Spooled]:
        """Returns (stdout, stderr), each as a whole."""
        with self._lock:
            return self._streams["stdout"].whole(), self._streams["stderr"].whole()


_of_thread = threading.local()


def current_sink() -> Sink | None:
    """Returns the sink of this thread's output, or None if the output goes to fleet's own stdout and stderr."""
    return getattr(_of_thread, "sink", None)


@contextmanager
def printing_to(sink: Sink | None) -> Iterator[None]:
    before = current_sink()
    _of_thread.sink = sink
    try:
        yield
    finally:
        _of_thread.sink = before


class Printed:
    """Replaces sys.stdout or sys.stderr while tasks run. Writes to the sink of the current thread. Without a sink, it
    writes to `real`, the stream that it replaces."""

    def __init__(self, name: Name, real: Any) -> None:
        self.name, self.real = name, real

    def write(self, text: str) -> int:
        sink = current_sink()
        if sink is None:
            return int(self.real.write(text))
        sink.write(self.name, text)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def isatty(self) -> bool:
        return current_sink() is None and bool(self.real.isatty())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)


@contextmanager
def printed_by_host() -> Iterator[None]:
    out: Any = Printed("stdout", sys.stdout)
    err: Any = Printed("stderr", sys.stderr)
    with redirect_stdout(out), redirect_stderr(err):
        yield


@dataclass
class TaskState:
    """Holds the state that the tasks of one `fleet play` share. inventory: all hosts; a task may connect to any of
    them.

    runtime: None while a task file is only read. passwords: host name -> the password in its connection's
    `connect_kwargs`. opened: functions that close what tasks opened. claimed: path of a file on the head -> the host
    from which a task fetches it."""

    inventory: Inventory
    runtime: Runtime | None = None
    config: SshConfig = field(default_factory=lambda: SshConfig(Path.home()))
    passwords: dict[str, str] = field(default_factory=dict)
    opened: list[Callable[[], None]] = field(default_factory=list)
    claimed: dict[str, str] = field(default_factory=dict)

    def claim(self, path: str, host: str) -> None:
        """Reserves the file `path` of the head for what is fetched from `host`. Raises UsageError if the file is
        reserved for another host, because both would write to it at once."""
        other = self.claimed.setdefault(path, host)
        if other != host:
            raise UsageError(
                f"{path} would be the file of {host}, and is that of {other}",
                hint="a name with {host} in it, or a folder: c.get(remote, '{host}/')",
            )

    def close(self) -> None:
        while self.opened:
            self.opened.pop()()

    def running(self) -> Runtime:
        if self.runtime is None:
            raise UsageError("a task file connects to a host while it is read", hint="do that in a task")
        return self.runtime

    def password_for(self, host: Host) -> str | None:
        return self.passwords.get(host.name)

    def host(self, name: str, **given: Any) -> Host:
        """Returns the inventory's host with that name, or else the one with that address, or else a new host, which
        ~/.ssh/config may describe. Values in `given` (user, port, identity_file, proxy_jump) replace the host's own.
        Raises UsageError if `name` cannot be the name or the address of a host."""
        known = [host for host in self.inventory.hosts if host.name == name] or [
            host
            for host in self.inventory.hosts
            if host.address == name and given.get("port") in (None, host.port or 22)
        ]
        try:
            found = known[0] if known else parse_hop(f"[{name}]" if ":" in name else name)
        except ConnectError:
            raise UsageError(f"{name!r} is not the name or the address of a host", hint="[user@]host[:port]") from None
        return replace(found, **{key: value for key, value in given.items() if value is not None})


_ground = TaskState(Inventory(()))


def task_state() -> TaskState:
    return _ground


@contextmanager
def using_state(new: TaskState) -> Iterator[TaskState]:
    global _ground
    before, _ground = _ground, new
    try:
        yield new
    finally:
        _ground = before
