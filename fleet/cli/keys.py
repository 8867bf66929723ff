"""Single keys while something runs, on a terminal only."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from fleet.cli import terminal

POLL_SECONDS = 0.2


def _in_foreground(fd: int) -> bool:
    """Whether we may touch the terminal: who does so in the background is stopped."""
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False


@contextmanager
def pressed(handlers: Mapping[bytes, Callable[[], object]]) -> Iterator[None]:
    """While it lasts, a key calls its handler, in a thread of its own; others do nothing. Ctrl-C is what it always is.
    Nothing of it where stdin is no terminal of ours."""
    fd = sys.stdin.fileno() if terminal.interactive(sys.stdin) else -1
    if fd < 0 or not _in_foreground(fd):
        yield
        return
    before = termios.tcgetattr(fd)
    quiet = [*before]
    quiet[3] &= ~(termios.ICANON | termios.ECHO)
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                ready = select.select([fd], [], [], POLL_SECONDS)[0] and _in_foreground(fd)
                key = os.read(fd, 1) if ready and not over.is_set() else None
            except OSError:
                return
            if key == b"":
                return
            handlers.get(key or b"", lambda: None)()

    termios.tcsetattr(fd, termios.TCSADRAIN, quiet)
    reader = threading.Thread(target=read, name="keys", daemon=True)
    reader.start()
    try:
        yield
    finally:
        over.set()
        reader.join(2 * POLL_SECONDS)
        if _in_foreground(fd):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
