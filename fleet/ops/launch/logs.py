"""What a node's ranks wrote, on the head: HOST/rank<R>.out|.err and node.log of a run's folder.

Log files only grow, by the bytes that ranks wrote. Their sizes are the offsets at which following goes on
after a lost connection, so nothing else needs to be remembered.
"""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

from fleet.errors import ProtocolError
from fleet.protocol.state import LOG_NAME

MAX_LOGS = 3 * 4096  # of one node: more ranks than any host has
LOG = re.compile(LOG_NAME)


def stream_of(name: str) -> tuple[int | None, str]:
    """(rank or None, "stdout" or "stderr") of a log's name."""
    match = LOG.fullmatch(name)
    assert match
    return (int(match[1]) if match[1] else None), ("stdout" if match[2] == "out" else "stderr")


class NodeLogs:
    """One node's log files. Used by one thread. `blocked`: the reason why the head's disk takes nothing now.

    No file stays open: 64 nodes of 8 ranks would need more than the 1024 descriptors most systems allow.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocked: str | None = None
        self._look()

    def _look(self) -> None:
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(0o700, parents=True, exist_ok=True)
        self._sizes = {p.name: p.stat().st_size for p in self.folder.iterdir() if LOG.fullmatch(p.name)}

    def sizes(self) -> dict[str, int]:
        return dict(self._sizes)

    def write(self, name: str, offset: int, data: bytes) -> bytes:
        """Append what is not there yet of `data`, which begins at `offset`; returns that new part.

        A disk that takes nothing sets `blocked`: the file then ends early and this and all that follows is
        dropped, to be fetched again from the file's size on. So does a file that somebody else removed, or wrote to.
        ProtocolError when bytes are missing in between.
        """
        if self.blocked:
            return b""
        size = self._sizes.get(name, 0)
        if not 0 <= offset <= size:
            raise ProtocolError(f"{name}: bytes {size} to {offset} were never sent")
        if name not in self._sizes and len(self._sizes) >= MAX_LOGS:
            raise ProtocolError(f"more than {MAX_LOGS} logs")
        fresh = data[size - offset :]
        view = memoryview(fresh)
        try:
            fd = os.open(
                self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
            try:
                if os.fstat(fd).st_size != size:
                    raise OSError(errno.ESTALE, "somebody else removed files there, or wrote to them")
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                self._sizes[name] = os.fstat(fd).st_size
                os.close(fd)
        except OSError as error:
            self.blocked = error.strerror or str(error)
        return fresh[: len(fresh) - len(view)]

    def try_again(self) -> bool:
        """True when the disk takes bytes again, after a `blocked`; sizes() may be others then."""
        probe = self.folder / ".probe"
        try:
            self._look()
            probe.write_bytes(b"\0" * 65536)
        except OSError:
            return False
        finally:
            probe.unlink(missing_ok=True)
        self.blocked = None
        return True

    def tail(self, name: str, limit: int = 64 * 1024, since: int = 0) -> str:
        """The last bytes of a log as text, none before `since`; "" when there is none."""
        try:
            with (self.folder / name).open("rb") as f:
                size = f.seek(0, os.SEEK_END)
                f.seek(max(0, min(since, size), size - limit))
                return f.read().decode("utf-8", "replace")
        except OSError:
            return ""
