"""Where a host is and over which gateways it is reached; for the transports that speak SSH. Needs no paramiko."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.transport.base import Cancel, ConnectOptions
from fleet.transport.ssh.config import SshConfig
from fleet.transport.ssh.endpoint import Endpoint, parse_hop, resolve

MAX_HOPS = 8


@contextlib.contextmanager
def named(host: Host) -> Iterator[None]:
    """Errors are this host's."""
    try:
        yield
    except FleetError as error:
        error.host = host.name
        raise


class Routed:
    """What transports over SSH share. home: the directory that ~ means. hosts: the inventory, so that proxy_jump may
    name one of it."""

    def __init__(self, options: ConnectOptions | None, home: Path | None, hosts: Iterable[Host]) -> None:
        self.options = options or ConnectOptions()
        self.config = SshConfig(home or Path.home())
        self._hosts = {host.name: host for host in hosts}

    def resolve(self, host: Host, cancel: Cancel | None = None) -> Endpoint:
        """Address, port, user, identities and hops of a host: the inventory over ~/.ssh/config over defaults."""
        return resolve(host, self.config, cancel)

    def route(self, host: Host) -> tuple[Host, ...]:
        """The gateways to a host, outermost first."""
        return self.hops(self.resolve(host))

    def hops(self, endpoint: Endpoint, depth: int = 0) -> tuple[Host, ...]:
        """The gateways to an endpoint, outermost first."""
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
        return (*self.hops(first, depth + 1), *hops)


def route_key(route: tuple[Host, ...]) -> tuple[tuple[str, str, str | None, int | None], ...]:
    """What tells routes apart; a Host itself holds a dict and has no hash."""
    return tuple((hop.name, hop.address, hop.user, hop.port) for hop in route)
