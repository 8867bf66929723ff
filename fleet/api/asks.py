"""Methods that take a request have its fields as their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from fleet.errors import UsageError
from fleet.requests.request import HELP

P = ParamSpec("P")
Q = TypeVar("Q")
R = TypeVar("R")
S = TypeVar("S")
OPTIONS = "options"  # the field that holds what the request itself does not know


def asks(request: Callable[P, Q]) -> Callable[[Callable[[S, Q], R]], Callable[Concatenate[S, P], R]]:
    """Decorator for a method of one request: it is called as the request's constructor is, and its help has the
    request's. Keywords that the request does not know go into its `options`."""
    known: dict[str, Any] = request.__dataclass_fields__  # type: ignore[attr-defined]

    def decorate(method: Callable[[S, Q], R]) -> Callable[Concatenate[S, P], R]:
        @wraps(method)
        def call(self: S, /, *args: P.args, **given: P.kwargs) -> R:
            own: dict[str, Any] = {name: value for name, value in given.items() if name in known}
            others = {name: value for name, value in given.items() if name not in known}
            if others and OPTIONS not in known:
                raise UsageError(f"{method.__name__} takes no {', '.join(others)}", hint=f"it takes {', '.join(known)}")
            if others:
                own[OPTIONS] = {**own.get(OPTIONS, {}), **others}
            return method(self, request(*args, **own))

        of_request, of_method = inspect.signature(request), inspect.signature(method)
        helps = [f"{name}: {each.metadata[HELP]}" for name, each in known.items() if HELP in each.metadata]
        call.__doc__ = "\n".join([str(inspect.getdoc(method)), "", str(inspect.getdoc(request)), *helps])
        parameters = [next(iter(of_method.parameters.values())), *of_request.parameters.values()]
        call.__signature__ = of_method.replace(parameters=parameters)  # type: ignore[attr-defined]
        return call

    return decorate
