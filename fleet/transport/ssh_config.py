"""Where SSH goes for a host: the inventory, over ~/.ssh/config, over OpenSSH's defaults. Needs no paramiko.

ssh_config(5) is read here and not by paramiko.SSHConfig: that one knows no Include, looks the head's own name
up in the DNS to expand every IdentityFile, and runs `Match exec`, which fleet never does.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from glob import glob
from pathlib import Path

from fleet.errors import ConnectError
from fleet.model import Host

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
INCLUDE_DEPTH = 16
# "ssh -W %h:%p BASTION" is what ProxyJump was called before OpenSSH 7.3
_OLD_JUMP = re.compile(r"(?:/usr/bin/)?ssh\s+(?:-q\s+)?(?:-W\s+'?\[?%h\]?:%p'?\s+(\S+)|(\S+)\s+-W\s+'?\[?%h\]?:%p'?)")


@dataclass(frozen=True)
class Endpoint:
    """Everything needed to connect to one host.

    proxy_jump: hops in order, as written ("[user@]host[:port]" or an inventory name). identities_only: offer
    nothing but identity_files. explicit_identities: somebody named them, they are not defaults.
    notes: what of the ssh config fleet did not follow, for hints.
    """

    address: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    proxy_jump: tuple[str, ...]
    known_hosts_files: tuple[Path, ...]
    host_key_alias: str | None = None
    identities_only: bool = False
    explicit_identities: bool = False
    notes: tuple[str, ...] = ()

    @property
    def known_name(self) -> str:
        """The name known_hosts holds its key under."""
        name = (self.host_key_alias or self.address).lower()
        return name if self.port == 22 or self.host_key_alias else f"[{name}]:{self.port}"

    def __str__(self) -> str:
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{address}:{self.port}"


# ("host" or "match", its arguments, "FILE:LINE")
_Condition = tuple[str, tuple[str, ...], str]


@dataclass(frozen=True)
class _Line:
    """One setting. conditions: every Host and Match line it stands under."""

    conditions: tuple[_Condition, ...]
    key: str
    value: str
    where: str


class SshConfig:
    """The user's and the system's ssh_config, read once; `home` stands for ~."""

    def __init__(self, home: Path, files: tuple[Path, ...] | None = None) -> None:
        self.home = home
        self.local_user = pwd.getpwuid(os.getuid()).pw_name
        self.local_host = socket.gethostname().split(".")[0]
        self._files = files if files is not None else (home / ".ssh/config", SYSTEM_CONFIG)

    @cached_property
    def _lines(self) -> tuple[_Line, ...]:
        return tuple(line for file in self._files for line in self._read(file, (), 0))

    def _read(self, file: Path, conditions: tuple[_Condition, ...], depth: int) -> Iterator[_Line]:
        try:
            text = file.read_text("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise ConnectError(f"cannot read it: {error.strerror}", where=str(file), kind="config") from error
        outer = conditions
        for number, raw in enumerate(text.splitlines(), 1):
            match = re.match(r"\s*([A-Za-z]\w*)(?:\s*=\s*|\s+)(.+?)\s*$", raw)
            if not match or raw.lstrip().startswith("#"):
                continue
            key, value, where = match[1].lower(), match[2], f"{file}:{number}"
            if key in ("host", "match"):
                conditions = (*outer, (key, tuple(_words(value, where)), where))
            elif key == "include":
                for pattern in _words(value, where):
                    if depth >= INCLUDE_DEPTH:
                        raise ConnectError("Include goes too deep", where=where, kind="config")
                    for found in sorted(glob(str(self._include_path(pattern, file)))):  # noqa: PTH207
                        yield from self._read(Path(found), conditions, depth + 1)
            else:
                yield _Line(conditions, key, value, where)

    def _include_path(self, pattern: str, file: Path) -> Path:
        base = SYSTEM_CONFIG.parent if file.is_relative_to(SYSTEM_CONFIG.parent) else self.home / ".ssh"
        return base / self.expand_home(pattern)

    def expand_home(self, text: str) -> str:
        """~ is `home`, ~user what the system says."""
        if text == "~" or text.startswith("~/"):
            return str(self.home) + text[1:]
        return os.path.expanduser(text)  # noqa: PTH111

    def lookup(self, name: str) -> tuple[dict[str, list[tuple[str, str]]], list[str]]:
        """{lower-case keyword: [(value, "FILE:LINE"), ...]}, the value that counts first; and notes."""
        found: dict[str, list[tuple[str, str]]] = {}
        notes: list[str] = []
        for line in self._lines:
            if all(self._holds(condition, name, found, notes) for condition in line.conditions):
                found.setdefault(line.key, []).append((line.value, line.where))
        return found, notes

    def _holds(
        self, condition: _Condition, name: str, found: Mapping[str, list[tuple[str, str]]], notes: list[str]
    ) -> bool:
        kind, words, where = condition
        if kind == "host":
            return _matches(words, name)
        rest = list(words)
        while rest:
            word = rest.pop(0).lower()
            negated, word = word.startswith("!"), word.lstrip("!")
            if word in ("all", "final", "canonical"):
                result = word == "all"
            else:
                patterns = tuple((rest.pop(0) if rest else "").split(","))
                if word == "host":
                    result = _matches(patterns, _first(found, "hostname", name))
                elif word == "originalhost":
                    result = _matches(patterns, name)
                elif word == "user":
                    result = _matches(patterns, _first(found, "user", self.local_user))
                elif word == "localuser":
                    result = _matches(patterns, self.local_user)
                else:
                    # exec would run a command with a name from the inventory in it
                    note = f"{where}: 'Match {word}' is not followed by fleet"
                    if note not in notes:
                        notes.append(note)
                    return False
            if result == negated:
                return False
        return True


def resolve(host: Host, config: SshConfig, fleet_key: Path | None = None) -> Endpoint:
    """The endpoint of a host. Its name is looked up in the ssh config, then its address where it has one of its
    own; fields of the host win over both. Raises ConnectError(kind="config") for a config that makes no sense."""
    found, notes = config.lookup(host.name)
    if host.address != host.name:
        more, more_notes = config.lookup(host.address)
        for key, values in more.items():
            found[key] = found.get(key, []) + values
        notes += more_notes
    user = host.user or _first(found, "user", config.local_user)
    port = host.port or _port(found)
    address = host.address
    if host.address == host.name and "hostname" in found:
        address = _first(found, "hostname", "").replace("%h", host.name).replace("%%", "%")
    tokens = {"%": "%", "d": str(config.home), "h": address, "n": host.name, "p": str(port), "r": user,
              "u": config.local_user, "L": config.local_host, "i": str(os.getuid())}

    def paths(keyword: str, several: bool) -> list[Path]:
        texts: list[str] = []
        for value, where in found.get(keyword, [])[: None if several else 1]:
            texts += _words(value, where)
        return [Path(_expand(config.expand_home(t), tokens)) for t in texts if t.lower() != "none"]

    configured = paths("identityfile", True)
    if host.identity_file:
        configured.insert(0, Path(config.expand_home(host.identity_file)))
    defaults = [config.home / ".ssh" / key for key in DEFAULT_KEYS]
    identities = configured or ([fleet_key] if fleet_key else []) + defaults
    if configured and fleet_key and not host.identity_file:
        identities = [*configured, fleet_key]
    known = paths("userknownhostsfile", False) or [config.home / ".ssh/known_hosts"]
    known += paths("globalknownhostsfile", False) or [SYSTEM_KNOWN_HOSTS]
    alias = _first(found, "hostkeyalias", "")
    return Endpoint(
        address, port, user, tuple(dict.fromkeys(identities)), _jumps(host, found), tuple(dict.fromkeys(known)),
        alias or None, _first(found, "identitiesonly", "no").lower() == "yes" or bool(host.identity_file),
        bool(configured), tuple(dict.fromkeys(notes)),
    )


def _jumps(host: Host, found: Mapping[str, list[tuple[str, str]]]) -> tuple[str, ...]:
    jump = host.proxy_jump
    if jump is None:
        # of ProxyJump and ProxyCommand the one that was written first counts
        both = [(k, *found[k][0]) for k in ("proxyjump", "proxycommand") if k in found]
        for keyword, value, where in both:
            if value.lower() == "none":
                break
            old = _OLD_JUMP.fullmatch(value)
            if keyword == "proxyjump" or old:
                jump = value if keyword == "proxyjump" else old and (old[1] or old[2])
                break
            raise ConnectError("fleet runs no ProxyCommand", where=where, host=host.name, kind="config",
                               hint="use ProxyJump there, or proxy_jump in the inventory")
    if jump is None or jump.lower() == "none":
        return ()
    return tuple(hop for hop in (part.strip().removeprefix("ssh://") for part in jump.split(",")) if hop)


def parse_hop(hop: str) -> Host:
    """A Host for "[user@]host[:port]" ("[::1]:22" for IPv6). ConnectError(kind="gateway") when it is not that."""
    match = re.fullmatch(
        r"(?:([^@\s-][^@\s]*)@)?(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_][\w.-]*))(?::(\d+))?", hop)
    if not match or (match[4] and not 0 < int(match[4]) < 65536):
        raise ConnectError(f"proxy_jump {hop!r} is not [user@]host[:port]", kind="gateway",
                           hint="correct proxy_jump in the inventory, or ProxyJump in ~/.ssh/config")
    name = match[2] or match[3]
    return Host(name, name, user=match[1], port=int(match[4]) if match[4] else None)


def _port(found: Mapping[str, list[tuple[str, str]]]) -> int:
    if "port" not in found:
        return 22
    value, where = found["port"][0]
    if not value.isdigit() or not 0 < int(value) < 65536:
        raise ConnectError(f"Port {value!r} is not a port", where=where, kind="config")
    return int(value)


def _first(found: Mapping[str, list[tuple[str, str]]], key: str, default: str) -> str:
    if key not in found:
        return default
    value, where = found[key][0]
    return (_words(value, where) or [""])[0]


def _words(value: str, where: str) -> list[str]:
    try:
        return shlex.split(value, comments=True)
    except ValueError as error:
        raise ConnectError(f"{error}: {value}", where=where, kind="config") from error


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    """ssh_config patterns: * and ?, one that begins with ! and matches excludes."""
    name = name.lower()
    plain = [p.lower().replace("[", "[[]") for p in patterns]
    if any(p.startswith("!") and fnmatchcase(name, p[1:]) for p in plain):
        return False
    return any(not p.startswith("!") and fnmatchcase(name, p) for p in plain)


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    text = re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m[1], ""), text)
    return re.sub(r"%(.)", lambda m: tokens.get(m[1], m[0]), text)
