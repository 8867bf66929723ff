"""Reads a wheel's metadata from the zip file, and the wheels of a folder. Runs no code of a wheel."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from itertools import islice
from pathlib import Path

from packaging.utils import InvalidWheelFilename, canonicalize_name, canonicalize_version, parse_wheel_filename

from fleet.errors import Interrupted, UsageError
from fleet.inventory.fields import printable
from fleet.node.base.errors import on_os_error
from fleet.node.base.files import open_regular
from fleet.ops.cache import memo, recall, remember
from fleet.protocol.messages.wheels import Carried, WheelIdentity

# errors that reading a damaged zip raises: a wrong offset may cause almost any of them
DAMAGE = (
    zipfile.BadZipFile,
    csv.Error,
    zlib.error,
    struct.error,
    OSError,
    KeyError,
    EOFError,
    ValueError,
    RuntimeError,
)
# limits. The largest public wheels have 15,000 files and 2 MiB of metadata, and unpack to four times their size
METADATA_BYTES = 8 << 20
PLAIN_BYTES, PACKED_BY = 256 << 20, 100
SDISTS = (".tar.gz", ".zip", ".tar.bz2", ".tgz")
Stopped = Callable[[], bool]


class Reading(io.BufferedReader):
    """Reads a regular file. A read raises Interrupted if `stopped` returns True."""

    def __init__(self, path: Path, stopped: Stopped) -> None:
        super().__init__(open_regular(str(path)).detach())  # type: ignore[attr-defined]
        self._stopped = stopped

    def read(self, size: int | None = -1, /) -> bytes:
        if self._stopped():
            raise Interrupted("interrupted")
        return super().read(size)


def digest_of(path: Path, stopped: Stopped) -> str:
    """Returns the sha256 of a file."""
    digest = hashlib.sha256()
    with Reading(path, stopped) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


@dataclass(frozen=True)
class Wheel:
    """Describes a wheel file. name: normalized. tags: such as "cp311-cp311-linux_x86_64", expanded. sha256: the wheel's
    digest. identity: the digest of the installed files (see fleet/node/python/installed.py). modules: what is imported
    as a test. unpacked: bytes of the files in the wheel. size: bytes of the wheel."""

    path: Path
    name: str
    version: str
    build: tuple[int, str] | tuple[()]
    tags: frozenset[str]
    sha256: str
    identity: str
    requires: tuple[str, ...]
    requires_python: str
    modules: tuple[str, ...]
    unpacked: int
    size: int

    def identity_of(self) -> WheelIdentity:
        """Returns the wheel as node/python/interpreter.py receives it."""
        return {"name": self.name, "version": self.version, "identity": self.identity}

    def carried(self) -> Carried:
        """Returns the wheel as node/python/install.py receives it."""
        return {**self.identity_of(), "file": self.path.name, "sha256": self.sha256, "modules": list(self.modules)}


def read_wheel(path: Path, stopped: Stopped = lambda: False) -> Wheel:
    """Reads a wheel, and checks every byte of it. The result is cached as long as the file is unchanged. Raises
    UsageError if it is no wheel, or damaged."""
    with on_os_error(UsageError, f"cannot read {path}"):
        note = memo(path)
    if (known := recall(note)) is not None:
        return Wheel(**{**known, "path": path, "tags": frozenset(known["tags"])})
    wheel = _examine(path, stopped)
    remember(note, {**vars(wheel), "path": None, "tags": set(wheel.tags)})
    return wheel


def _examine(path: Path, stopped: Stopped) -> Wheel:
    try:
        name, version, build, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise UsageError(
            f"{path}: not the name of a wheel",
            hint="NAME-VERSION-PYTHON-ABI-PLATFORM.whl, as pip "
            "and build tools write it; a renamed wheel must get its name back",
        ) from error
    with on_os_error(UsageError, f"cannot read {path}"):
        file = Reading(path, stopped)
    try:
        with file, zipfile.ZipFile(file) as archive:
            names = archive.namelist()
            unpacked = _unpacked(archive, path.stat().st_size)
            info = _dist_info(names, name)
            rows = _rows(_content(archive, f"{info}/RECORD").decode("utf-8"), len(names))
            metadata = HeaderParser().parsestr(_content(archive, f"{info}/METADATA").decode("utf-8", "replace"))
            top = f"{info}/top_level.txt"
            listed = _content(archive, top).decode("utf-8", "replace").split() if top in names else []
            _compare(archive, rows)
    except DAMAGE as error:
        raise UsageError(
            f"{path}: damaged: {reason(error)}",
            hint="download or build it again, and leave it its name",
        ) from error
    inside = (canonicalize_name(metadata.get("Name") or ""), metadata.get("Version") or "")
    if inside[0] != name or canonicalize_version(inside[1]) != canonicalize_version(version):
        raise UsageError(
            f"{path}: {inside[0] or 'nameless'} {inside[1] or 'without version'} is in it",
            hint="a renamed wheel must get its name back",
        )
    return Wheel(
        path=path,
        name=name,
        version=str(version),
        build=build,
        tags=frozenset(map(str, tags)),
        sha256=digest_of(path, stopped),
        identity=identity_of(rows, info),
        requires=tuple(metadata.get_all("Requires-Dist") or ()),
        requires_python=metadata.get("Requires-Python") or "",
        modules=_modules(name, rows, listed),
        unpacked=unpacked,
        size=path.stat().st_size,
    )


def check_kind(path: Path) -> None:
    """Raises an error of DAMAGE if the file lacks a wheel's metadata. Does not read the rest of the file."""
    with open_regular(str(path)) as file, zipfile.ZipFile(file) as archive:
        _dist_info(archive.namelist(), parse_wheel_filename(path.name)[0])


