"""Resolves where SSH connects for a host, and through which gateways. The inventory overrides ~/.ssh/config, which
overrides OpenSSH's defaults. Needs no paramiko."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions, Target
from fleet.transport.ssh.config import SshConfig
from fleet.transport.ssh.settings import UNHEEDED, Query, Settings, expand, merged, one_of, tilde, tokens

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")
MAX_HOPS = 8
# sshd drops unauthenticated connections at random from the 10th on (MaxStartups 10:30:100)
KNOCKS_AT_ONCE = 8
SYSTEM_KNOWN_HOSTS = [Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2")]
# "ssh -W %h:%p BASTION" is what ProxyJump was called before OpenSSH 7.3
_OLD_JUMP = re.compile(r"(?:/usr/bin/)?ssh\s+(?:-q\s+)?(?:-W\s+'?\[?%h\]?:%p'?\s+(\S+)|(\S+)\s+-W\s+'?\[?%h\]?:%p'?)")


@dataclass(frozen=True)
class Endpoint(Target):
    """Describes how to connect to one host.

    proxy_jump: hops in order, as written ("[user@]host[:port]" or an inventory name). identities_only: offer only
    identity_files. explicit_identities: the user named identity_files; they are no defaults. notes: settings of the ssh
    config that fleet does not follow, for hints. certificates: files that CertificateFile names, which need not lie
    next to their keys. agent: the socket of the user's agent. revoked: a file of host keys that must not be trusted.
    proxy_command: the "FILE:LINE" of a ProxyCommand; "" if the line is not known; None without a ProxyCommand.
    by_address: the config has settings for the host's address that it does not have for its name.
    """

    identity_files: tuple[Path, ...]
    proxy_jump: tuple[str, ...]
    known_hosts_files: tuple[Path, ...]
    host_key_alias: str | None = None
    identities_only: bool = False
    explicit_identities: bool = False
    notes: tuple[str, ...] = ()
    certificates: tuple[Path, ...] = ()
    agent: str | None = None
    revoked: Path | None = None
    proxy_command: str | None = None
    by_address: bool = False

    @property
    def known_name(self) -> str:
        """Returns the name under which known_hosts has the host's key."""
        return self.host_key_alias.lower() if self.host_key_alias else known_name(self.address, self.port)


def known_name(address: str, port: int) -> str:
    """Returns the name under which ssh looks a host up in known_hosts: "gpu01", or "[gpu01]:2222"."""
    return address.lower() if port == 22 else f"[{address.lower()}]:{port}"


def resolve(host: Host, config: SshConfig, cancel: Cancel | None = None) -> Endpoint:
    """Returns the endpoint of a host. The ssh config is read for the host's name, then for its address. Fields of the
    host override both. Raises ConnectError(kind="config") for a config that makes no sense."""
    own = host.address if host.address != host.name else None
    query = Query(host.name, own, host.user, host.port)
    found = by_name = config.lookup(query, cancel)
    if own:
        found = merged(found, config.lookup(Query(own, None, host.user, host.port), cancel))

    def put_in(text: str, where: str) -> str:
        try:
            if set("%$") & set(text):
                text = expand(text, tokens(query, found, config.home, config.local_user))
            return tilde(text, config.home)
        except ValueError as error:
            raise ConnectError(f"{text}: {error}", where=where or None, kind="config") from error

    def paths(keyword: str) -> list[Path]:
        return [Path(put_in(text, where)) for text, where in found.get(keyword, []) if text.lower() != "none"]

    named = paths("identityfile")
    if host.identity_file:
        named.insert(0, Path(tilde(host.identity_file, config.home)))
    explicit = bool(host.identity_file or found.get("identityfile"))
    identities = named if explicit else [config.home / ".ssh" / key for key in DEFAULT_KEYS]

    def known(keyword: str, default: list[Path]) -> list[Path]:
        return paths(keyword) if keyword in found else default

    user_files = known("userknownhostsfile", [config.home / ".ssh" / name for name in ("known_hosts", "known_hosts2")])
    files = (*user_files, *known("globalknownhostsfile", SYSTEM_KNOWN_HOSTS))
    only = (one_of(found, "identitiesonly")[0] or "no").lower() in ("yes", "true")
    return Endpoint(
        address=own or (one_of(found, "hostname")[0] or host.name).lower(),
        port=host.port or int(one_of(found, "port")[0] or 22),
        user=host.user or one_of(found, "user")[0] or config.local_user,
        identity_files=tuple(dict.fromkeys(identities)),
        proxy_jump=_jumps(host, found, put_in),
        known_hosts_files=tuple(dict.fromkeys(files)),
        host_key_alias=(one_of(found, "hostkeyalias")[0] or "").lower() or None,
        identities_only=only or bool(host.identity_file),
        explicit_identities=explicit,
        notes=tuple(
            f"{found[key][0][1]}: fleet does not follow {name}" for key, name in UNHEEDED.items() if key in found
        ),
        certificates=tuple(dict.fromkeys(paths("certificatefile"))),
        agent=_agent(found, put_in),
        revoked=next(iter(paths("revokedhostkeys")), None),
        proxy_command=_command(host, found),
        by_address=found != by_name,
    )


