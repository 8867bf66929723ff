"""What a source tree consists of: every entry that .gitignore and .fleetignore leave in, as a manifest."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pathspec import GitIgnoreSpec

from fleet.errors import HostFailed, UsageError

IGNORE_FILES = (".gitignore", ".fleetignore")
# what fleet itself keeps beside destinations: locks and parts of this machine, should it be a node, too
STATE_FOLDERS = (".fleet-data", ".fleet-sync")

# path (bytes as surrogateescape text, relative), kind "f" | "d" | "l", mode, size, mtime_ns, link target
Entry = tuple[str, str, int, int, int, str]


class Links:
    """Of the files in a tree, noted one by one: how many are hard links of others, what those with holes take."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], int] = {}
        self.allocated: dict[str, int] = {}

    def note(self, key: str, info: os.stat_result) -> None:
        if info.st_nlink > 1:
            inode = info.st_dev, info.st_ino
            self._seen[inode] = self._seen.get(inode, 0) + 1
        if info.st_blocks * 512 < info.st_size:
            self.allocated[key] = info.st_blocks * 512

    @property
    def count(self) -> int:
        """Files that have another one's content, by being the same file."""
        return sum(count for count in self._seen.values() if count > 1)


@dataclass(frozen=True)
class Tree:
    """A folder on the head as it is to be on the nodes. skipped: sockets, fifos and devices left out.
    links: what hard links and holes are in it."""

    root: Path
    entries: tuple[Entry, ...]
    skipped: tuple[str, ...] = field(default=())
    links: Links = field(default_factory=Links, compare=False)

    @cached_property
    def digest(self) -> str:
        """sha256 of the manifest: equal digests mean nothing is to be sent."""
        return hashlib.sha256(json.dumps(self.entries).encode()).hexdigest()

    @cached_property
    def packed(self) -> bytes:
        """The manifest as it goes to nodes."""
        return zlib.compress(json.dumps(self.entries).encode(), 1)

    @cached_property
    def by_path(self) -> dict[str, Entry]:
        """The entries of all its files."""
        return {entry[0]: entry for entry in self.entries if entry[1] == "f"}

    def file_digest(self, path: str) -> str:
        """sha256 of one file's bytes. HostFailed when it cannot be read any more, or is not what was found."""
        digest = hashlib.sha256()
        try:
            with self.local(path).open("rb") as f:
                while block := f.read(1 << 20):
                    digest.update(block)
                info = os.fstat(f.fileno())
        except OSError as error:
            raise HostFailed(
                f"{path} changed while it was read: {error.strerror}",
                kind="sync",
                hint="run the sync again; nothing was switched in",
            ) from error
        if (info.st_size, info.st_mtime_ns) != self.by_path[path][3:5]:
            raise HostFailed(
                f"{path} changed while it was read", kind="sync", hint="run the sync again; nothing was switched in"
            )
        return digest.hexdigest()

    def local(self, path: str) -> Path:
        """Where the entry `path` lies on this machine."""
        return self.root / os.fsdecode(path.encode("utf-8", "surrogateescape"))


class Ignore:
    """Git's rules: the deepest ignore file that has a say decides, its last matching line."""

    def __init__(self, levels: tuple[tuple[str, GitIgnoreSpec], ...] = ()) -> None:
        self._levels = levels

    def enter(self, folder: Path, prefix: str) -> Ignore:
        """The rules inside `folder`, whose paths start with `prefix` ("" or "a/b/")."""
        patterns = [pattern for name in IGNORE_FILES for pattern in _patterns(folder / name)]
        if not patterns:
            return self
        return Ignore(((prefix, GitIgnoreSpec(patterns)), *self._levels))

    def drops(self, path: str, folder: bool) -> bool:
        for prefix, spec in self._levels:
            verdict = spec.check_file(path[len(prefix) :] + ("/" if folder else "")).include
            if verdict is not None:
                return verdict
        return False


def _patterns(path: Path) -> list[Any]:
    """Those of one ignore file, in its order; none where there is no such file."""
    try:
        lines = path.read_text("utf-8", "surrogateescape").split("\n")
    except (FileNotFoundError, IsADirectoryError):
        return []
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    found: list[Any] = []
    for number, line in enumerate(lines, 1):
        try:
            found += GitIgnoreSpec.from_lines([line]).patterns
        except (ValueError, re.error) as error:
            raise UsageError(
                f"not a pattern: {line!r}",
                where=f"{path}:{number}",
                hint="correct it; a literal ! or \\ at its beginning needs a \\ before it",
            ) from error
    return found


