"""At which addresses hosts reach each other, as init finds it."""

from __future__ import annotations

from typing import Any

from fleet.model import Host
from fleet.ops.init import ask
from fleet.ops.init.choose import Address
from fleet.ops.sessions import Sessions
from tests.hostile import PREAMBLE, Node, frame
from tests.in_process import fleet_over
from tests.unit.conftest import Clock


def address(text: str) -> Address:
    return Address(text, "", 0, False)


def test_init_waits_for_no_node_that_only_lives(clock: Clock) -> None:
    class Beating(Node):
        """Lives, and says no more."""

        def start(self, command: str) -> Any:
            self._left = [PREAMBLE]
            return self

        def recv(self, timeout: float) -> bytes:
            clock.now += 0.5
            return super().recv(timeout) or frame(b"H", b"")

    hosts = (Host("a", "a"), Host("b", "b"))
    candidates = {host.name: [address("10.0.0.1")] for host in hosts}
    found = fleet_over(Beating(), *hosts).run(lambda runtime: ask.reach(hosts, candidates, Sessions(runtime)))
    assert found == {"a": set(), "b": set()} and clock.now < 1000.0
