"""What `check --network` does besides measuring pairs: slow ones again, an all-reduce, InfiniBand, another network."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.screen.network import check_page
from fleet.cli.verbs.check import proposal, screen
from fleet.events import Event, Notice
from fleet.inventory.yaml_file import parse_yaml
from fleet.model import Host
from fleet.node.facts.network import infiniband
from fleet.ops import network
from fleet.ops.check import Checked
from fleet.ops.init.choose import Address, shared
from fleet.ops.network import Measured, again, all_reduce, gbit, ib_write_bw, only_infiniband, rdma
from fleet.ops.sessions import Sessions
from fleet.rules.judge import judge
from fleet.rules.rule import Want
from fleet.rules.view import view
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from tests.scripted import Scripted

NAMES = ["a", "b", "c", "d"]
HOSTS = tuple(Host(name, f"10.0.0.{n}") for n, name in enumerate(NAMES))
PORT = {"device": "mlx5_0", "port": "1", "state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}


def test_slow_pairs_are_measured_again_in_one_direction_with_fast_partners_first() -> None:
    slow = [(a, b) for a in NAMES for b in NAMES if a != b and "c" in (a, b)]
    rounds = [[(a, b) for a, of in one.items() for b in of] for one in again(NAMES, slow)]
    assert sorted(pair for one in rounds for pair in one) == sorted(slow)
    assert all(len({name for pair in one for name in pair}) == 2 * len(one) for one in rounds), "a host has one partner"
    assert again(NAMES, []) == [] and len(again([*"abcdefghij"], [("a", b) for b in "bcdefghij"])) == network.AGAIN
    assert [*again(NAMES, [("a", "b"), ("c", "d")])] == [{"a": ["b"], "b": [], "c": ["d"], "d": []}]


# -- programs that measure -----------------------------------------------------------------------------------------
def benched(ended: dict[str, dict[str, Any]], call: Any, raw: dict[str, Any]) -> tuple[Any, Scripted, list[str]]:
    """Returns what comes of hosts on which the program ends so, with what they were told, and the notices."""
    said: list[Event] = []
    nodes = Scripted({name: {"bench": [{"port": 4000 + n}, end]} for n, (name, end) in enumerate(ended.items())})
    with closing(Sessions(Runtime(nodes, emit=said.append, cancel=Cancel()))) as sessions:
        found = call([host for host in HOSTS if host.name in ended], raw, dict.fromkeys(ended, {}), sessions)
    return found, nodes, [f"{each.host}: {each.message}" for each in said if isinstance(each, Notice)]


def facts(name: str, **more: Any) -> dict[str, Any]:
    at = f"10.0.0.{NAMES.index(name)}"
    links = {other: {"mbit": 200.0 + NAMES.index(name), "least": False} for other in NAMES if other != name}
    return {"torch": {"version": "2"}, "network": {"advertised": at, "interface": "eth1"}, "links": links, **more}


def ended(out: str, status: int | None = 0, why: str = "") -> dict[str, Any]:
    return {"status": status, "out": out, "why": why}


def test_an_all_reduce_has_its_bus_bandwidth_beside_what_the_links_allow() -> None:
    figure = json.dumps({"bytes": 4 << 20, "seconds": 0.5})
    found, _, said = benched({name: ended(f"\n{figure}\n") for name in NAMES}, all_reduce, {n: facts(n) for n in NAMES})
    mbit = 2 * 3 / 4 * (4 << 20) * 8e-6 / 0.5
    assert found == {"backend": "gloo", "hosts": NAMES, "bus_mbit": round(mbit, 1), "links_mbit": 200.0}
    assert said == []


@pytest.mark.parametrize("out", ["", "x", "null", "[]", '{"bytes": 1}', '{"bytes": 1, "seconds": 0}', '{"bytes": "x"}'])
def test_an_all_reduce_without_a_figure_is_none(out: str) -> None:
    found, _, said = benched({name: ended(out) for name in "ab"}, all_reduce, {n: facts(n) for n in "ab"})
    assert found is None and said == ["a: no all-reduce with gloo: it ended without a figure"]


@pytest.mark.parametrize("late", NAMES)
def test_a_rank_that_aborts_as_it_ends_takes_no_figure_away(late: str) -> None:
    ends = {name: ended(json.dumps({"bytes": 4 << 20, "seconds": 0.5}) if name == "a" else "") for name in NAMES}
    ends[late] = {**ends[late], "status": -6, "why": "terminate called without an active exception"}
    found, _, said = benched(ends, all_reduce, {name: facts(name) for name in NAMES})
    assert found and found["bus_mbit"] > 0 and said == []


def test_where_torch_is_missing_or_the_all_reduce_fails_it_is_said() -> None:
    raw = {"a": facts("a"), "b": facts("b", torch=None)}
    found, nodes, said = benched({name: ended("") for name in "ab"}, all_reduce, raw)
    assert found is None and said == ["None: no all-reduce is measured: no torch on b"] and nodes.sent == []
    ends = {"a": ended("{}"), "b": ended("", 1, "RuntimeError: no such interface")}
    found, _, said = benched(ends, all_reduce, {n: facts(n) for n in "ab"})
    assert found is None and said == ["b: no all-reduce with gloo: RuntimeError: no such interface"]


@pytest.mark.slow
def test_the_program_of_an_all_reduce_runs() -> None:
    """As one rank; in the lab there are more."""
    pytest.importorskip("torch")
    words = json.dumps([0, 1, "tcp://127.0.0.1:0", "gloo", 1 << 16])
    done = subprocess.run(
        [sys.executable, "-c", network.ALL_REDUCE, words], capture_output=True, text=True, timeout=300, check=True
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["bytes"] == 4 << 16 and said["seconds"] > 0


PERFTEST = """
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      743200           0.00               389.62 		   0.743144
---------------------------------------------------------------------------------------
"""


def test_ib_write_bw_is_asked_between_two_hosts_and_its_average_read() -> None:
    """Untested on real cards: argv and output are perftest's documented ones."""
    server = "-d mlx5_0 -i 1 -p 4001 -D 2 -F --report_gbits"
    assert ib_write_bw(("mlx5_0", "1"), 4001, None) == server.split()
    assert ib_write_bw(("mlx5_0", "1"), 4001, "10.0.0.1") == [*server.split(), "10.0.0.1"]
    assert (gbit(PERFTEST), gbit("Couldn't connect to 10.0.0.1:4001"), gbit("1 2 3")) == (389.62, None, None)
    raw = {name: facts(name, infiniband=[{**PORT, "state": "DOWN", "port": "2"}, PORT]) for name in "abc"}
    found, _, _ = benched({name: ended(PERFTEST) for name in "abc"}, rdma, raw)
    assert found == [{"hosts": ["a", "b"], "gbit": 389.62}]
    missing = ended("", None, "No such file")
    assert benched(dict.fromkeys("ab", missing), rdma, raw)[0] == []


