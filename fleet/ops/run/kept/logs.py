"""Keeps the output of a node's ranks on the head, as HOST/rank<R>.out|.err and node.log in a run's folder.

Log files only grow, by the bytes that ranks wrote. Their sizes are the offsets at which following continues after a
lost connection. So no other record is needed, except for gaps: bytes that the node no longer had (--max-log). For each
gap there is a line in the log, and the file GAPS has the gap's size."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from fleet import own
from fleet.errors import ProtocolError, UsageError
from fleet.node.base.files import replace_file, tail_of
from fleet.ops.run.kept.documents import read_object
from fleet.protocol.state import METRICS, NODE_LOG, is_log

MAX_LOGS = 3 * 4096  # of one node: more ranks than any host has
GAPS = "gaps.json"


def stream_of(name: str) -> tuple[int | None, str]:
    """Returns (rank or None, "stdout" or "stderr") for a log's name."""
    return None if name in (NODE_LOG, METRICS) else int(name[4:-4]), "stdout" if name.endswith(".out") else "stderr"


class NodeLogs:
    """Writes the log files of one node. Only one thread uses it. blocked: why the head's disk takes no bytes now. gaps:
    log -> number of missing bytes.

    No file stays open: 64 nodes of 8 ranks would need more than the 1024 descriptors that most systems allow.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blocked: str | None = None
        self.gaps = dict[str, int]()
        self._look()

    def _look(self) -> None:
        """Makes the folder, and reads the sizes and the gaps of its logs."""
        for folder in (self.folder.parent, self.folder):
            folder.mkdir(0o700, parents=True, exist_ok=True)
            if (why := own.foreign(folder)) is not None:  # logs would be written through a link, or for another user
                raise UsageError(f"{folder} {why}", hint=f"look at it, and remove it: ls -ld {folder}")
        found = {p.name: p.stat().st_size for p in self.folder.iterdir() if is_log(p.name)}
        stored = read_object(self.folder / GAPS)
        # log -> how much smaller the file is than the offset on the node
        self._after: dict[str, int] = stored.get("behind", {})
        self.gaps = stored.get("bytes", {})
        self._sizes = {name: size + self._after.get(name, 0) for name, size in found.items()}

    def sizes(self) -> dict[str, int]:
        """Returns log -> the offset up to which this machine has it."""
        return dict(self._sizes)

    def skip(self, name: str, offset: int) -> None:
        """Writes a line in the place of the missing bytes before `offset`, which no node has any more."""
        missing = offset - self._sizes.get(name, 0)
        if missing <= 0 or self.blocked or not is_log(name):
            return
        line = f"\n[fleet: {missing} bytes are not here: the node kept no more, --max-log]\n".encode()
        self.gaps = {**self.gaps, name: self.gaps.get(name, 0) + missing}
        self._after = {**self._after, name: self._after.get(name, 0) + missing - len(line)}
        try:
            # GAPS first: a gap without its line is still a gap; a line without its gap would count as output
            stored = json.dumps({"bytes": self.gaps, "behind": self._after})
            replace_file(os.fsencode(self.folder / GAPS), stored.encode(), 0o600)
        except OSError as error:
            self.blocked = error.strerror or str(error)
            return
        self._sizes[name] = offset - len(line)
        self.write(name, offset - len(line), line)

    def write(self, name: str, offset: int, data: bytes) -> bytes:
        """Appends the part of `data` that the file lacks, and returns that part. `data` begins at `offset`.

        A full disk sets `blocked`, and so does a file that another process removed or wrote to. The file then ends
        early. Further bytes are dropped, and are fetched again later from the file's size on. Raises ProtocolError if
        bytes are missing before `offset`.
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
            fd = own.private(str(self.folder / name), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC)
            try:
                lag = self._after.get(name, 0)
                if os.fstat(fd).st_size != size - lag:
                    raise OSError(errno.ESTALE, "another process removed files there, or wrote to them")
                while view:
                    view = view[os.write(fd, view) :]
            finally:
                self._sizes[name] = os.fstat(fd).st_size + lag
                os.close(fd)
        except OSError as error:
            self.blocked = error.strerror or str(error)
        return fresh[: len(fresh) - len(view)]

    def try_again(self) -> bool:
        """Returns whether the disk takes bytes again after it was `blocked`. sizes() may have changed then."""
        probe = self.folder / ".probe"
        try:
            self._look()
            probe.unlink(missing_ok=True)
            with open(probe, "xb", opener=own.private) as file:
                file.write(b"\0" * 65536)
        except OSError:
            return False
        finally:
            probe.unlink(missing_ok=True)
        self.blocked = None
        return True

    def tail(self, name: str, limit: int = 64 * 1024, since: int = 0, until: int | None = None) -> str:
        """Returns the last bytes of a log as text, none before `since` and none from `until` on; "" if there is no
        log."""
        try:
            with own.open_own(self.folder / name) as f:
                return tail_of(f, limit, since, until)
        except OSError:
            return ""
