"""Reads known_hosts files, and files of revoked keys, as OpenSSH does."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from fleet.errors import ConnectError, Reason
from fleet.model import grouped
from fleet.node.base.errors import on_os_error
from fleet.transport.base import Once
from fleet.transport.ssh.endpoint import Endpoint

_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
_KRL = b"SSHKRL\n\0"
_MARKERS = ("", "@revoked", "@cert-authority")


@dataclass(frozen=True)
class HostKey:
    """Holds a public host key. type: as in known_hosts ("ssh-ed25519"). blob: its wire form."""

    type: str
    blob: bytes

    @cached_property
    def fingerprint(self) -> str:
        """Returns "SHA256:...", as ssh-keygen -l shows it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    @property
    def text(self) -> str:
        """Returns "ssh-ed25519 AAAA...", the part of a known_hosts line after the name."""
        return f"{self.type} {base64.b64encode(self.blob).decode()}"

    def __str__(self) -> str:
        return f"{self.fingerprint} ({self.type.removeprefix('ssh-').removeprefix('ecdsa-sha2-')})"


@dataclass(frozen=True)
class Entry:
    """Holds one line. names: host names, patterns, or one hashed name. marker: "", "@revoked" or "@cert-authority".
    where: "FILE:LINE"."""

    names: tuple[str, ...]
    key: HostKey
    marker: str
    where: str

    @property
    def special(self) -> bool:
        """Returns whether its names must be compared one by one, because they are patterns or hashed."""
        return bool(self.marker) or any(c in name for name in self.names for c in "|*?!")

    @cached_property
    def _hashed(self) -> tuple[Any, Any, bytes] | None:
        """Returns (SHA-1 of HMAC's inner key, SHA-1 of its outer key, digest) of a hashed name. They are computed once,
        because each host is compared with each hashed name, and hmac.digest() takes three times as long."""
        try:
            _, _, salt, digest = self.names[0].split("|")
            key = base64.b64decode(salt).ljust(64, b"\0")
            return hashlib.sha1(key.translate(_INNER)), hashlib.sha1(key.translate(_OUTER)), base64.b64decode(digest)
        except (ValueError, binascii.Error):
            return None

    def covers(self, name: str) -> bool:
        if self.names[0].startswith("|1|"):
            if self._hashed is None:
                return False
            inner, outer = self._hashed[0].copy(), self._hashed[1].copy()
            inner.update(name.encode())
            outer.update(inner.digest())
            return bool(outer.digest() == self._hashed[2])
        plain = [n.replace("[", "[[]") for n in self.names]
        if any(n.startswith("!") and fnmatchcase(name, n[1:]) for n in plain):
            return False
        return any(fnmatchcase(name, n) for n in plain)


def parse(data: bytes, source: str) -> list[Entry]:
    """Returns the entries of a known_hosts file. Other lines are skipped, as ssh does.

    Only "\\n" ends a line, and only blanks and tabs separate tokens. If Python's other line breaks (U+2028, vertical
    tab, ...) counted, text in a comment could become an entry.
    """
    entries = []
    for number, line in enumerate(data.split(b"\n"), 1):
        fields = re.findall(r"[^ \t]+", line.partition(b"\0")[0].decode("latin-1").rstrip("\r"))
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        key = _key(fields[1:])
        if key is None or marker not in _MARKERS:
            continue
        names = (fields[0],) if fields[0].startswith("|1|") else tuple(fields[0].lower().split(","))
        entries.append(Entry(names, key, marker, f"{source}:{number}"))
    return entries


def _key(fields: list[str]) -> HostKey | None:
    """Returns the key that a line names by its type and its text."""
    try:
        return HostKey(fields[0], base64.b64decode(fields[1], validate=True))
    except (IndexError, ValueError, binascii.Error):
        return None


