"""Makes the text of fleet's block in an ssh config, and adds and removes the block. Pure.

ssh uses the first value that it finds. So the block is at the top, where the inventory overrides a later `Host *`. The
block ends with an empty `Host *` section, so that options at the top of the user's file still apply to every host.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fleet.errors import HostFailed, UsageError
from fleet.ops.setup_ssh.edits import split


@dataclass(frozen=True)
class ConfigEntry:
    """Holds the settings for plain `ssh NAME`. If a setting is None, the rest of the user's config applies."""

    name: str
    hostname: str | None = None
    port: int | None = None
    user: str | None = None
    proxy_jump: str | None = None
    identity_file: str | None = None


NAMES_A_LINE = 50  # an old ssh reads at most 1024 bytes of a line
_EXPANDED = ("HostName", "IdentityFile")  # ssh expands %h and the like in the values of these


def _value(text: str, *, tokens: bool = False) -> str:
    """Returns a value quoted for ssh_config. tokens: whether ssh expands %h and the like in it, so that % must be
    doubled."""
    if re.search(r'["\x00-\x1f\x7f]', text):
        raise UsageError(f"{text!r} cannot be written into an ssh config")
    text = text.replace("%", "%%") if tokens else text
    return f'"{text}"' if re.search(r"[\s#'=\\]", text) or not text else text


def render(block: str, entries: Sequence[ConfigEntry], known_hosts: str, *, source: str = "the inventory") -> bytes:
    """Returns the block's text with its markers. known_hosts: the file with the verified host keys.

    UpdateHostKeys and CheckHostIP are off because they write into known_hosts without notice.
    """
    origin = re.sub(r"[^ -~]", "?", f"# by 'fleet setup-ssh' for {source}; 'fleet setup-ssh --undo' removes it")
    out = [f"# >>> fleet {block} >>>", origin]
    for entry in entries:
        options = {
            "HostName": entry.hostname,
            "Port": entry.port,
            "User": entry.user,
            "ProxyJump": entry.proxy_jump,
            "IdentityFile": entry.identity_file,
        }
        out.append(f"Host {entry.name}")
        out += [f"    {key} {_value(str(v), tokens=key in _EXPANDED)}" for key, v in options.items() if v is not None]
    for at in range(0, len(entries), NAMES_A_LINE):
        out += [
            f"Host {' '.join(entry.name for entry in entries[at : at + NAMES_A_LINE])}",
            f"    UserKnownHostsFile {_value(known_hosts, tokens=True)}",
            "    StrictHostKeyChecking yes",
            "    UpdateHostKeys no",
            "    CheckHostIP no",
            "    IdentitiesOnly yes",
        ]
    out += ["Host *", f"# <<< fleet {block} <<<"]
    return "".join(line + "\n" for line in out).encode()


def _parts(data: bytes | None, block: str, where: str) -> tuple[bytes, bytes, bytes]:
    """Returns the text before the block, the block, and the text after it; or (b"", b"", data) if there is no block.
    Raises HostFailed if the markers do not pair."""
    lines = split(data or b"")
    marks = (f"# {arrows} fleet {block} {arrows}".encode() for arrows in (">>>", "<<<"))
    first, last = ([i for i, line in enumerate(lines) if line.strip() == mark] for mark in marks)
    if not first and not last:
        return b"", b"", data or b""
    if len(first) != 1 or len(last) != 1 or first[0] > last[0]:
        raise HostFailed(
            f"fleet's block '{block}' is broken: its marker lines do not pair",
            where=f"{where}:{min(first + last) + 1}",
            hint="remove the block's lines and run setup-ssh again",
        )
    begin, end = first[0], last[0] + 1
    return b"".join(lines[:begin]), b"".join(lines[begin:end]), b"".join(lines[end:])


def put(data: bytes | None, block: str, rendered: bytes, where: str) -> bytes:
    """Returns the config with the block in its old place, or else at the top. Changes no other byte."""
    before, _, after = _parts(data, block, where)
    return before + rendered + after


def narrow(data: bytes | None, block: str, wanted: Collection[str], where: str) -> bytes | None:
    """Returns the config with only the wanted hosts in its block. Removes the block if it has none of them. Returns a
    config without a block unchanged."""
    before, own, after = _parts(data, block, where)
    return before + only(own, wanted) + after if own else data


def names(data: bytes | None, block: str, where: str) -> frozenset[str]:
    """Returns the names of the hosts in the block."""
    lines = split(_parts(data, block, where)[1])
    patterns = b" ".join(line[5:] for line in lines if line.startswith(b"Host ")).split()
    return frozenset(pattern.decode("utf-8", "replace") for pattern in patterns) - {"*"}


def only(rendered: bytes, wanted: Collection[str]) -> bytes:
    """Returns a block's text with only the wanted hosts, or b"" if it has none of them."""
    kept: list[bytes] = []
    keep, any_host = True, False
    for line in split(rendered):
        if line.startswith(b"Host ") and line.split() != [b"Host", b"*"]:
            left = [pattern for pattern in line.split()[1:] if pattern.decode("utf-8", "replace") in wanted]
            line = b" ".join([b"Host", *left]) + b"\n"
            keep = bool(left)
            any_host |= keep
        elif not line.startswith(b" "):
            keep = True
        if keep:
            kept.append(line)
    return b"".join(kept) if any_host else b""


def blocks(data: bytes | None) -> frozenset[str]:
    """Returns the names of all blocks, including blocks whose end marker is missing."""
    return frozenset(name.decode("utf-8", "replace") for name in _BEGINS.findall(data or b""))


_BEGINS = re.compile(rb"^[ \t]*# >>> fleet ([^\n]+) >>>[ \t\r]*$", re.MULTILINE)
_BLOCK = re.compile(
    rb"^[ \t]*# >>> fleet ([^\n]+) >>>[ \t\r]*\n(?:.*\n)*?[ \t]*# <<< fleet \1 <<<[ \t\r]*(?:\n|\Z)", re.MULTILINE
)


def without_any(data: bytes) -> bytes:
    """Returns the config with all blocks replaced by empty lines, so that the user's lines keep their numbers."""
    return _BLOCK.sub(lambda block: b"\n" * block[0].count(b"\n"), data)
