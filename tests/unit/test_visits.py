"""How hosts are brought to dial each other: at which addresses, and what a host can do to the others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fleet.codec import Misfit, decode
from fleet.events import silent
from fleet.model import Host, Node
from fleet.node.facts.way import resolve
from fleet.ops import network, pairs
from fleet.ops.run.follow.stacks import Taking
from fleet.ops.run.kept.record import RunRecord, about_of
from fleet.ops.sessions import Sessions
from fleet.protocol.messages.facts import Listening
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from tests.scripted import Scripted

HOSTS = tuple(Host(f"n{n}", f"10.0.0.{n}") for n in range(2))


def listens(*addresses: str) -> dict[str, Any]:
    return {"addresses": [*addresses], "ports": [1] * len(addresses), "error": None}


def visited(said: Mapping[str, dict[str, Any]], **results: list[Any]) -> pairs.Visited:
    """Returns what comes of hosts that listen as they say, and reach all. results: what the first one sends instead."""
    over = {"reached": ["open"], "links": [None]}
    first = {"n0": {**over, **results}}
    transport = Scripted({name: {"pairs": [each, first.get(name, over)]} for name, each in said.items()})
    with closing(Sessions(Runtime(transport, emit=silent, cancel=Cancel()))) as sessions:
        return pairs.visit(HOSTS, {}, [{"n0": ["n1"], "n1": ["n0"]}], sessions)


def test_a_host_has_the_others_dial_no_more_addresses_than_it_was_to_listen_at() -> None:
    assert visited({"n0": listens("10.0.0.1"), "n1": listens("10.0.0.2")}).how
    assert not visited({"n0": listens("10.0.0.1"), "n1": listens(*["10.0.0.2"] * 9)}).how


@pytest.mark.parametrize(
    "results", [{"reached": []}, {"reached": ["open"] * 2}, {"links": []}, {"links": [None] * 2}], ids=str
)
def test_of_a_host_with_results_of_other_visits_nothing_is_known(results: dict[str, list[Any]]) -> None:
    listening = {"n0": listens("10.0.0.1"), "n1": listens("10.0.0.2")}
    assert {pair[:2] for pair in visited(listening).how} == {("n0", "n1"), ("n1", "n0")}
    assert {pair[:2] for pair in visited(listening, **results).how} == {("n1", "n0")}


@pytest.mark.parametrize("scope", ["\0", "a" * 99, "/x", "", "a b"])
def test_the_scope_of_an_address_is_the_name_of_an_interface(scope: str) -> None:
    decode(Listening, listens("fe80::1%eth0.7"))
    with pytest.raises(Misfit):
        decode(Listening, listens(f"fe80::1%{scope}"))


def test_one_host_alone_has_no_links() -> None:
    with closing(Sessions(Runtime(Scripted({}), emit=silent, cancel=Cancel()))) as sessions:
        assert network.look(HOSTS[:1], {"n0": {}}, {}, sessions) == network.Measured()


def test_what_can_be_no_name_is_no_fault_of_fleets() -> None:
    assert pairs.master(HOSTS[0], Scripted({}), "a..b") == "a..b"
    with pytest.raises(OSError, match="can be no name"):
        resolve("a..b")


@pytest.mark.parametrize(
    "master, met_at", [("10.9.9.9:29500", "10.9.9.9"), ("[fd00::1]:1", "fd00::1"), ("", "10.0.0.0")]
)
def test_hosts_of_a_run_that_hangs_are_tried_where_its_ranks_meet(master: str, met_at: str, tmp_path: Path) -> None:
    """Their own addresses may be in another network, which is closed by right."""
    record = RunRecord(
        "r",
        tuple(Node(host, n, 1, n) for n, host in enumerate(HOSTS)),
        tmp_path,
        about_of({}, engine="command", master=master),
    )
    transport = Scripted({host.name: {"own_pairs": [listens("10.9.9.9")], "stacks": []} for host in HOSTS})
    Taking("stalled", record, {}, transport).run()
    ways = [spec["way"] for _, program, spec in transport.sent if program == "own_pairs"]
    assert [way["master"] for way in ways] == [met_at] * 2


VARIABLE = {"NCCL_SOCKET_IFNAME": "ib0"}


@pytest.mark.parametrize(
    "document, tried",
    [
        ({"launch": {"env": {"A": "b"}}, "inventory": {"env": {}, "hosts": [{"env": {}}]}}, True),
        ({"launch": {"env": VARIABLE}}, False),
        ({"launch": {"env_expand": {"GLOO_SOCKET_IFNAME": None}}}, False),
        ({"inventory": {"env": VARIABLE}}, False),
        ({"inventory": {"env": {}, "hosts": [{"env": {}}, {"env": VARIABLE}]}}, False),
        ({"launch": 1, "inventory": {"hosts": [1, {"env": [2]}]}}, True),
    ],
)
def test_of_an_interface_that_variables_name_no_other_one_is_the_cause(
    document: dict[str, Any], tried: bool, tmp_path: Path
) -> None:
    nodes = tuple(Node(host, n, 1, n) for n, host in enumerate(HOSTS))
    (tmp_path / "run.json").write_text(json.dumps(document))
    transport = Scripted({host.name: {"own_pairs": [listens("10.9.9.9")], "stacks": []} for host in HOSTS})
    Taking(
        "stalled", RunRecord("r", nodes, tmp_path, about_of({}, engine="command", master="h:1")), {}, transport
    ).run()
    assert tried is any(program == "own_pairs" for _, program, _ in transport.sent)
