"""Numbers as people read and type them: bytes and seconds."""

from __future__ import annotations

import pytest

from fleet.rules.units import bytes_of, few, seconds, size


@pytest.mark.parametrize(
    ("n", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (10 << 30, "10 GiB"),
        (500 << 30, "500 GiB"),
        (5 << 50, "5120 TiB"),
        (1536, "1.5 KiB"),
    ],
)
def test_sizes(n: int, text: str) -> None:
    assert size(n) == text


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("50GB", 50e9), ("1.5 GiB", 1.5 * 2**30), ("2t", 2e12), ("7", 7), ("", None), ("GB", None), ("-1", None)],
)
def test_a_size_in_words(text: str, bytes_: float | None) -> None:
    assert bytes_of(text) == bytes_


@pytest.mark.parametrize(
    ("s", "text"), [(0.0005, "0.5 ms"), (1.5, "1.5 s"), (600, "10 min"), (7200, "2 h"), (864000, "10 d")]
)
def test_durations(s: float, text: str) -> None:
    assert seconds(s) == text


@pytest.mark.parametrize(
    ("there", "known", "text"),
    [
        (5, 5, "0, 1, 2, 3, 4"),
        (6, 6, "0, 1, 2, 3, 4, 5"),
        (7, 7, "0, 1, 2, 3, 4 and 2 more"),
        (6, 5, "0, 1, 2, 3, 4 and 1 more"),
        (900, 6, "0, 1, 2, 3, 4 and 895 more"),
    ],
)
def test_of_a_list_the_last_is_named_where_only_one_is_left(there: int, known: int, text: str) -> None:
    assert few(map(str, range(known)), 5, there) == text
