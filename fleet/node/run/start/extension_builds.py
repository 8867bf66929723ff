"""Finds and removes stale locks of killed builds of torch's extensions (also DeepSpeed's ops), in preflight and during
a run.

A process that builds an extension makes a file `lock` in the extension's folder, keeps the file open, and removes it at
the end (torch's FileBaton). Other processes that need the extension wait until the file is gone. If the builder is
killed, the file stays, and the other processes wait for ever without a message. So a lock that no process has open is
stale. But on a shared file system, a process of another node may have the lock open.
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

# file systems that several machines may use
OF_SEVERAL = "nfs|cifs|smb|lustre|gpfs|beegfs|ceph|fuse|9p|gluster|afs|ocfs|gfs|pvfs|wekafs"


def build_root(env: "Mapping[bytes, bytes]") -> str:
    """Returns the folder in which torch builds extensions if a process has this environment."""
    home = env.get(b"HOME") or os.fsencode(os.path.expanduser("~"))
    default = os.path.join(env.get(b"XDG_CACHE_HOME") or os.path.join(home, b".cache"), b"torch_extensions")
    return os.fsdecode(os.path.realpath(env.get(b"TORCH_EXTENSIONS_DIR") or default))


def find_locks(root: str) -> "dict[str, os.stat_result]":
    """Returns {path: stat result} of all locks: ROOT/NAME/lock, and ROOT/py311_cpu/NAME/lock."""
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
    """Returns those (device, inode) pairs of `wanted` that a process has open, as far as /proc shows open files."""
    held = set()
    for path, link in (each for pid in pids() for each in open_files(pid)):
        if link.endswith("/lock"):
            with suppress(OSError):  # it was closed just now
                st = os.stat(path)
                held.add((st.st_dev, st.st_ino))
    return held & wanted


def is_shared(path: str) -> bool:
    """Returns whether other machines may use the file system of a path."""
    mounts = read_file("/proc/self/mounts").decode("utf-8", "surrogateescape")
    return re.match(OF_SEVERAL, filesystem(path, mounts)[0] or "") is not None


def stale_locks(root: str) -> "dict[str, tuple[os.stat_result, bool]]":
    """Returns {path: (stat result, sure)} of the locks that no process has open, as far as is visible. sure: no hidden
    process can have the lock open either."""
    found = find_locks(root)
    held = held_files({(st.st_dev, st.st_ino) for st in found.values()}) if found else ()
    return {
        path: (st, os.geteuid() in (0, st.st_uid) and not is_shared(path))
        for path, st in found.items()
        if (st.st_dev, st.st_ino) not in held
    }


class Builds:
    """Reports stale locks for which ranks of a run may wait, and removes stale locks that the run itself leaves. The
    file `builds` in the run's folder has the build folders, for a process that ends the run in place of its supervisor.

    roots: the build folders. began: when the run began. before: {path: inode} of the stale locks at the last look.
    reported: paths that were reported. due: the monotonic time of the next look."""

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
            with suppress(OSError), open(self.path, "ab") as f:  # the disk may be full
                f.write(os.fsencode(root) + b"\n")

    def stale(self) -> "dict[str, tuple[os.stat_result, bool]]":
        return {path: found for root in self.roots for path, found in stale_locks(root).items()}

    def look(self, now: float, engine: int, every: float = 2.0) -> "list[str]":
        """Returns stale locks that were not returned before. Returns a lock only if it was stale at the last look, too,
        so that a process has time to open a new lock. Removes stale locks of this run, as a restarted rank would wait
        for a lock of its own. now, every: seconds. engine: its pid."""
        if now < self.due:
            return []
        env = environment(engine)
        if env:  # a process in the middle of exec shows an empty environment
            self.add(build_root(env))
        self.due = now + every
        self.clear(self.before)
        found = {path: st.st_ino for path, (st, _sure) in self.stale().items()}
        fresh = [path for path in found if self.before.get(path) == found[path] and path not in self.reported]
        self.reported.update(fresh)
        self.before = found
        return sorted(fresh)

    def finish(self, seconds: float = 1.0) -> None:
        """Removes the locks that the run has left. Tries for `seconds`, as a killed process closes its files late."""
        until = time.monotonic() + seconds
        while any(st.st_ctime >= self.began - 0.01 for root in self.roots for st in find_locks(root).values()):
            self.clear()
            if time.monotonic() > until:
                break
            time.sleep(0.05)

    def clear(self, only: "dict[str, int] | None" = None) -> None:
        """Removes stale locks that the run has left. only: {path: inode} of the locks that may be removed."""
        for path, (st, sure) in self.stale().items():
            if sure and st.st_ctime >= self.began - 0.01 and (only is None or only.get(path) == st.st_ino):
                with suppress(OSError):
                    if os.lstat(path).st_ino == st.st_ino:
                        os.unlink(path)
