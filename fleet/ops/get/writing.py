"""What one host sends, file by file, into the stage: which it is that comes, and where in it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections import deque
from typing import TYPE_CHECKING

from fleet.delivery import brought
from fleet.errors import HostFailed, ProtocolError
from fleet.node.base.files import file_digest
from fleet.node.base.wire import encode
from fleet.ops.get.place import Came
from fleet.protocol.messages.chain import Entry
from fleet.protocol.messages.give import Begin, Given, Giving
from fleet.rules.units import size_text

if TYPE_CHECKING:
    from fleet.ops.get.receive import Listed, Received

MOST_TRIES = 10  # of a node with a file that changes


class Writing:
    """What comes, and where it goes. wanted: of each file its index, the bytes that are staged of it (-1: its digest is
    wanted alone), and of which version. wrong: paths that did not come as they were read."""

    def __init__(self, of: Received, listed: Listed, whole: set[str]) -> None:
        self._of, self._place, self._host, self._listed = of, of.place, of.host, listed
        self._stage = of.place.ground.stage
        self.wrong: set[str] = set()
        self._staged = {name[:32]: name for name in map(os.fsdecode, os.listdir(self._stage.at(of.folder)))}
        index_of = {entry[0]: index for index, entry in enumerate(listed.tree.entries)}
        self.wanted = [
            (index_of[entry[0]], *self._here(entry, entry[0] in whole), entry)
            for entry in listed.entries
            if entry[1] == "f" and entry[0] not in of.place.came
        ]
        self.total = sum(entry[3] for _, offset, _, entry in self.wanted if offset >= 0)
        self.done = sum(max(0, offset) for _, offset, _, _ in self.wanted)
        self._room = shutil.disk_usage(self._stage.name).free + of.place.ground.held
        self._left = deque(self.wanted)
        self._entry: Entry | None = None
        self._begun: Begin | None = None
        self._offset, self._version, self._tries, self._index = 0, "", 0, -1
        self._fd, self._at, self._name = -1, 0, b""

    def _here(self, entry: Entry, whole: bool) -> tuple[int, str]:
        version = self._listed.versions[entry[0]]
        if entry[0] in self._place.alike and not whole:
            return -1, version
        name = self._staged.get(self._key(entry), "")
        if name != self._named(entry, version) or whole:
            return 0, ""
        return min(os.lstat(self._stage.at(self._of.folder + b"/" + name.encode())).st_size, entry[3]), version

    def _key(self, entry: Entry) -> str:
        return hashlib.sha256(encode(f"{self._of.spec['path']}\0{entry[0]}")).hexdigest()[:32]

    def _named(self, entry: Entry, version: str) -> str:
        """A file in the stage: of which path, and of which version of it."""
        return f"{self._key(entry)}-{hashlib.sha256(version.encode()).hexdigest()[:32]}"

    def write(self, data: bytes) -> None:
        if self._begun is None or self._offset < 0 or not data or self._at + len(data) > self._begun["size"]:
            raise ProtocolError("bytes of no file, or more of them than it said", self._host)
        self._at += os.pwrite(self._fd, data, self._at)
        self.done += len(data)

    def hear(self, said: Giving) -> None:
        """What comes next, or that all of a file has come."""
        if said["event"] in ("begin", "gone", "moving"):
            self._turn_to(said["index"])
        assert self._entry is not None or self._begun is None
        if said["event"] == "begin":
            self._begin(said)
        elif said["event"] == "piece" and self._begun and self._at < said["offset"] <= self._begun["size"]:
            self._at = said["offset"]
        elif said["event"] == "given" and self._begun:
            self._finish(said, self._begun)
        elif said["event"] == "gone":
            self._of.gone.append(self._close_entry()[0])
        elif said["event"] == "moving":
            self._of.moving[self._close_entry()[0]] = said["quiet"]
        else:
            raise ProtocolError("something that does not come there", self._host)

    def _turn_to(self, index: int) -> None:
        """It is about that file now: the next one, or still the same."""
        if self._entry is None and self._left:
            self._index, self._offset, self._version, self._entry = self._left.popleft()
            self._tries = 0
        self._tries += 1
        if self._entry is None or index != self._index or self._tries > MOST_TRIES:
            raise ProtocolError("a file that is not its turn", self._host)

    def _begin(self, said: Begin) -> None:
        assert self._entry is not None
        self.close()
        goes_on = 0 < said["offset"] == self._offset and said["version"] == self._version
        if said["offset"] and not goes_on:
            raise ProtocolError("it begins amid a file", self._host)
        if said["size"] > self._room:
            raise HostFailed(
                f"{size_text(said['size'])} are to come, {size_text(self._room)} are free here",
                host=self._host,
                kind="no-space",
            )
        self._begun, self._at = said, said["offset"]
        if self._offset < 0:
            return
        if not goes_on:
            self.done -= min(self.done, max(0, self._offset))
            with contextlib.suppress(KeyError, FileNotFoundError):
                os.unlink(self._stage.at(self._of.folder + b"/" + self._staged.pop(self._key(self._entry)).encode()))
        name = self._named(self._entry, said["version"])
        self._staged[self._key(self._entry)] = name
        self._name = self._of.folder + b"/" + name.encode()
        how = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if goes_on else os.O_CREAT | os.O_EXCL)
        self._fd = os.open(self._stage.at(self._name), how, 0o600)

    def _finish(self, said: Given, begun: Begin) -> None:
        alone, fd = self._offset < 0, self._fd
        if not alone:
            os.truncate(fd, begun["size"])
        path = self._close_entry()[0]
        place = self._place.at(path) if alone else self._stage.at(self._name)
        if (brought.digest_of(place) if alone else file_digest(place, os.O_NOFOLLOW)) != said["sha256"]:
            self.wrong.add(path)
            return
        self._place.came[path] = Came(begun["size"], begun["mtime"], said["sha256"], None if alone else self._name)
        if not alone:
            self._room -= begun["size"]
        if said["growing"]:
            self._of.growing.append(path)

    def _close_entry(self) -> Entry:
        assert self._entry is not None
        entry, self._entry = self._entry, None
        self.close()
        return entry

    def check_end(self) -> None:
        if self._left or self._entry is not None:
            raise ProtocolError("it ended before all had come", self._host)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._begun = -1, None
