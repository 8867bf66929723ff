"""A playbook: a YAML list of fleet's own verbs, checked as a whole before its first step runs.

    - vars: {script: examples/digits.py, password_file: }   # no value: must come from --var
    - name: keys and known hosts
      setup-ssh: {tofu: true, password-file: "${password_file}"}
    - exec: [hostname]                                      # a list: positional arguments, as they are
      on: gpu[01-02]                                        # this step's hosts
      ignore-errors: true
    - launch: {nproc-per-node: 2, env: {LR: 0.1}, script: "${script}", args: [--epochs, 3]}

A step becomes the argv of a command line, nothing else: what a verb accepts, and what it means, is known to
the verb's own command alone, which this module sees through `Verbs`. Scalars keep the text they were
written with (`0.10` stays `0.10`). `${name}` is replaced by variables of the playbook, never by the
environment (`${playbook_dir}` is the folder it lies in); `$${` is a literal `${`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from fleet.errors import EXIT_INTERRUPTED, EXIT_OK, FleetError, InventoryError
from fleet.inventory.fields import ENV_NAME, shown, suggest
from fleet.inventory.yaml_tree import Tree, read_tree

STEP_KEYS = ("name", "on", "ignore-errors")
_VARIABLE = re.compile(r"\$(\$(?=\{)|\{([^}]*)\})")


@dataclass(frozen=True)
class Param:
    """One thing a verb can be told. flag/value: options, spelled `on` (and `off`); argument: positional."""

    kind: Literal["flag", "value", "argument"]
    on: str = ""
    off: str | None = None
    multiple: bool = False
    required: bool = False


class Verbs(Protocol):
    """What a playbook needs to know of the command line; cli/play.py has the real one."""

    def names(self) -> Sequence[str]:
        """The verbs a step may use."""

    def params(self, verb: str) -> Mapping[str, Param]:
        """Parameters by the name a playbook writes them under; arguments in their order."""

    def validate(self, argv: Sequence[str]) -> None:
        """UsageError when this command line would be refused."""

    def run(self, argv: Sequence[str]) -> int:
        """Run it, return its exit code."""


@dataclass(frozen=True)
class Step:
    """argv: the command line without "fleet". where: "FILE:LINE" of the step. on: its own host selection."""

    argv: tuple[str, ...]
    where: str
    name: str | None = None
    ignore_errors: bool = False
    on: str | None = None


def load(path: Path, verbs: Verbs, overrides: Mapping[str, str] | None = None) -> tuple[Step, ...]:
    """The steps of a playbook file; InventoryError (121) when it cannot be read or is invalid."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InventoryError(f"cannot read the playbook {path}: {error.strerror}") from error
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
    """Text -> steps, pure. overrides: values for declared variables. given: variables that need no declaration.
    source: the file's name in messages."""
    return _Reader(source, verbs, dict(overrides or {}), given or {}).steps(text)


def play(
    steps: Iterable[Step],
    verbs: Verbs,
    before: Callable[[Step], None],
    failed: Callable[[Step, int], None],
) -> int:
    """Run steps in order up to the first that fails; its exit code. An interrupt is never ignored."""
    for step in steps:
        before(step)
        code = verbs.run(step.argv)
        if code != EXIT_OK:
            failed(step, code)
            if not step.ignore_errors or code == EXIT_INTERRUPTED:
                return code
    return EXIT_OK


def _near(word: str, known: Iterable[str]) -> str | None:
    known = list(known)
    return suggest(word, known) or ("known here: " + ", ".join(known) if known else None)


def option(name: str, value: str) -> list[str]:
    """As one would type it, whatever the value starts with."""
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


def operands(words: list[str]) -> list[str]:
    """Positional arguments, behind "--" where one of them could be taken for an option."""
    return ["--", *words] if any(word.startswith("-") for word in words) else words


