"""Defines the protocols that every transport implements.

A Transport makes Sessions (an authenticated connection to one host each). A Session starts Channels (one remote process
each). transport/program.py runs the programs of fleet/node over a Channel, in the same way on every transport. All
calls block, with a deadline; fleet/fanout.py starts a thread per host.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, runtime_checkable

from fleet.background import unattended
from fleet.codec import T
from fleet.errors import FleetError, LimitError
from fleet.model import Host
from fleet.node.base.clock import CLOCK, Clock
from fleet.node.base.wire import at_port
from fleet.requests.request import Reach

# a pause that shows that this process was suspended; between two checks of limits; between two heartbeats
HELD_UP_SECONDS, POLL_SECONDS, PING_SECONDS = 3.0, 0.5, 2.0
KNOWN_SECONDS = 20.0  # how long fleet queries why a batch system ends a job, which is killed a little later
PROGRESS_SECONDS = 120.0  # a disk or file server that hangs for less comes back by itself


@dataclass(frozen=True)
class Completed:
    """Holds the exit status (128+n for signal n) and the output of a finished remote command."""

    status: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class ConnectOptions:
    """Holds the limits of a connection. connect_timeout: seconds for TCP, banner, key exchange and login together."""

    connect_timeout: float = Reach.connect_timeout


@dataclass(frozen=True)
class Target:
    """Describes where a transport connects for a host. address: a name or an IP address, for use on the head."""

    address: str
    port: int
    user: str

    def __str__(self) -> str:
        return f"{self.user}@{at_port(self.address, self.port)}"


class Cancel:
    """Holds a latch that means "stop". It is set once, and every loop that waits watches it. A signal handler may call
    set() at any moment. count: how often the user requested the stop. within: seconds in which all must end."""

    def __init__(self) -> None:
        self._flag = False
        self.count, self.within = 0, math.inf
        self._event = threading.Event()
        self._callbacks: dict[object, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def set(self, *, asked: bool = True) -> None:
        """Sets the latch. asked: the user requested the stop; False if a batch system did."""
        self.count += asked
        if not self._flag:
            self._flag = True
            # A signal handler interrupts the main thread, which may hold the locks that _wake() needs.
            with suppress(LimitError):  # no thread could start: each loop sees the flag at its next check
                unattended("fleet-cancel", self._wake)

    def _wake(self) -> None:
        self._event.set()
        with self._lock:
            callbacks, self._callbacks = list(self._callbacks.values()), {}
        for callback in callbacks:
            callback()

    def is_set(self) -> bool:
        return self._flag

    def wait(self, seconds: float) -> bool:
        """Waits up to `seconds`. Returns True as soon as the latch is set."""
        return self._event.wait(seconds) or self._flag

    def on_set(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Registers a callback that must not block. It is called at once if the latch is set already. Returns a
        function that removes the callback again, so that the latch holds no reference to a finished host."""
        key = object()
        with self._lock:
            if not self._event.is_set():
                self._callbacks[key] = callback
                return lambda: self._callbacks.pop(key, None)
        callback()
        return lambda: None

    @contextmanager
    def calling(self, callback: Callable[[], object]) -> Iterator[None]:
        """Registers the callback with on_set() while the block lasts."""
        undo = self.on_set(callback)
        try:
            yield
        finally:
            undo()


class Watchdog:
    """Measures how long nothing was received, or how long a peer that is alive made no progress. Time in which this
    process was suspended (Ctrl-Z) does not count. Such a time shows as a long interval between two calls of seconds(),
    so callers must call it often. limit: seconds without progress after which the peer is given up."""

    def __init__(self, limit: float = PROGRESS_SECONDS, clock: Clock = CLOCK) -> None:
        self.limit, self._clock = limit, clock
        self.received()

    def received(self) -> None:
        self._last_received = self._last_polled = self._clock.monotonic()

    def received_at(self, then: float) -> None:
        """Records that a message arrived at that time, while no reader waited."""
        self._last_received = max(self._last_received, then)

    def seconds(self) -> float:
        now = self._clock.monotonic()
        if now - self._last_polled > HELD_UP_SECONDS:
            self._last_received += now - self._last_polled
        self._last_polled = now
        return now - self._last_received


class Made(Future[T]):
    """Holds a thing that one thread makes for all threads. at: the time when making it failed, by time.monotonic()."""

    at = 0.0


class Once(Generic[T]):
    """Makes things once per key. The first thread that requests a thing makes it; other threads wait for it. serves:
    returns False for a thing that must be made again. By default, a thing is made again if making it failed."""

    def __init__(self, serves: Callable[[Made[T]], bool] = lambda made: made.exception() is None) -> None:
        self._serves, self._lock = serves, threading.Lock()
        self._made: dict[Any, Made[T]] = {}

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """Returns the thing. Raises the error of making it: a copy for each thread, which adds its host."""
        try:
            return self.made(key, make).result()
        except FleetError as error:
            raise error.but().with_traceback(error.__traceback__) from error.__cause__

    def made(self, key: Any, make: Callable[[], T]) -> Made[T]:
        """Returns the future of the thing. It is done, unless another thread makes the thing at this moment."""
        with self._lock:
            made = self._made.get(key)
            if made is not None and (not made.done() or self._serves(made)):
                return made
            made = self._made[key] = Made()
        try:
            made.set_result(make())
        except BaseException as error:
            made.at = time.monotonic()
            made.set_exception(error)
        return made

    def all(self) -> list[T]:
        """Returns all things that were made without an error."""
        return [made.result() for made in self._made.copy().values() if made.done() and not made.exception()]


