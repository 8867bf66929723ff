"""Finds which hosts reach each other at the addresses of their ranks, by node/preflight/pairs.py on all hosts at once.
`launch` and `check` try the same pairs."""

from __future__ import annotations

import random
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from ipaddress import ip_address
from typing import Any, NamedTuple

from fleet.errors import ProtocolError
from fleet.events import silent
from fleet.model import Host
from fleet.ops.sessions import Sessions
from fleet.protocol.messages.facts import Facts, How, Listening, Measured, Reached
from fleet.rules.judge import judge
from fleet.rules.rule import Finding, Want
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Transport
from fleet.transport.program import Program, first_message

LISTEN_SECONDS = 15.0  # until all hosts listen, as they do not begin at the same moment
DIAL_SECONDS = 20.0
ALL_PAIRS = 64  # up to so many hosts, each host dials all others
PARTNERS = 32  # with more hosts, each dials so many random ones


class Visited(NamedTuple):
    """Holds the results. how: (host, other host, the other's address) -> result of dialling it. deaf: host that could
    not listen -> the reason. links: (host, other host) -> measurements, by stream."""

    how: dict[tuple[str, str, str], How]
    deaf: dict[str, str]
    links: dict[tuple[str, str], list[Measured]]


def partners(names: Sequence[str]) -> dict[str, list[str]]:
    """Returns the hosts that each host dials: all others. If there are many hosts, it dials the first one, its
    neighbours in a ring, and some random ones. The same names always have the same partners."""
    if len(names) <= ALL_PAIRS:
        return {name: [other for other in names if other != name] for name in names}
    found: dict[str, list[str]] = {}
    all_names = " ".join(sorted(names))
    for n, name in enumerate(names):
        ring = [names[0], names[n - 1], names[(n + 1) % len(names)]]
        drawn = random.Random(f"{name} of {all_names}").sample(names, PARTNERS)
        found[name] = [other for other in dict.fromkeys([*ring, *drawn]) if other != name]
    return found


def advertised(facts: Facts) -> str:
    """Returns the address at which gloo and NCCL listen on a host, "" if it is not known."""
    return str((facts.get("network") or {}).get("advertised") or "")


def look(hosts: Sequence[Host], raw: Mapping[str, Facts], sessions: Sessions) -> None:
    """Adds "pairs" to the facts of the hosts whose advertised address is known."""
    at = {name: [address] for name, facts in raw.items() if (address := advertised(facts))}
    there = [host for host in hosts if host.name in at]
    if len(there) < 2:
        return
    found = visit(there, at, [partners([host.name for host in there])], sessions)
    for name, why in found.deaf.items():
        raw[name]["deaf"] = why
    for (name, other, _), how in found.how.items():
        raw[name].setdefault("pairs", {})[other] = how


def master(first: Host, transport: Transport, given: str | None = None) -> str:
    """Returns the address at which the ranks of a run on several hosts meet. given: --master-addr.

    The address is a number if this machine can resolve it, because a node often resolves its own name to 127.0.1.1. A
    name that this machine does not know, or that means this machine, is returned as it is: the nodes resolve it."""
    address = given or first.data_address or first.address
    if given is None and first.data_address is None:
        target = transport.resolve(first)
        address = target.address if target else address  # HostName of ~/.ssh/config
    try:
        known = [str(entry[4][0]) for entry in socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):  # "a..b" cannot be encoded
        return address
    return next((found for found in known if not ip_address(found.partition("%")[0]).is_loopback), address)


def way(hosts: Sequence[Host], host: Host, master: str) -> dict[str, Any]:
    """Returns the input of node/facts/way.py, which finds the address that a host's ranks will have. master: the
    address on the first host at which ranks meet."""
    first = host.name == hosts[0].name
    other = next((each.data_address or each.address for each in hosts if each.name != host.name), None)
    return {
        "master": master,
        "is_master": first,
        "own": host.data_address,
        "other": master if other and not first else other,
    }


class Meeting:
    """Makes threads wait until all have arrived, or until a timeout."""

    def __init__(self, names: set[str]) -> None:
        self._missing, self._lock, self._all = names, threading.Lock(), threading.Event()

    def arrive(self, name: str) -> None:
        with self._lock:
            self._missing.discard(name)
            if not self._missing:
                self._all.set()

    def wait(self, seconds: float, cancel: Cancel) -> None:
        with cancel.calling(self._all.set):
            self._all.wait(seconds)


