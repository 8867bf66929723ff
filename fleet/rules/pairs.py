"""Finds which hosts do not reach each other, as the smallest set of causes. A host that no other reaches is one cause,
instead of one for each pair."""

from __future__ import annotations

import heapq
import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, Literal, NamedTuple

from fleet.errors import Reason
from fleet.inventory.nodeset import fold
from fleet.model import grouped
from fleet.rules.rule import MISSING, Finding, Rule, Sentence, View, vital

FREE = "sysctl net.ipv4.ip_local_port_range and 'ss -s' there: are ports left? does a sandbox forbid listening?"
FIREWALL = (
    "'fleet exec -w {hosts} -- nft list ruleset' shows a firewall of its own; open all TCP ports between the data "
    "addresses, both ways: gloo and NCCL choose new ones each time; or set 'data_address' to a network where they are"
)
NETWORK = (
    "a security group, a VLAN or a missing route between them? open all TCP ports between the data addresses, both "
    "ways; or set 'data_address' to a network that both are in"
)
MTU = "set the switch port's MTU to that of the hosts; until then 'ip link set dev {interface} mtu 1500' on each host"
FAILURES = {"silent": "no answer", "refused": "refused", "unreachable": "no route", "other": "something else answers"}
MOST_PAIRS = 4  # each has a finding of its own; more pairs are listed in one finding
MOST_GROUPS = 8  # groups from which the sides of a split are made; more have too many combinations
Pair = tuple[str, str]  # from, to
Shape = Literal["host", "in", "out", "split", "pair", "one"]


class Cause(NamedTuple):
    """Explains why pairs of hosts do not reach each other. hosts: the affected hosts; of a split, the smaller side.
    pairs: the pairs that the cause explains.
    shape: "host": it reaches no host and no host reaches it; "in": no host reaches it; "out": it reaches no host;
    "split": no host of one side reaches any of the other; "pair": two hosts do not reach each other; "one": the first
    does not reach the second."""

    shape: Shape
    hosts: tuple[str, ...]
    pairs: frozenset[Pair]


def causes(names: Sequence[str], bad: Iterable[Pair], tried: Iterable[Pair]) -> list[Cause]:
    """Returns the fewest causes that explain all of `bad`, and no pair that works. tried: all pairs that were tried."""
    tried_pairs, broken = {*tried}, {*bad}
    simple = [*_possible(names, tried_pairs)]
    found = _cover(broken, simple)
    split = _cover(broken, [*simple, *_splits(names, broken, tried_pairs)])
    best = split if len(split) < len(found) else found
    return sorted(best, key=lambda cause: [names.index(host) for host in cause.hosts])


def _cover(bad: set[Pair], possible: Iterable[Cause]) -> list[Cause]:
    found, left = list[Cause](), {*bad}
    fitting = [cause for cause in possible if cause.pairs and cause.pairs <= bad]
    # if two causes explain equally many pairs, the first one wins: it is simpler. Each chosen cause leaves fewer pairs
    # for the others to explain, so a count in the heap may be out of date
    heap = [(-len(cause.pairs), n) for n, cause in enumerate(fitting)]
    heapq.heapify(heap)
    while left:
        most, n = heap[0]
        explains = -len(fitting[n].pairs & left)
        if explains != most:
            heapq.heapreplace(heap, (explains, n))
            continue
        left -= fitting[n].pairs
        found.append(fitting[n])
    times = Counter(pair for cause in found for pair in cause.pairs)
    for cause in [*found]:
        if all(times[pair] > 1 for pair in cause.pairs):
            times.subtract(cause.pairs)
            found.remove(cause)
    return found


def all_pairs(of: Iterable[Cause]) -> set[Pair]:
    return {pair for cause in of for pair in cause.pairs}


def _possible(names: Sequence[str], tried: set[Pair]) -> Iterator[Cause]:
    into, out = {name: set[Pair]() for name in names}, {name: set[Pair]() for name in names}
    for pair in tried:
        out[pair[0]].add(pair)
        into[pair[1]].add(pair)
    for a in names:
        to, of = into[a], out[a]
        if len(to) > 1 and len(of) > 1:
            yield Cause("host", (a,), frozenset(to | of))
        if len(to) > 1:
            yield Cause("in", (a,), frozenset(to))
        if len(of) > 1:
            yield Cause("out", (a,), frozenset(of))
    for a, b in combinations(names, 2):
        if (a, b) in tried and (b, a) in tried:
            yield Cause("pair", (a, b), frozenset({(a, b), (b, a)}))
    for a, b in sorted(tried):
        yield Cause("one", (a, b), frozenset({(a, b)}))


