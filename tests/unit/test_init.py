"""`fleet init`: where hosts come from, what is chosen of what they tell, and how a file is added to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.cli.main import run
from fleet.errors import InventoryError
from fleet.inventory import write
from fleet.inventory.write import Edit, render
from fleet.inventory.yaml_file import parse_yaml
from fleet.ops import init
from fleet.ops.init import ask, choose
from fleet.ops.init.choose import Address, proposed
from fleet.ops.init.sources import Given, of_ssh_config, read
from fleet.protocol.decode import Misfit, decode
from fleet.protocol.messages.facts import Facts, Probed
from tests.liar import steady
from tests.schemas import fitting

OLD = """\
# my hosts
defaults: {user: root, workdir: ~/work}   # everybody

hosts:
  # the big one
  gpu1: {slots: 8}   # new fans
  gpu2:
    port: 33   # odd
  gpu3:
  gpu[5-6]: {slots: 2}   # twins
  # no more of them

groups: {a: gpu1}
"""


# -- where hosts come from --------------------------------------------------------------------------------------
def test_pasted_lines_get_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host node2 other*\n  User me\n")
    lines = b"ssh root@1.2.3.4 -p 33021 -L 8080:localhost:8080\nssh -p 33022 root@1.2.3.4\nroot@5.6.7.8\nroot@gpu1\n"
    given = read(lines, "<stdin>", None, tmp_path)
    assert given.inventory.names == ("node1", "node3", "node4", "gpu1")
    assert [(h.address, h.port) for h in given.inventory.hosts[:2]] == [("1.2.3.4", 33021), ("1.2.3.4", 33022)]
    assert given.notes == ("<stdin>:1: '-L 8080:localhost:8080' says nothing about a host: left out",)
    old = parse_yaml("hosts: {node1: {address: 5.6.7.8}, node3: {address: 9.9.9.9}}", "fleet.yaml")
    assert read(lines, "<stdin>", old, tmp_path).inventory.names == ("node4", "node5", "node1", "gpu1")


def test_a_hostfile_and_an_inventory_keep_their_names(tmp_path: Path) -> None:
    assert read(b"10.0.0.1 slots=4\ngpu2:8\n", "hostfile", None, tmp_path).inventory.names == ("10.0.0.1", "gpu2")
    assert read(b"hosts: {a: {}, b: {port: 3}}", "x", None, tmp_path).inventory.names == ("a", "b")


def test_the_hosts_of_an_ssh_config(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    config = tmp_path / ".ssh/config"
    text = (
        "Include more\nHost gpu1 gpu1-*\n  HostName 10.0.0.1\n  Port 33\n  User me\n  IdentityFile ~/.ssh/x\n"
        "Host github.com\n  User git\nHost *\n  ProxyJump bastion\n"
        "# begin fleet 'x-123456'\nHost lab01\n  Port 1\n# end fleet 'x-123456'\n"
    )
    config.write_text(text)
    (tmp_path / ".ssh/more").write_text("Host gpu0\n")
    given = of_ssh_config(tmp_path)
    assert given.inventory.names[:2] == ("gpu0", "gpu1") and "github.com" not in given.inventory.names
    assert [(h.address, h.port, h.user) for h in given.inventory.hosts[:2]] == [
        (n, None, None) for n in ("gpu0", "gpu1")
    ]
    host = read(text.encode(), str(tmp_path / "other"), None, tmp_path).inventory.host("gpu1")
    assert (host.address, host.port, host.user, host.proxy_jump) == ("10.0.0.1", 33, "me", "bastion")
    config.write_text("Host *\n  User me\n")
    with pytest.raises(InventoryError, match="names no hosts"):
        of_ssh_config(tmp_path)


# -- what is chosen -------------------------------------------------------------------------------------------------
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
    inventory = parse_yaml("hosts: [a, b, c]", "f")
    assert {name: one["path"] for name, one in choose.interpreters(inventory, facts).items()} == {"a": "/c", "b": "/c"}
    # the one of the inventory, or where there is none of the head's environment, wherever it lies
    facts["b"]["python"] = facts["c"]["python"] = {"path": "/odd/python", "version": "3.12.1"}
    facts["b"]["torch"] = facts["c"]["torch"] = {"version": "2.6.0"}
    inventory = parse_yaml("hosts: {a: {}, b: {python: /odd/python}, c: {}}", "f")
    found = choose.interpreters(inventory, facts)
    assert {name: one["path"] for name, one in found.items()} == {"a": "/c", "b": "/odd/python", "c": "/odd/python"}
    facts["c"]["torch"] = None
    assert "c" not in choose.interpreters(inventory, facts)


def test_what_is_not_as_the_inventory_has_it_is_told() -> None:
    host = parse_yaml("hosts: {a: {slots: 8, python: /x}}", "f").hosts[0]
    facts: Any = {"gpus": [{"name": "H100"}] * 4, "torch": None, "pci_gpus": 4}
    python: Any = {"path": "/b", "version": "3.11.7", "torch": "2.6.0", "cuda": "12.4"}
    said = [" | ".join(each) for each in choose.lacks(host, facts, python, None, False)]
    assert said[0] == "/x, its python, has no torch | /b has: torch 2.6.0 (CUDA 12.4)"
    assert said[1] == "slots: 8, and 4 GPUs there | slots: 4"
    assert "none of its addresses" in said[2] and len(said) == 3
    assert "no driver" in choose.lacks(host, {"pci_gpus": 2, "gpus": []}, python, "x", False)[-1][0]
    assert choose.lacks(host, {"torch": {}}, None, None, True)[0][0] == "no interpreter there has torch"


def test_what_goes_into_the_inventory() -> None:
    inventory = parse_yaml("hosts: {a: {address: 10.0.0.1}, b: {address: 203.0.113.2, slots: 2}, c: {}}", "f")
    python = {"path": "/b", "version": "3.11.7", "torch": "2.6.0", "cuda": "12.4"}
    gpus = [{"name": "NVIDIA H100"}] * 8
    told: Any = {"gpus": gpus, "interpreters": [python], "hostname": "box", "disks": {"workdir": {"exists": False}}}
    facts: Any = {"a": told, "b": {**told, "hostname": "other"}}
    candidates = {"a": [address("10.0.0.1", "x")], "b": [address("10.0.0.2", "x")]}
    found = choose.found(inventory, facts, candidates, {"a": {"10.0.0.1"}, "b": {"10.0.0.2"}})
    assert found["a"].fields == {"slots": 8, "python": "/b", "workdir": "~/work"}
    assert found["b"].fields == {"data_address": "10.0.0.2", "python": "/b", "workdir": "~/work"}
    assert found["c"].fields == {"workdir": "~/work"} and not any(each.lacks for each in found.values())
    assert found["a"].remark == "box: 8 x NVIDIA H100, Python 3.11.7, torch 2.6.0 (CUDA 12.4)"
    twice = choose.found(inventory, {**facts, "b": told}, candidates, {"a": {"10.0.0.1"}, "b": {"10.0.0.2"}})
    assert [message for message, _ in twice["b"].lacks] == ["is the machine that a is"]
    facts["a"]["disks"]["workdir"]["exists"] = facts["b"]["disks"]["workdir"]["exists"] = True
    assert "workdir" not in choose.found(inventory, facts, candidates, {})["a"].fields


def test_each_host_is_visited_by_its_neighbours_only() -> None:
    names = [f"n{i}" for i in range(100)]
    specs, wanted = ask.plan_visits(names, {name: [address(name, ""), address(f"{name}.2", "")] for name in names})
    assert {len(spec["visits"]) for spec in specs.values()} == {2 * ask.NEIGHBOURS}
    assert {spec["visitors"] for spec in specs.values()} == {2 * ask.NEIGHBOURS}
    assert len({spec["token"] for spec in specs.values()}) == len(names)
    ids = {visit for addresses in wanted.values() for visits in addresses.values() for visit in visits}
    assert len(ids) == 100 * 2 * ask.NEIGHBOURS
    two, _ = ask.plan_visits(["a", "b"], {"a": [address("a", "")], "b": [address("b", "")]})
    assert [visit["address"] for visit in two["a"]["visits"]] == ["b"]


# -- the file ---------------------------------------------------------------------------------------------------------
def plan(tmp_path: Path, given: str, old: str | None = OLD, **more: Any) -> init.InitPlan:
    return init.plan(Path("fleet.yaml"), old, Given(parse_yaml(given, "given")), **more)


def test_hosts_that_are_there_are_found_by_name_and_by_address(tmp_path: Path) -> None:
    old = "defaults: {user: me}\nhosts: {a: {address: 1.2.3.4, port: 33}, b: {}}"
    made = plan(tmp_path, "hosts: {x: {address: 1.2.3.4, port: 33}, b: {}, y: {address: 1.2.3.4, port: 34}}", old)
    assert made.inventory.names == ("a", "b", "y") and made.new == {"y"}
    assert made.inventory.host("y").user == "me"
    with pytest.raises(InventoryError, match=r"given: host a: fleet.yaml has it at 1.2.3.4, not at 1.2.3.5"):
        plan(tmp_path, "hosts: {a: {address: 1.2.3.5}}", old)
    some = plan(tmp_path, "hosts: {y: {address: 1.2.3.4, port: 34}, z: {}}", old, hosts="y,b")
    assert some.inventory.names == ("b", "y") and some.new == {"y"}


def test_what_is_added_leaves_the_rest_as_it_is() -> None:
    edit = Edit(OLD)
    for name in ("gpu1", "gpu2", "gpu3"):
        assert edit.add_fields(name, {"data_address": "10.0.0.1", "python": "~/x y/python"})
    assert not edit.add_fields("gpu5", {"python": "/x"})
    assert edit.add_host("new1", {"address": "1.2.3.4"}, "8 x H100") and edit.add_host("new2", {}, None)
    more = "data_address: 10.0.0.1, python: ~/x y/python}"
    assert edit.text == OLD.replace("{slots: 8}", "{slots: 8, " + more).replace(
        "    port: 33", "    data_address: 10.0.0.1\n    python: ~/x y/python\n    port: 33"
    ).replace("gpu3:", "gpu3: {" + more).replace(
        "# twins\n", "# twins\n  # 8 x H100\n  new1: {address: 1.2.3.4}\n  new2: {}\n"
    )
    assert parse_yaml(edit.text, "f").host("gpu2").port == 33


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hosts: {a: {}, b: {slots: 2}}", "hosts: {a: {port: 3}, b: {slots: 2}, c: {port: 3}}"),
        ("hosts:\n  a:", "hosts:\n  a: {port: 3}\n  c: {port: 3}\n"),
        ("hosts:\n  a: {slots: 2}  # x\n\n# end\n", "hosts:\n  a: {slots: 2, port: 3}  # x\n  c: {port: 3}\n\n# end\n"),
        ("x: &x {}\nhosts:\n  a: *x\n", None),
        ("hosts:\n  a: &x {}\n  b: *x\n", None),
        ("hosts:\n  a: {port: null}\n", None),
        ("hosts: [a, b]\n", None),
    ],
)
def test_forms_of_an_old_file(old: str, new: str | None) -> None:
    edit = Edit(old)
    placed = edit.add_fields("a", {"port": 3}), edit.add_host("c", {"port": 3}, None)
    assert edit.text == new if new else not all(placed)


def test_what_has_no_place_is_told_and_nothing_is_changed_in_silence() -> None:
    path = Path("fleet.yaml")
    there = parse_yaml(OLD, "fleet.yaml")
    hosts = tuple(replace(host, data_address="10.0.0.5") if host.name == "gpu5" else host for host in there.hosts)
    text, left = proposed(path, OLD, replace(there, hosts=hosts), frozenset(), {})
    own = "gpu5: {data_address: 10.0.0.5, slots: 2}\n  gpu6: {slots: 2}"
    assert text == OLD.replace("gpu[5-6]: {slots: 2}", own) and left == {}
    block = OLD.replace("gpu[5-6]: {slots: 2}", "gpu[5-6]:\n    slots: 2")
    text, left = proposed(path, block, replace(there, hosts=hosts), frozenset(), {})
    assert text == block and left == {"gpu5": {"data_address": "10.0.0.5"}}


def test_a_new_file_says_once_what_holds_for_all() -> None:
    inventory = parse_yaml(
        "defaults: {user: root}\nenv: {A: '1'}\nhosts:\n  a: {devices: [0, 2], env: {B: 'x: y'}}\n  b: {slots: 2}\n"
        "groups: {g: a}\nsync: {data: [/x]}",
        "f",
    )
    text = render(inventory, ["hello"], {"a": "the big one"})
    assert text.startswith("# hello\ndefaults:\n  user: root\nenv:\n  A: '1'\nhosts:\n  # the big one\n  a: {")
    again = parse_yaml(text, "f")
    assert (again.hosts, again.env, again.groups, again.sync) == (
        inventory.hosts,
        inventory.env,
        inventory.groups,
        inventory.sync,
    )


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
    given = parse_yaml("hosts: {a: {user: me}, b: {user: me}}", "f")
    python: Any = {"path": f"/{said}", "version": said, "torch": said, "cuda": said}
    facts: Any = {"b": {"hostname": said, "gpus": [{"name": said}] * 5000, "interpreters": [python]}}
    found = choose.found(given, facts, {"b": [address("10.0.0.1", "x")]}, {"b": {"10.0.0.1"}})
    filled = replace(given, hosts=tuple(replace(host, **found[host.name].fields) for host in given.hosts))
    remarks = {name: each.remark for name, each in found.items()}
    text, left = proposed(Path("fleet.yaml"), old, filled, frozenset({"b"} if old else {"a", "b"}), remarks)
    again = parse_yaml(text, "f")
    assert again.hosts == filled.hosts and not left and again.sync == {} and again.env == {}
    unfit = [message for message, _ in found["b"].lacks if "fits no inventory" in message]
    assert any("slots" in message for message in unfit) and not (again.host("b").slots or again.host("b").activate)
    assert all(character == "\n" or character.isprintable() for character in text)
    lines = text.splitlines()
    assert len(lines) == text.count("\n") + (not text.endswith("\n")) and max(map(len, lines)) < 5000


def test_nothing_is_written_that_is_read_as_something_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever leads to it: a new file and an added-to one are read again first."""
    given = parse_yaml("hosts: {a: {}, b: {}}", "f")
    for old, new in ((None, {"a", "b"}), ("hosts:\n  a: {}\n", {"b"})):
        for remark in ("x\n  c: {activate: y}", "x\nenv: {PATH: /evil}", "x\nsync: {code: /}", "x\n: ["):
            with monkeypatch.context() as patch:
                patch.setattr(write, "printable", lambda text, most: text)  # as it once was
                with pytest.raises(InventoryError):
                    proposed(Path("fleet.yaml"), old, given, frozenset(new), {"b": remark})


