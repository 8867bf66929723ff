"""The folder that `get` brings something to, held open: what is there already, and how what came gets there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from fleet.delivery import brought
from fleet.delivery.brought import Got
from fleet.errors import HostFailed, UsageError
from fleet.node.base.beneath import Beneath, chmod, reach, shown
from fleet.node.base.errors import Refused
from fleet.node.base.files import lstat, remove_tree
from fleet.node.base.state_folder import state_folder
from fleet.node.base.wire import encode
from fleet.own import around
from fleet.protocol.messages.chain import Entry
from fleet.protocol.state import GET_STAGE


class Came(NamedTuple):
    """A file as it was read there. staged: where it lies, a path in the stage; None: it is here already."""

    size: int
    mtime_ns: int
    sha256: str
    staged: bytes | None


class InTheWay(NamedTuple):
    """What is here, and get did not put it here, or somebody has changed it since."""

    path: str
    shown: str
    size: int
    changed: float


@contextlib.contextmanager
def in_words(host: str | None, hint: str = "once that is mended, get it again: it goes on") -> Iterator[None]:
    """Says what cannot be done with files here. HostFailed; for no host in particular, UsageError."""
    kind = HostFailed if host else UsageError
    try:
        yield
    except Refused as error:
        raise kind(error.message, hint=error.hint, host=host) from error
    except OSError as error:
        where = shown(os.fsencode(error.filename)) + ": " if error.filename else ""
        raise kind(f"{where}{error.strerror}", hint=hint, host=host) from error


class Ground:
    """to: the folder. known: what gets into it put there. UsageError where it is not safe to write to."""

    def __init__(self, to: Path) -> None:
        self.to = to
        with in_words(None, "--to names another folder"):
            self.top = Beneath(reach(os.path.abspath(os.fsencode(to)), make=True), around(Path("here"))).check()
            held = state_folder(self.top, b"fleet", GET_STAGE.encode().removeprefix(b".fleet"))
            self.stage = Beneath(int(held.rpartition(b"/")[2]))
        self.known = brought.known_in(to)

    @property
    def held(self) -> int:
        """Bytes that the stage takes."""
        files = Path(os.fsdecode(self.stage.path)).rglob("*")
        return sum(path.lstat().st_blocks * 512 for path in files)

    def close(self, *, done: bool) -> None:
        """done: nothing that is staged is of use any more."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.stage.path) if done else ():
                remove_tree(self.stage.at(os.fsencode(name)))
            os.rmdir(self.top.at(GET_STAGE.encode()))  # where nothing is in it
        os.close(self.stage.top)
        os.close(self.top.top)


