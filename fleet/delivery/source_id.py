"""The id that a source is known by, and, while a sync is under way, an empty folder in it that shows a node that its
destination is the source itself, through whichever link or mount.

A source carries a witness, a random number: in the git-dir of its work tree, else in a small file that no sync sends.
It is believed together with a record in ~/.fleet/source-ids of the folder where it was seen: a witness travels with
whoever copies or unpacks the folder. Neither a path nor an inode is one: others have them after `rm` and `mv`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import struct
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fleet import own
from fleet.delivery.git import NoAnswer, ask
from fleet.node.base.files import replace_file
from fleet.protocol.messages.code import Source
from fleet.protocol.state import HOME, SOURCE_IDS, SOURCE_MARK

MOST = 1000  # the ones that were used last
GIT_SECONDS = 5.0
# of statx: the folder's own path, its birth time, and where that is in the answer
AT_FDCWD, STATX_BTIME, BTIME = -100, 0x800, 80


@dataclass(frozen=True)
class Seen:
    """A record: the witness that was at the folder `path` of `host`, and the id that it has there."""

    witness: str
    path: str
    host: str
    id: str

    def source(self, inside: str) -> str:
        """Returns the id of the source that is that folder in it."""
        return hashlib.sha256(f"{self.id}\0{inside}".encode("utf-8", "surrogateescape")).hexdigest()[:32]


@dataclass(frozen=True)
class Carrier:
    """Where a source carries its witness. top: the work tree, or the source. inside: the source's path in it."""

    top: str
    file: Path
    inside: str = "."

    @classmethod
    def of(cls, root: str) -> Carrier:
        try:
            words = ("rev-parse", "--absolute-git-dir", "--show-toplevel")
            folder, top = (
                os.fsdecode(ask(root, *words, seconds=GIT_SECONDS, most=1 << 16)).removesuffix("\n").split("\n")
            )
            kept, loose = Path(folder).resolve() / SOURCE_MARK[1:], Path(root) / SOURCE_MARK
            # where a source has become a repository, it carries what it carried before
            if (
                Path(root).is_relative_to(top)
                and _is_of(kept.parent, Path(top))
                and (kept.exists() or not loose.exists())
            ):
                return cls(top, kept, os.path.relpath(root, top))
        except (NoAnswer, ValueError):
            pass
        return cls(root, Path(root) / SOURCE_MARK)

    def witness(self) -> str | None:
        """Returns what it carries. OSError where that cannot be read, or is another user's."""
        try:
            text = own.read_own(self.file, 64).decode("ascii", "replace").strip()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return text if re.fullmatch("[0-9a-f]{32}", text) else None

    def new(self) -> str:
        """Writes a witness. OSError."""
        witness = secrets.token_hex(16)
        replace_file(bytes(self.file), f"{witness}\n".encode(), 0o644)
        return witness


def _is_of(folder: Path, top: Path) -> bool:
    """Returns whether a git-dir is that work tree's: `.git` of a copied tree, or of a handed one, may name any."""
    try:
        back = folder / os.fsdecode(own.read_own(folder / "gitdir", 1 << 16)).strip()
    except FileNotFoundError:
        return any(folder.is_relative_to(around / ".git") for around in (top, *top.parents))  # a submodule's lies above
    return not back.exists() or _is_same(str(back), str(top / ".git"))


def identified(root: Path, name: str | None = None) -> Source:
    """Returns what a source is to nodes. name: the user's own id for it, or "" where it needs none."""
    if name is None:
        try:
            name = _known(str(root))
        except OSError:  # nothing can be written there, or at home
            name = _born(root)
    return {"host": socket.gethostname(), "path": str(root), "id": name}


