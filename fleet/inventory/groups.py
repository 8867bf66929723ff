"""Groups: expressions over host names, addresses and other groups, resolved against one inventory's hosts only.

The one resolver behind "@name", in `groups:` and in -w/-x. Nothing outside of the inventory is asked.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from fleet.inventory.fields import FieldError, shown, suggest
from fleet.inventory.nodeset import algebra, expand, scan
from fleet.inventory.slips import is_like_a_port
from fleet.model import Host

ALL = "all"
MAX_DEPTH = 64


class Groups:
    """definitions: group -> expressions whose union it is. hosts: every host, in the inventory's order.

    "@all" is every host unless a group of that name is defined. `in` tells whether a word stands for a host.
    """

    def __init__(self, definitions: Mapping[str, Sequence[str]], hosts: Sequence[Host]) -> None:
        self._definitions = definitions
        self._hosts = hosts
        self._names = {host.name: [host.name] for host in hosts}
        self._resolved: dict[str, list[str]] = {}

    def __contains__(self, word: object) -> bool:
        # a group and a node set are none; to know that takes no look at all addresses
        if word in self._names or re.match(r"@|.*\[", str(word)):
            return word in self._names
        return word in self._words or canonical(str(word)) in self._words

    @cached_property
    def _words(self) -> dict[str, list[str]]:
        """Word -> the hosts that have that address, with or without their port; also behind the user that the inventory
        has for them, as names are. Names themselves come first and take no time."""
        found: dict[str, list[str]] = {}
        for host in self._hosts:
            addresses = {canonical(text) for text in (host.address, host.data_address) if text}
            if host.port and is_like_a_port(host.port):
                addresses.add(f"{host.address}:{host.port}")
            logins = {f"{host.user}@{word}" for word in (*addresses, host.name)} if host.user else set()
            for word in (*addresses, *logins):
                found.setdefault(word, []).append(host.name)
        return found

    def members(self, group: str, above: tuple[str, ...] = ()) -> list[str]:
        """The hosts of a group, in inventory order. FieldError: unknown, contains itself, or empty. above: the groups
        that it is asked for by."""
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
        if text.startswith("@"):
            return self.members(text[1:], above)
        if "*" in text or "?" in text:
            found = fnmatch.filter(self._names, text) if "[" not in text else []
            if not found:
                raise FieldError(f"no host matches {shown(text)}")
            return found
        return [self.host(word) for word in ([text] if text in self else expand(text))]

    def host(self, word: str) -> str:
        """The name of the one host that the word stands for."""
        names = self._names.get(word) or self._words.get(word) or self._words.get(canonical(word)) or []
        if len(names) > 1:
            raise FieldError(f"{shown(word)} is the address of {len(names)} hosts", f"say which: {', '.join(names)}")
        if not names:
            hint = suggest(word, self._names) or "fleet hosts shows those there are"
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
