"""Receives the files of one host into a stage next to the destination. Only whole files are moved from there."""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import shlex
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import replace

from fleet.delivery import brought
from fleet.errors import HostFailed, ProtocolError
from fleet.events import Progress
from fleet.model import Host
from fleet.node.base.files import remove_file
from fleet.node.base.wire import encode, write_all
from fleet.node.delivery.give import SMALL
from fleet.ops.get.listed import Message, Senders
from fleet.ops.get.place import Place
from fleet.own import own_umask, private
from fleet.protocol.messages.give import Begin, GiveSpec
from fleet.rules.units import seconds, size_text

PASSES = 3
MOST_TRIES = 10  # how often a node reads a file that changes
KEY = 32  # characters
# (path, number of staged bytes, their version). The number is None if a file on the head may equal the host's file
Wanted = tuple[str, int | None, str | None]


def mtime_of(version: str) -> int:
    """Returns the time of change, in ns, that a file's version holds."""
    return int(version.split(" ")[1])


class Received:
    """Fetches the files that a place lacks into the stage. The name of a staged file is made of its path and its
    version on the host. growing: paths of files that grew while they were read. gone: paths that vanished. moving: path
    of a file that changes all the time -> (name, age in s) of files next to it that do not change."""

    def __init__(self, host: Host, spec: GiveSpec, place: Place, senders: Senders) -> None:
        self.spec, self.place, self.senders, self.runtime = spec, place, senders, senders.runtime
        self.of, self.host, self.stage, self.umask = host, host.name, place.ground.stage, own_umask()
        self.growing, self.gone = list[str](), list[str]()
        self.moving: dict[str, list[tuple[str, int]]] = {}
        self._staged = dict[str, str]()
        self._done = self._total = 0
        self._shown = 0.0

    def bring(self) -> None:
        """Fetches the files. Raises FleetError; received files stay staged."""
        os.makedirs(self.stage.at(os.fsencode(self.host)), 0o700, exist_ok=True)
        wrong = set[str]()
        for _ in range(PASSES):
            self.moving.clear()
            wrong = self._pass(wrong)
            if not wrong:
                kept = (entry for entry in self.place.tree.entries if entry[1] != "f" or entry[0] in self.place.came)
                self.place.tree = replace(self.place.tree, entries=tuple(kept))
                return
        raise HostFailed(f"{sorted(wrong)[0] or self.spec['path']} did not arrive as it was read", host=self.host)

    def _pass(self, wrong: set[str]) -> set[str]:
        """Runs one conversation with the host. Returns the paths that arrived damaged. wrong: paths that arrived
        damaged in the earlier pass; their staged bytes are not used."""
        with contextlib.closing(self.senders.open(self.of, self.spec)) as sender:
            if sender.tree is not self.place.tree:  # otherwise look() has just seen this tree
                self.place.tree = sender.tree
                self.place.look()
            names = os.listdir(self.stage.at(os.fsencode(self.host)))
            self._staged = {name[:KEY]: name for name in map(os.fsdecode, names)}
            sizes = {path: entry[3] for path, entry in self.place.tree.by_path.items() if path not in self.place.came}
            wanted = [(path, 0, "") if path in wrong else self._here(path, size) for path, size in sizes.items()]
            self._total = sum(sizes[path] for path, offset, _ in wanted if offset is not None)
            self._done = sum(offset or 0 for _, offset, _ in wanted)
            messages, again, number = sender.messages(), set[str](), 0
            sender.program.send({"op": "give", "wanted": wanted})
            for what in messages:
                if what["event"] == "end" and number == len(wanted):
                    self._show(self._total)
                    return again
                if what.get("index") != number or number >= len(wanted):
                    break
                if what["event"] == "few":
                    rows = what["files"]
                    again |= self._few(messages, rows, wanted[number : number + len(rows)])
                    number += len(rows)
                else:
                    again |= set() if self._file(messages, what, number, *wanted[number]) else {wanted[number][0]}
                    number += 1
        raise self._mismatch()

    def _mismatch(self) -> ProtocolError:
        return ProtocolError("something else comes than the file whose turn it is", self.host)

    def _show(self, done: int) -> None:
        self.runtime.emit(Progress(self.host, "receiving", done, self._total))

    def _here(self, path: str, size: int) -> Wanted:
        if path in self.place.alike:
            known = self.place.alike[path]
            return path, None, known.version if known and known.host == self.host and known.version else None
        name = self._staged.get(self._key(path)) if size > SMALL else None
        if name is not None:
            info = os.lstat(self.stage.at(self._at(name)))
            if stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == os.fstat(self.stage.top).st_uid:
                return path, info.st_size, name[KEY + 1 :]
        return path, 0, ""

    def _key(self, path: str) -> str:
        """Returns the staged name of a path. A folder and a file in the place of that folder have different names."""
        return hashlib.sha256(encode(f"{self.spec['path']}\0{path}")).hexdigest()[:KEY]

    def _at(self, name: str) -> bytes:
        return os.fsencode(f"{self.host}/{name}")

    def _few(self, messages: Iterator[Message], rows: list[str], wanted: list[Wanted]) -> set[str]:
        """Receives small files into the stage, and the digests of files that may be here already. Returns the paths
        that arrived damaged."""
        sizes = [int(row.partition(" ")[0] or 0) for row in rows]
        coming = sum(size for size, (_, offset, _) in zip(sizes, wanted, strict=False) if offset is not None)
        what = next(messages) if coming else None
        data = what["data"] if what is not None and what["event"] == "output" else b""
        if not rows or len(rows) != len(wanted) or len(data) != coming:
            raise self._mismatch()
        again, at = set[str](), 0
        for row, size, (path, offset, known) in zip(rows, sizes, wanted, strict=True):
            version, _, digest = row.rpartition(" ")
            here = self.place.alike.get(path)
            if not row and here is not None and offset is None and known is not None:
                self.place.settled.add(path)
                self.place.came[path] = here
                continue
            if not row:
                raise self._mismatch()
            staged: bytes | None = None
            if offset is not None:
                part, at, staged = data[at : at + size], at + size, self._fresh(path, version)
                with open(self.stage.at(staged), "xb", buffering=0, opener=private) as file:
                    write_all(file.fileno(), part)
                    self._finish(file.fileno(), path, mtime_of(version))
            if not self._has_come(path, staged, size, mtime_of(version), digest, version):
                again.add(path)
        self._done += coming
        self._show(min(self._done, self._total))
        return again

    def _has_come(self, path: str, staged: bytes | None, size: int, mtime: int, sha256: str, version: str) -> bool:
        """Returns whether a file equals the one that the node read, and records it if so. staged: the file's path in
        the stage, or None for the file in its place. version: "" if the file grows. size, mtime (ns): of that
        version."""
        known = self.place.alike.get(path) if staged is None else None
        at = self.place.at(path) if staged is None else self.stage.at(staged)
        is_right = sha256 == (known.sha256 if known is not None else brought.digest_of(at))
        if is_right:
            self.place.came[path] = brought.Got(size, mtime, 0, 0, sha256, version, self.host)
            self.place.staged |= {} if staged is None else {path: staged}
        return is_right

    def _finish(self, fd: int, path: str, mtime_ns: int) -> None:
        """Gives a staged file the mode and time that it will have in its place."""
        os.fchmod(fd, self.place.tree.by_path[path][2] & 0o777 & ~self.umask | 0o600)
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def _file(
        self,
        messages: Iterator[Message],
        what: Message,
        number: int,
        path: str,
        offset: int | None,
        version: str | None,
    ) -> bool:
        """Receives one file into the stage. Returns whether it arrived as the node read it. what: its first message."""
        for _ in range(MOST_TRIES):
            if what.get("index") != number:
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
            if begun["offset"] != (begun["size"] if offset is None else offset if begun["version"] == version else 0):
                break
            staged = None if offset is None else self._begin(path, begun)
            what = next(messages) if staged is None else self._bytes(messages, path, staged, begun)
            if what["event"] != "given":
                continue
            version = "" if what["growing"] else begun["version"]
            is_right = self._has_come(path, staged, begun["size"], begun["mtime"], what["sha256"], version)
            self.growing += [path] if is_right and what["growing"] else []
            return is_right
        raise self._mismatch()

    def _begin(self, path: str, begun: Begin) -> bytes:
        """Returns the path in the stage for the version of `begun`, and removes other versions. Raises HostFailed if
        there is no room for it."""
        staged = (
            self._at(f"{self._key(path)}-{begun['version']}")
            if begun["offset"]
            else self._fresh(path, begun["version"])
        )
        free = shutil.disk_usage(self.stage.top).free
        if begun["size"] - begun["offset"] > free:
            sizes = f"{size_text(begun['size'])} are to come, {size_text(free)} are free here"
            raise HostFailed(sizes, host=self.host, kind="no-space")
        return staged

    def _fresh(self, path: str, version: str) -> bytes:
        """Returns the path in the stage for a version, and removes what is staged of that file."""
        key = self._key(path)
        name = self._staged.pop(key, None)
        if name is not None:
            remove_file(self.stage.at(self._at(name)))
        self._staged[key] = f"{key}-{version}"
        return self._at(self._staged[key])

    def _bytes(self, messages: Iterator[Message], path: str, staged: bytes, begun: Begin) -> Message:
        """Writes a file's bytes to the stage. Returns the message that follows them."""
        at, size = begun["offset"], begun["size"]
        with open(self.stage.at(staged), "r+b" if at else "xb", buffering=0, opener=private) as file:
            while True:
                what = next(messages)
                if what["event"] == "output" and what["data"] and at + len(what["data"]) <= size:
                    written = os.pwrite(file.fileno(), what["data"], at)
                    at, self._done = at + written, self._done + written
                    if time.monotonic() - self._shown > 0.1:
                        self._shown = time.monotonic()
                        self._show(min(self._done, self._total))
                elif what["event"] == "piece" and at < what["offset"] <= size:
                    at = what["offset"]
                else:
                    break
            if what["event"] == "given":
                file.truncate(size)
                self._finish(file.fileno(), path, begun["mtime"])
        return what

    def not_still(self) -> HostFailed | None:
        """Returns the error about files that change all the time, or None if there are no such files."""
        if not self.moving:
            return None
        path, quiet = next(iter(self.moving.items()))
        name = posixpath.join(self.spec["path"], path) if path else self.spec["path"]
        others = f", and {len(self.moving) - 1} more" if len(self.moving) > 1 else ""
        hint = (
            "get it when nothing writes there; a program that writes another file, and renames it, is never in the way"
        )
        plain = [(one, age) for one, age in quiet if "/" not in one and one.isprintable()]
        if plain:
            newest = posixpath.join(posixpath.dirname(name), plain[0][0])
            line = shlex.join(["fleet", "get", newest, "--from", self.host])
            since = ", ".join(f"{one} ({seconds(age)} old)" for one, age in plain)
            hint = f"at rest next to it: {since}; to have the newest: {line}"
        kept = "; what is here of it stays" if any(map(os.path.lexists, map(self.place.at, self.moving))) else ""
        text = f"{name}{others} was never whole and at rest when it was read{kept}"
        return HostFailed(text, hint=hint, host=self.host, kind="moving")
