"""The steps of a playbook as values, and running them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fleet.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from fleet.inventory.fields import suggest


def option(name: str, value: str) -> list[str]:
    """Returns an option's arguments as one would type them, whatever the value starts with."""
    return [f"{name}={value}"] if value.startswith("-") else [name, value]


@dataclass(frozen=True)
class Param:
    """One setting of a verb. flag/value: options, spelled `on` (and `off`); argument: positional."""

    kind: Literal["flag", "value", "argument"]
    on: str = ""
    off: str | None = None
    multiple: bool = False
    required: bool = False


class Verbs(Protocol):
    """Gives a playbook what it needs of the command line; cli/verbs/play.py implements it."""

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
    """argv: the command line without "fleet". where: "FILE:LINE" of the step. on: its own host selection. number: among
    all steps of the playbook, from 1 on."""

    argv: tuple[str, ...]
    where: str
    name: str | None = None
    ignore_errors: bool = False
    on: str | None = None
    number: int = 1


def starting_at(steps: Sequence[Step], said: str) -> Sequence[Step]:
    """Returns the steps from the one with that number or name on. Raises UsageError where there is no such step."""
    found = [step for step in steps if said == (str(step.number) if said.isdecimal() else step.name)]
    if len(found) == 1:
        return steps[found[0].number - 1 :]
    if found:
        numbers = " or ".join(str(step.number) for step in found)
        raise UsageError(f"--from {said}: {len(found)} steps have this name", hint=f"--from {numbers}")
    named = [step.name for step in steps if step.name]
    near = None if said.isdecimal() else suggest(said, named)
    raise UsageError(
        f"--from {said}: there is no such step", hint=near or f"a number from 1 to {len(steps)}, or a step's name"
    )


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
