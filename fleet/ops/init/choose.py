"""Derives inventory entries, and the inventory's text, from what hosts reported. Contacts no host."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from fleet.errors import InventoryError
from fleet.inventory.fields import FieldError, parse_field
from fleet.inventory.write import Edit, fields_of, render
from fleet.inventory.yaml_file import parse_yaml, read_defaults
from fleet.model import Host, Inventory
from fleet.protocol.messages.facts import Facts, Interpreter
from fleet.rules.units import counted


class Address(NamedTuple):
    """Describes an address at which other hosts might reach a host.

    network: the address's network as CIDR, or "" if it is unknown. speed: Mbit/s of the interface, or 0 if it is
    unknown. leads_here: whether SSH from the head uses that interface."""

    text: str
    network: str
    speed: int
    leads_here: bool


def addresses(facts: Facts, endpoint: str) -> list[Address]:
    """Returns a host's addresses. endpoint: the address that SSH connects to; the result always holds this address."""
    found = list[Address]()
    for interface in facts.get("interfaces") or []:
        for text in interface["addresses"] if interface["state"] != "down" else []:
            own = ipaddress.ip_interface(text)
            if not (own.is_loopback or own.is_link_local):
                here = interface["name"] == facts.get("head_interface")
                found.append(Address(str(own.ip), str(own.network), interface["speed"] or 0, here))
    return found if endpoint in [each.text for each in found] else [*found, Address(endpoint, "", 0, True)]


def unshared(candidates: Mapping[str, Sequence[Address]]) -> dict[str, list[Address]]:
    """Returns the addresses of each host that no other host has, or that SSH uses. This omits, for example, the address
    of Docker's bridge, which is the same on every host."""
    times = Counter(each.text for every in candidates.values() for each in every)
    return {
        name: [each for each in every if times[each.text] == 1 or each.leads_here] for name, every in candidates.items()
    }


def data_addresses(
    candidates: Mapping[str, Sequence[Address]], reached: Mapping[str, Iterable[str]]
) -> dict[str, str | None]:
    """Returns each host's best address, or None if it has none. candidates: host -> addresses. reached: host -> those
    of its addresses at which every host that tried reached it; no other address is returned.

    Prefers, in this order: IPv4, a network that all hosts have, a private address, an interface that SSH does not use,
    a fast interface."""
    shared = Counter(network for own in candidates.values() for network in {each.network for each in own})

    def worth(each: Address) -> tuple[bool, bool, bool, bool, int]:
        # IPv4 addresses rank before IPv6 addresses and before names
        number = _number(each.text)
        private = number is not None and number.is_private
        everywhere = shared[each.network] == len(candidates)
        return (number is not None and number.version == 4, everywhere, private, not each.leads_here, each.speed)

    good = {name: [each for each in own if each.text in reached.get(name, ())] for name, own in candidates.items()}
    return {name: max(own, key=worth).text if own else None for name, own in good.items()}


def shared(
    candidates: Mapping[str, Sequence[Address]], reached: Mapping[str, Iterable[str]], used: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Returns {network: {host: address}} of the networks in which every host was reached. Omits each network with an
    address of `used`: host -> the address that it uses already."""
    found = dict[str, dict[str, str]]()
    for name, own in candidates.items():
        for each in own:
            if each.text in reached.get(name, ()):
                found.setdefault(each.network, {}).setdefault(name, each.text)
    there = {network: at for network, at in found.items() if network and at.keys() == candidates.keys()}
    return {network: at for network, at in there.items() if not any(used.get(name) == at[name] for name in at)}


def _number(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def interpreters(inventory: Inventory, facts: Mapping[str, Facts]) -> dict[str, Interpreter]:
    """Returns each host's interpreter for training. A host is left out if none of its interpreters has torch.

    Prefers, in this order: the inventory's interpreter, a torch that has CUDA if and only if the host has GPUs, a path
    that many hosts have in common."""
    preferred = {name: _preferred(host_facts) for name, host_facts in facts.items()}
    there = {name: [*(facts[name].get("interpreters") or []), preferred[name]] for name in facts}
    with_torch = {name: [one for one in found if one and one["torch"]] for name, found in there.items()}
    times = Counter(one["path"] for found in with_torch.values() for one in found)

    def worth(name: str, one: Interpreter) -> tuple[bool, bool, int]:
        own = one is preferred[name] and inventory.host(name).python is not None
        return own, bool(one["cuda"]) == bool(facts[name].get("gpus")), times[one["path"]]

    # max() takes the first of equals: the probe lists the likely ones first
    return {name: max(found, key=lambda one: worth(name, one)) for name, found in with_torch.items() if found}


def _preferred(facts: Facts) -> Interpreter | None:
    """Returns the requested interpreter: the inventory's, or one like the head's. Returns None if that interpreter
    lacks torch."""
    python, torch = facts.get("python"), facts.get("torch")
    path, version = (python or {}).get("path"), (python or {}).get("version")
    if not torch or not path or not version:
        return None
    return {"path": path, "version": version, "torch": torch.get("version"), "cuda": torch.get("cuda")}


class HostFindings(NamedTuple):
    """Holds the findings about a host.

    fields: inventory fields that the host's entry lacks. problems: (problem, what to do), see problems(). remark: a
    line about the host. gpus: number and models, as text. python: the interpreter for training."""

    fields: dict[str, Any]
    problems: list[tuple[str, str]]
    remark: str = ""
    gpus: str = ""
    python: Interpreter | None = None


def findings_of(
    inventory: Inventory,
    facts: Mapping[str, Facts],
    candidates: Mapping[str, Sequence[Address]],
    reached: Mapping[str, Iterable[str]],
    project: str = "",
) -> dict[str, HostFindings]:
    """Returns the findings about each host. For a host that was not probed, they hold a workdir at most. project: the
    name of the folder with the code; a new workdir is named after it."""
    pythons, best = interpreters(inventory, facts), data_addresses(candidates, reached)
    places = [host_facts.get("disks", {}).get("workdir") for host_facts in facts.values()]
    everywhere = all(place["exists"] for place in places if place)
    name = re.sub("[^A-Za-z0-9._-]+", "-", project).strip("-.") or "work"
    workdir = None if everywhere else f"~/fleet/{name}"
    result = dict[str, HostFindings]()
    for host in inventory.hosts:
        name, own = host.name, {"workdir": workdir} if workdir and host.workdir is None else {}
        result[name] = HostFindings(own, [])
        if name in facts:
            result[name] = _host_findings(host, facts[name], pythons.get(name), best[name], own, len(facts) == 1)
    seen = dict[str, str]()
    for name, host_facts in facts.items():
        same = seen.setdefault(
            f"{host_facts.get('hostname')} {host_facts.get('boot_id')} {host_facts.get('interfaces')}", name
        )
        if same != name:
            result[name].problems.append(
                (f"is the machine that {same} is", "leave one of them out: -x, or in the file")
            )
    return result


def _host_findings(
    host: Host, facts: Facts, python: Interpreter | None, address: str | None, more: Mapping[str, Any], alone: bool
) -> HostFindings:
    gpus = facts.get("gpus") or []
    models = Counter(gpu["name"] or "GPU without a name" for gpu in gpus)
    gpu_text = ", ".join(f"{count} x {model}" for model, count in models.items())
    wanted = {
        "data_address": address if address != host.address else None,
        "slots": len(gpus) or None,
        "python": python["path"] if python else None,
    }
    training = [f"Python {python['version']}", torch(python)] if python else []
    fields, rejected = dict[str, Any](), list[tuple[str, str]]()
    for key, value in wanted.items():
        try:
            if value and getattr(host, key) is None:
                fields[key] = parse_field(key, str(value))
        except FieldError as error:
            rejected.append((f"what it says fits no inventory: {error.message}", f"write it there by hand: {key}"))
    return HostFindings(
        {**fields, **more},
        [*rejected, *problems(host, facts, python, address, alone)],
        f"{facts.get('hostname')}: {', '.join([gpu_text or 'no GPU', *training])}",
        gpu_text,
        python,
    )


def row(endpoint: str, host: Host, found: HostFindings) -> dict[str, str]:
    """Returns a host's row of the table: column -> text. endpoint: the address that SSH connects to."""
    return {
        "host": host.name,
        "address": endpoint,
        "data address": host.data_address or "",
        "slots": str(host.slots or ""),
        "GPUs": found.gpus,
        "python": host.python or "",
        "torch": torch(found.python).removeprefix("torch ") if found.python else "",
    }


def torch(python: Interpreter) -> str:
    """Returns a text like "torch 2.6.0 (CUDA 12.4)"."""
    return f"torch {python['torch']} ({'CUDA ' + python['cuda'] if python['cuda'] else 'CPU'})"


def problems(
    host: Host, facts: Facts, python: Interpreter | None, address: str | None, alone: bool
) -> list[tuple[str, str]]:
    """Returns (problem, what to do) for all that is missing on a host, or differs from the inventory. alone: no other
    host was probed."""
    found = list[tuple[str, str]]()
    gpus, plugged = len(facts.get("gpus") or []), facts.get("pci_gpus") or 0
    if python is None:
        found.append(("no interpreter there has torch", "install it there, or name the one that has: python: PATH"))
    elif host.python and not facts.get("torch"):
        found.append((f"{host.python}, its python, has no torch", f"{python['path']} has: {torch(python)}"))
    if plugged and not gpus:
        found.append((f"{counted(plugged, 'GPU')} and no driver that reports them", "nvidia-smi there says why"))
    elif gpus and (host.slots or 0) > gpus:
        found.append((f"slots: {host.slots}, and {counted(gpus, 'GPU')} there", f"slots: {gpus}"))
    if address is None and not alone:
        hint = "open the ports from 1024 on between the hosts, or say at which address: data_address"
        found.append(("the other hosts reach it at none of its addresses", hint))
    return found


ABOUT = (
    "The hosts, in the order of their node ranks. 'fleet hosts' shows what is read from here; docs/inventory.md has",
    "all keys. Written by 'fleet init': run again, it proposes what is missing.",
)


def proposed(
    path: Path, old: str | None, inventory: Inventory, new: Collection[str], remarks: Mapping[str, str]
) -> tuple[str, dict[str, dict[str, Any]]]:
    """Returns the inventory's new text, and host -> fields that could not be added. old: the present text, or None if
    there is no file. new: the hosts that the file lacks. remarks: host -> its comment. Raises InventoryError."""
    if old is None:
        text = render(inventory, ABOUT, remarks)
        _check(text, inventory, path)
        return text, {}
    there, defaults = parse_yaml(old, str(path)), read_defaults(old, str(path))
    edit, left = Edit(old), dict[str, dict[str, Any]]()
    for host in inventory.hosts:
        known = defaults if host.name in new else fields_of(there.host(host.name))
        missing = {key: value for key, value in fields_of(host).items() if known.get(key) != value}
        if host.name in new:
            placed = edit.add_host(host.name, missing, remarks.get(host.name))
        else:
            placed = not missing or edit.add_fields(host.name, missing)
        if not placed:
            left[host.name] = missing
    for names in edit.shared(left):
        each = [inventory.host(name) if name in inventory.names else there.host(name) for name in names]
        fields_by_host = {host.name: fields_of(host) for host in each}
        own = {
            name: {k: v for k, v in fields.items() if defaults.get(k) != v} for name, fields in fields_by_host.items()
        }
        if edit.split(own):
            left = {name: missing for name, missing in left.items() if name not in own}
    meant = {host.name: host for host in there.hosts}
    meant |= {host.name: host for host in inventory.hosts if host.name not in left}
    _check(edit.text, replace(there, hosts=tuple(meant.values())), path)
    return edit.text, left


def difference(path: Path, old: str, new: str) -> list[str]:
    """Returns a diff of the two texts."""
    return [*difflib.unified_diff(old.splitlines(), new.splitlines(), str(path), "proposed", lineterm="")]


def _check(text: str, meant: Inventory, path: Path) -> None:
    """Raises InventoryError unless the text, read as an inventory, equals `meant`."""
    found = parse_yaml(text, str(path))
    wrong = [host for host, other in zip_longest(meant.hosts, found.hosts) if host != other]
    if wrong or (found.env, found.groups, found.sync) != (meant.env, meant.groups, meant.sync):
        what = f"host {wrong[0].name} would be another one" if wrong and wrong[0] else "it would say more than is meant"
        raise InventoryError(f"is not written to: {what}", where=str(path), hint="add to it by hand")
