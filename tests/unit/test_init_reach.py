"""Who visits whom, so that init knows at which addresses hosts reach each other."""

from __future__ import annotations

from typing import Any

from fleet.model import Host
from fleet.ops.init import ask
from fleet.ops.init.choose import Address
from tests.hostile import PREAMBLE, Node, frame
from tests.in_process import fleet_over
from tests.unit.conftest import Clock


def address(text: str) -> Address:
    return Address(text, "", 0, False)


def test_each_host_is_visited_by_its_neighbours_only() -> None:
    names = [f"n{i}" for i in range(100)]
    specs, wanted = ask.plan_visits(names, {name: [address(name), address(f"{name}.2")] for name in names})
    assert {len(spec["visits"]) for spec in specs.values()} == {2 * ask.NEIGHBOURS}
    assert {spec["visitors"] for spec in specs.values()} == {2 * ask.NEIGHBOURS}
    assert len({spec["token"] for spec in specs.values()}) == len(names)
    ids = {visit for addresses in wanted.values() for visits in addresses.values() for visit in visits}
    assert len(ids) == 100 * 2 * ask.NEIGHBOURS
    two, _ = ask.plan_visits(["a", "b"], {"a": [address("a")], "b": [address("b")]})
    assert [visit["address"] for visit in two["a"]["visits"]] == ["b"]


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
    found = fleet_over(Beating(), *hosts).run(lambda runtime: ask.reach(hosts, candidates, runtime))
    assert found == {"a": set(), "b": set()} and clock.now < 1000.0
