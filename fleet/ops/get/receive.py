"""What one host gives, into a stage beside where it belongs, and from there to its place when all of it is here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fleet.delivery.tree import Tree, told
from fleet.errors import HostFailed, ProtocolError, Reason
from fleet.node.base.files import file_digest
from fleet.protocol.frames import MESSAGE, OUTPUT
from fleet.protocol.messages.chain import Entry
from fleet.protocol.messages.chain import Tree as Part
from fleet.protocol.messages.give import Given, GiveSpec, Giving, Piece
from fleet.transport.base import Cancel, Session
from fleet.transport.frames import Frame
from fleet.transport.program import Program

SILENCE_SECONDS = 60.0  # a digest of what is here already takes its time
PASSES = 3


def listing(session: Session, spec: GiveSpec, cancel: Cancel) -> Tree:
    """What a host would give; with no entries and no mode it has nothing there. HostFailed, ProtocolError."""
    with Program(session, "delivery.give", spec) as program:
        return _listed(program.frames(silence=SILENCE_SECONDS, cancel=cancel), session.host.name)


def _listed(frames: Iterator[Frame], host: str) -> Tree:
    def said() -> Part | Piece | Given:
        frame = next((frame for frame in frames if frame.kind == MESSAGE), None)
        if frame is None:
            raise ProtocolError("a list of files has no end", host)
        return _heard(frame, host)

    return told(said, host, "name a folder further down")


def _heard(frame: Frame, host: str) -> Part | Piece | Given:
    said = frame.decode(Giving)
    if said["event"] == "failed":
        raise HostFailed(Reason.of_node(said["message"]), host=host, hint=said["hint"])
    return said


class Received:
    """target: where it belongs. stage: a folder of ours for what is not whole yet, which a later attempt goes on with.
    progress: takes (bytes that are here, of how many)."""

    def __init__(
        self,
        session: Session,
        spec: GiveSpec,
        target: Path,
        stage: Path,
        cancel: Cancel,
        progress: Callable[[int, int], None],
    ) -> None:
        self.session, self.spec, self.target, self.stage = session, spec, target, stage
        self.cancel, self.progress = cancel, progress
        self.host = session.host.name

    def bring(self) -> tuple[int, int]:
        """(files, bytes), all of them in their place, as their digests say. FleetError; what came stays staged."""
        try:
            self.stage.mkdir(0o700, parents=True, exist_ok=True)
            bad: set[str] = set()
            for _ in range(PASSES):
                entries, bad = self._pass(bad)
                if not bad:
                    return self._place(entries)
        except OSError as error:
            what = f"{error.filename or self.target}: {error.strerror}"
            raise HostFailed(what, host=self.host, hint="once that is mended, get it again: it goes on") from error
        raise HostFailed(
            f"{sorted(bad)[0]} changed while it was read, {PASSES} times",
            host=self.host,
            hint="get it when nothing writes there",
        )

    def _pass(self, bad: set[str]) -> tuple[tuple[Entry, ...], set[str]]:
        """One conversation: what is there, and the paths that did not come as listed. bad: those to be sent whole."""
        with Program(self.session, "delivery.give", self.spec) as program:
            frames = program.frames(silence=SILENCE_SECONDS, cancel=self.cancel)
            entries = _listed(frames, self.host).entries
            for entry in entries:
                if entry[0] in bad:  # what is not sent of it must be zeros, too
                    self._staged(entry).unlink(missing_ok=True)
            offsets = [self._here(entry) for entry in entries]
            program.send({"op": "give", "offsets": offsets})
            done, total, told = sum(offsets), sum(entry[3] for entry in entries), 0.0
            writing = _Writing(entries, self._staged, self.host)
            try:
                for frame in frames:
                    if frame.kind == OUTPUT:
                        done += writing.write(frame.payload)
                        if time.monotonic() - told > 0.1:
                            told = time.monotonic()
                            self.progress(min(done, total), total)
                    elif frame.kind == MESSAGE:
                        writing.hear(_heard(frame, self.host))
            finally:
                writing.close()
        self.progress(total, total)
        return entries, writing.wrong

    def _staged(self, entry: Entry) -> Path:
        return self.stage / "tree" / entry[0] if entry[0] else self.stage / "file"

    def _here(self, entry: Entry) -> int:
        """Bytes of it that are here, of an earlier attempt."""
        path = self._staged(entry)
        if entry[1] != "f" or path.is_symlink() or not path.is_file():
            return 0
        return min(path.stat().st_size, entry[3])

    def _place(self, entries: Sequence[Entry]) -> tuple[int, int]:
        """Folders, then files, each in one step, then links: nothing goes through one."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        files = size = 0
        for entry in sorted(entries, key=lambda entry: "dfl".index(entry[1])):
            path, kind, mode, length, mtime, link = entry
            place = self.target / path if path else self.target
            self._refuse_links(place.parent)
            if kind == "d":
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if kind == "l":
                staged = self.stage / "link"
                staged.unlink(missing_ok=True)
                staged.symlink_to(link)
            else:
                staged = self._staged(entry)
                os.chmod(staged, mode & 0o777 | 0o600)
                os.utime(staged, ns=(mtime, mtime))
                files, size = files + 1, size + length
            os.replace(staged, place)
        return files, size

    def _refuse_links(self, folder: Path) -> None:
        while folder != self.target.parent and folder != folder.parent:
            if folder.is_symlink():
                raise HostFailed(f"{folder} is a link here, nothing is written through it", host=self.host)
            folder = folder.parent


class _Writing:
    """Which file is being written, and where in it. staged: where that is. wrong: paths that did not come as listed."""

    def __init__(self, entries: Sequence[Entry], staged: Callable[[Entry], Path], host: str) -> None:
        self.wrong: set[str] = set()
        self._entries, self._staged, self._host = entries, staged, host
        self._index = self._at = 0
        self._fd = -1

    def write(self, data: bytes) -> int:
        if self._fd < 0:
            raise ProtocolError("bytes of no file", self._host)
        if self._at + len(data) > self._entries[self._index][3]:
            raise ProtocolError("more bytes than it said", self._host)
        count = os.pwrite(self._fd, data, self._at)
        self._at += count
        return count

    def hear(self, said: Part | Piece | Given) -> None:
        """What comes next, or that all of a file has come."""
        if said["event"] == "tree" or said["index"] >= len(self._entries):
            raise ProtocolError("a file that is not in the list", self._host)
        if said["index"] != self._index or self._fd < 0:
            self.close()
            self._index = said["index"]
            self._fd = self._open()
        if said["event"] == "piece":
            self._at = said["offset"]
            return
        entry = self._entries[self._index]
        os.truncate(self._fd, entry[3])
        self.close()
        if said["size"] != entry[3] or file_digest(bytes(self._staged(entry)), os.O_NOFOLLOW) != said["sha256"]:
            self.wrong.add(entry[0])

    def _open(self) -> int:
        entry = self._entries[self._index]
        if entry[1] != "f":
            raise ProtocolError(f"{entry[0]} is no file", self._host)
        path = self._staged(entry)
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