class Channel(Protocol):
    """Describes one remote process. Closing it closes the process's stdin, which ends every fleet program."""

    def send(self, data: bytes, *, patience: float = 120.0) -> None:
        """Writes to its stdin. Raises ConnectError(kind="lost") if the connection is gone, or if the process reads
        nothing for `patience` seconds."""

    def send_eof(self) -> None:
        """Closes its stdin."""

    def recv(self, timeout: float) -> bytes | None:
        """Returns bytes of stdout, b"" at end of file, None if nothing came within `timeout` seconds."""

    def recv_both(self, timeout: float) -> tuple[bytes, bytes] | None:
        """Returns bytes of stdout and of stderr. Both are empty at the end of both. Returns None if nothing came within
        `timeout` seconds."""

    def recv_stderr(self) -> bytes:
        """Returns the unread bytes of stderr without waiting. Only the last 64 KiB are kept."""

    def wait(self, timeout: float) -> int | None:
        """Returns the exit status (128+n for signal n), or None if the process runs after `timeout` seconds."""

    def close(self) -> None:
        """Closes the channel. Never raises."""


@runtime_checkable
class IgnoresHeartbeats(Protocol):
    """Describes a channel that can receive heartbeats without waking its reader."""

    @property
    def heartbeat_at(self) -> float:
        """Returns when the last ignored heartbeat arrived, by the session's clock; 0.0 if none arrived."""

    def ignore_heartbeat(self, heartbeat: bytes) -> None:
        """Has the next recv() drop these bytes and wait further, if no other bytes came with them."""


@runtime_checkable
class CanPing(Protocol):
    """Describes a session that can check if the other end of its connection is alive."""

    def answers(self) -> bool: ...


class Session(Protocol):
    """Describes an open, authenticated connection to one host. It is thread-safe and has several channels at once.
    address: the IP address at which this machine reached the host; None if a gateway did, or without a connection."""

    host: Host
    address: str | None

    def start(self, command: str) -> Channel:
        """Starts a command line, which the node's login shell reads. Callers pass only constants and text that
        shlex.quote() has quoted. All other values are sent as JSON to a program of fleet/node."""

    def close(self) -> None:
        """Closes the connection and all its channels. Never raises."""


class Transport(Protocol):
    """Makes sessions. connect() raises ConnectError within the timeout, with the reason as `kind` and a hint."""

    name: str

    def connect(self, host: Host, cancel: Cancel) -> Session: ...

    def resolve(self, host: Host) -> Target | None:
        """Returns the target of connect(); None if it opens no connection. Raises ConnectError (config, gateway)."""

    def route(self, host: Host) -> tuple[Host, ...]:
        """Returns the gateways to a host, outermost first. Raises ConnectError as resolve() does."""

    def close(self) -> None:
        """Closes the connections to gateways, which hosts share. Never raises."""


class Unrouted:
    """Serves as base of transports that open no connection themselves, so they resolve no address and use no
    gateway."""

    def resolve(self, host: Host) -> None:
        return None

    def route(self, host: Host) -> tuple[Host, ...]:
        return ()

    def close(self) -> None:
        """Does nothing, as hosts share no connection."""


def clock_of(session: Session) -> Clock:
    """Returns the clock by which a session's silence is measured: the session's, or this machine's if it has none."""
    clock: Clock = getattr(session, "clock", CLOCK)
    return clock


class JobEnd(NamedTuple):
    """Describes why a batch system ends a job. code: the exit code of its run. known: False if the batch system has
    sent a signal, but has not reported the reason yet. Such an end counts neither as a user's cancel nor as a time
    limit. by: "stop" if a user cancelled the job, so it must not begin again; else "queue"."""

    why: str
    code: int
    known: bool = True
    by: str = "queue"


def ended(transport: Transport, seconds: float = KNOWN_SECONDS, *, signalled: bool = False) -> JobEnd | None:
    """Returns why a batch system ends the transport's job; None if the job goes on. seconds: the limit of the query.
    signalled: this process got a signal. Its nodes may report their signals later."""
    ask: Callable[[float, bool], JobEnd | None] | None = getattr(transport, "ended", None)
    return ask(seconds, signalled) if ask is not None else None


def pass_on(transport: Transport, signum: int) -> None:
    """Sends a signal of this process on to the ranks, if a batch system sends such signals."""
    send: Callable[[int], None] | None = getattr(transport, "pass_on", None)
    if send is not None:
        send(signum)
