"""Decides, in the leading container, when an attempt begins and ends, whether another one follows, and how the run
ended. It uses the rule of fleet/node/gang, and no sockets."""

from fleet.node.base.clock import Clock
from fleet.node.base.errors import Refused
from fleet.node.base.types import Any, Callable, run
from fleet.node.container.record import Kept, reader_half, report, summary_of
from fleet.node.container.roll import Member, Roll
from fleet.node.gang.elastic import ElasticGang, gang_of
from fleet.node.gang.ends import Failure, NodeState, RankEnd, run_end
from fleet.node.gang.gang import Gang
from fleet.node.gang.silence import Watch
from fleet.node.gang.verdict import About, Attempts, Outputs, decide
from fleet.node.ports.listeners import free_port
from fleet.protocol.codes import EXIT_INTERRUPTED, EXIT_TIMEOUT
from fleet.protocol.state import FINAL

STUBBORN_SECONDS = 20.0  # after the grace period; more than the 10 s for which a node waits for a killed process
READY_SECONDS = 30.0  # after the pause: so long a lost container may take to come back
STACKS_SECONDS = 20.0  # so long all may take to send the stacks of their ranks
FAREWELL_SECONDS = 10.0  # so long all may take to record the verdict
TEXTS_BYTES = 8 << 20  # the output of further failed ranks is not kept
NO_LOCAL = "no rank wrote anything for %g s (--stall-timeout)"


