"""Lists the entries of a source: one file, or those of a folder that ignore.py does not exclude."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from fleet.codec import T
from fleet.delivery.brought import unchanged
from fleet.delivery.ignore import SourceRules, Why
from fleet.delivery.patterns import above
from fleet.errors import HostFailed, ProtocolError, UsageError
from fleet.model import Host
from fleet.node.base.errors import Refused, closing
from fleet.node.base.files import file_digest
from fleet.node.delivery.journal import by_column
from fleet.node.delivery.tree import Walk, travelling, unsafe_links
from fleet.protocol.messages.chain import Entry
from fleet.rules.units import few

MAX_ENTRIES = 1_000_000  # limit of the entries in a node's list
MAX_LIST = 256 << 20  # limit of the characters of all names in a node's list
AGAIN = "stop what writes to it, or list it in .fleetignore, and run the sync again; no file was replaced"
CHANGED = "changed"  # kind of the error if a file has changed since it was listed
READINGS = 3  # how often a file is read until its ctime stays the same


@dataclass(frozen=True)
class Tree:
    """Describes a file or a folder of the head that is sent to nodes. entries: the folder's content, or the one entry
    of a file.

    skipped: sockets, fifos and devices, which are not sent. mode: the folder's own mode; None for a file. allocated:
    path -> bytes on disk of a file with holes. linked: (device, inode) of each file with several names. rules: the
    rules that excluded entries; None if no rules applied. brought: files that `get` fetched, that did not change since,
    and that git tracks. unsafe_links: (path, target) of links whose targets on the head are not sent. followed: files
    that are links on the head. inodes: path -> inode. grown: files that get longer while they are read; the part up to
    the listed size is sent. touched: files whose times change, but not their bytes. odd: files that were grown or
    touched, for the next tree of this source: path -> (listed size, inode, sha256 of the file up to that size)."""

    root: Path
    entries: tuple[Entry, ...]
    skipped: tuple[str, ...] = ()
    mode: int | None = None
    allocated: Mapping[str, int] = field(default_factory=dict, compare=False)
    linked: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    rules: SourceRules | None = field(default=None, compare=False)
    brought: frozenset[str] = frozenset()
    unsafe_links: tuple[tuple[str, str], ...] = ()
    followed: frozenset[str] = frozenset()
    inodes: Mapping[str, int] = field(default_factory=dict, compare=False)
    grown: set[str] = field(default_factory=set, compare=False)
    touched: set[str] = field(default_factory=set, compare=False)
    odd: dict[str, tuple[int, int, str]] = field(default_factory=dict, compare=False)

    @cached_property
    def _manifest(self) -> bytes:
        return by_column(self.entries)

    @cached_property
    def digest(self) -> str:
        """Returns the sha256 of the manifest. If a node has a manifest with this digest, the manifest is not sent."""
        return hashlib.sha256(self._manifest).hexdigest()

    @cached_property
    def packed(self) -> bytes:
        """Returns the manifest as it is sent."""
        return zlib.compress(self._manifest, 1)

    @cached_property
    def by_path(self) -> dict[str, Entry]:
        """Returns path -> entry of the files, without folders and links."""
        return {entry[0]: entry for entry in self.entries if entry[1] == "f"}

    def why(self, path: str, kind: str = "f") -> Why | None:
        """Returns the pattern or the other rule that excludes a path; None if no rule does."""
        if self.rules is None:
            return None
        return self.rules.why(os.fsdecode(path.encode("utf-8", "surrogateescape")), kind == "d")

    def excluded(self, paths: Iterable[tuple[str, str]]) -> set[str]:
        """Returns the paths that must not be deleted on the node. A rule excludes such a path, or it is still in the
        source and not below a link that is sent. paths: (path, kind) of each candidate."""
        if self.rules is None:
            return set()
        links = tuple(path + "/" for path, kind, *_ in self.entries if kind == "l")
        sent = {entry[0] for entry in self.entries}
        here = {p for p, _ in paths if not p.startswith(links) and os.path.lexists(self.local(p))}
        return {p for p, kind in paths if p not in sent and (p in here or self.why(p, kind))}

    @property
    def notices(self) -> tuple[str, ...]:
        """Returns the warnings for the user, one line each."""
        links = [links_notice(self.unsafe_links)] if self.unsafe_links else []
        return (*(self.rules.notices() if self.rules else ()), *links)

    def read(self, path: str, offset: int, length: int) -> bytes:
        """Returns a part of a file. Raises HostFailed if it cannot be read, or has changed since it was listed."""
        return self._stably(path, lambda fd: os.pread(fd, length, offset))

    def file_digest(self, path: str) -> str:
        """Returns the sha256 of a file. Raises HostFailed, as read() does."""
        return self._stably(path, partial(_digest, self.by_path[path][3]))

    def _stably(self, path: str, read: Callable[[int], T]) -> T:
        """Returns the result of read(fd), if the file does not change meanwhile. The file may grow, if its bytes up to
        the listed size stay the same. Raises HostFailed."""
        size, mtime = self.by_path[path][3:5]
        no_link = 0 if path in self.followed else os.O_NOFOLLOW
        try:
            with closing(os.open(self.local(path), os.O_RDONLY | os.O_CLOEXEC | no_link)) as fd:
                for _ in range(READINGS):
                    before, found, after = os.fstat(fd), read(fd), os.fstat(fd)
                    if (size, mtime) == (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
                        if before.st_ctime_ns == after.st_ctime_ns:
                            return found
                    elif after.st_size >= size and self._is_same(path, fd, size) and read(fd) == found:
                        (self.grown if after.st_size > size else self.touched).add(path)
                        return found
                    else:
                        break
        except FileNotFoundError:
            raise HostFailed(f"{path} vanished while it was sent", kind=CHANGED, hint=AGAIN) from None
        except OSError as error:
            raise HostFailed(f"{path} changed while it was read: {error.strerror}", kind=CHANGED, hint=AGAIN) from error
        raise HostFailed(f"{path} changed while it was read", kind=CHANGED, hint=AGAIN)

    def _is_same(self, path: str, fd: int, size: int) -> bool:
        """Returns whether the bytes of a file with new times or size are still those that an earlier tree read."""
        if path in self.grown | self.touched:
            return True
        inode = os.fstat(fd).st_ino
        then, known, digest = self.odd.get(path, (-1, 0, ""))
        is_same = then == size or inode == known == self.inodes.get(path) and 0 <= then < size
        is_same = is_same and _digest(then, fd) == digest
        self.odd[path] = (size, inode, _digest(size, fd))
        return is_same

    def local(self, path: str) -> Path:
        """Returns the path of an entry on this machine."""
        return self.root / os.fsdecode(path.encode("utf-8", "surrogateescape"))


def _digest(size: int, fd: int) -> str:
    return file_digest(f"/proc/self/fd/{fd}", size=size)


def with_payload(op: str, data: bytes, **more: Any) -> bytes:
    """Returns a control line with the size and sha256 of `data`, and `data` after it."""
    line = {"op": op, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **more}
    return json.dumps(line).encode() + b"\n" + data


def hard_links(trees: Iterable[Tree]) -> int:
    """Returns the number of files in these trees that are hard links of each other."""
    return sum(count for count in Counter(inode for tree in trees for inode in tree.linked).values() if count > 1)


def scan(
    root: Path,
    *,
    whole: bool = False,
    everything: bool = False,
    copy_unsafe_links: bool = False,
    hosts: Sequence[Host] = (),
    places: Sequence[str] = (),
) -> Tree:
    """Returns the tree of a code folder. Raises UsageError if `root` is missing, is no folder, cannot be read, or holds
    the user's home. whole: no rule excludes anything. everything: see SourceRules. hosts: an environment in the folder
    is sent if one of their interpreters is in it; their identity files are not sent. places: the destinations on these
    hosts."""
    hint = "give the folder to mirror: fleet sync SRC"
    try:
        root = root.resolve()
        there = root.exists()
    except (OSError, RuntimeError) as error:  # the name is too long, or links lead to each other
        raise UsageError(f"the source {root} cannot be looked at: {error}", hint=hint) from error
    if not there:
        raise UsageError(f"the source {root} does not exist", hint=hint)
    if not root.is_dir():
        raise UsageError(f"the source {root} is a file", hint="give a folder; for data: fleet sync --data PATH")
    with reading(root, ", or list it in .fleetignore", "list them in .fleetignore"):
        if whole:
            return read(root)
        refuse_home(root, everything)
        fetched = unchanged(root)
        rules = partial(SourceRules, str(root), hosts, places, everything, fetched)
        tree = read(root, rules(), copy_unsafe_links)
        if not tree.by_path and tree.rules and tree.rules.outer:  # a repository around the source ignores all of it
            tree = read(root, rules(alone=True), copy_unsafe_links)
        return tree


def refuse_home(root: Path, everything: bool) -> None:
    """Raises UsageError if the folder is, or holds, the user's home folder."""
    home = Path.home().resolve()
    if root == home and everything or not home.is_relative_to(root):
        return
    what = "your home folder" if root == home else f"{root}, in which your home folder lies"
    more = "; for all of it but keys: --all" if root == home else ""
    raise UsageError(
        f"the source is {what}: keys, caches and all", hint=f"name the project's folder: fleet sync ~/PROJECT{more}"
    )


