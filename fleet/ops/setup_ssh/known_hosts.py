"""Editing known_hosts: adding and forgetting. Pure; every other line stays as it is.

Whether a presented key is the right one is decided in one place, transport/ssh/hostkeys.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from fleet.ops.setup_ssh.lines import append, split
from fleet.transport.ssh.known_hosts import Entry, HostKey, parse


def known_name(address: str, port: int = 22) -> str:
    """The name under which ssh looks a host up: "gpu01", or "[gpu01]:2222"."""
    return address.lower() if port == 22 else f"[{address.lower()}]:{port}"


def plain_keys(data: bytes | None) -> Iterator[tuple[str, HostKey]]:
    """(name, key) of every entry that is neither hashed nor revoked nor an authority."""
    for entry in parse(data or b"", ""):
        if not entry.marker:
            yield from ((name, entry.key) for name in entry.names if not name.startswith("|"))


def add(data: bytes | None, wanted: Iterable[tuple[Sequence[str], HostKey]]) -> tuple[bytes | None, list[str]]:
    """The file with each key known under each of its names; a line is added for the names that lack it."""
    plain: set[tuple[str, HostKey]] = set()
    special: dict[HostKey, list[Entry]] = {}  # hashed ones and patterns: few have the key that is looked for
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


def forget(data: bytes | None, names: Iterable[str], keep: HostKey | None = None) -> bytes | None:
    """The file without any key but `keep` for these names. A line shared with other names keeps those;
    patterns, authorities and revocations are somebody's policy and stay."""
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
