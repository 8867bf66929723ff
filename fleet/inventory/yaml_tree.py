"""Reads YAML text into a plain tree with line numbers: no objects, no duplicate keys, bounded aliases.

PyYAML only composes nodes and constructs no values. So values stay the written text: "port: 022" does not become 18,
nor "no" False.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from fleet.errors import InventoryError
from fleet.inventory.fields import shown

MAX_NODES = 300_000  # each use of an alias counts, so that a few lines cannot expand to millions of nodes
MAX_DEPTH = 40

_TAGS = {f"tag:yaml.org,2002:{name}": name for name in ("str", "int", "float", "bool", "null", "timestamp", "value")}
# part of PyYAML's message -> what to do
_HINTS = {
    "'\\t'": "YAML indents with spaces, not with tabs",
    "cannot start any token": "quote the value",
    "mapping values are not allowed here": "look at the indentation, or quote a value that has ': ' in it",
}
_PLAIN_TAGS = {*_TAGS, "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "tag:yaml.org,2002:merge"}


@dataclass
class Tree:
    """Holds a node. kind: "map", "list", or, for a scalar, "str", "int", "float", "bool", "null". text: the scalar as
    it is written."""

    kind: str
    line: int
    text: str = ""
    pairs: dict[str, Tree] = field(default_factory=dict)
    key_lines: dict[str, int] = field(default_factory=dict)
    items: list[Tree] = field(default_factory=list)

    def plain(self) -> Any:
        """Returns the tree as dict, list, str, int, float, bool and None. A number that Python cannot read stays
        text."""
        if self.kind == "map":
            return {key: tree.plain() for key, tree in self.pairs.items()}
        if self.kind == "list":
            return [tree.plain() for tree in self.items]
        if self.kind == "bool":
            return self.text.lower() in ("yes", "true", "on")
        if self.kind == "null":
            return None
        try:
            return {"int": int, "float": float}.get(self.kind, str)(self.text)
        except ValueError:
            return self.text


def read_tree(text: str, source: str) -> Tree | None:
    """Returns the document, None if it is empty. Raises InventoryError with file and line for invalid YAML."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        return None if root is None else _Reader(source).read(root, 0)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise InventoryError(
            f"not valid YAML: {_flat(error.problem or error.context or 'syntax error')}",
            where=f"{source}:{mark.line + 1}" if mark else source,
            hint=next((hint for sign, hint in _HINTS.items() if sign in (error.problem or "")), None),
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InventoryError(f"not valid YAML: {_flat(error.reason)}", where=f"{source}:{line}") from None
    except RecursionError:
        raise InventoryError("is nested too deeply", where=source) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # e.g. an escape beyond Unicode, "\UFFFFFFFF"
        raise InventoryError(f"not valid YAML: {_flat(str(error))}", where=source) from None


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:200]


class _Reader:
    """Converts the composed nodes, and counts them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.count = 0

    def fail(self, node: yaml.Node, message: str, hint: str | None = None) -> InventoryError:
        return InventoryError(message, where=f"{self.source}:{_line(node)}", hint=hint)

    def read(self, node: yaml.Node, depth: int) -> Tree:
        self.count += 1
        if self.count > MAX_NODES:
            raise self.fail(node, f"holds more than {MAX_NODES} values, aliases counted")
        if depth > MAX_DEPTH:  # an alias that contains itself ends here, too
            raise self.fail(node, f"is nested deeper than {MAX_DEPTH} levels")
        if node.tag not in _PLAIN_TAGS:
            raise self.fail(node, f"the YAML tag {shown(node.tag)} is not allowed", "write plain values")
        if isinstance(node, yaml.MappingNode):
            return self._map(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return Tree("list", _line(node), items=[self.read(item, depth + 1) for item in node.value])
        kind = _TAGS.get(node.tag, "str")
        return Tree("str" if kind in ("timestamp", "value") else kind, _line(node), text=node.value)

    def _map(self, node: yaml.MappingNode, depth: int) -> Tree:
        tree = Tree("map", _line(node))
        merged: list[Tree] = []
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise self.fail(key_node, "a key must be a word", "quote a node set that starts with '['")
            value = self.read(value_node, depth + 1)
            key = key_node.value
            if key_node.tag == "tag:yaml.org,2002:merge":
                merged += value.items if value.kind == "list" else [value]
            elif key in tree.pairs:
                raise self.fail(key_node, f"key {shown(key)} is here twice, first on line {tree.key_lines[key]}")
            else:
                tree.pairs[key] = value
                tree.key_lines[key] = _line(key_node)
        for other in merged:
            if other.kind != "map":
                raise self.fail(node, "'<<' takes a mapping, or a list of them")
            more = [key for key in other.pairs if key not in tree.pairs]
            tree.pairs.update((key, other.pairs[key]) for key in more)
            tree.key_lines.update((key, other.key_lines[key]) for key in more)
        return tree


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