def visit(
    hosts: Sequence[Host],
    at: Mapping[str, Sequence[str]],
    rounds: Sequence[Mapping[str, Sequence[str]]],
    sessions: Sessions,
    seconds: float = 0.0,
    streams: int = 1,
    ways: Mapping[str, Mapping[str, Any]] = {},
) -> Visited:
    """Has hosts dial each other. at: host name -> addresses at which it listens. ways: host name -> the result of
    way(), from which the host finds the address of its ranks, and listens there. rounds: host name -> the hosts that it
    dials, for each round. seconds: how long each host sends, over `streams` streams. A host that fails is not in the
    result."""
    tokens = {host.name: secrets.token_hex(16) for host in hosts}
    ports: dict[str, Listening] = {}
    begins, over = ([Meeting({*tokens}) for _ in rounds] for _ in range(2))
    cancel = sessions.runtime.cancel
    limit = LISTEN_SECONDS + len(rounds) * (seconds + DIAL_SECONDS)

    def targets(others: Sequence[str]) -> list[tuple[str, str, int]]:
        """Returns (host, address, port) of each connection that is to be made to these hosts."""
        return [
            (other, address, port)
            for other in others
            if other in ports
            for address, port in zip(ports[other]["addresses"], ports[other]["ports"], strict=False)
            for _ in range(streams)
            if port
        ]

    def task(host: Host) -> list[tuple[list[tuple[str, str, int]], Reached]]:
        spec: dict[str, Any] = {"listen": [*at.get(host.name, ())], "token": tokens[host.name], "seconds": limit}
        spec["way"] = ways.get(host.name)
        answers = list[tuple[list[tuple[str, str, int]], Reached]]()
        try:
            with Program(sessions.get(host), "preflight.own_pairs" if ways else "preflight.pairs", spec) as program:
                listening = first_message(program, Listening, timeout=LISTEN_SECONDS, cancel=cancel)
                if not len(listening["ports"]) == len(listening["addresses"]) <= max(1, len(spec["listen"])):
                    raise ProtocolError("it listens at other addresses than it was to", host.name)
                ports[host.name] = listening
                for wanted, begin, end in zip(rounds, begins, over, strict=True):
                    begin.arrive(host.name)
                    begin.wait(LISTEN_SECONDS, cancel)
                    visits = targets(wanted[host.name])
                    orders = [[address, port, tokens[other]] for other, address, port in visits]
                    program.send({"op": "dial", "seconds": seconds, "visits": orders})
                    answer = first_message(program, Reached, timeout=seconds + DIAL_SECONDS, cancel=cancel)
                    if not len(answer["reached"]) == len(answer["links"]) == len(visits):
                        raise ProtocolError("its results are not of the visits that it was to make", host.name)
                    answers.append((visits, answer))
                    end.arrive(host.name)
                    end.wait(seconds + DIAL_SECONDS, cancel)
                return answers
        finally:
            for meeting in (*begins, *over):
                meeting.arrive(host.name)

    found, _ = sessions.each(tuple(hosts), task, "the network")
    how: dict[tuple[str, str, str], How] = {}
    links: dict[tuple[str, str], list[Measured]] = {}
    for name, answers in found.items():
        for visits, answer in answers:
            for (other, address, _), state, link in zip(visits, answer["reached"], answer["links"], strict=True):
                how.setdefault((name, other, address), state)
                if link:
                    links.setdefault((name, other), []).append(link)
    return Visited(how, {name: answer["error"] for name, answer in ports.items() if answer["error"]}, links)


def closed_now(hosts: Sequence[Host], met_at: str, transport: Transport, cancel: Cancel) -> list[Finding]:
    """Returns findings about connections between the hosts of a run that hangs or has just failed. met_at: the address
    at which its ranks meet, "" if it is not known."""
    names = [host.name for host in hosts]
    first = met_at or master(hosts[0], transport)
    ways = {host.name: way(hosts, host, first) for host in hosts}
    with closing(Sessions(Runtime(transport, emit=silent, cancel=cancel))) as sessions:
        found = visit(hosts, {}, [partners(names)], sessions, ways=ways).how
    views: dict[str, dict[str, Any]] = {name: {"want": Want(name), "pairs": {}} for name in names}
    for (name, other, address), state in found.items():
        views[name]["pairs"][other] = state
        views[other]["network"] = {"advertised": address, "interface": None}
    return [finding for finding in judge(views) if finding.id in ("ways", "ways-mtu")]
