"""Keeps the id by which nodes know a source. While a sync is under way, an empty folder lies in the source. A node that
finds this folder in its destination knows that the destination is the source itself, reached by a link or a mount.

A source carries a witness, a random number. The witness lies in the git-dir of the source's work tree or, without git,
in a small file that no sync sends. The witness is valid only if a record in ~/.fleet/source-ids says that the witness
was found in this folder. A copy or an archive of the folder carries the same witness, but has no such record. Paths and
inodes cannot be witnesses: after `rm` and `mv`, other folders may have them.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import secrets
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

from fleet import own
from fleet.best_effort import best_effort
from fleet.delivery.git import NoAnswer, ask
from fleet.node.base.files import replace_file
from fleet.node.base.locks import exclusive_lock
from fleet.protocol.messages.code import Source
from fleet.protocol.state import HOME, SOURCE_IDS, SOURCE_MARK

MOST = 1000  # records; the latest ones are kept
GIT_SECONDS = 5.0
# for statx: take the path as it is; request the birth time; the offset of the birth time in the answer
AT_FDCWD, STATX_BTIME, BTIME = -100, 0x800, 80


# One record: the "witness" was found in the folder "path" of "host", and that folder has the id "id".
Record = dict[str, str]
# the folder that carries a source's witness (the source's work tree, or the source itself); the file of the witness;
# the source's path in that folder
Carrier = tuple[str, Path, str]


def _carrier(root: str) -> Carrier:
    loose = Path(root) / SOURCE_MARK
    arguments = ("rev-parse", "--absolute-git-dir", "--show-toplevel")
    with contextlib.suppress(NoAnswer, ValueError):
        answer = os.fsdecode(ask(root, *arguments, seconds=GIT_SECONDS, most=1 << 16))
        folder, top = answer.removesuffix("\n").split("\n")
        git_dir, around = Path(folder).resolve(), Path(root).is_relative_to(top)
        if around and not loose.exists() and _is_of(git_dir, Path(top)):  # loose: it was no repository then
            return top, git_dir / SOURCE_MARK[1:], os.path.relpath(root, top)
    return root, loose, "."


def _witness(carrier: Carrier) -> str | None:
    """Returns the witness, None if there is none. Raises OSError if the file cannot be read, or is another user's."""
    try:
        text = own.read_own(carrier[1], 64).decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return text if re.fullmatch("[0-9a-f]{32}", text) else None


