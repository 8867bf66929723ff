"""Joins several sources into one broadcast: all their files in the order of sending, as one stream of bytes."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fleet.delivery.tree import Tree, hard_links, read, reading, with_payload
from fleet.node.delivery.journal import by_column
from fleet.protocol.messages import chain

# the number of the source, then the fields of chain.Entry
Entry = tuple[int, str, str, int, int, int, str]


@dataclass(frozen=True)
class Manifest:
    """Holds the entries of a broadcast. skipped: paths of sockets, pipes and devices. allocated: file number -> bytes
    on disk of a file with holes. inodes: the inode of each file, by file number. hard_links: number of the files that
    are hard links of each other. unsafe_links: as in Tree."""

    entries: tuple[Entry, ...]
    skipped: tuple[str, ...] = ()
    hard_links: int = 0
    allocated: Mapping[int, int] = field(default_factory=dict)
    inodes: tuple[int, ...] = ()
    unsafe_links: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, trees: Sequence[Tree]) -> Manifest:
        entries: list[Entry] = []
        for number, one in enumerate(trees):
            own: list[chain.Entry] = [] if one.mode is None else [("", "d", one.mode, 0, 0, "")]
            entries += [(number, *entry) for entry in (*own, *one.entries)]
        files = [entry for entry in entries if entry[2] == "f"]
        holes = {i: trees[f[0]].allocated[f[1]] for i, f in enumerate(files) if f[1] in trees[f[0]].allocated}
        skipped = tuple(str(one.local(path)) for one in trees for path in one.skipped)
        unsafe = tuple(link for one in trees for link in one.unsafe_links)
        inodes = tuple(trees[entry[0]].inodes.get(entry[1], 0) for entry in files)
        return cls(tuple(entries), skipped, hard_links(trees), holes, inodes, unsafe)

    @cached_property
    def files(self) -> tuple[Entry, ...]:
        """Returns the regular files. Their index in this tuple is the file number of the chain."""
        return tuple(entry for entry in self.entries if entry[2] == "f")

    @cached_property
    def message(self) -> bytes:
        """Returns the control line, followed by the packed manifest."""
        packed = zlib.compress(by_column(self.entries), 6)
        return with_payload("manifest", packed, allocated=self.allocated)

    @property
    def size(self) -> int:
        """Returns the bytes of all files."""
        return sum(entry[4] for entry in self.files)


def scan(sources: Sequence[Path], copy_unsafe_links: bool = False) -> Manifest:
    """Reads the sources. Raises UsageError if one is missing, unreadable, or neither file nor folder."""
    trees = []
    for source in sources:
        with reading(source, "", "pack them: tar"):
            trees.append(read(source, copy_unsafe_links=copy_unsafe_links))
    return Manifest.of(trees)
