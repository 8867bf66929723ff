"""Loads engines, transports and the like by name, on request. fleet's own are listed by a line each; other packages
name theirs as entry points."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, cast

from fleet.codec import T
from fleet.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Holds things by name. what: their noun in messages. kind: the class of which each is an instance, or a subclass
    that is called without arguments; `type` if they are classes that the caller instantiates. own: name ->
    "module:attribute". group: the group of the entry points by which other packages add things.

    Other packages are looked up only for a name that is not fleet's own, and for a list of all names, because a look-up
    takes 40 ms. A package that cannot be loaded affects no other."""

    what: str
    kind: type[Any]
    own: Mapping[str, str]
    group: str

    @cached_property
    def others(self) -> dict[str, EntryPoint]:
        """Returns the entries of other packages. A name of fleet's own stays fleet's. If two packages have the same
        name, it is the first package's."""
        from importlib.metadata import entry_points

        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=self.group):
            if point.name not in self.own:
                found.setdefault(point.name, point)
        return found

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.own, *sorted(self.others))

    def get(self, name: str) -> T:
        """Returns the thing of that name. Raises UsageError if there is none, or if its package is broken."""
        if name in self.own:
            module, _, attribute = self.own[name].partition(":")
            return self._made(getattr(importlib.import_module(module), attribute))
        point = self.others.get(name)
        if point is None:
            raise UsageError(f"no {self.what} '{name}'", hint=f"one of: {', '.join(self.names)}")
        try:
            return self._made(point.load())
        except (Exception, SystemExit) as error:  # the import of a package may raise anything
            raise self.broken(point, error) from error

    def broken(self, point: EntryPoint, error: BaseException) -> UsageError:
        """Returns the error for an entry of another package whose import raised `error`."""
        package = f"{point.dist.name} {point.dist.version}" if point.dist else "another package"
        return UsageError(
            f"{self.what} '{point.name}' of {package} cannot be loaded: {type(error).__name__}: {error}",
            hint=f"its entry point is {point.value}; mend or uninstall that package",
        )

    def _made(self, found: object) -> T:
        made = found() if isinstance(found, type) and self.kind is not type else found
        if not isinstance(made, self.kind):
            raise TypeError(f"{found!r} is no {self.kind.__module__}.{self.kind.__name__}")
        return cast(T, made)
