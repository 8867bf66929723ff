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
environment; `$${` is a literal `${`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import yaml

from fleet.errors import EXIT_INTERRUPTED, EXIT_OK, FleetError, InventoryError

STEP_KEYS = ("name", "on", "ignore-errors")
_VARIABLE = re.compile(r"\$(\$(?=\{)|\{([^}]*)\})")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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
    """argv: the command line without "fleet". where: "FILE:LINE" of the step."""

    argv: tuple[str, ...]
    where: str
    name: str | None = None
    ignore_errors: bool = False


def load(path: Path, verbs: Verbs, overrides: Mapping[str, str] | None = None) -> tuple[Step, ...]:
    """The steps of a playbook file; InventoryError (121) when it cannot be read or is invalid."""
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise InventoryError(f"cannot read the playbook {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InventoryError("not UTF-8 text", where=str(path)) from error
    return parse(text, str(path), verbs, overrides)


def parse(
    text: str, source: str, verbs: Verbs, overrides: Mapping[str, str] | None = None
) -> tuple[Step, ...]:
    """Text -> steps, pure. overrides: values for declared variables. source: the file's name in messages."""
    return _Reader(source, verbs, dict(overrides or {})).steps(text)


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
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f"did you mean '{near[0]}'?"
    return "known here: " + ", ".join(known) if known else None


class _Reader:
    """One pass over a playbook's YAML nodes, which still know their lines."""

    def __init__(self, source: str, verbs: Verbs, overrides: dict[str, str]) -> None:
        self.source = source
        self.verbs = verbs
        self.overrides = overrides
        self.vars: dict[str, str] = {}
        self.lines: dict[int, int] = {}  # id of a value's node -> the line its key stands on

    def fail(self, node: yaml.Node | int, message: str, hint: str | None = None) -> InventoryError:
        return InventoryError(message, where=self.where(node), hint=hint)

    def where(self, node: yaml.Node | int) -> str:
        return f"{self.source}:{(node if isinstance(node, int) else node.start_mark.line) + 1}"

    def steps(self, text: str) -> tuple[Step, ...]:
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise self.fail(mark.line if mark else 0, f"not YAML: {problem}") from error
        except RecursionError as error:
            raise self.fail(0, "nested too deeply") from error
        if not isinstance(root, yaml.SequenceNode):
            raise self.fail(root or 0, "a playbook is a list of steps", "- exec: [hostname]")
        steps = [step for item in root.value if (step := self.step(item)) is not None]
        unknown = [name for name in self.overrides if name not in self.vars]
        if unknown:
            raise self.fail(root, f"--var {unknown[0]}: the playbook has no such variable",
                            _near(unknown[0], self.vars))
        return tuple(steps)

    def step(self, item: yaml.Node) -> Step | None:
        keys = self.mapping(item, "a step")
        if "vars" in keys:
            if len(keys) > 1:
                raise self.fail(item, "'vars' stands in a list item of its own")
            self.declare(keys["vars"])
            return None
        verbs = [key for key in keys if key not in STEP_KEYS]
        for key in verbs:
            if key not in self.verbs.names():
                raise self.fail(self.lines[id(keys[key])], f"unknown verb or key '{key}'",
                                _near(key, [*self.verbs.names(), *STEP_KEYS, "vars"]))
        if len(verbs) != 1:
            what = f"has {len(verbs)} verbs ({', '.join(verbs)})" if verbs else "has no verb"
            raise self.fail(item, f"a step {what}, it needs one", "start a new list item for each verb")
        verb = verbs[0]
        on = self.scalar(keys["on"], "'on'") if "on" in keys else None
        name = self.scalar(keys["name"], "'name'") if "name" in keys else None
        ignore = self.boolean(keys["ignore-errors"], "'ignore-errors'") if "ignore-errors" in keys else False
        argv = [verb, *([f"--hosts={on}"] if on is not None else []), *self.arguments(verb, keys[verb])]
        where = self.where(item)
        try:
            self.verbs.validate(argv)
        except FleetError as error:
            raise InventoryError(f"{verb}: {error.message}", where=where, hint=error.hint) from error
        return Step(tuple(argv), where, name, ignore)

    def declare(self, node: yaml.Node) -> None:
        for name, value in self.mapping(node, "'vars'").items():
            if not _NAME.fullmatch(name):
                raise self.fail(value, f"'{name}' is not a variable's name", "letters, digits and _")
            if name in self.overrides:
                self.vars[name] = self.overrides[name]
            elif self.is_null(value):
                raise self.fail(value, f"variable '{name}' has no value", f"give it with --var {name}=VALUE")
            else:
                self.vars[name] = self.scalar(value, f"variable '{name}'")

    # -- a verb's value -> argv ----------------------------------------------------------------------------
    def arguments(self, verb: str, node: yaml.Node) -> list[str]:
        if self.is_null(node):
            return []
        if isinstance(node, yaml.SequenceNode):
            words = self.words(node, verb)
            return ["--", *words] if words else []
        if isinstance(node, yaml.ScalarNode):
            return ["--", self.scalar(node, verb)]
        known = self.verbs.params(verb)
        options: list[str] = []
        positional: dict[str, list[str]] = {}
        for key, value in self.mapping(node, verb).items():
            param = known.get(key)
            if param is None:
                raise self.fail(self.lines[id(value)], f"{verb}: unknown option '{key}'", _near(key, known))
            if param.kind == "argument":
                positional[key] = self.words(value, key) if param.multiple else [self.scalar(value, key)]
            elif param.kind == "flag":
                chosen = param.on if self.boolean(value, f"'{key}'") else param.off
                options += [chosen] if chosen else []
            else:
                options += [f"{param.on}={word}" for word in self.option_values(value, key, param)]
        missing = [key for key, param in known.items() if param.required and key not in positional]
        if positional and missing:
            raise self.fail(node, f"{verb}: needs '{missing[0]}'")
        words = [word for key in known for word in positional.get(key, [])]
        return [*options, *(["--", *words] if words else [])]

    def option_values(self, node: yaml.Node, key: str, param: Param) -> list[str]:
        """One value, or where the option may be repeated a list of them or a mapping, as K=V."""
        if param.multiple and isinstance(node, yaml.MappingNode):
            return [f"{k}={self.scalar(v, k)}" for k, v in self.mapping(node, key).items()]
        if param.multiple and isinstance(node, yaml.SequenceNode):
            return self.words(node, key)
        return [self.scalar(node, f"'{key}'")]

    # -- YAML nodes ----------------------------------------------------------------------------------------
    def mapping(self, node: yaml.Node, what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self.fail(node, f"{what} must be a mapping, 'key: value'")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = self.scalar(key, f"a key of {what}")
            if name in found:
                raise self.fail(key, f"{what}: '{name}' is there twice")
            found[name] = value
            self.lines[id(value)] = key.start_mark.line
        return found

    def words(self, node: yaml.Node, what: str) -> list[str]:
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return [self.scalar(item, f"an item of '{what}'") for item in items]

    def scalar(self, node: yaml.Node, what: str) -> str:
        """The text as it was written, variables replaced."""
        if not isinstance(node, yaml.ScalarNode):
            raise self.fail(node, f"{what} must be one value")
        if self.is_null(node):
            raise self.fail(node, f"{what} has no value", "write \"\" for an empty one")
        if "\0" in node.value:
            raise self.fail(node, f"{what} holds a NUL character")

        def replace(match: re.Match[str]) -> str:
            if match[1] == "$":
                return "$"
            if match[2] not in self.vars:
                hint = _near(match[2], self.vars) if self.vars else None
                raise self.fail(node, f"unknown variable '${{{match[2]}}}'",
                                hint or f"declare it under 'vars', or write $${{{match[2]}}} for a literal one")
            return self.vars[match[2]]

        return _VARIABLE.sub(replace, node.value)

    def boolean(self, node: yaml.Node, what: str) -> bool:
        if isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:bool":
            return node.value.lower() in ("true", "yes", "on")
        raise self.fail(node, f"{what} must be true or false")

    @staticmethod
    def is_null(node: yaml.Node) -> bool:
        return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