def reason(error: Exception) -> str:
    """Returns the message of an error of DAMAGE."""
    text = (isinstance(error, OSError) and error.strerror) or str(error.args[0] if error.args else error)
    return printable(text, 200)  # a library may quote a file's name as it is


def _unpacked(archive: zipfile.ZipFile, packed: int) -> int:
    """Returns the size of all files in a zip, in bytes, without unpacking it. Raises BadZipFile if no wheel is so
    large. packed: the zip's own size."""
    size = sum(item.file_size for item in archive.infolist())
    if size > PLAIN_BYTES and size > packed * PACKED_BY:
        raise zipfile.BadZipFile(f"its {packed} bytes unpack to {size}")
    return size


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    """Returns a file of the wheel's metadata. Raises BadZipFile if it is larger than any wheel needs."""
    size = archive.getinfo(name).file_size
    if size > METADATA_BYTES:
        raise zipfile.BadZipFile(f"{name} is {size} bytes long")
    return archive.read(name)


def _rows(record: str, files: int) -> list[list[str]]:
    """Returns the rows of a RECORD. files: the number of files in the wheel. Raises BadZipFile if there are more than
    two rows for each file: its own row, and that of its .pyc."""
    rows = list(islice((row for row in csv.reader(io.StringIO(record)) if len(row) == 3), 2 * files + 1))
    if len(rows) > 2 * files:
        raise zipfile.BadZipFile("its RECORD names more files than are in it")
    return rows


def _compare(archive: zipfile.ZipFile, rows: Iterable[list[str]]) -> None:
    """Reads every byte. Raises BadZipFile if a file is damaged, has another size than in RECORD, or would be installed
    outside the folder. It does not compare digests, because pip accepts wheels with wrong digests in RECORD."""
    if (bad := archive.testzip()) is not None:
        raise zipfile.BadZipFile(f"bad checksum of {bad}")
    sizes = {item.filename: str(item.file_size) for item in archive.infolist()}
    for path in sizes:
        if path.startswith("/") or ".." in path.split("/"):
            raise zipfile.BadZipFile(f"{path} leads out of the folder that it is installed in")
    for path, _digest, size in rows:
        if size and sizes.get(path) != size and not path.endswith(".pyc"):
            raise zipfile.BadZipFile(
                f"{path} is not what its RECORD says" if path in sizes else f"{path} is in its RECORD only"
            )


