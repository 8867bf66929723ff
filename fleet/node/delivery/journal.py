"""Keeps the journal of a destination: which paths deliveries have put there. The journal is two files in the state
folder of the destination (base/state_folder.py).

    state      a JSON line, then two zlib blocks of by_column(). The line is {"digest": of the manifest, "source": of
               the delivery, "also": [row] of older deliveries' paths that are still there, "packed": number of bytes of
               the first block, "left": a digest of the node's own code files, "changed": [[n, *REST]]}. The first block
               has the manifest's entries as they were received. The second has the REST of each entry's row. "changed"
               replaces the REST of entry n, so that a change of one file does not write the second block again.
    switching  JSON lines [[source], [row]]: files that have been put in place since the state was written, or are being
               put in place, and the sources of these deliveries. It is removed when the state has these files, too.

An entry is [path, kind, mode, size, mtime_ns, link] of a path in the source; kind "f", "d" or "l". A row is an entry,
followed by the REST, which describes the path on the node: DIGEST (sha256 of a file, or "" if unknown), STATUS,
NODE_MTIME and NODE_CTIME. These are times in ns, read back after the commit; -1 matches no file. Paths are relative to
the destination, UTF-8 with surrogateescape."""

import hashlib
import os
import stat
import zlib
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.files import lstat, remove_file, replace_file
from fleet.node.base.state_folder import state_name
from fleet.node.base.types import Any, Iterable, Iterator, code
from fleet.node.base.wire import grouped

BROKEN = (OSError, ValueError, LookupError, TypeError, zlib.error)
NOTHING: "dict[str, Any]" = {
    "digest": None,
    "entries": [],
    "rest": b"",
    "also": [],
    "begun": [],
    "begun_by": [],
    "packed": b"",
    "source": None,
    "left": "",
    "changed": [],
}
PATH, KIND, MODE, SIZE, MTIME, LINK, DIGEST, STATUS, NODE_MTIME, NODE_CTIME = range(10)
# values of STATUS. DELIVERED: fleet put the path there. SEEN: the path was there before, equal to the source's
DELIVERED, SEEN = "d", "s"
ENTRY: "list[Any]" = [{str}, {str}, {int}, {int}, {int}, {str}]
REST: "list[Any]" = [{str}, {str}, {int}, {int}]
ROW = [*ENTRY, *REST]


def by_column(entries: "Iterable[Any]") -> bytes:
    """Returns entries as JSON, by column. A node reads tens of thousands of entries twice as fast by column as by
    row."""
    return json.dumps({"columns": list(zip(*entries))}).encode()


def unpack(packed: bytes, members: "list[Any]" = ENTRY) -> "list[Any]":
    """Returns the entries in compressed data of by_column(). Raises one of BROKEN for invalid data. members: the types
    of an entry's fields."""
    return of_columns(json.loads(zlib.decompress(packed).decode())["columns"], members)


def check_source(source: "Any") -> "code.Source":
    return {"host": str(source["host"]), "path": str(source["path"]), "id": str(source["id"])}


def is_source(one: "code.Source", other: "code.Source") -> bool:
    """Returns whether two sources have the same id. A source without an id is not equal to any source."""
    return one["id"] == other["id"] != ""


def check_rows(rows: "Any") -> "list[Any]":
    if rows != [] and set(map(len, rows)) != {len(ROW)}:
        raise ValueError("these are no rows")
    return of_columns(list(zip(*rows)), ROW)


def of_columns(columns: "list[Any]", members: "list[Any]") -> "list[Any]":
    """Returns columns as rows. Raises ValueError if types or lengths are wrong. members: the types of a row's fields.
    It must be fast for tens of thousands of rows, as preflight also reads journals."""
    if columns and (len(set(map(len, columns))) != 1 or [set(map(type, column)) for column in columns] != members):
        raise ValueError("these are no entries")
    return list(map(list, zip(*columns)))


def read_state(meta: bytes) -> "dict[str, Any] | None":
    """Returns the journal's state. Returns None if no sync has begun to put files in place. Keys: "digest", "entries",
    "also", "left"; "packed": the entries as they were received; "rest": the second block; "changed"; "source": None if
    the journal has none; "begun", "begun_by": the rows and sources of "switching", the newest last.

    If "digest" is None, a sync was interrupted while it put the files of "begun" in place. If "begun" has several rows
    for a path, any of these versions may be there, or none."""
    try:
        with open(os.path.join(meta, b"state"), "rb") as f:
            line, packed = json.loads(f.readline().decode()), f.read()
        size, source = line["packed"], line["source"]
        state: dict[str, Any] | None = dict(
            NOTHING,
            digest=line["digest"],
            also=check_rows(line["also"]),
            entries=unpack(packed[:size]),
            packed=packed[:size],
            rest=packed[size:],
            left=str(line["left"]),
            source=None if source is None else check_source(source),
            changed=of_columns(list(zip(*line["changed"])), [{int}, *REST]),
        )
        if not isinstance(line["digest"], str):
            raise ValueError("this is no digest")
    except BROKEN:
        state = None
    try:
        begun, begun_by = read_lines(os.path.join(meta, b"switching"))
    except FileNotFoundError:
        return state
    state = state or NOTHING
    return dict(state, digest=None, begun=begun, begun_by=begun_by)


def identity(state: "dict[str, Any] | None") -> "str | None":
    """Returns a digest that is equal on nodes with the same code. Returns None if a node's code is not known."""
    state = state or NOTHING
    if state["digest"] is None or not state["left"]:
        return state["digest"]  # type: ignore[no-any-return]
    return hashlib.sha256((state["digest"] + state["left"]).encode()).hexdigest()


