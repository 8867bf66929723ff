"""Defines the shape of all plans, what a verb is going to do, and of the lines that --dry-run prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from fleet.model import Host, Inventory
from fleet.rules.units import counted, size_text

R = TypeVar("R")


@dataclass(frozen=True)
class PerHost:
    """Lines for each host, by its name; hosts with equal lines are shown together. brief: what is shown where
    all of it was not requested (-v)."""

    said: Mapping[str, Sequence[str]]
    brief: Mapping[str, Sequence[str]] | None = None


@dataclass(frozen=True)
class Files:
    """(path, bytes) of each; of very many only the first are shown."""

    sizes: Sequence[tuple[str, int]]

    def __str__(self) -> str:
        """ "3 files, 1.5 KiB"."""
        return f"{counted(len(self.sizes), 'file')}, {size_text(sum(count for _, count in self.sizes))}"


Line = str | PerHost | Files


class Plan(Protocol):
    """Frozen. What it does is `run(plan, runtime) -> Report` of its verb's module."""

    @property
    def hosts(self) -> tuple[Host, ...]: ...

    def describe(self) -> dict[str, Any]:
        """Returns the plan as JSON; of variables only the names."""

    def lines(self) -> Iterable[Line]:
        """For people."""


@dataclass(frozen=True)
class OnHosts:
    """Begins the plans of verbs that work on all hosts of an inventory."""

    inventory: Inventory

    @property
    def hosts(self) -> tuple[Host, ...]:
        return self.inventory.hosts


@dataclass(frozen=True)
class Asked(OnHosts, Generic[R]):
    """The plan of a verb that does what a request has, and settles nothing before. shown: of the request, as JSON.
    text: what is done, as text."""

    request: R
    shown: Mapping[str, Any]
    text: str

    def describe(self) -> dict[str, Any]:
        return dict(self.shown)

    def lines(self) -> Iterable[Line]:
        yield from self.text.splitlines()


def around(spec: Mapping[str, Any]) -> list[str]:
    """Returns what surrounds a command on a node: its activate line, its interpreter, and names of variables."""
    return [
        *([f"behind: {spec['activate']}"] if spec.get("activate") else []),
        *([f"in the environment of {spec['env_of']}"] if spec.get("env_of") else []),
        *([f"env: {', '.join(sorted(spec['env']))}"] if spec.get("env") else []),
    ]
