"""Fleets that are odd and healthy: `check` and `launch` find nothing, and ranks get the address that was meant.

A kernel that has no VLAN, bond or wireguard gets a macvlan or a vxlan of that name: what fleet reads of them is their
names and addresses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from tests.lab.healing import BreakableLab
from tests.lab.nets import Net

COUNT = 3
CHILD = "ip link add link bond0 name bond0.2093 type"
VLAN = f"{CHILD} vlan id 2093 2>/dev/null || {CHILD} macvlan mode bridge; ip link set bond0.2093 up"
NAT = (
    "nft 'table ip nat { chain pre { type nat hook prerouting priority -100; "
    "tcp dport 2201 dnat to 10.77.0.1:22; tcp dport 2202 dnat to 10.77.0.2:22; tcp dport 2203 dnat to 10.77.0.3:22; }; "
    "chain post { type nat hook postrouting priority 100; ip daddr 10.77.0.0/24 masquerade; }; }'"
)


class Case(NamedTuple):
    """wire: names of the hosts' second interfaces, $d in lines: each is up. lines: what each host does; $n is its
    number from 1 on. fields: of its entry in the inventory. taken: the address that its ranks are to have, with {n}, ""
    for that of its first interface. undo: in each host."""

    id: str
    lines: str = ""
    fields: str = ""
    taken: str = ""
    wire: tuple[str, ...] = ("eth1",) * COUNT
    undo: str = "true"


PRIVATE = "data_address: 10.77.0.{n}"
ADDRESS = "ip addr add 10.77.0.$n/24 dev $d"
CASES = (
    Case("other names", ADDRESS, PRIVATE, "10.77.0.{n}", ("ens3f0np0", "enp94s0f1", "eth7")),
    Case(
        "docker on some",
        "[ $n = 3 ] || { ip link add docker0 up type bridge; ip addr add 172.17.0.1/16 dev docker0;"
        " ip link add br-0a1b2c3d type bridge; ip addr add 172.18.0.1/16 dev br-0a1b2c3d; }",
        undo="ip link del docker0 2>/dev/null; ip link del br-0a1b2c3d 2>/dev/null; true",
        wire=(),
    ),
    Case("two networks", ADDRESS, PRIVATE, "10.77.0.{n}"),
    Case("two networks, the first is meant", ADDRESS),
    Case(
        "IPv6 only",
        "ip -6 addr add fd00:77::$n/64 dev $d nodad",
        "data_address: 'fd00:77::{n}'",
        "fd00:77::{n}",
    ),
    Case(
        "SSH through NAT",
        f"{ADDRESS}; [ $n != 4 ] || {{ echo 1 > /proc/sys/net/ipv4/ip_forward; {NAT}; }}",
        f"address: GATEWAY, port: 220{{n}}, host_key: '{{key}}', {PRIVATE}",
        "10.77.0.{n}",
        ("eth1",) * 4,
        "nft delete table ip nat 2>/dev/null; true",
    ),
    Case(
        "a bond with a VLAN of another network",
        f"{ADDRESS}; {VLAN}; ip addr add 10.93.$n.1/24 dev bond0.2093",
        PRIVATE,
        "10.77.0.{n}",
        ("bond0",) * COUNT,
    ),
    Case(
        "a VLAN of a bond",
        f"ip addr add 10.93.$n.1/24 dev $d; {VLAN}; ip addr add 10.77.0.$n/24 dev bond0.2093",
        PRIVATE,
        "10.77.0.{n}",
        ("bond0",) * COUNT,
    ),
    Case(
        "an overlay with a smaller MTU",
        "ip link add wg0 mtu 1420 up type vxlan id 7 group 239.7.7.7 dev eth0 dstport 4789;"
        " ip addr add 10.77.0.$n/24 dev wg0",
        PRIVATE,
        "10.77.0.{n}",
        (),
        "ip link del wg0 2>/dev/null; true",
    ),
    Case(
        "addresses of /32 with routes",
        "ip addr add 10.77.0.$n/32 dev $d; ip route add 10.77.0.0/24 dev $d",
        PRIVATE,
        "10.77.0.{n}",
    ),
    Case(
        "aliases behind the address",
        f"{ADDRESS}; ip addr add 10.78.0.9/32 dev $d; ip addr add 10.77.0.20$n/24 dev $d label $d:1",
        PRIVATE,
        "10.77.0.{n}",
    ),
    Case("jumbo frames end to end", f"ip link set $d mtu 9000; {ADDRESS}", PRIVATE, "10.77.0.{n}"),
    Case(
        "hostnames that mean 127.0.1.1",
        'cp /etc/hosts /tmp/hosts.kept; echo "127.0.1.1 $(hostname)" >> /etc/hosts',
        undo="[ ! -e /tmp/hosts.kept ] || { cat /tmp/hosts.kept > /etc/hosts; rm /tmp/hosts.kept; }",
        wire=(),
    ),
    Case("a second interface with a link-local address alone", "ip -6 addr add fe80::77:$n/64 dev $d nodad"),
    Case(
        "a VPN's tun",
        "ip tuntap add tun0 mode tun; ip addr add 10.8.0.$n/24 dev tun0; ip link set tun0 up",
        undo="ip link del tun0 2>/dev/null; true",
        wire=(),
    ),
    Case(
        "macvlan",
        "ip link add link $d name mac0 up type macvlan mode bridge; ip addr add 10.77.0.$n/24 dev mac0",
        PRIVATE,
        "10.77.0.{n}",
    ),
)


@pytest.fixture(scope="module")
def net(breakable: BreakableLab) -> Iterator[Net]:
    for name in breakable.enrol().names:
        breakable.spoil(name)
    yield Net(breakable)


def inventory(net: Net, case: Case, path: Path) -> Path:
    defaults = json.dumps(yaml.safe_load(net.lab.inventory.read_text())["defaults"])  # on one line, however long
    lines = [f"defaults: {defaults}", "hosts:"]
    for n, name in enumerate(net.names[:COUNT]):
        key = net.lab.sh(name, "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub").split()[1]
        fields = case.fields.format(n=n + 1, key=key).replace("GATEWAY", net.ips[3])
        at = [] if "address: GATEWAY" in case.fields else [f"address: {net.ips[n]}"]
        lines.append(f"  {name}: {{{', '.join([*at, *filter(None, [fields])])}}}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_healthy_fleet_is_without_a_finding(net: Net, tmp_path: Path, case: Case) -> None:
    try:
        if case.wire:
            net.wire([*case.wire])
        for n, name in enumerate(net.names[: max(COUNT, len(case.wire))]):
            device = case.wire[n] if case.wire else ""
            up = f"ip link set {device} up; " if device else ""
            line = f"set -e; n={n + 1} d={device}; {up}{case.lines}"
            run = net.in_network if n >= COUNT else net.lab.sh
            run(name, line)
        path = inventory(net, case, tmp_path / "f.yaml")
        assert net.check(path, code=0) == []
        wanted = [case.taken.format(n=n + 1) or net.ips[n] for n in range(COUNT)]
        assert [net.facts[name]["network"]["advertised"] for name in net.names[:COUNT]] == wanted
    finally:
        for name in net.names:
            net.lab.sh(name, case.undo)
        net.unwire()


@pytest.mark.slow
def test_a_network_that_works_is_proposed_where_the_present_one_is_closed(net: Net, tmp_path: Path) -> None:
    case = Case("two networks")
    path = inventory(net, case, tmp_path / "f.yaml")
    before = path.read_text()
    try:
        net.wire(["eth1"] * COUNT)
        for n, name in enumerate(net.names[:COUNT]):
            net.lab.sh(name, f"ip addr add 10.77.0.{n + 1}/24 dev eth1; ip link set eth1 up")
        net.filters(1, "input", "iifname eth0 tcp dport 1024-65535 ct state new drop")
        done = net.lab.fleet("-i", str(path), "check", "--network", "--json")
        said = json.loads(done.stdout)
        assert done.returncode == 123 and [each["id"] for each in said["findings"] if "ways" in each["id"]] == ["ways"]
        assert said["network"]["proposed"] == {name: f"10.77.0.{n + 1}" for n, name in enumerate(net.names[:COUNT])}
        shown = net.lab.fleet("-i", str(path), "check", "--network", "--html", str(tmp_path / "page.html")).stdout
        added = [line for line in shown.splitlines() if line.startswith("+ ")]
        assert len(added) == COUNT and "data_address: 10.77.0.1}" in added[0], shown
        assert path.read_text() == before and "data_address: 10.77.0.2" in (tmp_path / "page.html").read_text()
        text = "".join(line[1:] + "\n" for line in added)  # followed, all is well
        path.write_text(before[: before.index("hosts:")] + "hosts:\n" + text)
        assert net.check(path, code=0) == []
    finally:
        net.opens()
        net.unwire()
