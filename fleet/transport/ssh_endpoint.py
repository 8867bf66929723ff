"""Where SSH goes for a host: the inventory, over ~/.ssh/config, over OpenSSH's defaults. Needs no paramiko."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import ConnectError
from fleet.model import Host
from fleet.transport.ssh_config import Settings, SshConfig, first_word, words

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
SYSTEM_KNOWN_HOSTS = Path("/etc/ssh/ssh_known_hosts")
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


def resolve(host: Host, config: SshConfig, fleet_key: Path | None = None) -> Endpoint:
    """The endpoint of a host. Its name is looked up in the ssh config, then its address where it has one of its
    own; fields of the host win over both. Raises ConnectError(kind="config") for a config that makes no sense."""
    found, notes = config.lookup(host.name)
    if host.address != host.name:
        more, more_notes = config.lookup(host.address)
        for key, values in more.items():
            found[key] = found.get(key, []) + values
        notes += more_notes
    user = host.user or first_word(found, "user", config.local_user)
    port = host.port or _port(found)
    address = host.address
    if host.address == host.name and "hostname" in found:
        address = first_word(found, "hostname", "").replace("%h", host.name).replace("%%", "%")
    tokens = {"%": "%", "d": str(config.home), "h": address, "n": host.name, "p": str(port), "r": user,
              "u": config.local_user, "L": config.local_host, "i": str(os.getuid())}

    def paths(keyword: str, several: bool) -> list[Path]:
        texts: list[str] = []
        for value, where in found.get(keyword, [])[: None if several else 1]:
            texts += words(value, where)
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
    alias = first_word(found, "hostkeyalias", "")
    return Endpoint(
        address, port, user, tuple(dict.fromkeys(identities)), _jumps(host, found), tuple(dict.fromkeys(known)),
        alias or None, first_word(found, "identitiesonly", "no").lower() == "yes" or bool(host.identity_file),
        bool(configured), tuple(dict.fromkeys(notes)),
    )


def _jumps(host: Host, found: Settings) -> tuple[str, ...]:
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


def _port(found: Settings) -> int:
    if "port" not in found:
        return 22
    value, where = found["port"][0]
    if not value.isdigit() or not 0 < int(value) < 65536:
        raise ConnectError(f"Port {value!r} is not a port", where=where, kind="config")
    return int(value)


def _expand(text: str, tokens: Mapping[str, str]) -> str:
    text = re.sub(r"\$\{(\w+)\}", lambda m: os.environ.get(m[1], ""), text)
    return re.sub(r"%(.)", lambda m: tokens.get(m[1], m[0]), text)