class Leading:
    """Leads a run through its phases. spec: see coordinator.py. send(member, **message) sends to one member. over: the
    run has ended. phase: the current phase's method, called with the monotonic time several times a second."""

    def __init__(
        self, spec: "dict[str, Any]", roll: Roll, record: Kept, send: "Callable[..., None]", clock: Clock
    ) -> None:
        self.spec, self.roll, self.record, self.send, self.clock = spec, roll, record, send, clock
        self.least = roll.about["least"] if roll.elastic else 0
        self.gang: Gang = gang_of({}, 0)
        self.attempt, self.attempts = 0, Attempts(spec["max_restarts"])
        self.restarts: list[dict[str, Any]] = []
        self.texts: dict[tuple[str, int], dict[str, str]] = {}  # (host, failed rank) -> its last lines
        self.stacks: dict[int, str] = {}  # rank -> where it is
        self.began = self.until = self.stop_by = 0.0  # the attempt's start; the ends of the current waits
        self.ended_well: list[float] = []  # when ranks ended with exit code 0
        self.verdict: run.Verdict | None = None
        self.phase, self.over = self.wait, False
        self.master, self.port = "127.0.0.1", 0

    # -- the beginning --------------------------------------------------------------------------------------
    def wait(self, now: float) -> None:
        if self.roll.members and self.roll.may_begin(now):
            self.roll.begun = True
            self.roll.number(False)
            addresses = [it.connection.own for it in self.roll.members]
            self.master = next((own for own in addresses if own not in ("127.0.0.1", "::1")), self.master)
            hosts = {it.host: {"node_rank": it.node, "ranks": list(it.ranks)} for it in self.roll.members}
            try:
                self.record.begin(hosts, self.roll.world_size, "%s:%d" % (self.master, self.spec["port"]))
            except Refused as error:
                self.send_all(refused=error.message, hint=error.hint)
                self.over = True
            else:
                self.begin(now)

    def begin(self, now: float) -> None:
        """Begins an attempt, with all members that are connected."""
        self.port = free_port()  # where ranks meet
        self.gang = gang_of({it.host: (it.node or 0, it.ranks) for it in self.roll.members}, self.least)
        self.texts, self.stacks, self.ended_well, self.stop_by, self.until = {}, {}, [], 0.0, 0.0
        self.roll.restarts = self.attempts.restarts < self.attempts.most
        self.began, self.watch, self.phase = now, Watch(self.spec["stall_timeout"], now), self.follow
        if self.attempt:
            self.record.event(
                "attempt",
                "all ranks have been started again",
                world_size=self.roll.world_size,
                first_ranks={it.host: it.first for it in self.roll.members},
                attempt=self.attempt,
                master="%s:%d" % (self.master, self.port),
            )
        for member in self.roll.members:
            self.start(member)

    def start(self, member: Member) -> None:
        member.over, member.spoke = False, 0.0
        nodes = [[it.host, it.each] for it in self.roll.members]
        about = {"run": self.record.run, "attempt": self.attempt, "master": self.master, "port": self.port}
        about.update(host=member.host, node=member.node, first=member.first, address=member.connection.address)
        self.send(member, start=dict(about, nodes=nodes))

    def came(self, member: Member) -> None:
        """Handles a member that came after the run's beginning. An elastic run takes the member in at once. In any
        other run, the member's earlier ranks are lost, and it takes part in the next attempt."""
        if self.phase == self.follow and isinstance(self.gang, ElasticGang):
            self.roll.number(True)
            self.gang.back(member.host, (member.node or 0, member.ranks))
            self.record.event("back", "%s is back" % member.host, "info", member.host, attempt=0)
            self.start(member)
        elif self.phase == self.follow:
            self.lose(member, "its platform has started it again", 0.0)

    def resumed(self, member: Member) -> None:
        """Sends a reconnected member the request to stop that it may have missed: to all members, or only to it."""
        node = self.gang.nodes.get(member.host)
        if self.gang.end is not None or node is not None and node.lost is not None:
            self.send(member, **self.stopping(self.gang.end, self.grace_of(self.gang.end)))

    # -- while it runs --------------------------------------------------------------------------------------
    def receive(self, member: Member, news: "dict[str, Any]", time: float) -> None:
        """Handles a member's report. time: of its arrival, in seconds since the epoch. Raises ValueError for a rank
        that is not the member's."""
        kind, host = news["event"], member.host
        if "rank" in news and news["rank"] not in self.ranks_of(member):
            raise ValueError("not its rank")
        if kind == "over":
            member.over = True
        elif kind == "signal":
            text = "%s was ended by signal %d of its platform" % (host, news["number"])
            self.stop(run_end("queue", text, 128 + news["number"], host))
        elif kind == "stacks":
            self.stacks[news["rank"]] = "%s rank %d: %s\n%s" % (host, news["rank"], news["at"], news["frames"])
        elif host in self.gang.nodes and self.phase == self.follow:
            self.keep(member, news)
            reason = self.gang.receive(host, news, time)  # type: ignore[arg-type]
            if kind == "end":
                self.gang.nodes[host].ended = True
            if reason is not None:
                self.stop(reason)
            elif kind == "rank" and self.gang.all_well:
                self.send_all(op="over")

    def ranks_of(self, member: Member) -> range:
        """Returns the ranks that a container may report: any in an elastic run, as the launcher numbers its ranks."""
        return range(self.roll.world_size) if self.least else member.ranks

    def keep(self, member: Member, news: "dict[str, Any]") -> None:
        now, kind = self.clock.monotonic(), news["event"]
        if kind == "status" and news["state"] != "running":
            known = {name: news.get(name) for name in ("state", "reason", "engine_status", "signal")}
            self.record.event("status", "%s: %s" % (member.host, news["state"]), "info", member.host, **known)
        elif kind == "rank":
            end = RankEnd.of(member.host, member.node or 0, news)  # type: ignore[arg-type]
            if not end.failed and not self.least:
                self.ended_well.append(now)
            texts = {name: news.get(name) or "" for name in ("tail", "before")}
            if end.failed and sum(len(each["tail"]) for each in self.texts.values()) < TEXTS_BYTES:
                self.texts[(member.host, news["rank"])] = texts
            known = {name: news.get(name) for name in ("rank", "local_rank", "status", "signal", "attempt")}
            level = "error" if end.failed and not end.asked else "info"
            self.record.event("rank", end.sentence, level, member.host, node_rank=member.node, **known)

    def stop(self, end: "run.Verdict") -> None:
        """Stops all nodes, once. In the pause between two attempts, ends the run instead."""
        grace = self.grace_of(end)
        whole: Any = dict(end, who=self.spec["started"]["owner"], attempt=self.attempt)
        if self.phase == self.pause:
            self.conclude(whole)
        elif self.gang.stop(whole, self.clock.time()):
            self.stop_by = self.clock.monotonic() + grace + STUBBORN_SECONDS
            self.record.event("stop", end["message"], "error", end["host"], reason=end["message"], grace=grace)
            self.send_all(**self.stopping(whole, grace))

    def grace_of(self, end: "run.Verdict | None") -> float:
        """Returns the grace period in seconds: longer if the platform ends the ranks. end: as for stopping()."""
        return float(self.spec["stop_grace" if end is not None and end["by"] == "queue" else "grace"])

    @staticmethod
    def stopping(end: "run.Verdict | None", grace: float) -> "dict[str, Any]":
        """Returns the request to stop, as for run.follow. Ranks get SIGINT first if a container got SIGINT. end: why
        all are stopped; None if only the receiving container is, because it was given up."""
        interrupt = end is not None and (end["by"], end["code"]) == ("queue", EXIT_INTERRUPTED)
        reason = end["message"] if end else "it was given up"
        return {"op": "stop", "grace": grace, "reason": reason, "end": end, "interrupt": interrupt}

    def lose(self, member: Member, why: str, silent: float) -> None:
        node = self.gang.nodes.get(member.host)
        if node is None or node.ended or node.lost is not None:
            return
        node.ended = True
        if node.state not in FINAL:
            failure = {"kind": "lost", "message": why, "hint": None}
            reason = self.gang.node_lost(member.host, self.clock.time() - silent, failure)  # type: ignore[arg-type]
            self.record.event("lost", "%s is lost: %s" % (member.host, why), "error", member.host, kind="lost")
            if reason is not None:
                self.stop(reason)

    def follow(self, now: float) -> None:
        gang = self.gang
        if isinstance(gang, ElasticGang) and gang.stopped_at is None:
            turn = gang.look(now)
            for host in turn.went:
                report("%s is gone; the rest go on" % host)
                left = len(gang.nodes) - len(gang.away)
                self.record.event("away", "%s is gone; the rest go on" % host, "warning", host, left=left)
            for member in self.roll.members:
                if member.host in turn.renew:
                    self.send(member, op="renew-ranks")
            if turn.over:
                self.send_all(op="over")
            if turn.end is not None:
                self.stop(turn.end)
        if gang.stopped_at is None:
            self.look_for_stall(now)
        elif now >= self.stop_by:
            for host, node in gang.nodes.items():
                if not node.ended and node.lost is None:
                    late = {"kind": "stubborn", "message": "it did not stop in time", "hint": None}
                    gang.node_lost(host, self.clock.time(), late)  # type: ignore[arg-type]
                    node.ended = True
        if all(node.ended for node in gang.nodes.values()):
            self.end(now)

    # -- when nothing goes on -------------------------------------------------------------------------------
    def look_for_stall(self, now: float) -> None:
        running = {node: len(node.unaccounted) for node in self.gang.nodes.values() if not node.ended}
        spoke = max([it.spoke for it in self.roll.members], default=0.0)
        blind = not all(it.there for it in self.roll.members if it.host not in self.gang.away)
        quiet = now - self.watch.progress(spoke, self.ended_well)
        kind = self.watch.look(now, spoke, self.ended_well, sum(running.values()), blind)
        if kind is not None:
            text = "no rank has written anything for %.0f s" % quiet
            if kind == "early":
                text = "a rank has ended well, and others still run"
            about: dict[str, Any] = {"id": kind, "remedy": "stacks.txt in the run's folder shows where the ranks are"}
            if kind == "stalled":
                about = {"seconds": round(quiet, 1), "ranks": [it for node in running for it in node.unaccounted]}
            self.record.event("stalled" if kind == "stalled" else "advice", text, "warning", None, **about)
            report(text)
            self.stacks, self.until = {}, now + STACKS_SECONDS
            self.send_all(stacks=1)
        if self.until and (now >= self.until or len(self.stacks) >= sum(running.values())):
            self.until = 0.0
            if self.stacks:
                self.record.add("stacks.txt", "\n".join(self.stacks[rank] for rank in sorted(self.stacks)) + "\n")
            if self.watch.still_stalled(quiet):
                self.stall(next(node for node, count in running.items() if count))

    def stall(self, node: NodeState) -> None:
        message = NO_LOCAL % self.watch.timeout
        why: Any = {"kind": "stalled", "message": message, "hint": "where it only takes long: a longer --stall-timeout"}
        rank, now = node.unaccounted[0], self.clock.time()
        local = rank - node.ranks[0]
        failure = Failure(node.host, node.node_rank, EXIT_TIMEOUT, now, rank, local, what="stalled", why=why)
        self.gang.stall = failure
        self.stop(failure.reason(message))

    # -- the end --------------------------------------------------------------------------------------------
    def end(self, now: float) -> None:
        """Ends an attempt. Either begins the pause before another one, or concludes the run."""
        about, reader = About(self.record.run, self.spec["engine"], self.attempt), reader_half()
        outputs = reader.written_by_ranks(self.gang, self.texts) if reader else Outputs(self.texts)
        verdict = decide(about, self.gang, outputs)
        assert verdict is not None
        lost = sum(node.lost is not None for node in self.gang.nodes.values())
        after = self.attempts.after(verdict, lost, 0, now - self.began, self.least)
        if after is None:
            self.conclude(verdict)
            return
        self.attempts, self.verdict, self.until, self.phase = after, verdict, now + after.pause, self.pause
        text = "restart %d of %d in %g s: %s" % (after.restarts, after.most, after.pause, verdict["message"])
        first: Any = verdict["first"]
        known = {name: first[name] for name in ("rank", "exit_code", "signal", "what")}
        known.update(attempt=self.attempt + 1, restart=after.restarts, max_restarts=after.most, replaced={}, log="")
        known["seconds"] = round(now - self.began, 3)
        self.record.event("restart", text, "warning", verdict["host"], **known)
        self.restarts.append(dict(known, message=text, host=verdict["host"]))
        report(text)

    def pause(self, now: float) -> None:
        """Waits between two attempts. Containers that were lost may come back, with the node rank that they had."""
        if now < self.until:
            return
        self.roll.members = [it for it in self.roll.members if it.there]
        self.roll.begun = False
        if len(self.roll.members) == self.roll.about["most"]:
            self.roll.begun, self.attempt = True, self.attempt + 1
            self.roll.number(False)
            self.begin(now)
        elif now >= self.until + READY_SECONDS:
            self.record.event("no-restart", "no restart: a container is missing", "error")
            self.conclude(self.verdict)

    def conclude(self, verdict: Any) -> None:
        self.verdict = verdict
        reader = reader_half()
        self.summary = summary_of(self.record.run, self.gang, verdict, self.restarts)
        if reader:
            started = dict(self.record.about, run=self.record.run, logs=self.record.path)
            self.summary.update(reader.summary(started, self.gang, self.texts, verdict, self.attempt))
        first = self.summary["first_failure"] or {}
        tail = (verdict["first"] or {}).get("tail", "") if reader is None else ""  # the reader sets "why" from it
        self.roll.begun = True
        self.send_all(verdict=verdict, why=first.get("why") or tail.strip().rpartition("\n")[2] or None)
        self.until, self.phase = self.clock.monotonic() + FAREWELL_SECONDS, self.farewell

    def farewell(self, now: float) -> None:
        if now >= self.until or all(it.over or not it.there for it in self.roll.members):
            self.over = True
            self.record.end(self.summary)

    def send_all(self, **message: Any) -> None:
        for member in self.roll.members:
            self.send(member, **message)
