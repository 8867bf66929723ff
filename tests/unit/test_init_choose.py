"""What `fleet init` makes of what hosts tell: addresses, interpreters, and an inventory with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.errors import InventoryError
from fleet.ops.init import choose
from fleet.ops.init.choose import Address, proposed
from tests.inventories import OLD, yaml


def address(text: str, network: str, speed: int = 1000, leads_here: bool = False) -> Address:
    return Address(text, network, speed, leads_here)


def test_the_address_at_which_all_reach_it() -> None:
    docker = address("172.17.0.1", "172.17.0.0/16")
    candidates = {
        "a": [address("203.0.113.1", "203.0.113.0/24", 9000, True), address("10.0.0.1", "10.0.0.0/24"), docker],
        "b": [address("203.0.113.2", "203.0.113.0/24", 9000, True), address("10.0.0.2", "10.0.0.0/24"), docker],
    }
    everything = {"a": {"203.0.113.1", "10.0.0.1"}, "b": {"203.0.113.2", "10.0.0.2"}}
    assert choose.data_addresses(candidates, everything) == {"a": "10.0.0.1", "b": "10.0.0.2"}
    only_public = {"a": {"203.0.113.1"}, "b": {"203.0.113.2"}}
    assert choose.data_addresses(candidates, only_public) == {"a": "203.0.113.1", "b": "203.0.113.2"}
    assert choose.data_addresses(candidates, {"a": {"10.0.0.1"}}) == {"a": "10.0.0.1", "b": None}


def test_of_two_private_networks_the_one_that_ssh_does_not_come_by_then_the_faster() -> None:
    slow, fast = address("10.1.0.1", "10.1.0.0/24", 1000), address("10.2.0.1", "10.2.0.0/24", 100_000)
    ssh = address("192.168.0.1", "192.168.0.0/24", 200_000, True)
    reached = {"a": {"10.1.0.1", "10.2.0.1", "192.168.0.1"}}
    assert choose.data_addresses({"a": [ssh, slow, fast]}, reached) == {"a": "10.2.0.1"}


def test_addresses_that_nobody_else_can_use_are_not_tried() -> None:
    facts: Any = {
        "interfaces": [
            {"name": "lo0", "state": "up", "speed": None, "addresses": ["127.0.0.1/8", "::1/128"]},
            {"name": "eth0", "state": "up", "speed": 10, "addresses": ["10.0.0.5/24", "fe80::1/64", "fd00::5/64"]},
            {"name": "eth1", "state": "down", "speed": 10, "addresses": ["10.9.0.5/24"]},
        ],
        "head_interface": "eth0",
    }
    found = choose.addresses(facts, "203.0.113.1")
    assert [each.text for each in found] == ["10.0.0.5", "fd00::5", "203.0.113.1"]
    assert choose.addresses(facts, "10.0.0.5")[-1].text == "fd00::5"


def test_the_interpreter_that_trains() -> None:
    def python(path: str, torch: str | None, cuda: str | None = None) -> dict[str, Any]:
        return {"path": path, "version": "3.11.7", "torch": torch, "cuda": cuda}

    gpu = [{"name": "H100"}]
    facts: Any = {
        "a": {
            "gpus": gpu,
            "interpreters": [python("/a", "2.0"), python("/b", "2.1", "12.4"), python("/c", "2.1", "12")],
        },
        "b": {"gpus": gpu, "interpreters": [python("/c", "2.1", "12"), python("/usr/bin/python3", None)]},
        "c": {"gpus": [], "interpreters": [python("/usr/bin/python3", None)]},
    }
    inventory = yaml("hosts: [a, b, c]")
    assert {name: one["path"] for name, one in choose.interpreters(inventory, facts).items()} == {"a": "/c", "b": "/c"}
    # the one of the inventory, or where there is none of the head's environment, wherever it lies
    facts["b"]["python"] = facts["c"]["python"] = {"path": "/odd/python", "version": "3.12.1"}
    facts["b"]["torch"] = facts["c"]["torch"] = {"version": "2.6.0"}
    inventory = yaml("hosts: {a: {}, b: {python: /odd/python}, c: {}}")
    found = choose.interpreters(inventory, facts)
    assert {name: one["path"] for name, one in found.items()} == {"a": "/c", "b": "/odd/python", "c": "/odd/python"}
    facts["c"]["torch"] = None
    assert "c" not in choose.interpreters(inventory, facts)


def test_what_is_not_as_the_inventory_has_it_is_told() -> None:
    host = yaml("hosts: {a: {slots: 8, python: /x}}").hosts[0]
    facts: Any = {"gpus": [{"name": "H100"}] * 4, "torch": None, "pci_gpus": 4}
    python: Any = {"path": "/b", "version": "3.11.7", "torch": "2.6.0", "cuda": "12.4"}
    said = [" | ".join(each) for each in choose.problems(host, facts, python, None, False)]
    assert said[0] == "/x, its python, has no torch | /b has: torch 2.6.0 (CUDA 12.4)"
    assert said[1] == "slots: 8, and 4 GPUs there | slots: 4"
    assert "none of its addresses" in said[2] and len(said) == 3
    assert "no driver" in choose.problems(host, {"pci_gpus": 2, "gpus": []}, python, "x", False)[-1][0]
    assert choose.problems(host, {"torch": {}}, None, None, True)[0][0] == "no interpreter there has torch"


def test_what_goes_into_the_inventory() -> None:
    inventory = yaml("hosts: {a: {address: 10.0.0.1}, b: {address: 203.0.113.2, slots: 2}, c: {}}")
    python = {"path": "/b", "version": "3.11.7", "torch": "2.6.0", "cuda": "12.4"}
    gpus = [{"name": "NVIDIA H100"}] * 8
    told: Any = {"gpus": gpus, "interpreters": [python], "hostname": "box", "disks": {"workdir": {"exists": False}}}
    facts: Any = {"a": told, "b": {**told, "hostname": "other"}}
    candidates = {"a": [address("10.0.0.1", "x")], "b": [address("10.0.0.2", "x")]}
    found = choose.findings_of(inventory, facts, candidates, {"a": {"10.0.0.1"}, "b": {"10.0.0.2"}}, "my work")
    assert found["a"].fields == {"slots": 8, "python": "/b", "workdir": "~/fleet/my-work"}
    assert found["b"].fields == {"data_address": "10.0.0.2", "python": "/b", "workdir": "~/fleet/my-work"}
    assert found["c"].fields == {"workdir": "~/fleet/my-work"} and not any(each.problems for each in found.values())
    assert found["a"].remark == "box: 8 x NVIDIA H100, Python 3.11.7, torch 2.6.0 (CUDA 12.4)"
    twice = choose.findings_of(inventory, {**facts, "b": told}, candidates, {"a": {"10.0.0.1"}, "b": {"10.0.0.2"}})
    assert [message for message, _ in twice["b"].problems] == ["is the machine that a is"]
    facts["a"]["disks"]["workdir"]["exists"] = facts["b"]["disks"]["workdir"]["exists"] = True
    assert "workdir" not in choose.findings_of(inventory, facts, candidates, {})["a"].fields


def test_what_has_no_place_is_told_and_nothing_is_changed_in_silence() -> None:
    path = Path("fleet.yaml")
    there = yaml(OLD)
    hosts = tuple(replace(host, data_address="10.0.0.5") if host.name == "gpu5" else host for host in there.hosts)
    text, left = proposed(path, OLD, replace(there, hosts=hosts), frozenset(), {})
    own = "gpu5: {data_address: 10.0.0.5, slots: 2}\n  gpu6: {slots: 2}"
    assert text == OLD.replace("gpu[5-6]: {slots: 2}", own) and left == {}
    block = OLD.replace("gpu[5-6]: {slots: 2}", "gpu[5-6]:\n    slots: 2")
    text, left = proposed(path, block, replace(there, hosts=hosts), frozenset(), {})
    assert text == block and left == {"gpu5": {"data_address": "10.0.0.5"}}


EVIL = [
    "box\nhosts: {evil: {activate: touch /tmp/owned}}",
    "box\r  gpu9: {activate: x}",
    "box\u2028activate: x",
    "box\x85\x0b\x0c\x1c  a: {}",
    "\x1b]0;owned\x07\u202e",
    "box: {} # [&*!|>'\"%@`",
    "\ud800\udcff",
    "--- ...",
    "x" * 4096,
]


@pytest.mark.parametrize("said", EVIL)
@pytest.mark.parametrize("old", [None, "hosts:\n  a: {user: me}\n", "hosts: {a: {user: me}}"])
def test_what_a_node_says_of_itself_is_no_part_of_the_file(said: str, old: str | None) -> None:
    """Its name, its GPUs, its python: a comment of one line, fields that fit, or nothing of it; no host, no key."""
    given = yaml("hosts: {a: {user: me}, b: {user: me}}")
    python: Any = {"path": f"/{said}", "version": said, "torch": said, "cuda": said}
    facts: Any = {"b": {"hostname": said, "gpus": [{"name": said}] * 5000, "interpreters": [python]}}
    found = choose.findings_of(given, facts, {"b": [address("10.0.0.1", "x")]}, {"b": {"10.0.0.1"}})
    filled = replace(given, hosts=tuple(replace(host, **found[host.name].fields) for host in given.hosts))
    remarks = {name: each.remark for name, each in found.items()}
    text, left = proposed(Path("fleet.yaml"), old, filled, frozenset({"b"} if old else {"a", "b"}), remarks)
    again = yaml(text)
    assert again.hosts == filled.hosts and not left and again.sync == {} and again.env == {}
    unfit = [message for message, _ in found["b"].problems if "fits no inventory" in message]
    assert any("slots" in message for message in unfit) and not (again.host("b").slots or again.host("b").activate)
    assert all(character == "\n" or character.isprintable() for character in text)
    lines = text.splitlines()
    assert len(lines) == text.count("\n") + (not text.endswith("\n")) and max(map(len, lines)) < 5000


def test_nothing_is_written_that_is_read_as_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever leads to it: a new file and an added-to one are read again first."""
    given = yaml("hosts: {a: {}, b: {}}")
    for old, new in ((None, {"a", "b"}), ("hosts:\n  a: {}\n", {"b"})):
        for remark in ("x\n  c: {activate: y}", "x\nenv: {PATH: /evil}", "x\nsync: {code: /}", "x\n: ["):
            with monkeypatch.context() as patch:
                patch.setattr("fleet.inventory.write.printable", lambda text, most: text)  # as it once was
                with pytest.raises(InventoryError):
                    proposed(Path("fleet.yaml"), old, given, frozenset(new), {"b": remark})


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"python": {}, "torch": {}, "disks": {}},
        {"python": {"version": "3"}, "torch": {"version": None}},
        {"python": {"path": "/x", "version": "3"}, "torch": {"cuda": "12"}},
        {"python": {"path": "", "version": ""}, "torch": None, "gpus": None, "pci_gpus": None},
        {"disks": {"workdir": {"exists": True, "path": "", "writable": True, "free": -1, "total": 0}}},
    ],
)
def test_facts_that_are_not_there_end_nothing(odd: Any) -> None:
    facts = {"a": {key: value for key, value in odd.items() if value is not None}, "b": {"hostname": "b"}}
    inventory = yaml("hosts: [a, b]")
    candidates = {name: choose.addresses(told, f"{name}.example") for name, told in facts.items()}
    found = choose.findings_of(inventory, facts, candidates, {})
    assert set(found) == {"a", "b"} and found["b"].remark.startswith("b: no GPU")
