"""Holds open the folder that `get` copies to. Compares its files with a host's, and moves received files into it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from fleet.best_effort import best_effort
from fleet.delivery import brought
from fleet.delivery.brought import Got
from fleet.delivery.tree import Tree
from fleet.errors import HostFailed, UsageError
from fleet.node.base.beneath import Beneath, chmod, reach, shown
from fleet.node.base.errors import Refused
from fleet.node.base.files import lstat, remove_tree, version_of, waiting_link
from fleet.node.base.state_folder import state_folder
from fleet.node.base.wire import encode
from fleet.node.delivery import ownership
from fleet.node.delivery.tree import travelling
from fleet.ops.get.names import by_folder, makes_repository
from fleet.own import around, own_umask
from fleet.protocol.messages.chain import Entry
from fleet.protocol.state import GET_STAGE
from fleet.rules.units import seconds, size_text

COPY = b".copy.fleet-get."  # prefix of a folder for a copy on the destination's file system


def _move(staged: bytes, place: bytes) -> None:
    """Moves a staged file to its place in one step. From another file system, it first copies the file next to that
    place."""
    try:
        os.replace(staged, place)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        folder = tempfile.mkdtemp(prefix=COPY, dir=os.path.dirname(place))
        try:
            copy = os.path.join(folder, b"file")
            shutil.copy2(staged, copy, follow_symlinks=False)
            os.replace(copy, place)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        os.unlink(staged)


@contextlib.contextmanager
def as_host_failure(host: str | None, hint: str = "once that is mended, get it again: it goes on") -> Iterator[None]:
    """Raises errors of files on this machine as HostFailed, or as UsageError if `host` is None."""
    kind = HostFailed if host else UsageError
    try:
        yield
    except Refused as error:
        raise kind(error.message, hint=error.hint, host=host) from error
    except OSError as error:
        where = shown(os.fsencode(error.filename)) + ": " if error.filename else ""
        raise kind(f"{where}{error.strerror}", hint=hint, host=host) from error


class Ground:
    """Holds the destination folder and its stage. to: the folder. known: the files that earlier gets put into it.
    is_done: no staged file is needed any more. Raises UsageError if it is not safe to write to the folder."""

    def __init__(self, to: Path) -> None:
        self.to, self.is_done = to, False
        with as_host_failure(None, "--to names another folder"):
            self.top = Beneath(reach(os.path.abspath(os.fsencode(to)), make=True), around(Path("here"))).check()
            held = state_folder(self.top, b"fleet", GET_STAGE.encode().removeprefix(b".fleet"))
            self.stage = Beneath(int(held.rpartition(b"/")[2]))
        self.known = brought.known_in(to)

    def note(self, files: Mapping[str, Sequence[Got]]) -> None:
        """Records the files that are put here. If that fails, a later get asks the user before it replaces them."""
        with (
            best_effort("record the files that were brought", (OSError, UsageError)),
            contextlib.suppress(FileNotFoundError),
        ):
            if files:
                brought.record_files(self.to, files)
            else:
                os.utime(brought.store_of(self.to))  # keeps the record among the latest ones

    def close(self) -> None:
        with contextlib.suppress(OSError):
            for name in os.listdir(self.stage.path) if self.is_done else ():
                remove_tree(self.stage.at(os.fsencode(name)))
            os.rmdir(self.top.at(GET_STAGE.encode()))  # fails, as it should, if the folder is not empty
        os.close(self.stage.top)
        os.close(self.top.top)


class Place:
    """Holds the place of one host's files. inside: its path in the ground. tree: the host's files. came: files that
    were received, as the host read them. staged: received file -> its path in the stage, if it is not in place already.
    agreed: paths that may be replaced. alike: files here that may equal the host's -> their record. same: the number of
    equal files and links here. settled: files that equal their record, here and on the host. notes: new records."""

    def __init__(self, ground: Ground, host: str, inside: str, tree: Tree) -> None:
        self.ground, self.host, self.inside, self.tree = ground, host, inside, tree
        self.came, self.staged = dict[str, Got](), dict[str, bytes]()
        self.agreed, self.alike = set[str](), dict[str, Got | None]()
        self.same, self.settled = 0, set[str]()
        self.notes = dict[str, list[Got]]()
        self._lacking: list[tuple[Entry, os.stat_result | None, Got | None]] = []

    def at(self, path: str) -> bytes:
        return self.ground.top.at(os.fsencode(self._key(path)))

    def _key(self, path: str) -> str:
        """Returns a path of the tree as a path in the ground."""
        return self.inside + ("/" + (path if path.isascii() else os.fsdecode(encode(path))) if path else "")

    def _known(self, path: str, info: os.stat_result) -> Got | None:
        """Returns the record of a file that get put there, if the file is unchanged."""
        known = self.ground.known.get(self._key(path), ())
        return brought.present_version(self.at(path), known, info) if known else None

    def look(self) -> dict[str, str]:
        """Returns the files in the way on this machine: path -> text. Omits a file here if the host's file was not
        received yet and has the same size: the two may be equal. Raises HostFailed if consent would not help."""
        self._lacking, self.same = [], 0
        self.alike.clear()
        self.notes.clear()
        found = dict[str, str]()
        folder = ownership.look(self.ground.top, self.host) if "/" in self.inside else None
        if folder is not None and not stat.S_ISDIR(folder.st_mode):
            raise self._refusal(self.ground.to / self.host, "is no folder here")
        top: list[Entry] = [] if self.tree.mode is None else [("", "d", self.tree.mode, 0, 0, "")]
        # folders first, links last: no file is written through a link
        for entry in top + sorted(self.tree.entries, key=lambda entry: "dfl".index(entry[1])):
            path = entry[0]
            if path in self.settled:
                self.same += 1
                continue
            info = ownership.look(self.ground.top, travelling(self._key(path)))
            known = self._known(path, info) if info is not None else None
            if info is not None and self._is_same(entry, info, known):
                self.same += entry[1] != "d"
                self._renew(path, known)
                continue
            self._lacking.append((entry, info, known))
            if info is not None and not self._may_go(entry, info, known) and path not in self.agreed:
                ago = seconds(time.time() - info.st_mtime)
                found[path] = f"{self.ground.to / self._key(path)} ({size_text(info.st_size)}, changed {ago} ago)"
        return found

    def check_repositories(self) -> None:
        """Raises UsageError if a folder here would become a git repository, together with its present contents."""
        for folder, names in by_folder({self.inside, *(self._key(entry[0]) for entry in self.tree.entries)}).items():
            there = set[str]()
            with contextlib.suppress(OSError, Refused):
                there = {*map(os.fsdecode, os.listdir(self.ground.top.at(os.fsencode(folder or "."))))}
            if makes_repository({*names, *there}):
                raise UsageError(
                    f"{self.ground.to / folder} would be a repository of git's: its config and hooks name programs",
                    hint="--to names another folder; --all fetches it all the same",
                )

    def _refusal(
        self, place: bytes | Path, what: str, hint: str = "move it away, or --to names another folder"
    ) -> HostFailed:
        return HostFailed(f"{shown(os.fsencode(place))} {what}", hint=hint, host=self.host)

    def _is_same(self, entry: Entry, info: os.stat_result, known: Got | None) -> bool:
        """Returns whether the file on this machine equals the host's. Returns False if the host's was not received."""
        path, kind, _mode, _size, _mtime, link = entry
        if kind == "d":
            return stat.S_ISDIR(info.st_mode)
        if kind == "l":
            return stat.S_ISLNK(info.st_mode) and os.readlink(self.at(path)) == encode(link)
        come = self.came.get(path)
        if come is None or not stat.S_ISREG(info.st_mode):
            return False
        return come.sha256 == (known.sha256 if known is not None else brought.digest_of(self.at(path)))

    def _renew(self, path: str, known: Got | None) -> None:
        """Records the host's new times of a file that get put here, so that the next get need not read it."""
        come = self.came.get(path)
        if known is not None and come is not None:
            now = known._replace(version=come.version, host=come.host)
            if self.ground.known[self._key(path)] != [now]:
                self.notes[self._key(path)] = [now]

    def _may_go(self, entry: Entry, info: os.stat_result, known: Got | None) -> bool:
        """Returns whether a file here may be replaced without consent, or may still prove to be equal."""
        path, kind, _mode, size, mtime, _link = entry
        if stat.S_ISDIR(info.st_mode):
            if not self._is_all_ours(path):
                raise self._refusal(self.at(path), "is a folder here, and none there")
            return True
        if kind == "d" and stat.S_ISLNK(info.st_mode) and known is None:
            raise self._refusal(self.at(path), "is a link here, nothing is written through it")
        if kind == "f" and stat.S_ISREG(info.st_mode) and path not in self.came and info.st_size == size:
            if known is None or info.st_mtime_ns == mtime:
                self.alike[path] = known
            return True
        return known is not None

    def _is_all_ours(self, path: str) -> bool:
        """Returns whether get put all files of a folder here."""
        key, folder = self._key(path), Path(os.fsdecode(self.at(path)))
        inner = (each for each in folder.rglob("*") if each.is_symlink() or not each.is_dir())
        known = self.ground.known
        return all(
            brought.present_version(bytes(each), known.get(f"{key}/{each.relative_to(folder)}", ())) for each in inner
        )

    def lacking(self) -> dict[str, list[Got]]:
        """Returns the records to write before files are put in place: path -> [the record of the present file, if get
        put it there, the record of the new file]."""
        found = dict[str, list[Got]]()
        for (path, kind, *_, link), _here, known in self._lacking:
            come, target = self.came.get(path), encode(link)
            if kind == "l":
                come = Got(len(target), 0, 0, 0, hashlib.sha256(target).hexdigest(), "", self.host)
            if kind != "d" and come is not None:
                found[self._key(path)] = [come] if known is None else [known, come]
        return found

    def put(self) -> tuple[int, int]:
        """Puts each entry that look() found lacking in place, in one step. Returns (files put here, their bytes).
        Raises HostFailed, OSError."""
        stage, going, files, size = self.ground.stage, self.lacking(), 0, 0
        umask = own_umask()
        if "/" in self.inside and self._lacking:
            os.makedirs(self.ground.top.at(os.fsencode(self.host)), exist_ok=True)
        for (path, kind, mode, _size, _mtime, link), here, _known in self._lacking:
            key, place = self._key(path), self.at(path)
            self._clear(path, place, kind, here)
            if kind == "d":
                os.mkdir(place, 0o700)
                chmod(place, mode & 0o777 & ~umask | 0o700)
                continue
            if kind == "l":
                staged = waiting_link(stage.at(os.fsencode(self.host) + b"/"), encode(link))
            elif path not in self.staged:
                raise self._changed(place)
            else:
                staged, files, size = stage.at(self.staged[path]), files + 1, size + self.came[path].size
            _move(staged, place)
            self.notes[key] = [brought.record_of(place, *going[key][-1][4:])]
        return files, size

    def _changed(self, place: bytes) -> HostFailed:
        return self._refusal(place, "changed meanwhile: it is left as it is", "get it again")

    def _clear(self, path: str, place: bytes, kind: str, here: os.stat_result | None) -> None:
        """Removes a folder, or a file in the place of a folder: they cannot be replaced in one step. Raises HostFailed
        if the path has changed since look()."""
        now = lstat(place)
        if (here and version_of(here)) != (now and version_of(now)):
            raise self._changed(place)
        if here is not None and stat.S_ISDIR(here.st_mode):
            shutil.rmtree(place)
            self.ground.top.forget(os.fsencode(self._key(path)))
        elif here is not None and kind == "d":
            os.unlink(place)
