"""Measures, for `fleet check --network`, the links between pairs of hosts, and all hosts together. Proposes a faster
network, if there is one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from fleet.events import Notice
from fleet.model import Host
from fleet.node.base.wire import at_port
from fleet.node.facts.ask import NOT_HERE
from fleet.node.facts.way import NAMES as INTERFACE_VARIABLES
from fleet.ops.bench import Order, bench, figures
from fleet.ops.pairs import advertised, visit
from fleet.ops.sessions import Sessions
from fleet.protocol.messages.facts import Facts, Link, Reduced
from fleet.rules.links import slow_pairs
from fleet.rules.pairs import Pair

ALL_ROUNDS, LEAST, MOST = 7.5, 0.25, 1.6  # seconds: of all rounds together; of one round, at least and at most
STREAMS = 2
LEAST_FLOATS, MOST_FLOATS, FLOATS_PER_MBIT = 1 << 16, 1 << 20, 4_000  # an all-reduce takes about 0.25 s
AGAIN = 8  # rounds in which slow pairs are measured once more
# Runs in the training interpreter of each host, as one rank. The first all-reduce is not counted. The time of the
# second one shows how many can be measured in a second.
ALL_REDUCE = (
    NOT_HERE
    + r"""
import datetime, json, os, time
import torch, torch.distributed as dist
rank, size, address, backend, count = json.loads(sys.argv[1])
limit = datetime.timedelta(seconds=60)
dist.init_process_group(backend, init_method=address, rank=rank, world_size=size, timeout=limit)
device = "cuda:0" if backend == "nccl" else "cpu"
data = torch.zeros(count, device=device)
def seconds(times):
    began = time.monotonic()
    for _ in range(times):
        dist.all_reduce(data)
    float(data[0])
    took = torch.tensor([time.monotonic() - began], device=device)
    dist.all_reduce(took, op=dist.ReduceOp.MAX)
    return float(took)
