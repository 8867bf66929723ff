"""Putting a code sync's files in place, and taking away what the source has no more."""

import os
import stat

from fleet.node.base.beneath import check_folder, chmod, shown
from fleet.node.base.errors import Refused
from fleet.node.base.files import check_inside, lstat, waiting_link
from fleet.node.base.wire import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Iterator

    from fleet.node.base.beneath import Beneath

FEW = 50  # files that are brought to the disk one by one: an fsync takes 0.3 ms to 10 ms


def matches(entry: "list[Any]", st: "os.stat_result") -> bool:
    """Whether what is on disk is this entry, judged as rsync does: kind, size and mtime."""
    _path, kind, _mode, size, mtime_ns, _link = entry
    if kind == "f":
        return stat.S_ISREG(st.st_mode) and st.st_size == size and st.st_mtime_ns == mtime_ns
    if kind == "d":
        return stat.S_ISDIR(st.st_mode)
    return stat.S_ISLNK(st.st_mode)


def check_place(entry: "list[Any]", st: "os.stat_result | None", known: "dict[str, Any]") -> None:
    """Refuse what would go through a symlink on the node, or replace something of the node's own. st: what is there."""
    path, kind = entry[0], entry[1]
    check_inside(path)
    if st is None or stat.S_ISDIR(st.st_mode) == (kind == "d"):
        return
    if delivered(path, st, known):
        return  # by us, a folder then and a file now, or the other way round
    what = "folder" if stat.S_ISDIR(st.st_mode) else "link" if stat.S_ISLNK(st.st_mode) else "file"
    raise Refused("%s is a %s on the node, and not so in the source" % (path, what), "move it away there first")


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


def compare(dest: "Beneath", entries: "list[Any]", known: "dict[str, Any]") -> "tuple[list[Any], list[Any]]":
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
        check_place(entry, st, known)
        changed.append(entry)
        if kind == "d" and not inside and (st is None or not stat.S_ISDIR(st.st_mode)):
            missing = path + "/"
        if kind == "f" and (st is None or not matches(entry, st)):
            needed.append(entry)
    return needed, changed


class Writable:
    """Makes folders that are read-only writable while a switch changes what is in them."""

    def __init__(self, dest: "Beneath") -> None:
        self.dest = dest
        self.seen: set[str] = set()
        self.modes: dict[str, int] = {}

    def open(self, path: str) -> None:
        """The folder that path is in."""
        inside = path.rpartition("/")[0]
        if inside in self.seen:
            return
        self.seen.add(inside)
        folder = self.dest.at(encode(inside))
        if not os.access(folder, os.W_OK | os.X_OK):
            mode = stat.S_IMODE(os.lstat(folder).st_mode)
            chmod(folder, mode | 0o300)
            self.modes[inside] = mode

    def close(self, modes: "dict[str, int]") -> None:
        """Give every folder its mode: the one in `modes`, or that of before. What is inside comes first."""
        modes = {**self.modes, **modes}
        for inside in sorted(modes, reverse=True):
            st = look(self.dest, inside)
            if st is not None and stat.S_ISDIR(st.st_mode) and stat.S_IMODE(st.st_mode) != modes[inside]:
                chmod(self.dest.at(encode(inside)), modes[inside])


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
    dest: "Beneath", known: "dict[str, Any]", entries: "list[Any]", writable: "Writable"
) -> "tuple[int, list[str]]":
    """Remove what was delivered and is no more in the source, unless the node changed it. -> deleted, kept"""
    deleted, kept = 0, []
    for path, st in find_stale(dest, known, entries):
        if not delivered(path, st, known):
            kept.append(path)
            continue
        writable.open(path)
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


class Switch:
    """Every single step is atomic, their sum is guarded by the lock. parcels, stage: where the needed files lie."""

    def __init__(
        self, dest: "Beneath", parcels: bytes, stage: bytes, staged: "dict[str, Any]", writable: "Writable"
    ) -> None:
        self.dest, self.parcels, self.stage, self.staged = dest, parcels, stage, staged
        self.writable = writable
        self.moved: set[str] = set()

    def run(self, changed: "list[Any]", needed: "list[Any]") -> None:
        staged = {entry[0] for entry in needed}
        modes = {}
        for path, kind, mode, _size, _mtime, link in changed:
            if kind == "d":
                self.make(path)
                modes[path] = mode
            elif kind == "l":
                self.link(encode(link), path)
            elif path in staged:
                self.place(path, mode)
            else:
                chmod(self.dest.at(encode(path)), mode)
        self.writable.close(modes)

    def make(self, path: str) -> None:
        """A folder that is new comes with all its new files in one step."""
        st = look(self.dest, path)
        if st is None or not stat.S_ISDIR(st.st_mode):
            self.writable.open(path)
            full = self.dest.at(encode(path))
            try:
                os.rename(os.path.join(self.parcels, encode(path)), full)
            except FileNotFoundError:
                os.mkdir(full, 0o700)
                return
        elif path.rpartition("/")[0] not in self.moved:
            return
        self.moved.add(path)

    def place(self, path: str, mode: int) -> None:
        if path in self.staged:
            staged = os.path.join(self.stage, encode(path))
            chmod(staged, mode)
            self.enter(staged, path)
        elif path.rpartition("/")[0] not in self.moved:
            self.enter(os.path.join(self.parcels, encode(path)), path)

    def link(self, target: bytes, path: str) -> None:
        self.enter(waiting_link(os.path.dirname(self.stage), target), path)

    def enter(self, new: bytes, path: str) -> None:
        self.writable.open(path)
        os.rename(new, self.dest.at(encode(path)))


def flush(dest: "Beneath", needed: "list[Any]") -> None:
    """Bring the files that were put in place to the disk, before the state vouches for them."""
    try:
        if len(needed) <= FEW:
            for entry in needed:
                fd = os.open(dest.at(encode(entry[0])), os.O_RDONLY | os.O_NOFOLLOW)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)
            return
    except PermissionError:
        pass  # a mode without "r"
    import ctypes

    fd = os.open(dest.path, os.O_RDONLY)
    try:
        # not os.sync(), which waits for every other file system, too, and for ever where a server is gone
        ctypes.CDLL(None).syncfs(fd)
    finally:
        os.close(fd)
