"""How long a peer was silent."""

from __future__ import annotations

from fleet.transport.base import Watchdog
from tests.unit.conftest import Clock


def test_time_in_which_we_were_held_up_is_nobodys_silence(clock: Clock) -> None:
    silent = Watchdog()
    for _ in range(20):
        clock.now += 0.5
        waited = silent.seconds()
    assert waited == 10.0
    clock.now += 3600
    assert silent.seconds() == 10.0
    clock.now += 0.5
    assert silent.seconds() == 10.5
    silent.received()
    assert silent.seconds() == 0.0
