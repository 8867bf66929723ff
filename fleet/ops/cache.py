"""Keeps collected wheels and sources on the head, and what was read of wheels. Of all fleets that share it one works at
a time: a lock whose holder is known."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import os
import shutil
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet.errors import DeadlineError, HostFailed, Interrupted
from fleet.events import Notice
from fleet.node.base.files import version_of
from fleet.node.base.locks import release, try_lock
from fleet.own import own_folder, read_own
from fleet.runtime import Runtime


def cache() -> Path:
    """The folder for what the head keeps: $XDG_CACHE_HOME/fleet, else ~/.cache/fleet. UsageError where it is another
    user's."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "fleet"
    with contextlib.suppress(OSError):  # its user reports why it cannot be made
        own_folder(folder, "$XDG_CACHE_HOME", make=True)
    return folder


@contextlib.contextmanager
def turn(name: str, what: str, runtime: Runtime, *, holder: str = "", within: float | None = None) -> Iterator[bool]:
    """Hold the lock `name`; the next one reports the holder, and waits its turn. Yields whether it had to wait.

    what: "another sync of these wheels". holder: who this is, as text for the others. Interrupted on Ctrl-C,
    DeadlineError after `within` seconds. It ends with the process: one that was killed blocks no other.
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
        raise HostFailed(
            f"cannot write {path}: {error.strerror}", hint="$XDG_CACHE_HOME may name a folder that can be written"
        ) from error
    try:
        with contextlib.suppress(OSError):  # a full disk: then the holder is not reported
            os.write(held, f"process {os.getpid()}{holder and ', '}{holder}".encode("utf-8", "surrogateescape"))
        yield waited
    finally:
        path.unlink(missing_ok=True)  # before it is let go: a process that opened it meanwhile sees that it is gone
        release(held)


def _by(path: Path) -> str:
    with contextlib.suppress(OSError):
        who = read_own(path, 999).decode("utf-8", "replace")
        return f" ({who})" if who else ""
    return ""


def _lock(path: Path) -> int | None:
    """A descriptor that holds this lock file, None while another process does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(FileNotFoundError):
        if try_lock(fd, fcntl.LOCK_EX, fcntl.flock) and os.path.samestat(os.fstat(fd), path.stat()):
            os.ftruncate(fd, 0)  # what one that was killed had written
            return fd
    release(fd)
    return None


@contextlib.contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """An empty folder, for a while; what a killed process had left there is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def memo(path: Path) -> Path:
    """Returns the file that notes what is known about this very file: its path, size, times and inode name it."""
    text = f"{path.resolve()} {version_of(path.stat())}"
    return cache() / "read" / hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def recall(note: Path) -> dict[str, Any] | None:
    """Returns what was noted, None where nothing was."""
    try:
        value = ast.literal_eval(read_own(note).decode())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, dict) else None


def remember(note: Path, value: dict[str, Any]) -> None:
    """Note it, plain values of Python; a cache that cannot be written costs time, nothing else."""
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        work = note.with_name(f"{note.name}.{os.getpid()}")
        work.write_text(repr(value), "utf-8")
        work.rename(note)


def head_id() -> str:
    """Distinguishes this cache from that of every other head: eight characters."""
    text = f"{socket.gethostname()} {uuid.getnode()} {cache()}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