seconds(1)
times = max(1, min(200, int(1.0 / seconds(1))))
took = seconds(times)
print()
print(json.dumps({"bytes": data.numel() * 4, "seconds": took / times}))
sys.stdout.flush()
time.sleep(0.3 if rank == 0 else 0)  # the others leave before the store does
os._exit(0)
"""
)


@dataclass(frozen=True)
class Measured:
    """Holds the measurements. all_reduce: {"backend", "hosts", "bus_mbit", "links_mbit": the limit that the links of
    its ring set}, or None if it was not measured. ib_write_bw: [{"hosts": [from, to], "gbit"}]. proposed: host -> a
    better data_address."""

    all_reduce: Mapping[str, Any] | None = None
    ib_write_bw: Sequence[Mapping[str, Any]] = ()
    proposed: Mapping[str, str] = field(default_factory=dict)


def look(hosts: Sequence[Host], raw: Mapping[str, Facts], specs: Mapping[str, Any], sessions: Sessions) -> Measured:
    """Measures all links between hosts and adds each host's links to its facts, as "links". Then measures an
    all-reduce, RDMA and other networks. Measures nothing for a single host."""
    if len(hosts) < 2:
        return Measured()
    measure(hosts, raw, sessions)
    if only_infiniband(raw):
        hint = "'--env NCCL_NET=IB' has NCCL fail where it cannot use it, instead of going on over sockets"
        sessions.runtime.emit(Notice("info", "all hosts have InfiniBand in the same state", None, hint))
    hows = {how for facts in raw.values() for how in facts.get("pairs", {}).values()}
    failed = any((facts.get("network") or {}).get("error") for facts in raw.values()) or not hows <= {"open", "unknown"}
    together = all_reduce(hosts, raw, specs, sessions) if hows == {"open"} and not failed else None
    return Measured(together, rdma(hosts, raw, specs, sessions), proposed(hosts, raw, failed, sessions))


def circle(names: Sequence[str]) -> list[dict[str, list[str]]]:
    """Returns rounds, each as {host: [the host that it sends to]}. After all rounds, each host has sent to all others.
    A host never sends and receives in the same round: its acknowledgements would wait after the data that it sends."""
    ring: list[str | None] = [*names, *([None] if len(names) % 2 else [])]
    half = len(ring) // 2
    found = list[dict[str, list[str]]]()
    for _ in range(len(ring) - 1):
        pairs = [(a, b) for a, b in zip(ring[:half], reversed(ring[half:]), strict=True) if a and b]
        for partners in (dict(pairs), {b: a for a, b in pairs}):
            found.append({name: [partners[name]] if name in partners else [] for name in names})
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return found


def again(names: Sequence[str], slow: Iterable[Pair]) -> list[dict[str, list[str]]]:
    """Returns rounds that measure slow pairs once more, in one direction, without other traffic. Pairs with a host that
    is in few slow pairs come first: they show which of the two is slow."""
    left = {*slow}
    times = {name: sum(name in pair for pair in left) for name in names}
    found = list[dict[str, list[str]]]()
    while left and len(found) < AGAIN:
        busy, dials = set[str](), dict[str, list[str]]()
        for pair in sorted(left, key=lambda pair: (min(times[name] for name in pair), pair)):
            if busy.isdisjoint(pair):
                busy.update(pair)
                dials[pair[0]] = [pair[1]]
                left.discard(pair)
        found.append({name: dials.get(name, []) for name in names})
    return found


def rates(
    hosts: Sequence[Host],
    at: Mapping[str, str],
    rounds: Sequence[Mapping[str, Sequence[str]]],
    sessions: Sessions,
    together: float = ALL_ROUNDS,
) -> dict[Pair, Link]:
    """Returns the measured link of each pair of these rounds. at: the address of each host. together: seconds of all
    rounds."""
    listen = {name: [address] for name, address in at.items()}
    seconds = min(MOST, max(LEAST, together / max(1, len(rounds))))
    measured = visit(hosts, listen, rounds, sessions, seconds, STREAMS).links if rounds else {}
    return {
        pair: {
            "mbit": round(sum(8e-6 * each["bytes"] / each["seconds"] for each in streams), 1),
            "rtt_ms": round(1e3 * min(each["rtt"] for each in streams), 3),
            "mtu": min(each["mtu"] for each in streams),
            "again": sum(each["again"] for each in streams),
            "least": any(each["busy"] for each in streams),
        }
        for pair, streams in measured.items()
    }


def measure(hosts: Sequence[Host], raw: Mapping[str, Facts], sessions: Sessions) -> None:
    """Adds "links" to the facts of hosts that other hosts reach. All hosts are measured at once, each with one partner
    at a time. Slow pairs are measured again, and the better value counts."""
    there = [host for host in hosts if "pairs" in raw[host.name]]
    names, at = [host.name for host in there], {host.name: advertised(raw[host.name]) for host in there}
    found = rates(there, at, circle(names), sessions)
    mbit = {pair: link["mbit"] for pair, link in found.items()}
    once_more = rates(there, at, again(names, slow_pairs(mbit)), sessions, ALL_ROUNDS / 4)
    for pair, link in found.items():
        best = max(link, once_more.get(pair, link), key=lambda each: each["mbit"])
        raw[pair[0]].setdefault("links", {})[pair[1]] = best


# -- what others' programs measure ---------------------------------------------------------------------------------
def all_reduce(
    hosts: Sequence[Host], raw: Mapping[str, Facts], specs: Mapping[str, Any], sessions: Sessions
) -> dict[str, Any] | None:
    """Returns the bus bandwidth of a real all-reduce over all hosts, and the limit that their links set. If the
    all-reduce cannot be measured, emits a notice and returns None."""
    names = [host.name for host in hosts]
    without = [name for name in names if not raw[name].get("torch")]
    emit = sessions.runtime.emit
    if without:
        emit(Notice("info", f"no all-reduce is measured: no torch on {', '.join(without)}"))
        return None
    gpus = all(raw[name].get("gpus") and (raw[name]["torch"] or {}).get("cuda") for name in names)
    backend, first = "nccl" if gpus else "gloo", advertised(raw[names[0]])
    ring = [raw[a].get("links", {}).get(b) for a, b in pairwise([*names, names[0]])]
    allowed = min((link["mbit"] for link in ring if link), default=None) if all(ring) else None
    count = min(MOST_FLOATS, max(LEAST_FLOATS, int(allowed * FLOATS_PER_MBIT))) if allowed else MOST_FLOATS

    def orders(ports: Mapping[str, int]) -> dict[str, Order]:
        if len(ports) < len(names):
            return {}
        at = f"tcp://{at_port(first, ports[names[0]])}"
        argv = {name: [n, len(names), at, backend, count] for n, name in enumerate(names)}
        return {name: Order(None, ["-c", ALL_REDUCE, json.dumps(argv[name])], interfaces(raw[name])) for name in names}

    ended = bench(hosts, orders, specs, sessions)
    if (figure := figures(ended[names[0]], Reduced)) is None:  # a figure shows that all ranks took part
        name = next((name for name, each in ended.items() if each["status"] != 0), names[0])
        emit(
            Notice(
                "warning", f"no all-reduce with {backend}: {ended[name]['why'] or 'it ended without a figure'}", name
            )
        )
        return None
    mbit = 2 * (len(names) - 1) / len(names) * figure["bytes"] * 8e-6 / figure["seconds"]
    return {"backend": backend, "hosts": names, "bus_mbit": round(mbit, 1), "links_mbit": allowed}


def interfaces(facts: Facts) -> dict[str, str]:
    """Returns the environment variables with which a run names its network interfaces."""
    way = facts.get("network") or {}
    values = zip(INTERFACE_VARIABLES, (way.get("interface"), way.get("nccl")), strict=True)
    return {name: value for name, value in values if value}


# -- InfiniBand -----------------------------------------------------------------------------------------------------
def active(facts: Facts) -> list[tuple[Any, ...]]:
    """Returns (device, port, state, rate, link layer) of the ports that carry traffic."""
    names = ("device", "port", "state", "rate", "link_layer")
    ports = [tuple(port.get(name) for name in names) for port in facts.get("infiniband") or ()]
    return [port for port in ports if port[2] == "ACTIVE"]


def ib_write_bw(port: tuple[Any, ...], tcp: int, server: str | None) -> list[str]:
    """Returns the arguments of perftest's program. port: see active(). tcp: the port number. server: the address to
    connect to, or None on the server itself."""
    own = ["-d", str(port[0]), "-i", str(port[1]), "-p", str(tcp), "-D", "2", "-F", "--report_gbits"]
    return [*own, *([server] if server else [])]


def rdma(
    hosts: Sequence[Host], raw: Mapping[str, Facts], specs: Mapping[str, Any], sessions: Sessions
) -> list[dict[str, Any]]:
    """Returns the results of ib_write_bw between pairs of neighbouring hosts, if both have the program and a port."""
    there = [host for host in hosts if active(raw[host.name]) and advertised(raw[host.name])]
    there = there[: len(there) // 2 * 2]
    pairs = [*zip(there[::2], there[1::2], strict=True)]

    def orders(ports: Mapping[str, int]) -> dict[str, Order]:
        found = dict[str, Order]()
        for a, b in [pair for pair in pairs if {pair[0].name, pair[1].name} <= ports.keys()]:
            first, second = active(raw[a.name])[0], active(raw[b.name])[0]
            at, tcp = advertised(raw[b.name]), ports[b.name]
            found[b.name] = Order("ib_write_bw", ib_write_bw(second, tcp, None))
            found[a.name] = Order("ib_write_bw", ib_write_bw(first, tcp, at), delay=2.0)
        return found

    ended = bench(there, orders, specs, sessions) if pairs else {}
    figures = {(a.name, b.name): gbit(ended[a.name]["out"]) for a, b in pairs}
    return [{"hosts": [*pair], "gbit": figure} for pair, figure in figures.items() if figure is not None]


def gbit(out: str) -> float | None:
    """Returns the average of ib_write_bw's last line of numbers: bytes, iterations, peak, average, messages."""
    lines = re.findall(r"^\s*\d+\s+\d+\s+[\d.]+\s+(\d+(?:\.\d+)?)\s+[\d.]+\s*$", out, re.M)
    return float(lines[-1]) if lines else None


