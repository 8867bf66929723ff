"""Defines the steps of a playbook as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fleet.errors import UsageError
from fleet.inventory.fields import suggest


@dataclass(frozen=True)
class Param:
    """Describes an option or argument of a verb. kind: "flag" and "value" are options, typed as `on` (and `off`);
    "argument" is positional."""

    kind: Literal["flag", "value", "argument"]
    on: str = ""
    off: str | None = None
    multiple: bool = False
    required: bool = False


class Verbs(Protocol):
    """Gives a playbook what it needs of the command line; cli/verbs/play.py implements it."""

    def names(self) -> Sequence[str]:
        """Returns the verbs that a step may use."""

    def params(self, verb: str) -> Mapping[str, Param]:
        """Returns name in a playbook -> parameter of a verb; arguments in their order."""

    def validate(self, argv: Sequence[str]) -> None:
        """Raises UsageError for a command line that fleet would refuse."""


@dataclass(frozen=True)
class Step:
    """Describes a step. argv: the command line without "fleet". where: "FILE:LINE" of the step. on: its own host
    selection. number: among all steps of the playbook, from 1 on."""

    argv: tuple[str, ...]
    where: str
    name: str | None = None
    ignore_errors: bool = False
    on: str | None = None
    number: int = 1


def starting_at(steps: Sequence[Step], start: str) -> Sequence[Step]:
    """Returns the steps from the one with that number or name on. Raises UsageError where there is no such step."""
    found = [step for step in steps if start == (str(step.number) if start.isdecimal() else step.name)]
    if len(found) == 1:
        return steps[found[0].number - 1 :]
    if found:
        numbers = " or ".join(str(step.number) for step in found)
        raise UsageError(f"--from {start}: {len(found)} steps have this name", hint=f"--from {numbers}")
    named = [step.name for step in steps if step.name]
    near = None if start.isdecimal() else suggest(start, named)
    raise UsageError(
        f"--from {start}: there is no such step", hint=near or f"a number from 1 to {len(steps)}, or a step's name"
    )