@pytest.mark.parametrize(
    "odd",
    [
        {"interfaces": [{"name": "e", "addresses": ["bogus"], "state": None, "speed": None, "mtu": None}]},
        {"interfaces": [{"name": "e", "addresses": ["10.0.0.1/99"], "state": None, "speed": None, "mtu": None}]},
        {"interfaces": {}},
        {"gpus": [{}]},
        {"interpreters": [{"path": None, "version": "3", "torch": None, "cuda": None}]},
    ],
)
def test_odd_facts_are_that_nodes_error(odd: Any) -> None:
    with pytest.raises(Misfit):
        decode(Probed, {"facts": odd})


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
    inventory = parse_yaml("hosts: [a, b]", "f")
    candidates = {name: choose.addresses(told, f"{name}.example") for name, told in facts.items()}
    found = choose.found(inventory, facts, candidates, {})
    assert set(found) == {"a", "b"} and found["b"].remark.startswith("b: no GPU")


@steady
@given(st.lists(fitting(Facts), min_size=1, max_size=3), st.booleans())
def test_whatever_facts_fit_an_inventory_comes_of_it(told: list[Any], added: bool) -> None:
    given = parse_yaml("hosts: [n0, n1, n2]", "f")
    facts = {f"n{number}": each for number, each in enumerate(told)}
    candidates = {name: choose.addresses(each, f"{name}.example") for name, each in facts.items()}
    reached = {name: [each.text for each in own] for name, own in candidates.items()}
    found = choose.found(given, facts, candidates, reached)
    filled = replace(given, hosts=tuple(replace(host, **found[host.name].fields) for host in given.hosts))
    old = "hosts:\n  n0:\n" if added else None
    new = frozenset(given.names) - ({"n0"} if added else set())
    text, left = proposed(Path("f"), old, filled, new, {name: each.remark for name, each in found.items()})
    assert parse_yaml(text, "f").hosts == filled.hosts and not left
    assert all(set(choose.row("x", host, found[host.name])) for host in filled.hosts)


