"""Runs that go on with fewer nodes and take them back: `--nnodes MIN:MAX`, torchrun's own elasticity.

torchrun's agents agree on who takes part; fleet lets them. A node that goes away is no reason to stop while enough are
left, and its agent is started again when its host answers. Ranks that wait for one which will never answer notice it
after half an hour: they are ended, so that their agents start them again without it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf

from fleet.errors import FleetError, HostFailed, Interrupted, Reason
from fleet.events import silent
from fleet.inventory.nodeset import fold
from fleet.model import Host
from fleet.ops.facts import ask
from fleet.ops.launch.findings import findings
from fleet.ops.launch.folder import RunFolder
from fleet.ops.launch.follow import Follower, Heard
from fleet.ops.launch.gang import INTERRUPTED, Failure, Gang, NodeState, RankEnd
from fleet.ops.launch.plan import Plan
from fleet.ops.launch.preflight import known_of, spec_for
from fleet.ops.launch.record import RunRecord
from fleet.ops.launch.start import START_SECONDS, STOP_SECONDS, supervise_spec
from fleet.protocol.messages import run
from fleet.protocol.messages.values import Failed
from fleet.protocol.state import FINAL
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.program import call

RETRY_SECONDS, REFUSED_SECONDS = 2.0, 10.0
HANG_SECONDS = 8.0  # in which ranks notice by themselves that another one is gone, where they can

BARRIER_SECONDS = 5.0  # at its exit that are worth a word
EXIT_BARRIER_SECONDS = 300  # torch.distributed.elastic.agent.server: exit_barrier_timeout
EXIT_BARRIER = "those that are started again meet without it; ranks that need each other should end together"


class ElasticGang(Gang):
    """least: nodes that must be left. away: hosts that went, and are not back. The first node is where ranks meet:
    nothing goes on without it."""

    def __init__(self, nodes: Mapping[str, int], least: int) -> None:
        super().__init__(nodes, restarts=True)
        self.least = least

    def node_status(self, host: str, status: run.RunState) -> str | None:
        reason = super().node_status(host, status)
        node = self.nodes[host]
        for_good = node.state == "exited" and not status.get("signal")  # an agent that gives up closes the rendezvous
        if reason is None or for_good or reason.startswith(INTERRUPTED):
            return reason
        return self._without(host, reason)

    def node_lost(self, host: str, heard: float, why: FleetError | None = None) -> str | None:
        reason = super().node_lost(host, heard, why)
        return reason and self._without(host, reason)

    def _without(self, host: str, reason: str) -> str | None:
        if self.stopped_at is not None:
            return reason
        self.away.add(host)
        left = len(self.nodes) - len(self.away)
        if self.nodes[host].node_rank == 0:
            self.needed = "; ranks meet there, so nothing goes on without it"
        elif left < self.least:
            self.needed = f"; {left} of {len(self.nodes)} nodes are left, --nnodes asks for {self.least}"
        return reason + self.needed if self.needed else None

    def back(self, host: str) -> None:
        """It takes part again, as if it had just been started."""
        self.away.discard(host)
        self.absent.discard(host)
        self.nodes[host] = NodeState(host, self.nodes[host].node_rank)

    def done(self, ranks: Mapping[str, int], now: float) -> tuple[list[str], list[str]]:
        """(hosts whose agents wait, the others' ranks having longer to go; these others). A host's agent waits at its
        exit for all others, once each of its ranks has left with 0. ranks: how many a host has."""
        waiting, others = [], []
        for host in ranks.keys() - self.away:
            node = self.nodes[host]
            ends = sorted(node.ranks.values(), key=lambda end: end.time)[-ranks[host] :]
            if len(ends) < ranks[host] or any(end.failed for end in ends):
                others.append(host)
            elif node.state not in FINAL and now - node.clock.on_head(ends[-1].time) > BARRIER_SECONDS:
                waiting.append(host)
        return (waiting, others) if others and self.stopped_at is None else ([], [])

    def gone_at(self, host: str) -> float:
        """When a host that is away went, on the head's clock."""
        node = self.nodes[host]
        return node.lost or node.began

    def _rank_failures(self, collateral: Callable[[RankEnd], bool]) -> list[Failure]:
        return super()._rank_failures(collateral) if self.stopped_at is not None else []

    def _node_failures(self) -> list[Failure]:
        found = super()._node_failures()
        return found if self.stopped_at is not None else [each for each in found if each.host not in self.away]


def gang_of(record: RunRecord) -> Gang:
    nodes = {node.host.name: node.node_rank for node in record.nodes}
    return ElasticGang(nodes, record.least) if record.least else Gang(nodes, record.restarts)


class Elastic:
    """Of a run: what is done about nodes that went. plan: to start one again; None where another head planned it.

    followers, say, post: the run's. `watch` and `back` are called in its loop.
    """

    def __init__(
        self,
        gang: ElasticGang,
        record: RunRecord,
        plan: Plan | None,
        folder: RunFolder,
        runtime: Runtime,
        followers: dict[str, Follower],
        say: Callable[..., None],
        post: Callable[[Heard], None],
    ) -> None:
        self._gang, self._record, self._folder, self._runtime = gang, record, folder, runtime
        self.plan, self._planning = plan, threading.Lock()
        self._followers, self._say, self._post = followers, say, post
        self._away: dict[str, float] = {}  # since when its loss is known here
        self._ranks = {node.host.name: node.local_world_size for node in record.nodes}
        self._waiting: set[str] = set()  # hosts whose agents wait at their exit, as was told
        self._attempts = dict.fromkeys(gang.nodes, record.attempt)
        self._cancel = Cancel()
        self._threads: list[threading.Thread] = []

    def watch(self) -> None:
        """Several times a second."""
        now = time.monotonic()
        for host in self._gang.away - self._away.keys():
            self._away[host] = inf if host in self._gang.absent else now  # of one that never was nobody waits
            self._went(host)
        for host, since in self._away.items():
            if now - since > HANG_SECONDS:
                self._away[host] = inf
                self._wake(host)
        waiting, others = self._gang.done(self._ranks, time.time())
        if set(waiting) > self._waiting:
            self._waiting = set(waiting)
            what = f"{fold(waiting)}: all ranks have ended with 0; torchrun waits there in its exit barrier for"
            self._say(
                "warning",
                f"{what} {fold(others)}, {EXIT_BARRIER_SECONDS} s at most",
                "advice",
                hint=EXIT_BARRIER,
                id="exit-barrier",
                remedy=EXIT_BARRIER,
            )

    def _went(self, host: str) -> None:
        gang = self._gang
        if gang.stopped_at is not None:
            return
        left, of = len(gang.nodes) - len(gang.away), len(gang.nodes)
        rest = "its part is started again when it answers" if self.plan else "whoever launched the run takes it back"
        self._say(
            "warning", f"{host} is out: the run goes on with {left} of {of} nodes; {rest}", "away", host, left=left
        )
        if self.plan is not None:
            thread = threading.Thread(target=self._return, args=(self._record.node(host).host,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _wake(self, gone: str) -> None:
        """End ranks that have not noticed that a node went."""
        since = self._gang.gone_at(gone) - 2.0
        for host, node in self._gang.nodes.items():
            ended = [end for end in node.ranks.values() if node.clock.on_head(end.time) > since]
            if host not in self._gang.away and not node.ended and not ended:
                self._followers[host].renew_ranks()

    # -- a host that is to come back, in a thread of its own -----------------------------------------------
    def _return(self, host: Host) -> None:
        self._followers[host.name].join()
        pause = RETRY_SECONDS
        while not self._cancel.wait(pause):
            try:
                session = self._runtime.transport.connect(host, self._cancel)
            except FleetError:
                continue
            try:
                self._start(host, session)
                self._post(Heard(host.name, "back", session, time.time()))
                return
            except Interrupted:
                session.close()
                return
            except FleetError as error:
                session.close()
                pause = REFUSED_SECONDS
                self._say(
                    "warning",
                    Reason("{hosts}", hosts=host.name) + f" is not taken back: {error.message}",
                    "away",
                    host.name,
                )

    def _start(self, host: Host, session: Session) -> None:
        """Its part of the run, once nothing is left of the last one there, and all that it wrote is here."""
        assert self.plan is not None
        last = self._attempts[host.name]
        ready: run.ReadySpec = {"run": self._record.run_id, "attempt": last + 1, "ports": []}
        answer = call(session, "run.ready", ready, run.Ready, timeout=2 * START_SECONDS, cancel=self._cancel)
        if answer["left"]:
            raise HostFailed(f"processes that would not die: {answer['left'][:20]}", host=host.name, kind="stubborn")
        if answer["forbidden"]:
            raise Interrupted("stopped meanwhile")
        if host.name in self._gang.absent:
            self._prepare(host, session)
        self._fetch(host, last)
        self._folder.set_aside(host.name, last)
        self._attempts[host.name] = last + 1
        record = replace(self._record, attempt=last + 1)
        spec = supervise_spec(self.plan, self.plan.node(host.name), record)
        started = call(session, "run.supervise", spec, run.Started | Failed, timeout=START_SECONDS)
        if started["event"] == "failed":
            raise HostFailed(Reason.of_node(started["message"]), host=host.name, hint=started["hint"])
        if self._cancel.is_set():
            stop: run.StopSpec = {"run": self._record.run_id, "grace": 0.0, "reason": "the run is over"}
            call(session, "run.stop", stop, run.Stopped, timeout=STOP_SECONDS)
            raise Interrupted("the run is over")
        with self._planning:
            absent = {name: why for name, why in self.plan.absent.items() if name != host.name}
            self.plan = replace(self.plan, absent=absent)

    def _prepare(self, host: Host, session: Session) -> None:
        """What the start did for the others: its code, and whether it is fit."""
        from fleet.ops.launch import sync_code

        assert self.plan is not None
        world, alone = self.plan.world, replace(self.plan, nodes=(self.plan.node(host.name),), absent={})
        if alone.options.sync:
            sync_code(alone, replace(self._runtime, emit=silent, cancel=self._cancel))
        met = Cancel()
        met.set()  # the others do not wait at the port any more, they use it
        spec = spec_for(self.plan, host, (world.master_addr, world.master_port), secrets.token_hex(16))
        facts = ask(session, spec, self._cancel, hurry=met)
        facts.pop("port", None)
        for finding in findings(alone, {host.name: facts}, complete=False):
            if finding.severity == "error" and alone.options.preflight:
                raise HostFailed(finding.message, host=host.name, hint=finding.remedy)
        with self._planning:
            known = {**self.plan.facts, host.name: known_of(facts)}
            self.plan = self.plan.refine(known, (world.master_addr, world.master_port))

    def _fetch(self, host: Host, attempt: int) -> None:
        """The rest of what it wrote before it went."""
        Follower(
            self._record.run_id,
            host,
            None,
            self._runtime.transport,
            self._folder.node(host.name),
            lambda heard: None,
            lambda event: None,
            self._record.node_timeout,
            attempt=attempt,
            once=True,
        ).run()

    def back(self, host: str, follower: Follower) -> None:
        """follower: of what it does now."""
        self._gang.back(host)
        self._away.pop(host, None)
        self._followers[host] = follower
        follower.start()
        of = len(self._gang.nodes)
        said = f"{host} is back: the run goes on with {of - len(self._gang.away)} of {of} nodes"
        self._say("info", said, "back", host, attempt=self._attempts[host])

    def close(self) -> None:
        """Nobody is taken back any more."""
        self._cancel.set()
        for thread in self._threads:
            thread.join(START_SECONDS + STOP_SECONDS)
