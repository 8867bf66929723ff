"""Collects the hosts of an inventory file in any format, and makes an Inventory from them.

It reports errors with their lines: duplicates, two names for one machine, groups that contain themselves, and jump
hosts that form a loop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, NoReturn

from fleet.errors import InventoryError
from fleet.inventory.fields import OF_ONE_HOST, FieldError, address, printable, shown
from fleet.inventory.nodeset import MAX_HOSTS, expand
from fleet.inventory.select import Groups, canonical
from fleet.model import Host, Inventory


@dataclass
class Builder:
    """Builds an Inventory. source: the file's name for messages. lines: host name -> its line. groups: name -> (the
    expressions of its members, its line)."""

    source: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    sync: Mapping[str, Any] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    _hosts: list[Host] = field(default_factory=list)
    groups: dict[str, tuple[list[str], int]] = field(default_factory=dict)

    def fail(self, line: int, message: str, *, host: str | None = None, hint: str | None = None) -> NoReturn:
        """Raises an InventoryError with the file and the line."""
        host = None if host is None else printable(host)
        raise InventoryError(message, hint=hint, where=f"{self.source}:{line}", host=host) from None

    @contextmanager
    def at(self, line: int, host: str | None = None, about: str = "") -> Iterator[None]:
        """Raises a FieldError of the block as an InventoryError with the file and the line. about: text that is put
        before its message."""
        try:
            yield
        except FieldError as error:
            self.fail(line, about + error.message, hint=error.hint, host=host)

    def add_hosts(self, nodeset: str, values: Mapping[str, Any], line: int) -> None:
        """Adds the hosts of a node set, all with these parsed field values. A value None clears a default."""
        with self.at(line):
            names = expand(nodeset)
        if len(names) + len(self._hosts) > MAX_HOSTS:
            self.fail(line, f"the file names more than {MAX_HOSTS} hosts")
        for key in OF_ONE_HOST & {k for k, v in values.items() if v is not None} if len(names) > 1 else ():
            self.fail(
                line,
                f"{shown(nodeset)} is {len(names)} hosts, they cannot share one {key}",
                hint="write these hosts one by one",
            )
        for name in names:
            if name in self.lines:
                self.fail(
                    line,
                    f"is here twice, first on line {self.lines[name]}",
                    host=name,
                    hint="a host has one entry; its number of ranks is slots",
                )
            self.lines[name] = line
            self._hosts.append(self._host(name, values, line))

    def build(self) -> Inventory:
        """Returns the Inventory, after the checks that need all hosts."""
        if not self._hosts:
            raise InventoryError("names no hosts", where=self.source, hint="one host on a line: gpu1 slots=8")
        self._check_machines()
        self._check_jumps()
        groups = Groups({name: members for name, (members, _) in self.groups.items()}, self._hosts)
        resolved = {}
        for name, (_, line) in self.groups.items():
            with self.at(line, about=f"group {name}: "):
                resolved[name] = tuple(groups.members(name))
        return Inventory(tuple(self._hosts), resolved, dict(self.env), self.source, self.sync)

    def _host(self, name: str, values: Mapping[str, Any], line: int) -> Host:
        merged = {**self.defaults, **values}
        merged["env"] = {**self.defaults.get("env", {}), **(values.get("env") or {})}
        try:
            merged["address"] = merged.get("address") or address(name)
        except FieldError as error:
            self.fail(line, f"the name is no address: {error.message}", host=name, hint="give it an address")
        if merged.get("devices") is not None:
            if values.get("devices") is not None and values.get("slots") is None:
                merged["slots"] = len(merged["devices"])
            if merged.get("slots") not in (None, len(merged["devices"])):
                self.fail(
                    line,
                    f"{merged['slots']} slots, but {len(merged['devices'])} devices",
                    host=name,
                    hint="slots follow from devices: leave them out",
                )
            merged["slots"] = len(merged["devices"])
        return Host(name=name, **merged)

    def _check_machines(self) -> None:
        """Refuses two hosts with the same address and port, because one machine would get two node ranks."""
        seen: dict[tuple[str, int, str | None], str] = {}
        for host in self._hosts:
            # the same private address through different jump hosts means different machines
            key = (canonical(host.address), host.port or 22, host.proxy_jump)
            if key in seen:
                self.fail(
                    self.lines[host.name],
                    f"has the address and port of host {seen[key]} "
                    f"on line {self.lines[seen[key]]}: {host.address} port {host.port or 22}",
                    host=host.name,
                    hint="one machine is one host; more ranks on it are slots",
                )
            seen[key] = host.name

    def _check_jumps(self) -> None:
        """Refuses jump hosts that form a loop."""
        jumps = {h.name: hops(h) & self.lines.keys() for h in self._hosts}
        try:
            TopologicalSorter(jumps).prepare()
        except CycleError as error:
            start = next(name for name in jumps if name in error.args[1])
            self.fail(
                self.lines[start],
                "its proxy_jump leads back to itself",
                host=start,
                hint="the jump host itself takes proxy_jump: null",
            )


def hops(host: Host) -> set[str]:
    """Returns those jump hosts of a host that may be hosts of the inventory: they have no user and no port."""
    return {hop for hop in (host.proxy_jump or "").split(",") if not re.search(r"[@:\[]", hop)}
