"""Reads the steps of a YAML playbook in one pass. Each error has its line number."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from fleet.engines.translate import typed_option
from fleet.errors import FleetError, InventoryError
from fleet.inventory.fields import ENV_NAME, shown, suggest
from fleet.inventory.yaml_tree import Tree, read_tree
from fleet.own import read_given
from fleet.playbook.steps import Param, Step, Verbs

STEP_KEYS = ("name", "on", "ignore-errors")
# name in a playbook -> verb of the command line
_TYPED = {"task": "play"}
_VARIABLE = re.compile(r"\$(\$(?=\{)|\{([^}]*)\})")


def load(path: Path, verbs: Verbs, overrides: Mapping[str, str] | None = None) -> tuple[Step, ...]:
    """Returns the steps of a playbook file. Raises InventoryError (121) if it cannot be read or is invalid."""
    try:
        text = read_given(path).decode("utf-8")
    except OSError as error:
        raise InventoryError(
            f"cannot read the playbook {path}: {error.strerror}",
            hint="a YAML file, or the name of one that comes with fleet: 'fleet examples' lists them",
        ) from error
    except UnicodeDecodeError as error:
        raise InventoryError("not UTF-8 text", where=str(path)) from error
    return parse(text, str(path), verbs, overrides, {"playbook_dir": str(path.resolve().parent)})


def parse(
    text: str,
    source: str,
    verbs: Verbs,
    overrides: Mapping[str, str] | None = None,
    given: Mapping[str, str] | None = None,
) -> tuple[Step, ...]:
    """Returns the steps of a text. Pure. overrides: values for declared variables. given: variables that need no
    declaration. source: the file's name in messages."""
    return _Reader(source, verbs, dict(overrides or {}), given or {}).steps(text)


def _near(name: str, known: Iterable[str]) -> str | None:
    known = list(known)
    return suggest(name, known) or ("known here: " + ", ".join(known) if known else None)


def operands(strings: list[str]) -> list[str]:
    """Returns positional arguments. Puts "--" before them if one of them begins with a dash."""
    return ["--", *strings] if any(arg.startswith("-") for arg in strings) else strings


