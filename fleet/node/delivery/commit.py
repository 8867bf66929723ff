"""The commit: putting in place what is staged, and taking away what the source has no more."""

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
    Stale = list[tuple[str, os.stat_result]]  # paths, and what is there
    Found = dict[str, os.stat_result | None]  # path -> what was there


class Commit:
    """Puts in place what is staged. Every single step is atomic, their sum is guarded by the lock. Folders that are
    read-only are writable while what is in them changes."""

    def __init__(self, dest: "Beneath", stage: "Stage") -> None:
        self.dest, self.stage = dest, stage
        self.lock = threading.Lock()
        self.seen: set[str] = set()
        self.modes: dict[str, int] = {}
        self.moved: set[str] = set()
        self.taken: set[str] = set()  # away by us
        self.aside: set[bytes] = set()  # the folders where that is kept

    def run(self, changed: "list[Any]", staged: "Collection[str]", found: "Found | None" = None) -> None:
        """Make all that is changed as it is to be. staged: paths of files that have come; None has come of others.
        found: what was there when it was compared; Refused where that has changed since."""
        modes = {}
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
        self.close(modes)

    def check(self, path: str, found: "os.stat_result | None") -> None:
        """No process has put another thing there since it was looked at."""
        st = look(self.dest, path)
        if not same(st, found) and (st is not None or path not in self.taken):
            raise Refused(
                "%s changed on the node meanwhile" % shown(self.dest.at(encode(path))),
                "run the sync again; what is in place stays, and nothing was lost",
            )

    def clear(self, path: str, kind: str, found: "os.stat_result | None") -> None:
        """Removes a folder that is to become another kind, or a file that is to become a folder. Of either only the
        name is left by now."""
        if found is not None and path not in self.taken and stat.S_ISDIR(found.st_mode) != (kind == "d"):
            self.open(path)
            (os.unlink if kind == "d" else os.rmdir)(self.dest.at(encode(path)))
            self.dest.forget(encode(path))
            self.taken.add(path)

    def put_aside(self, paths: "list[str]", found: "Found") -> None:
        """Moves the node's own files to a folder of their own in the state folder, where they are kept for 30 days."""
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
        """Remove this, the deepest first, unless the node has changed it since. -> how many; folders that hold more."""
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
        """A folder; a new one comes with all its new files in one step, unless they are not whole yet."""
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
        """The folder that path is in."""
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
        """Give every folder its mode: the one in `modes`, or that of before. What is inside comes first."""
        modes = {**self.modes, **modes}
        for inside in sorted(modes, reverse=True):
            st = look(self.dest, inside)
            if st is not None and stat.S_ISDIR(st.st_mode):
                mode = modes[inside] | st.st_mode & stat.S_ISGID  # of a folder that is shared with a group
                if stat.S_IMODE(st.st_mode) != mode:
                    chmod(self.dest.at(encode(inside)), mode)
