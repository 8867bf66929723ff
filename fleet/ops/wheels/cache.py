"""What the head keeps: collected wheels, sources, and what it has read of wheels."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fleet.ops.turn import cache


@contextlib.contextmanager
def fresh(folder: Path) -> Iterator[Path]:
    """An empty folder, for a while; what one that was killed had left there is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def memo(path: Path, version: int) -> Path:
    """Where what was found out about this very file is noted: its path, size, times and inode name it."""
    info = path.stat()
    text = f"{version} {path.resolve()} {info.st_size} {info.st_mtime_ns} {info.st_ctime_ns} {info.st_ino}"
    return cache() / "read" / hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def recall(note: Path) -> dict[str, Any] | None:
    """What was noted, None where nothing was."""
    try:
        value = ast.literal_eval(note.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError):
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
    """Tells this cache from that of every other head: eight characters."""
    text = f"{socket.gethostname()} {uuid.getnode()} {cache()}"
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
