"""Runs work on hosts in a bounded number of threads, and checks that this machine's limits allow that."""

from __future__ import annotations

import queue
import resource
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from fleet.background import background
from fleet.codec import T
from fleet.errors import Interrupted, LimitError
from fleet.transport.base import Cancel

R = TypeVar("R")

TURN_SECONDS = 0.5
DRAIN_SECONDS = 2.0  # time after a cancel in which running work may clean up before it is abandoned
# number of open files of the interpreter, terminal, logs, gateways and name lookups: the least, and what is reserved if
# the limit allows it
OWN_FDS, RESERVED_FDS = 28, 64


def run(
    items: Iterable[T],
    work: Callable[[T], R],
    *,
    limit: int = 64,
    cancel: Cancel,
    drain: float = DRAIN_SECONDS,
) -> Iterator[tuple[T, R | BaseException]]:
    """Runs `work` in at most `limit` threads. Yields (item, result) in the order of completion. An exception of `work`
    is its result.

    After a cancel no new work starts. Items that were not started, or do not end within `drain` seconds, yield
    Interrupted. If the consumer stops, no new work starts either.
    """
    waiting = deque(enumerate(items))
    # no SimpleQueue: its get() waits for ever if a signal handler takes longer than the timeout
    done: queue.Queue[tuple[int, R | BaseException] | None] = queue.Queue()
    stopped = threading.Event()

    def worker() -> None:
        while not (stopped.is_set() or cancel.is_set()):
            try:
                index, item = waiting.popleft()
            except IndexError:
                return
            result: R | BaseException
            try:
                result = work(item)
            except BaseException as error:  # even SystemExit: a worker must not end without a result
                result = error
            done.put((index, result))

    undo = cancel.on_set(lambda: done.put(None))
    open_items = dict(waiting)
    left_at: float | None = None
    try:
        for number in range(min(max(limit, 1), len(open_items))):
            background(f"fleet-{number}", worker)
        while open_items:
            if left_at is None and cancel.is_set():
                left_at = time.monotonic() + drain
            if left_at is not None and len(open_items) <= len(waiting):  # nothing is under way
                break
            try:  # with a timeout: a signal that comes just before a wait is handled only after it
                answer = done.get(timeout=TURN_SECONDS if left_at is None else max(0.0, left_at - time.monotonic()))
            except queue.Empty:
                if left_at is None:
                    continue
                break
            if answer is not None and answer[0] in open_items:
                yield open_items.pop(answer[0]), answer[1]
        for item in open_items.values():
            yield item, Interrupted("interrupted")
    finally:
        stopped.set()
        undo()


def check_limits(n_hosts: int, fanout: int, fds_per_host: int = 2) -> None:
    """Raises the soft limit on open files to the number that so many hosts need. Raises LimitError if the hard limit
    does not allow it."""
    at_once = min(n_hosts, fanout)
    needed, wanted = (own + at_once * fds_per_host for own in (OWN_FDS, RESERVED_FDS))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    if hard == resource.RLIM_INFINITY or hard > soft:
        try:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
            )
        except (OSError, ValueError):
            hard = soft
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return
    fits = max(1, (hard - OWN_FDS) // fds_per_host)
    raise LimitError(
        f"the limit on open files (ulimit -n {hard}) is too low for {at_once} hosts at once: {needed} are needed",
        hint=f"--fanout {fits}, or 'ulimit -n {needed}' (the hard limit: /etc/security/limits.conf)",
    )
