"""Host keys: known_hosts as OpenSSH writes it, and the one decision whether a presented key is the right one."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from fleet.errors import ConnectError, Reason
from fleet.model import Host
from fleet.transport.ssh_endpoint import Endpoint

# What fleet asks for, best first; ssh-rsa with SHA-1 is not among them.
ALGORITHMS = {
    "ssh-ed25519": ("ssh-ed25519",),
    "ecdsa-sha2-nistp256": ("ecdsa-sha2-nistp256",),
    "ecdsa-sha2-nistp384": ("ecdsa-sha2-nistp384",),
    "ecdsa-sha2-nistp521": ("ecdsa-sha2-nistp521",),
    "ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256"),
}


@dataclass(frozen=True)
class HostKey:
    """A public host key: `type` as in known_hosts ("ssh-ed25519"), `blob` its wire form."""

    type: str
    blob: bytes

    @cached_property
    def fingerprint(self) -> str:
        """"SHA256:..." as ssh-keygen -l shows it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")

    @property
    def text(self) -> str:
        """"ssh-ed25519 AAAA...", the part of a known_hosts line behind the name."""
        return f"{self.type} {base64.b64encode(self.blob).decode()}"

    def __str__(self) -> str:
        return f"{self.fingerprint} ({self.type.removeprefix('ssh-').removeprefix('ecdsa-sha2-')})"


@dataclass(frozen=True)
class _Entry:
    names: tuple[str, ...]
    key: HostKey
    revoked: bool
    where: str

    def covers(self, name: str) -> bool:
        if self.names[0].startswith("|1|"):
            return _hashed_name(self.names[0], name)
        plain = [n.replace("[", "[[]") for n in self.names]
        if any(n.startswith("!") and fnmatchcase(name, n[1:]) for n in plain):
            return False
        return any(fnmatchcase(name, n) for n in plain)


def _hashed_name(hashed: str, name: str) -> bool:
    try:
        _, _, salt, digest = hashed.split("|")
        return hmac.digest(base64.b64decode(salt), name.encode(), "sha1") == base64.b64decode(digest)
    except (ValueError, binascii.Error):
        return False


def parse(text: str, source: str) -> list[_Entry]:
    """Entries of a known_hosts file. Lines that are not one are skipped, as ssh does; so are @cert-authority."""
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) < 3 or marker not in ("", "@revoked"):
            continue
        try:
            key = HostKey(words[1], base64.b64decode(words[2], validate=True))
        except (ValueError, binascii.Error):
            continue
        names = (words[0],) if words[0].startswith("|1|") else tuple(words[0].lower().split(","))
        entries.append(_Entry(names, key, marker == "@revoked", f"{source}:{number}"))
    return entries


class KnownHosts:
    """known_hosts files, read again only when they changed: setup-ssh enrols keys while it is connected."""

    def __init__(self) -> None:
        self._files: dict[Path, tuple[tuple[int, ...], dict[str, list[_Entry]], list[_Entry]]] = {}
        self._lock = threading.Lock()

    def _load(self, file: Path) -> tuple[dict[str, list[_Entry]], list[_Entry]]:
        """(entries by plain name, entries that need a comparison: hashed, wildcards, revoked)."""
        try:
            stat = file.stat()
            stamp = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
            with self._lock:
                if file not in self._files or self._files[file][0] != stamp:
                    plain: dict[str, list[_Entry]] = {}
                    special: list[_Entry] = []
                    for entry in parse(file.read_text("utf-8", "replace"), str(file)):
                        if entry.revoked or any(c in ",".join(entry.names) for c in "|*?!"):
                            special.append(entry)
                        else:
                            for name in entry.names:
                                plain.setdefault(name, []).append(entry)
                    self._files[file] = (stamp, plain, special)
                return self._files[file][1:]
        except (FileNotFoundError, NotADirectoryError):
            return {}, []
        except OSError as error:
            raise ConnectError(f"cannot read it: {error.strerror}", where=str(file), kind="config") from error

    def lookup(self, name: str, files: Iterable[Path]) -> tuple[list[_Entry], list[_Entry]]:
        """(entries that name this host, revoked entries that do)."""
        known: list[_Entry] = []
        revoked: list[_Entry] = []
        for file in files:
            plain, special = self._load(file)
            known += plain.get(name, [])
            for entry in special:
                if entry.covers(name):
                    (revoked if entry.revoked else known).append(entry)
        return known, revoked


AcceptUnknown = Callable[[Host, HostKey], bool]


class HostKeyCheck:
    """Decides about the key one host presents. `preferred`: key types to ask for, those on file first, so that
    a host with several keys presents the one that is known."""

    def __init__(
        self, host: Host, endpoint: Endpoint, known: KnownHosts, accept_unknown: AcceptUnknown | None = None
    ) -> None:
        self._host, self._endpoint, self._accept_unknown = host, endpoint, accept_unknown
        name = endpoint.known_name
        self._known, self._revoked = known.lookup(name, endpoint.known_hosts_files)
        bare = (endpoint.host_key_alias or endpoint.address).lower()
        # as OpenSSH: a key on file without the port speaks for the host, its absence or difference says nothing
        self._bare = known.lookup(bare, endpoint.known_hosts_files)[0] if bare != name and not self._known else []
        on_file = {e.key.type for e in (self._known or self._bare)}
        self.preferred = tuple(sorted(ALGORITHMS, key=lambda kind: kind not in on_file))
        self.presented: HostKey | None = None

    @property
    def pinned(self) -> str | None:
        return self._host.host_key

    def check(self, key: HostKey) -> None:
        """Return when it is the right key. ConnectError: host-key (both fingerprints), unknown-host-key."""
        self.presented = key
        replace = Reason("if the change is expected: fleet setup-ssh --replace-key {host}", host=self._host.name)
        if any(e.key.blob == key.blob for e in self._revoked):
            raise self._refuse(Reason("it presented {key}, which is marked @revoked ({where})", key=key,
                                       where=self._revoked[0].where),
                               "this key must not be trusted any more; find out who answers at that address")
        pin = self.pinned
        if pin is not None and pin.rstrip("=") != key.fingerprint:
            raise self._refuse(
                Reason("the inventory expects host key {pin}, it presented {key}", pin=pin, key=key),
                Reason("if the change is expected: correct host_key in the inventory, then fleet setup-ssh "
                        "--replace-key {host}", host=self._host.name))
        if any(e.key.blob == key.blob for e in (*self._known, *self._bare)):
            return
        if self._known and (pin is None or any(e.key.type == key.type for e in self._known)):
            best = min(self._known, key=lambda e: e.key.type != key.type)
            raise self._refuse(Reason("host key changed: expected {known} ({where}), it presented {key}", key=key,
                                       known=best.key, where=best.where), replace)
        if pin is not None or (self._accept_unknown and self._accept_unknown(self._host, key)):
            return
        raise ConnectError(
            Reason("unknown host key: it presented {key}, and nothing is on file for {name}", key=key,
                    name=self._endpoint.known_name),
            kind="unknown-host-key",
            hint="enrol it: fleet setup-ssh (or set host_key in the inventory)",
        )

    def _refuse(self, message: str, hint: str) -> ConnectError:
        return ConnectError(message, kind="host-key", hint=hint)