@contextlib.contextmanager
def marked(root: Path) -> Iterator[str | None]:
    """The name of the empty folder that lies in it meanwhile; None where nothing can be written there."""
    mark, made = f".{secrets.token_hex(16)}{SOURCE_MARK}", None
    with contextlib.suppress(OSError):
        for left in root.glob(f".*{SOURCE_MARK}"):  # by a kill; or by a sync that has been heard by its hosts long ago
            if left.stat().st_mtime < root.stat().st_ctime - 86400:
                left.rmdir()
    with contextlib.suppress(OSError):  # read only, or another user's
        (root / mark).mkdir(0o755)
        made = mark
    try:
        yield made
    finally:
        with contextlib.suppress(OSError):
            (root / mark).rmdir()


def _known(root: str) -> str:
    """Returns the id of a source, by its witness and the record of it. OSError."""
    store, here = own.home(Path.home()) / SOURCE_IDS, Carrier.of(root)
    with open(f"{store}.lock", "ab", opener=own.private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        records = _read(store)
        witness = here.witness()
        mine, is_copy = _recorded([each for each in records if each.witness == witness], here)
        if mine is None:
            if witness is None or is_copy:
                witness = here.new()
            kept = Seen(witness, here.top, socket.gethostname(), secrets.token_hex(16))
        else:
            kept = mine if _is_same(mine.path, here.top) else replace(mine, path=here.top)
        if kept != mine:
            rest = [each for each in records if each is not mine]
            replace_file(bytes(store), json.dumps([asdict(each) for each in [*rest, kept][-MOST:]]).encode(), 0o600)
    return kept.source(here.inside)


def ids_around(folder: Path) -> dict[Path, frozenset[str]]:
    """Returns what a folder, and each around it, is known by as a source. Nothing is written."""
    around = [folder, *folder.parents]
    ids = {each: {_born(each)} - {""} for each in around}
    records = _read(Path.home() / HOME / SOURCE_IDS)
    tops = [folder, *(each for each in around if (each / SOURCE_MARK).exists())]
    for here in {Carrier.of(str(each)) for each in tops}:
        with contextlib.suppress(OSError):
            witness = here.witness()
            mine, _ = _recorded([each for each in records if each.witness == witness], here)
            for each in around:
                if mine is not None and each.is_relative_to(here.top):
                    ids[each].add(mine.source(os.path.relpath(each, here.top)))
    return {each: frozenset(found) for each, found in ids.items()}


def _recorded(records: list[Seen], here: Carrier) -> tuple[Seen | None, bool]:
    """Returns the one of the records of a witness that is of this very folder, at its path or moved from another one
    since; and whether the folder is a copy, which is to have a witness of its own."""
    same = next((each for each in records if _is_same(each.path, here.top)), None)
    if same is not None:
        return same, False
    left = [each for each in records if each.host != socket.gethostname()]  # whether these are gone is not known here
    still = any(Carrier.of(each.path).witness() == each.witness for each in records if each not in left)
    return (records[0] if len(records) == 1 and not left and not still else None), still


def _is_same(one: str, other: str) -> bool:
    """Returns whether both are one folder, or file, also through another mount."""
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:
        return False


def _born(root: Path) -> str:
    """Returns the id of a source that can carry nothing, by path, inode and birth time; "" where a time of birth is not
    known."""
    answer = ctypes.create_string_buffer(256)
    try:
        failed = ctypes.CDLL(None).statx(AT_FDCWD, bytes(root), 0, STATX_BTIME, answer)
    except (OSError, AttributeError):  # an old C library
        return ""
    (mask,), born = struct.unpack_from("I", answer), struct.unpack_from("qI", answer, BTIME)
    if failed or not mask & STATX_BTIME:
        return ""
    return hashlib.sha256(repr((bytes(root), os.stat(root).st_ino, born)).encode()).hexdigest()[:32]


def _read(store: Path) -> list[Seen]:
    """Returns the records, none of a file that does not hold what it must."""
    try:
        found = [Seen(**each) for each in own.read_json(store)]
    except (OSError, ValueError, TypeError):
        return []
    return [each for each in found if {*map(type, asdict(each).values())} == {str}]
