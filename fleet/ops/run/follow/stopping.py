"""Stops an attempt: decides which nodes are lost, sends all nodes the stop, and finds those that do not stop. If nodes
are silent, it decides if the fault is theirs or this machine's link."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from math import inf

from fleet.answers.run_events import Alone, Lost, Stays, StopAll, Stubborn, UnknownNode
from fleet.background import background, unattended
from fleet.errors import EXIT_INTERRUPTED, ConnectError, FleetError
from fleet.model import Host
from fleet.node.base.clock import Clock
from fleet.node.base.record import whoami
from fleet.node.gang.ends import INTERRUPTED, run_end
from fleet.node.gang.gang import Gang
from fleet.node.gang.silence import Silence
from fleet.node.gang.verdict import own_link
from fleet.ops.run.end.failure import CUT, all_silent_text, why_of
from fleet.ops.run.follow.background import stop_in_background
from fleet.ops.run.follow.follow import Follower
from fleet.ops.run.follow.remarks import of_host
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.sessions import ANSWER_SECONDS
from fleet.protocol.messages.run import RunsHere, Verdict
from fleet.protocol.messages.run_specs import RunsSpec
from fleet.protocol.state import FINAL
from fleet.runtime import Runtime
from fleet.transport.base import KNOWN_SECONDS, Cancel, JobEnd, Transport, ended
from fleet.transport.program import call

STUBBORN_SECONDS = 20.0  # after the grace period; a node reports a process that hangs in the kernel 10 s after SIGKILL
RETRY_SECONDS = 2.0  # between two requests of Witness
SOON_SECONDS = 5.0  # longest wait for the reason of a stop, before ranks are sent the stop
# how often the user has requested the stop
AT_ONCE, LEAVE = 2, 3


class Stopping:
    """Stops one attempt. followers: by host; an elastic run replaces some. notify: as Run.notify. spares: the run's
    unused spare hosts. leads: True: this process decides that a silent node is lost. False: it only records that the
    node's part is not known here."""

    def __init__(
        self,
        record: RunRecord,
        gang: Gang,
        followers: Mapping[str, Follower],
        runtime: Runtime,
        notify: Callable[..., None],
        spares: Sequence[Host] = (),
        leads: bool = True,
    ) -> None:
        self.record, self.gang, self.runtime, self.notify, self.leads = record, gang, runtime, notify, leads
        self._clock = runtime.clock
        self._followers, self._spares = followers, spares
        self._patience = 0.0
        self._stop_by: dict[str, float] = {}  # host -> when it must have stopped, by monotonic(); {} before the stop
        self._killed = False
        self._why: Future[JobEnd | None] | None = None
        self._undrained: set[str] = set()  # hosts that were lost before the rest of their logs was here
        self.left: list[Host] = []  # hosts that could not be reached when the run ended
        self.silence = Silence(record.node_timeout, record.lease)
        self._witness = Witness(record.run_id, runtime.transport, runtime.clock)

    def stop_if(self, end: Verdict | None) -> None:
        """Sends all nodes the stop, once. end: the verdict that is the reason; None sends nothing."""
        request = end and {**end, "who": end["who"] or whoami(), "attempt": self.record.attempt}
        if request is not None and self.gang.stop(request, self._clock.time()):
            self._stop_all(self._grace(), request["message"])

    def _grace(self) -> float:
        """Returns the grace period in seconds. After a failure it is the run's `grace`; after a requested stop it is
        the `stop_grace`, or less if this process itself has less time."""
        record = self.record
        if not self.gang.by_hand:
            return record.grace
        # both periods are equal if the user gave --grace; a stop by the batch system or `fleet stop` then keeps to it
        by = self.gang.end["by"] if self.gang.end is not None else None
        own = record.about["stop_grace"] == record.grace and by in ("queue", "stop")
        return record.grace if own else min(record.about["stop_grace"], self.runtime.cancel.within)

    def lose(self, host: str, when: float, error: FleetError) -> None:
        """Gives a node up. when: the time of its last message, in seconds since the epoch."""
        self._followers[host].give_up()
        if not self.leads:
            self.gang.unknown.add(host)
            self.gang.nodes[host].ended = True
            text = of_host(host, f" is unknown from here: {error.message}")
            self.notify("warning", text, UnknownNode(kind=error.kind), host, error.hint)
            return
        if self.gang.nodes[host].state in FINAL:  # how its part ended is known, and its logs come later
            self._undrained.add(host)
            return
        reason = self.gang.node_lost(host, when, why_of(error))
        self.notify("error", of_host(host, f" is lost: {error.message}"), Lost(kind=error.kind), host, error.hint)
        self.stop_if(reason)

    def watch_silence(self) -> None:
        """Gives up the nodes that are silent for too long."""
        live = {
            host: follower
            for host, follower in self._followers.items()
            if not self.gang.nodes[host].ended and self.gang.nodes[host].lost is None
        }
        since = {host: follower.silent_since for host, follower in live.items()}
        wait = self.gang.stopped_at is None and not self._link_is_whole(live, since)
        known = self.silence.alone
        for host, silent in self.silence.over(since, self._clock.monotonic(), wait).items():
            refusal = live[host].refusal
            self.lose(
                host,
                self._clock.time() - silent,
                ConnectError(
                    f"silent for {silent:.0f} s" + (f": {refusal.message}" if refusal else ""),
                    kind="lost",
                    hint=refusal.hint if refusal else CUT,
                ),
            )
        if self.silence.alone and not known:
            self.notify("warning", all_silent_text(len(live), self.record.lease), Alone())

    def _link_is_whole(self, live: Mapping[str, Follower], since: Mapping[str, float | None]) -> bool:
        """Returns whether this machine's link is known to work although all nodes are silent. It works if a node
        refuses a connection, or if another host answers."""
        if any(each.refusal for each in live.values()):
            return True
        silent = [began for began in since.values() if began is not None]
        if not silent or len(silent) < len(since):
            return False
        nodes = self.gang.nodes
        over = [it for it in self.record.hosts if nodes[it.name].ended and nodes[it.name].lost is None]
        return self._witness.look([*over, *self._spares], max(silent))

    def watch(self) -> None:
        """Handles the user's requests, and nodes that do not stop in time."""
        if self.runtime.cancel.is_set() and self.gang.stopped_at is None:
            self.stop_if(self._requested_stop())
        if self.runtime.cancel.count >= AT_ONCE and not self._killed:
            self._killed = True
            self._stop_all(0.0, f"{INTERRUPTED} twice")
        now = self._clock.monotonic()
        for host, by in self._stop_by.items():
            node, follower = self.gang.nodes[host], self._followers[host]
            if node.ended or node.lost is not None or node.state in FINAL:
                continue  # it has stopped; the rest of its logs may take any time
            if follower.silent_since is not None:  # it may not have the stop; watch_silence() limits its silence
                self._stop_by[host] = now + self._patience
            elif now >= by:
                follower.give_up()
                late = ConnectError("it did not stop in time", kind="stubborn")
                self.gang.node_lost(host, self._clock.time(), why_of(late))
                self.notify("error", of_host(host, " did not stop in time"), Stubborn(), host)

    def _requested_stop(self) -> Verdict:
        """Returns the reason of the requested stop: the user's interrupt, or the end of the batch job around this
        process."""
        ask = partial(ended, self.runtime.transport, signalled=True)
        over = ask(SOON_SECONDS) if self.runtime.cancel.within < inf else None
        if over is not None and not over.known:  # ranks save their work meanwhile
            self._why = background("why", partial(ask, KNOWN_SECONDS - SOON_SECONDS))
        return _verdict_of_stop(over)

    def learn_why(self) -> None:
        """Waits for the reason of a stop, if it was not known when the stop was sent. If another process has requested
        a stop since then, its reason stays."""
        end = self.gang.end
        if self._why is not None and end is not None and end["by"] == "queue":
            self.gang.end = {**_verdict_of_stop(self._why.result()), "who": end["who"], "attempt": end["attempt"]}

    def clean_up(self) -> list[str]:
        """Gives up the hosts that could not be reached. Returns their names."""
        nodes = self.gang.nodes
        there = [it for it in self.record.hosts if it.name not in self.gang.absent]
        self.left = [
            it
            for it in there
            if nodes[it.name].lost is not None or not nodes[it.name].ended or it.name in self._undrained
        ]
        if self.left and self._spares and own_link(self.gang) is not None:
            self.gang.link_is_whole = self._witness.reaches(self._spares)
        for host in self.left:
            self._followers[host.name].give_up()
        return [host.name for host in self.left]

    def leave(self, verdict: Verdict | None) -> None:
        """Starts a background process that stops the hosts in `left` when they answer. verdict: None if another attempt
        follows."""
        if self.left:
            ends = stop_in_background(self.record, self.left, self.runtime, self.gang.end, verdict)
            for host in self.left:
                self.notify("warning", f"{host.name}: {ends}", Stays(), host.name)

    def _stop_all(self, grace: float, reason: str) -> None:
        self.notify("info", f"stopping all nodes: {reason}", StopAll(reason=reason, grace=grace))
        self._patience = grace + STUBBORN_SECONDS
        self._stop_by = dict.fromkeys(self._followers, self._clock.monotonic() + self._patience)
        end = self.gang.end
        # ranks get SIGINT first only after Ctrl-C; after SIGTERM here, or at the end of the batch job, they get SIGTERM
        interrupt = end is not None and end["by"] == "interrupt" and self.runtime.cancel.within == inf
        for host, follower in self._followers.items():
            if not self.gang.nodes[host].ended:
                follower.stop(grace, end, interrupt=interrupt)


