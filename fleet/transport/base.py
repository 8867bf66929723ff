"""How bytes reach a host: the protocols that every transport implements.

A Transport makes Sessions (an authenticated connection to one host), a Session starts Channels (one remote
process each). Programs of fleet/node run over a Channel through transport/program.py, the same way on
every transport. All calls block with a deadline; one thread per host is fanout's business.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from fleet.model import Host
from fleet.node.base.clock import CLOCK, Clock
from fleet.requests.reach import Reach

T = TypeVar("T")
HELD_UP_SECONDS = 3.0
POLL_SECONDS = 0.5
PING_SECONDS = 2.0
PROGRESS_SECONDS = 120.0  # a disk or file server that hangs for less comes back by itself


@dataclass(frozen=True)
class Completed:
    """A finished remote command: its exit status (128+n for signal n) and everything it wrote."""

    status: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True)
class ConnectOptions:
    """connect_timeout: seconds for TCP, banner, key exchange and authentication together."""

    connect_timeout: float = Reach.connect_timeout


@dataclass(frozen=True)
class Target:
    """Describes where a transport connects for a host. address: a name or a number, as the head has it."""

    address: str
    port: int
    user: str

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{address}:{self.port}"


class Cancel:
    """A latch that means "stop": set once, watched by every loop that waits. set() may be called from a signal
    handler, at any moment. count: how often its user did. within: seconds in which who set it wants all to be over."""

    def __init__(self) -> None:
        self._flag = False
        self.count, self.within = 0, math.inf
        self._event = threading.Event()
        self._callbacks: dict[object, Callable[[], object]] = {}
        self._lock = threading.Lock()

    def set(self, *, asked: bool = True) -> None:
        """asked: its user requests it; else the surroundings of this process do."""
        self.count += asked
        if not self._flag:
            self._flag = True
            # A handler runs between two steps of the main thread, which may hold the very locks that waking
            # others needs; a thread of its own waits for them without harm.
            threading.Thread(target=self._wake, name="fleet-cancel", daemon=True).start()

    def _wake(self) -> None:
        self._event.set()
        with self._lock:
            callbacks, self._callbacks = list(self._callbacks.values()), {}
        for callback in callbacks:
            callback()

    def is_set(self) -> bool:
        return self._flag

    def wait(self, seconds: float) -> bool:
        """Sleep up to `seconds`; True as soon as it is set."""
        return self._event.wait(seconds) or self._flag

    def on_set(self, callback: Callable[[], object]) -> Callable[[], object]:
        """Call back once set, at once when it is set already; callbacks must not block. Returns what takes
        the callback off again, so that a thousand finished hosts are not kept alive by it."""
        key = object()
        with self._lock:
            if not self._event.is_set():
                self._callbacks[key] = callback
                return lambda: self._callbacks.pop(key, None)
        callback()
        return lambda: None


class Silence:
    """How long nothing was received; time in which this process itself was held up (Ctrl-Z, a suspended machine) is no
    silence of a peer. Call it often: by `seconds` it distinguishes being held up from the time since the last call."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._clock = clock
        self.word()

    def word(self) -> None:
        self._heard = self._asked = self._clock.monotonic()

    def word_at(self, then: float) -> None:
        """A message that came by itself, while no reader looked."""
        self._heard = max(self._heard, then)

    def seconds(self) -> float:
        now = self._clock.monotonic()
        if now - self._asked > HELD_UP_SECONDS:
            self._heard += now - self._asked
        self._asked = now
        return now - self._heard


class Watchdog(Silence):
    """How long nothing has moved at one that is alive. limit: seconds of that after which it is given up."""

    def __init__(self, limit: float = PROGRESS_SECONDS, clock: Clock = CLOCK) -> None:
        super().__init__(clock)
        self.limit = limit


class Made(Future[T]):
    """Holds what one thread makes for all. at: when that failed, as time.monotonic()."""

    at = 0.0


