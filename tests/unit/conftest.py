"""Runs that a test starts on this machine are noted in a home folder of its file's own: no other test, and no other
worker's, finds them there and waits or refuses for them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


class Clock:
    """What time.monotonic() returns: `now`, which the test moves on."""

    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock
