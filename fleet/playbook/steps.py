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
    """Describes the parts of the command line that a playbook needs. cli/verbs/play.py implements this protocol."""

    def names(self) -> Sequence[str]:
        """Returns the verbs that a step may use."""

    def params(self, verb: str) -> Mapping[str, Param]:
        """Returns name in a playbook -> parameter of a verb. Arguments are in their order on the command line."""

    def validate(self, argv: Sequence[str]) -> None:
        """Raises UsageError for a command line that fleet would refuse."""


@dataclass(frozen=True)
class Step:
    """Describes a step. argv: the command line without "fleet". where: "FILE:LINE" of the step. on: the step's own host
    selection. number: the step's place among all steps of the playbook, from 1."""

    argv: tuple[str, ...]
    where: str
    name: str | None = None
    ignore_errors: bool = False
    on: str | None = None
    number: int = 1


def starting_at(steps: Sequence[Step], start: str) -> Sequence[Step]:
    """Returns the step with that number or name, and all later steps. Raises UsageError if there is no such step, or if
    several have the name."""
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
