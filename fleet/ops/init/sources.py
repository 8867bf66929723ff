"""Reads the hosts of a new inventory from an ssh config, a hostfile, pasted lines or an inventory."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.errors import InventoryError
from fleet.inventory import ansible
from fleet.inventory.build import Builder
from fleet.inventory.fields import NAME, FieldError, is_ipv6, parse_field, shown
from fleet.inventory.find import decode, is_yaml
from fleet.inventory.hostfile import read_lines
from fleet.inventory.select import canonical
from fleet.inventory.yaml_file import parse_yaml
from fleet.model import Host, Inventory
from fleet.ops.setup_ssh import config_block
from fleet.transport.ssh.config import SshConfig
from fleet.transport.ssh.settings import Query, one_of

PASTE = "paste lines: printf 'ssh root@IP -p PORT\\n' | fleet init -"
# keyword of an ssh config -> field of a host
_KEYWORDS = {
    "hostname": "address",
    "user": "user",
    "port": "port",
    "identityfile": "identity_file",
    "proxyjump": "proxy_jump",
}


@dataclass(frozen=True)
class Given:
    """Holds the hosts of a source, in order. notes: messages about parts that do not describe a host and are
    omitted."""

    inventory: Inventory
    notes: tuple[str, ...] = ()


def read(raw: bytes, source: str, old: Inventory | None, home: Path) -> Given:
    """Returns the hosts in a text: an ssh config, an inventory of Ansible's, a YAML inventory, a hostfile or pasted
    lines. old: the inventory to which they are added, or None."""
    text = decode(raw, source)
    if re.search(r"(?mi)^[ \t]*Host[ \t]+[^\s=]+[ \t]*$", text):
        config = SshConfig(home, (Path(source),), edit=lambda _: raw)
        return _named(config, source, fields=True)
    if ansible.is_ansible(text):
        return _of_ansible(text, source)
    if is_yaml(text, source):
        return Given(parse_yaml(text, source))
    return _lines(text, source, old, SshConfig(home).hosts())


def _of_ansible(text: str, source: str) -> Given:
    builder = Builder(source)
    for name, values in ansible.hosts(text, source).items():
        try:
            fields = {key: parse_field(key, value) for key, value in values.items()}
        except FieldError as error:
            raise InventoryError(error.message, hint=error.hint, where=source, host=name) from None
        builder.add_hosts(name, fields, 0)
    return Given(builder.build(), (f"{source} is an inventory of ansible's: its hosts, and how they are reached",))


def of_ssh_config(home: Path) -> Given:
    """Returns the names of hosts in ~/.ssh/config, without those that setup-ssh added. Their settings stay in the
    config, and are not copied."""
    file = home / ".ssh" / "config"
    if not file.exists():
        raise InventoryError("nothing here names hosts: no ./fleet.yaml, no ./hostfile, no ~/.ssh/config", hint=PASTE)
    return _named(SshConfig(home, (file,), edit=config_block.without_any), str(file), fields=False)


def _named(config: SshConfig, source: str, *, fields: bool) -> Given:
    builder = Builder(source)
    for name in config.hosts():
        options = config.lookup(Query(name, None, None, None))
        if not NAME.fullmatch(name) or one_of(options, "user")[0] == "git":
            continue
        values = dict[str, Any]()
        for key, (text, where) in ((key, options[key][0]) for key in _KEYWORDS if fields and key in options):
            try:
                values[_KEYWORDS[key]] = parse_field(_KEYWORDS[key], text)
            except FieldError as error:
                raise InventoryError(error.message, hint=error.hint, where=where, host=name) from None
        builder.add_hosts(name, values, 0)
    if not builder.lines:
        raise InventoryError("names no hosts", where=source, hint=PASTE)
    return Given(builder.build())


def _lines(text: str, source: str, old: Inventory | None, taken: Collection[str]) -> Given:
    """Returns the hosts of a hostfile or of pasted lines. A log-in to a bare address gets a name: node1, node2 and so
    on."""
    builder = Builder(source)
    lines = read_lines(text, builder)
    times = Counter(line.name for line in lines)
    fresh = _fresh({*taken, *times, *(old.names if old else ())})
    notes = list[str]()
    for number, name, values, login, left in lines:
        if left:
            notes.append(f"{source}:{number}: {shown(' '.join(left))} does not describe a host: left out")
        if login and (times[name] > 1 or _is_number(name)):
            known = find(old, name, values.get("port")) if old else None
            values = {"address": name, **values}
            name = known.name if known else next(fresh)
        builder.add_hosts(name, values, number)
    return Given(builder.build(), tuple(notes))


def _fresh(taken: Collection[str]) -> Iterator[str]:
    return (name for name in map("node{}".format, itertools.count(1)) if name not in taken)


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9.]+", text) is not None or is_ipv6(text)


def find(inventory: Inventory, address: str, port: int | None) -> Host | None:
    """Returns the host with this address and port, or None if there is none. port: None means 22."""
    there = (canonical(address), port or 22)
    return next((host for host in inventory.hosts if (canonical(host.address), host.port or 22) == there), None)
