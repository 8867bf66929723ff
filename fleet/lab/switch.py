"""Makes the lab's network: addresses, the switch's bridge, a veth pair to each host and to the head, link rates."""

from __future__ import annotations

import ipaddress
import json
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from fleet.errors import LabError, UsageError
from fleet.lab.state import Machine

RANGE = ipaddress.IPv4Network("198.18.0.0/16")  # for benchmarks (RFC 2544): no real network uses it
PREFIX = 22  # 64 labs at once, of up to MAX_HOSTS each
MAX_HOSTS = 1000
FIRST = 10  # host number n has the address network + FIRST + n; the head has network + 1
UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def choose_network(taken: Iterable[ipaddress.IPv4Network], earlier: str | None, tag: str) -> ipaddress.IPv4Network:
    """Returns the /22 of a lab: the earlier one if it is free, as known_hosts hold its addresses, else one chosen by
    the lab's tag."""
    slices = list(RANGE.subnets(new_prefix=PREFIX))
    start = int(tag[2:], 16) % len(slices)
    order = slices[start:] + slices[:start]
    if earlier is not None:
        order.insert(0, ipaddress.IPv4Network(earlier))
    busy = list(taken)
    for candidate in order:
        if not any(candidate.overlaps(network) for network in busy):
            return candidate
    raise LabError(
        f"no free network is left in {RANGE}: {', '.join(map(str, busy[:4]))}",
        hint="`ip -4 addr` shows who uses them; `fleet lab down` frees a lab's",
    )


def head_address(network: ipaddress.IPv4Network) -> str:
    return str(network[1])


def host_address(network: ipaddress.IPv4Network, number: int) -> str:
    return str(network[FIRST + number])


def parse_rate(text: str) -> int:
    """Returns the bits per second of a text like "200mbit", "1gbit" or "512kbit". Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmg]?)bit", text.strip().lower())
    rate = int(float(match[1]) * UNITS[match[2]]) if match else 0
    if not 8_000 <= rate <= 1_000_000_000_000:
        raise UsageError(f"--link {text!r} is not a rate", hint="for example 200mbit or 1gbit; 8kbit at least")
    return rate


def run(argv: Sequence[str], text: str = "") -> str:
    """Runs a tool. Returns its stdout. Raises LabError with its message if it fails."""
    done = subprocess.run(argv, input=text, capture_output=True, text=True, errors="surrogateescape", check=False)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"{argv[0]} failed: {lines[0] if lines else f'exit {done.returncode}'}", hint=" ".join(argv))
    return done.stdout


def in_switch(pid: int) -> list[str]:
    return ["nsenter", f"--net=/proc/{pid}/ns/net"]


def taken_networks() -> list[ipaddress.IPv4Network]:
    """Returns the IPv4 networks of this machine's interfaces, with those of other labs."""
    networks = []
    for link in json.loads(run(["ip", "-4", "-j", "addr"]) or "[]"):
        for address in link.get("addr_info", []):
            if "local" in address:
                networks.append(ipaddress.IPv4Network(f"{address['local']}/{address['prefixlen']}", strict=False))
    return networks


def remove_interface(name: str) -> None:
    """Removes the head's interface, unless it is gone with the switch already."""
    subprocess.run(["ip", "link", "del", "dev", name], capture_output=True, check=False)
    if subprocess.run(["ip", "link", "show", "dev", name], capture_output=True, check=False).returncode == 0:
        raise LabError(f"cannot remove the interface {name}", hint=f"ip link del dev {name}")


def mac(address: str) -> str:
    """Returns a locally administered MAC for an address. A restarted host has the same one, which others have
    cached."""
    return "02:00:" + ipaddress.IPv4Address(address).packed.hex(":")


def neighbours(addresses: Iterable[str]) -> str:
    """Returns lines for `ip -batch` that give a host permanent entries for all MACs. Learned entries of all network
    namespaces share a table of 1024, which 64 hosts that send to each other would overflow."""
    return "".join(f"neigh replace {a} lladdr {mac(a)} dev eth0 nud permanent\n" for a in addresses)


def connect_head(tag: str, switch: int, network: ipaddress.IPv4Network) -> None:
    """Makes the bridge, and connects the head to it by the only interface of the lab that this machine sees."""
    run(
        [*in_switch(switch), "ip", "-batch", "-"],
        "link add name lan type bridge forward_delay 0 mcast_snooping 0\nlink set dev lan up\n",
    )
    address = head_address(network)
    run(
        ["ip", "-batch", "-"],
        f"link add name {tag} address {mac(address)} type veth peer name head netns {switch}\n"
        f"addr add {address}/{PREFIX} brd + dev {tag}\nlink set dev {tag} up\n",
    )
    run([*in_switch(switch), "ip", "-batch", "-"], "link set dev head master lan up\n")


def port(number: int) -> str:
    """Returns the name of the switch's end of a host's cable."""
    return f"p{number}"


def connect_hosts(switch: int, hosts: Mapping[int, Machine]) -> None:
    """Connects hosts by cards called eth0. hosts: pid of the process that holds the host's namespace -> host."""
    # interfaces of dead hosts, which may vanish by themselves meanwhile
    old = [f"link del dev {port(host.number)}\n" for host in hosts.values()]
    new = [
        f"link add name eth0 netns {pid} address {mac(host.address)} "
        f"type veth peer name {port(host.number)} netns {switch}\n"
        for pid, host in hosts.items()
    ]
    plug = [f"link set dev {port(host.number)} master lan up\n" for host in hosts.values()]
    delete = [*in_switch(switch), "ip", "-force", "-batch", "-"]
    subprocess.run(delete, input="".join(old), text=True, capture_output=True, check=False)
    run(["ip", "-batch", "-"], "".join(new))
    run([*in_switch(switch), "ip", "-batch", "-"], "".join(plug))


def ports(switch: int) -> dict[int, bool]:
    """Returns host number -> True if its cable is plugged in."""
    links = json.loads(run([*in_switch(switch), "ip", "-j", "link", "show"]) or "[]")
    return {int(link["ifname"][1:]): "UP" in link["flags"] for link in links if re.fullmatch(r"p\d+", link["ifname"])}


def set_cable(switch: int, number: int, up: bool) -> None:
    """Pulls a cable, or plugs it in. Without it nothing passes, not even RST; addresses and connections stay."""
    run([*in_switch(switch), "ip", "link", "set", "dev", port(number), "up" if up else "down"])


def shape(where: list[str], device: str, rate: str) -> None:
    """Limits what `device` sends to `rate`; "none": no limit. where: the argv that enters its namespace, or []."""
    arguments = ["noqueue"]
    if rate != "none":  # a token bucket: a burst of 10 ms (64 KiB at least, one offloaded packet), 50 ms of queue
        bits = parse_rate(rate)
        arguments = ["tbf", "rate", f"{bits}bit", "burst", str(max(bits // 800, 65536)), "latency", "50ms"]
    run([*where, "tc", "qdisc", "replace", "dev", device, "root", *arguments])
