"""The state of a target beside what it is to be, and the commit: putting in place, and taking away what the source
has no more."""

import operator
import os
import stat
import threading

from fleet.node.base.beneath import Beneath, check_folder, chmod, shown
from fleet.node.base.errors import Refused
from fleet.node.base.files import check_inside, lstat, waiting_link
from fleet.node.base.types import TYPE_CHECKING, Any
from fleet.node.base.wire import decode, encode, moved
from fleet.node.delivery.journal import Journal
from fleet.node.delivery.stage import Stage

if TYPE_CHECKING:
    Stale = list[tuple[str, os.stat_result]]  # paths, and what is there

KINDS = (("d", stat.S_ISDIR), ("f", stat.S_ISREG), ("l", stat.S_ISLNK))
NAMES = {"d": "folder", "f": "file", "l": "link", "o": "device, pipe or socket"}


def matches(entry: "list[Any]", st: "os.stat_result") -> bool:
    """Whether what is on disk is this entry, judged as rsync does: kind, size and mtime."""
    _path, kind, _mode, size, mtime_ns = entry[:5]
    if kind == "f":
        return stat.S_ISREG(st.st_mode) and st.st_size == size and st.st_mtime_ns == mtime_ns
    if kind == "d":
        return stat.S_ISDIR(st.st_mode)
    return stat.S_ISLNK(st.st_mode)


def check_place(
    dest: "Beneath", entry: "list[Any]", st: "os.stat_result | None", known: "dict[str, Any] | None"
) -> None:
    """Refuse what leads out, would go through a link of the node's, or replace something of its own. st: what is there.
    known: what came by a sync, and may become another kind; None: nothing may."""
    path, kind = entry[0], entry[1]
    if path:
        check_inside(path)
    if st is None or known is not None and delivered(path, st, known):
        return  # by us, a folder then and a file now, or the other way round
    there = next((kind for kind, is_one in KINDS if is_one(st.st_mode)), "o")
    if there != kind and (known is None or "d" in (there, kind)):
        raise Refused(
            "%s is a %s on the node, and not so in the source" % (shown(dest.at(encode(path))), NAMES[there]),
            "move it away there first",
        )


def delivered(path: str, st: "os.stat_result", known: "dict[str, Any]") -> bool:
    """Whether what is at path is a version that came by a sync: {path: [entry]}, several after interrupted ones."""
    return any(matches(entry, st) for entry in known.get(path, ()))