class Place:
    """inside: the path in the ground of what one host gives. there: its path on the host. agreed: paths that may be
    replaced. alike: files here that may well be the same."""

    def __init__(self, ground: Ground, host: str, inside: str, there: str) -> None:
        self.ground, self.host, self.inside, self.there = ground, host, inside, there
        self.entries: Sequence[Entry] = ()
        self.mode: int | None = None
        self.came: dict[str, Came] = {}
        self.agreed: set[str] = set()
        self.alike: set[str] = set()
        self._here: dict[str, os.stat_result | None] = {}
        self._same: set[str] = set()

    @property
    def path(self) -> Path:
        return self.ground.to / self._key("")

    def at(self, path: str) -> bytes:
        return self.ground.top.at(os.fsencode(self._key(path)))

    def _key(self, path: str) -> str:
        """Of one of its paths, in the ground."""
        return self.inside + ("/" + os.fsdecode(encode(path)) if path else "")

    def _known(self, key: str, place: bytes) -> Got | None:
        """What get put there, if that is still so."""
        known = self.ground.known.get(key)
        return known if known is not None and brought.is_still(place, known) else None

    def _wanted(self) -> list[Entry]:
        """Folders first, then files, then links: nothing goes through one."""
        top: list[Entry] = [("", "d", self.mode, 0, 0, "")] if self.mode is not None else []
        return [*top, *sorted(self.entries, key=lambda entry: "dfl".index(entry[1]))]

    def look(self) -> list[InTheWay]:
        """What is in the way here, as far as it can be told: of a file that has not come, and is as long as the one
        here, it cannot. HostFailed where no question would help."""
        self._here, self._same, self.alike = {}, set(), set()
        found: list[InTheWay] = []
        absent = set()
        for entry in self._wanted():
            path, kind = entry[0], entry[1]
            info = None if path and path.rpartition("/")[0] in absent else self._lstat(path)
            self._here[path] = info
            if kind == "d" and (info is None or not stat.S_ISDIR(info.st_mode)):
                absent.add(path)
            if info is not None and not self._fits(entry, info) and path not in self.agreed:
                found.append(InTheWay(path, str(self.ground.to / self._key(path)), info.st_size, info.st_mtime))
        return found

    def _lstat(self, path: str) -> os.stat_result | None:
        try:
            return os.lstat(self.at(path))
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            raise self._refusal(self.ground.to / self.inside.partition("/")[0], "is no folder here") from None

    def _refusal(
        self, place: bytes | Path, what: str, hint: str = "move it away, or --to names another folder"
    ) -> HostFailed:
        return HostFailed(f"{shown(os.fsencode(place))} {what}", hint=hint, host=self.host)

    def _fits(self, entry: Entry, info: os.stat_result) -> bool:
        """Whether what is here is as there, or may be replaced."""
        path, kind, _mode, size, mtime, link = entry
        place, key, come = self.at(path), self._key(path), self.came.get(path)
        if stat.S_ISDIR(info.st_mode):
            if kind == "d" or self._all_ours(key, place):
                return True
            raise self._refusal(place, "is a folder here, and none there")
        known = self._known(key, place)
        if kind == "d" and stat.S_ISLNK(info.st_mode) and known is None:
            raise self._refusal(place, "is a link here, nothing is written through it")
        if kind == "l" and stat.S_ISLNK(info.st_mode) and os.readlink(place) == encode(link):
            self._same.add(path)
        elif kind == "f" and stat.S_ISREG(info.st_mode) and come is None and info.st_size == size:
            if known is None or info.st_mtime_ns == mtime:
                self.alike.add(path)
            return True
        elif (
            kind == "f"
            and come is not None
            and come.sha256
            == (known.sha256 if known is not None else stat.S_ISREG(info.st_mode) and brought.digest_of(place))
        ):
            self._same.add(path)
        return known is not None or path in self._same

    def _all_ours(self, key: str, place: bytes) -> bool:
        """Whether get put all files of a folder here."""
        for inner, folders, names in os.walk(place):
            for name in names + [name for name in folders if os.path.islink(os.path.join(inner, name))]:
                full = os.path.join(inner, name)
                if self._known(key + os.fsdecode(full[len(place) :]), full) is None:
                    return False
        return True

    def put(self) -> tuple[int, int, int]:
        """Each in one step, behind look(). (files put here, their bytes, files and links that were here). HostFailed,
        OSError."""
        stage, notes, files, size = self.ground.stage, dict[str, Got](), 0, 0
        if "/" in self.inside:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.ground.top.at(os.fsencode(self.host)))
        try:
            for path, kind, mode, _size, _mtime, link in self._wanted():
                here, come = self._here[path], self.came.get(path)
                if path in self._same or kind == "d" and here is not None and stat.S_ISDIR(here.st_mode):
                    continue
                place = self.at(path)
                self._clear(path, place, kind)
                if kind == "d":
                    os.mkdir(place, 0o700)
                    chmod(place, mode & 0o775 | 0o700)
                    continue
                if kind == "l":
                    digest = hashlib.sha256(encode(link)).hexdigest()
                    staged = stage.at(os.fsencode(self.host) + b"/link")
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(staged)
                    os.symlink(encode(link), staged)
                elif come is None or come.staged is None:
                    raise self._refusal(place, "changed meanwhile: it is left as it is", "get it again")
                else:
                    staged, digest = stage.at(come.staged), come.sha256
                    chmod(staged, mode & 0o777 | 0o600)
                    os.utime(staged, ns=(come.mtime_ns, come.mtime_ns), follow_symlinks=False)
                    files, size = files + 1, size + come.size
                os.replace(staged, place)
                there = posixpath.join(self.there, path) if path else self.there
                notes[self._key(path)] = brought.got(place, digest, self.host, there)
        finally:
            with contextlib.suppress(OSError, UsageError):  # then a later get asks before it replaces them
                brought.note(self.ground.to, notes)
        return files, size, len(self._same)

    def _clear(self, path: str, place: bytes, kind: str) -> None:
        """Nothing is there any more that cannot be replaced in one step. HostFailed where it is not what look() saw."""
        here, now = self._here[path], lstat(place)
        if _which(here) != _which(now):
            raise self._refusal(place, "changed meanwhile: it is left as it is", "get it again")
        if here is not None and stat.S_ISDIR(here.st_mode):
            shutil.rmtree(place)
            self.ground.top.forget(os.fsencode(self._key(path)))
        elif here is not None and kind == "d":
            os.unlink(place)


def _which(info: os.stat_result | None) -> tuple[int, ...] | None:
    return info and (info.st_mode, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)