class Everything(Ignore):
    """No rules at all, however deep."""

    def enter(self, folder: Path, prefix: str) -> Ignore:
        return self


def _outer_rules(root: Path) -> tuple[Ignore, str]:
    """Rules of the enclosing git checkout's folders above root, and root's path inside the checkout."""
    chain = [root, *root.parents]
    top = next((p for p in chain if (p / ".git").exists()), None)
    if top is None or top == root:
        return Ignore(), ""
    ignore = Ignore()
    for folder in reversed(chain[1 : chain.index(top) + 1]):
        ignore = ignore.enter(folder, "" if folder == top else f"{folder.relative_to(top)}/")
    return ignore, f"{root.relative_to(top)}/"


def scan(root: Path, *, whole: bool = False) -> Tree:
    """Read the tree below root; UsageError where it is missing, no folder, or unreadable. whole: ignore files have
    no say."""
    try:
        root = root.resolve()
        there = root.exists()
    except (OSError, RuntimeError) as error:  # too long a name; links that lead to each other
        raise UsageError(
            f"the source {root} cannot be looked at: {error}", hint="give the folder to mirror: fleet sync SRC"
        ) from error
    if not there:
        raise UsageError(f"the source {root} does not exist", hint="give the folder to mirror: fleet sync SRC")
    if not root.is_dir():
        raise UsageError(f"the source {root} is a file", hint="give a folder; for data: fleet sync --data PATH")
    skipped: list[str] = []
    links = Links()
    ignore, prefix = (Everything(), "") if whole else _outer_rules(root)
    try:
        entries = tuple(_walk(root, "", prefix, ignore, skipped, links))
    except FileNotFoundError as error:
        raise HostFailed(
            f"{error.filename} vanished while the source was read",
            kind="sync",
            hint="run the sync again; nothing was sent",
        ) from error
    except OSError as error:
        raise UsageError(
            f"cannot read {error.filename}: {error.strerror}", hint="mend its mode, or list it in .fleetignore"
        ) from error
    except RecursionError as error:
        raise UsageError(f"the folders in {root} are nested too deeply", hint="list them in .fleetignore") from error
    return Tree(root, entries, tuple(skipped), links)


def _walk(root: Path, inside: str, prefix: str, ignore: Ignore, skipped: list[str], links: Links) -> Iterator[Entry]:
    """Entries below root/inside, folders before what they hold, sorted by name."""
    folder = root / inside
    ignore = ignore.enter(folder, prefix)
    with os.scandir(folder) as found:
        children = sorted(found, key=lambda entry: entry.name)
    for child in children:
        is_folder = child.is_dir(follow_symlinks=False)
        if child.name == ".git" or (is_folder and child.name.endswith(STATE_FOLDERS)):
            continue
        if ignore.drops(prefix + child.name, is_folder):
            continue
        path = _travel(inside + child.name)
        info = child.stat(follow_symlinks=False)
        mode = stat.S_IMODE(info.st_mode)
        if is_folder:
            yield (path, "d", folder_mode(info), 0, 0, "")
            yield from _walk(root, f"{inside}{child.name}/", f"{prefix}{child.name}/", ignore, skipped, links)
        elif child.is_symlink():
            yield (path, "l", 0, 0, 0, _travel(os.readlink(child.path)))
        elif child.is_file(follow_symlinks=False):
            if not os.access(child.path, os.R_OK):
                raise PermissionError(13, "Permission denied", child.path)
            links.note(path, info)
            yield (path, "f", mode, info.st_size, info.st_mtime_ns, "")
        else:
            skipped.append(path)


def folder_mode(info: os.stat_result) -> int:
    """What a folder gets on the nodes. What all their users may write would not be safe to sync into again; here
    such folders come from file systems without modes, and careless umasks."""
    mode = stat.S_IMODE(info.st_mode)
    return mode if mode & stat.S_ISVTX else mode & ~stat.S_IWOTH


def _travel(name: str) -> str:
    """A name in the head's file system encoding, as UTF-8 with surrogateescape."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")