def look(dest: "Beneath", path: str) -> "os.stat_result | None":
    """lstat; None where nothing is there, or only through a link that the node put on the way."""
    try:
        return os.lstat(dest.at(encode(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None


def check_own(dest: "Beneath", changed: "list[Any]", known: "dict[str, Any]") -> None:
    """Refuse, while all is as it was, to replace a folder that came by a sync but holds something of the node's own."""

    def unreadable(error: "Any") -> None:
        raise error

    for path, kind, _mode, _size, _mtime, _link in changed:
        if kind == "d" or all(entry[1] != "d" for entry in known.get(path, ())):
            continue
        st = look(dest, path)
        if st is None or not stat.S_ISDIR(st.st_mode):
            continue
        top = dest.at(encode(path))
        for folder, folders, files in os.walk(top, onerror=unreadable):
            for name in folders + files:
                full = os.path.join(folder, name)
                inside, st = path + decode(full[len(top) :]), lstat(full)
                if st is not None and not delivered(inside, st, known):
                    raise Refused(
                        "%s is a folder on the node, and not so in the source; it holds %s, which is the "
                        "node's own or was changed there" % (path, inside),
                        "move %s away there, or remove it, and run the sync again; nothing was changed" % shown(full),
                    )


def compare(dest: "Beneath", entries: "list[Any]", journal: "Journal | None") -> "tuple[list[Any], list[Any]]":
    """(entries of files that the head is to send, all entries that are not there as in the source). journal: see
    check_place."""
    needed, changed = [], []
    regular, status = stat.S_IFREG, os.stat
    around: str | None = None
    folder: int | None = None  # around's; None: it is not here, or a link to another, as what belongs in it
    for entry in entries:
        path, kind, mode, size, mtime_ns, link = entry
        moved()
        inside, _, name = path.rpartition("/")
        st = None
        try:
            if inside != around:
                around, folder = inside, None
                folder = dest.folder(encode(inside))
            if folder is not None:
                st = status(encode(name) or b".", dir_fd=folder, follow_symlinks=False)
        except OSError:
            pass
        if st is not None:
            # of tens of thousands of files nearly all are as they were
            if kind == "f" and st.st_mtime_ns == mtime_ns and st.st_size == size and st.st_mode == regular | mode:
                continue
            if kind == "d" and stat.S_ISDIR(st.st_mode):
                check_folder(dest.at(encode(path)), st)
                if not (st.st_mode ^ mode) & 0o777:
                    continue
            if kind == "l" and stat.S_ISLNK(st.st_mode) and os.readlink(dest.at(encode(path))) == encode(link):
                continue
        check_place(dest, entry, st, None if journal is None else journal.known)
        changed.append(entry)
        if kind == "f" and (st is None or not matches(entry, st)):
            needed.append(entry)
    return needed, changed


def find_stale(dest: "Beneath", journal: "Journal", entries: "list[Any]") -> "Stale":
    """(path, what is there) of what was delivered and is no more in the source, the deepest first. Refused where it
    lies in a folder that is not safe to take anything away from."""
    which = operator.itemgetter(0, 1)
    gone = set(map(which, journal.entries)).difference(map(which, entries))
    folder = {e[0]: e[1] == "d" for e in entries} if gone else {}
    found = []
    for path in sorted({path for path, kind in gone if folder.get(path) != (kind == "d")}, reverse=True):
        st = look(dest, path)
        # not what is gone already, or reached through a link that the node put there; nor what a switch that was cut
        # short has put there
        if st is not None and stat.S_ISDIR(st.st_mode) != folder.get(path):
            found.append((path, st))
    return found


def count_lost(stale: "Stale", known: "dict[str, Any]") -> int:
    """How many files and links of find_stale's would be deleted."""
    return sum(delivered(path, st, known) and not stat.S_ISDIR(st.st_mode) for path, st in stale)


class Commit:
    """Puts in place what is staged. Every single step is atomic, their sum is guarded by the lock. Folders that are
    read-only are writable while what is in them changes."""

    def __init__(self, dest: "Beneath", stage: "Stage") -> None:
        self.dest, self.stage = dest, stage
        self.lock = threading.Lock()
        self.seen: set[str] = set()
        self.modes: dict[str, int] = {}
        self.moved: set[str] = set()

    def run(self, changed: "list[Any]", staged: "set[str]") -> None:
        """Make all that is changed as it is to be. staged: paths of files that have come; None has come of others."""
        modes = {}
        for path, kind, mode, _size, _mtime, link in changed:
            if kind == "d":
                self.make(path)
                modes[path] = mode
            elif kind == "l":
                self.enter(waiting_link(self.stage.meta, encode(link)), path)
            elif path not in staged:
                chmod(self.dest.at(encode(path)), mode)
            elif path.rpartition("/")[0] not in self.moved:
                self.enter(self.stage.at(path), path)
        self.close(modes)

    def delete(self, stale: "Stale", known: "dict[str, Any]") -> "tuple[int, list[str]]":
        """Remove what find_stale found, unless the node changed it. -> deleted, kept"""
        deleted, kept = 0, []
        for path, st in stale:
            if not delivered(path, st, known):
                kept.append(path)
                continue
            self.open(path)
            if not stat.S_ISDIR(st.st_mode):
                os.unlink(self.dest.at(encode(path)))
                deleted += 1
                continue
            try:
                os.rmdir(self.dest.at(encode(path)))
                self.dest.forget(encode(path))
                deleted += 1
            except OSError:
                kept.append(path)  # the node put something of its own there
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
            if st is not None and stat.S_ISDIR(st.st_mode) and stat.S_IMODE(st.st_mode) != modes[inside]:
                chmod(self.dest.at(encode(inside)), modes[inside])
