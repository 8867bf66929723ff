"""Handles lost and returning nodes of elastic runs (`--nnodes MIN:MAX`).

torchrun's agents agree on the nodes that take part. A lost node does not stop the run while at least MIN nodes are
left. The lost node's agent is started again when its host answers. The other nodes' ranks would notice the loss only
after half an hour. So fleet ends these ranks, and their agents start them again without the lost node.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial

from fleet.answers.run_events import Away, Back
from fleet.background import unattended
from fleet.errors import FleetError, HostFailed, Interrupted, Reason
from fleet.events import silent
from fleet.model import Host
from fleet.node.gang.elastic import ElasticGang
from fleet.ops.facts import ask
from fleet.ops.run.follow.fetch import fetch
from fleet.ops.run.follow.follow import Follower, FollowEvent, FollowOptions, pause_after
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.plan.findings import late_findings
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.preflight import known_of, spec_for
from fleet.ops.run.start.start import nothing_left, started, supervise_spec
from fleet.ops.run.start.sync import deliver
from fleet.ops.sessions import START, START_SECONDS, STOP_SECONDS
from fleet.protocol.messages import run, run_specs
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.program import Program, call, first_message

RETRY_SECONDS = 2.0
OVER = {"op": "over"}  # a request, sent when all ranks ended with 0; in other cases launchers end by themselves
NO_ENTRY = ("auth", "host-key", "unknown-host-key")  # errors at the login: the host answers


class Elastic:
    """Handles lost nodes of an elastic run. plan: is needed to start a lost node again; None if another head launched
    the run.

    followers, notify and post belong to the Run of loop.py, whose loop calls `watch` and `back`.
    """

    def __init__(
        self,
        gang: ElasticGang,
        record: RunRecord,
        plan: Plan | None,
        folder: RunFolder,
        runtime: Runtime,
        followers: dict[str, Follower],
        notify: Callable[..., None],
        post: Callable[[FollowEvent], None],
    ) -> None:
        self._gang, self._record, self._folder, self._runtime = gang, record, folder, runtime
        self.plan, self._planning = plan, threading.Lock()
        self._followers, self._notify, self._post = followers, notify, post
        self._attempts = dict.fromkeys(gang.nodes, record.attempt)
        self._cancel, self._clock = Cancel(), runtime.clock
        self._returns: list[Future[None]] = []

    def watch(self) -> run.Verdict | None:
        """Handles what happened since the last call. Returns a reason to stop all nodes, or None."""
        turn = self._gang.look(self._clock.monotonic())
        for host in turn.went:
            self._went(host)
        for host in turn.renew:
            self._followers[host].send({"op": "renew-ranks"})  # their engine starts them again
        for follower in self._followers.values() if turn.over else ():
            follower.send(OVER)
        return turn.end

    def _went(self, host: str) -> None:
        gang = self._gang
        if gang.stopped_at is not None:
            return
        left, of = len(gang.nodes) - len(gang.away), len(gang.nodes)
        rest = "its part is started again when it answers" if self.plan else "the head that launched it takes it back"
        text = f"{host} is out: the run goes on with {left} of {of} nodes; {rest}"
        self._notify("warning", text, Away(left=left), host)
        if self.plan is not None:
            self._returns.append(unattended(f"return of {host}", partial(self._return, self._record.node(host).host)))

    # -- a lost host is started again, in a thread of its own ----------------------------------------------
    def _return(self, host: Host) -> None:
        self._followers[host.name].join()
        began, reported = self._clock.monotonic(), ""
        while not self._clock.wait(self._cancel, pause_after(self._clock.monotonic() - began, RETRY_SECONDS)):
            session = None
            try:
                session = self._runtime.transport.connect(host, self._cancel)
                waiting = self._start(host, session)
            except FleetError as error:
                if session is not None:
                    session.close()
                if isinstance(error, Interrupted):
                    return
                answers = session is not None or error.kind in NO_ENTRY
                if answers and error.message != reported:
                    reported = error.message
                    text = Reason("{hosts}", hosts=host.name) + f" is not taken back: {error.message}"
                    self._notify("warning", text, Away(), host.name, error.hint)
            else:
                self._post(FollowEvent(host.name, "back", waiting, self._clock.time()))
                return

    def _start(self, host: Host, session: Session) -> Program:
        """Starts a host's part again, after the last part has ended there and the logs of that part are here. Returns
        the program that started it."""
        last = self._attempts[host.name]
        ready: run_specs.ReadySpec = {"run": self._record.run_id, "attempt": last + 1, "ports": []}
        with Program(session, "run.ready", ready) as pause:
            answer = first_message(pause, run.Ready, timeout=2 * START_SECONDS, cancel=self._cancel)
            nothing_left(answer, host)
            if answer["forbidden"]:
                raise Interrupted("stopped meanwhile")
            program = self._supervise(host, session, last)
        with self._planning:
            assert self.plan is not None
            absent = {name: why for name, why in self.plan.absent.items() if name != host.name}
            self.plan = replace(self.plan, absent=absent)
        return program

    def _supervise(self, host: Host, session: Session, last: int) -> Program:
        assert self.plan is not None
        if host.name in self._gang.absent:
            self._prepare(host, session)
        self._fetch(host, last)
        self._folder.set_aside(host.name, last)
        self._attempts[host.name] = last + 1
        record = self._record.but(attempt=last + 1)
        spec = supervise_spec(self.plan, self.plan.node(host.name), record)
        program = Program(session, START, spec)
        if started(program)["event"] != "started":
            raise HostFailed("runs that are there hold what it needs", host=host.name)
        if self._cancel.is_set():
            stop: run_specs.StopSpec = {"run": self._record.run_id, "grace": 0.0, "reason": "the run is over"}
            call(session, "run.stop", stop, run.Stopped, timeout=STOP_SECONDS)
            raise Interrupted("the run is over")
        return program

    def _prepare(self, host: Host, session: Session) -> None:
        """Prepares a host that the run began without: sends the code, and raises HostFailed if the host is not fit."""
        assert self.plan is not None
        world, alone = self.plan.world, replace(self.plan, nodes=(self.plan.node(host.name),), absent={})
        if alone.request.delivers:
            deliver(alone, replace(self._runtime, emit=silent, cancel=self._cancel))
        met = Cancel()
        met.set()  # preflight's test of the master's port is over: ranks use the port
        spec = spec_for(self.plan, host, (world.master_addr, world.master_port), secrets.token_hex(16))
        facts = ask(session, spec, self._cancel, hurry=met)
        facts.pop("port", None)
        for finding in late_findings(self.plan, host.name, facts):
            if finding.severity == "error" and alone.request.preflight:
                raise HostFailed(finding.message, host=host.name, hint=finding.remedy)
        with self._planning:
            known = {**self.plan.facts, host.name: known_of(facts)}
            self.plan = self.plan.refine(known, (world.master_addr, world.master_port))

    def _fetch(self, host: Host, attempt: int) -> None:
        """Fetches the rest of the logs of a host's last part. attempt: its number."""
        spec: run_specs.FollowSpec = {"run": self._record.run_id, "offsets": {}, "attempt": attempt, "once": True}
        timeout, emit = self._record.node_timeout, self._runtime.emit
        how = FollowOptions(spec, self._runtime.transport, emit=emit, node_timeout=timeout, clock=self._clock)
        fetch([host], self._folder, how, lambda _: self._cancel.is_set())

    def back(self, host: str, follower: Follower) -> None:
        """Takes a host back. follower: follows its new part."""
        self._gang.back(host)
        self._followers[host] = follower
        follower.start()
        of = len(self._gang.nodes)
        text = f"{host} is back: the run goes on with {of - len(self._gang.away)} of {of} nodes"
        self._notify("info", text, Back(attempt=self._attempts[host]), host)

    def close(self) -> None:
        """Ends the threads that start hosts again."""
        self._cancel.set()
        wait(self._returns, START_SECONDS + STOP_SECONDS)