class Once(Generic[T]):
    """Things by key, each made by the first thread that asks for it, while the others wait. serves: whether one that is
    made need not be made again; by default one that did not fail."""

    def __init__(self, serves: Callable[[Made[T]], bool] = lambda made: made.exception() is None) -> None:
        self._serves, self._lock = serves, threading.Lock()
        self._made: dict[Any, Made[T]] = {}

    def get(self, key: Any, make: Callable[[], T]) -> T:
        """Returns what was made; raises what making it raised."""
        return self.made(key, make).result()

    def made(self, key: Any, make: Callable[[], T]) -> Made[T]:
        """Made by now, or by this thread, or just now by another."""
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
        """Returns all that was made, and did not fail."""
        return [made.result() for made in self._made.copy().values() if made.done() and not made.exception()]


class Channel(Protocol):
    """One remote process. Closing it closes the process's stdin, which ends every fleet program."""

    def send(self, data: bytes, *, patience: float = 120.0) -> None:
        """Write to its stdin; ConnectError(kind="lost") when the connection is gone, or when it reads nothing for
        `patience` seconds."""

    def send_eof(self) -> None:
        """Close its stdin."""

    def recv(self, timeout: float) -> bytes | None:
        """Some bytes of stdout; b"" at end of file; None when nothing came within `timeout` seconds."""

    def recv_both(self, timeout: float) -> tuple[bytes, bytes] | None:
        """Some bytes of stdout and of stderr; both empty at the end of both; None when nothing came within `timeout`
        seconds."""

    def recv_stderr(self) -> bytes:
        """Returns what has come on stderr so far and was not read yet (non-blocking, at most 64 KiB kept)."""

    def wait(self, timeout: float) -> int | None:
        """The exit status (128+n for signals), None when it did not end within `timeout` seconds."""

    def close(self) -> None:
        """Give the channel up; never raises."""


@runtime_checkable
class Drowsy(Protocol):
    """A channel that need not wake its reader for heartbeats only."""

    @property
    def passed_at(self) -> float:
        """When such a thing came last, in monotonic seconds of the session's clock; 0.0: never."""

    def pass_over(self, beat: bytes) -> None:
        """The next recv() does not end for these bytes, if they come by themselves; they are swallowed."""


@runtime_checkable
class Answering(Protocol):
    """A session that can ask whether the other end of its connection lives, whatever is started there."""

    def answers(self) -> bool: ...


class Session(Protocol):
    """An open, authenticated connection to one host; thread-safe, several channels at once.

    address: the numeric one that this machine reached it at; None where another machine did, or none had to.
    """

    host: Host
    address: str | None

    def start(self, command: str) -> Channel:
        """Start a command LINE as the node's login shell reads it. Callers pass constants, or text they
        quoted with shlex.quote; everything else goes as JSON to a program of fleet/node."""

    def close(self) -> None:
        """Close the connection and all its channels; never raises."""


class Transport(Protocol):
    """Makes sessions. `connect` raises ConnectError with the reason as `kind` and a hint, in time."""

    name: str

    def connect(self, host: Host, cancel: Cancel) -> Session: ...

    def resolve(self, host: Host) -> Target | None:
        """Returns where connect() leads; None where there is no connection to make. Raises ConnectError(kind="config",
        "gateway")."""

    def route(self, host: Host) -> tuple[Host, ...]:
        """The gateways to a host, outermost first. ConnectError as resolve()."""

    def close(self) -> None:
        """Close what is shared between hosts (gateways); never raises."""


class Near:
    """The half of a transport that connects to no host by itself: there is no address to find, and no gateway."""

    def resolve(self, host: Host) -> None:
        return None

    def route(self, host: Host) -> tuple[Host, ...]:
        return ()

    def close(self) -> None:
        """Nothing is shared between hosts."""


def clock_of(session: Session) -> Clock:
    """Returns the clock by which a session's silence is measured: its own, else this machine's."""
    clock: Clock = getattr(session, "clock", CLOCK)
    return clock


def ended(transport: Transport) -> tuple[str, int] | None:
    """(why, the exit code that this makes) where a batch system ends what the transport is within; None elsewhere."""
    ask: Callable[[], tuple[str, int] | None] | None = getattr(transport, "ended", None)
    return ask() if ask is not None else None
