"""Things that one thread makes for all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet.each import failed
from fleet.errors import ConnectError, FleetError
from fleet.model import Host
from fleet.transport.base import Once


def test_what_keeps_a_thing_from_being_made_is_reported_of_each_host() -> None:
    """failed() names the host of an error that names none."""
    things = Once[int](lambda made: True)

    def make() -> int:
        raise ConnectError("no space", hint="free some", kind="refused")

    def one(name: str) -> str:
        with pytest.raises(ConnectError) as raised:
            things.get(None, make)
        error = failed(Host(name, name), raised.value).error
        assert isinstance(error, FleetError) and (error.kind, error.hint) == ("refused", "free some")
        return str(error)

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(one, "abc")] == [f"host {name}: no space" for name in "abc"]
