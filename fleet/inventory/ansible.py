"""Reads an inventory of Ansible, INI or YAML, for `fleet init`: its hosts, and how they are reached."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from fleet.errors import InventoryError
from fleet.inventory.yaml_tree import read_tree

# Ansible's variable -> a field of a host; older files have a variable ansible_ssh_* for each
FIELDS = {
    "ansible_host": "address",
    "ansible_port": "port",
    "ansible_user": "user",
    "ansible_private_key_file": "identity_file",
    "ansible_python_interpreter": "python",
}
_SIGN = re.compile(
    r"(?m)\bansible_[a-z_]+\s*[:=]|^\[[\w.-]+:(?:vars|children)\]\s*$|^all:\s*\n\s+(?:hosts|children|vars):"
)
_SECTION = re.compile(r"\[([^\]:]+)(?::(\w+))?\]")
_RANGE = re.compile(r"\[(\d+):(\d+)\]")

Vars = Mapping[str, Any]


def is_ansible(text: str) -> bool:
    return _SIGN.search(text) is not None


def hosts(text: str, source: str) -> dict[str, dict[str, str]]:
    """Returns node set -> its fields, as texts, in the file's order. Raises InventoryError if the text is not
    understood."""
    found = dict[str, dict[str, Any]]()
    try:
        in_yaml = re.search(r"(?m)^\w+:(\s|$)", text) is not None
        tree = read_tree(text, source) if in_yaml else None
        root = tree.plain() if tree is not None else None
        for name, variables in _of_yaml(root, {}) if isinstance(root, dict) else _of_ini(text):
            if variables.get("ansible_connection") != "local":
                name = _RANGE.sub(r"[\1-\2]", name)
                found[name] = {**found.get(name, {}), **variables}
    except (ValueError, AttributeError, TypeError) as error:
        raise InventoryError(f"an inventory of ansible's that is not understood: {error}", where=source) from None
    return {name: {FIELDS[key]: str(value) for key, value in _known(variables)} for name, variables in found.items()}


def _known(variables: Vars) -> Iterator[tuple[str, Any]]:
    for key, value in variables.items():
        name = str(key).replace("ansible_ssh_", "ansible_")
        if name in FIELDS and "{{" not in str(value):  # only Ansible can expand a template
            yield name, value


def _of_yaml(groups: Vars, above: Vars) -> Iterator[tuple[str, Vars]]:
    for group in groups.values():
        common = {**above, **((group or {}).get("vars") or {})}
        for name, variables in ((group or {}).get("hosts") or {}).items():
            yield str(name), {**common, **(variables or {})}
        yield from _of_yaml((group or {}).get("children") or {}, common)


def _of_ini(text: str) -> Iterator[tuple[str, Vars]]:
    listed, common = list[tuple[str, str, Vars]](), dict[str, dict[str, str]]()
    parents = dict[str, str]()
    section, kind = "ungrouped", None
    for line in text.splitlines():
        if match := _SECTION.match(line.strip()):
            section, kind = match[1], match[2]
            continue
        tokens = shlex.split(line, comments=True)
        if tokens and kind == "vars":
            key, _, value = line.partition("=")
            common.setdefault(section, {})[key.strip()] = value.strip()
        elif tokens and kind == "children":
            parents[tokens[0]] = section
        elif tokens and kind is None:
            listed.append((section, tokens[0], dict(token.split("=", 1) for token in tokens[1:])))
    for section, name, variables in listed:
        above = [section]
        while (parent := parents.get(above[-1])) is not None and parent not in above:
            above.append(parent)
        for group in above:
            variables = {**common.get(group, {}), **variables}
        yield name, {**common.get("all", {}), **variables}
