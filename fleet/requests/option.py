"""An option, declared once: a field of a request has its default, its range, and its description at every door."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

HELP, FLAGS, METAVAR, COMPLETES, DAILY = "help", "flags", "metavar", "completes", "daily"  # of a field's metadata


def option(
    default: Any,
    help: str,
    *flags: str,
    metavar: str | None = None,
    completes: str | None = None,
    limits: Mapping[str, Any] = {},
    daily: bool = False,
) -> Any:
    """A field of a request that is an option. help: a sentence or two. flags: as it is typed, where that is not its
    name. metavar: what its value is called. completes: the function of cli/line/complete.py that knows its values.
    limits: its number, or each of its numbers, is `within` these. daily: a verb with many options shows it first."""
    about = {HELP: help, FLAGS: flags, METAVAR: metavar, COMPLETES: completes, DAILY: daily}
    return field(default=default, metadata={**about, **limits})
