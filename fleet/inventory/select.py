"""-w and -x: which hosts of an inventory, and which of their devices, a command works with.

An expression is node sets joined by ',' (and), '!' (without), '&' (only also in) and '^' (in one of both), read
from left to right; '@group', '@all' and patterns like 'gpu*' stand for hosts. As DeepSpeed writes it, '@' between
hosts joins too and ':0,2' behind a host picks devices: 'gpu1@gpu2:0,2'.

How the two '@' are told apart: one that starts an operand (at the very start, or behind , ! & ^ @) names a group,
one behind an operand joins. So 'gpu1@gpu2' is two hosts, 'gpu1,@a100' and 'gpu1@@a100' a host and a group.
How ':' is: a host of exactly that name or address (an IPv6 address) wins, else the number behind the last ':' is a
device. An address stands for the host that has it, as `address` or `data_address`; a name wins over it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fleet.errors import InventoryError, UsageError
from fleet.inventory.fields import FieldError, parse_field, shown
from fleet.inventory.groups import Groups
from fleet.inventory.nodeset import algebra, scan
from fleet.inventory.slips import is_like_a_port
from fleet.inventory.slips import selection as slip
from fleet.model import Host, Inventory

# host -> the devices that an expression picks of it, None where it means the whole host
_Choice = Mapping[str, frozenset[int] | None]


def select(inventory: Inventory, hosts: str | None, exclude: str | None) -> Inventory:
    """The inventory narrowed to -w's hosts without -x's, in its own order; None means no such option.

    Picked devices become Host.devices, and slots their number. Groups keep the members that are left, and
    `unselected` the other hosts. InventoryError: an unknown host, group or device, an expression that is not
    understood, nothing left.
    """
    kept = list(inventory.hosts)
    for option, text in (("-w", hosts), ("-x", exclude)):
        if text is not None:
            choice = _choose(inventory, text, option)
            kept = [left for host in kept for left in _narrowed(host, choice, keep=option == "-w")]
    if not kept:
        said = " ".join(f"{option} {shown(text)}" for option, text in (("-w", hosts), ("-x", exclude)) if text)
        raise InventoryError(f"{said} leaves no host", where=inventory.source)
    names = {host.name for host in kept}
    groups = {group: tuple(m for m in members if m in names) for group, members in inventory.groups.items()}
    out = tuple(host for host in inventory.hosts if host.name not in names)
    return replace(inventory, hosts=tuple(kept), groups=groups, unselected=(*inventory.unselected, *out))


def host_named(inventory: Inventory, option: str, word: str) -> Host:
    """The host that a name or an address stands for; UsageError where none does, or several."""
    try:
        return inventory.host(Groups({}, inventory.hosts).host(word))
    except FieldError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None


def _narrowed(host: Host, choice: _Choice, *, keep: bool) -> list[Host]:
    """The host, with those devices that are kept or dropped by the choice; none where nothing is left of it."""
    if host.name not in choice:
        return [] if keep else [host]
    devices = choice[host.name]
    if devices is None:
        return [host] if keep else []
    chosen = tuple(sorted(devices if keep else set(_devices_of(host) or ()) - devices))
    return [replace(host, devices=chosen, slots=len(chosen))] if chosen else []


def _devices_of(host: Host) -> tuple[int, ...] | None:
    """The host's devices, None when it does not say how many it has."""
    if host.devices is None and host.slots is not None:
        return tuple(range(host.slots))
    return host.devices


def _choose(inventory: Inventory, text: str, option: str) -> _Choice:
    """What an expression stands for, its devices checked against the hosts' own."""
    groups = Groups({group: list(members) for group, members in inventory.groups.items()}, inventory.hosts)
    hosts = {host.name: host for host in inventory.hosts}
    parts: list[tuple[str, list[str]]] = []
    picked: dict[str, frozenset[int]] = {}
    whole: set[str] = set()
    try:
        for term in scan(text, groups):
            names = groups.operand(term.operand)
            parts.append((term.operator, names))
            if term.devices is None:
                whole |= set(names if term.operator == "," else ())
                continue
            if term.operator != ",":
                raise FieldError(f"devices cannot stand behind '{term.operator}'", "leave devices out with -x gpu1:0,2")
            # "worker-0:1,1" is [1], as DeepSpeed reads it
            devices = frozenset(one for part in term.devices.split(",") for one in parse_field("devices", part))
            for name in names:
                _check_devices(hosts[name], devices, option)
                picked[name] = picked.get(name, frozenset()) | devices
    except FieldError as error:
        raise InventoryError(
            f"{option} {shown(text)}: {error.message}",
            hint=slip(option, text, groups) or error.hint,
            where=inventory.source,
        ) from None
    # a host named with and without devices is meant as a whole
    return {name: None if name in whole else picked.get(name) for name in map(str, algebra(parts))}


def _check_devices(host: Host, devices: Iterable[int], option: str) -> None:
    available = _devices_of(host)
    ports = [device for device in devices if is_like_a_port(device) and device not in (available or ())]
    if ports:
        raise FieldError(
            f"behind ':' stand devices, and {ports[0]} looks like a port",
            f"a port stands in the inventory: {host.name} port={ports[0]}",
        )
    if available is None:
        if option == "-x":
            raise FieldError(
                f"host {host.name} does not say how many devices it has",
                "give it slots, so that the rest of them is known",
            )
        return
    for device in devices:
        if device not in available:
            raise FieldError(
                f"host {host.name} has no device {device}",
                f"it has {','.join(map(str, available))}; slots says how many",
            )
