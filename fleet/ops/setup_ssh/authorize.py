"""authorized_keys: which keys are in it, and adding the missing ones. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fleet.errors import HostFailed
from fleet.ops.setup_ssh.lines import append

# also hardware-backed (sk-...@openssh.com) keys; certificates are not keys one authorises
_TYPE = re.compile(rb"^(ssh|ecdsa|sk)-[A-Za-z0-9@._-]+$")
_BLOB = re.compile(rb"^[A-Za-z0-9+/]{20,}={0,3}$")


@dataclass(frozen=True)
class PublicKey:
    """A public key: type and base64 blob are its identity, the comment is talk."""

    type: bytes
    blob: bytes
    comment: bytes = b""

    @property
    def line(self) -> bytes:
        return b" ".join(part for part in (self.type, self.blob, self.comment) if part)


def parse_public_key(line: bytes, comment: bytes = b"", host: str | None = None) -> PublicKey:
    """A line of a .pub file or of `ssh-keygen -y`. HostFailed when it is none: nodes are not trusted to
    write what they like into the others' authorized_keys, so the comment is reduced to plain ASCII too."""
    parts = line.split(None, 2)
    if len(parts) < 2 or not _TYPE.match(parts[0]) or not _BLOB.match(parts[1]):
        raise HostFailed("its public key is not one", host=host, hint="look at ~/.ssh/id_*.pub there")
    said = parts[2].strip() if len(parts) > 2 else comment
    return PublicKey(parts[0], parts[1], re.sub(rb"[^ -~]", b"?", said)[:200])


def blobs(data: bytes | None) -> set[bytes]:
    """The base64 blobs of all keys in an authorized_keys file, also of those with options before them."""
    found: set[bytes] = set()
    for line in (data or b"").split(b"\n"):
        if not line.lstrip().startswith(b"#"):
            found.update(word for word in line.split() if word.startswith(b"AAAA"))
    return found


def add_keys(data: bytes | None, keys: Iterable[PublicKey]) -> tuple[bytes | None, list[str]]:
    """The file with every key in it. A key that is there, with whatever options and comment, is left alone."""
    present = blobs(data)
    missing = []
    for key in keys:
        if key.blob not in present:
            present.add(key.blob)
            missing.append(key.line)
    return append(data, missing)
