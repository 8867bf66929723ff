"""The steps of a playbook as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from fleet.errors import UsageError
from fleet.inventory.fields import suggest


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
