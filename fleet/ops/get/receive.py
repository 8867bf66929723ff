"""What one host gives, into a stage beside where it belongs: only what is whole goes on from there."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from fleet.delivery.chain.source import is_tree
from fleet.delivery.tree import Tree, told
from fleet.errors import HostFailed, ProtocolError, Reason
from fleet.ops.get.names import without_repositories
from fleet.ops.get.place import Place
from fleet.ops.get.writing import Writing
from fleet.protocol.frames import MESSAGE, OUTPUT
from fleet.protocol.messages.chain import Entry
from fleet.protocol.messages.give import GiveSpec, Giving, Listing
from fleet.rules.units import seconds
from fleet.transport.base import Cancel, Session, Watchdog
from fleet.transport.frames import Frame
from fleet.transport.program import Program

SILENCE_SECONDS = 60.0  # a digest of what is here already takes its time
PASSES = 3


@dataclass(frozen=True)
class Listed:
    """What a host would give. versions: of its files. left_out: repositories in it."""

    tree: Tree
    entries: tuple[Entry, ...]
    versions: Mapping[str, str]
    left_out: tuple[str, ...]

    @property
    def size(self) -> int:
        return sum(min(entry[3], self.tree.allocated.get(entry[0], entry[3])) for entry in self.entries)


def listing(session: Session, spec: GiveSpec, cancel: Cancel, everything: bool) -> Listed:
    """With no entries and no mode it has nothing there. HostFailed, ProtocolError."""
    with Program(session, "delivery.give", spec) as program:
        return _listed(_frames(program, cancel), spec, session.host.name, everything)


def _frames(program: Program, cancel: Cancel) -> Iterator[Frame]:
    return program.frames(silence=SILENCE_SECONDS, cancel=cancel, watchdog=Watchdog())


def _listed(frames: Iterator[Frame], spec: GiveSpec, host: str, everything: bool) -> Listed:
    versions: dict[str, str] = {}

    def said() -> Listing:
        frame = next(frames, None)
        part = _heard(frame, host) if frame is not None and frame.kind == MESSAGE else None
        if part is None or part["event"] != "tree" or len(part["versions"]) > len(part["entries"]):
            raise ProtocolError("a list of files was to come", host)
        versions.update(part["versions"])
        return part

    tree = told(said, host, "name a folder further down")
    asked = spec["path"].partition("/")[2] if spec["path"][0] == "~" else spec["path"]
    parts = [part for part in asked.split("/") if part not in ("", ".")]
    odd = parts != list(tree.root.parts)[-len(parts) :] if parts else False
    nothing = not tree.entries and tree.mode is None
    if (
        odd
        or not (nothing or is_tree(tree.entries, tree.mode))
        or spec["run"] is not None
        and tree.entries
        and tree.mode is None
    ):
        raise ProtocolError(f"its list of files is not one of {spec['path']}", host)
    if any(entry[0] not in versions for entry in tree.entries if entry[1] == "f"):
        raise ProtocolError("its list of files has files without a version", host)
    entries, left_out = (tree.entries, []) if everything else without_repositories(tree.entries)
    return Listed(tree, entries, versions, tuple(left_out))


def _heard(frame: Frame, host: str) -> Giving:
    said = frame.decode(Giving)
    if said["event"] == "failed":
        raise HostFailed(Reason.of_node(said["message"]), host=host, hint=said["hint"])
    return said


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
        self.host = session.host.name
        self.growing, self.gone = list[str](), list[str]()
        self.moving: dict[str, list[tuple[str, int]]] = {}
        self.folder = os.fsencode(place.host)

    def bring(self) -> None:
        """FleetError; what came stays staged."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.place.ground.stage.at(self.folder), 0o700)
        whole: set[str] = set()
        for _ in range(PASSES):
            self.moving.clear()
            whole = self._pass(whole)
            if not whole:
                came, kept = self.place.came, self.place.entries
                self.place.entries = [entry for entry in kept if entry[1] != "f" or entry[0] in came]
                return
        raise HostFailed(f"{sorted(whole)[0] or self.spec['path']} did not arrive as it was read", host=self.host)

    def _pass(self, whole: set[str]) -> set[str]:
        """One conversation. whole: paths of which what is here serves for nothing; what is returned, too."""
        with Program(self.session, "delivery.give", self.spec) as program:
            frames = _frames(program, self.cancel)
            listed = _listed(frames, self.spec, self.host, self.everything)
            self.place.entries, self.place.mode = listed.entries, listed.tree.mode
            self.place.look()
            writing = Writing(self, listed, whole)
            program.send({"op": "give", "wanted": [wanted[:3] for wanted in writing.wanted]})
            shown = 0.0
            try:
                for frame in frames:
                    if frame.kind == OUTPUT:
                        writing.write(frame.payload)
                        if time.monotonic() - shown > 0.1:
                            shown = time.monotonic()
                            self.progress(min(writing.done, writing.total), writing.total)
                    elif frame.kind == MESSAGE:
                        writing.hear(_heard(frame, self.host))
            finally:
                writing.close()
        writing.check_end()
        self.progress(writing.total, writing.total)
        return writing.wrong

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
        return HostFailed(
            f"{name}{others} changed each time that it was read{kept}", hint=hint, host=self.host, kind="moving"
        )
