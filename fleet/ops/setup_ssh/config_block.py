"""fleet's block in an ssh config: its text, putting it in, taking it out. Pure.

ssh takes the first value it finds, so the block stands at the top: what the inventory says wins over a
`Host *` further down. It ends with an empty `Host *` section, so that options which stood at the top of the
user's file, outside any section, still apply to every host and are not swallowed by fleet's last one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fleet.errors import HostFailed, UsageError
from fleet.ops.setup_ssh.edits import split


@dataclass(frozen=True)
class ConfigEntry:
    """What plain `ssh NAME` is told. None: left to the rest of the user's configuration."""

    name: str
    hostname: str | None = None
    port: int | None = None
    user: str | None = None
    proxy_jump: str | None = None
    identity_file: str | None = None


_EXPANDED = ("HostName", "IdentityFile")  # by %h and the like


def _value(text: str, *, tokens: bool = False) -> str:
    """A value as ssh_config reads it; `tokens`: the option expands %h and the like, so % is doubled."""
    if re.search(r'["\x00-\x1f\x7f]', text):
        raise UsageError(f"{text!r} cannot be written into an ssh config")
    text = text.replace("%", "%%") if tokens else text
    return f'"{text}"' if re.search(r"[\s#'=\\]", text) or not text else text


def render(block: str, entries: Sequence[ConfigEntry], known_hosts: str, *, source: str = "the inventory") -> bytes:
    """The block's text, markers included. known_hosts: the file that holds the verified host keys.

    UpdateHostKeys and CheckHostIP are off because they write into known_hosts behind everybody's back.
    """
    origin = f"# by 'fleet setup-ssh' for {_comment(source)}; 'fleet setup-ssh --undo' removes it"
    out = [f"# >>> fleet {block} >>>", origin]
    for entry in entries:
        said = {
            "HostName": entry.hostname,
            "Port": entry.port,
            "User": entry.user,
            "ProxyJump": entry.proxy_jump,
            "IdentityFile": entry.identity_file,
        }
        given = {key: str(value) for key, value in said.items() if value is not None}
        out.append(f"Host {entry.name}")
        out += [f"    {key} {_value(value, tokens=key in _EXPANDED)}" for key, value in given.items()]
    for names in _chunks([entry.name for entry in entries], 50):
        out += [
            f"Host {' '.join(names)}",
            f"    UserKnownHostsFile {_value(known_hosts, tokens=True)}",
            "    StrictHostKeyChecking yes",
            "    UpdateHostKeys no",
            "    CheckHostIP no",
            "    IdentitiesOnly yes",
        ]
    out += ["Host *", f"# <<< fleet {block} <<<"]
    return "".join(line + "\n" for line in out).encode()


def _comment(source: str) -> str:
    return re.sub(r"[^ -~]", "?", source)


def _chunks(names: Sequence[str], size: int) -> list[Sequence[str]]:
    """ssh reads a line of at most 1024 bytes on old systems; 50 names stay readable too."""
    return [names[i : i + size] for i in range(0, len(names), size)]


def _find(data: bytes, block: str, where: str) -> tuple[int, int] | None:
    """[first, last + 1) line numbers of the block; HostFailed when a marker lost its partner."""
    lines = [line.strip() for line in split(data)]
    first, last = (f"# {arrows} fleet {block} {arrows}".encode() for arrows in (">>>", "<<<"))
    if first not in lines and last not in lines:
        return None
    starts, ends = [i for i, x in enumerate(lines) if x == first], [i for i, x in enumerate(lines) if x == last]
    if len(starts) != 1 or len(ends) != 1 or starts[0] > ends[0]:
        raise HostFailed(
            f"fleet's block '{block}' is broken: its marker lines do not pair",
            where=f"{where}:{min(starts + ends) + 1}",
            hint="remove the block's lines and run setup-ssh again",
        )
    return starts[0], ends[0] + 1


def put(data: bytes | None, block: str, rendered: bytes, where: str) -> bytes:
    """The config with the block in it: in its old place, else at the top. All else byte for byte as it was."""
    data = data or b""
    found = _find(data, block, where)
    if found is None:
        return rendered + data
    lines = split(data)
    return b"".join([*lines[: found[0]], rendered, *lines[found[1] :]])


def take(data: bytes | None, block: str, where: str) -> bytes | None:
    """The config without the block; the very same bytes when there is none."""
    return narrow(data, block, (), where)


def names(data: bytes | None, block: str, where: str) -> frozenset[str]:
    """The hosts that the block is about."""
    found = _find(data or b"", block, where)
    lines = split(data or b"")[slice(*found)] if found else []
    words = b" ".join(line[5:] for line in lines if line.startswith(b"Host ")).split()
    return frozenset(word.decode("utf-8", "replace") for word in words) - {"*"}


def only(rendered: bytes, wanted: Collection[str]) -> bytes:
    """A block's text without what it says of other hosts than these; nothing where it says nothing else."""
    kept: list[bytes] = []
    keep, any_host = True, False
    for line in split(rendered):
        if line.startswith(b"Host ") and line.split() != [b"Host", b"*"]:
            left = [word for word in line.split()[1:] if word.decode("utf-8", "replace") in wanted]
            line = b" ".join([b"Host", *left]) + b"\n"
            keep = bool(left)
            any_host |= keep
        elif not line.startswith(b" "):
            keep = True
        if keep:
            kept.append(line)
    return b"".join(kept) if any_host else b""


def narrow(data: bytes | None, block: str, wanted: Collection[str], where: str) -> bytes | None:
    """The config with the block that is in it about these hosts only."""
    found = _find(data, block, where) if data is not None else None
    if data is None or found is None:
        return data
    lines = split(data)
    return b"".join([*lines[: found[0]], only(b"".join(lines[slice(*found)]), wanted), *lines[found[1] :]])


_BLOCK = re.compile(
    rb"^[ \t]*# >>> fleet ([^\n]+) >>>[ \t\r]*\n(?:.*\n)*?[ \t]*# <<< fleet \1 <<<[ \t\r]*(?:\n|\Z)", re.MULTILINE
)


def without_any(data: bytes) -> bytes:
    """The config with the blocks of any inventory emptied: what the user wrote, each line where it was."""
    return _BLOCK.sub(lambda block: b"\n" * block[0].count(b"\n"), data)
