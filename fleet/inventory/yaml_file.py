"""Reads a YAML inventory: defaults, env, hosts, groups, sync, slurm."""

from __future__ import annotations

import re
from typing import Any

from fleet.errors import InventoryError
from fleet.inventory.build import Builder
from fleet.inventory.fields import (
    FIELDS,
    GROUP,
    HOST_KEYS,
    OF_ONE_HOST,
    FieldError,
    env_item,
    parse_field,
    printable,
    shown,
    suggest,
    unknown_key,
)
from fleet.inventory.yaml_tree import Tree, read_tree
from fleet.model import Inventory

SECTIONS = ("defaults", "env", "hosts", "groups", "sync", "slurm")
_LISTS = {"devices": "int", "ignore": "str"}  # field -> type of the items, if it may be a list
_NUMBERS = ("port", "slots", "devices")
_KINDS = {"map": "a mapping", "list": "a list", "bool": "a true/false", "null": "empty"}


def parse_yaml(text: str, source: str) -> Inventory:
    """Returns the inventory in YAML text. Raises InventoryError with file, line and hint."""
    root = read_tree(text, source)
    if root is None:
        raise InventoryError("is empty", where=source, hint="it needs hosts:")
    if root.kind != "map":
        hint = "is it a hostfile? those have no .yaml ending" if root.kind == "str" else "hosts belong under hosts:"
        raise InventoryError(
            f"holds {_KINDS.get(root.kind, 'a single value')}, not sections", where=f"{source}:{root.line}", hint=hint
        )
    return _Reader(source).read(root)


def read_defaults(text: str, source: str) -> dict[str, Any]:
    """Returns the `defaults` of a document that parse_yaml() accepts."""
    root = read_tree(text, source)
    return _Reader(source)._defaults(root.pairs["defaults"]) if root and "defaults" in root.pairs else {}


def read_options(text: str, source: str, section: str) -> dict[str, str | bool | list[str]]:
    """Returns the options in a section. Each value is a text as it is written, a list of texts, True or False. Raises
    InventoryError for other values."""
    root = read_tree(text, source)
    tree = root.pairs.get(section) if root else None
    found = dict[str, str | bool | list[str]]()
    for key, value in _Reader(source)._mapping(tree, section).items() if tree else ():
        if value.kind in ("map", "null"):
            raise InventoryError(f"{section}: {shown(key)} has no value", where=f"{source}:{value.line}")
        texts = [item.text for item in value.items]
        found[key] = texts if value.kind == "list" else bool(value.plain()) if value.kind == "bool" else value.text
    return found


class _Reader:
    def __init__(self, source: str) -> None:
        self.builder = Builder(source)

    def read(self, root: Tree) -> Inventory:
        for key, line in root.key_lines.items():
            if key not in SECTIONS:
                hint = suggest(key, SECTIONS) or f"sections: {', '.join(SECTIONS)}; hosts belong under hosts:"
                self.builder.fail(line, f"unknown section {shown(key)}", hint=hint)
        if "hosts" not in root.pairs:
            raise InventoryError("has no hosts:", where=self.builder.source)
        sections = {**dict.fromkeys(SECTIONS, Tree("null", root.line)), **root.pairs}
        self.builder.defaults = self._defaults(sections["defaults"])
        self.builder.env = self._env(sections["env"], None)
        for name in ("sync", "slurm"):
            self._mapping(sections[name], name)
        self.builder.sync = sections["sync"].plain() or {}
        self._hosts(sections["hosts"])
        self._groups(sections["groups"])
        return self.builder.build()

    def _mapping(self, tree: Tree, what: str, host: str | None = None) -> dict[str, Tree]:
        """Returns a mapping's pairs. Null counts as an empty mapping."""
        if tree.kind not in ("map", "null"):
            self.builder.fail(tree.line, f"{what} must be a mapping, not {_kind(tree)}", host=host)
        return tree.pairs

    def _defaults(self, tree: Tree) -> dict[str, Any]:
        for key in self._mapping(tree, "defaults"):
            if key in OF_ONE_HOST:
                self.builder.fail(tree.key_lines[key], f"{key} belongs to one host and cannot be a default")
        return self._fields(tree, None)

    def _hosts(self, tree: Tree) -> None:
        if tree.kind == "map":
            for name, value in tree.pairs.items():
                self._mapping(value, "a host", name)
                self.builder.add_hosts(name, self._fields(value, name), tree.key_lines[name])
            return
        if tree.kind == "null":
            self.builder.fail(tree.line, "hosts: is empty", hint="one host on a line: 'gpu1: {}'")
        for item in self._nodesets(tree, "hosts"):
            self.builder.add_hosts(item.text, {}, item.line)

    def _groups(self, tree: Tree) -> None:
        for name, value in self._mapping(tree, "groups").items():
            if not GROUP.fullmatch(name) or len(name) > 253:
                self.builder.fail(
                    tree.key_lines[name],
                    f"{shown(name)} is not a group name",
                    hint="letters, digits and ._-, starting with a letter or _",
                )
            members = [item.text for item in self._nodesets(value, f"group {name}")]
            self.builder.groups[name] = (members, tree.key_lines[name])

    def _nodesets(self, tree: Tree, what: str) -> list[Tree]:
        """Returns the items of a node set, or of a list of node sets."""
        items = tree.items if tree.kind == "list" else [tree]
        for item in items:
            if item.kind in _KINDS and not (item.kind == "bool" and tree.kind == "list"):
                self.builder.fail(item.line, f"{what} must be a node set or a list of them, not {_kind(item)}")
        return items

    def _fields(self, tree: Tree, host: str | None) -> dict[str, Any]:
        """Returns field -> parsed value, of a host or of the defaults."""
        values: dict[str, Any] = {}
        for key, value in tree.pairs.items():
            with self.builder.at(tree.key_lines[key], host):
                values[key] = self._env(value, host) if key == "env" else _field(key, value)
        return values

    def _env(self, tree: Tree, host: str | None) -> dict[str, str]:
        env: dict[str, str] = {}
        for name, value in self._mapping(tree, "env", host).items():
            with self.builder.at(tree.key_lines[name], host):
                if value.kind in _KINDS:
                    hint = 'quote it: "1", "true" or ""' if value.kind in ("bool", "null") else None
                    raise FieldError(f"env: {printable(name)} must be text or a number, not {_kind(value)}", hint)
                _, env[name] = env_item(name, value.text)
        return env


def _kind(tree: Tree) -> str:
    return f"{_KINDS.get(tree.kind, 'a value')}{f' ({tree.text})' * (tree.kind == 'bool')}"


def _field(key: str, value: Tree) -> Any:
    """Returns the parsed value of a host field. Null clears it."""
    if key not in FIELDS:
        raise unknown_key(key, HOST_KEYS)
    if value.kind == "null":
        return None
    if value.kind == "list" and value.items and all(item.kind == _LISTS.get(key) for item in value.items):
        return parse_field(key, ",".join(item.text for item in value.items))
    if value.kind in _KINDS:
        hint = "quote it" if value.kind == "bool" and key not in _NUMBERS else None
        raise FieldError(f"{key}: must be {'a number' if key in _NUMBERS else 'text'}, not {_kind(value)}", hint)
    return parse_field(key, re.sub(r"\n+\Z", "", value.text))