def rows_of(state: "dict[str, Any]") -> "list[Any]":
    """Returns the rows of all paths that may be in the destination, the newest last."""
    rows: list[Any] = []
    if state["entries"]:
        with suppress(*BROKEN):
            rest = json.loads(zlib.decompress(state["rest"]).decode())["columns"]
            rows = of_columns([*zip(*state["entries"]), *rest], ROW)
            for number, *own in state["changed"]:
                rows[number][DIGEST:] = own
    return list(state["also"] + rows + state["begun"])


def read_lines(path: bytes) -> "tuple[list[Any], list[code.Source]]":
    """Returns the rows of all complete lines, and the sources of these lines. Skips a line that a kill has cut."""
    rows: list[Any] = []
    sources: list[code.Source] = []
    with open(path, "rb") as f:
        for line in f:
            with suppress(*BROKEN):
                by, these = json.loads(line.decode())
                found = list(map(check_source, by))  # before the rows, so that an invalid source skips the whole line
                rows += check_rows(these)
                sources += found
    return rows, sources


def delivered_to(target: bytes, suffixes: "Iterable[bytes]") -> "Iterator[tuple[bytes, os.stat_result]]":
    """Yields (state folder, its stat) of each delivery to this folder or file. Ignores a state folder that belongs
    neither to our user nor to the target's owner: below /tmp, any user can make one. suffixes: ends of their names."""
    around, name = os.path.split(target)
    of = lstat(target)
    for suffix in suffixes:
        for meta in (os.path.join(target, suffix), os.path.join(around, state_name(name, suffix))):
            st = lstat(meta)
            if st and of and stat.S_ISDIR(st.st_mode) and st.st_uid in (os.geteuid(), of.st_uid):
                yield meta, st


class Journal:
    """Reads and writes the journal of the state folder `meta`. The caller holds that folder's lock. known: path -> the
    rows of all versions that may be there, the newest last."""

    def __init__(self, meta: bytes) -> None:
        self.meta = meta
        self.state = read_state(meta) or NOTHING
        self.versions: dict[str, list[Any]] | None = None
        self.log: Any = None

    @property
    def known(self) -> "dict[str, list[Any]]":
        if self.versions is None:  # grouped only here: most syncs change nothing, and never read `known`
            self.versions = grouped((row[PATH], row) for row in rows_of(self.state))
        return self.versions

    def digest_of(self, entry: "list[Any]") -> str:
        """Returns the sha256 that the journal has for this version of the source's file, or "" if it has none."""
        row = self.row(entry)
        return str(row[DIGEST]) if row else ""

    def row(self, entry: "list[Any]") -> "list[Any] | None":
        """Returns the newest row of this path that was written for the same source entry, or None."""
        rows = self.known.get(entry[PATH], ())
        return next((row for row in reversed(rows) if same_source(row, entry)), None)

    def begin(self, rows: "list[Any]", source: "code.Source | None" = None) -> None:
        """Records that files of `source` are being put in place. Until finish(), old and new files may be mixed."""
        rows = list({tuple(row): row for row in self.state["begun"] + rows}.values())
        by = [each for each in self.state["begun_by"] if each != source] + [source] * (source is not None)
        replace_file(os.path.join(self.meta, b"switching"), json.dumps([by, rows]).encode() + b"\n")

    def add(self, row: "list[Any]") -> None:
        """Records that a file is in place."""
        self.known[row[PATH]] = [row]
        if self.log is None:
            self.begin([])
            self.log = open(os.path.join(self.meta, b"switching"), "ab")  # noqa: SIM115
        self.log.write(json.dumps([[], [row]]).encode() + b"\n")
        self.log.flush()

    def finish(
        self,
        digest: str,
        rows: "Iterable[Any]",
        also: "Iterable[Any]" = (),
        source: "code.Source | None" = None,
        packed: bytes = b"",
        left: str = "",
        changed: "dict[int, Any] | None" = None,
    ) -> None:
        """Records that everything is in place. rows: one for each entry of the manifest, in that order. packed: the
        entries as they were received. changed: entry number -> row, for the rows that have changed since the last
        delivery; None if any row may have. digest, also, source, left: as in the file "state"."""
        line: dict[str, Any] = {"digest": digest, "also": list(also), "source": source, "left": left, "changed": []}
        if changed is None:
            rows = list(rows)
            packed = packed or zlib.compress(by_column([row[:DIGEST] for row in rows]), 1)
            rest = zlib.compress(by_column([row[DIGEST:] for row in rows]), 1)
        else:
            rest, known = self.state["rest"], {number: own for number, *own in self.state["changed"]}
            known.update({number: row[DIGEST:] for number, row in changed.items()})
            line["changed"] = [[number, *own] for number, own in known.items()]
        line["packed"] = len(packed)
        replace_file(os.path.join(self.meta, b"state"), json.dumps(line).encode() + b"\n" + packed + rest)
        remove_file(os.path.join(self.meta, b"switching"))


def same_source(row: "list[Any]", entry: "list[Any]") -> bool:
    """Returns whether the source's entry, apart from its mode, is the one for which this row was written."""
    return bool(row[KIND] == entry[KIND] and row[SIZE : LINK + 1] == entry[SIZE : LINK + 1])


def unchanged(row: "list[Any]", st: "os.stat_result") -> bool:
    """Returns whether a path on disk still has the kind, size and times of its row. (The times were read after the
    commit.) For a link, the caller must also compare the link's target."""
    kind = row[KIND]
    if kind == "f":
        return (
            stat.S_ISREG(st.st_mode)
            and st.st_size == row[SIZE]
            and st.st_mtime_ns == row[NODE_MTIME]
            and row[NODE_CTIME] in (0, st.st_ctime_ns)
        )
    return stat.S_ISDIR(st.st_mode) if kind == "d" else stat.S_ISLNK(st.st_mode)
