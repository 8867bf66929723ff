"""Times on the command line."""

from __future__ import annotations

from datetime import datetime

import pytest

from fleet.cli.line.values import read_time

NOW = datetime(2026, 11, 22, 6, 30, 15).timestamp()


@pytest.mark.parametrize(
    "text, ago",
    [
        ("90", 90),
        ("90s", 90),
        ("1.5m", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1d2h", 93600),
        ("06:30", 15),
        ("6:29:15", 60),
        ("06:31", 86400 - 45),
        ("2026-11-22", 6.5 * 3600 + 15),
        ("2026-11-22 06:00", 1815),
        ("2026-11-22T06:30:00", 15),
    ],
)
def test_a_time_is_so_long_ago_or_by_the_clock(text: str, ago: float) -> None:
    assert read_time(text, NOW) == pytest.approx(NOW - ago)


@pytest.mark.parametrize("text", ["", "s", "5x", "-5m", "25:00", "12:60", "yesterday", "m5", "2026-13-01", "٣s"])
def test_what_is_no_time(text: str) -> None:
    assert read_time(text, NOW) is None
