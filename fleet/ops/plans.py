"""Defines what all plans have in common, and the lines that --dry-run prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol

from fleet.codec import T
from fleet.model import Host, Inventory
from fleet.rules.units import counted, size_text


@dataclass(frozen=True)
class PerHost:
    """Holds lines for each host, by its name. Hosts with equal lines are shown together. said: the lines. brief: the
    lines that are shown without -v, if they differ."""

    said: Mapping[str, Sequence[str]]
    brief: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Files:
    """Holds (path, size in bytes) of each file. If there are very many files, only the first ones are shown."""

    sizes: Sequence[tuple[str, int]]

    def __str__(self) -> str:
        """Returns a text like "3 files, 1.5 KiB"."""
        return f"{counted(len(self.sizes), 'file')}, {size_text(sum(count for _, count in self.sizes))}"


Line = str | PerHost | Files


class Plan(Protocol):
    """Describes a plan, which is frozen. `run(plan, runtime) -> Report` in the module of its verb executes it."""

    @property
    def hosts(self) -> tuple[Host, ...]: ...

    def describe(self) -> dict[str, Any]:
        """Returns the plan as JSON, with the names of variables only."""

    def lines(self) -> Iterable[Line]:
        """Returns the lines that --dry-run prints."""


@dataclass(frozen=True)
class OnHosts:
    """Holds the inventory, in the plan of a verb that works on all its hosts."""

    inventory: Inventory

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.inventory.hosts


@dataclass(frozen=True)
class RequestPlan(OnHosts, Generic[T]):
    """Holds the plan of a verb that executes a request as it is. shown: the request as JSON. text: the lines for
    --dry-run."""

    request: T
    shown: Mapping[str, Any]
    text: str

    @property
    def run_id(self) -> str:
        """Returns the run that the request names, or "" if it names none."""
        return str(self.shown.get("run", ""))

    def describe(self) -> dict[str, Any]:
        return dict(self.shown)

    def lines(self) -> Iterable[Line]:
        yield from self.text.splitlines()


def around(spec: Mapping[str, Any]) -> list[str]:
    """Returns lines about the environment of a command: its activate line, its interpreter, and names of variables."""
    return [
        *([f"behind: {spec['activate']}"] if spec.get("activate") else []),
        *([f"in the environment of {spec['env_of']}"] if spec.get("env_of") else []),
        *([f"env: {', '.join(sorted(spec['env']))}"] if spec.get("env") else []),
    ]