def _source(record: Record, inside: str) -> str:
    """Returns the id of the source at the path `inside` in the folder of a record."""
    return hashlib.sha256(f"{record['id']}\0{inside}".encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _is_of(folder: Path, top: Path) -> bool:
    """Returns whether a git-dir belongs to the work tree `top`. The `.git` of a copied or received tree may name any
    git-dir."""
    try:
        back = folder / os.fsdecode(own.read_own(folder / "gitdir", 1 << 16)).strip()
    except FileNotFoundError:
        return any(folder.is_relative_to(around / ".git") for around in (top, *top.parents))  # a submodule's lies above
    return not back.exists() or _is_same(str(back), str(top / ".git"))


def identified(root: Path, name: str | None = None) -> Source:
    """Returns the source as nodes know it. name: the user's own id for the source; "" if it needs no id; None to find
    its id."""
    if name is None:
        try:
            name = _known(str(root))
        except OSError:  # the source or the user's home cannot be written
            name = _born(root)
    return {"host": _host(), "path": str(root), "id": name}


@contextlib.contextmanager
def marked(root: Path) -> Iterator[str | None]:
    """Keeps an empty folder in the source while the block runs. Yields the folder's name, or None if the source cannot
    be written."""
    mark, made = f".{secrets.token_hex(16)}{SOURCE_MARK}", None
    with contextlib.suppress(OSError):
        for left in root.glob(f".*{SOURCE_MARK}"):  # a killed sync left it; or a sync copied it long ago
            if left.stat().st_mtime < root.stat().st_ctime - 86400:
                left.rmdir()
    with contextlib.suppress(OSError):  # the source is read-only, or another user's
        (root / mark).mkdir(0o755)
        made = mark
    try:
        yield made
    finally:
        if made is not None:
            with best_effort("remove fleet's mark from the source"):
                (root / mark).rmdir()


def _known(root: str) -> str:
    """Returns the id of a source, by its witness and its record. Makes both if needed. Raises OSError."""
    store, carrier = own.home(Path.home()) / SOURCE_IDS, _carrier(root)
    top, file, inside = carrier
    with open(f"{store}.lock", "ab", opener=own.private) as lock, exclusive_lock(lock.fileno()):
        records, witness = _read(store), _witness(carrier)
        mine, is_copy = _recorded(records, witness, top)
        if witness is None or is_copy:
            witness = secrets.token_hex(16)
            replace_file(bytes(file), f"{witness}\n".encode(), 0o644)
        new = {"id": secrets.token_hex(16), **(mine or {}), "witness": witness, "path": top, "host": _host()}
        if mine is None or not _is_same(mine["path"], top):
            rest = [each for each in records if each is not mine]
            replace_file(bytes(store), json.dumps([*rest, new][-MOST:]).encode(), 0o600)
    return _source(new, inside)


def ids_around(folder: Path) -> dict[Path, set[str]]:
    """Returns the source ids of a folder and of each folder around it. Writes nothing."""
    around = [folder, *folder.parents]
    ids = {each: {_born(each)} - {""} for each in around}
    records = _read(Path.home() / HOME / SOURCE_IDS)
    for each in around:
        with contextlib.suppress(OSError):  # a folder around it may be unreadable
            if each == folder or (each / SOURCE_MARK).exists():
                top, *_ = carrier = _carrier(str(each))
                mine, _ = _recorded(records, _witness(carrier), top)
                for place in [place for place in around if mine and place.is_relative_to(top)]:
                    ids[place].add(_source(mine or {}, os.path.relpath(place, top)))
    return ids


def _recorded(records: list[Record], witness: str | None, top: str) -> tuple[Record | None, bool]:
    """Returns (record of a witness or None, whether the folder `top` is a copy). The record must be of this very
    folder, which is at the recorded path, or was moved from there. The caller gives a copy a witness of its own."""
    theirs = [each for each in records if each["witness"] == witness]
    for each in theirs:
        if _is_same(each["path"], top):
            return each, False
    left = [each for each in theirs if each["host"] != _host()]  # their folders cannot be checked from here
    still = any(_witness(_carrier(each["path"])) == witness for each in theirs if each not in left)
    return (theirs[0] if len(theirs) == 1 and not left and not still else None), still


def _is_same(one: str, other: str) -> bool:
    """Returns whether two paths are one folder or file, also through another mount."""
    try:
        return one == other or os.path.samefile(one, other)
    except OSError:
        return False


def _born(root: Path) -> str:
    """Returns the id of a source in which nothing can be written, by its path, inode and birth time; "" if the birth
    time is not known."""
    answer = ctypes.create_string_buffer(256)
    try:
        failed = ctypes.CDLL(None).statx(AT_FDCWD, bytes(root), 0, STATX_BTIME, answer)
    except (OSError, AttributeError):  # an old C library
        return ""
    (mask,), born = struct.unpack_from("I", answer), struct.unpack_from("qI", answer, BTIME)
    if failed or not mask & STATX_BTIME:
        return ""
    return hashlib.sha256(repr((bytes(root), os.stat(root).st_ino, born)).encode()).hexdigest()[:32]


def _read(store: Path) -> list[Record]:
    """Returns the records of the store; none if the file is damaged or cannot be read."""
    try:
        found = own.read_json(store)
        return [each for each in found if [*map(type, map(each.get, ("id", "witness", "path", "host")))] == [str] * 4]
    except (OSError, ValueError, TypeError, AttributeError):
        return []


def _host() -> str:
    return socket.gethostname()
