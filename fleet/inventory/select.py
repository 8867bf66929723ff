"""-w, -x and groups: which hosts of an inventory, and which of their devices, a command works with.

An expression is node sets joined by ',' (and), '!' (without), '&' (only also in) and '^' (in one of both), read
from left to right; '@group', '@all' and patterns like 'gpu*' match hosts. As DeepSpeed writes it, '@' between
hosts joins too and ':0,2' after a host picks devices: 'gpu1@gpu2:0,2'. A command line also gives a meaning to '-',
'^FILE' and '@failed'.

How the two '@' are distinguished: one that starts an operand (at the very start, or after , ! & ^ @) names a group,
one after an operand joins. So 'gpu1@gpu2' is two hosts, 'gpu1,@a100' and 'gpu1@@a100' a host and a group.
How ':' is: a host of exactly that name or address (an IPv6 address) wins, else the number after the last ':' is a
device. An address means the host that has it, as `address` or `data_address`; a name wins over it.

Groups are expressions over host names, addresses and other groups, resolved against one inventory's hosts only: the one
resolver for "@name", in `groups:` and in -w/-x. Nothing outside of the inventory is consulted.
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

# host -> the devices that an expression picks of it, None where it means the whole host
_Choice = Mapping[str, frozenset[int] | None]
Given = Callable[[str], Sequence[str] | None]  # operand -> the expressions that it stands for; None: it is a plain one


def select(
    inventory: Inventory,
    hosts: str | None,
    exclude: str | None,
    option: str = "-w",
    given: Given = lambda operand: None,
) -> Inventory:
    """The inventory narrowed to -w's hosts without -x's, in its own order; None means no such option. option: what -w
    is called where these are another one's. given: knows operands that have their hosts from elsewhere.

    Picked devices become Host.devices, and slots their number. Groups keep the members that are left, and
    `unselected` the other hosts. InventoryError: an unknown host, group or device, an expression that is not
    understood, nothing left.
    """
    kept = list(inventory.hosts)
    asked = [(name, text) for name, text in ((option, hosts), ("-x", exclude)) if text is not None]
    for name, text in asked:
        choice = _choose(inventory, text, name, given)
        kept = [left for host in kept for left in _narrowed(host, choice, keep=name != "-x")]
    if not kept and asked:
        selection = " ".join(f"{name} {shown(text)}" for name, text in asked)
        raise InventoryError(f"{selection} leaves no host", where=inventory.source)
    names = {host.name for host in kept}
    groups = {group: tuple(m for m in members if m in names) for group, members in inventory.groups.items()}
    out = tuple(host for host in inventory.hosts if host.name not in names)
    return replace(inventory, hosts=tuple(kept), groups=groups, unselected=(*inventory.unselected, *out))


def host_named(inventory: Inventory, option: str, word: str) -> Host:
    """The host that a name or an address means; UsageError where none does, or several."""
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
    """The host's devices, None when its number is not known."""
    if host.devices is None and host.slots is not None:
        return tuple(range(host.slots))
    return host.devices


def _choose(inventory: Inventory, text: str, option: str, given: Given) -> _Choice:
    """Returns the hosts that an expression selects, its devices checked against the hosts' own."""
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


class Groups:
    """definitions: group -> expressions whose union it is. hosts: every host, in the inventory's order. given: as
    select's.

    "@all" is every host unless a group of that name is defined. `in` is true where a token means a host.
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

    def __contains__(self, word: object) -> bool:
        # a group and a node set are none; to know that takes no look at all addresses
        if word in self._names or re.match(r"@|.*\[", str(word)):
            return word in self._names
        return word in self._words or canonical(str(word)) in self._words

    @cached_property
    def _words(self) -> dict[str, list[str]]:
        """Token -> the hosts that have that address, with or without their port; also after the user that the inventory
        has for them, as names are. Names themselves come first and take no time."""
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
        """The hosts of a group, in inventory order. FieldError: unknown, contains itself, or empty. above: the groups
        through which it is resolved."""
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
        """The hosts of one operand: "@group", a pattern "gpu*", or a node set, all of them in the inventory."""
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
        # gpu[1-4] for gpu[01-04]
        if any(name not in self for name in names):
            alike = grouped((_ZEROS.sub("", name), name) for name in self._names)
            meant = [alike.get(_ZEROS.sub("", name), []) for name in names]
            if all(len(each) == 1 for each in meant):
                wrong = next(name for name in names if name not in self)
                right = fold(each[0] for each in meant)
                raise FieldError(f"no host {shown(wrong)} in the inventory", f"did you mean {shown(right)}?")
        return [self.host(name) for name in names]

    def host(self, word: str) -> str:
        """The name of the one host that the token means."""
        names = self._names.get(word) or self._words.get(word) or self._words.get(canonical(word)) or []
        if len(names) > 1:
            raise FieldError(f"{shown(word)} is the address of {len(names)} hosts", f"say which: {', '.join(names)}")
        if not names:
            hint = suggest(word, self._names) or "'fleet hosts' shows those there are"
            hint = f"did you mean '@{word}'?" if word in self._definitions else hint
            raise FieldError(f"no host {shown(word)} in the inventory", hint)
        return names[0]


def canonical(text: str) -> str:
    """An address as all its spellings have it in common."""
    base, mark, zone = text.partition("%")
    try:
        return str(ipaddress.ip_address(base)) + mark + zone
    except ValueError:
        return text.lower().rstrip(".")
