"""What the head keeps: collected wheels, sources, and what it has read of wheels."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet.errors import Interrupted
from fleet.events import Notice
from fleet.ops.runtime import Runtime


def cache() -> Path:
    """The folder for all of it: $XDG_CACHE_HOME/fleet, else ~/.cache/fleet."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".cache") / "fleet"


def memo(path: Path, version: int) -> Path:
    """Where what was found out about this very file is noted: its path, size, times and inode name it."""
    info = path.stat()
    text = f"{version} {path.resolve()} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns} {info.st_ino}"
    return cache() / "read" / hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def recall(note: Path) -> dict[str, Any] | None:
    """What was noted, None where nothing was."""
    try:
        value = json.loads(note.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def remember(note: Path, value: dict[str, Any]) -> None:
    """Note it; a cache that cannot be written costs time, nothing else."""
    with contextlib.suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        work = note.with_name(f"{note.name}.{os.getpid()}")
        work.write_text(json.dumps(value), "utf-8")
        work.rename(note)


def head_id() -> str:
    """Tells this cache from that of every other head: eight characters, made once."""
    path = cache() / "id"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    work = path.with_name(f"id.{os.getpid()}.{secrets.token_hex(4)}")
    if not path.exists():
        work.write_text(secrets.token_hex(4), "ascii")
        with contextlib.suppress(FileExistsError):
            os.link(work, path)
        work.unlink()
    return hashlib.sha256(path.read_bytes()).hexdigest()[:8]


@contextlib.contextmanager
def claimed(name: str, what: str, runtime: Runtime) -> Iterator[bool]:
    """One fleet at a time works on `name`, of all that share this cache; the next one says so and waits its turn.
    Yields whether it had to wait. what: "another sync of these wheels". Interrupted on Ctrl-C."""
    path = cache() / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = _lock(path)
    waited = held is None
    if waited:
        runtime.emit(Notice("info", f"waiting: {what} is under way on this machine"))
    while held is None:
        if runtime.cancel.wait(0.2):
            raise Interrupted("interrupted")
        held = _lock(path)
    try:
        yield waited
    finally:
        path.unlink(missing_ok=True)  # before it is let go: whoever opened it meanwhile sees that it is gone
        os.close(held)


def _lock(path: Path) -> int | None:
    """A descriptor that holds this lock file, None while somebody else does."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError, FileNotFoundError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), path.stat()):
            return fd
    os.close(fd)
    return None
