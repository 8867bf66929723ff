"""Selects hosts of an inventory, and their devices, by -w, -x and groups.

An expression is node sets joined by ',' (and), '!' (without), '&' (only also in) and '^' (in one of both). It is read
from left to right. '@group', '@all' and patterns like 'gpu*' match hosts. As in DeepSpeed, '@' between hosts also
joins, and ':0,2' after a host picks devices: 'gpu1@gpu2:0,2'. A command line also gives a meaning to '-', '^FILE',
'@failed' and '@unfit'.

An '@' that starts an operand (at the very start, or after , ! & ^ @) names a group. An '@' after an operand joins. So
'gpu1@gpu2' is two hosts; 'gpu1,@a100' and 'gpu1@@a100' are a host and a group. If a host has exactly that name or
address, a ':' is a part of it (IPv6). Otherwise the number after the last ':' is a device. An address means the host
with that `address` or `data_address`; a name has priority.

A group is an expression over host names, addresses and other groups of the same inventory. `groups:`, -w and -x share
this resolver for "@name".
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from fleet.errors import InventoryError, UsageError
from fleet.inventory.fields import FieldError, parse_field, shown, suggest
from fleet.inventory.nodeset import algebra, expand, fold, scan
from fleet.inventory.slips import is_like_a_port
from fleet.inventory.slips import selection as slip
from fleet.model import Host, Inventory, grouped

ALL = "all"
MAX_DEPTH = 64
_ZEROS = re.compile(r"(?<![0-9])0+(?=[0-9])")

# host -> the devices that an expression picks, or None for the whole host
_Choice = Mapping[str, frozenset[int] | None]
Given = Callable[[str], Sequence[str] | None]  # operand -> expressions that replace it, or None


def select(
    inventory: Inventory,
    hosts: str | None,
    exclude: str | None,
    option: str = "-w",
    given: Given = lambda operand: None,
) -> Inventory:
    """Returns the inventory with the hosts of -w, less those of -x, in the inventory's order. hosts, exclude: the
    values of -w and -x, or None if the option is not given.

    option: the name of -w in messages. given: returns the expressions that replace an operand, or None for a plain
    operand. Picked devices become Host.devices, and their number becomes Host.slots. Groups keep their selected
    members, and `unselected` has the other hosts. Raises InventoryError for an unknown host, group or device, an
    expression that is not understood, an empty selection.
    """
    kept = list(inventory.hosts)
    given_options = [(name, text) for name, text in ((option, hosts), ("-x", exclude)) if text is not None]
    for name, text in given_options:
        choice = _choose(inventory, text, name, given)
        kept = [left for host in kept for left in _narrowed(host, choice, keep=name != "-x")]
    if not kept and given_options:
        selection = " ".join(f"{name} {shown(text)}" for name, text in given_options)
        raise InventoryError(f"{selection} leaves no host", where=inventory.source)
    names = {host.name for host in kept}
    groups = {group: tuple(m for m in members if m in names) for group, members in inventory.groups.items()}
    out = tuple(host for host in inventory.hosts if host.name not in names)
    return replace(inventory, hosts=tuple(kept), groups=groups, unselected=(*inventory.unselected, *out))


def host_named(inventory: Inventory, option: str, token: str) -> Host:
    """Returns the host that a name or an address means. Raises UsageError if it means no host, or several. option: the
    option's name in the message."""
    try:
        return inventory.host(Groups({}, inventory.hosts).host(token))
    except FieldError as error:
        raise UsageError(f"{option}: {error.message}", hint=error.hint) from None


def _narrowed(host: Host, choice: _Choice, *, keep: bool) -> list[Host]:
    """Returns [the host with the devices that remain], or [] if nothing remains."""
    if host.name not in choice:
        return [] if keep else [host]
    devices = choice[host.name]
    if devices is None:
        return [host] if keep else []
    chosen = tuple(sorted(devices if keep else set(_devices_of(host) or ()) - devices))
    return [replace(host, devices=chosen, slots=len(chosen))] if chosen else []


def _devices_of(host: Host) -> tuple[int, ...] | None:
    """Returns the indexes of the host's devices, or None if their number is not known."""
    if host.devices is None and host.slots is not None:
        return tuple(range(host.slots))
    return host.devices


def _choose(inventory: Inventory, text: str, option: str, given: Given) -> _Choice:
    """Returns the hosts and devices that an expression selects. Raises InventoryError if a host has no such device."""
    groups = Groups({group: list(members) for group, members in inventory.groups.items()}, inventory.hosts, given)
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
                raise FieldError(f"devices cannot come after '{term.operator}'", "leave devices out with -x gpu1:0,2")
            # DeepSpeed reads "worker-0:1,1" as [1]
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
    # a host that is named both with and without devices is selected as a whole
    return {name: None if name in whole else picked.get(name) for name in map(str, algebra(parts))}


