"""Defines the ssh transport, which uses paramiko. Host keys are always verified, and every wait has a limit.

All hosts of a gateway share one authenticated connection to it. Each host is reached through a direct-tcpip channel of
that connection. Neither MaxStartups nor MaxSessions limits such channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from fleet.errors import ConnectError, FleetError, Interrupted
from fleet.model import Host
from fleet.node.base.errors import on_failure
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.ssh.auth import TriesUsedUp, authenticate
from fleet.transport.ssh.channel import SshSession
from fleet.transport.ssh.dial import Deadline, dial
from fleet.transport.ssh.endpoint import Endpoint, Routed, named, route_key
from fleet.transport.ssh.gates import ClosedEarly, Gateways, of_gateway, pause, refused_by_gateway, unanswered_through
from fleet.transport.ssh.hostkeys import HostKey, HostKeyCheck, KnownHosts
from fleet.transport.ssh.keys import Keyring
from fleet.transport.ssh.link import ChannelRefused, Link
from fleet.transport.ssh.node_channel import NodeChannel


class SshTransport(Routed):
    """Connects to hosts over SSH. home, hosts: as for Routed. password_for: returns a host's password, which is tried
    once, or None if no password is tried."""

    name = "ssh"

    def __init__(
        self,
        options: ConnectOptions | None = None,
        *,
        home: Path | None = None,
        hosts: Iterable[Host] = (),
        password_for: Callable[[Host], str | None] | None = None,
    ) -> None:
        super().__init__(options, home, hosts)
        self.known_hosts = KnownHosts()
        self._password_for = password_for
        self._keyring = Keyring()
        self._gateways: Gateways[Link] = Gateways()

    def resolve(self, host: Host, cancel: Cancel | None = None) -> Endpoint:
        endpoint = super().resolve(host, cancel)
        if endpoint.proxy_command is not None:
            raise ConnectError(
                "fleet runs no ProxyCommand",
                where=endpoint.proxy_command or None,
                host=host.name,
                kind="config",
                hint="--transport openssh does; or use ProxyJump there, or proxy_jump in the inventory",
            )
        return endpoint

    def connect(self, host: Host, cancel: Cancel) -> SshSession:
        """Returns an authenticated session. Raises ConnectError with the reason as `kind`, LimitError, Interrupted."""
        with named(host):
            endpoint = self.resolve(host, cancel)
            route = self.hops(endpoint)
            link = self._connect(host, endpoint, route, cancel)
        return SshSession(
            host, link, self.options.connect_timeout, lambda: self._connect(host, endpoint, route, Cancel())
        )

    def host_key(self, host: Host, cancel: Cancel, key_type: str | None = None) -> HostKey:
        """Returns the key that the server of this host presents in a key exchange. The key is not verified, and no
        login follows. key_type: the only type to request ("ssh-ed25519", "ssh-rsa", ...)."""
        with named(host):
            endpoint = self.resolve(host, cancel)
            types = (key_type,) if key_type else HostKeyCheck(host, endpoint, self.known_hosts).preferred
            route = self.hops(endpoint)
            with self.gate(endpoint, route):
                deadline = Deadline.after(self.options.connect_timeout, cancel)
                link = self._handshake(endpoint, route, None, types, deadline)
                link.abort()
        assert link.server_host_key is not None
        return link.server_host_key

    def close(self) -> None:
        self._gateways.close()
        self._keyring.close()

    def _connect(self, host: Host, endpoint: Endpoint, route: tuple[Host, ...], cancel: Cancel) -> Link:
        check = HostKeyCheck(host, endpoint, self.known_hosts)
        password = self._password_for(host) if self._password_for else None
        with self.gate(endpoint, route):
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
        """Returns a link after its key exchange. With `check`, the host key is verified."""
        where = f"{endpoint.address} port {endpoint.port}"
        retries = 0
        first_refusal: ConnectError | None = None
        while True:
            link = self._open(endpoint, route, check, types, deadline)
            try:
                with on_failure(link.abort):
                    link.handshake(where, deadline)
                return link
            except ClosedEarly:
                retries += 1
                if not pause(retries, deadline):
                    raise
            except ConnectError as error:
                if link.via is not None and error.kind in ("timeout", "banner", "lost"):
                    must_answer(link.via, route[-1].name, deadline)
                # the host may have a key of the pinned type, too: try again without the presented type
                presented = link.server_host_key
                types = tuple(t for t in types if presented is not None and t != presented.type)
                if error.kind == "host-key" and check is not None and check.pin is not None:
                    first_refusal = first_refusal or error
                    if types:
                        continue
                raise first_refusal or error from None

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

        via = self._gateways.get(
            route_key(route),
            gateway.name,
            lambda: self._connect(gateway, self.resolve(gateway), route[:-1], deadline.cancel),
        )
        link = Link(dial_through(via, gateway.name, endpoint.address, endpoint.port, deadline), check, types)
        link.via = via
        return link


def dial_through(gateway: Link, name: str, address: str, port: int, deadline: Deadline) -> NestedSocket:
    """Returns a connection from the gateway to address:port. Raises ConnectError with the cause."""
    try:
        return NestedSocket(gateway, gateway.open("direct-tcpip", deadline, (address, port)))
    except ChannelRefused as error:
        raise refused_by_gateway(error.code, error.text, name, f"{address} port {port}") from error
    except Interrupted:
        raise
    except FleetError as error:
        must_answer(gateway, name, deadline)
        raise unanswered_through(name, f"{address} port {port}", deadline.seconds) from error


def must_answer(gateway: Link, name: str, tried: Deadline) -> None:
    """Raises ConnectError(kind="gateway") if the gateway is lost or hangs, so that the host after it is not blamed.

    A gateway that hangs is aborted, and all connections through it end. So the gateway has as much time to respond as
    the host that was tried. The next host that needs the gateway connects to it again. tried: the deadline of that
    host."""
    if gateway.broken or not gateway.answers(Deadline.after(tried.seconds, tried.cancel)):
        gateway.abort()
        raise ConnectError(
            of_gateway(name, "the connection was lost, or it stopped answering"),
            kind="gateway",
            hint="the gateway hangs or went down, or its sshd was stopped",
        )


class NestedSocket:
    """Gives a direct-tcpip channel the methods of a socket that Link needs."""

    def __init__(self, gateway: Link, channel: NodeChannel) -> None:
        self._gateway, self._channel = gateway, channel
        self.settimeout = channel.settimeout
        self.recv = channel.recv
        self.send = channel.send

    @property
    def _closed(self) -> bool:
        return bool(self._channel.closed)

    def getpeername(self) -> Any:
        return self._channel.getpeername()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        """Wakes the readers, and notifies the gateway without waiting for it."""
        self._channel.in_buffer.close()
        if not self._channel.closed and self._gateway.is_active():
            self._gateway.quietly(self._channel.close)
