"""Records what deliveries have put in a destination: the journal in its state folder (base/state_folder.py), in two
files.

    state      a JSON line, then two zlib blocks of by_column(). The line is {"digest": of the manifest, "source": of
               the delivery, "also": [row] of older deliveries that are still there, "packed": bytes of the first block,
               "left": a digest of the node's own code, "changed": [[n, REST]]}. The first block has the manifest's
               entries as they were received. The second has the REST of each entry's row. "changed" replaces some of
               these, so that a change of one file in a large tree does not write the second block again.
    switching  JSON lines [[source], [row]]: files that have been put in place since the state was written, or are being
               put in place, and the sources of these deliveries. It is removed once the state has them, too.

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
# STATUS: fleet put the path there; it was there before, equal to the source
DELIVERED, SEEN = "d", "s"
ENTRY: "list[Any]" = [{str}, {str}, {int}, {int}, {int}, {str}]
REST: "list[Any]" = [{str}, {str}, {int}, {int}]
ROW = [*ENTRY, *REST]


def by_column(entries: "Iterable[Any]") -> bytes:
    """Returns entries as JSON, by column. Nodes read tens of thousands of entries twice as fast as by row."""
    return json.dumps({"columns": list(zip(*entries))}).encode()


def unpack(packed: bytes, members: "list[Any]" = ENTRY) -> "list[Any]":
    """Returns the entries in compressed data of by_column(). Raises one of BROKEN for invalid data. members: the types
    of an entry's fields."""
    return of_columns(json.loads(zlib.decompress(packed).decode())["columns"], members)


def check_source(source: "Any") -> "code.Source":
    return {"host": str(source["host"]), "path": str(source["path"]), "id": str(source["id"])}


def is_source(one: "code.Source", other: "code.Source") -> bool:
    """Returns whether two sources have the same id. A source without an id is equal to none."""
    return one["id"] == other["id"] != ""


def check_rows(rows: "Any") -> "list[Any]":
    if rows != [] and set(map(len, rows)) != {len(ROW)}:
        raise ValueError("these are no rows")
    return of_columns(list(zip(*rows)), ROW)


def of_columns(columns: "list[Any]", members: "list[Any]") -> "list[Any]":
    """Returns columns as rows. Raises ValueError if types or lengths are wrong. It must be fast for tens of thousands
    of rows, as preflight reads them, too."""
    if columns and (len(set(map(len, columns))) != 1 or [set(map(type, column)) for column in columns] != members):
        raise ValueError("these are no entries")
    return list(map(list, zip(*columns)))


def read_state(meta: bytes) -> "dict[str, Any] | None":
    """Returns the journal's state, or None if no sync has begun to put files in place. Its keys: "digest", "entries",
    "also", "begun", "left"; "packed": the entries as they were received; "rest": the second block; "source": None if
    none was recorded.

    If "digest" is None, a sync was interrupted while it put in place the files of "begun". If a path is listed several
    times, any of its versions may be there, or none. "begun_by": the sources of these syncs, the last one last."""
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
    """Returns a digest that is equal on nodes with the same code, or None if it is not known."""
    state = state or NOTHING
    if state["digest"] is None or not state["left"]:
        return state["digest"]  # type: ignore[no-any-return]
    return hashlib.sha256((state["digest"] + state["left"]).encode()).hexdigest()


def rows_of(state: "dict[str, Any]") -> "list[Any]":
    """Returns the rows of all paths that may be there, the newest last."""
    rows: list[Any] = []
    if state["entries"]:
        with suppress(*BROKEN):
            rest = json.loads(zlib.decompress(state["rest"]).decode())["columns"]
            rows = of_columns([*zip(*state["entries"]), *rest], ROW)
            for number, *own in state["changed"]:
                rows[number][DIGEST:] = own
    return list(state["also"] + rows + state["begun"])


def read_lines(path: bytes) -> "tuple[list[Any], list[code.Source]]":
    """Returns the rows of all complete lines, and their sources. A kill may have cut a line."""
    rows: list[Any] = []
    sources: list[code.Source] = []
    with open(path, "rb") as f:
        for line in f:
            with suppress(*BROKEN):
                by, these = json.loads(line.decode())
                found = list(map(check_source, by))  # checked first: a line without valid sources does not count
                rows += check_rows(these)
                sources += found
    return rows, sources


def delivered_to(target: bytes, suffixes: "Iterable[bytes]") -> "Iterator[tuple[bytes, os.stat_result]]":
    """Yields the state folder, and its stat, of each delivery to this folder or file. Ignores state folders that belong
    neither to us nor to the target's owner, as below /tmp any user can make one."""
    around, name = os.path.split(target)
    of = lstat(target)
    for suffix in suffixes:
        for meta in (os.path.join(target, suffix), os.path.join(around, state_name(name, suffix))):
            st = lstat(meta)
            if st and of and stat.S_ISDIR(st.st_mode) and st.st_uid in (os.geteuid(), of.st_uid):
                yield meta, st


class Journal:
    """Reads and writes the journal of the state folder `meta`, whose lock is held. known: path -> the rows of all
    versions that may be there, the newest last."""

    def __init__(self, meta: bytes) -> None:
        self.meta = meta
        self.state = read_state(meta) or NOTHING
        self.versions: dict[str, list[Any]] | None = None
        self.log: Any = None

    @property
    def known(self) -> "dict[str, list[Any]]":
        if self.versions is None:  # made late, as most syncs change nothing and do not need it
            self.versions = grouped((row[PATH], row) for row in rows_of(self.state))
        return self.versions

    def digest_of(self, entry: "list[Any]") -> str:
        """Returns the sha256 with which the source's present file was delivered or seen, or "" if it was not."""
        row = self.row(entry)
        return str(row[DIGEST]) if row else ""

    def row(self, entry: "list[Any]") -> "list[Any] | None":
        """Returns the newest row of this path that was written for the same source entry, or None."""
        rows = self.known.get(entry[PATH], ())
        return next((row for row in reversed(rows) if same_source(row, entry)), None)

    def begin(self, rows: "list[Any]", source: "code.Source | None" = None) -> None:
        """Records that files of this source are being put in place: from now on the destination is a mixture."""
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
        """Records that everything is in place. rows: of the manifest's entries, in their order. packed: these entries,
        as they were received. changed: number -> row of the entries whose row has changed; None: any may have."""
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
    """Returns whether the source's entry, apart from its mode, is the same as when this row was written."""
    return bool(row[KIND] == entry[KIND] and row[SIZE : LINK + 1] == entry[SIZE : LINK + 1])


def unchanged(row: "list[Any]", st: "os.stat_result") -> bool:
    """Returns whether the path on disk has the kind, size and times that were read back after the commit. For a link,
    the caller must compare the target, too."""
    kind = row[KIND]
    if kind == "f":
        return (
            stat.S_ISREG(st.st_mode)
            and st.st_size == row[SIZE]
            and st.st_mtime_ns == row[NODE_MTIME]
            and row[NODE_CTIME] in (0, st.st_ctime_ns)
        )
    return stat.S_ISDIR(st.st_mode) if kind == "d" else stat.S_ISLNK(st.st_mode)
