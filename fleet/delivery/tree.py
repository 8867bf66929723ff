"""What a source consists of: one file, or every entry of a folder that ignore.py leaves in."""

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
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from fleet.delivery.brought import unchanged
from fleet.delivery.ignore import Sieve, Why
from fleet.errors import HostFailed, ProtocolError, UsageError
from fleet.model import Host
from fleet.node.base.errors import Refused
from fleet.node.delivery.journal import by_column
from fleet.node.delivery.tree import Walk, travelling
from fleet.protocol.messages.chain import Entry

MAX_ENTRIES = 1_000_000
MAX_LIST = 256 << 20  # characters of names in it
AGAIN = "run the sync again; nothing was switched in"


@dataclass(frozen=True)
class Tree:
    """A file or a folder of the head as it is to be on the nodes. entries: what is in it. skipped: sockets, fifos and
    devices left out. mode: the folder's own, None of a file. allocated: path -> bytes that a file with holes takes.
    linked: (device, inode) of each file that has other names. sieve: what left entries out, None where nothing did.
    brought: files that `get` brought, nobody changed since and git tracks. unsafe_links: (path, target) of links that
    lead nowhere on a node."""

    root: Path
    entries: tuple[Entry, ...]
    skipped: tuple[str, ...] = ()
    mode: int | None = None
    allocated: Mapping[str, int] = field(default_factory=dict, compare=False)
    linked: tuple[tuple[int, int], ...] = field(default=(), compare=False)
    sieve: Sieve | None = field(default=None, compare=False)
    brought: frozenset[str] = frozenset()
    unsafe_links: tuple[tuple[str, str], ...] = ()

    @cached_property
    def _manifest(self) -> bytes:
        return by_column(self.entries)

    @cached_property
    def digest(self) -> str:
        """sha256 of the manifest: equal digests mean nothing is to be sent."""
        return hashlib.sha256(self._manifest).hexdigest()

    @cached_property
    def packed(self) -> bytes:
        """The manifest as it goes to nodes."""
        return zlib.compress(self._manifest, 1)

    @cached_property
    def by_path(self) -> dict[str, Entry]:
        """The entries of all its files."""
        return {entry[0]: entry for entry in self.entries if entry[1] == "f"}

    def why(self, path: str, kind: str = "f") -> Why | None:
        """Why a path that is not among the entries is left out: a pattern, or some other rule; None: it is not."""
        if self.sieve is None:
            return None
        return self.sieve.why(os.fsdecode(path.encode("utf-8", "surrogateescape")), kind == "d")

    def excluded(self, paths: Iterable[tuple[str, str]]) -> set[str]:
        """Of (path, kind) that are not among the entries those that are not gone: a rule leaves them out, whether or
        not they are there, or they are there."""
        if self.sieve is None:
            return set()
        return {path for path, kind in paths if os.path.lexists(self.local(path)) or self.why(path, kind) is not None}

    @property
    def left_out(self) -> tuple[str, ...]:
        """What is not sent unasked: ("2 private keys (a.pem, b.pem)", ".venv", "__pycache__ (12)")."""
        return () if self.sieve is None else tuple(_counted(*item) for item in sorted(self.sieve.left.items()))

    @property
    def notices(self) -> tuple[str, ...]:
        """What whoever sends it should know, each a line."""
        found = [] if self.sieve is None else list(self.sieve.notices)
        if self.left_out:
            found.append(f"not sent unasked: {', '.join(self.left_out)}; all but keys: --all")
        if self.sieve is not None and self.sieve.sent:
            found.append(f"private keys that git tracks are sent: {_few(self.sieve.sent)}")
        if self.unsafe_links:
            links = _few([f"{path} -> {target}" for path, target in self.unsafe_links])
            found.append(f"links to what is not sent: {links}; --copy-unsafe-links sends what they lead to")
        return tuple(found)

    @contextlib.contextmanager
    def opened(self, path: str) -> Iterator[BinaryIO]:
        """One of its files, to be read. HostFailed when it cannot be any more, or in the end is not what was found."""
        try:
            with open(self.local(path), "rb", opener=_no_link) as file:
                yield file
                info = os.fstat(file.fileno())
        except FileNotFoundError:
            raise HostFailed(f"{path} vanished while it was sent", kind="sync", hint=AGAIN) from None
        except OSError as error:
            raise HostFailed(f"{path} changed while it was read: {error.strerror}", kind="sync", hint=AGAIN) from error
        if (info.st_size, info.st_mtime_ns) != self.by_path[path][3:5]:
            raise HostFailed(f"{path} changed while it was read", kind="sync", hint=AGAIN)

    def file_digest(self, path: str) -> str:
        """sha256 of one file's bytes; HostFailed as opened() has it."""
        digest = hashlib.sha256()
        with self.opened(path) as file:
            while block := file.read(1 << 20):
                digest.update(block)
        return digest.hexdigest()

    def local(self, path: str) -> Path:
        """Where the entry `path` lies on this machine."""
        return self.root / os.fsdecode(path.encode("utf-8", "surrogateescape"))


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def with_payload(op: str, data: bytes, **more: Any) -> bytes:
    """A control line, and the bytes behind it that it tells of."""
    line = {"op": op, "size": len(data), "sha256": hashlib.sha256(data).hexdigest(), **more}
    return json.dumps(line).encode() + b"\n" + data


