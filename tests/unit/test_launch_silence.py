"""Whose fault silence is."""

from __future__ import annotations

import pytest

from fleet.node.gang.silence import Silence
from fleet.ops.run.follow.follow import pause_after


def seen(silence: Silence, *steps: tuple[float, dict[str, float | None]], wait: bool = True) -> list[dict[str, float]]:
    return [silence.over(since, now, wait) for now, since in steps]


def test_one_of_many_is_lost() -> None:
    lost = seen(Silence(15, 120), (14.9, {"a": 0.0, "b": None}), (15.0, {"a": 0.0, "b": None}))
    assert lost == [{}, {"a": 15.0}]


@pytest.mark.parametrize("since", [{"a": 0.0, "b": 1.0}, {"a": 0.0}])
def test_all_at_once_are_waited_for_as_long_as_they_go_on(since: dict[str, float | None]) -> None:
    silence = Silence(15, 120)
    assert seen(silence, (14, since)) == [{}] and not silence.alone
    assert seen(silence, (30, since), (119, since)) == [{}, {}] and silence.alone
    assert seen(silence, (120, since)) == [{host: 120 - (began or 0) for host, began in since.items()}]


def test_without_a_lease_they_are_waited_for_for_ever() -> None:
    assert seen(Silence(15, None), (1e6, {"a": 0.0, "b": 0.0})) == [{}]


def test_who_does_not_come_back_with_the_others_is_lost() -> None:
    silence = Silence(15, 120)
    assert seen(silence, (60, {"a": 0.0, "b": 0.0}), (74, {"a": 0.0, "b": None})) == [{}, {}]
    assert seen(silence, (75, {"a": 0.0, "b": None})) == [{"a": 15.0}] and not silence.alone


def test_who_refuses_us_shows_that_the_link_is_whole() -> None:
    assert seen(Silence(15, 120), (15, {"a": 0.0, "b": 0.0}), wait=False) == [{"a": 15.0, "b": 15.0}]


def test_a_lease_that_is_shorter_than_the_patience() -> None:
    assert seen(Silence(15, 5), (14, {"a": 0.0}), (15, {"a": 0.0})) == [{}, {"a": 15.0}]


def test_what_is_gone_for_long_is_tried_seldom() -> None:
    assert [pause_after(seconds, 0.5) for seconds in (0.0, 10.0, 300.0, 86400.0)] == [0.5, 0.5, 10.0, 60.0]
