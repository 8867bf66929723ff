"""Lists the transports by name. A new transport takes a module, and a line in TRANSPORTS. Another package adds a
transport by an entry point of the group `fleet.transports`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from fleet.errors import FleetError
from fleet.registry import Registry

if TYPE_CHECKING:
    from fleet.model import Host
    from fleet.transport.base import ConnectOptions, Transport

DEFAULT = "ssh"
TRANSPORTS: Registry[type[Any]] = Registry(
    "transport",
    type,
    {
        "ssh": "fleet.transport.ssh.transport:SshTransport",
        "openssh": "fleet.transport.openssh.transport:OpensshTransport",
        "pdsh": "fleet.transport.pdsh:PdshTransport",
        "srun": "fleet.transport.srun:SrunTransport",
        "local": "fleet.transport.local:LocalTransport",
    },
    group="fleet.transports",
)


def open_transport(name: str, options: ConnectOptions, hosts: Iterable[Host], **more: Any) -> Transport:
    """Returns the transport of that name. hosts: the inventory, where gateways are looked up. more: options that only
    this transport has."""
    kind = TRANSPORTS.get(name)
    try:
        made: Transport = kind(options, hosts=hosts, **more)
    except (Exception, SystemExit) as error:
        if isinstance(error, FleetError) or name in TRANSPORTS.own:
            raise
        raise TRANSPORTS.broken(TRANSPORTS.others[name], error) from error
    return made