def read(root: Path, rules: SourceRules | None = None, copy_unsafe_links: bool = False) -> Tree:
    """Returns the tree at `root`, without the entries that `rules` excludes. Raises OSError, and UsageError if `root`
    is neither file nor folder."""
    credentials = rules.credentials if rules else frozenset[str]()
    walk = Walk(os.fspath(root), rules.at_root if rules else None, follows=copy_unsafe_links, credentials=credentials)
    try:
        entries = tuple(walk.entries())
    except Refused as error:
        raise UsageError(error.message, hint=error.hint) from error
    fetched = frozenset(map(travelling, rules.brought)) if rules else frozenset[str]()
    if fetched:  # a folder that holds only files that `get` fetched is not sent
        hollow = above(fetched)
        hollow -= above(path for path, *_ in entries if path not in hollow)
        entries = tuple(entry for entry in entries if entry[0] not in hollow)
        fetched &= {entry[0] for entry in entries}
    return Tree(
        root,
        entries,
        tuple(walk.skipped),
        walk.mode,
        walk.allocated,
        tuple(walk.linked),
        rules,
        fetched,
        tuple(unsafe_links(os.fspath(root), entries)),
        frozenset(walk.followed),
        walk.inodes,
    )


def links_notice(links: Sequence[tuple[str, str]]) -> str:
    named = few(sorted(f"{path} -> {target}" for path, target in links))
    return f"links to what is not sent: {named}; --copy-unsafe-links sends what they lead to"


