"""Converts an inventory to the formats of other tools. Every format is a pure function Inventory -> text.

Names, addresses and users were validated when they were read. Free text (paths, env) is quoted here, or refused if the
format cannot hold it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import yaml

from fleet.codec import plain
from fleet.errors import InventoryError
from fleet.inventory.build import hops
from fleet.inventory.hostfile import quote
from fleet.inventory.nodeset import fold
from fleet.inventory.select import ALL
from fleet.inventory.write import fields_of
from fleet.model import Host, Inventory, Report, Result
from fleet.slurmconf import node_line


def report(inventory: Inventory) -> Report:
    """Returns the report of `fleet hosts --json`: every field of every host, with its node rank."""
    results = tuple(
        Result(host.name, True, data={"node_rank": node_rank, **plain(host)})
        for node_rank, host in enumerate(inventory.hosts)
    )
    data = {
        "source": inventory.source,
        "env": plain(inventory.env),
        "groups": plain(inventory.groups),
    }
    return Report("hosts", results, 0, data)


def _deepspeed(inventory: Inventory) -> str:
    """Returns a DeepSpeed hostfile. DeepSpeed ignores the text after slots=N; fleet reads it."""
    chosen = "@".join(h.name if h.devices is None else f"{h.name}:{_devices(h)}" for h in inventory.hosts)
    _refuse_devices(
        inventory,
        "a DeepSpeed hostfile",
        "DeepSpeed picks them from a hostfile of whole hosts: "
        f"deepspeed --hostfile FILE --include {quote(chosen)} train.py",
    )
    return "".join(f"{_deepspeed_line(host, inventory)}\n" for host in inventory.hosts)


def _devices(host: Host) -> str:
    return ",".join(map(str, host.devices or ()))


def _refuse_devices(inventory: Inventory, form: str, hint: str) -> None:
    """Raises InventoryError if a host's devices are not its first ones: in `form`, slots always mean the first ones."""
    for host in inventory.hosts:
        if host.devices is not None and host.devices != tuple(range(len(host.devices))):
            raise InventoryError(
                f"{form} says how many devices, not which: {_devices(host)} would become "
                f"{','.join(map(str, range(len(host.devices))))}",
                host=host.name,
                where=inventory.source,
                hint=hint,
            )


def _deepspeed_line(host: Host, inventory: Inventory) -> str:
    if host.slots is None:
        raise InventoryError(
            "a DeepSpeed hostfile needs slots",
            host=host.name,
            where=inventory.source,
            hint="write slots=8 after it in a hostfile, 'defaults: {slots: 8}' in YAML",
        )
    values = {**fields_of(host), "devices": _devices(host) or None, "slots": None, "env": None}
    tokens = [host.name, f"slots={host.slots}", *(f"{k}={quote(str(v))}" for k, v in values.items() if v is not None)]
    for name, value in inventory.env_for(host).items():
        if not value.isprintable():
            raise InventoryError(
                f"env: {name} holds a line break or a control character, a hostfile cannot",
                host=host.name,
                where=inventory.source,
            )
        tokens.append(f"env={name}={quote(value)}")
    return " ".join(tokens)


def _mpi(inventory: Inventory) -> str:
    """Returns a hostfile of Open MPI. For a host without slots, mpirun takes one."""
    _refuse_devices(inventory, "an MPI hostfile", "write whole hosts, and have mpirun set CUDA_VISIBLE_DEVICES")
    return "".join(f"{h.name}\n" if h.slots is None else f"{h.name} slots={h.slots}\n" for h in inventory.hosts)


def _pdsh(inventory: Inventory) -> str:
    """Returns hosts for pdsh -w "$(...)", because a WCOLL file cannot hold users. pdsh splits USER@HOST at the first
    '@'."""
    for host in inventory.hosts:
        if "@" in (host.user or ""):
            raise InventoryError(f"pdsh cannot be given the user {host.user}", host=host.name, where=inventory.source)
    return ",".join(f"{h.user}@{h.name}" if h.user else h.name for h in inventory.hosts) + "\n"


def _slurm(inventory: Inventory) -> str:
    """Returns lines of slurm.conf. A slot is a GPU. CPUs and memory are missing: `fleet slurm-conf` queries them."""
    return "".join(
        node_line(h.name, NodeAddr=h.address if h.address != h.name else None, Gres=h.slots and f"gpu:{h.slots}")
        for h in inventory.hosts
    )


