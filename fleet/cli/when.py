"""A time on the command line: so long ago, or by the clock of this machine."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta

import click

_AGO = re.compile(r"(?:(\d+(?:\.\d+)?)d)?(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)
_CLOCK = re.compile(r"\d{1,2}:\d\d(:\d\d)?", re.ASCII)


def when(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Callback of an option: seconds since the epoch."""
    if value is None:
        return None
    if (found := read_time(value.strip(), time.time())) is None:
        raise click.BadParameter(f"{value!r} is no time: 90s, 5m, 1h30m ago; 22:46; '2026-11-21 22:46'")
    return found


def read_time(text: str, now: float) -> float | None:
    """ "90", "90s", "5m", "1h30m", "2d" ago; "22:46", "22:46:10", the last time that it was; "2026-11-21",
    "2026-11-21 22:46". Seconds since the epoch; None for what is no time."""
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
