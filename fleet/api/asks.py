"""Makes methods that take a request's fields as their parameters."""

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
OPTIONS = "options"  # the field for keywords that are no fields of the request


def asks(request: Callable[P, Q]) -> Callable[[Callable[[S, Q], R]], Callable[Concatenate[S, P], R]]:
    """Returns a decorator for a method that takes one request. The method is then called with the arguments of the
    request's constructor, and its help contains the help of the request. Unknown keywords go into the request's
    `options`."""
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
