"""Writes an inventory as YAML text: a new file with comments, or an old file with additions.

Additions do not change any other byte of an old file, nor its comments. Values come from parse_field(). A remark may be
text of a node, and becomes a comment of one line.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

from fleet.inventory.fields import FIELDS, OF_ONE_HOST, printable
from fleet.inventory.nodeset import expand
from fleet.model import Host, Inventory

Fields = Mapping[str, Any]
REMARK = 200  # characters


def fields_of(host: Host) -> dict[str, Any]:
    """Returns the fields that this host has in an inventory file, as plain YAML values."""
    found = {key: getattr(host, key) for key in FIELDS if getattr(host, key) is not None}
    if found.get("address") == host.name:
        del found["address"]
    if host.devices is not None:
        found["devices"] = list(host.devices)
        del found["slots"]  # slots is the number of devices
    return {**found, **({"env": dict(host.env)} if host.env else {})}


def render(inventory: Inventory, about: Sequence[str], remarks: Mapping[str, str]) -> str:
    """Returns the text of a whole file. about: comment lines at its top. remarks: host -> the comment above it."""
    fields_by_host = {host.name: fields_of(host) for host in inventory.hosts}
    first, *others = fields_by_host.values()
    defaults = {
        key: value
        for key, value in first.items()
        if others and key not in OF_ONE_HOST and all(key in other and other[key] == value for other in others)
    }
    lines = [f"# {line}".rstrip() for line in about]
    lines += [*_section("defaults", defaults), *_section("env", inventory.env), "hosts:"]
    for name, fields in fields_by_host.items():
        lines += [f"  {line}" for line in _comment(remarks.get(name))]
        lines.append("  " + entry(name, {key: value for key, value in fields.items() if key not in defaults}))
    groups = {name: list(members) for name, members in inventory.groups.items()}
    lines += [*_section("groups", groups), *_section("sync", inventory.sync)]
    return "".join(f"{line}\n" for line in lines)


def _section(name: str, values: Fields) -> list[str]:
    return [f"{name}:", *(f"  {line}" for line in _block(values))] if values else []


def _comment(remark: str | None) -> list[str]:
    return [f"# {printable(remark, REMARK)}"] if remark else []


def entry(name: str, fields: Fields) -> str:
    """Returns an entry like "gpu1: {address: 10.0.0.1, slots: 8}"."""
    return f"{_flow(name)}: {_flow(dict(fields))}"


def _flow(value: Any) -> str:
    """Returns a value as YAML on one line."""
    return (
        yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=1 << 20)
        .removesuffix("\n...\n")
        .rstrip("\n")
    )


def _block(values: Fields) -> list[str]:
    return [f"{_flow(key)}: {_flow(value)}" for key, value in values.items()]


class Edit:
    """Adds fields and hosts to an old file's text. text: the result."""

    def __init__(self, text: str) -> None:
        self._old = text
        self._inserts: list[tuple[int, str, int]] = []  # (index, new text, index at which the old text goes on)
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
        self._hosts = next(value for key, value in root.value if key.value == "hosts")
        mapping = isinstance(self._hosts, yaml.MappingNode)
        self._entries = {key.value: (key, value) for key, value in self._hosts.value} if mapping else {}

    @property
    def text(self) -> str:
        out, at = io.StringIO(), 0
        for index, new, end in sorted(self._inserts, key=lambda insert: insert[0]):
            out.write(self._old[at:index] + new)
            at = end
        return out.getvalue() + self._old[at:]

    def add_fields(self, name: str, fields: Fields) -> bool:
        """Adds fields to the entry of this host. Returns False if the host has no entry of its own, or if its entry
        cannot take the fields."""
        if name not in self._entries:
            return False
        _, value = self._entries[name]
        own = {key.value for key, _ in value.value} if isinstance(value, yaml.MappingNode) else set()
        if isinstance(value, yaml.ScalarNode) and value.start_mark.index == value.end_mark.index:
            self._insert(value.start_mark.index, f" {_flow(dict(fields))}")
        elif isinstance(value, yaml.ScalarNode) or self._old[value.start_mark.index] == "&" or own & fields.keys():
            return False  # an alias, a null that clears a default, or a field that is there already
        elif value.flow_style:
            self._into_braces(value, _flow(dict(fields))[1:-1])
        else:
            indent = "\n" + " " * value.start_mark.column
            self._insert(value.start_mark.index, "".join(f"{line}{indent}" for line in _block(fields)))
        return True

    def shared(self, names: Collection[str]) -> list[list[str]]:
        """Returns the hosts of each entry that is for several hosts, at least one of which is in `names`."""
        return [each for each in map(expand, self._entries) if len(each) > 1 and not set(each).isdisjoint(names)]

    def split(self, entries: Mapping[str, Fields]) -> bool:
        """Replaces the entry that these hosts share (gpu[2-3]: {}) by an entry for each host. Returns False if that
        would lose text of the user."""
        shared = [pair for key, pair in self._entries.items() if set(expand(key)) == entries.keys()]
        plain = not self._hosts.flow_style if self._entries else False
        for key, value in shared if plain else ():
            empty = isinstance(value, yaml.ScalarNode) and value.start_mark.index == value.end_mark.index
            if empty or isinstance(value, yaml.MappingNode) and value.flow_style:
                lines = [entry(name, fields) for name, fields in entries.items()]
                self._insert(key.start_mark.index, f"\n{' ' * key.start_mark.column}".join(lines), _end(value))
                return True
        return False

    def add_host(self, name: str, fields: Fields, remark: str | None) -> bool:
        """Adds an entry after the last host. Returns False if the hosts are no mapping."""
        if not self._entries:
            return False
        if self._hosts.flow_style:
            self._into_braces(self._hosts, entry(name, fields))
            return True
        key, last = list(self._entries.values())[-1]
        indent = " " * key.start_mark.column
        end = self._old.find("\n", _end(last))
        new = "".join(f"{indent}{line}\n" for line in [*_comment(remark), entry(name, fields)])
        self._insert(len(self._old) if end < 0 else end + 1, "\n" * (end < 0) + new)
        return True

    def _into_braces(self, node: yaml.MappingNode, text: str) -> None:
        """Inserts text as the last item of a mapping in braces."""
        if node.value:
            self._insert(_end(node.value[-1][1]), f", {text}")
        else:
            self._insert(node.start_mark.index + 1, text)

    def _insert(self, index: int, text: str, end: int | None = None) -> None:
        self._inserts.append((index, text, index if end is None else end))


def _end(node: yaml.Node) -> int:
    """Returns the end of a node's text. A block's own end mark would include the comments below it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(node, yaml.MappingNode) else last)
    return int(node.end_mark.index)