def _dist_info(names: Iterable[str], name: str) -> str:
    """Returns the folder of the wheel's metadata. Raises BadZipFile unless there is exactly one, and it is complete."""
    names = set(names)
    folders = {n.split("/")[0] for n in names if n.split("/")[0].endswith(".dist-info")}
    own = [f for f in folders if canonicalize_name(f[: -len(".dist-info")].rpartition("-")[0]) == name]
    if len(own) != 1:
        there = ", ".join(sorted(folders)) or "none"
        raise zipfile.BadZipFile(f"no .dist-info folder of {name} in it, but {there}")
    for part in ("METADATA", "RECORD", "WHEEL"):
        if f"{own[0]}/{part}" not in names:
            raise zipfile.BadZipFile(f"{own[0]}/{part} is missing")
    return own[0]


def identity_of(rows: Iterable[list[str]], info: str) -> str:
    """Returns the sha256 over path, digest and size of all files that an install does not change. Of NAME.data, it
    holds only purelib and platlib, by the paths to which pip moves them: pip rewrites scripts. info: the .dist-info
    folder."""
    data = info[: -len(".dist-info")] + ".data/"
    kept = []
    for path, digest, size in rows:
        if path.startswith(data):
            scheme, _, path = path[len(data) :].partition("/")
            if scheme not in ("purelib", "platlib"):
                continue
        if not re.match(r"[^/]+\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json|RECORD\.\w+)$", path) and not (
            path.endswith(".pyc")
        ):
            kept.append(f"{path},{digest},{size}")
    return hashlib.sha256("\n".join(sorted(kept)).encode()).hexdigest()


def _modules(name: str, rows: Iterable[list[str]], listed: list[str]) -> tuple[str, ...]:
    """Returns the top-level modules to import: the one with the distribution's name, or else all public modules.
    listed: the content of top_level.txt."""
    found = list(listed)
    if not found:
        for path, _digest, _size in rows:
            folder, slash, rest = path.partition("/")
            if slash and rest == "__init__.py" and folder.isidentifier():
                found.append(folder)
            elif not slash and path.endswith((".py", ".so")):
                found.append(path.split(".")[0])
    found = [m for m in dict.fromkeys(found) if all(part.isidentifier() for part in re.split(r"[./]", m))]
    same = [m for m in found if canonicalize_name(m) == name]
    return tuple(same or [m for m in found if not m.startswith("_")] or found)


def sdist_refused(path: Path) -> UsageError:
    """Returns the error for a source distribution in the place of a wheel."""
    name = next(path.name[: -len(end)] for end in SDISTS if path.name.endswith(end))
    return UsageError(
        f"{path} is a source distribution, not a wheel",
        hint=f"unpack it, then build it on a host: fleet build ./{name}",
    )


def read_folder(folder: Path, stopped: Stopped = lambda: False) -> tuple[Wheel, ...]:
    """Returns all wheels in a folder. Raises UsageError if there is none, if one is damaged, or if there is an
    sdist."""
    if not folder.is_dir():
        raise UsageError(f"{folder} does not exist", hint="give a folder of wheels, or a requirements file")
    with on_os_error(UsageError, f"cannot read {folder}"):
        files = sorted(p for p in folder.iterdir() if p.is_file())
    for path in files:
        if path.name.endswith(SDISTS):
            raise sdist_refused(path)
    wheels = tuple(read_wheel(p, stopped) for p in files if p.suffix == ".whl")
    if not wheels:
        raise UsageError(f"no wheels in {folder}", hint="pip download -d DIR, or give a requirements file")
    return wheels
