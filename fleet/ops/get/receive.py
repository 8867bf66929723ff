"""What one host gives, into a stage beside where it belongs, and from there to its place when all of it is here."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from fleet.errors import HostFailed, ProtocolError, Reason
from fleet.protocol.frames import MESSAGE, OUTPUT
from fleet.protocol.messages.give import Entry, GiveSpec, Giving, Listed
from fleet.transport.base import Cancel, Session
from fleet.transport.frames import Frame
from fleet.transport.program import Program

SILENCE_SECONDS = 60.0  # a digest of what is here already takes its time
PASSES = 3
MAX_ENTRIES = 1_000_000
MAX_LIST = 256 << 20  # characters of names in it


def listing(session: Session, spec: GiveSpec, cancel: Cancel) -> tuple[Listed, list[Entry]]:
    """What a host would give. HostFailed, ProtocolError."""
    with Program(session, "delivery.give", spec) as program:
        return _listed(program.frames(silence=SILENCE_SECONDS, cancel=cancel), session.host.name)


def _listed(frames: Iterator[Frame], host: str) -> tuple[Listed, list[Entry]]:
    entries: list[Entry] = []
    length = 0
    for frame in frames:
        if frame.kind != MESSAGE:
            continue
        said = frame.decode(Giving)
        if said["event"] == "failed":
            raise HostFailed(Reason.of_node(said["message"]), host=host, hint=said["hint"])
        if said["event"] != "listed" or (said["more"] and not said["entries"]):
            raise ProtocolError("a list of files was to come", host)
        entries += said["entries"]
        length += sum(len(each["path"]) + len(each["link"] or "") for each in said["entries"])
        if len(entries) > MAX_ENTRIES or length > MAX_LIST:
            raise HostFailed(f"more than {MAX_ENTRIES} files", host=host, hint="name a folder further down")
        if not said["more"]:
            return said, entries
    raise ProtocolError("a list of files has no end", host)


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
            raise HostFailed(f"{error.filename or self.target}: {error.strerror}", host=self.host) from error
        raise HostFailed(
            f"{sorted(bad)[0]} changed while it was read, {PASSES} times",
            host=self.host,
            hint="get it when nothing writes there",
        )

    def _pass(self, bad: set[str]) -> tuple[list[Entry], set[str]]:
        """One conversation: what is there, and the paths that did not come as listed. bad: those to be sent whole."""
        with Program(self.session, "delivery.give", self.spec) as program:
            frames = program.frames(silence=SILENCE_SECONDS, cancel=self.cancel)
            _, entries = _listed(frames, self.host)
            for entry in entries:
                if entry["path"] in bad:  # what is not sent of it must be zeros, too
                    self._staged(entry).unlink(missing_ok=True)
            offsets = [self._here(entry) for entry in entries]
            program.send({"op": "give", "offsets": offsets})
            done, total, told = sum(offsets), sum(entry["size"] for entry in entries), 0.0
            writing = _Writing(entries, self._open, self.host)
            try:
                for frame in frames:
                    if frame.kind == OUTPUT:
                        done += writing.write(frame.payload)
                        if time.monotonic() - told > 0.1:
                            told = time.monotonic()
                            self.progress(min(done, total), total)
                    elif frame.kind == MESSAGE:
                        writing.hear(frame.decode(Giving))
            finally:
                writing.close()
        self.progress(total, total)
        return entries, writing.wrong

    def _staged(self, entry: Entry) -> Path:
        return self.stage / "tree" / entry["path"] if entry["path"] else self.stage / "file"

    def _here(self, entry: Entry) -> int:
        """Bytes of it that are here, of an earlier attempt."""
        path = self._staged(entry)
        if entry["kind"] != "file" or path.is_symlink() or not path.is_file():
            return 0
        return min(path.stat().st_size, entry["size"])

    def _open(self, entry: Entry) -> int:
        if entry["kind"] != "file":
            raise ProtocolError(f"{entry['path']} is no file", self.host)
        path = self._staged(entry)
        path.parent.mkdir(0o700, parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _place(self, entries: list[Entry]) -> tuple[int, int]:
        """Folders, then files, each in one step, then links: nothing goes through one."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        files = size = 0
        for kind in ("folder", "file", "link"):
            for entry in (each for each in entries if each["kind"] == kind):
                place = self.target / entry["path"] if entry["path"] else self.target
                self._refuse_links(place.parent)
                if kind == "folder":
                    place.mkdir(parents=True, exist_ok=True)
                    continue
                place.parent.mkdir(parents=True, exist_ok=True)
                if kind == "link":
                    temporary = self.stage / "link"
                    temporary.unlink(missing_ok=True)
                    temporary.symlink_to(entry["link"] or "")
                    os.replace(temporary, place)
                    continue
                staged = self._staged(entry)
                os.chmod(staged, entry["mode"] | 0o600)
                os.utime(staged, (entry["mtime"], entry["mtime"]))
                os.replace(staged, place)
                files, size = files + 1, size + entry["size"]
        return files, size

    def _refuse_links(self, folder: Path) -> None:
        while folder != self.target.parent and folder != folder.parent:
            if folder.is_symlink():
                raise HostFailed(f"{folder} is a link here, nothing is written through it", host=self.host)
            folder = folder.parent


class _Writing:
    """Which file is being written, and where in it. open: its descriptor. wrong: paths that did not come as listed."""

    def __init__(self, entries: list[Entry], open_: Callable[[Entry], int], host: str) -> None:
        self.wrong: set[str] = set()
        self._entries, self._open, self._host = entries, open_, host
        self._index = self._at = 0
        self._fd = -1

    def write(self, data: bytes) -> int:
        if self._fd < 0:
            raise ProtocolError("bytes of no file", self._host)
        if self._at + len(data) > self._entries[self._index]["size"]:
            raise ProtocolError("more bytes than it said", self._host)
        count = os.pwrite(self._fd, data, self._at)
        self._at += count
        return count

    def hear(self, said: Giving) -> None:
        """What comes next, or that all of a file has come."""
        if said["event"] == "failed":
            raise HostFailed(Reason.of_node(said["message"]), host=self._host, hint=said["hint"])
        if said["event"] == "listed" or said["index"] >= len(self._entries):
            raise ProtocolError("a file that is not in the list", self._host)
        if said["index"] != self._index or self._fd < 0:
            self.close()
            self._index = said["index"]
            self._fd = self._open(self._entries[self._index])
        if said["event"] == "piece":
            self._at = said["offset"]
            return
        entry = self._entries[self._index]
        os.truncate(self._fd, entry["size"])
        if said["size"] != entry["size"] or _digest(self._fd) != said["sha256"]:
            self.wrong.add(entry["path"])
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _digest(fd: int) -> str:
    digest, at = hashlib.sha256(), 0
    while block := os.pread(fd, 1 << 20, at):
        digest.update(block)
        at += len(block)
    return digest.hexdigest()