@dataclass
class OnFile:
    """Holds the entries on file for one host. known: entries with the host's name. bare: entries with its name without
    the port; empty if `known` has entries. revoked, authorities: entries with the marker @revoked or @cert-authority,
    for any port. revoked_keys: the file that RevokedHostKeys of the ssh config names."""

    known: list[Entry] = field(default_factory=list)
    bare: list[Entry] = field(default_factory=list)
    revoked: list[Entry] = field(default_factory=list)
    authorities: list[Entry] = field(default_factory=list)
    revoked_keys: Path | None = None

    def check_revoked(self, key: HostKey) -> None:
        """Raises ConnectError(kind="host-key") for a revoked key."""
        where = next((e.where for e in self.revoked if e.key.blob == key.blob), None)
        if where is not None:
            mark = f"@revoked ({where})"
        elif self.revoked_keys is not None and _is_revoked(self.revoked_keys, key):
            mark = f"revoked by {self.revoked_keys} (RevokedHostKeys)"
        else:
            return
        raise ConnectError(
            Reason("it presented {key}, which is marked {mark}", key=key, mark=mark),
            kind="host-key",
            hint="this key must not be trusted any more; find out who answers at that address",
        )


def _is_revoked(file: Path, key: HostKey) -> bool:
    """Returns whether the file lists the key. The file has a key on each line, or is a KRL (key revocation list), which
    ssh-keygen reads. If it cannot be read, no host is trusted."""
    with on_os_error(
        ConnectError,
        "cannot read the file of revoked host keys",
        where=str(file),
        kind="config",
        hint="RevokedHostKeys in the ssh config names it",
    ):
        data = file.read_bytes()
    if not data.startswith(_KRL):
        lines = (line.decode("latin-1").strip(" \t\r") for line in data.split(b"\n"))
        keys = (_key(re.findall(r"[^ \t]+", line)) for line in lines if not line.startswith("#"))
        return any(one is not None and one.blob == key.blob for one in keys)
    try:
        done = subprocess.run(
            ["ssh-keygen", "-Q", "-f", str(file), "/dev/stdin"],
            input=key.text.encode() + b"\n",
            capture_output=True,
            timeout=30,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConnectError(
            "this list of revoked keys (KRL) takes ssh-keygen to read",
            where=str(file),
            kind="config",
            hint="install it (Debian: apt install openssh-client)",
        ) from error
    if done.returncode not in (0, 1):
        raise ConnectError(
            done.stderr.decode("utf-8", "replace").strip() or "ssh-keygen cannot read it",
            where=str(file),
            kind="config",
        )
    return done.returncode == 1


class KnownHosts:
    """Reads known_hosts files, and reads them again when they changed: setup-ssh adds keys while it is connected."""

    def __init__(self) -> None:
        self._read: Once[tuple[dict[str, list[Entry]], list[Entry]]] = Once()

    def _load(self, file: Path) -> tuple[dict[str, list[Entry]], list[Entry]]:
        """Returns (entries by plain name, entries that need a comparison)."""
        try:
            stat = file.stat()
            stamp = (file, stat.st_ino, stat.st_mtime_ns, stat.st_size)
            return self._read.get(stamp, lambda: _sorted(parse(file.read_bytes(), str(file))))
        except (FileNotFoundError, NotADirectoryError):
            return {}, []
        except OSError as error:
            raise ConnectError(f"cannot read it: {error.strerror}", where=str(file), kind="config") from error

    def of(self, endpoint: Endpoint) -> OnFile:
        """Returns what is on file for the host at that endpoint."""
        name = endpoint.known_name
        bare = (endpoint.host_key_alias or endpoint.address).lower()
        entries = self._lookup(name, endpoint.known_hosts_files)
        known = [e for e in entries if not e.marker]
        others = self._lookup(bare, endpoint.known_hosts_files, marked=bool(known)) if bare != name else []
        both = (*entries, *others)
        return OnFile(
            # As in OpenSSH, an entry without the port vouches for the host if it has the same key. With another key, it
            # means nothing.
            known,
            [e for e in others if not e.marker] if not known else [],
            [e for e in both if e.marker == "@revoked"],
            [e for e in both if e.marker == "@cert-authority"],
            endpoint.revoked,
        )

    def _lookup(self, name: str, files: Iterable[Path], *, marked: bool = False) -> list[Entry]:
        """Returns the entries with this name. marked: skip unmarked entries whose names must be compared, because
        comparing with hashed names is slow."""
        found: list[Entry] = []
        for file in files:
            plain, special = self._load(file)
            found += plain.get(name, [])
            found += (entry for entry in special if (entry.marker or not marked) and entry.covers(name))
        return found


def _sorted(entries: list[Entry]) -> tuple[dict[str, list[Entry]], list[Entry]]:
    plain = grouped((name, entry) for entry in entries if not entry.special for name in entry.names)
    return plain, [entry for entry in entries if entry.special]
