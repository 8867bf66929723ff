"""Plans setup-ssh from the inventory, the options and this machine's ssh config. Nothing is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from fleet.model import Host, Inventory
from fleet.ops.plans import Line, PerHost
from fleet.ops.setup_ssh import config_block
from fleet.ops.setup_ssh.config_block import ConfigEntry
from fleet.ops.setup_ssh.record import Record
from fleet.requests.hosts import SetupSsh
from fleet.transport.ssh.config import SshConfig
from fleet.transport.ssh.endpoint import Endpoint, known_name
from fleet.transport.ssh.settings import tilde
from fleet.transport.ssh.transport import SshTransport


@dataclass(frozen=True)
class HostPlan:
    """Describes one host to set up. identity: the head's private key for the host. names: the host's names in the
    nodes' known_hosts. route: its gateways, outermost first. gateway: the host is not selected, and is only a
    gateway."""

    host: Host
    endpoint: Endpoint
    identity: Path
    names: tuple[str, ...]
    route: tuple[Host, ...]
    gateway: bool = False

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def dialled(self) -> str:
        """Returns the host's only name in this machine's known_hosts: the address that fleet connects to."""
        return self.endpoint.known_name

    @property
    def called(self) -> Endpoint:
        """Returns the endpoint that the user's own `ssh NAME` would look up in known_hosts."""
        return replace(self.endpoint, address=self.host.name, host_key_alias=None)