# -- the command ----------------------------------------------------------------------------------------------------
@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FLEET_INVENTORY", raising=False)
    monkeypatch.setattr("fleet.cli.verbs.setup_ssh._terminal", lambda: False)
    return tmp_path


def test_dry_run_asks_nobody(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "lines").write_text("ssh root@203.0.113.1 -p 33021\nroot@203.0.113.2\n")
    assert run(["init", "--dry-run", "lines"]) == 0
    assert "  node1: {address: 203.0.113.1, user: root, port: 33021}\n" in capsys.readouterr().out
    assert run(["init", "--dry-run", "--json", "lines"]) == 0
    plan = json.loads(capsys.readouterr().out)["plan"]
    assert plan["hosts"]["node2"] == {"new": True, "address": "203.0.113.2", "user": "root"}
    assert plan["inventory"] == "fleet.yaml" and not (here / "fleet.yaml").exists()


def test_without_a_terminal_nothing_is_chosen_for_anybody(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / ".ssh").mkdir()
    (here / ".ssh/config").write_text("Host gpu1\n  Port 33\nHost gpu2\n")
    assert run(["init"]) == 2
    said = capsys.readouterr().err
    assert "names 2 hosts: gpu1, gpu2" in said and "which hosts are meant?" in said and "fleet init -w gpu1" in said
    assert run(["init", "--dry-run", "-w", "gpu2"]) == 0
    assert "gpu2: {}" in capsys.readouterr().out