def hard_links(trees: Iterable[Tree]) -> int:
    """How many files in them have another one's content, by being the same file."""
    return sum(count for count in Counter(inode for tree in trees for inode in tree.linked).values() if count > 1)


def scan(
    root: Path,
    *,
    whole: bool = False,
    everything: bool = False,
    copy_unsafe_links: bool = False,
    hosts: Sequence[Host] = (),
) -> Tree:
    """The folder `root` as code. UsageError where it is missing, no folder, or unreadable, or holds the user's home.
    whole: no rule leaves anything out. everything: as Sieve has it. hosts: whose interpreters and identity files may
    lie in it."""
    hint = "give the folder to mirror: fleet sync SRC"
    try:
        root = root.resolve()
        there = root.exists()
    except (OSError, RuntimeError) as error:  # too long a name; links that lead to each other
        raise UsageError(f"the source {root} cannot be looked at: {error}", hint=hint) from error
    if not there:
        raise UsageError(f"the source {root} does not exist", hint=hint)
    if not root.is_dir():
        raise UsageError(f"the source {root} is a file", hint="give a folder; for data: fleet sync --data PATH")
    with reading(root, ", or list it in .fleetignore", "list them in .fleetignore"):
        if whole:
            return read(root)
        refuse_home(root, everything)
        brought = unchanged(root)
        sieve = Sieve(str(root), hosts, everything, brought)
        tree = None if sieve.is_ignored else read(root, sieve, copy_unsafe_links)
        if tree is None or not tree.by_path and sieve.outer:  # an outer repository ignores all of it
            tree = read(root, Sieve(str(root), hosts, everything, brought, alone=True), copy_unsafe_links)
        return tree


def refuse_home(root: Path, everything: bool) -> None:
    """UsageError where it is, or holds, the user's home folder."""
    home = Path.home().resolve()
    if root == home and everything or not home.is_relative_to(root):
        return
    what = "your home folder" if root == home else f"{root}, in which your home folder lies"
    more = "; for all of it but keys: --all" if root == home else ""
    raise UsageError(
        f"the source is {what}: keys, caches and all", hint=f"name the project's folder: fleet sync ~/PROJECT{more}"
    )


def read(root: Path, sieve: Sieve | None = None, copy_unsafe_links: bool = False) -> Tree:
    """What is there, less what `sieve` leaves out. Raises OSError, and UsageError for what is neither file nor
    folder."""
    walk = Walk(os.fspath(root), sieve.rules if sieve else None)
    try:
        entries = tuple(walk.entries())
    except Refused as error:
        raise UsageError(error.message, hint=error.hint) from error
    brought = frozenset(map(travelling, sieve.brought)) if sieve else frozenset[str]()
    brought &= {entry[0] for entry in entries} if brought else brought
    return Tree(root, entries, tuple(walk.skipped), walk.mode, walk.allocated, tuple(walk.linked), sieve, brought)


def _few(texts: Sequence[str], most: int = 3) -> str:
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _counted(kind: str, paths: Sequence[str]) -> str:
    """One of left_out."""
    if " " in kind:
        return f"{len(paths)} {kind}s ({_few(paths)})" if len(paths) > 1 else f"{kind} {paths[0]}"
    return f"{kind} ({len(paths)})" if len(paths) > 1 else paths[0]


def told(said: Callable[[], Any], host: str, hint: str) -> Tree:
    """What a node tells of its files (node/delivery/tree.tell). said: its next message. hint: where they are too many.
    HostFailed, ProtocolError."""
    entries: list[Entry] = []
    allocated: dict[str, int] = {}
    length = 0
    while True:
        part = said()
        new = part.get("entries", [])
        if part["event"] != "tree" or part["more"] and not new or len(part["allocated"]) > len(new):
            raise ProtocolError("a list of files was to come", host)
        entries += new
        allocated |= part["allocated"]
        length += sum(len(entry[0]) + len(entry[5]) for entry in new)
        if len(entries) > MAX_ENTRIES or length > MAX_LIST:
            raise HostFailed(f"more than {MAX_ENTRIES} files", host=host, hint=hint)
        if not part["more"]:
            skipped, linked = tuple(part["skipped"]), tuple(part["linked"])
            return Tree(Path(part["path"]), tuple(entries), skipped, part["mode"], allocated, linked)


@contextlib.contextmanager
def reading(root: Path, beside: str, deep: str) -> Iterator[None]:
    """Says what a source cannot be read for. beside: what else may be done about a file's mode. deep: what about too
    many folders in each other."""
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
        hint = f"mend its mode{beside}" if beside or error.errno == errno.EACCES else None
        raise UsageError(f"cannot read {error.filename}: {error.strerror}", hint=hint) from error
    except RecursionError as error:
        raise UsageError(f"the folders in {root} are nested too deeply", hint=deep) from error