def grown_notice(paths: Iterable[str]) -> str:
    return f"sent up to the size that it had when it was listed, as it grows: {few(sorted(paths))}"


def received_tree(receive: Callable[[], Any], host: str, hint: str) -> Tree:
    """Returns the tree of a node's files, as node/delivery/tree.send_entries sends it. receive: returns the next
    message. hint: the hint of the error for too many files. Raises HostFailed, ProtocolError."""
    entries: list[Entry] = []
    allocated: dict[str, int] = {}
    length = 0
    while True:
        part = receive()
        new = part.get("entries", [])
        if part["event"] != "tree" or part["more"] and not new or len(part["allocated"]) > len(new):
            raise ProtocolError("it sent no list of files", host)
        entries += new
        allocated |= part["allocated"]
        length += sum(len(entry[0]) + len(entry[5]) for entry in new)
        if len(entries) > MAX_ENTRIES or length > MAX_LIST:
            raise HostFailed(f"more than {MAX_ENTRIES} files", host=host, hint=hint)
        if not part["more"]:
            skipped, linked, unsafe = (tuple(part[each]) for each in ("skipped", "linked", "unsafe"))
            root = Path(part["path"])
            return Tree(root, tuple(entries), skipped, part["mode"], allocated, linked, unsafe_links=unsafe)


@contextlib.contextmanager
def reading(root: Path, alternative: str, deep: str) -> Iterator[None]:
    """Raises errors of reading a source as UsageError or HostFailed. alternative: another remedy, added to
    the hint for a file that may not be read. deep: the hint for folders that are nested too deeply."""
    try:
        yield
    except FileNotFoundError as error:
        if error.filename == os.fspath(root):
            raise UsageError(
                f"{root} does not exist", hint="--data PATH[:DEST] takes a path of this machine"
            ) from error
        raise HostFailed(
            f"{error.filename} vanished while the source was read",
            kind="sync",
            hint="run the sync again; nothing was sent",
        ) from error
    except OSError as error:
        hint = f"mend its mode{alternative}" if alternative or error.errno == errno.EACCES else None
        raise UsageError(f"cannot read {error.filename}: {error.strerror}", hint=hint) from error
    except RecursionError as error:
        raise UsageError(f"the folders in {root} are nested too deeply", hint=deep) from error
