"""What is to be broadcast: every file, folder and link below the given paths, in the order in which it is sent."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from fleet.errors import HostFailed, UsageError
from fleet.ops.sync.tree import STATE_FOLDERS, Links, folder_mode

# target number, path in it ("" is the target itself), kind "f" | "d" | "l", mode, size, mtime_ns, link target
Entry = tuple[int, str, str, int, int, int, str]


@dataclass(frozen=True)
class Manifest:
    """entries: what goes to nodes; paths travel as UTF-8 with surrogateescape. skipped: sockets, pipes, devices.
    links: what hard links and holes are in it."""

    entries: tuple[Entry, ...]
    skipped: tuple[str, ...] = ()
    links: Links = field(default_factory=Links, compare=False)

    @cached_property
    def files(self) -> tuple[Entry, ...]:
        """The regular files; the chain counts them by their place in here."""
        return tuple(entry for entry in self.entries if entry[2] == "f")

    @cached_property
    def starts(self) -> list[int]:
        """Where each file begins in the stream of all files."""
        return list(accumulate((entry[4] for entry in self.files[:-1]), initial=0))

    def overlap(self, index: int, ranges: Sequence[tuple[int, int]]) -> int:
        """Bytes of one file that lie in ranges of the stream."""
        begin = self.starts[index]
        end = begin + self.files[index][4]
        return sum(max(0, min(b, end) - max(a, begin)) for a, b in ranges)

    @cached_property
    def packed(self) -> bytes:
        return zlib.compress(json.dumps(self.entries).encode(), 6)

    @cached_property
    def message(self) -> bytes:
        """The control line, and the packed manifest behind it."""
        line = {
            "op": "manifest",
            "size": len(self.packed),
            "sha256": hashlib.sha256(self.packed).hexdigest(),
            "allocated": {
                index: self.links.allocated[key]
                for index, f in enumerate(self.files)
                if (key := f"{f[0]} {f[1]}") in self.links.allocated
            },
        }
        return json.dumps(line).encode() + b"\n" + self.packed

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(entry[4] for entry in self.files)


def scan(sources: Sequence[Path]) -> Manifest:
    """Read the sources' trees. UsageError for one that is missing, unreadable, or neither file nor folder."""
    entries: list[Entry] = []
    skipped: list[str] = []
    links = Links()
    for number, source in enumerate(sources):
        try:
            entries += _entries(number, source, skipped, links)
        except FileNotFoundError as error:
            if error.filename != os.fspath(source):
                raise HostFailed(
                    f"{error.filename} vanished while the source was read",
                    kind="sync",
                    hint="run the sync again; nothing was sent",
                ) from error
            raise UsageError(
                f"{error.filename} does not exist", hint="--data PATH[:DEST] takes a path of this machine"
            ) from error
        except OSError as error:
            hint = "mend its mode" if error.errno == errno.EACCES else None
            raise UsageError(f"cannot read {error.filename}: {error.strerror}", hint=hint) from error
        except RecursionError as error:
            raise UsageError(f"the folders in {source} are nested too deeply", hint="pack them: tar") from error
    return Manifest(tuple(entries), tuple(skipped), links)


def _entries(number: int, source: Path, skipped: list[str], links: Links) -> Iterator[Entry]:
    info = source.stat()
    if stat.S_ISDIR(info.st_mode):
        yield (number, "", "d", folder_mode(info), 0, 0, "")
        yield from _walk(number, os.fspath(source), "", skipped, links)
    elif stat.S_ISREG(info.st_mode):
        yield _file(number, "", os.fspath(source), info, links)
    else:
        raise UsageError(f"{source} is neither a file nor a folder", hint="name one of these")


def _walk(number: int, folder: str, inside: str, skipped: list[str], links: Links) -> Iterator[Entry]:
    with os.scandir(folder) as found:
        children = sorted(found, key=lambda child: child.name)
    for child in children:
        path = inside + _travel(child.name)
        info = child.stat(follow_symlinks=False)
        if stat.S_ISDIR(info.st_mode):
            if child.name.endswith(STATE_FOLDERS):
                continue
            yield (number, path, "d", folder_mode(info), 0, 0, "")
            yield from _walk(number, child.path, path + "/", skipped, links)
        elif stat.S_ISLNK(info.st_mode):
            yield (number, path, "l", 0, 0, 0, _travel(os.readlink(child.path)))
        elif stat.S_ISREG(info.st_mode):
            yield _file(number, path, child.path, info, links)
        else:
            skipped.append(child.path)


def _file(number: int, path: str, full: str, info: os.stat_result, links: Links) -> Entry:
    if not os.access(full, os.R_OK):
        raise PermissionError(13, "Permission denied", full)
    links.note(f"{number} {path}", info)
    return (number, path, "f", stat.S_IMODE(info.st_mode), info.st_size, info.st_mtime_ns, "")


def _travel(name: str) -> str:
    """A name in the head's file system encoding, as UTF-8 with surrogateescape."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")