class _Reader:
    """Makes the steps of a tree in one pass. overrides: values of --var. vars: the variables declared so far."""

    def __init__(self, source: str, verbs: Verbs, overrides: dict[str, str], given: Mapping[str, str]) -> None:
        self.source = source
        self.verbs = verbs
        self.overrides = overrides
        self.found: list[Step] = []
        self.vars = {name: overrides.get(name, value) for name, value in given.items()}

    def fail(self, line: int, message: str, hint: str | None = None) -> InventoryError:
        return InventoryError(message, where=f"{self.source}:{line}", hint=hint)

    def steps(self, text: str) -> tuple[Step, ...]:
        root = read_tree(text, self.source)
        if root is None or root.kind != "list":
            raise self.fail(root.line if root else 1, "a playbook is a list of steps", "- exec: [hostname]")
        for item in root.items:
            self.step(item)
        if not self.found:
            raise self.fail(root.line, "the playbook has no steps", "- exec: [hostname]")
        for name in self.overrides:
            if name not in self.vars:
                raise self.fail(root.line, f"--var {name}: the playbook has no such variable", _near(name, self.vars))
        return tuple(self.found)

    def step(self, item: Tree) -> None:
        item = self.spelled(item, "a step")
        keys = item.pairs
        if "vars" in keys:
            if len(keys) > 1:
                raise self.fail(item.line, "'vars' needs a list item of its own")
            self.declare(keys["vars"])
            return
        verbs = [key for key in keys if key not in STEP_KEYS]
        for key in verbs:
            if key not in self.verbs.names():
                raise self.fail(
                    item.key_lines[key],
                    f"unknown verb or key {shown(key)}",
                    _near(key, [*self.verbs.names(), *STEP_KEYS, "vars"]),
                )
        if len(verbs) != 1:
            what = f"has {len(verbs)} verbs ({', '.join(verbs)})" if verbs else "has no verb"
            raise self.fail(item.line, f"a step {what}, it needs one", "start a new list item for each verb")
        verb = verbs[0]
        on = self.scalar(keys["on"], "on") if "on" in keys else None
        name = self.scalar(keys["name"], "name") if "name" in keys else None
        ignore = "ignore-errors" in keys and self.boolean(keys["ignore-errors"], "ignore-errors")
        argv = [
            _TYPED.get(verb, verb),
            *(typed_option("--hosts", on) if on is not None else []),
            *self.arguments(verb, keys[verb]),
        ]
        try:
            self.verbs.validate(argv)
        except FleetError as error:
            raise self.fail(item.key_lines[verb], f"{verb}: {error.reason}", error.hint) from error
        number = len(self.found) + 1
        self.found.append(Step(tuple(argv), f"{self.source}:{item.line}", name, ignore, on, number))

    def declare(self, tree: Tree) -> None:
        for name, value in self.mapping(tree, "'vars'").items():
            if not ENV_NAME.fullmatch(name):
                raise self.fail(
                    tree.key_lines[name], f"{shown(name)} is not a variable's name", "letters, digits and _"
                )
            if name in self.overrides:
                self.vars[name] = self.overrides[name]
            elif value.kind == "null":
                raise self.fail(
                    tree.key_lines[name], f"variable '{name}' has no value", f"give it with --var {name}=VALUE"
                )
            else:
                self.vars[name] = self.scalar(value, name)

    # -- a verb's value -> argv ----------------------------------------------------------------------------
    def arguments(self, verb: str, tree: Tree) -> list[str]:
        if tree.kind == "null":
            return []
        if tree.kind != "map":
            return operands(self.strings(tree, verb))
        tree = self.spelled(tree, verb)
        known = self.verbs.params(verb)
        options: list[str] = []
        positional: dict[str, list[str]] = {}
        for key, value in tree.pairs.items():
            param = known.get(key)
            if param is None:
                raise self.fail(tree.key_lines[key], f"{verb}: unknown option {shown(key)}", _near(key, known))
            if param.kind == "argument":
                positional[key] = self.strings(value, key) if param.multiple else [self.scalar(value, key)]
            elif param.kind == "flag":
                chosen = param.on if self.boolean(value, key) else param.off
                options += [chosen] if chosen else []
            else:
                for arg in self.option_values(value, key, param):
                    options += typed_option(param.on, arg)
        missing = [key for key, param in known.items() if param.required and key not in positional]
        if positional and missing:
            raise self.fail(tree.line, f"{verb}: needs '{missing[0]}'")
        return [*options, *operands([arg for key in known for arg in positional.get(key, [])])]

    def option_values(self, tree: Tree, key: str, param: Param) -> list[str]:
        """Returns the values of an option. A repeatable option takes a list, or a mapping, which becomes K=V."""
        if param.multiple and tree.kind == "map":
            return [f"{name}={self.scalar(value, name)}" for name, value in tree.pairs.items()]
        if param.multiple:
            return self.strings(tree, key)
        return [self.scalar(tree, key)]

    # -- values --------------------------------------------------------------------------------------------
    def mapping(self, tree: Tree, what: str) -> dict[str, Tree]:
        if tree.kind != "map":
            raise self.fail(tree.line, f"{what} must be a mapping, 'key: value'")
        return tree.pairs

    def spelled(self, tree: Tree, what: str) -> Tree:
        """Returns the mapping with its keys spelled as on the command line: with dashes for underscores."""
        same = replace(tree, pairs={}, key_lines={})
        for key, value in self.mapping(tree, what).items():
            name, line = key.replace("_", "-"), tree.key_lines[key]
            if name in same.pairs:
                raise self.fail(line, f"{name} is here twice", "dashes and underscores are one")
            same.pairs[name], same.key_lines[name] = value, line
        return same

    def strings(self, tree: Tree, what: str) -> list[str]:
        return [self.scalar(item, what) for item in (tree.items if tree.kind == "list" else [tree])]

    def scalar(self, tree: Tree, what: str) -> str:
        """Returns the text as it is written, with the values of variables in place of their names."""
        if tree.kind in ("map", "list"):
            raise self.fail(tree.line, f"{shown(what)} must be plain text, not a {tree.kind}")
        if tree.kind == "null":
            raise self.fail(tree.line, f"{shown(what)} has no value", 'write "" for an empty one')
        if "\0" in tree.text:
            raise self.fail(tree.line, f"{shown(what)} holds a NUL character")

        def value(match: re.Match[str]) -> str:
            if match[1] == "$":
                return "$"
            if match[2] in self.vars:
                return self.vars[match[2]]
            literal = f"declare it under 'vars', or write $${{{match[2]}}} for a literal one"
            raise self.fail(
                tree.line,
                f"unknown variable {shown(match[2])}",
                (self.vars and suggest(match[2], self.vars)) or literal,
            )

        return _VARIABLE.sub(value, tree.text)

    def boolean(self, tree: Tree, what: str) -> bool:
        if tree.kind != "bool":
            raise self.fail(tree.line, f"{shown(what)} must be true or false")
        return tree.plain() is True