def _splits(names: Sequence[str], bad: set[Pair], tried: set[Pair]) -> Iterator[Cause]:
    """Yields the ways to split the hosts into two sides of at least two hosts. Hosts that reach each other are on one
    side."""
    group = {name: {name} for name in names}
    for a, b in tried - bad:
        if group[a] is not group[b]:
            group[a] |= group[b]
            for name in group[b]:
                group[name] = group[a]
    groups = [g for n, g in enumerate(group.values()) if g not in [*group.values()][:n]][:MOST_GROUPS]
    for count in range(1, len(groups) // 2 + 1):
        for some in combinations(groups, count):
            here = {name for each in some for name in each}
            across = {pair for pair in tried if (pair[0] in here) != (pair[1] in here)}
            if 1 < len(here) < len(names) - 1:
                yield Cause("split", tuple(name for name in names if name in here), frozenset(across))


class Seen(NamedTuple):
    """Holds what a host found. pairs: other host -> result of connecting to it. address: the host's own address, to
    which the others connect. interface, mtu: the interface that has the address, and its MTU. nccl: the host has GPUs,
    so its ranks use NCCL."""

    pairs: Mapping[str, str]
    address: str
    interface: str | None
    mtu: int | None
    nccl: bool


def seen(view: View) -> Any:
    way, found = view.get("network") or {}, view.get("pairs")
    if not found or not way.get("advertised"):
        return MISSING
    mtu = (view.get("link") or {}).get("mtu")
    return Seen(found, way["advertised"], way.get("interface"), mtu, bool(view.get("gpus")))


def _tried(values: Mapping[str, Seen]) -> dict[Pair, str]:
    return {(a, b): how for a, of in values.items() for b, how in of.pairs.items() if b in values}


def closed(rule: Rule, values: Mapping[str, Seen]) -> Iterator[Finding]:
    """Yields findings about hosts that do not reach each other."""
    found = _tried(values)
    bad = {pair for pair, how in found.items() if how in FAILURES}
    together = grouped((cause.shape, cause) for cause in causes([*values], bad, found))
    single = [*together.pop("pair", []), *together.pop("one", [])]
    for cause in [*together.pop("split", []), *(single if len(single) <= MOST_PAIRS else ())]:
        yield _closed(rule, values, found, cause)
    if len(single) > MOST_PAIRS:
        pairs, hosts = listed(single, [*values])
        how = ", ".join(sorted({FAILURES[found[pair]] for pair in all_pairs(single)}))
        yield rule.found(hosts, Reason("{pairs} do not reach each other", pairs=pairs) + f" ({how})", remedy=NETWORK)
    for shape, of_shape in together.items():
        named = tuple(host for cause in of_shape for host in cause.hosts)
        yield _closed(rule, values, found, Cause(shape, named, frozenset(all_pairs(of_shape))))


def _closed(rule: Rule, values: Mapping[str, Seen], found: Mapping[Pair, str], cause: Cause) -> Finding:
    hosts, names = cause.hosts, fold(cause.hosts)
    how = ", ".join(sorted({FAILURES[found[pair]] for pair in cause.pairs}))
    it, they, reach = ("it", "it", "reaches") if len(hosts) == 1 else ("them", "they", "reach")
    others = fold(name for name in values if name not in hosts)
    ends = {"one": hosts[0], "other": hosts[-1], "at": values[hosts[-1]].address}
    text = Reason(_CLOSED[cause.shape], hosts=names, others=others, it=it, they=they, reach=reach, **ends) + f" ({how})"
    if cause.shape == "pair" and len(values) > 2 and cause.pairs == {pair for pair in found if found[pair] in FAILURES}:
        text += "; all other pairs do"
    if cause.shape == "one" and found.get((hosts[1], hosts[0])) == "open":
        text += Reason("; {other} reaches {one}", **ends)
    needed = any(values[a].nccl or _gloo_dials(values[a].address, values[b].address) for a, b in cause.pairs)
    of_host = cause.shape in ("host", "in", "out")
    remedy = Reason(FIREWALL, hosts=names) if of_host else NETWORK
    return rule.found(hosts, text, severity="error" if needed else "warning", remedy=remedy)


_CLOSED: Mapping[Shape, str] = {
    "host": "{hosts}: no other host reaches {it}, nor {they} any other, at ports that ranks listen at",
    "in": "{hosts}: no other host reaches {it} at ports that ranks listen at",
    "out": "{hosts}: {they} {reach} no other host at ports that ranks listen at",
    "split": "{hosts} and {others} do not reach each other",
    "pair": "{one} and {other} do not reach each other",
    "one": "{one} does not reach {other} at {at}",
}


def _gloo_dials(a: str, b: str) -> bool:
    """Returns whether gloo connects from a to b: the higher of two addresses connects. NCCL connects from either
    side."""
    one, other = (ipaddress.ip_address(each.partition("%")[0]) for each in (a, b))
    return one.version != other.version or one.packed > other.packed


def stalled(rule: Rule, values: Mapping[str, Seen]) -> Iterator[Finding]:
    """Yields findings about links on which large packets are lost, while small ones pass."""
    found = _tried(values)
    for cause in causes([*values], {pair for pair, how in found.items() if how == "stalled"}, found):
        first = values[cause.hosts[0]]
        size = f" of {first.mtu} bytes" if first.mtu else ""
        if len(cause.hosts) == 1:
            text = Reason("{host}: large packets", host=cause.hosts[0]) + f"{size} between it and the others are lost"
        else:
            text = Reason("between {hosts} large packets", hosts=fold(cause.hosts)) + f"{size} are lost"
        remedy = Reason(MTU, interface=first.interface)
        yield rule.found(cause.hosts, text + ", small ones pass", remedy=remedy)


def listed(found: Sequence[Cause], names: Sequence[str]) -> tuple[str, list[str]]:
    """Returns (the first pairs as a text, the hosts of all pairs in order). found: causes of the shapes "pair" and
    "one"."""
    signs = {"pair": "<->", "one": "->"}
    some = ", ".join(f"{it.hosts[0]} {signs[it.shape]} {it.hosts[1]}" for it in found[:MOST_PAIRS])
    hosts = {host for cause in found for host in cause.hosts}
    return f"{some} and {len(found) - MOST_PAIRS} more", [name for name in names if name in hosts]


def deaf(view: View) -> Sentence | None:
    return Sentence(Reason.of_node(f"no host reaches it at a high port: {view['deaf']}")) if view.get("deaf") else None


def address(view: View) -> Sentence | None:
    """Returns why this host has no usable address for a run."""
    way = view.get("network") or {}
    return Sentence(Reason.of_node(str(way["error"])), way.get("hint")) if way.get("error") else None


def another(view: View) -> Sentence | None:
    """Reports that gloo and NCCL take another address of the interface than the intended one."""
    way = view.get("network") or {}
    own, taken, name = way.get("address"), way.get("advertised"), way.get("interface")
    if way.get("error") or not own or not taken or own == taken:
        return None
    text = Reason("gloo and NCCL take {taken}, the first address of {name}, not {own}", taken=taken, name=name, own=own)
    if (":" in own) != (":" in taken):
        how = "--env NCCL_SOCKET_FAMILY=AF_INET6 for NCCL; gloo takes IPv4 where the interface has it"
        return Sentence(text, how if ":" in own else None)
    line = "where the others reach it there, all is well; else 'ip addr del {taken} dev {name}' and add it again, there"
    return Sentence(text, Reason(line, taken=taken, name=name))


def replaced(view: View) -> Sentence | None:
    """Reports which network variables of the node a run replaces, so that they name the run's interface."""
    way = view.get("network") or {}
    found, interface, address = way.get("replaced"), way.get("interface"), way.get("address")
    if not (found and interface and address):
        return None
    text = "{variables} of its environment or of NCCL's files is replaced by {name}, which holds {address}"
    variables = ", ".join(f"{name}={value}" for name, value in sorted(found.items()))
    return Sentence(Reason(text, variables=variables, name=interface, address=address))


KEEP = "where the other one is meant: set 'data_address' to its address there, or --env NCCL_SOCKET_IFNAME=NAME"
ADDRESS, SET = "the address of its ranks", "set 'data_address' to the address the other nodes reach it at"
RULES = (
    Rule("data-address", address, "clear", ADDRESS, SET, run=True),
    Rule("data-address-second", another, "clear", ADDRESS, SET, "warning", run=True),
    Rule("interface-replaced", replaced, "clear", ADDRESS, KEEP, "warning", run=True),
    Rule("nccl-conf", "nccl_conf", "contents", "settings of nccl.conf", "make the files equal", "warning"),
    vital("ways-closed", deaf, "clear", "the ways between hosts", FREE, echo_of=("master",)),
    vital("ways", seen, "closed", "the ways between hosts", NETWORK, echo_of=("master",)),
    Rule("ways-mtu", seen, "stalled", "the ways between hosts", MTU, echo_of=("master",), run=True),
)