def _verdict_of_stop(over: JobEnd | None) -> Verdict:
    return run_end(over.by, over.why, over.code) if over else run_end("interrupt", INTERRUPTED, EXIT_INTERRUPTED)


class Witness:
    """Finds out if this machine can reach any host. A thread sends requests to one host after the other, for as long as
    look() is called again."""

    def __init__(self, run_id: str, transport: Transport, clock: Clock) -> None:
        self._spec: RunsSpec = {"prefix": run_id, "live": True}
        self._transport, self._clock = transport, clock
        self._answered: float | None = None  # clock.monotonic() of the last request, None if no host answered it
        self._asking: Future[None] | None = None

    def look(self, hosts: Sequence[Host], since: float) -> bool:
        """Returns True if a host answered the last request, and this request was sent after `since`, a time of
        clock.monotonic(). Starts the next request if none is under way."""
        if hosts and (self._asking is None or self._asking.done()):
            self._asking = unattended("witness", partial(self._ask, hosts))
        return self._answered is not None and self._answered >= since

    def _ask(self, hosts: Sequence[Host]) -> None:
        began = self._clock.monotonic()
        self._answered = began if self.reaches(hosts) else None
        self._clock.sleep(RETRY_SECONDS)

    def reaches(self, hosts: Sequence[Host]) -> bool:
        """Returns whether one of the hosts answers now."""
        return any(map(self._answers, hosts))

    def _answers(self, host: Host) -> bool:
        try:
            with closing(self._transport.connect(host, Cancel())) as session:
                call(session, "run.list_runs", self._spec, RunsHere, timeout=ANSWER_SECONDS)
        except FleetError:
            return False
        return True