def _command(host: Host, found: Settings) -> str | None:
    """Returns the FILE:LINE of the host's ProxyCommand. Returns None if there is no ProxyCommand, or if it does the
    same as a ProxyJump."""
    command, where = one_of(found, "proxycommand")
    if host.proxy_jump is not None or not command or command.lower() == "none" or _OLD_JUMP.fullmatch(command):
        return None
    return where or ""


def _jumps(host: Host, found: Settings, put_in: Callable[[str, str], str]) -> tuple[str, ...]:
    if _command(host, found) is not None:
        return ()
    jump = host.proxy_jump
    old = _OLD_JUMP.fullmatch(one_of(found, "proxycommand")[0] or "")
    if jump is None and old:
        jump = old[1] or old[2]
    elif jump is None:
        jump, where = one_of(found, "proxyjump")
        jump = put_in(jump, where or "") if jump else None
    if jump is None or jump.lower() == "none":
        return ()
    hops = (part.strip().removeprefix("ssh://") for part in jump.split(","))
    # ssh -G writes brackets around every address
    return tuple(re.sub(r"(^|@)\[([0-9.]+)\]", r"\1\2", hop) for hop in hops if hop)


def _agent(found: Settings, put_in: Callable[[str, str], str]) -> str | None:
    """Returns the path of the agent's socket; None without an agent."""
    name, where = one_of(found, "identityagent")
    if name is None or name == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or None
    if name.lower() == "none":
        return None
    if name.startswith("$") and not name.startswith("${"):
        return os.environ.get(name[1:]) or None
    return put_in(name, where or "")


def parse_hop(hop: str) -> Host:
    """Returns the Host for "[user@]host[:port]" ("[::1]:22" for IPv6). Raises ConnectError(kind="gateway") for any
    other text."""
    match = re.fullmatch(r"(?:([^@\s-][^@\s]*)@)?(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_][\w.-]*))(?::(\d+))?", hop)
    if not match or (match[4] and not 0 < int(match[4]) < 65536):
        raise ConnectError(
            f"proxy_jump {hop!r} is not [user@]host[:port]",
            kind="gateway",
            hint="correct proxy_jump in the inventory, or ProxyJump in ~/.ssh/config",
        )
    name = match[2] or match[3]
    return Host(name, name, user=match[1], port=int(match[4]) if match[4] else None)


@contextlib.contextmanager
def named(host: Host) -> Iterator[None]:
    """Adds this host's name to a FleetError."""
    try:
        yield
    except FleetError as error:
        error.host = host.name
        raise


class Routed:
    """Serves as base of transports over SSH. home: the directory that ~ means. hosts: the inventory, where gateways are
    looked up."""

    def __init__(self, options: ConnectOptions | None, home: Path | None, hosts: Iterable[Host]) -> None:
        self.options = options or ConnectOptions()
        self.config = SshConfig(home or Path.home())
        self._hosts = {host.name: host for host in hosts}
        self._gates: dict[Any, threading.BoundedSemaphore] = {}

    def resolve(self, host: Host, cancel: Cancel | None = None) -> Endpoint:
        """Returns the endpoint of a host."""
        return resolve(host, self.config, cancel)

    def route(self, host: Host) -> tuple[Host, ...]:
        """Returns the gateways to a host, outermost first."""
        return self.hops(self.resolve(host))

    def hops(self, endpoint: Endpoint, depth: int = 0) -> tuple[Host, ...]:
        """Returns the gateways to an endpoint, outermost first."""
        hops = tuple(self._hosts.get(hop) or parse_hop(hop) for hop in endpoint.proxy_jump)
        if not hops:
            return ()
        if depth > MAX_HOPS or len(hops) > MAX_HOPS:
            raise ConnectError(
                "its gateways form a loop, or a very long chain",
                kind="gateway",
                hint="look at proxy_jump in the inventory and ProxyJump in ~/.ssh/config",
            )
        first = self.resolve(hops[0])
        if (first.address, first.port) == (endpoint.address, endpoint.port):
            # "Host *" with ProxyJump also matches the gateway
            return ()
        return (*self.hops(first, depth + 1), *hops)

    def gate(self, endpoint: Endpoint, route: tuple[Host, ...]) -> threading.BoundedSemaphore:
        """Returns the semaphore that limits unauthenticated connections to the sshd at the end of this route."""
        key = route_key(route), endpoint.address, endpoint.port
        return self._gates.setdefault(key, threading.BoundedSemaphore(KNOCKS_AT_ONCE))


def route_key(route: tuple[Host, ...]) -> tuple[tuple[str, str, str | None, int | None], ...]:
    """Returns a hashable key of a route; a Host holds a dict and has no hash."""
    return tuple((hop.name, hop.address, hop.user, hop.port) for hop in route)