class _Reader:
    """Tree -> steps, in one pass; `vars` grows as the playbook declares them."""

    def __init__(self, source: str, verbs: Verbs, overrides: dict[str, str], given: Mapping[str, str]) -> None:
        self.source = source
        self.verbs = verbs
        self.overrides = overrides
        self.vars = {name: overrides.get(name, value) for name, value in given.items()}

    def fail(self, line: int, message: str, hint: str | None = None) -> InventoryError:
        return InventoryError(message, where=f"{self.source}:{line}", hint=hint)

    def steps(self, text: str) -> tuple[Step, ...]:
        root = read_tree(text, self.source)
        if root is None or root.kind != "list":
            raise self.fail(root.line if root else 1, "a playbook is a list of steps", "- exec: [hostname]")
        steps = [step for item in root.items if (step := self.step(item)) is not None]
        for name in self.overrides:
            if name not in self.vars:
                raise self.fail(root.line, f"--var {name}: the playbook has no such variable", _near(name, self.vars))
        return tuple(steps)

    def step(self, item: Tree) -> Step | None:
        item = self.spelled(item, "a step")
        keys = item.pairs
        if "vars" in keys:
            if len(keys) > 1:
                raise self.fail(item.line, "'vars' stands in a list item of its own")
            self.declare(keys["vars"])
            return None
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
        argv = [verb, *(option("--hosts", on) if on is not None else []), *self.arguments(verb, keys[verb])]
        try:
            self.verbs.validate(argv)
        except FleetError as error:
            raise self.fail(item.key_lines[verb], f"{verb}: {error.message}", error.hint) from error
        return Step(tuple(argv), f"{self.source}:{item.line}", name, ignore, on)

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
            return operands(self.words(tree, verb))
        tree = self.spelled(tree, verb)
        known = self.verbs.params(verb)
        options: list[str] = []
        positional: dict[str, list[str]] = {}
        for key, value in tree.pairs.items():
            param = known.get(key)
            if param is None:
                raise self.fail(tree.key_lines[key], f"{verb}: unknown option {shown(key)}", _near(key, known))
            if param.kind == "argument":
                positional[key] = self.words(value, key) if param.multiple else [self.scalar(value, key)]
            elif param.kind == "flag":
                chosen = param.on if self.boolean(value, key) else param.off
                options += [chosen] if chosen else []
            else:
                for word in self.option_values(value, key, param):
                    options += option(param.on, word)
        missing = [key for key, param in known.items() if param.required and key not in positional]
        if positional and missing:
            raise self.fail(tree.line, f"{verb}: needs '{missing[0]}'")
        return [*options, *operands([word for key in known for word in positional.get(key, [])])]

    def option_values(self, tree: Tree, key: str, param: Param) -> list[str]:
        """One value, or where the option may be repeated a list of them or a mapping, as K=V."""
        if param.multiple and tree.kind == "map":
            return [f"{name}={self.scalar(value, name)}" for name, value in tree.pairs.items()]
        if param.multiple:
            return self.words(tree, key)
        return [self.scalar(tree, key)]

    # -- values --------------------------------------------------------------------------------------------
    def mapping(self, tree: Tree, what: str) -> dict[str, Tree]:
        if tree.kind != "map":
            raise self.fail(tree.line, f"{what} must be a mapping, 'key: value'")
        return tree.pairs

    def spelled(self, tree: Tree, what: str) -> Tree:
        """The mapping with dashes in its keys: they and underscores are one, as on the command line."""
        same = replace(tree, pairs={}, key_lines={})
        for key, value in self.mapping(tree, what).items():
            name, line = key.replace("_", "-"), tree.key_lines[key]
            if name in same.pairs:
                raise self.fail(line, f"{name} is here twice", "dashes and underscores are one")
            same.pairs[name], same.key_lines[name] = value, line
        return same

    def words(self, tree: Tree, what: str) -> list[str]:
        return [self.scalar(item, what) for item in (tree.items if tree.kind == "list" else [tree])]

    def scalar(self, tree: Tree, what: str) -> str:
        """The text as it was written, variables replaced."""
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
