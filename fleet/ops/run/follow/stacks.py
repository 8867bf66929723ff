"""Fetches the stacks of a run's ranks, and checks whether its hosts reach each other."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from fleet.answers.runs import StacksThere
from fleet.each import on_each
from fleet.errors import FleetError, HostFailed, Reason
from fleet.events import silent
from fleet.model import Host, Result
from fleet.node.base.clock import CLOCK, Clock
from fleet.node.facts.way import NAMES as INTERFACE_VARIABLES
from fleet.ops.pairs import closed_now
from fleet.ops.run.kept.documents import RUN, read_object, stored
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.plan.origin import VARIABLES
from fleet.ops.sessions import ANSWER_SECONDS
from fleet.protocol.messages.stacks import RankStack, Stacks, StacksSpec
from fleet.protocol.messages.values import Failed
from fleet.rules.collectives import Hang, hang
from fleet.rules.rule import Finding
from fleet.rules.stacks import Place, places, remarks
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session, Transport
from fleet.transport.program import call

TAKE_SECONDS = 45.0  # for the stacks of all ranks: more than ANSWER_SECONDS, the limit of one host


def ask_stacks(
    run_id: str,
    hosts: Mapping[str, Host],
    ranks: Collection[int] | None,
    native: bool,
    runtime: Runtime,
    ended: bool = False,
) -> tuple[Result, ...]:
    """Returns a result with a StacksThere for each host: the stacks of its ranks, and more. ranks: those whose stacks
    are taken; None: all. native: takes the frames of C and C++, too. ended: takes the dumps of ranks that have ended,
    too."""
    wanted = None if ranks is None else sorted(ranks)
    spec: StacksSpec = {"run": run_id, "ranks": wanted, "ended": ended, "native": native}

    def ask(session: Session, host: Host) -> Result:
        answer = call(session, "run.stacks", spec, Stacks | Failed, timeout=ANSWER_SECONDS, cancel=runtime.cancel)
        if answer["event"] == "failed":
            raise HostFailed(Reason.of_node(answer["message"]), host=host.name, hint=answer["hint"])
        return Result(
            host.name,
            True,
            0,
            answer=StacksThere(answer["ranks"], answer["own_master"], answer["calls"], answer["ras"]),
        )

    return on_each(tuple(hosts.values()), replace(runtime, fanout=len(hosts)), ask, what="taking stacks")


def by_host(results: Sequence[Result]) -> dict[str, list[RankStack]]:
    """Returns host -> stacks of its ranks."""
    return {result.host: list(result.read(StacksThere).ranks) for result in results}


def hang_of(results: Sequence[Result], found: Sequence[Place]) -> Hang | None:
    """Returns the collective that ranks wait in; None if their flight recorders do not show it. found: where ranks
    are."""
    every = [it for result in results for it in result.read(StacksThere).calls]
    # a rank may have run on two hosts: its newest readable dump comes last and counts
    calls = {it["rank"]: it for it in sorted(every, key=lambda it: (it["why"] is None, -it["old"]))}
    return hang(calls, {rank: place.at for place in found for rank in place.ranks})


def ras_lines(results: Sequence[Result]) -> list[str]:
    """Returns the report of NCCL's RAS (reliability, availability, serviceability) from the first host that has one.
    Each report covers all hosts."""
    host, text = next(((it.host, ras) for it in results if (ras := it.read(StacksThere).ras)), ("", ""))
    return [f"NCCL's RAS on {host}:", *(f"    {line}" for line in text.splitlines())] if text else []


def names_interface(record: RunRecord) -> bool:
    """Returns whether the user's variables name the interface of the ranks. The hosts' other interfaces may then be
    closed, so a check of those would prove nothing."""
    document = read_object(record.logs / RUN)
    hosts = stored(list[Any], document, "inventory", "hosts") or []
    holders = [document.get("launch"), document.get("inventory"), *hosts]
    given = [stored(dict[str, Any], each, name) or {} for each in holders for name in VARIABLES]
    return not {*INTERFACE_VARIABLES}.isdisjoint(chain.from_iterable(given))


class Taking(threading.Thread):
    """Takes stacks in a thread. why: "straggler", "silent" or "stalled" (see Watch.look()), "timed out", or "apart",
    which takes only `own_masters`. until: when this process stops waiting for stacks, by the clock's monotonic().
    places: None before hosts have answered. own_masters: host -> its own address, at which its launcher waits for other
    nodes. remarks: what is missing, and why. closed: findings about hosts that do not reach each other."""

    def __init__(
        self, why: str, record: RunRecord, hosts: Mapping[str, Host], transport: Transport, clock: Clock = CLOCK
    ) -> None:
        super().__init__(name="stacks", daemon=True)
        self.why, self.until, self._clock = why, clock.monotonic() + TAKE_SECONDS, clock
        self.places: list[Place] | None = None
        self.own_masters: dict[str, str] = {}
        self.remarks: list[str] = []
        self.closed: list[Finding] = []
        self.hang: Hang | None = None
        self.ras: list[str] = []
        self._cancel, self._record, self._hosts, self._transport = Cancel(), record, hosts, transport

    def run(self) -> None:
        runtime, record = Runtime(self._transport, emit=silent, cancel=self._cancel), self._record
        try:
            ranks = () if self.why == "apart" else None
            native, ended = self.why == "stalled", self.why == "timed out"
            results = ask_stacks(record.run_id, self._hosts, ranks, native, runtime, ended)
        except FleetError as error:
            self.remarks = [error.message]
        else:
            found = by_host(results)
            self.remarks = [*remarks(found), *(f"{it.host}: {it.error.message}" for it in results if it.error)]
            self.places = places(found)
            self.hang = hang_of(results, self.places)
            self.ras = ras_lines(results)
            answers = {result.host: result.read(StacksThere).own_master for result in results}
            self.own_masters = {host: address for host, address in answers.items() if address}
        if self.why in ("timed out", "stalled") and len(record.hosts) > 1 and not names_interface(record):
            met_at = record.about["master"].rpartition(":")[0].strip("[]")
            self.closed = closed_now(record.hosts, met_at, self._transport, self._cancel)

    @property
    def over(self) -> bool:
        return not self.is_alive() or self._clock.monotonic() > self.until

    def give_up(self) -> None:
        self._cancel.set()