def jump_hosts(inventory: Inventory) -> list[Host]:
    """Returns the unselected hosts through which selected hosts are reached, in the file's order."""
    others = {host.name: host for host in inventory.unselected}
    needed: set[str] = set()
    todo = list(inventory.hosts)
    while todo:
        found = {hop for hop in hops(todo.pop()) if hop in others and hop not in needed}
        needed |= found
        todo += [others[hop] for hop in found]
    return [host for host in inventory.unselected if host.name in needed]


def _ssh_config(inventory: Inventory) -> str:
    """Returns an ssh config. It also has the unselected jump hosts that the selected hosts need."""
    hosts = [*inventory.hosts, *jump_hosts(inventory)]
    return "\n".join(_ssh_config_block(host, inventory) for host in hosts)


def _ssh_config_block(host: Host, inventory: Inventory) -> str:
    if '"' in (host.identity_file or ""):
        raise InventoryError(
            "identity_file: an ssh config cannot hold a path with '\"'", host=host.name, where=inventory.source
        )
    options = {
        "HostName": host.address.replace("%", "%%"),
        "User": host.user,
        "Port": host.port,
        "IdentityFile": host.identity_file and '"{}"'.format(host.identity_file.replace("%", "%%")),
        "ProxyJump": host.proxy_jump and host.proxy_jump.replace("%", "%%"),
    }
    return f"Host {host.name}\n" + "".join(
        f"    {key} {value}\n" for key, value in options.items() if value is not None
    )


def _ansible(inventory: Inventory) -> str:
    """Returns a YAML inventory of Ansible, with hosts in order and groups as children."""
    document: dict[str, Any] = {"hosts": {host.name: _ansible_vars(host, inventory) for host in inventory.hosts}}
    if ALL in inventory.groups:
        raise InventoryError("group 'all' is every host in Ansible", where=inventory.source, hint="rename the group")
    if inventory.groups:
        document["children"] = {group: {"hosts": dict.fromkeys(members)} for group, members in inventory.groups.items()}
    return yaml.safe_dump({"all": document}, sort_keys=False, allow_unicode=True, width=1000)


def _ansible_vars(host: Host, inventory: Inventory) -> dict[str, Any]:
    values: dict[str, Any] = {
        "ansible_host": host.address,
        "ansible_user": host.user,
        "ansible_port": host.port,
        "ansible_ssh_private_key_file": host.identity_file,
        "ansible_ssh_common_args": f"-o ProxyJump={_jumps(host, inventory)}" if host.proxy_jump else None,
    }
    if "{{" in (host.identity_file or "") or "{%" in (host.identity_file or ""):
        raise InventoryError(
            "identity_file: Ansible would run '{{' and '{%' as a template", host=host.name, where=inventory.source
        )
    return {key: value for key, value in values.items() if value is not None}


def _jumps(host: Host, inventory: Inventory) -> str:
    """Returns a host's jump hosts, outermost first, for an ssh that does not know the inventory. A jump host with a key
    of its own keeps its name, because only an ssh config can name its key."""
    known = {each.name: each for each in (*inventory.hosts, *inventory.unselected)}

    def spelled(hop: str) -> str:
        at = known.get(hop)
        if at is None or at.identity_file:
            return hop
        address = f"[{at.address}]" if ":" in at.address else at.address
        login = f"{at.user}@{address}" if at.user else address
        return (f"{_jumps(at, inventory)}," if at.proxy_jump else "") + (f"{login}:{at.port}" if at.port else login)

    return ",".join(map(spelled, (host.proxy_jump or "").split(",")))


# each text ends with a newline; a format raises InventoryError for an inventory that it cannot express
FORMATS: dict[str, Callable[[Inventory], str]] = {
    "names": lambda inventory: "".join(f"{name}\n" for name in inventory.names),
    "nodeset": lambda inventory: fold(inventory.names) + "\n",
    "deepspeed": _deepspeed,
    "mpi": _mpi,
    "pdsh": _pdsh,
    "ssh-config": _ssh_config,
    "ansible": _ansible,
    "slurm": _slurm,
    "json": lambda inventory: json.dumps(report(inventory).as_json()) + "\n",
}
