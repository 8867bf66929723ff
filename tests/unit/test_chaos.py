"""`make chaos`'s table: a row is as expected only when all of it is; nothing of it is hidden when it is not."""

from __future__ import annotations

import dataclasses

import pytest

from tests.chaos.table import Fault, Row, Seen

FAULT = Fault("it breaks", lambda ground: GOOD, 3, "^rank on lab03: .*code 3", "logs equal")
GOOD = Seen(3, "rank on lab03: exit code 3", "logs equal")


def test_a_row_as_expected() -> None:
    row = Row(FAULT, GOOD, 1.25, ())
    assert row.ok
    assert str(row) == (
        "| it breaks | ^rank on lab03: .*code 3 | rank on lab03: exit code 3 | 1.2 | 3 | logs equal | none | ok |"
    )


@pytest.mark.parametrize(
    "other, told",
    [
        ({"code": 0}, "| 0 (expected 3) |"),
        ({"cause": "rank on lab02: code 3"}, "| rank on lab02: code 3 |"),
        ({"digests": "cut at lab01"}, "| cut at lab01 (expected logs equal) |"),
    ],
)
def test_whatever_is_not_as_expected_is_told(other: dict[str, object], told: str) -> None:
    row = Row(FAULT, dataclasses.replace(GOOD, **other), 1.0, ())  # type: ignore[arg-type]
    assert not row.ok and told in str(row) and "NOT OK" in str(row)


def test_a_leftover_is_not_as_expected() -> None:
    row = Row(FAULT, GOOD, 1.0, ("process on lab01: sleep 1000",))
    assert not row.ok and "process on lab01: sleep 1000" in str(row)
