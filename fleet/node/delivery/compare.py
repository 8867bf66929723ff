"""Compares a source's entries with the files in its destination, and decides what happens to each (ownership.py)."""

import hashlib
import os
import stat
import time

from fleet.node.base.beneath import check_folder
from fleet.node.base.errors import Refused
from fleet.node.base.files import check_inside
from fleet.node.base.types import TYPE_CHECKING, Any, Iterable, Sequence, code
from fleet.node.base.wire import count_progress, encode
from fleet.node.delivery.journal import (
    DELIVERED,
    DIGEST,
    KIND,
    LINK,
    MODE,
    MTIME,
    PATH,
    SEEN,
    SIZE,
    STATUS,
    same_source,
    unchanged,
)
from fleet.node.delivery.ownership import OWN, Ownership, is_meant, kind_of, look

if TYPE_CHECKING:
    Found = dict[str, os.stat_result | None]  # path -> its stat during the comparison

# files that a run executes or reads: if such a file differs on one node, the nodes do not run the same code
CODE = (".py", ".pyi", ".pyx", ".sh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".so", ".json", ".yaml")
REWRITE_SHARE = 8  # if more than one in 8 rows of the journal has changed, all rows are written again
CODE_TOO = (".yml", ".toml", ".cfg", ".ini")


def other_mode(entry: "list[Any]", st: "os.stat_result") -> bool:
    """Returns whether the file's mode differs from the entry's. Ignores a folder's setgid bit that the entry does not
    have: the folder may have inherited the bit from its parent."""
    odd = st.st_mode ^ entry[MODE]
    return bool(entry[KIND] != "l" and odd & (0o7777 if entry[KIND] == "f" else 0o777 | entry[MODE] & stat.S_ISGID))


class Comparison:
    """Sorts the entries of a source by what happens to their paths on the node. changed, needed, doubts and own are
    path -> entry.

    changed: the path gets the source's state. needed: those of `changed` whose bytes must be received. seen: the node
    had the path already, equal to the source's. left: the path is the node's own and stays, as the source has not
    changed it and `force` does not name it. own: the path is the node's own and in the way. doubts: a digest must
    decide whether the path is equal, left or own. delete: paths that the source no longer has, with their stat. kept:
    such paths that the node has changed, and so keeps. aside: paths to be put aside. also: rows of other paths that
    the journal keeps. fetched: paths that the head fetched from this node. force: patterns of the node's own paths
    that may be replaced; True means all."""

    def __init__(
        self,
        owner: "Ownership",
        entries: "list[Any]",
        fetched: "Iterable[str]",
        force: "bool | Sequence[str]",
        others: "Iterable[code.Source]" = (),
    ) -> None:
        self.owner, self.entries, self.fetched, self.force = owner, entries, set(fetched), force
        self.others = list(others)  # other sources whose files may be here; a file that is equal in both loses nothing
        self.changed: dict[str, list[Any]] = {}
        self.needed: dict[str, list[Any]] = {}
        self.doubts: dict[str, list[Any]] = {}
        self.own: dict[str, list[Any]] = {}
        self.seen: set[str] = set()
        self.left: set[str] = set()
        self.holding: dict[str, str] = {}  # folder in the way -> a path in it, or ""
        self.aside: list[str] = []
        self.found: Found = {}
        self.digests: dict[str, str] = {}  # path -> digest, of the source's files that were in doubt
        self.come: dict[str, str] = {}  # digests of the files that were received
        self.delete: list[tuple[str, os.stat_result]] = []
        self.kept: list[str] = []
        self.also: list[list[Any]] = []
        self.compare()

    def compare(self) -> None:
        regular, status, dest, journal = stat.S_IFREG, os.stat, self.owner.dest, self.owner.journal
        self.same = self.entries is journal.state["entries"] and not journal.state["begun"]
        known = None if self.same else journal.known  # None: the entries are those of last time, so all paths are known
        around: str | None = None
        folder: int | None = None  # descriptor of `around`. None means that `around`, and so all in it, is missing
        blocked: str | None = None  # PATH/ of a folder of the source that is no folder on the node, and stays so
        for entry in self.entries:
            path, kind, mode, size, mtime_ns, _link = entry
            count_progress()
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
            if st is not None and not self.force and (known is None or path in known):
                # a fast path, as nearly all of tens of thousands of files are unchanged
                if kind == "f" and st.st_mtime_ns == mtime_ns and st.st_size == size and st.st_mode == regular | mode:
                    continue
                if kind == "d" and stat.S_ISDIR(st.st_mode):
                    check_folder(dest.at(encode(path)), st)
                    if other_mode(entry, st):
                        self.put(entry, st, False)
                    continue
            if path:
                check_inside(path)
            if blocked is not None and path.startswith(blocked):
                self.left.add(path)
                if journal.row(entry) is None:  # the entry is new: the path that is no folder here is now in the way
                    self.left.discard(blocked[:-1])
                    self.own[blocked[:-1]] = next(e for e in self.entries if e[PATH] == blocked[:-1])
            elif st is None:
                self.put(entry, None, kind == "f")
            else:
                self.judge(entry, st)
                if kind == "d" and path in self.left:
                    blocked = path + "/"

    def put(self, entry: "list[Any]", st: "os.stat_result | None", needed: bool) -> None:
        self.changed[entry[PATH]] = entry
        self.found[entry[PATH]] = st
        if needed:
            self.needed[entry[PATH]] = entry

    def loses(self, path: str) -> bool:
        """Returns whether the content at a path will be replaced, and not only its mode."""
        st, entry = self.found[path], self.changed[path]
        return st is not None and (path in self.needed or entry[KIND] == "l" or kind_of(st) != entry[KIND])

    @property
    def deleted_files(self) -> "list[str]":
        return [path for path, st in self.delete if not stat.S_ISDIR(st.st_mode)]

    def judge(self, entry: "list[Any]", st: "os.stat_result") -> None:
        """Compares an entry with the file at its path, which may differ from the source."""
        path, kind, owner, there = entry[PATH], entry[KIND], self.owner, kind_of(st)
        rows = owner.journal.known.get(path, [])
        if kind == there == "d":
            check_folder(owner.dest.at(encode(path)), st)
        if (
            kind == there == "d"
            or kind == there == "l"
            and owner.target(path) == entry[LINK]
            or kind == there == "f"
            and rows
            and [st.st_size, st.st_mtime_ns] == entry[SIZE : MTIME + 1]
            and (not self.is_forced(path) or unchanged(rows[-1], st))  # an edit may keep size and time
        ):
            self.equal(entry, st)
            return
        status, row = owner.status(path, st)
        if row is not None and same_source(row, entry):
            self.equal(entry, st)
            return
        if status != OWN and not owner.claimed(path, st):
            if self.others and kind == there == "f" and st.st_size == entry[SIZE]:
                self.doubt(entry)
            else:
                self.put(entry, st, kind == "f")
            return
        self.found[path] = st
        before = owner.journal.row(entry)
        unsure = kind == there == "f" and (st.st_size == entry[SIZE] or any(row[DIGEST] for row in rows))
        if path in self.fetched or before is not None and not (unsure and not before[DIGEST] or self.is_forced(path)):
            self.left.add(path)
        else:
            (self.doubts if unsure else self.own)[path] = entry

    def doubt(self, entry: "list[Any]") -> None:
        """Adds an entry to `doubts`, so that its content is compared, whatever its times are."""
        self.found[entry[PATH]], self.doubts[entry[PATH]] = look(self.owner.dest, entry[PATH]), entry

    def is_forced(self, path: str) -> bool:
        return is_meant(path, self.force)

    def equal(self, entry: "list[Any]", st: "os.stat_result") -> None:
        """Handles an entry whose content is equal to the source's. Only its mode may have to be changed."""
        if entry[PATH] not in self.owner.journal.known:
            self.seen.add(entry[PATH])
        if other_mode(entry, st):
            self.put(entry, st, False)

    def settle(self, digests: "dict[str, str]") -> None:
        """Decides about the entries in `doubts`, by the digests of the source's files."""
        self.digests.update(digests)
        for path, entry in self.doubts.items():
            digest, st = digests.get(path), self.found[path]
            theirs = bool(self.others) and st is not None and self.owner.status(path, st)[0] != OWN
            if st is not None and digest and self.owner.digest(path) == digest:
                if not theirs:
                    self.seen.add(path)
                del self.found[path]
                self.equal(entry, st)
            elif theirs:
                self.put(entry, st, True)
            elif not self.is_forced(path) and (
                self.owner.journal.row(entry) is not None
                or digest in {row[DIGEST] for row in self.owner.journal.known.get(path, ()) if row[DIGEST]}
            ):
                self.left.add(path)
            else:
                self.own[path] = entry
        self.doubts = {}

    def in_the_way(self) -> "list[Any]":
        """Returns [path, kind, size, age in seconds, a path in it or ""] of each own path of the node in the way."""
        files = []
        for path in sorted(self.own):
            st = self.found.get(path) or look(self.owner.dest, path)
            if st is not None:
                holds = self.holding.get(path, "")
                files.append([path, kind_of(st), st.st_size, max(0.0, time.time() - st.st_mtime), holds])
        return files

    def resolve(self, answer: "dict[str, list[str]] | None") -> None:
        """Decides about the node's own paths in the way. Those listed in "replace" are put aside, those in "keep" stay.
        answer: the head's response, or None if there was no request. Raises Refused for a path in neither list."""
        replace, keep = set(answer["replace"] if answer else ()), set(answer["keep"] if answer else ())
        for path, entry in self.own.items():
            if path in replace:
                self.put(entry, self.found.get(path), entry[KIND] == "f")
                self.aside.append(path)
            elif path in keep:
                self.left.add(path)
                for below in [each for each in self.changed if each.startswith(path + "/")]:
                    self.left.add(below)
                    del self.changed[below]
                    self.needed.pop(below, None)
            else:
                raise Refused("%s is in the way" % path, "run the sync again")
        self.own = {}
        self.changed = {e[PATH]: self.changed[e[PATH]] for e in self.entries if e[PATH] in self.changed}

    def is_news(self, digest: str) -> bool:
        """Returns whether the journal must be written even if no file has changed. digest: that of the manifest."""
        state = self.owner.journal.state
        same = digest == state["digest"] and self.also == state["also"] and self.left_code() == state["left"]
        return bool(self.seen) or not same

    def news(self) -> "dict[int, list[Any]] | None":
        """Returns entry number -> row, for the rows of the journal that change. Returns None if all rows must be
        written, as the paths differ from last time, or many rows change."""
        state = self.owner.journal.state
        before = state["entries"]
        if state["begun"] or [entry[PATH] for entry in before] != [entry[PATH] for entry in self.entries]:
            return None
        touched = self.changed.keys() | self.seen | self.left
        pairs = enumerate(zip(before, self.entries))
        numbers = [n for n, (old, entry) in pairs if old != entry or entry[PATH] in touched]
        if len(numbers) + len(state["changed"]) > len(before) // REWRITE_SHARE:
            return None
        return {n: self.row(self.entries[n]) for n in numbers}

    def row(self, entry: "list[Any]") -> "list[Any]":
        """Returns an entry's row for the journal. All files must be in place by then."""
        path, kind, journal = entry[PATH], entry[KIND], self.owner.journal
        before = journal.row(entry) or journal.known.get(path, [None])[-1]
        same = before is not None and same_source(before, entry)
        touched = path in self.changed or path in self.seen or path in self.left
        if same and not touched and (kind != "f" or before[DIGEST]):
            return [*entry, *before[DIGEST:]]
        found = None if path in self.left else look(self.owner.dest, path)
        if found is None:  # -1 as NODE_MTIME: a file here then matches the row by its content only, not by its times
            digest = self.digests.get(path) or (before[DIGEST] if same else "")
            return [*entry, digest, before[STATUS] if before else SEEN, -1, 0]
        if path in self.needed:
            return [*entry, self.come[path], DELIVERED, found.st_mtime_ns, found.st_ctime_ns]
        status = before[STATUS] if before and path not in self.seen else SEEN
        was = self.found.get(path)
        if path in self.changed and (was is None or kind_of(was) != kind or kind == "l"):
            status = DELIVERED
        digest = self.owner.digest(path) if kind == "f" else ""
        return [*entry, digest, status, found.st_mtime_ns, found.st_ctime_ns]

    def left_code(self) -> str:
        """Returns a digest of the node's own code files, or "" if there are none."""
        mine = sorted(path for path in self.left if path.endswith(CODE + CODE_TOO))
        text = "".join("%s\0%s\0" % (path, self.owner.digest(path)) for path in mine)
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest() if mine else ""
