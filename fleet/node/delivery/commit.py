"""The state of a target beside what it is to be, and the commit: putting in place, and taking away what the source
has no more."""

import os
import stat
import threading
from contextlib import suppress

from fleet.node.base.beneath import Beneath, check_folder, chmod, shown
from fleet.node.base.errors import Refused
from fleet.node.base.files import check_inside, lstat, to_disk, waiting_link
from fleet.node.base.types import Any, Iterator
from fleet.node.base.wire import decode, encode
from fleet.node.delivery.stage import Stage

KINDS = (("d", stat.S_ISDIR), ("f", stat.S_ISREG), ("l", stat.S_ISLNK))
NAMES = {"d": "folder", "f": "file", "l": "link", "o": "device, pipe or socket"}
FEW = 50  # files that are brought to the disk one by one: an fsync takes 0.3 ms to 10 ms


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
    """Refuse, while all is as it was, to replace a folder that came by a sync but holds something of the node's own;
    and folders that are not safe to take anything away from."""

    def unreadable(error: "Any") -> None:
        raise error

    for path in known:
        look(dest, path)
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


def compare(dest: "Beneath", entries: "list[Any]", known: "dict[str, Any] | None") -> "tuple[list[Any], list[Any]]":
    """(entries of files that the head is to send, all entries that are not there as in the source)."""
    needed, changed = [], []
    regular, at, of = stat.S_IFREG, dest.at, os.lstat
    missing = ()  # "FOLDER/", the last that is not here, or is a link to another: nothing that belongs in it is here
    for entry in entries:
        path, kind, mode, size, mtime_ns, link = entry
        inside = path.startswith(missing)
        try:
            full = at(encode(path))
            st = None if inside else of(full)
        except OSError:
            st = None
        if st is not None:
            # of tens of thousands of files nearly all are as they were
            if kind == "f" and st.st_mtime_ns == mtime_ns and st.st_size == size and st.st_mode == regular | mode:
                continue
            if kind == "d" and stat.S_ISDIR(st.st_mode):
                check_folder(full, st)
                if not (st.st_mode ^ mode) & 0o777:
                    continue
            if kind == "l" and stat.S_ISLNK(st.st_mode) and os.readlink(full) == encode(link):
                continue
        check_place(dest, entry, st, known)
        changed.append(entry)
        if kind == "d" and not inside and (st is None or not stat.S_ISDIR(st.st_mode)):
            missing = path + "/"
        if kind == "f" and (st is None or not matches(entry, st)):
            needed.append(entry)
    return needed, changed


def find_stale(dest: "Beneath", known: "dict[str, Any]", entries: "list[Any]") -> "Iterator[Any]":
    """(path, what is there) of what was delivered and is no more in the source, the deepest first."""
    folder = {e[0]: e[1] == "d" for e in entries}
    stale = [path for path, versions in known.items() if any(folder.get(path) != (e[1] == "d") for e in versions)]
    for path in sorted(stale, reverse=True):
        st = look(dest, path)
        if st is None:
            continue  # gone already, or reached through a link that the node put there
        if stat.S_ISDIR(st.st_mode) == folder.get(path):
            continue  # what a switch that was cut short has put there
        yield path, st


def count_lost(
    dest: "Beneath", known: "dict[str, Any]", entries: "list[Any]", needed: "list[Any]"
) -> "tuple[int, int]":
    """(how many files and links that were delivered would be deleted, how many files would be replaced)."""
    deleted = sum(
        delivered(path, st, known) and not stat.S_ISDIR(st.st_mode) for path, st in find_stale(dest, known, entries)
    )
    return deleted, sum(look(dest, entry[0]) is not None for entry in needed)


def delete_stale(
    dest: "Beneath", known: "dict[str, Any]", entries: "list[Any]", commit: "Commit"
) -> "tuple[int, list[str]]":
    """Remove what was delivered and is no more in the source, unless the node changed it. -> deleted, kept"""
    deleted, kept = 0, []
    for path, st in find_stale(dest, known, entries):
        if not delivered(path, st, known):
            kept.append(path)
            continue
        commit.open(path)
        if not stat.S_ISDIR(st.st_mode):
            os.unlink(dest.at(encode(path)))
            deleted += 1
            continue
        try:
            os.rmdir(dest.at(encode(path)))
            dest.forget(encode(path))
            deleted += 1
        except OSError:
            kept.append(path)  # the node put something of its own there
    return deleted, kept


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


def flush(dest: "Beneath", needed: "list[Any]") -> None:
    """Bring the files that were put in place to the disk, before the state vouches for them."""
    with suppress(PermissionError):  # a mode without "r"
        if len(needed) <= FEW:
            for entry in needed:
                to_disk(dest.at(encode(entry[0])))
            return
    import ctypes

    fd = os.open(dest.path, os.O_RDONLY)
    try:
        # not os.sync(), which waits for every other file system, too, and for ever where a server is gone
        ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)