def _check_devices(host: Host, devices: Iterable[int], option: str) -> None:
    available = _devices_of(host)
    ports = [device for device in devices if is_like_a_port(device) and device not in (available or ())]
    if ports:
        raise FieldError(
            f"after ':' come devices, and {ports[0]} looks like a port",
            f"a port belongs in the inventory: {host.name} port={ports[0]}",
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


class Groups:
    """Resolves groups and operands. definitions: group -> expressions of its members. hosts: in the inventory's order.
    given: see select().

    "@all" is every host unless a group of that name is defined. `token in groups` is true if the token means a host.
    """

    def __init__(
        self,
        definitions: Mapping[str, Sequence[str]],
        hosts: Sequence[Host],
        given: Given = lambda operand: None,
    ) -> None:
        self._definitions = definitions
        self._hosts, self._given = hosts, given
        self._names = {host.name: [host.name] for host in hosts}
        self._resolved: dict[str, list[str]] = {}

    def __contains__(self, token: object) -> bool:
        # a group or a node set is no host: this is decided without the table of addresses
        if token in self._names or re.match(r"@|.*\[", str(token)):
            return token in self._names
        return token in self._hosts_by_address or canonical(str(token)) in self._hosts_by_address

    @cached_property
    def _hosts_by_address(self) -> dict[str, list[str]]:
        """Returns address -> names of its hosts. A key is ADDRESS, ADDRESS:PORT, or one of these after the inventory's
        USER@. USER@NAME is a key, too."""
        found: dict[str, list[str]] = {}
        for host in self._hosts:
            addresses = {canonical(text) for text in (host.address, host.data_address) if text}
            if is_like_a_port(host.port or 22) and (host.port or host.address != host.name):  # gpu1:22 has devices
                addresses.add(f"{host.address}:{host.port or 22}")
            logins = {f"{host.user}@{address}" for address in (*addresses, host.name)} if host.user else set()
            for operand in (*addresses, *logins):
                found.setdefault(operand, []).append(host.name)
        return found

    def members(self, group: str, above: tuple[str, ...] = ()) -> list[str]:
        """Returns the hosts of a group, in inventory order. above: the groups that contain it. Raises FieldError for a
        group that is unknown, empty, or contains itself."""
        if group in self._resolved:
            return self._resolved[group]
        if group not in self._definitions:
            if group == ALL:
                return list(self._names)
            known = [f"@{name}" for name in self._definitions]
            hint = f"known groups: {', '.join(known[:20])}" if known else "the inventory defines no groups"
            raise FieldError(f"no group {shown('@' + group)}", suggest("@" + group, known) or hint)
        if group in above:
            raise FieldError(f"contains itself: {' -> '.join([*above, group])}")
        if len(above) >= MAX_DEPTH:
            raise FieldError(f"is nested deeper than {MAX_DEPTH} groups")
        found = {name for text in self._definitions[group] for name in self._evaluate(text, (*above, group))}
        if not found:
            raise FieldError("holds no host")
        self._resolved[group] = [name for name in self._names if name in found]
        return self._resolved[group]

    def _evaluate(self, text: str, above: tuple[str, ...]) -> Iterable[str]:
        terms = scan(text, self)
        if any(term.devices for term in terms):
            raise FieldError(f"{shown(text)}: a group holds hosts, not devices", "devices are picked with -w and -x")
        result: Iterable[str] = algebra((term.operator, self.operand(term.operand, above)) for term in terms)
        return result

    def operand(self, text: str, above: tuple[str, ...] = ()) -> list[str]:
        """Returns the hosts of one operand: "@group", a pattern "gpu*", or a node set. Raises FieldError."""
        if text not in self and text[1:] not in self._definitions and (given := self._given(text)) is not None:
            plain = Groups(self._definitions, self._hosts)
            return [name for expression in given for name in plain._evaluate(expression, above)]
        if text.startswith("@"):
            return self.members(text[1:], above)
        if "*" in text or "?" in text:
            found = fnmatch.filter(self._names, text) if "[" not in text else []
            if not found:
                raise FieldError(f"no host matches {shown(text)}")
            return found
        names = [text] if text in self else expand(text)
        # the user may have written gpu[1-4] for gpu[01-04]
        if any(name not in self for name in names):
            alike = grouped((_ZEROS.sub("", name), name) for name in self._names)
            meant = [alike.get(_ZEROS.sub("", name), []) for name in names]
            if all(len(each) == 1 for each in meant):
                wrong = next(name for name in names if name not in self)
                right = fold(each[0] for each in meant)
                raise FieldError(f"no host {shown(wrong)} in the inventory", f"did you mean {shown(right)}?")
        return [self.host(name) for name in names]

    def host(self, token: str) -> str:
        """Returns the name of the host that the token means. Raises FieldError if it means no host, or several."""
        names = self._names.get(token) or self._hosts_by_address.get(token)
        names = names or self._hosts_by_address.get(canonical(token)) or []
        if len(names) > 1:
            raise FieldError(f"{shown(token)} is the address of {len(names)} hosts", f"say which: {', '.join(names)}")
        if not names:
            hint = suggest(token, self._names) or "'fleet hosts' shows those there are"
            hint = f"did you mean '@{token}'?" if token in self._definitions else hint
            raise FieldError(f"no host {shown(token)} in the inventory", hint)
        return names[0]


def canonical(text: str) -> str:
    """Returns the canonical spelling of an address."""
    base, mark, zone = text.partition("%")
    try:
        return str(ipaddress.ip_address(base)) + mark + zone
    except ValueError:
        return text.lower().rstrip(".")
