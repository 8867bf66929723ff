"""Lists the files, folders and links of a source, on the head or on a node."""

import errno
import os
import re
import stat
from itertools import islice

from fleet.node.base.errors import Refused, closing
from fleet.node.base.types import TYPE_CHECKING, Any, Iterator, Sequence, chain
from fleet.node.base.wire import count_progress, decode, encode, in_parts, send_json
from fleet.protocol.state import SOURCE_MARK, STATE_FOLDERS

if TYPE_CHECKING:
    from typing import Protocol

    class Rules(Protocol):
        """Decides which paths of a folder are sent. enter() returns the rules for the folder's contents. take() returns
        the rules for a path, or None if the path is not sent. excluded_because: why the folder is excluded, or None.
        An excluded folder is sent only if a path in it is sent for another reason."""

        @property
        def excluded_because(self) -> "Any": ...

        def enter(self, prefix: str, names: "list[str]") -> "Rules": ...

        def take(self, path: str, child: "os.DirEntry[str]", folder: bool) -> "Rules | None": ...


# names of folders and files with secrets. No sync follows a link to a secret, or sends a secret without consent
SECRETS = frozenset({".ssh", ".gnupg", ".aws", ".netrc", ".fleet"})
KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?:\\[rn]|[ \t]*[\r\n])"  # also in JSON, and indented as in YAML
    rb"|^---- BEGIN SSH2 [A-Z ]*PRIVATE KEY ----|^PuTTY-User-Key-File-\d",
    re.MULTILINE,
)
KEY_BYTES = range(64, 65537)  # sizes of files that may be a private key
# endings of files that are no private keys, even if the text of a key is a part of them
CODE = (".py", ".pyi", ".sh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".go", ".rs", ".js", ".ts", ".java")
OTHER = (*CODE, ".md", ".rst", ".html", ".css", ".ipynb", ".png", ".jpg", ".npy", ".npz", ".pt", ".so", ".o", ".pyc")
MOST_NAMED = 10000
EVERYBODY = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH


class Walk:
    """Lists a file, or a folder with all paths in it that `rules` take, and collects facts about these paths.

    root: the file or folder. changing: omits a path that disappears while it is listed. follows: replaces a link that
    leads out of root by the file or folder that it leads to, unless that is secret. credentials: real paths of more
    secrets. mode: mode of the folder root; None if root is a file. skipped: sockets, fifos and devices, which are
    omitted. allocated: path -> bytes on disk of a file with holes. linked: (device, inode) of each file with other
    hard links. followed: paths of links that were replaced by files. inodes: path -> inode of a file. times: path ->
    (mtime, ctime) in ns, if `changing`. around: real paths of root, and of the links to folders that are followed
    now."""

    def __init__(
        self,
        root: str,
        rules: "Rules | None" = None,
        changing: bool = False,
        follows: bool = False,
        credentials: "frozenset[str]" = frozenset(),
    ) -> None:
        self.root, self.rules, self.changing = root, rules, changing
        self.follows, self.credentials = follows, credentials
        self.mode: int | None = None
        self.skipped: list[str] = []
        self.allocated: dict[str, int] = {}
        self.linked: list[tuple[int, int]] = []
        self.followed: list[str] = []
        self.inodes: dict[str, int] = {}
        self.times: dict[str, tuple[int, int]] = {}
        self.around = [os.path.realpath(root)]

    def entries(self) -> "Iterator[chain.Entry]":
        """Yields all entries. Raises Refused if root is neither a file nor a folder, and OSError for an unreadable
        path."""
        info = os.stat(self.root)
        if stat.S_ISDIR(info.st_mode):
            self.mode = folder_mode(info)
            self.times[""] = info.st_mtime_ns, info.st_ctime_ns
            yield from self.below("", self.rules)
        elif stat.S_ISREG(info.st_mode):
            self.times[""] = info.st_mtime_ns, info.st_ctime_ns
            yield self.file("", self.root, info)
        else:
            raise Refused("%s is neither a file nor a folder" % self.root, "name one of these")

    def below(self, inside: str, rules: "Rules | None") -> "Iterator[chain.Entry]":
        """Yields the entries below root/inside, sorted by name. A folder comes before its contents."""
        folder = os.path.join(self.root, inside).rstrip("/") or "/"
        with os.scandir(folder) as found:
            children = sorted(found, key=lambda entry: entry.name)
        rules = rules and rules.enter(inside, [child.name for child in children])
        for child in children:
            count_progress()
            is_folder, inner = child.is_dir(follow_symlinks=False), None
            if child.name.endswith(STATE_FOLDERS) and (is_folder or child.name == SOURCE_MARK):
                continue  # this machine may also be a node: then it has state folders of fleet next to destinations
            if rules is not None:
                inner = rules.take(inside + child.name, child, is_folder)
                if inner is None:
                    continue
            path = travelling(inside + child.name)
            try:
                info = child.stat(follow_symlinks=False)
                if self.changing:
                    self.times[path] = info.st_mtime_ns, info.st_ctime_ns
                if is_folder:
                    below, first = self.below(inside + child.name + "/", inner), None
                    if inner is not None and inner.excluded_because is not None:
                        first = next(below, None)
                        if first is None:
                            continue
                    yield (path, "d", folder_mode(info), 0, 0, "")
                    if first is not None:
                        yield first
                    yield from below
                elif child.is_symlink():
                    yield from self.link(inside + child.name, path, child.path, inner)
                elif child.is_file(follow_symlinks=False):
                    yield self.file(path, child.path, info)
                else:
                    self.skipped.append(path)
            except FileNotFoundError:
                if not self.changing:
                    raise

    def link(self, name: str, path: str, full: str, rules: "Rules | None") -> "Iterator[chain.Entry]":
        target = os.readlink(full)
        info = self.led_to(name, full, target) if self.follows else None
        if info is None:
            yield (path, "l", 0, 0, 0, travelling(target))
        elif stat.S_ISDIR(info.st_mode):
            yield (path, "d", folder_mode(info), 0, 0, "")
            self.times[path] = 0, self.times.get(path, (0, 0))[1]  # since.py counts its contents as new as the link
            self.around.append(os.path.realpath(full))
            yield from self.below(name + "/", rules)
            self.around.pop()
        else:
            self.followed.append(path)
            yield self.file(path, full, info)

    def led_to(self, name: str, full: str, target: str) -> "os.stat_result | None":
        """Returns the stat of the file or folder that is sent in place of a link. Returns None if the link itself is
        sent: it leads to a path in root, to a folder that the link is in, or to a secret, or it leads nowhere."""
        real, place = os.path.realpath(full), os.path.normpath(os.path.join(self.root, os.path.dirname(name), target))
        if is_below(place, self.root) and os.path.realpath(place) == real:
            return None
        try:
            info = os.stat(full)
        except OSError:  # the link leads nowhere on this machine
            return None
        if stat.S_ISDIR(info.st_mode):
            taken = not any(is_below(folder, real) for folder in self.around)
        else:
            taken = stat.S_ISREG(info.st_mode)
        return info if taken and may_copy(self.credentials, real, info) else None

    def file(self, path: str, full: str, info: "os.stat_result") -> "chain.Entry":
        readable = info.st_mode & EVERYBODY == EVERYBODY or os.access(full, os.R_OK)
        if not readable and (os.path.lexists(full) or not self.changing):
            raise PermissionError(errno.EACCES, "Permission denied", full)
        self.inodes[path] = info.st_ino
        if info.st_nlink > 1:
            self.linked.append((info.st_dev, info.st_ino))
        if info.st_blocks * 512 < info.st_size:
            self.allocated[path] = info.st_blocks * 512
        return (path, "f", stat.S_IMODE(info.st_mode), info.st_size, info.st_mtime_ns, "")


def send_entries(walk: Walk, entries: "list[chain.Entry]") -> None:
    """Sends the list of entries to the head, in parts."""
    parts = in_parts(entries)
    for number, part in enumerate(parts, 1):
        last = number == len(parts)
        send_json(
            {
                "event": "tree",
                "path": travelling(walk.root),
                "entries": part,
                "allocated": {entry[0]: walk.allocated[entry[0]] for entry in part if entry[0] in walk.allocated},
                "skipped": walk.skipped[:MOST_NAMED] if last else [],
                "linked": walk.linked[:MOST_NAMED] if last else [],
                "unsafe": list(islice(unsafe_links(walk.root, entries), MOST_NAMED)) if last else [],
                "mode": walk.mode,
                "more": not last,
            }
        )


def unsafe_links(root: str, entries: "Sequence[chain.Entry]") -> "Iterator[tuple[str, str]]":
    """Yields (path, target) of each link that works here and leads to a path outside the entries."""
    root, links = os.path.realpath(root), [entry for entry in entries if entry[1] == "l"]
    sent = {"", *(entry[0] for entry in entries)} if links else set()
    for path, _kind, _mode, _size, _mtime, target in links:
        count_progress()
        full, to = os.path.join(root, os.fsdecode(encode(path))), os.fsdecode(encode(target))
        places = (os.path.normpath(os.path.join(os.path.dirname(full), to)), os.path.realpath(full))
        inside = [travelling(one[len(root.rstrip("/")) + 1 :]) for one in places if is_below(one, root)]
        if not sent.intersection(inside) and os.path.exists(full):
            yield path, target


def folder_mode(info: "os.stat_result") -> int:
    """Returns the mode that a folder gets on the nodes. It has no write permission for all users unless it is sticky:
    any user could replace the folder's files. (On the head, a loose umask or a file system without modes causes it.)"""
    mode = stat.S_IMODE(info.st_mode)
    return mode if mode & stat.S_ISVTX else mode & ~stat.S_IWOTH


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def travelling(name: str) -> str:
    """Returns a file's name as it travels between machines: as UTF-8 with surrogateescape."""
    return decode(os.fsencode(name))


def is_private_key(path: str, size: int) -> bool:
    """Returns whether a file holds a private key. Returns False for an unreadable file: a later read reports the
    error."""
    if size not in KEY_BYTES or path.endswith(OTHER):
        return False
    try:
        with closing(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as fd:
            return KEY.search(os.read(fd, KEY_BYTES.stop)) is not None
    except OSError:
        return False


def may_copy(credentials: "frozenset[str]", real: str, info: "os.stat_result") -> bool:
    """Returns whether the target of a link may be sent in place of the link: it is no secret."""
    if {".git", *SECRETS}.intersection(real.split("/")) or real in credentials:
        return False
    return not stat.S_ISREG(info.st_mode) or not is_private_key(real, info.st_size)
