"""Adds lines to authorized_keys and known_hosts and removes these lines again. The files hold other lines, too. Pure.

Only transport/ssh/hostkeys decides whether a presented key is the right one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fleet.errors import HostFailed
from fleet.node.base.wire import decode, encode
from fleet.transport.ssh.known_hosts import Entry, HostKey, parse

UNENDED = " without newline"


def append(data: bytes | None, lines: Sequence[bytes]) -> tuple[bytes | None, list[str]]:
    """Returns (`data` with `lines` after it, the lines for the record). A last line without newline gets one."""
    if not lines:
        return data, []
    newline = b"\n" if data and not data.endswith(b"\n") else b""
    return (data or b"") + newline + b"".join(line + b"\n" for line in lines), [decode(line) for line in lines]


def found(data: bytes | None, name: str) -> list[str]:
    """Returns notes for the record about a file before the changes: that it was empty, or its last line had no
    newline."""
    return [name] * (data == b"") + [name + UNENDED] * bool(data and not data.endswith(b"\n"))


def remove(data: bytes, lines: Iterable[str]) -> bytes:
    """Returns `data` without these lines. Of equal lines, the last one is removed, because the earlier ones are not
    fleet's."""
    unwanted = Counter(map(encode, lines))
    kept = []
    for line in reversed(split(data)):
        bare = line.rstrip(b"\n")
        if unwanted[bare]:
            unwanted[bare] -= 1
        else:
            kept.append(line)
    return b"".join(reversed(kept))


def split(data: bytes) -> list[bytes]:
    """Returns the lines with their "\\n". bytes.splitlines() would also split at a lone "\\r"."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


# also hardware-backed keys (sk-...@openssh.com), but no certificates
_TYPE = re.compile(rb"^(ssh|ecdsa|sk)-[A-Za-z0-9@._-]+$")
_BLOB = re.compile(rb"^[A-Za-z0-9+/]{20,}={0,3}$")


@dataclass(frozen=True)
class PublicKey:
    """Holds a public key. Its type and base64 blob identify it, without the comment."""

    type: bytes
    blob: bytes
    comment: bytes = b""

    @property
    def line(self) -> bytes:
        return b" ".join(part for part in (self.type, self.blob, self.comment) if part)

    @property
    def id(self) -> str:
        """Returns "TYPE BLOB", as in the record."""
        return f"{self.type.decode()} {self.blob.decode()}"


def parse_public_key(line: bytes, comment: bytes = b"", host: str | None = None) -> PublicKey:
    """Parses a line of a .pub file or of `ssh-keygen -y`. Raises HostFailed for other text. The line goes to other
    hosts' authorized_keys, and nodes are not trusted, so its comment is reduced to plain ASCII."""
    parts = line.split(None, 2)
    if len(parts) < 2 or not _TYPE.match(parts[0]) or not _BLOB.match(parts[1]):
        raise HostFailed("its public key is not one", host=host, hint="look at ~/.ssh/id_*.pub there")
    text = parts[2].strip() if len(parts) > 2 else comment
    return PublicKey(parts[0], parts[1], re.sub(rb"[^ -~]", b"?", text)[:200])


def blobs(data: bytes | None) -> set[bytes]:
    """Returns the base64 blobs of all keys in an authorized_keys file, including keys with options before them."""
    found: set[bytes] = set()
    for line in (data or b"").split(b"\n"):
        if not line.lstrip().startswith(b"#"):
            found.update(token for token in line.split() if token.startswith(b"AAAA"))
    return found


def add_keys(data: bytes | None, keys: Iterable[PublicKey]) -> tuple[bytes | None, list[str]]:
    """Returns (the file with every key, the added lines). A key that the file has, with any options, is not added."""
    present = blobs(data)
    missing = []
    for key in keys:
        if key.blob not in present:
            present.add(key.blob)
            missing.append(key.line)
    return append(data, missing)


def lines_with_keys(data: bytes | None, keys: Iterable[PublicKey]) -> list[str]:
    """Returns the lines of an authorized_keys file that have one of these keys."""
    wanted = {key.blob for key in keys}
    return [decode(line.rstrip(b"\n")) for line in split(data or b"") if blobs(line) & wanted]


def lines_with_hosts(data: bytes | None, wanted: Iterable[tuple[Sequence[str], HostKey]]) -> list[str]:
    """Returns the lines of a known_hosts file that have one of these keys."""
    keys = {key for _, key in wanted}
    lines = split(data or b"")
    return [decode(line.rstrip(b"\n")) for line in lines if any(entry.key in keys for entry in parse(line, ""))]


def knows_hosts(data: bytes | None) -> bool:
    """Returns True if a known_hosts file has hosts. A key next to it may give its user access to them."""
    return any(True for _ in parse(data or b"", ""))


def plain_keys(data: bytes | None) -> Iterator[tuple[str, HostKey]]:
    """Yields (name, key) of every entry that is neither hashed nor marked."""
    for entry in parse(data or b"", ""):
        if not entry.marker:
            yield from ((name, entry.key) for name in entry.names if not name.startswith("|"))


def add_hosts(data: bytes | None, wanted: Iterable[tuple[Sequence[str], HostKey]]) -> tuple[bytes | None, list[str]]:
    """Returns (the file with each key under each of its names, the added lines)."""
    plain: set[tuple[str, HostKey]] = set()
    special: dict[HostKey, list[Entry]] = {}  # entries with hashed names or patterns: covers() has to compare each name
    for entry in parse(data or b"", ""):
        if not entry.marker:
            if entry.special:
                special.setdefault(entry.key, []).append(entry)
            else:
                plain.update((name, entry.key) for name in entry.names)
    lines = []
    for names, key in wanted:
        missing = [
            name
            for name in dict.fromkeys(names)
            if (name, key) not in plain and not any(e.covers(name) for e in special.get(key, ()))
        ]
        if missing:
            plain.update((name, key) for name in missing)
            lines.append(f"{','.join(missing)} {key.text}".encode())
    return append(data, lines)


def forget_hosts(data: bytes | None, names: Iterable[str], keep: HostKey | None = None) -> bytes | None:
    """Returns the file without other keys than `keep` for these names. A line with other names, too, keeps the other
    names. Patterns and marked lines are the user's policy and stay."""
    if data is None:
        return None
    gone = {name.lower() for name in names}
    lines = split(data)
    for index, line in enumerate(lines):
        for entry in parse(line, ""):
            if entry.marker or entry.key == keep:
                continue
            if entry.names[0].startswith("|"):
                if any(entry.covers(name) for name in gone):
                    lines[index] = b""
                continue
            first = line.lstrip(b" \t").replace(b"\t", b" ").partition(b" ")[0]
            left = [name for name in first.split(b",") if name.decode("latin-1").lower() not in gone]
            if not left:
                lines[index] = b""
            elif len(left) < len(entry.names):
                lines[index] = line.replace(first, b",".join(left), 1)
    return b"".join(lines)
