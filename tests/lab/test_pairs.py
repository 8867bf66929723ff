"""Hosts that do not reach each other as a run would need it: found by `check` and by `launch` alike."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from fleet.lab import switch
from tests.lab.healing import BreakableLab
from tests.lab.nets import Net
from tests.node.nodes import until

HIGH = "tcp dport 1024-65535 tcp sport 1024-65535"
OPENS = "tcp dport 1024-65535 ct state new"
# GSO and TSO are switched off, or packets are larger than the wire's: ioctl SIOCETHTOOL, ETHTOOL_SGSO and ETHTOOL_STSO
SMALL = """
import array, fcntl, socket, struct
for command in (0x24, 0x1F):
    value = array.array("B", struct.pack("II", command, 0))
    fcntl.ioctl(socket.socket(), 0x8946, struct.pack("16sP", b"eth0", value.buffer_info()[0]))
"""


@pytest.fixture(scope="module")
def net(breakable: BreakableLab) -> Iterator[Net]:
    for name in breakable.enrol().names:
        breakable.spoil(name)
    yield Net(breakable)


@pytest.fixture(autouse=True)
def opened(net: Net) -> Iterator[None]:
    yield
    net.opens()


def test_a_pair_of_which_neither_is_the_master_nor_a_neighbour(net: Net) -> None:
    net.filters(3, "input", f"ip saddr {net.ips[1]} {HIGH} drop")
    ((severity, rule, hosts, message),) = net.check(code=123)
    assert (severity, rule, hosts) == ("error", "ways", "13")
    assert message.endswith("do not reach each other (no answer); all other pairs do")
    net.opens()
    assert net.check(code=0) == []


@pytest.mark.slow
def test_one_direction(net: Net) -> None:
    """gloo dials from the higher address only."""
    for of, to, severity, code in ((3, 1, "error", 123), (1, 3, "warning", 0)):
        net.filters(to, "input", f"ip saddr {net.ips[of]} {OPENS} reject with tcp reset")
        ((said, rule, hosts, message),) = net.check(code=code)
        assert (said, rule, hosts) == (severity, "ways", f"{of}{to}")
        assert f"does not reach {net.names[to]} at {net.ips[to]} (refused); {net.names[to]} reaches" in message
        net.opens()


@pytest.mark.slow
@pytest.mark.parametrize("hook, hosts", [("input", (2,)), ("input", (1, 2)), ("output", (3,))])
def test_a_host_that_is_closed_is_named_and_not_those_it_is_closed_to(
    net: Net, hook: str, hosts: tuple[int, ...]
) -> None:
    for host in hosts:
        net.filters(host, hook, f"{OPENS} drop")
    ((severity, rule, named, message),) = net.check(code=123)
    assert (severity, rule, named) == ("error", "ways", "".join(map(str, hosts)))
    assert ("no other host reaches" if hook == "input" else "reaches no other host") in message


@pytest.mark.slow
def test_two_halves(net: Net) -> None:
    for host in (2, 3):
        net.filters(host, "input", f"ip saddr {{ {net.ips[0]}, {net.ips[1]} }} {HIGH} drop")
    found = net.check(code=123)
    assert [(rule, hosts) for _, rule, hosts, _ in found] == [("ways", "01")], found
    assert "do not reach each other" in found[0][3]


class Fault(NamedTuple):
    """hosts: that a finding is to name. lines: (host, hook, rule of nftables). pairs: that are closed by it."""

    hosts: tuple[int, ...]
    lines: list[tuple[int, str, str]]
    pairs: set[tuple[int, int]]


def drawn(rng: Random, ips: list[str]) -> Fault:
    every = {*permutations(range(4), 2)}
    a, b = rng.sample(range(4), 2)
    kind = rng.choice(("in", "out", "host", "pair", "one", "halves"))
    if kind in ("in", "out", "host"):
        hooks = {"in": ["input"], "out": ["output"], "host": ["input", "output"]}[kind]
        ends = {"in": (1,), "out": (0,), "host": (0, 1)}[kind]
        lines = [(a, hook, f"{OPENS} drop") for hook in hooks]
        return Fault((a,), lines, {pair for pair in every if any(pair[end] == a for end in ends)})
    if kind == "one":
        return Fault((a, b), [(b, "input", f"ip saddr {ips[a]} {OPENS} drop")], {(a, b)})
    if kind == "pair":
        return Fault(tuple(sorted((a, b))), [(b, "input", f"ip saddr {ips[a]} {HIGH} drop")], {(a, b), (b, a)})
    half = (0, rng.choice((1, 2, 3)))
    others = [n for n in range(4) if n not in half]
    theirs = ", ".join(ips[n] for n in half)
    lines = [(n, "input", f"ip saddr {{ {theirs} }} {HIGH} drop") for n in others]
    return Fault(half, lines, {pair for pair in every if (pair[0] in half) != (pair[1] in half)})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_drawn_faults(net: Net, seed: int) -> None:
    """One or two at a time: the matrix is that of the faults, and no more causes are found than were drawn."""
    rng = Random(seed)
    faults = [drawn(rng, net.ips) for _ in range(1 + seed % 2)]
    for host in range(4):
        chains = {"input": "", "output": ""}
        for at, hook, rule in (line for fault in faults for line in fault.lines):
            if at == host:
                chains[hook] += f"{rule}; "
        net.chains(host, chains)
    closed = set[tuple[int, int]]().union(*(fault.pairs for fault in faults))
    dialled = any(a > b for a, b in closed)  # by gloo, which dials from the higher address
    found = net.check(code=123 if dialled else 0)
    ways = {(a, b): net.facts[net.names[a]]["pairs"][net.names[b]] for a, b in permutations(range(4), 2)}
    assert {pair for pair, how in ways.items() if how != "open"} == closed, (faults, ways)
    assert {rule for _, rule, *_ in found} == {"ways"} and len(found) <= len(faults), (faults, found)
    if len(faults) == 1:
        severity = "error" if dialled else "warning"
        assert [each[:3] for each in found] == [(severity, "ways", "".join(map(str, faults[0].hosts)))], faults
    net.opens()
    assert net.check(code=0) == []


@pytest.mark.slow
def test_a_switch_port_with_a_smaller_mtu(net: Net) -> None:
    """Small packets pass; those of an all-reduce do not."""
    state = json.loads((net.lab.state_dir / "state.json").read_text())
    for number, name in enumerate(net.names):
        port = switch.port(state["hosts"][name]["number"])
        wide = [*switch.in_switch(state["switch_pid"]), "ip", "link", "set", "dev", port, "mtu"]
        subprocess.run([*wide, "1500" if number == 2 else "9000"], check=True, timeout=60)
        net.lab.inside(name, "python3", "-c", SMALL)
        net.lab.sh(name, "ip link set dev eth0 mtu 9000")
    try:
        ((severity, rule, hosts, message),) = net.check(code=123)
    finally:
        for name in net.names:
            net.lab.sh(name, "ip link set dev eth0 mtu 1500")
    assert (severity, rule, hosts) == ("error", "ways-mtu", "2"), message
    assert "large packets of 9000 bytes between it and the others are lost" in message
    assert net.check(code=0) == []


@pytest.mark.slow
def test_how_fast_each_pair_is(net: Net) -> None:
    """No more than the links take, and the slow host is named."""
    lab = net.lab
    lab.fleet("lab", "link", ",".join(net.names), "200mbit", check=True)
    lab.fleet("lab", "link", net.names[1], "50mbit", check=True)
    done = lab.fleet("-i", "lab", "check", "--network", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    links = {(a, b): it for a in net.names for b, it in said["hosts"][a]["facts"]["links"].items()}
    assert len(links) == 12
    for pair, it in links.items():
        limit = 50 if net.names[1] in pair else 200
        assert (0 if it["least"] else 0.8 * limit) < it["mbit"] < 1.05 * limit, links
    slow = [each["hosts"] for each in said["findings"] if each["id"] == "ways-slow"]
    busy = any(it["least"] for it in links.values())
    assert busy or slow == [[net.names[1]]], said["findings"]  # a machine without idle processors is no measure
    shown = lab.fleet("-i", "lab", "check", "--network")
    assert any(line.startswith("Mbit/s, ms") for line in shown.stdout.splitlines()), shown.stdout
    lab.fleet("lab", "link", ",".join(net.names), "none", check=True)


# -- what a host's ranks will have as their address -------------------------------------------------------------
def inventory(net: Net, path: Path, **fields: str) -> Path:
    """fields: of the third host."""
    more = "".join(f", {name}: '{value}'" for name, value in fields.items())
    lines = net.lab.inventory.read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if line.strip().startswith(f"{net.names[2]}:"))
    lines[at] = lines[at].rstrip().rstrip("}") + more + "}"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_data_address_that_no_interface_holds(net: Net, tmp_path: Path) -> None:
    found = net.check(inventory(net, tmp_path / "f.yaml", data_address="198.18.255.77"), code=123)
    assert [each[:3] for each in found] == [("error", "data-address", "2")]
    assert found[0][3].endswith("no interface here holds its data_address 198.18.255.77")


@pytest.mark.slow
def test_an_interface_that_is_down(net: Net, tmp_path: Path) -> None:
    third = net.names[2]
    net.lab.sh(third, "ip link add dead0 type veth peer name dead1 && ip addr add 10.77.0.3/24 dev dead0")
    found = net.check(inventory(net, tmp_path / "f.yaml", data_address="10.77.0.3"), code=123)
    net.lab.sh(third, "ip link del dead0")
    assert ("error", "data-address", "2") in [each[:3] for each in found], found
    assert any(message.endswith("interface dead0, which holds 10.77.0.3, is down") for *_, message in found)


@pytest.mark.slow
def test_an_address_in_front_of_the_one_that_was_meant(net: Net, tmp_path: Path) -> None:
    """A cloud's alias, a keepalived's: gloo and NCCL take the first one of the interface, which nobody reaches."""
    third, _own = net.names[2], f"{net.ips[2]}/24"
    prefix = net.lab.sh(third, "ip -o -4 addr show dev eth0").split()[3]
    net.lab.sh(
        third, f"ip addr add 10.77.0.9/32 dev eth0; ip addr del {prefix} dev eth0; ip addr add {prefix} dev eth0"
    )
    try:
        found = net.check(inventory(net, tmp_path / "f.yaml", data_address=net.ips[2]), code=123)
    finally:
        net.lab.sh(third, "ip addr del 10.77.0.9/32 dev eth0")
    assert [each[:3] for each in found] == [("error", "ways", "2"), ("warning", "data-address-second", "2")], found
    assert f"take 10.77.0.9, the first address of eth0, not {net.ips[2]}" in found[1][3]
    assert net.check(code=0) == []


# -- while a run is under way ------------------------------------------------------------------------------------
TIMES_OUT = """
while [ ! -e /tmp/closed ]; do sleep 0.1; done
echo 'RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:84] Timed out waiting 1800000ms for recv operation' >&2
exit 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["times out", "stalls"])
def test_a_pair_that_is_closed_while_a_run_is_under_way_is_the_cause(net: Net, tmp_path: Path, how: str) -> None:
    lab, (one, other) = net.lab, (net.names[1], net.names[3])
    script = TIMES_OUT if how == "times out" else "sleep 600\n"
    words = ["--stall-timeout", "5"] if how == "stalls" else []
    ranks = (
        "launch",
        "--engine",
        "command",
        "--per",
        "node",
        "--workdir",
        "/",
        *words,
        "sh",
        "-c",
        "echo up; " + script,
    )
    run = lab.popen("-i", "lab", *ranks, cwd=tmp_path)
    until(lambda: len([*tmp_path.glob("runs/sh-*/*/rank*.out")]) == 4)
    net.filters(3, "input", f"ip saddr {net.ips[1]} {HIGH} drop")
    for name in net.names:
        lab.sh(name, "touch /tmp/closed")
    try:
        said = run.communicate(timeout=300)[1].decode()
    finally:
        run.kill()
        for name in net.names:
            lab.sh(name, "rm -f /tmp/closed")
    (summary,) = (json.loads(path.read_text()) for path in tmp_path.glob("runs/sh-*/summary.json"))
    assert run.returncode == (124 if how == "stalls" else 1), said
    first = summary["first_failure"]
    told = f"{first['why']} {first['message']}"
    assert f"{one} and {other} do not reach each other (no answer); all other pairs do" in told, (first, said)
    assert "route between them" in first["hint"], first