@dataclass(frozen=True)
class SetupPlan:
    """Describes a setup. block: the name of fleet's block in ssh configs. full_inventory: all hosts, for these blocks.
    levels: the hosts to set up; gateways come before the hosts that they lead to. known: hosts whose key is on file."""

    block: str
    full_inventory: Inventory
    home: Path
    request: SetupSsh
    levels: tuple[tuple[HostPlan, ...], ...]
    head_entries: tuple[ConfigEntry, ...]
    node_entries: tuple[ConfigEntry, ...]
    known: frozenset[str]

    @property
    def source(self) -> str:
        return self.full_inventory.source

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Returns the selected hosts, without those that are gateways only, level by level."""
        return tuple(plan.host for plan in self.all if not plan.gateway)

    @property
    def all(self) -> tuple[HostPlan, ...]:
        return tuple(h for level in self.levels for h in level)

    @property
    def identities(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(h.identity for h in self.all))

    @cached_property
    def head_block(self) -> bytes:
        known = str(self.home / ".ssh" / "known_hosts")
        return config_block.render(self.block, self.head_entries, known, source=self.source)

    @property
    def node_block_name(self) -> str:
        # the head may be one of the nodes, so both blocks may be in one file
        return f"{self.block} node"

    @cached_property
    def node_block(self) -> Callable[[str | None], bytes]:
        """Returns a cached function: name of the private key's file -> a node's block."""
        return cache(self._render_node)

    def _render_node(self, key_name: str | None) -> bytes:
        identity = f"~/.ssh/{key_name}" if key_name else None
        entries = [replace(e, identity_file=identity) for e in self.node_entries]
        return config_block.render(self.node_block_name, entries, "~/.ssh/known_hosts", source=self.source)

    def describe(self) -> dict[str, Any]:
        """Returns the plan as JSON."""
        return {
            "head": {
                "keys": {
                    str(p): "reuse" if p.exists() else f"create ({self.request.new_key_type})" for p in self.identities
                },
                "config": f"{self.home / '.ssh' / 'config'}: block '{self.block}'",
            },
            "hosts": {h.name: self._describe(h) for h in self.all},
            "verify": f"{len(self.hosts) * (len(self.hosts) if self.request.mesh else 1)} pairs",
        }

    def lines(self) -> Iterator[Line]:
        description = self.describe()
        yield from (f"this machine: key {path}: {what}" for path, what in description["head"]["keys"].items())
        yield f"this machine: {description['head']['config']}"
        for name, each in description["hosts"].items():
            yield f"{name}: {', via '.join([each['target'], *each['via']])}, host key: {each['host_key']}"
        yield PerHost({name: each["steps"] for name, each in description["hosts"].items()})
        yield f"would verify {description['verify']}"

    def _describe(self, plan: HostPlan) -> dict[str, Any]:
        if plan.host.host_key:
            host_key = f"must be {plan.host.host_key}"
        elif plan.name in self.request.replace_key:
            host_key = "replace what is on file" + (", on trust" if self.request.tofu else ", after confirmation")
        elif plan.name in self.known:
            host_key = "must be the one on file"
        else:
            host_key = "accept on trust" if self.request.tofu else "show and ask"
        steps = [f"authorise {plan.identity}.pub; with the password where the key is not accepted yet"]
        if self.request.mesh and not plan.gateway:
            steps += [
                f"a key of its own (~/.ssh/id_{self.request.new_key_type}), made there if missing",
                f"authorise the keys of all {len(self.hosts)} hosts",
                f"known_hosts: {len(self.hosts)} hosts",
                f"~/.ssh/config: block '{self.node_block_name}'",
            ]
        return {
            "target": str(plan.endpoint),
            "via": [hop.name for hop in plan.route],
            "host_key": host_key,
            "known_as": list(plan.names),
            "steps": steps,
        }


def plan(inventory: Inventory, full_inventory: Inventory, request: SetupSsh, home: Path) -> SetupPlan:
    """Returns the plan for the hosts of `inventory`, a selection of `full_inventory`. Its config blocks have all hosts
    of `full_inventory`.

    It reads the user's ssh config without fleet's blocks, so that earlier blocks have no effect on the plan.
    """
    block = Record.load(home, full_inventory.source).block
    transport = SshTransport(home=home, hosts=full_inventory.hosts)
    transport.config = SshConfig(home, edit=config_block.without_any)
    with ThreadPoolExecutor() as pool:  # to resolve a host, fleet may have to run ssh
        made = pool.map(lambda host: _host_plan(host, transport, request, home), full_inventory.hosts)
        plans = dict(zip(full_inventory.names, made, strict=True))
        found = pool.map(lambda name: transport.resolve(Host(name, name)), full_inventory.names)
        plain = dict(zip(full_inventory.names, found, strict=True))
    selected = dict.fromkeys(inventory.names)
    wanted: dict[str, HostPlan] = {}
    for name in selected:
        for hop in plans[name].route:
            hop_plan = plans.get(hop.name) or _host_plan(hop, transport, request, home)
            wanted.setdefault(hop.name, replace(hop_plan, gateway=hop.name not in selected))
        wanted[name] = plans[name]
    known = frozenset(name for name, plan in wanted.items() if transport.known_hosts.of(plan.endpoint).known)
    depth = max((len(p.route) for p in wanted.values()), default=0)
    in_order = [*selected, *(n for n in wanted if n not in selected)]
    levels = [tuple(wanted[n] for n in in_order if len(wanted[n].route) == d) for d in range(depth + 1)]
    return SetupPlan(
        block=block,
        full_inventory=full_inventory,
        home=home,
        request=request,
        levels=tuple(level for level in levels if level),
        head_entries=tuple(_head_entry(plans[h.name], plain[h.name]) for h in full_inventory.hosts),
        node_entries=tuple(
            ConfigEntry(
                h.name,
                h.data_address or plans[h.name].endpoint.address,
                plans[h.name].endpoint.port,
                plans[h.name].endpoint.user,
            )
            for h in full_inventory.hosts
        ),
        known=known,
    )


def _host_plan(host: Host, transport: SshTransport, request: SetupSsh, home: Path) -> HostPlan:
    endpoint = transport.resolve(host)
    if host.identity_file:
        identity = Path.cwd() / tilde(host.identity_file, home)
    else:
        configured = endpoint.identity_files if endpoint.explicit_identities and request.key_type is None else ()
        identity = next((p for p in configured if p.exists()), home / ".ssh" / f"id_{request.new_key_type}")
    addresses = [endpoint.address, host.name, host.address, *([host.data_address] if host.data_address else [])]
    names = dict.fromkeys([endpoint.known_name, *(known_name(a, endpoint.port) for a in addresses)])
    return HostPlan(host, endpoint, identity, tuple(names), transport.route(host))


def _head_entry(plan: HostPlan, plain: Endpoint) -> ConfigEntry:
    """Returns the settings that plain ssh needs in addition to the user's config, to connect as fleet does."""
    host, full = plan.host, plan.endpoint
    jump = host.proxy_jump
    if jump is None and full.proxy_jump != plain.proxy_jump:
        jump = ",".join(full.proxy_jump) or "none"
    return ConfigEntry(
        host.name,
        full.address if full.address != plain.address else None,
        full.port if host.port is not None or full.port != plain.port else None,
        full.user if host.user is not None or full.user != plain.user else None,
        jump,
        str(plan.identity),
    )
