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
from collections.abc import Iterator
from dataclasses import replace

from fleet.delivery import brought
from fleet.errors import HostFailed, ProtocolError
from fleet.events import Progress
from fleet.node.base.wire import encode
from fleet.ops.get.listed import Message, listed, messages_of
from fleet.ops.get.place import Came, Place
from fleet.own import private
from fleet.protocol.messages.give import Begin, GiveSpec
from fleet.rules.units import seconds, size_text
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import Program

PASSES = 3
MOST_TRIES = 10  # of a node with a file that changes
KEY = 32  # characters


class Received:
    """Brings what a place lacks into the stage, where each file is called by its path and its version there. growing,
    gone: its paths that were brought as far as they were, and not at all. moving: with the quiet files beside each."""

    def __init__(self, session: Session, spec: GiveSpec, place: Place, everything: bool, runtime: Runtime) -> None:
        self.session, self.spec, self.place, self.everything = session, spec, place, everything
        self.runtime, self.host, self.stage = runtime, session.host.name, place.ground.stage
        self.growing, self.gone = list[str](), list[str]()
        self.moving: dict[str, list[tuple[str, int]]] = {}
        self._staged = dict[str, str]()
        self._done = self._total = 0
        self._shown = 0.0

    def bring(self) -> None:
        """FleetError; what came stays staged."""
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
        """One conversation. wrong: paths that did not come as they were read; what is here of them is of no use."""
        with Program(self.session, "delivery.give", self.spec) as program:
            messages = messages_of(program, self.runtime.cancel)
            self.place.tree, _ = listed(messages, self.spec, self.host, self.everything)
            self.place.look()
            names = os.listdir(self.stage.at(os.fsencode(self.host)))
            self._staged = {name[:KEY]: name for name in map(os.fsdecode, names)}
            sizes = {path: entry[3] for path, entry in self.place.tree.by_path.items() if path not in self.place.came}
            wanted = [(path, 0, "") if path in wrong else self._here(path) for path in sizes]
            self._total = sum(sizes[path] for path, _, version in wanted if version is not None)
            self._done = sum(offset for _, offset, _ in wanted)
            program.send({"op": "give", "wanted": wanted})
            again = {each[0] for number, each in enumerate(wanted) if not self._file(messages, number, *each)}
            if next(messages)["event"] != "end":
                raise self._odd()
        self._show(self._total)
        return again

    def _odd(self) -> ProtocolError:
        return ProtocolError("something else comes than the file whose turn it is", self.host)

    def _show(self, done: int) -> None:
        self.runtime.emit(Progress(self.host, "receiving", done, self._total))

    def _here(self, path: str) -> tuple[str, int, str | None]:
        """(it, bytes of it that are staged, of which version); None: a file here may be the same."""
        if path in self.place.alike:
            return path, 0, None
        name = self._staged.get(self._key(path))
        if name is not None:
            info = os.lstat(self.stage.at(self._at(name)))
            if stat.S_ISREG(info.st_mode) and info.st_nlink == 1 and info.st_uid == os.fstat(self.stage.top).st_uid:
                return path, info.st_size, name[KEY + 1 :]
        return path, 0, ""

    def _key(self, path: str) -> str:
        """A folder that is a file now has another one."""
        return hashlib.sha256(encode(f"{self.spec['path']}\0{path}")).hexdigest()[:KEY]

    def _at(self, name: str) -> bytes:
        return os.fsencode(f"{self.host}/{name}")

    def _file(self, messages: Iterator[Message], number: int, path: str, offset: int, version: str | None) -> bool:
        """One of them, into the stage; whether it came as it was read."""
        what = next(messages)
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
            if begun["offset"] != (begun["size"] if version is None else offset if begun["version"] == version else 0):
                break
            staged = None if version is None else self._begin(path, begun)
            what = next(messages) if staged is None else self._bytes(messages, staged, begun)
            if what["event"] != "given":
                continue
            here = self.place.at(path) if staged is None else self.stage.at(staged)
            if brought.digest_of(here) != what["sha256"]:
                return False
            self.place.came[path] = Came(what["sha256"], begun["mtime"], staged)
            if what["growing"]:
                self.growing.append(path)
            return True
        raise self._odd()

    def _begin(self, path: str, begun: Begin) -> bytes:
        """Where that version is staged; of another one nothing is left. HostFailed where there is no room for it."""
        key = self._key(path)
        if not begun["offset"]:
            with contextlib.suppress(KeyError, FileNotFoundError):
                os.unlink(self.stage.at(self._at(self._staged.pop(key))))
        free = shutil.disk_usage(self.stage.top).free
        if begun["size"] - begun["offset"] > free:
            sizes = f"{size_text(begun['size'])} are to come, {size_text(free)} are free here"
            raise HostFailed(sizes, host=self.host, kind="no-space")
        self._staged[key] = f"{key}-{begun['version']}"
        return self._at(self._staged[key])

    def _bytes(self, messages: Iterator[Message], staged: bytes, begun: Begin) -> Message:
        """What it consists of, into the stage; the message behind that."""
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
        return what

    def not_still(self) -> HostFailed | None:
        """The error about files that change all the time."""
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
            hint = f"at rest beside it: {since}; to have the newest: {line}"
        kept = "; what is here of it stays" if any(map(os.path.lexists, map(self.place.at, self.moving))) else ""
        text = f"{name}{others} was never whole and at rest when it was read{kept}"
        return HostFailed(text, hint=hint, host=self.host, kind="moving")
