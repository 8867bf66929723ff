"""Keeps wheels, sources and facts about wheels in a cache on the head. Only one fleet process at a time changes it: the
one that holds a lock, which names its holder."""

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

from fleet.best_effort import best_effort
from fleet.errors import DeadlineError, HostFailed, Interrupted
from fleet.events import Notice
from fleet.node.base.errors import on_os_error
from fleet.node.base.files import replace_file, version_of
from fleet.node.base.locks import release, try_lock
from fleet.own import own_folder, read_own
from fleet.runtime import Runtime


def cache() -> Path:
    """Returns the head's cache: $XDG_CACHE_HOME/fleet, or else ~/.cache/fleet. Raises UsageError if it is another
    user's."""
    base = os.environ.get("XDG_CACHE_HOME")
    folder = (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "fleet"
    with contextlib.suppress(OSError):  # the caller reports why the cache cannot be made
        own_folder(folder, "$XDG_CACHE_HOME", make=True)
    return folder


@contextlib.contextmanager
def turn(name: str, what: str, runtime: Runtime, *, holder: str = "", within: float | None = None) -> Iterator[bool]:
    """Holds the lock `name`, which ends with the process. If another process holds it, reports that process and waits.
    Yields True if it had to wait.

    what: the work of the other process as text, "another sync of these wheels". holder: text about this process, which
    other processes show. Raises Interrupted on Ctrl-C, and DeadlineError after `within` seconds.
    """
    path = cache() / "locks" / name
    began = time.monotonic()
    with on_os_error(HostFailed, f"cannot write {path}", hint="$XDG_CACHE_HOME may name a folder that can be written"):
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
    try:
        with best_effort("write which process holds the lock"):
            os.write(held, f"process {os.getpid()}{holder and ', '}{holder}".encode("utf-8", "surrogateescape"))
        yield waited
    finally:
        path.unlink(missing_ok=True)  # before the release: a process that has opened the file finds it removed
        release(held)


def _by(path: Path) -> str:
    with contextlib.suppress(OSError):
        who = read_own(path, 999).decode("utf-8", "replace")
        return f" ({who})" if who else ""
    return ""


def _lock(path: Path) -> int | None:
    """Returns a descriptor that holds this lock file, or None if another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(FileNotFoundError):
        if try_lock(fd, fcntl.LOCK_EX, fcntl.flock) and os.path.samestat(os.fstat(fd), path.stat()):
            os.ftruncate(fd, 0)  # removes the text of a killed process
            return fd
    release(fd)
    return None


@contextlib.contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """Makes and yields an empty folder, and removes it afterwards. First removes what a killed process left there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def memo(path: Path) -> Path:
    """Returns the cache's path for facts about this file. Path, size, times and inode determine it."""
    text = f"{path.resolve()} {version_of(path.stat())}"
    return cache() / "read" / hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def recall(note: Path) -> dict[str, Any] | None:
    """Returns the stored facts, or None if there are none."""
    try:
        value = ast.literal_eval(read_own(note).decode())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return value if isinstance(value, dict) else None


def remember(note: Path, value: dict[str, Any]) -> None:
    """Stores facts, plain values of Python, if the cache can be written."""
    with best_effort("write the cache"):
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(os.fsencode(note), repr(value).encode(), durable=False)


def head_id() -> str:
    """Returns eight characters that distinguish this cache from that of any other head."""
    text = f"{socket.gethostname()} {uuid.getnode()} {cache()}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
