"""Builds of torch's extensions, DeepSpeed's ops among them, that were killed: part of preflight and of a run.

Who builds one holds a new file `lock` in its folder open, and removes it in the end (torch's FileBaton); who wants
the extension meanwhile waits until that file is gone. Killed in between it stays, and all wait for ever without a
message. So a lock that no process has open is stale; on a file system of several machines it may be one of another
node.
"""

import glob
import os
import re
import stat
import time
from contextlib import suppress

from fleet.node.base.files import filesystem
from fleet.node.base.processes import environment, open_files, pids, read_file
from fleet.node.base.run_folder import written_at
from fleet.node.base.types import Mapping
from fleet.protocol.state import SPEC

OF_SEVERAL = "nfs|cifs|smb|lustre|gpfs|beegfs|ceph|fuse|9p|gluster|afs|ocfs|gfs|pvfs|wekafs"


def build_root(env: "Mapping[bytes, bytes]") -> str:
    """The folder in which torch builds, in an environment."""
    home = env.get(b"HOME") or os.fsencode(os.path.expanduser("~"))
    default = os.path.join(env.get(b"XDG_CACHE_HOME") or os.path.join(home, b".cache"), b"torch_extensions")
    return os.fsdecode(os.path.realpath(env.get(b"TORCH_EXTENSIONS_DIR") or default))


def find_locks(root: str) -> "dict[str, os.stat_result]":
    """{path: stat result}: ROOT/NAME/lock, and ROOT/py311_cpu/NAME/lock."""
    found = {}
    for folders in ("*", "*/*"):
        for path in glob.iglob(os.path.join(glob.escape(root), folders, "lock")):
            try:
                st = os.lstat(path)
            except OSError:
                continue  # its build has just ended
            if stat.S_ISREG(st.st_mode):
                found[path] = st
    return found


def held_files(wanted: "set[tuple[int, int]]") -> "set[tuple[int, int]]":
    """Returns those of (device, inode) pairs that some process has open, as far as /proc shows them."""
    held = set()
    for path, link in (each for pid in pids() for each in open_files(pid)):
        if link.endswith("/lock"):
            with suppress(OSError):  # closed under our eyes
                st = os.stat(path)
                held.add((st.st_dev, st.st_ino))
    return held & wanted


def is_shared(path: str) -> bool:
    """Is true where other machines may use the file system that a path lies on."""
    mounts = read_file("/proc/self/mounts").decode("utf-8", "surrogateescape")
    return re.match(OF_SEVERAL, filesystem(path, mounts)[0] or "") is not None


def stale_locks(root: str) -> "dict[str, tuple[os.stat_result, bool]]":
    """{path: (stat result, sure)} of the locks that no process has open. sure: no process that is out of sight can."""
    found = find_locks(root)
    held = held_files({(st.st_dev, st.st_ino) for st in found.values()}) if found else ()
    return {
        path: (st, os.geteuid() in (0, st.st_uid) and not is_shared(path))
        for path, st in found.items()
        if (st.st_dev, st.st_ino) not in held
    }


class Builds:
    """The stale locks that the run in a folder meets, and those that it leaves itself; their places are in the
    file `builds`, for the process that ends the run when its supervisor cannot."""

    def __init__(self, folder: str) -> None:
        self.path = os.path.join(folder, "builds")
        self.roots = set(os.fsdecode(read_file(self.path)).splitlines())
        self.began = written_at(os.path.join(folder, SPEC)) or time.time()
        self.before: dict[str, int] = {}
        self.reported: set[str] = set()
        self.due = 0.0

    def add(self, root: str) -> None:
        if root not in self.roots:
            self.roots.add(root)
            with suppress(OSError), open(self.path, "ab") as f:  # there may be no room
                f.write(os.fsencode(root) + b"\n")

    def stale(self) -> "dict[str, tuple[os.stat_result, bool]]":
        return {path: found for root in self.roots for path, found in stale_locks(root).items()}

    def look(self, now: float, engine: int, every: float = 2.0) -> "list[str]":
        """Locks that are new and stale, since the last look at least: who is just being started has time to be seen.
        Those that the run itself has left are taken away: a rank that is started again would wait for itself."""
        if now < self.due:
            return []
        env = environment(engine)
        if env:  # it is not in the middle of its exec
            self.add(build_root(env))
        self.due = now + every
        self.clear(self.before)
        found = {path: st.st_ino for path, (st, _sure) in self.stale().items()}
        fresh = [path for path in found if self.before.get(path) == found[path] and path not in self.reported]
        self.reported.update(fresh)
        self.before = found
        return sorted(fresh)

    def finish(self, seconds: float = 1.0) -> None:
        """Take away what the run has left in the end. A process that was killed closes its files a moment later."""
        until = time.monotonic() + seconds
        while any(st.st_ctime >= self.began - 0.01 for root in self.roots for st in find_locks(root).values()):
            self.clear()
            if time.monotonic() > until:
                break
            time.sleep(0.05)

    def clear(self, only: "dict[str, int] | None" = None) -> None:
        """Take away what the run has left. only: {path: inode} of those that may be."""
        for path, (st, sure) in self.stale().items():
            if sure and st.st_ctime >= self.began - 0.01 and (only is None or only.get(path) == st.st_ino):
                with suppress(OSError):
                    if os.lstat(path).st_ino == st.st_ino:
                        os.unlink(path)