def only_infiniband(raw: Mapping[str, Facts]) -> bool:
    """Returns whether all hosts have GPUs and the same InfiniBand ports. NCCL should then fail rather than use
    sockets."""
    ports = [active(facts) for facts in raw.values()]
    alike = len(ports) > 1 and bool(ports[0]) and all(each == ports[0] for each in ports)
    return alike and all(facts.get("gpus") for facts in raw.values()) and {p[4] for p in ports[0]} == {"InfiniBand"}


# -- another network ------------------------------------------------------------------------------------------------
FASTER = 1.5  # a network is proposed only if it is so many times as fast as the one that a run would use


def proposed(hosts: Sequence[Host], raw: Mapping[str, Facts], failed: bool, sessions: Sessions) -> dict[str, str]:
    """Returns the data_address of each host in a network that all hosts share. The network must be faster than the one
    that a run would use, unless that one failed. Returns {} if there is none."""
    from fleet.ops.init import ask, choose  # takes long to import

    resolve = sessions.runtime.transport.resolve
    endpoints = {host.name: str((resolve(host) or host).address) for host in hosts}
    candidates = choose.unshared({name: choose.addresses(raw[name], at) for name, at in endpoints.items()})
    reached = ask.reach(hosts, candidates, sessions)
    others = choose.shared(candidates, reached, {name: advertised(facts) for name, facts in raw.items()})
    some = circle([host.name for host in hosts])[:2]
    found = {network: rates(hosts, at, some, sessions) for network, at in others.items()}
    speeds = {network: min(link["mbit"] for link in links.values()) for network, links in found.items() if links}
    best = max(speeds, key=lambda network: speeds[network], default=None)
    if best is None or failed:
        return others[best] if best else {}
    used = [raw[a].get("links", {}).get(b) for a, b in found[best]]
    known = [link["mbit"] for link in used if link and not link["least"]]  # "least": the processors were the limit
    return others[best] if len(known) == len(used) and speeds[best] > FASTER * min(known) else {}
