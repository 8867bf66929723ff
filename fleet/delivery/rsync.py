"""rsync as a carrier: files of a folder here into a staging folder there, over the session that is open already."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fleet.transport import rsh
from fleet.transport.base import Cancel, Session

OPTIONS = ("--times", "--from0", "--files-from=-", "--no-implied-dirs", "--partial", "--timeout=60")


def local(path: str) -> str:
    """A path as it travels, for this machine's system calls."""
    return os.fsdecode(path.encode("utf-8", "surrogateescape"))


def stage(
    session: Session,
    options: Sequence[str],
    folder: Path,
    there: str,
    paths: Iterable[str],
    *,
    cancel: Cancel,
    moved: Callable[[int], None],
) -> None:
    """Bring `paths`, relative to `folder`, to the folder `there`. moved: told of every count of bytes. Raises as
    transport.rsh.rsync does."""
    names = b"".join(path.encode("utf-8", "surrogateescape") + b"\0" for path in paths)
    rsh.rsync(session, [*OPTIONS, *options], folder, local(there), names, cancel=cancel, moved=moved)
