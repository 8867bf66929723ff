"""Defines the order in which a sync takes the locks of its hosts. If hosts share a folder, one of them holds the
folder's lock and writes the folder. The other hosts have the result of that host."""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Sequence

from fleet.answers.sync import Received, Synced
from fleet.errors import HostFailed
from fleet.events import Event, Finished
from fleet.model import Host, Result
from fleet.protocol.messages.values import Claim
from fleet.transport.base import Cancel

CONNECT_SECONDS = 3.0  # the others wait so long for the first host to connect, then start without it
LOCK_WAIT_SECONDS = 10.0  # a node waits so long for a lock that another sync holds
LOCK_SECONDS = 5.0  # the first host, once locked, waits so long for all others


def claim() -> Claim:
    """Returns the part of a sync's spec that its locks need: the sync's id, the name that waiting syncs show for it,
    and the seconds that it waits for a lock."""
    return {"sync": uuid.uuid4().hex, "head": f"{socket.gethostname()} (pid {os.getpid()})", "wait": LOCK_WAIT_SECONDS}


class LockOrder:
    """Makes a sync lock its first host before all others. The first host then waits up to LOCK_SECONDS, before it
    receives any file, until all others are locked. If two syncs have the same hosts, the one that locks the first host
    gets them all. The other one waits, or is refused on all of them."""

    def __init__(self, hosts: Sequence[Host], cancel: Cancel) -> None:
        self._first = hosts[0].name if hosts else ""
        self._others = {host.name for host in hosts[1:]}
        self._cancel = cancel
        self._changed = threading.Condition()
        # _asking: the first host is connected and requests its lock. _open: the others may request theirs
        self._asking, self._open = False, not hosts
        self._refusal: Result | None = None

    def begin(self, name: str) -> None:
        """Waits for the turn of a connected host. Raises HostFailed if another sync holds the first host."""
        with self._changed:
            if name == self._first:
                self._asking = True
                self._changed.notify_all()
                return
            self._wait(lambda: self._asking or self._open, CONNECT_SECONDS)
            if self._asking:
                self._wait(lambda: self._open, None)
            error = self._refusal and self._refusal.error
            if error:
                raise HostFailed(
                    f"not begun: {error.message} (host {self._first})", hint=error.hint, host=name, kind=error.kind
                )

    def locked(self, name: str) -> None:
        """Records that a host's lock is held. For the first host, it waits until the other hosts' locks are held,
        too."""
        self.release_turn(name)
        with self._changed:
            if name == self._first:
                self._wait(lambda: not self._others, LOCK_SECONDS)

    def watch(self, emit: Callable[[Event], None]) -> Callable[[Event], None]:
        """Returns an `emit` that also records which hosts have ended, and how."""

        def seen(event: Event) -> None:
            if isinstance(event, Finished):
                with self._changed:
                    error = event.result.error
                    if event.result.host == self._first and error is not None and error.kind == "busy":
                        self._refusal = event.result
                self.release_turn(event.result.host)
            emit(event)

        return seen

    def release_turn(self, name: str) -> None:
        """Records that a host's lock is held, or that the host takes no lock."""
        with self._changed:
            self._others.discard(name)
            self._open = self._open or name == self._first
            self._changed.notify_all()

    def _wait(self, until: Callable[[], bool], seconds: float | None) -> None:
        end = None if seconds is None else time.monotonic() + seconds
        while not (until() or self._cancel.is_set() or end is not None and time.monotonic() >= end):
            self._changed.wait(0.1)


def shared_with(result: Result) -> str | None:
    """Returns the name of the host that shares the folder and writes it, or None."""
    return result.answer.shared_with if isinstance(result.answer, Synced | Received) else None


def with_shared(results: Sequence[Result]) -> tuple[Result, ...]:
    """Returns the results, in which a host that shares a folder fails if the host that writes the folder failed."""
    of = {result.host: result for result in results}

    def final(result: Result) -> Result:
        writer = of.get(shared_with(result) or "")
        if writer is None or writer.ok or not result.ok:
            return result
        error = HostFailed(f"shares its folder with host {writer.host}, which failed", host=result.host, kind="sync")
        return Result(result.host, False, error=error, answer=result.answer)

    return tuple(map(final, results))
