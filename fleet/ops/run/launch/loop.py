"""Runs the loop of a run: it handles the events of the followers and sends stops, until every node has ended."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace

from fleet.answers.event import RunEvent
from fleet.answers.run_events import Advised, Gap, Incomplete, Superseded
from fleet.answers.runs import RunSummary
from fleet.events import Level, silent
from fleet.model import Host, Report
from fleet.node.gang.elastic import ElasticGang, gang_of
from fleet.node.gang.ends import RankEnd
from fleet.ops.run.end.failure import before_stop, why_of
from fleet.ops.run.end.summary import Written, decide, left_alone, summarise
from fleet.ops.run.follow.follow import FollowEnd, Follower, FollowEvent, FollowOptions
from fleet.ops.run.follow.remarks import REMARKS, of_connection, of_host, of_lost, of_rank, of_status
from fleet.ops.run.follow.samples import Samples
from fleet.ops.run.follow.stalls import Stalls
from fleet.ops.run.follow.stopping import LEAVE, Stopping
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.logs import NodeLogs
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.launch.elastic import OVER, Elastic
from fleet.ops.run.plan.origin import age
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.start import agree
from fleet.ops.sessions import Sessions
from fleet.protocol.messages.run import News, RankEnded, RunState, Verdict
from fleet.protocol.messages.run_specs import FollowSpec
from fleet.protocol.state import FINAL
from fleet.rules.advice import Advice
from fleet.rules.units import size_text
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from fleet.transport.program import Program

TICK, JOIN_SECONDS = 0.5, 5.0


class Run:
    """Follows a run that any process has started. waiting: host -> the program there that waits to start run.follow.
    plan: None unless this machine made the plan. leads: this process coordinates the run."""

    def __init__(
        self,
        record: RunRecord,
        folder: RunFolder,
        waiting: Mapping[str, Program],
        runtime: Runtime,
        plan: Plan | None = None,
        leads: bool = False,
    ) -> None:
        self.record, self.folder, self.runtime, self._clock = record, folder, runtime, runtime.clock
        parts = {node.host.name: (node.node_rank, node.ranks) for node in record.nodes}
        self.gang, self._plan = gang_of(parts, record.about["least"]), plan
        self.leads = leads or plan is not None  # False: another process decides for the run
        self._superseded = False  # True: another process coordinates the run now
        self.logs: dict[str, NodeLogs] = {host.name: folder.node(host.name) for host in record.hosts}
        self.incomplete: list[str] = []
        # no SimpleQueue: its get() waits for ever if a signal handler takes longer than the timeout
        self._events: queue.Queue[FollowEvent | None] = queue.Queue()
        self._undo = [latch.on_set(lambda: self._events.put(None)) for latch in (runtime.cancel, runtime.detach)]
        self.gang.verdict = record.verdict
        # an end that is known already counts, whatever messages are received first
        if known := record.verdict or record.stop_reason:
            self.gang.stop(known, self._clock.time())
        self.gang.unknown = set(record.unknown)
        for name in record.unknown:
            self.gang.nodes[name].ended = True
        hosts = [host for host in record.hosts if host.name not in record.unknown]
        self._followers = {host.name: self._follower(host, waiting.get(host.name)) for host in hosts}
        self._elastic = None
        if isinstance(self.gang, ElasticGang):
            shared = self._followers, self.notify, self._events.put
            self._elastic = Elastic(self.gang, record, plan, folder, runtime, *shared)
        self._handlers: dict[str, Callable[[FollowEvent], None]] = {
            "message": self._on_message,
            **dict.fromkeys(REMARKS, lambda received: self.notify(*of_connection(received, folder.path))),
            "advice": self._on_advice,
            "over": self._on_over,
            "back": self._on_back,
            "broken": self._on_broken,
        }
        self._advised: set[Advice] = set()
        watched = record if self.leads else record.but(stall_timeout=None)  # only a coordinator ends a silent run
        self._stalls = Stalls(watched, self.gang, folder, runtime.transport, self.notify, self._clock)
        self._samples = Samples(record, self.gang, self.notify, self._clock)
        spares = plan.spares if plan is not None else ()
        self._stopping = Stopping(record, self.gang, self._followers, runtime, self.notify, spares, self.leads)
        self._before = age(folder, record.about["started"])
        self._began, self._since = self._clock.time(), self._clock.monotonic()

    def _follower(self, host: Host, waiting: Program | None) -> Follower:
        record = self.record
        spec: FollowSpec = {
            "run": record.run_id,
            "offsets": {},
            "attempt": None if record.about["least"] else record.attempt,
            "term": record.term * self.leads,
            "waits": not self.leads,
        }
        how = FollowOptions(
            spec,
            self.runtime.transport,
            self._events.put,
            self.runtime.emit,
            record.node_timeout,
            lease=record.lease,
            keeps=True,
            trims=record.about["max_log"] > 0,
            clock=self._clock,
        )
        follower = Follower(host, self.logs[host.name], how, waiting)
        if self.record.lease is None and self.leads:
            follower.detach()  # every node starts with a lease; this removes it
        return follower

    def follow(self) -> Report:
        """Follows this attempt until it ends or the user detaches. After a detach, follow() may be called again."""
        for host, why in (self.plan.absent if self.plan else {}).items():
            if host in self.gang.nodes and host not in self.gang.absent:
                self.gang.absent.add(host)
                self.gang.node_lost(host, self._clock.time(), why_of(why))
                self._followers[host].give_up()
        for follower in self._followers.values():
            if follower.ident is None:
                follower.start()
        while self._stalls.holds or not all(node.ended for node in self.gang.nodes.values()):
            if self.runtime.detach.is_set() or self._superseded and self.runtime.cancel.is_set():
                return left_alone(self.record, self.leads)
            try:
                received = self._events.get(timeout=TICK)
            except queue.Empty:
                received = None
            if received is not None:
                self._handlers[received.kind](received)
            self._stopping.watch_silence()
            if self._elastic is not None:
                self._stopping.stop_if(self._elastic.watch())
            self._watch_stalls()
            self._samples.look()
            self._stopping.watch()
            self.folder.sign()
            if self.runtime.cancel.count >= LEAVE:
                break
        self._stalls.close()
        for undo in self._undo:
            undo()
        if self._elastic is not None:
            self._elastic.close()
        self._stopping.learn_why()
        left = [*self._stopping.clean_up(), *sorted(self.gang.unknown)]
        self.incomplete += [host for host in left if host not in self.incomplete]
        return self.report(self.gang.verdict or decide(self.record, self.gang, self.logs))

    def report(self, verdict: Verdict | None) -> Report:
        report = summarise(self.record, self.gang, self.logs, self.incomplete, self._seconds(), verdict)
        used, slow = self._samples.used() or None, self._samples.slow()
        return replace(report, answer=replace(report.read(RunSummary), used=used, slow=slow))

    def may_decide(self, report: Report) -> bool:
        """Returns whether this process may decide how the run ended. It may if it coordinates the run, or if no other
        attempt can follow."""
        draft = report.read(RunSummary).end
        well = draft is not None and draft["first"] is None
        return well or self.leads or not self.record.restartable or self.gang.verdict is not None

    def conclude(self, report: Report, nodes: Mapping[str, Host]) -> Report:
        """Sends the verdict to all nodes, unless they have it. Returns the final report. report: the one of the last
        attempt. nodes: the hosts of all attempts, by name."""
        verdict = report.read(RunSummary).end
        if verdict is not None and self.record.verdict is None:
            away = {*self.gang.unknown, *self.gang.absent, *(host.name for host in self._stopping.left)}
            there = tuple(host for name, host in nodes.items() if name not in away)
            with closing(Sessions(replace(self.runtime, emit=silent, cancel=Cancel()))) as sessions:
                sessions.adopt({host: follower.take() for host, follower in self._followers.items()})
                verdict, missed = agree(self.record.run_id, verdict, there, sessions, self.record.attempt)
            self._stopping.left += [host for host in missed if host in self.record.hosts]
        self.leave(verdict)
        return self.report(verdict)

    def leave(self, verdict: Verdict | None = None) -> None:
        """Passes hosts that could not be reached to a background process, and ends all threads of this attempt.
        verdict: None if another attempt follows."""
        self._stopping.leave(verdict)
        self.close()

    @property
    def plan(self) -> Plan | None:
        """Returns the present plan. In an elastic run, new hosts are added to it."""
        return self._elastic.plan if self._elastic is not None else self._plan

    def _seconds(self) -> float:
        """Returns how many seconds the run took. It may have ended before this process followed it."""
        nodes = self.gang.nodes.values()
        last = max((node.clock.here(node.status.get("time", 0.0)) for node in nodes), default=0.0)
        was_over = all(node.state in FINAL for node in nodes) and 0 < last < self._began
        return max(0.0, self._before + (last - self._began if was_over else self._clock.monotonic() - self._since))

    def unleash(self) -> None:
        """Removes the run's lease, so that its nodes go on without a coordinator."""
        self.record = self._stopping.record = replace(self.record, lease=None)
        self._stopping.silence.lease = None
        for follower in self._followers.values():
            follower.detach()

    def close(self) -> None:
        """Ends all threads that write for this attempt."""
        if self._elastic is not None:
            self._elastic.close()
        for follower in self._followers.values():
            follower.give_up()
        for follower in self._followers.values():
            follower.join(JOIN_SECONDS)
            follower.drop()

    # -- what is received ------------------------------------------------------------------------------------
    def notify(
        self, level: Level, message: str, event: RunEvent, host: str | None = None, hint: str | None = None
    ) -> None:
        """Appends an event to events.jsonl, and emits it as a Notice."""
        self.runtime.emit(self.folder.notice(level, message, event, host, hint))

    def _on_message(self, received: FollowEvent) -> None:
        message: News = received.data
        if message["event"] == "superseded":
            if self.leads:
                self.leads, self._superseded = False, True
                self._stopping.leads = False
                self.notify("warning", "another process leads this run now; this one only watches it", Superseded())
            return
        reason = self.gang.receive(received.host, message, received.time)
        if message["event"] == "rank":
            self._on_rank(received.host, message, reason)
            return
        if message["event"] == "status":
            self._on_status(received.host, message)
        self._stopping.stop_if(self._stalls.held(reason))

    def _on_status(self, host: str, message: RunState) -> None:
        if message.get("state") != "running" or message.get("builds") or message.get("disk_full") is not None:
            self.notify(*of_status(host, message))

    def _on_rank(self, host: str, message: RankEnded, reason: Verdict | None) -> None:
        end = RankEnd.of(host, self.gang.nodes[host].node_rank, message)
        self.notify(*of_rank(end, "error" if reason else "info"))
        if reason:
            tail = Written(self.gang, self.logs).tail
            self._stopping.stop_if(self._stalls.held(reason, tail(host, end.rank), before_stop(end, tail)))
        if lost := sum(message.get("lost", ())):
            self.notify(*of_lost(end, lost))
        self._stalls.rank_ended(end)
        if self.gang.all_well:
            for follower in self._followers.values():
                follower.send(OVER)

    def _on_advice(self, received: FollowEvent) -> None:
        advice: Advice = received.data
        if advice not in self._advised:
            self._advised.add(advice)
            text, remedy = f"{received.host}: {advice.message}", advice.remedy
            self.notify("warning", text, Advised(id=advice.id, remedy=remedy), received.host, remedy)

    def _on_broken(self, received: FollowEvent) -> None:
        if self.gang.nodes[received.host].lost is None:
            self._stopping.lose(received.host, received.time, received.data)

    def _on_over(self, received: FollowEvent) -> None:
        node = self.gang.nodes[received.host]
        node.ended = True
        over: FollowEnd = received.data
        if (over.gaps or not over.complete) and received.host not in self.gang.absent:
            self.incomplete.append(received.host)
        for name, missing in over.gaps.items():
            text = f": {size_text(missing)} of {name} are not here: it keeps no more than --max-log"
            owner = f"who led the run has them, as a rule {self.record.about['owner']}"
            self.notify("warning", of_host(received.host, text), Gap(file=name, bytes=missing), received.host, owner)
        if not over.complete and node.lost is None:
            text = ": its logs are not complete here"
            hint = f"the node has them all: 'fleet attach {self.record.run_id}' brings the rest" * over.is_there or None
            self.notify("error", of_host(received.host, text), Incomplete(), received.host, hint)

    def _on_back(self, received: FollowEvent) -> None:
        assert self._elastic is not None
        host = self.record.node(received.host).host
        self.logs[host.name] = self.folder.node(host.name)
        self.incomplete = [name for name in self.incomplete if name != host.name]
        self._elastic.back(host.name, self._follower(host, received.data))
        if self.gang.stopped_at is not None:
            self._followers[host.name].stop(self.record.grace, self.gang.end)

    def _watch_stalls(self) -> None:
        live = [self._followers[host] for host, node in self.gang.nodes.items() if not node.ended]
        last = max((follower.last_output_at for follower in self._followers.values()), default=0.0)
        blind = any(follower.silent_since is not None or follower.logs.blocked for follower in live)
        self._stopping.stop_if(self._stalls.look(last, blind=blind))
