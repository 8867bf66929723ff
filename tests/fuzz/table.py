"""Who owns a file on a node: the table of docs/sync.md once more, written from its text and not from the code.

What may come of a sync is said for each path by itself, as alternatives: what an interrupted sync left behind is known
to nobody for certain.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

ANY = -1  # a mode of which nothing is said


class Entry(NamedTuple):
    """kind: "f", "d", "l", or "o" for pipes and the like. body: a file's bytes, a link's target."""

    kind: str
    body: bytes
    mode: int

    @property
    def version(self) -> tuple[str, bytes]:
        return self.kind, self.body

    def is_like(self, other: Entry | None) -> bool:
        """Whether what is there is this. A folder may have got its group from the one around it."""
        if other is None or self.version != other.version:
            return False
        odd = self.mode ^ other.mode
        if self.kind == "d":
            odd &= 0o777 | self.mode & 0o2000
        return self.kind == "l" or ANY in (self.mode, other.mode) or not odd

    def __repr__(self) -> str:
        return (
            f"{self.kind} {self.body[:24]!r} {self.mode:o}" if self.mode != ANY else f"{self.kind} {self.body[:24]!r}"
        )


Files = Mapping[str, Entry]


@dataclass(frozen=True)
class Record:
    """What a node remembers of a path: by: "delivered", "seen" or "own"; version: what was there then; source: what the
    source had; whose: which source that was, None where that is not known."""

    by: str
    version: tuple[str, bytes] | None
    source: tuple[str, bytes]
    whose: int | None = None


NONE = None
Maybe = frozenset["Record | None"]
Records = dict[str, Maybe]


@dataclass(frozen=True)
class After:
    """One of the things that may come of a path: the entry there (None: nothing), and its record. stop: the sync does
    not take place. goes: a version of the node's own that is lost by it, which only --force may do. folder: it goes
    where it is empty by then."""

    entry: Entry | None
    record: Record | None
    stop: str = ""
    goes: bool = False
    folder: bool = False


@dataclass
class Options:
    force: bool | tuple[str, ...] = False
    keep: bool = False
    delete_excluded: bool = False
    other: bool | None = False  # the source is another one than that of the last delivery; None: that is not known
    born: int | None = None  # which source it is

    def forces(self, path: str) -> bool:
        """A pattern names a path, its last name, or a folder that it is in."""
        if isinstance(self.force, bool):
            return self.force
        parts = path.split("/")
        names = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)] + parts[-1:]
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.force for name in names)


@dataclass
class Table:
    """listed: what the source sends. excluded: says of a path and a kind whether a rule names it. there: what the node
    has. records: what it remembers."""

    listed: Files
    excluded: Mapping[tuple[str, str], bool]
    there: Files
    records: Mapping[str, Maybe]
    options: Options = field(default_factory=Options)
    claimed: Mapping[str, bool] = field(default_factory=dict)  # another destination has it, too; whether for certain

    def known(self, path: str) -> Maybe:
        known = self.records.get(path, frozenset([NONE]))
        if path in self.claimed:  # then it is nobody's to take away
            theirs = frozenset(each and replace(each, by="own", version=None) for each in known)
            known = theirs if self.claimed[path] else known | theirs
        return known

    def alternatives(self) -> dict[str, list[After]]:
        found: dict[str, list[After]] = {}
        self._blocked: set[str] = set()  # the source has a folder there, the node may keep something else
        self._giving: set[str] = set()  # a folder of the node where the source has something else
        for path in sorted({*self.listed, *self.records, *self.there}):
            after: list[After] = []
            for record in self.known(path):
                after += self._of(path, record)
            found[path] = list(dict.fromkeys(after))
        return found

    def _of(self, path: str, record: Record | None) -> Iterable[After]:
        source, node = self.listed.get(path), self.there.get(path)
        above = [path[:i] for i, c in enumerate(path) if c == "/"]
        giving = next((folder for folder in above if folder in self._giving), None)
        if giving is not None:
            yield After(node, record)
            yield After(node, NONE)
            if node is None or self._owns(path) != {True}:
                yield After(None, NONE)
            elif self.options.forces(giving):
                yield After(None, NONE, goes=True)
            return
        if any(folder in self._blocked for folder in above):
            # nothing can be put below what is no folder there
            yield After(node, record)
            if source is not None:
                yield After(node, record, stop="nothing can be put there")
                yield After(source, self._record("delivered", source))
            return
        if source is None:
            yield from self._gone(path, node, record)
        elif node is None:
            yield After(source, self._record("delivered", source))
        elif node.version == source.version:
            by = "delivered" if self._state(node, record) == "delivered" else "seen"
            yield After(source, self._record(by, source))
        else:
            yield from self._differs(path, source, node, record)

    def _record(self, by: str, source: Entry) -> Record:
        return Record(by, source.version, source.version, self.options.born)

    def _theirs(self, record: Record | None) -> bool | None:
        """Whether another source put it there: the last one, or one whose delivery was cut short; None: not known."""
        known = record is not None and record.whose is not None and record.whose != self.options.born
        return known or self.options.other

    def _state(self, node: Entry, record: Record | None) -> str:
        return record.by if record is not None and record.version == node.version else "own"

    def _gone(self, path: str, node: Entry | None, record: Record | None) -> Iterable[After]:
        if node is None:
            yield After(None, NONE)
            return
        state = self._state(node, record)
        if self.excluded.get((path, node.kind), False) and not self.options.delete_excluded:
            theirs = self._theirs(record) if node.kind != "d" else False
            if not theirs:
                yield After(node, record)
            if theirs is not False:
                yield After(node, NONE)
        elif state == "delivered":
            theirs = self._theirs(record) if node.kind != "d" and self.options.force is not True else False
            if theirs is not False:
                yield After(node, record, stop="another source's")
            if theirs:
                return
            yield After(None, NONE, folder=node.kind == "d")
            if node.kind == "d":
                yield After(node, record, folder=True)
        else:
            yield After(node, NONE)
            if state == "own":  # of which version of the source it was left is remembered for some deliveries
                yield After(node, record)

    def _differs(self, path: str, source: Entry, node: Entry, record: Record | None) -> Iterable[After]:
        options, state = self.options, self._state(node, record)
        put = After(source, self._record("delivered", source))
        left = After(node._replace(mode=ANY), Record("own", None, source.version))
        if node.kind == "d":
            self._giving.add(path)
            if record is not None and record.source == source.version and not options.forces(path):
                yield left  # the source is what it was
                return
            owns = [self._owns(name) for name in self.there if name.startswith(path + "/")]
            if options.forces(path):
                yield replace(put, goes=True)
                if options.force is not True:
                    yield replace(left, stop="in the way")
                return
            inside = [each for name in self.there if name.startswith(path + "/") for each in self.known(name)]
            if state == "own" or any(True in own for own in owns) or any(each and each.by == "seen" for each in inside):
                # a folder of its own with nothing in it that is, or with what was there before: nobody says
                yield left if options.keep else replace(left, stop="in the way")
            certain = any(self._is_theirs(name) for name in self.there if name.startswith(path + "/"))
            if options.other is not False or certain:
                yield replace(left, stop="another source's")
            if not options.other and not certain and {True} not in owns:
                yield put
        elif state in ("delivered", "seen"):
            theirs = self._theirs(record) if options.force is not True else False
            if theirs is not False:
                yield After(node, record, stop="another source's")
            if not theirs or state == "seen":  # which was there before any of them
                yield put
        else:
            if source.kind == "d":
                self._blocked.add(path)
            if options.forces(path):
                yield replace(put, goes=True)
            elif record is not None and record.source == source.version or options.keep:
                yield left
            else:
                yield replace(left, stop="in the way")

    def _is_theirs(self, path: str) -> bool:
        """Whether another source put that there, for certain."""
        node = self.there[path]
        states = {self._state(node, each) == "delivered" and self._theirs(each) for each in self.known(path)}
        return node.kind != "d" and states == {True}

    def _owns(self, path: str) -> set[bool]:
        """Whether what the node has there is its own, as far as is known; nor may what a rule names go."""
        node = self.there[path]
        if self.excluded.get((path, node.kind), False) and path not in self.listed:
            return {True}
        if node.kind == "d":  # what is in it counts
            return {False}
        return {self._state(node, record) == "own" for record in self.known(path)}
