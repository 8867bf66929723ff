"""Threads alongside the one that works: daemons, so that none keeps this process from ending."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from fleet.errors import LimitError

T = TypeVar("T")


@contextlib.contextmanager
def thread_limit() -> Iterator[None]:
    """Raises LimitError where this machine does not allow one more thread."""
    try:
        yield
    except RuntimeError as error:
        raise LimitError(
            f"this machine does not allow another thread ({error})",
            hint="lower --fanout, or raise the limit: 'ulimit -u', or pids.max of this container",
        ) from error


def background(name: str, work: Callable[[], T]) -> Future[T]:
    """Starts the work on a thread of that name, and returns what will have its result. LimitError."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    with thread_limit():
        threading.Thread(target=run, name=name, daemon=True).start()
    return future
