"""The head's own files: read, and rewritten atomically only when a byte changes."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fleet.errors import HostFailed

WORK = ".fleet-new."  # what the names of files begin with that are being written


def read(path: Path) -> bytes | None:
    """The file's bytes, None when there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HostFailed(f"{path}: {error.strerror}") from error


def write(path: Path, data: bytes | None, *, mode: int = 0o600, fix_mode: bool = False) -> bool:
    """Make `path` hold `data` (None: not exist). True when something was changed.

    A symlink keeps being one: its target is replaced. The file keeps its mode and owner; `fix_mode` repairs
    one that group or others could read. Written beside it, synced, renamed: never half there.
    """
    target = Path(os.path.realpath(path))
    try:
        if data is None:
            path.unlink(missing_ok=True)
            return True
        if read(target) == data:
            return fix_mode and repair_mode(target, mode)
        make_private_dir(target.parent)
        before = target.stat() if target.exists() else None
        fd, temporary = tempfile.mkstemp(dir=target.parent, prefix=WORK)
        try:
            with os.fdopen(fd, "wb") as out:
                out.write(data)
                out.flush()
                os.fchmod(fd, mode if fix_mode or before is None else before.st_mode & 0o7777)
                if before is not None and os.geteuid() == 0:
                    os.fchown(fd, before.st_uid, before.st_gid)
                os.fsync(fd)
            Path(temporary).rename(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise HostFailed(f"cannot write {path}: {error.strerror}") from error
    return True


def try_to_write(path: Path) -> None:
    """HostFailed where nothing could be put at `path`, as far as that shows before it is done."""
    there = Path(os.path.realpath(path)).parent
    while not there.exists():
        there = there.parent
    try:
        tempfile.TemporaryFile(dir=there).close()
    except OSError as error:
        raise HostFailed(f"cannot write {path}: {error.strerror}") from error


def make_private_dir(path: Path) -> bool:
    """Make sure the folder (and those above it) exists, 0700 when fleet makes it. True when it was made."""
    if path.is_dir():
        return False
    make_private_dir(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    return True


def repair_mode(path: Path, mode: int) -> bool:
    """Take away what group and others may do with `path` if they may anything; True when it was changed."""
    if path.stat().st_mode & 0o077:
        path.chmod(mode)
        return True
    return False
