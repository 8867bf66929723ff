"""Things by name, loaded when they are requested: fleet's own, a line each, and those that other packages name as entry
points."""

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
    """what: what they are, in messages. kind: the class that each is an instance of, or a subclass to be made without
    arguments; `type` where they are classes that another package makes. own: name -> "module:attribute". group: of the
    entry points by which other packages add to them.

    Which other packages there are is looked up only where it matters, since that takes about 40 ms: for a name that is
    not fleet's own, and for all names. A package that cannot be loaded affects no other."""

    what: str
    kind: type[Any]
    own: Mapping[str, str]
    group: str

    @cached_property
    def others(self) -> dict[str, EntryPoint]:
        """Returns the entries of other packages. A name of fleet's own stays fleet's, and the first package of two has
        a name."""
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
        """The one of that name. UsageError when there is none, or the package that it comes from is broken."""
        if name in self.own:
            module, _, attribute = self.own[name].partition(":")
            return self._made(getattr(importlib.import_module(module), attribute))
        point = self.others.get(name)
        if point is None:
            raise UsageError(f"no {self.what} '{name}'", hint=f"one of: {', '.join(self.names)}")
        try:
            return self._made(point.load())
        except (Exception, SystemExit) as error:  # whatever a package does when it is imported
            raise self.broken(point, error) from error

    def broken(self, point: EntryPoint, error: BaseException) -> UsageError:
        """The error for what another package has, and raises `error`."""
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
