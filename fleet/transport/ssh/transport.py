"""The ssh transport: paramiko, with host keys always verified, one authentication plan and a bound on every wait."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.ssh.auth import TriesUsedUp, authenticate
from fleet.transport.ssh.channel import SshSession
from fleet.transport.ssh.config import SshConfig
from fleet.transport.ssh.dial import Deadline, dial
from fleet.transport.ssh.endpoint import Endpoint, parse_hop, resolve
from fleet.transport.ssh.gateway import Gates, Gateways, dial_through, must_answer
from fleet.transport.ssh.hostkeys import AcceptUnknown, HostKey, HostKeyCheck, KnownHosts
from fleet.transport.ssh.keys import Keyring
from fleet.transport.ssh.link import ClosedEarly, Link

# sshd dropped us before its banner (MaxStartups): nothing was attempted, so trying again harms nobody
EARLY_RETRIES = 4
MAX_HOPS = 8


class SshTransport:
    """Connects to hosts over SSH.

    home: the directory that ~ means. hosts: the inventory, so that proxy_jump may name one of it. password_for:
    gives the one password attempt its password; without it no password is ever tried. accept_unknown: asked
    about a host key of which nothing is on file (never about a changed one); without it that is an error.
    fleet_key: a private key to offer beside the user's own.
    """

    name = "ssh"

    def __init__(
        self,
        options: ConnectOptions | None = None,
        *,
        home: Path | None = None,
        hosts: Iterable[Host] = (),
        password_for: Callable[[Host], str | None] | None = None,
        accept_unknown: AcceptUnknown | None = None,
        fleet_key: Path | None = None,
    ) -> None:
        self.options = options or ConnectOptions()
        self.config = SshConfig(home or Path.home())
        self.known_hosts = KnownHosts()
        self._hosts = {host.name: host for host in hosts}
        self._password_for = password_for
        self._accept_unknown = accept_unknown
        self._fleet_key = fleet_key
        self._keyring = Keyring()
        self._gates = Gates()
        self._gateways = Gateways()

    def resolve(self, host: Host, cancel: Cancel | None = None) -> Endpoint:
        """Address, port, user, identities and hops of a host: the inventory over ~/.ssh/config over defaults."""
        return resolve(host, self.config, self._fleet_key, cancel)

    def connect(self, host: Host, cancel: Cancel) -> SshSession:
        """An authenticated session. ConnectError with its reason as `kind`; LimitError; Interrupted."""
        try:
            endpoint = self.resolve(host, cancel)
            route = self._route(endpoint)
            link = self._connect(host, endpoint, route, cancel)
        except FleetError as error:
            error.host = host.name
            raise
        return SshSession(
            host, link, self.options.connect_timeout, lambda: self._connect(host, endpoint, route, Cancel())
        )

    def host_key(self, host: Host, cancel: Cancel, key_type: str | None = None) -> HostKey:
        """The key that whoever answers at this host presents, unverified; nothing is sent to it but a key
        exchange. `key_type`: ask for that type only ("ssh-ed25519", "ssh-rsa", ...)."""
        try:
            endpoint = self.resolve(host, cancel)
            types = (key_type,) if key_type else HostKeyCheck(host, endpoint, self.known_hosts).preferred
            route = self._route(endpoint)
            with self._gates.of((_route_key(route), endpoint.address, endpoint.port)).knock(cancel):
                deadline = Deadline.after(self.options.connect_timeout, cancel)
                link = self._handshake(endpoint, route, None, types, deadline)
                link.abort()
        except FleetError as error:
            error.host = host.name
            raise
        assert link.server_host_key is not None
        return link.server_host_key

    def close(self) -> None:
        self._gateways.close()
        self._keyring.close()

    def route(self, host: Host) -> tuple[Host, ...]:
        """The gateways to a host, outermost first."""
        return self._route(self.resolve(host))

    def _route(self, endpoint: Endpoint, depth: int = 0) -> tuple[Host, ...]:
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
            # "everything goes through the bastion" also matches the bastion
            return ()
        return (*self._route(first, depth + 1), *hops)

    def _connect(self, host: Host, endpoint: Endpoint, route: tuple[Host, ...], cancel: Cancel) -> Link:
        check = HostKeyCheck(host, endpoint, self.known_hosts, self._accept_unknown)
        password = self._password_for(host) if self._password_for else None
        with self._gates.of((_route_key(route), endpoint.address, endpoint.port)).knock(cancel):
            deadline = Deadline.after(self.options.connect_timeout, cancel)
            link: Link | None = None
            try:
                link = self._handshake(endpoint, route, check, check.preferred, deadline)
                try:
                    authenticate(link, endpoint, self._keyring, password, deadline)
                except TriesUsedUp:
                    link.abort()
                    link = self._handshake(endpoint, route, check, check.preferred, deadline)
                    authenticate(link, endpoint, self._keyring, password, deadline, keys=False)
            except BaseException as error:
                if link is not None:
                    link.abort()
                if isinstance(error, FleetError) and endpoint.notes:
                    error.hint = f"{error.hint or 'see the ssh config'} ({'; '.join(endpoint.notes)})"
                raise
        return link

    def _handshake(
        self,
        endpoint: Endpoint,
        route: tuple[Host, ...],
        check: HostKeyCheck | None,
        types: tuple[str, ...],
        deadline: Deadline,
    ) -> Link:
        """A link up to and including the key exchange, with the host key verified where `check` is given."""
        where = f"{endpoint.address} port {endpoint.port}"
        retries = 0
        first_refusal: ConnectError | None = None
        while True:
            link = self._open(endpoint, route, check, types, deadline)
            try:
                link.handshake(where, deadline)
                return link
            except ClosedEarly:
                link.abort()
                retries += 1
                pause = 0.1 * 2**retries * (0.5 + random.random())
                if retries > EARLY_RETRIES or deadline.left() < pause:
                    raise
                deadline.cancel.wait(pause)
            except ConnectError as error:
                link.abort()
                if link.via is not None and error.kind in ("timeout", "banner", "lost"):
                    must_answer(link.via, route[-1].name)
                # the pinned key may be of another type than the one presented
                presented = link.server_host_key
                types = tuple(
                    t for t in types if presented is not None and t != presented.type and t in link.server_key_types
                )
                if error.kind == "host-key" and check is not None and check.pinned is not None:
                    first_refusal = first_refusal or error
                    if types:
                        continue
                raise first_refusal or error from None
            except BaseException:
                link.abort()
                raise

    def _open(
        self,
        endpoint: Endpoint,
        route: tuple[Host, ...],
        check: HostKeyCheck | None,
        types: tuple[str, ...],
        deadline: Deadline,
    ) -> Link:
        if not route:
            return Link(dial(endpoint.address, endpoint.port, deadline), check, types)
        gateway = route[-1]

        def open_gateway() -> Link:
            return self._connect(gateway, self.resolve(gateway), route[:-1], deadline.cancel)

        via = self._gateways.get(_route_key(route), gateway.name, open_gateway, deadline)
        link = Link(dial_through(via, gateway.name, endpoint.address, endpoint.port, deadline), check, types)
        link.via = via
        return link


def _route_key(route: tuple[Host, ...]) -> tuple[tuple[str, str, str | None, int | None], ...]:
    """What tells routes apart; a Host itself holds a dict and has no hash."""
    return tuple((hop.name, hop.address, hop.user, hop.port) for hop in route)
