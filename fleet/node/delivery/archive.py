"""Reads an archive of a container image, as `save` of podman or docker writes it. The archive may be malicious: time
and memory are bounded, nothing is unpacked, and each id is checked against the content that it names."""

import hashlib
import tarfile
import zlib
from gzip import GzipFile

from fleet.node.base.errors import Refused
from fleet.node.base.json import loads
from fleet.node.base.types import Any, BinaryIO

OCI_NAMES = ("io.containerd.image.name", "org.opencontainers.image.ref.name")
KIND = "vnd.docker.reference.type"  # an annotation of entries that are no images
DOCUMENT_BYTES = 1 << 20
# READ_BYTES: the limit for all headers and documents. A read of less than LEAST_READ bytes counts as LEAST_READ bytes
READ_BYTES, LEAST_READ = 64 << 20, 4096
UNPACKED, UNPACKED_BYTES = 100, 1 << 26  # a compressed file may unpack to UNPACKED times its size + UNPACKED_BYTES


class Bounded:
    """Reads a file for tarfile, which seeks past the layers. Raises TarError if a limit is exceeded."""

    def __init__(self, file: "BinaryIO") -> None:
        packed, size = file.read(2) == b"\x1f\x8b", file.seek(0, 2)
        file.seek(0)
        self.file: Any = GzipFile(fileobj=file) if packed else file
        self.size, self.left = size * UNPACKED + UNPACKED_BYTES if packed else size, READ_BYTES
        self.tell = self.file.tell

    def seek(self, to: int) -> None:
        if to > self.size:
            raise tarfile.ReadError("it ends too early, or unpacks to more than %d times its size" % UNPACKED)
        self.file.seek(to)

    def read(self, size: int) -> bytes:
        self.left -= max(size, LEAST_READ)
        if self.left < 0:
            raise tarfile.ReadError("it has too many entries, or too large ones")
        data: bytes = self.file.read(size)
        return data


def documents(archive: "Any") -> "tuple[str | None, dict[str, str]]":
    """Returns the name and the ids of the image in an open archive, as read_archive() returns them. Raises various
    errors for a malformed archive."""
    files = {member.name: member for member in archive if member.isreg()}

    def read(path: str, digest: "str | None" = None) -> "Any":
        data = archive.extractfile(files[path]).read(DOCUMENT_BYTES)
        if digest is not None and hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(path)
        return loads(data.decode())

    def blob(descriptor: "Any") -> "tuple[str, Any]":
        digest = descriptor["digest"].replace("sha256:", "")
        return digest, read("blobs/sha256/" + digest, digest)

    name, config, manifests = None, None, []
    if "manifest.json" in files:
        (only,) = read("manifest.json")
        name, path = (only.get("RepoTags") or [None])[0], only["Config"]
        config = path.split("/")[-1].replace(".json", "")
        read(path, config)
    if "index.json" in files:
        tops = read("index.json")["manifests"]
        (top,) = {each["digest"]: each for each in tops}.values()
        digest, document = blob(top)
        manifests.append((digest, document))
        for each in document.get("manifests", ()):
            if KIND not in each.get("annotations", ()) and each["digest"].replace(":", "/") in _blobs(files):
                manifests.append(blob(each))
        (found,) = {each["config"]["digest"].replace("sha256:", "") for _, each in manifests if "config" in each}
        if config is None:
            config = blob({"digest": found})[0]
            name = next((top.get("annotations", {})[key] for key in OCI_NAMES if key in top["annotations"]), None)
        elif config != found:
            raise ValueError("index.json")
    if config is None:
        raise ValueError("manifest.json")
    ids = dict({digest: "manifest" for digest, _ in manifests}, **{config: "config"})
    return name, ids


def _blobs(files: "Any") -> "set[str]":
    return {name[len("blobs/") :] for name in files if name.startswith("blobs/")}


def read_archive(file: "BinaryIO") -> "tuple[str | None, dict[str, str]]":
    """Returns the name (or None) of the only image in an archive, and every id that a runtime may give it: id ->
    "config" or "manifest". Raises Refused."""
    try:
        with tarfile.open(fileobj=Bounded(file), mode="r:") as archive:  # type: ignore[call-overload]
            return documents(archive)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise Refused(str(error)) from None
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError):
        raise Refused("it is no archive of one image") from None
