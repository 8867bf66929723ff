"""Starts work on daemon threads, which do not keep this process from ending."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

from fleet.codec import T
from fleet.errors import LimitError


@contextlib.contextmanager
def thread_limit() -> Iterator[None]:
    """Raises LimitError if this machine does not allow another thread."""
    try:
        yield
    except RuntimeError as error:
        raise LimitError(
            f"this machine does not allow another thread ({error})",
            hint="lower --fanout, or raise the limit: 'ulimit -u', or pids.max of this container",
        ) from error


def background(name: str, work: Callable[[], T]) -> Future[T]:
    """Starts the work on a thread of that name. Returns the future of its result. Raises LimitError as thread_limit()
    does."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    with thread_limit():
        threading.Thread(target=run, name=name, daemon=True).start()
    return future


def unattended(name: str, work: Callable[[], T]) -> Future[T]:
    """Starts work whose result no caller reads, as background() does. An error in the work is shown like an error that
    ends a thread."""

    def run() -> T:
        try:
            return work()
        except BaseException:
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            raise

    return background(name, run)
