"""Commits a delivery: puts staged files in place, and deletes what the source no longer has."""

import os
import stat
import threading
import time

from fleet.node.base.beneath import Beneath, chmod, shown
from fleet.node.base.errors import Refused
from fleet.node.base.files import waiting_link
from fleet.node.base.types import TYPE_CHECKING, Any, Collection
from fleet.node.base.wire import encode
from fleet.node.delivery.ownership import look, same
from fleet.node.delivery.stage import REPLACED, Stage

if TYPE_CHECKING:
    Stale = list[tuple[str, os.stat_result]]  # paths, each with its stat
    Found = dict[str, os.stat_result | None]  # path -> its stat during the comparison


class Commit:
    """Changes the destination. Each step is atomic. The caller holds the lock of the state folder, which excludes other
    deliveries until the end. A read-only folder is made writable while its contents change.

    seen: folders that are writable now. modes: folder -> the mode that close() restores. moved: folders that came from
    the stage with all their files. taken: paths that this commit removed or put aside. aside: folders of the stage in
    which this commit put files aside."""

    def __init__(self, dest: "Beneath", stage: "Stage") -> None:
        self.dest, self.stage = dest, stage
        self.lock = threading.Lock()
        self.seen: set[str] = set()
        self.modes: dict[str, int] = {}
        self.moved: set[str] = set()
        self.taken: set[str] = set()
        self.aside: set[bytes] = set()

    def run(self, changed: "list[Any]", staged: "Collection[str]", found: "Found | None" = None) -> None:
        """Puts the changed entries into their new state. staged: paths whose bytes are staged; any other file only gets
        its new mode. found: path -> its stat during the comparison; with it, run() checks each path, and raises Refused
        if the path has changed since."""
        modes = {}
        try:
            for path, kind, mode, _size, _mtime, link in changed:
                if path.rpartition("/")[0] not in self.moved and found is not None:
                    self.check(path, found[path])
                    self.clear(path, kind, found[path])
                if kind == "d":
                    self.make(path)
                    modes[path] = mode
                elif kind == "l":
                    self.enter(waiting_link(self.stage.meta_of(path), encode(link)), path)
                elif path not in staged:
                    chmod(self.dest.at(encode(path)), mode)
                elif path.rpartition("/")[0] not in self.moved:
                    self.enter(self.stage.at(path), path)
        finally:
            self.close(modes)

    def check(self, path: str, found: "os.stat_result | None") -> None:
        """Raises Refused if another process has changed the path since the comparison. found: the path's stat then."""
        st = look(self.dest, path)
        if not same(st, found) and (st is not None or path not in self.taken):
            raise Refused(
                "%s changed on the node meanwhile" % shown(self.dest.at(encode(path))),
                "run the sync again; what is in place stays, and nothing was lost",
            )

    def clear(self, path: str, kind: str, found: "os.stat_result | None") -> None:
        """Removes an empty folder that a file or link will replace, or a file or link that a folder will replace. kind:
        that of the new entry. found: the stat of the present path, or None."""
        if found is not None and path not in self.taken and stat.S_ISDIR(found.st_mode) != (kind == "d"):
            self.open(path)
            (os.unlink if kind == "d" else os.rmdir)(self.dest.at(encode(path)))
            self.dest.forget(encode(path))
            self.taken.add(path)

    def put_aside(self, paths: "list[str]", found: "Found") -> None:
        """Moves the node's own files to a new folder in the state folder, which keeps them for 30 days."""
        now = "%s-%d" % (time.strftime("%Y%m%d-%H%M%S", time.gmtime()), os.getpid())
        for path in paths:
            if look(self.dest, path) is None:
                continue
            self.check(path, found[path])
            folder = os.path.join(self.stage.meta_of(path), REPLACED, now.encode())
            to = os.path.join(folder, encode(path))
            os.makedirs(os.path.dirname(to), 0o700, exist_ok=True)
            self.open(path)
            os.rename(self.dest.at(encode(path)), to)
            self.dest.forget(encode(path))
            self.taken.add(path)
            self.aside.add(folder)

    def delete(self, stale: "Stale") -> "tuple[int, list[str]]":
        """Deletes the paths in `stale`, which has a folder after its contents. Skips a path that has changed. Returns
        (number of deleted paths, folders that stay because they are not empty)."""
        deleted, kept = 0, []
        for path, st in stale:
            if not same(look(self.dest, path), st):
                continue
            self.open(path)
            try:
                (os.rmdir if stat.S_ISDIR(st.st_mode) else os.unlink)(self.dest.at(encode(path)))
            except OSError:
                if not stat.S_ISDIR(st.st_mode):
                    raise
                kept.append(path)
                continue
            self.dest.forget(encode(path))
            self.taken.add(path)
            deleted += 1
        return deleted, kept

    def make(self, path: str, whole: bool = True) -> None:
        """Makes a folder, if it does not exist. If the stage has it, moves it into place in one step, with all its
        files. whole: False if staged files may be incomplete; then the new folder is empty."""
        st = look(self.dest, path)
        if st is not None and stat.S_ISDIR(st.st_mode):
            if path.rpartition("/")[0] in self.moved:
                self.moved.add(path)
            return
        if whole and os.path.isdir(self.stage.at(path)):
            self.enter(self.stage.at(path), path)
            self.moved.add(path)
        else:
            self.open(path)
            os.mkdir(self.dest.at(encode(path)), 0o700)

    def enter(self, new: bytes, path: str) -> None:
        self.open(path)
        os.rename(new, self.dest.at(encode(path)))

    def open(self, path: str) -> None:
        """Makes the folder around a path writable. close() restores the folder's mode."""
        inside = path.rpartition("/")[0]
        if inside in self.seen:
            return
        with self.lock:
            folder = self.dest.at(encode(inside))
            if not os.access(folder, os.W_OK | os.X_OK):
                mode = stat.S_IMODE(os.lstat(folder).st_mode)
                chmod(folder, mode | 0o300)
                self.modes[inside] = mode
            self.seen.add(inside)

    def close(self, modes: "dict[str, int]") -> None:
        """Gives each folder its mode, the innermost first. That is the mode in `modes`; for a folder that is missing
        there, it is the mode before open()."""
        modes = {**self.modes, **modes}
        for inside in sorted(modes, reverse=True):
            st = look(self.dest, inside)
            if st is not None and stat.S_ISDIR(st.st_mode):
                mode = modes[inside] | st.st_mode & stat.S_ISGID  # a folder that a group shares keeps its setgid bit
                if stat.S_IMODE(st.st_mode) != mode:
                    chmod(self.dest.at(encode(inside)), mode)
