"""What deliveries have put in a destination: the journal in its state folder (base/state_folder.py), in two files.

    state      a JSON line {"digest": of the manifest, "also": [entry]: what of older ones is still there, "source":
               {"host", "path"}: the folder that it came from}, and all entries, zlib data of by_column()
    switching  JSON, a line for each list of entries: what is being put in place, or has been, since the state was
               written; there until the state says so, too

An entry is [path, kind, mode, size, mtime_ns, link], kind "f", "d" or "l"; that of a file of data has its sha256, too.
Paths are relative to the destination, UTF-8 with surrogateescape.
"""

import os
import zlib
from contextlib import suppress

from fleet.node.base import json
from fleet.node.base.files import replace_file
from fleet.node.base.processes import read_file
from fleet.node.base.types import Any, Iterable, code

BROKEN = (OSError, ValueError, LookupError, TypeError, zlib.error)
NOTHING: "dict[str, Any]" = {"digest": None, "entries": [], "also": [], "begun": [], "packed": b"", "source": None}
MEMBERS = [{str}, {str}, {int}, {int}, {int}, {str}, {str}]  # of an entry


def by_column(entries: "Iterable[Any]") -> bytes:
    """Entries as JSON: of tens of thousands every node reads it in half the time that it takes by row."""
    return json.dumps({"columns": list(zip(*entries))}).encode()


def unpack(packed: bytes) -> "list[Any]":
    """The entries in it; one of BROKEN where they are none."""
    found = json.loads(zlib.decompress(packed).decode())
    return of_columns(found["columns"]) if isinstance(found, dict) else check_entries(found)  # as by older versions


def check_entries(entries: "Any") -> "list[Any]":
    if entries != [] and set(map(len, entries)) not in ({6}, {7}):
        raise ValueError("these are no entries")
    return of_columns(list(zip(*entries)))


def of_columns(columns: "list[Any]") -> "list[Any]":
    """Cheap also with tens of thousands: preflight reads them, too."""
    kinds = [set(map(type, column)) for column in columns]
    if columns and (len(set(map(len, columns))) != 1 or kinds not in (MEMBERS[:6], MEMBERS)):
        raise ValueError("these are no entries")
    return list(map(list, zip(*columns)))


def read_state(meta: bytes) -> "dict[str, Any] | None":
    """What is delivered: {"digest", "entries", "also", "begun", "packed": the entries as they came, "source": null
    where none was recorded, as by older versions}, or None where no sync has come as far as putting files in place.
    digest None: a switch was cut short, it had begun to put in place what "begun" lists; of a path that is listed
    several times, any version may be there, or none.
    """
    try:
        with open(os.path.join(meta, b"state"), "rb") as f:
            line, packed = json.loads(f.readline().decode()), f.read()
        found = dict(
            NOTHING, digest=line["digest"], also=check_entries(line["also"]), entries=unpack(packed), packed=packed
        )
        if not isinstance(line["digest"], str):
            raise ValueError("this is no digest")
        source = line.get("source")
        if isinstance(source, dict) and isinstance(source.get("host"), str) and isinstance(source.get("path"), str):
            found["source"] = {"host": source["host"], "path": source["path"]}
        state: dict[str, Any] | None = found
    except BROKEN:
        state = None
    try:
        begun = read_lines(os.path.join(meta, b"switching"))
    except FileNotFoundError:
        return state
    state = state or NOTHING
    return dict(state, digest=None, entries=state["entries"] + begun, begun=begun)


def read_lines(path: bytes) -> "list[Any]":
    """The entries of each line that is whole: a kill may have cut one."""
    entries = []
    with open(path, "rb") as f:
        data = f.read()
    for line in data.split(b"\n") if data[:1] == b"[" else [data]:
        try:
            # packed, as by older versions
            entries += check_entries(json.loads(line.decode())) if line[:1] == b"[" else unpack(line)
        except BROKEN:
            continue
    return entries


def older(meta: bytes, name: str) -> "list[Any]":
    """Data that an older version has delivered: a line [path, size, mtime_ns, sha256] for each file. name: what one is
    called that has no path."""
    entries = []
    for line in read_file(os.path.join(meta, b"delivered"), -1).splitlines():
        try:
            path, size, mtime_ns, digest = json.loads(line.decode())
            entries.append([path or name, "f", 0, size, mtime_ns, "", digest])
        except (ValueError, TypeError):
            continue
    return entries


class Journal:
    """Of the state folder `meta`, whose lock is held. known: {path: [entry]}, every version that may be there, the
    last one last."""

    def __init__(self, meta: bytes, name: str = "") -> None:
        self.meta = meta
        self.state = read_state(meta) or NOTHING
        self.entries = older(meta, name) + self.state["also"] + self.state["entries"]
        self.versions: dict[str, list[Any]] | None = None
        self.log: Any = None

    @property
    def known(self) -> "dict[str, list[Any]]":
        if self.versions is None:  # most syncs change nothing and need not ask
            self.versions = {}
            for entry in self.entries:
                self.versions.setdefault(entry[0], []).append(entry)
        return self.versions

    def digest_of(self, entry: "list[Any]") -> str:
        """The sha256 with which this very file was delivered last, or nothing."""
        last = (self.known.get(entry[0]) or [[]])[-1]
        return str(last[6]) if len(last) > 6 and last[3:5] == entry[3:5] else ""

    def begin(self, entries: "list[Any]") -> None:
        """From here on what is there is a mixture, as far as anybody knows."""
        entries = list({tuple(entry): entry for entry in self.state["begun"] + entries}.values())
        self.write("switching", json.dumps(entries).encode() + b"\n")

    def add(self, entry: "list[Any]") -> None:
        """A file is in place."""
        self.known[entry[0]] = [entry]
        if self.log is None:
            self.begin([])
            self.log = open(os.path.join(self.meta, b"switching"), "ab")  # noqa: SIM115
        self.log.write(json.dumps([entry]).encode() + b"\n")
        self.log.flush()

    def finish(self, digest: str, packed: bytes, also: "list[Any]", source: "code.Source | None") -> None:
        """All is in place."""
        self.write("state", json.dumps({"digest": digest, "also": also, "source": source}).encode() + b"\n" + packed)
        for name in (b"switching", b"delivered"):
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self.meta, name))

    def write(self, name: str, data: bytes) -> None:
        replace_file(os.path.join(self.meta, name.encode()), data)
