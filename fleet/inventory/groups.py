"""Groups: expressions over host names and other groups, resolved against one inventory's names only.

The one resolver behind "@name", in `groups:` and in -w/-x. Nothing outside of the inventory is asked.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from fleet.inventory.fields import FieldError, shown, suggest
from fleet.inventory.nodeset import algebra, expand, scan

ALL = "all"
MAX_DEPTH = 64


class Groups:
    """definitions: group -> expressions whose union it is. names: every host, in the inventory's order.

    "@all" is every host unless a group of that name is defined.
    """

    def __init__(self, definitions: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
        self._definitions = definitions
        self._names = names
        self._known = frozenset(names)
        self._resolved: dict[str, list[str]] = {}
        self._open: list[str] = []

    def members(self, group: str) -> list[str]:
        """The hosts of a group, in inventory order. FieldError: unknown, contains itself, or empty."""
        if group in self._resolved:
            return self._resolved[group]
        if group not in self._definitions:
            if group == ALL:
                return list(self._names)
            known = [f"@{name}" for name in self._definitions]
            hint = f"known groups: {', '.join(known[:20])}" if known else "the inventory defines no groups"
            raise FieldError(f"no group {shown('@' + group)}", suggest("@" + group, known) or hint)
        if group in self._open:
            raise FieldError(f"contains itself: {' -> '.join([*self._open, group])}")
        if len(self._open) >= MAX_DEPTH:
            raise FieldError(f"is nested deeper than {MAX_DEPTH} groups")
        self._open.append(group)
        try:
            found = {name for text in self._definitions[group] for name in self._evaluate(text)}
        finally:
            self._open.pop()
        if not found:
            raise FieldError("holds no host")
        self._resolved[group] = [name for name in self._names if name in found]
        return self._resolved[group]

    def _evaluate(self, text: str) -> Iterable[str]:
        terms = scan(text, self._known)
        if any(term.devices for term in terms):
            raise FieldError(f"{shown(text)}: a group holds hosts, not devices", "devices are picked with -w and -x")
        result: Iterable[str] = algebra((term.operator, self.operand(term.operand)) for term in terms)
        return result

    def operand(self, text: str) -> list[str]:
        """The hosts of one operand: "@group", a pattern "gpu*", or a node set, all of them in the inventory."""
        if text.startswith("@"):
            return self.members(text[1:])
        if "*" in text or "?" in text:
            found = fnmatch.filter(self._names, text) if "[" not in text else []
            if not found:
                raise FieldError(f"no host matches {shown(text)}")
            return found
        names = expand(text)
        for name in names:
            if name not in self._known:
                hint = suggest(name, self._names)
                if name in self._definitions:
                    hint = f"did you mean '@{name}'?"
                elif hint is None:
                    hint = "fleet hosts shows those there are"
                raise FieldError(f"no host {shown(name)} in the inventory", hint)
        return names
