"""What one host gives, into a stage beside where it belongs: only what is whole goes on from there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import shlex
import shutil
import stat
import time
from collections.abc import Callable, Iterator

from fleet.delivery import brought
from fleet.errors import HostFailed, ProtocolError
from fleet.node.base.wire import encode
from fleet.ops.get.listed import frames_of, heard, listed_by
from fleet.ops.get.place import Came, Place
from fleet.protocol.frames import MESSAGE, OUTPUT
from fleet.protocol.messages.chain import Entry
from fleet.protocol.messages.give import GiveSpec, Giving
from fleet.rules.units import seconds, size_text
from fleet.transport.base import Cancel, Session
from fleet.transport.frames import Frame
from fleet.transport.program import Program

PASSES = 3
MOST_TRIES = 10  # of a node with a file that changes
KEY = 32  # characters


class Received:
    """Brings what a place lacks into the stage. progress: takes (bytes that are here, of how many). growing, gone: its
    paths that were brought as far as they were, and not at all. moving: with the quiet files beside each."""

    def __init__(
        self,
        session: Session,
        spec: GiveSpec,
        place: Place,
        everything: bool,
        cancel: Cancel,
        progress: Callable[[int, int], None],
    ) -> None:
        self.session, self.spec, self.place, self.everything = session, spec, place, everything
        self.cancel, self.progress = cancel, progress
        self.host, self.stage = session.host.name, place.ground.stage
        self.growing, self.gone = list[str](), list[str]()
        self.moving: dict[str, list[tuple[str, int]]] = {}
        self._folder = os.fsencode(place.host)
        self._staged = dict[str, str]()
        self._done = self._total = self._room = 0
        self._shown = 0.0

    def bring(self) -> None:
        """FleetError; what came stays staged."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.stage.at(self._folder), 0o700)
        wrong = set[str]()
        for _ in range(PASSES):
            self.moving.clear()
            wrong = self._pass(wrong)
            if not wrong:
                came, kept = self.place.came, self.place.entries
                self.place.entries = [entry for entry in kept if entry[1] != "f" or entry[0] in came]
                return
        raise HostFailed(f"{sorted(wrong)[0] or self.spec['path']} did not arrive as it was read", host=self.host)

    def _pass(self, wrong: set[str]) -> set[str]:
        """One conversation. wrong: paths that did not come as they were read; what is here of them is of no use."""
        with Program(self.session, "delivery.give", self.spec) as program:
            frames = frames_of(program, self.cancel)
            listed = listed_by(frames, self.spec, self.host, self.everything)
            self.place.entries, self.place.mode = listed.entries, listed.tree.mode
            self.place.look()
            self._staged = {name[:KEY]: name for name in map(os.fsdecode, os.listdir(self.stage.at(self._folder)))}
            index_of = {entry[0]: index for index, entry in enumerate(listed.tree.entries)}
            wanted = [
                (index_of[entry[0]], *self._here(entry, listed.versions[entry[0]], entry[0] in wrong), entry)
                for entry in listed.entries
                if entry[1] == "f" and entry[0] not in self.place.came
            ]
            self._total = sum(entry[3] for _, offset, _, entry in wanted if offset >= 0)
            self._done = sum(max(0, offset) for _, offset, _, _ in wanted)
            self._room = shutil.disk_usage(self.stage.name).free + self.place.ground.held
            program.send({"op": "give", "wanted": [each[:3] for each in wanted]})
            said = self._said(frames)
            again = {each[3][0] for each in wanted if not self._file(said, *each)}
            if next(said, None) is not None:
                raise self._odd()
        self.progress(self._total, self._total)
        return again

    def _odd(self) -> ProtocolError:
        return ProtocolError("something else comes than the file whose turn it is", self.host)

    def _said(self, frames: Iterator[Frame]) -> Iterator[Giving | bytes]:
        for frame in frames:
            if frame.kind == MESSAGE:
                yield heard(frame, self.host)
            elif frame.kind == OUTPUT:
                yield frame.payload

    def _here(self, entry: Entry, version: str, wrong: bool) -> tuple[int, str]:
        """(bytes of that version of it that are staged; -1: a file here may be the same, version)."""
        if entry[0] in self.place.alike and not wrong:
            return -1, version
        name = self._name(entry, version)
        if wrong or self._staged.get(name[:KEY]) != name:
            return 0, version
        info = os.lstat(self._at(name))
        ours = stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == os.stat(self.stage.path).st_uid
        return min(info.st_size, entry[3]) if ours else 0, version

    def _name(self, entry: Entry, version: str) -> str:
        """In the stage: of a path, and a version of it. A folder there that is a file now has another one."""
        return "-".join(
            hashlib.sha256(encode(text)).hexdigest()[:KEY] for text in (f"{self.spec['path']}\0{entry[0]}", version)
        )

    def _at(self, name: str) -> bytes:
        return self.stage.at(self._folder + b"/" + os.fsencode(name))

    def _file(self, said: Iterator[Giving | bytes], index: int, offset: int, version: str, entry: Entry) -> bool:
        """One of them, into the stage; whether it came as it was read."""
        what, path = next(said, None), entry[0]
        for _ in range(MOST_TRIES):
            if what is None or isinstance(what, bytes) or what.get("index") != index:
                break
            if what["event"] == "gone":
                self.gone.append(path)
                return True
            if what["event"] == "moving":
                self.moving[path] = what["quiet"]
                return True
            if what["event"] != "begin":
                break
            begun = what
            if begun["size"] > self._room:
                sizes = f"{size_text(begun['size'])} are to come, {size_text(self._room)} are free here"
                raise HostFailed(sizes, host=self.host, kind="no-space")
            goes_on = 0 < begun["offset"] == offset and begun["version"] == version
            if begun["offset"] and not goes_on:
                break
            staged = self._name(entry, begun["version"]) if offset >= 0 else ""
            fd = self._open(staged, goes_on) if staged else -1
            try:
                what = self._bytes(said, fd, begun["offset"], begun["size"])
                if what is None or isinstance(what, bytes) or what["event"] != "given":
                    continue
                if staged:
                    os.truncate(fd, begun["size"])
            finally:
                if staged:
                    os.close(fd)
            here = self._at(staged) if staged else self.place.at(path)
            if brought.digest_of(here) != what["sha256"]:
                return False
            self._room -= begun["size"] if staged else 0
            kept = self._folder + b"/" + os.fsencode(staged) if staged else None
            self.place.came[path] = Came(begun["size"], begun["mtime"], what["sha256"], kept)
            self.growing += [path] if what["growing"] else []
            return True
        raise self._odd()

    def _open(self, name: str, goes_on: bool) -> int:
        if not goes_on:
            with contextlib.suppress(KeyError, FileNotFoundError):
                os.unlink(self._at(self._staged.pop(name[:KEY])))
        self._staged[name[:KEY]] = name
        how = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if goes_on else os.O_CREAT | os.O_EXCL)
        return os.open(self._at(name), how, 0o600)

    def _bytes(self, said: Iterator[Giving | bytes], fd: int, at: int, size: int) -> Giving | bytes | None:
        """What comes behind them. fd: -1 where none are to come."""
        for what in said:
            if isinstance(what, bytes) and what and fd >= 0 and at + len(what) <= size:
                at += os.pwrite(fd, what, at)
                self._done += len(what)
                if time.monotonic() - self._shown > 0.1:
                    self._shown = time.monotonic()
                    self.progress(min(self._done, self._total), self._total)
            elif not isinstance(what, bytes) and what["event"] == "piece" and at < what["offset"] <= size:
                at = what["offset"]
            else:
                return what
        return None

    def not_still(self) -> HostFailed | None:
        """The error about files that change all the time."""
        if not self.moving:
            return None
        path, quiet = next(iter(self.moving.items()))
        asked = self.spec["path"]
        name = posixpath.join(asked, path) if path else asked
        others = f", and {len(self.moving) - 1} more" if len(self.moving) > 1 else ""
        plain = [(one, age) for one, age in quiet if "/" not in one and one.isprintable()]
        hint = (
            "get it when nothing writes there; a program that writes another file, and renames it, is never in the way"
        )
        if plain:
            line = shlex.join(
                ["fleet", "get", posixpath.join(posixpath.dirname(name), plain[0][0]), "--from", self.host]
            )
            since = ", ".join(f"{one} ({seconds(age)} old)" for one, age in plain)
            hint = f"at rest beside it: {since}; to have the newest: {line}"
        kept = "; what is here of it stays" if any(map(os.path.lexists, map(self.place.at, self.moving))) else ""
        said = f"{name}{others} was never whole and at rest when it was read{kept}"
        return HostFailed(said, hint=hint, host=self.host, kind="moving")
