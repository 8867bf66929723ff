"""Ranks as the command line names them: numbers and ranges, or the first of each node."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from fleet.errors import InventoryError

F = TypeVar("F", bound=Callable[..., Any])


def ranks(ctx: click.Context, param: click.Parameter, value: str | None) -> frozenset[int] | None:
    """Callback of an option."""
    if value is None:
        return None
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", value, re.ASCII):
        raise click.BadParameter(f"{value!r}: ranks are numbers and ranges, 0,8-15")
    from fleet.inventory.nodeset import expand

    try:
        return frozenset(int(name[1:]) for name in expand(f"r[{value}]"))
    except InventoryError as error:
        raise click.BadParameter(error.message) from None


@dataclass(frozen=True)
class Scrolling:
    """Whose lines scroll: `only` these ranks', None for all; first: each node's first."""

    only: frozenset[int] | None = None
    first: bool = False

    def __call__(self, rank: int, first: int | None) -> bool:
        """first: that rank's node's."""
        return rank == first if self.first else self.only is None or rank in self.only


def _scrolling(ctx: click.Context, param: click.Parameter, value: str | None) -> Scrolling:
    try:
        return Scrolling(first=True) if value == "first" else Scrolling(ranks(ctx, param, value))
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}; or 'first', each node's") from None


def ranks_option(command: F) -> F:
    """Decorator: what scrolls."""
    said = "Show only these ranks' lines; first: each node's first. The logs have all."
    return click.option("--ranks", callback=_scrolling, metavar="LIST|first", help=said)(command)
