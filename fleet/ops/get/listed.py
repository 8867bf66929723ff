"""What one host would give: its list of files, and whether that is one of what was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet.delivery.chain.source import is_tree
from fleet.delivery.tree import Tree, told
from fleet.errors import HostFailed, ProtocolError, Reason
from fleet.ops.get.names import without_repositories
from fleet.protocol.frames import MESSAGE
from fleet.protocol.messages.chain import Entry
from fleet.protocol.messages.give import GiveSpec, Giving, Listing
from fleet.protocol.state import STATE_FOLDERS
from fleet.transport.base import Cancel, Session, Watchdog
from fleet.transport.frames import Frame
from fleet.transport.program import Program

SILENCE_SECONDS = 60.0  # a digest of what is here already takes its time


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
        return listed_by(frames_of(program, cancel), spec, session.host.name, everything)


def frames_of(program: Program, cancel: Cancel) -> Iterator[Frame]:
    return program.frames(silence=SILENCE_SECONDS, cancel=cancel, watchdog=Watchdog())


def listed_by(frames: Iterator[Frame], spec: GiveSpec, host: str, everything: bool) -> Listed:
    versions: dict[str, str] = {}

    def said() -> Listing:
        frame = next(frames, None)
        part = heard(frame, host) if frame is not None and frame.kind == MESSAGE else None
        if part is None or part["event"] != "tree" or len(part["versions"]) > len(part["entries"]):
            raise ProtocolError("a list of files was to come", host)
        versions.update(part["versions"])
        return part

    tree = told(said, host, "name a folder further down")
    asked = spec["path"].partition("/")[2] if spec["path"][0] == "~" else spec["path"]
    parts = [part for part in asked.split("/") if part not in ("", ".")]
    odd = bool(parts) and parts != list(tree.root.parts)[-len(parts) :]
    # the state of a sync that never was would lie here
    odd |= any(entry[1] == "d" and entry[0].endswith(STATE_FOLDERS) for entry in tree.entries)
    if tree.entries or tree.mode is not None:
        odd |= not is_tree(tree.entries, tree.mode) or spec["run"] is not None and tree.mode is None
    if odd or any(entry[0] not in versions for entry in tree.entries if entry[1] == "f"):
        raise ProtocolError(f"its list of files is not one of {spec['path']}", host)
    entries, left_out = (tree.entries, []) if everything else without_repositories(tree.entries)
    return Listed(tree, entries, versions, tuple(left_out))


def heard(frame: Frame, host: str) -> Giving:
    said = frame.decode(Giving)
    if said["event"] == "failed":
        raise HostFailed(Reason.of_node(said["message"]), host=host, hint=said["hint"])
    return said
