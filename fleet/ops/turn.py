"""One fleet at a time, of all that share this user's cache: a lock whose holder is known."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from fleet.errors import DeadlineError, HostFailed, Interrupted
from fleet.events import Notice
from fleet.runtime import Runtime


def cache() -> Path:
    """The folder for what the head keeps: $XDG_CACHE_HOME/fleet, else ~/.cache/fleet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "fleet"


@contextlib.contextmanager
def turn(name: str, what: str, runtime: Runtime, *, holder: str = "", within: float | None = None) -> Iterator[bool]:
    """Hold the lock `name`; the next one says for whom it waits, and waits its turn. Yields whether it had to wait.

    what: "another sync of these wheels". holder: who this is, in words, for the others. Interrupted on Ctrl-C,
    DeadlineError after `within` seconds. It ends with the process: one that was killed blocks nobody.
    """
    path = cache() / "locks" / name
    began = time.monotonic()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        held = _lock(path)
        waited = held is None
        if waited:
            runtime.emit(Notice("info", f"waiting: {what} is under way on this machine{_by(path)}"))
        while held is None:
            if runtime.cancel.wait(0.2):
                raise Interrupted("interrupted")
            if within is not None and time.monotonic() - began > within:
                raise DeadlineError(
                    f"{what} is still under way after {within:g} s{_by(path)}",
                    hint="let it end, or end it, then run this again",
                )
            held = _lock(path)
    except OSError as error:
        raise HostFailed(f"cannot write {path}: {error.strerror}") from error
    try:
        with contextlib.suppress(OSError):  # a full disk: then nobody is told who it is
            os.write(held, f"process {os.getpid()}{holder and ', '}{holder}".encode("utf-8", "surrogateescape"))
        yield waited
    finally:
        path.unlink(missing_ok=True)  # before it is let go: whoever opened it meanwhile sees that it is gone
        os.close(held)


def _by(path: Path) -> str:
    with contextlib.suppress(OSError):
        who = path.read_text("utf-8", "replace")
        return f" ({who})" if who else ""
    return ""


def _lock(path: Path) -> int | None:
    """A descriptor that holds this lock file, None while somebody else does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), path.stat()):
            os.ftruncate(fd, 0)  # what one that was killed had written
            return fd
    os.close(fd)
    return None