def test_a_host_that_fleet_cannot_go_to_is_told_and_costs_no_other(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / ".ssh").mkdir()
    (here / ".ssh/config").write_text("Host gpu1\n  ProxyCommand nc %h %p\nHost gpu2\n  HostName 127.0.0.1\n  Port 1\n")
    assert run(["init", "-y", "--json"]) == 122
    hosts = json.loads(capsys.readouterr().out)["hosts"]
    assert "fleet runs no ProxyCommand" in hosts["gpu1"]["error"]["message"]
    assert "127.0.0.1 port 1" in hosts["gpu2"]["error"]["message"]


def test_a_hostfile_that_is_there_goes_before_the_ssh_config(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "hostfile").write_text("gpu1 slots=8\n")
    assert run(["init", "--dry-run"]) == 0
    said = capsys.readouterr()
    assert "gpu1: {slots: 8}" in said.out and "the hosts of ./hostfile" in said.err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["-i", "lab", "init"], 2, "the lab writes its own inventory"),
        (["-i", "hostfile", "init"], 2, "hostfile is a hostfile, fleet init writes YAML"),
        (["-i", "other.yaml", "init", ".ssh/config"], 121, "names no hosts"),
        (["init", "nosuch"], 121, "No such file"),
        (["init", "odd"], 121, "odd:1: host gpu1: 'x' is not understood"),
        (["init", "--transport", "openssh", "hostfile"], 2, "--transport"),
    ],
)
def test_what_it_refuses(
    here: Path, words: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / ".ssh").mkdir()
    (here / ".ssh/config").write_text("Host github.com\n  User git\n")
    (here / "hostfile").write_text("gpu1\n")
    (here / "odd").write_text("gpu1 x\n")
    assert run(words) == code
    assert message in capsys.readouterr().err
    assert not (here / "fleet.yaml").exists()


def test_a_file_with_a_byte_order_mark_keeps_it(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"\xef\xbb\xbfhosts: {a: {}}\n")
    old = "hosts: {a: {}}\n"
    init.write(init.plan(path, old, Given(parse_yaml(old, "f"))), "hosts: {a: {slots: 2}}\n")
    assert path.read_bytes() == b"\xef\xbb\xbfhosts: {a: {slots: 2}}\n"


def test_where_nothing_can_be_written_nobody_is_asked(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(init, "run", lambda *args: pytest.fail("hosts were asked"))
    (here / "lines").write_text("ssh root@198.18.0.9\n")
    assert run(["init", "-i", "/proc/no/fleet.yaml", "lines"]) == 1
    assert capsys.readouterr().err == "error: cannot write /proc/no/fleet.yaml: No such file or directory\n"
