"""Parses values of options as people write them: ranks, ports, sizes, times."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from shlex import quote
from typing import Any

import click

from fleet.cli.line.command import F, FleetOption
from fleet.cli.line.options import Limited
from fleet.errors import InventoryError, UsageError
from fleet.requests.launch import MEANWHILE, Launch
from fleet.rules.units import bytes_of

_AGO = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d)?", re.ASCII)


def ranks(value: str) -> frozenset[int]:
    """Type of an option: parses a list of ranks."""
    if not re.fullmatch(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*", value, re.ASCII):
        raise click.BadParameter(f"{value!r}: ranks are numbers and ranges, 0,8-15")
    from fleet.inventory.nodeset import expand

    try:
        return frozenset(int(name[1:]) for name in expand(f"r[{value}]"))
    except InventoryError as error:
        raise click.BadParameter(error.message) from None


@dataclass(frozen=True)
class Scrolling:
    """Describes whose lines scroll. only: the ranks whose lines scroll; None for all. first: only the lines of each
    node's first rank scroll. fold: equal lines are shown as one. typed: the option's value."""

    only: frozenset[int] | None = None
    first: bool = False
    fold: bool = True
    typed: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.typed

    def __call__(self, rank: int, first: int | None) -> bool:
        """Returns whether this rank's lines scroll. first: the first rank of its node."""
        return rank == first if self.first else self.only is None or rank in self.only


def _scrolling(ctx: click.Context, param: click.Parameter, value: str | None) -> Scrolling:
    try:
        only = None if value in ("first", None) else ranks(str(value))
        return Scrolling(only, value == "first", not ctx.params.pop("no_fold", False), value or "")
    except click.BadParameter as error:
        raise click.BadParameter(f"{error.message}; or 'first', each node's") from None


EACH_LINE = "Print each line of each rank, also those that several ranks write at once."


def ranks_option(command: F) -> F:
    """Decorator: adds --ranks and --no-fold."""
    command = no_fold_option(MEANWHILE, EACH_LINE, is_eager=True)(command)
    text = "Show only these ranks' lines; first: each node's first. The logs have all."
    about: dict[str, Any] = {"cls": FleetOption, "daily": True, "metavar": "LIST|first", "help": text}
    return click.option("--ranks", callback=_scrolling, section=MEANWHILE, **about)(command)


def no_fold_option(
    section: str | None = None, text: str = "Print lines as they come, each after its host's name.", **more: Any
) -> Callable[[F], F]:
    """Decorator: adds --no-fold."""
    return click.option("--no-fold", cls=FleetOption, section=section, is_flag=True, help=text, **more)


def parse_ports(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[int]:
    """Returns ports and ranges of them ("29500", "29500-29510") as a sorted list."""
    from fleet.inventory.fields import port

    found: set[int] = set()
    for value in values:
        first, dash, last = value.partition("-")
        try:
            ports = range(port(first), port(last if dash else first) + 1)
        except InventoryError:
            raise click.BadParameter(f"{value!r}: a port is 1 to 65535, a range 29500-29510") from None
        if not ports:
            raise click.BadParameter(f"{value!r} is an empty range")
        found.update(ports)
    return sorted(found)


def size(value: str) -> float:
    """Type of an option: parses a number of bytes."""
    if (found := bytes_of(value)) is None:
        raise click.BadParameter(f"{value!r} is no size: 50GB, 1.5TiB")
    return found


def patience(value: str) -> bool | float:
    """Type of an option: parses whether to wait, or how many seconds at most."""
    if value in ("true", "false"):
        return value == "true"
    try:
        return float(Limited(Launch, "wait").convert(value, None, None))
    except click.UsageError as error:
        hint = f"--wait 3600 is an hour; without a limit, with a script of that name: --wait=true {quote(value)}"
        raise UsageError(error.message, hint=hint) from None


def when(value: str) -> float:
    """Type of an option: parses a time to seconds since the epoch."""
    if (found := read_time(value.strip(), time.time())) is None:
        raise click.BadParameter(f"{value!r} is no time: 90s, 5m, 1h30m ago; 22:46; '2026-11-21 22:46'")
    return found


def read_time(text: str, now: float) -> float | None:
    """Returns seconds since the epoch; None for an invalid time. Durations are in the past: "90", "90s", "5m", "1h30m",
    "2d". "22:46" and "22:46:10" mean their last occurrence. "2026-11-21" and "2026-11-21 22:46" are absolute."""
    if text and (found := _AGO.fullmatch(text)):
        return now - sum(
            float(n) * unit for n, unit in zip(found.groups(default="0"), (86400, 3600, 60, 1), strict=True)
        )
    try:
        if _CLOCK.fullmatch(text):
            today = datetime.fromtimestamp(now)
            at = datetime.combine(today, datetime.strptime(text, "%H:%M:%S" if text.count(":") > 1 else "%H:%M").time())
            return (at if at <= today else at - timedelta(days=1)).timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