# -- InfiniBand ----------------------------------------------------------------------------------------------------
def test_ports_have_state_rate_and_what_they_have_counted(tmp_path: Path) -> None:
    """A tree as a kernel with an mlx5 card of two ports, one of them RoCE, has it."""
    files = {
        "mlx5_0/ports/1/state": "4: ACTIVE",
        "mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
        "mlx5_0/ports/1/link_layer": "InfiniBand",
        "mlx5_0/ports/1/counters/symbol_error": "0",
        "mlx5_0/ports/1/counters/link_downed": "3",
        "mlx5_0/ports/1/counters/port_rcv_errors": "17",
        "mlx5_1/ports/1/state": "4: ACTIVE",
        "mlx5_1/ports/1/rate": "100 Gb/sec (4X EDR)",
        "mlx5_1/ports/1/link_layer": "Ethernet",
        "mlx5_1/ports/1/hw_counters/out_of_sequence": "5",
        "mlx5_1/ports/1/hw_counters/packet_seq_err": "N/A (not supported)",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    first, second = infiniband(str(tmp_path))["infiniband"]
    assert first == {**PORT, "errors": "link_downed 3, port_rcv_errors 17"}
    assert (second["link_layer"], second["errors"]) == ("Ethernet", "out_of_sequence 5")
    told = view({"infiniband": [first, second]}, Want("a"))
    (found,) = [each for each in judge({"a": told}) if each.id == "infiniband-errors"]
    assert (found.severity, found.hosts) == ("info", ("a",))
    assert "mlx5_0 port 1: link_downed 3, port_rcv_errors 17; mlx5_1 port 1: out_of_sequence 5" in found.message


def test_only_hosts_with_the_same_infiniband_are_to_fail_without_it() -> None:
    gpus = [{"index": 0}]
    alike = {name: {"gpus": gpus, "infiniband": [PORT]} for name in "ab"}
    assert only_infiniband(alike)
    for other in ({**PORT, "state": "DOWN"}, {**PORT, "rate": "200 Gb/sec"}, {**PORT, "link_layer": "Ethernet"}):
        assert not only_infiniband({**alike, "b": {"gpus": gpus, "infiniband": [other]}})
    assert not only_infiniband({**alike, "b": {"gpus": [], "infiniband": [PORT]}})
    assert not only_infiniband({"a": alike["a"]}) and not only_infiniband({"a": {}, "b": {}})


# -- another network -----------------------------------------------------------------------------------------------
def test_networks_that_all_hosts_share_and_do_not_use() -> None:
    def at(third: int, name: str) -> str:
        return f"10.0.{third}.{NAMES.index(name)}"

    candidates = {name: [Address(at(n, name), f"10.0.{n}.0/24", 0, n == 0) for n in range(4)] for name in NAMES}
    reached = {name: {at(n, name) for n in range(3)} - {at(2, "c")} for name in NAMES}
    used = {name: at(0, name) for name in NAMES}
    assert shared(candidates, reached, used) == {"10.0.1.0/24": {name: at(1, name) for name in NAMES}}
    assert shared(candidates, {}, used) == {}


def test_a_better_network_is_shown_as_a_diff_of_the_inventory(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("hosts:\n  a: {address: 10.0.0.0}  # mine\n  b: {address: 10.0.0.1}\n")
    checked = Checked("check", (), 0, measured=Measured(proposed={"a": "10.1.0.0", "b": "10.1.0.1"}))
    lines = proposal(checked, parse_yaml(path.read_text(), str(path)))
    assert "+  a: {address: 10.0.0.0, data_address: 10.1.0.0}  # mine" in lines and lines[0] == f"--- {path}"
    path.write_text("hosts:\n  a: {data_address: 10.2.0.0}\n  b: {}\n")
    lines = proposal(checked, parse_yaml(path.read_text(), str(path)))
    assert lines == ["a: {data_address: 10.1.0.0}", "b: {data_address: 10.1.0.1}"], "it replaces nothing"
    path.write_text("a\nb\n")
    assert proposal(checked, parse_yaml("hosts: [a, b]", str(path))) == lines
    assert proposal(Checked("check", (), 0), parse_yaml("hosts: [a, b]", str(path))) == []


# -- what is shown -------------------------------------------------------------------------------------------------
def shown(**more: Any) -> Checked:
    evil = "<script>alert(1)</script>\x1b[31m"
    links = {
        "a": {"b": {"mbit": 94.4, "rtt_ms": 0.2, "least": False}, "c": {"mbit": 940.0, "rtt_ms": 0.1, "least": True}}
    }
    links["b"] = links["c"] = {"a": {"mbit": 940.0, "rtt_ms": 0.1, "least": False}}
    how = {"a": {"b": "open", "c": "open", "d": "silent"}}
    raw = {n: {"os": evil, "links": links.get(n, {}), "pairs": how.get(n, {})} for n in NAMES}
    views = {name: view(each, Want(name)) for name, each in raw.items()}
    return Checked("check", (), 0, {}, views, tuple(judge(views)), Measured(**more))


def test_a_page_escapes_what_hosts_say_and_runs_nothing() -> None:
    reduced = {"backend": "gloo", "hosts": NAMES, "bus_mbit": 88.0, "links_mbit": 94.4}
    text = check_page(shown(all_reduce=reduced), "4 hosts <compared>", ["+ a: {data_address: '<b>'}"])
    assert "<script" not in text and "\x1b" not in text and "&lt;script&gt;" in text and "&lt;compared&gt;" in text
    assert "http" not in text.replace("http-equiv", "") and "&lt;b&gt;" in text
    for cell in ('"green">940 0.10', '"">940+ 0.10', '"red">no answer'):
        assert cell in text, cell
    assert "all-reduce over 4 hosts (gloo): 88 Mbit/s of bus bandwidth; its links allow 94" in text


def test_the_terminal_has_the_links_in_colours() -> None:
    lines = screen(shown(ib_write_bw=[{"hosts": ["a", "b"], "gbit": 389.62}]), width=120)
    assert "\x1b[32m940 0.10" in lines and "\x1b[31mno answer" in lines
    assert "ib_write_bw a -> b: 389.6 Gbit/s" in lines
