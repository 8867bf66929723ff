"""The one loop of a run: what followers hear goes in, stops go out, until every node has ended."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from typing import Any

from fleet.errors import ConnectError, FleetError, Reason, fill
from fleet.events import Notice
from fleet.model import Host, Report
from fleet.ops.launch.elastic import Elastic, ElasticGang, gang_of
from fleet.ops.launch.failure import alone, fate
from fleet.ops.launch.follow import REMARKS, Follower, Heard, Level
from fleet.ops.launch.gang import INTERRUPTED, Failure, RankEnd
from fleet.ops.launch.janitor import send_janitor
from fleet.ops.launch.logs import NodeLogs, RunFolder
from fleet.ops.launch.plan import Plan
from fleet.ops.launch.record import RunRecord
from fleet.ops.launch.silence import Silence
from fleet.ops.launch.stalls import Stalls
from fleet.ops.launch.summary import left_alone, summarise
from fleet.protocol.messages.run import News, RankEnded
from fleet.protocol.state import FINAL
from fleet.rules.advice import Advice
from fleet.rules.launch import of_locks
from fleet.runtime import Runtime
from fleet.transport.base import Session

TICK = 0.1
JOIN_SECONDS = 5.0
STUBBORN_SECONDS = 12.0  # beyond the grace: SIGKILL takes up to 10 s to be told from hanging in the kernel
ENGINE_GRACE = 0.5  # of an engine that has no rank left: what torchrun and DeepSpeed do then helps nobody
STATUS_FIELDS = ("state", "reason", "engine_status", "signal", "left", "disk_full")
# how often the user has asked to stop
GENTLY, AT_ONCE, LEAVE = 1, 2, 3


def _of(host: str, text: str) -> Reason:
    """What may be said of many hosts at once."""
    return Reason("{hosts}", hosts=host) + Reason.of_node(text)


class Run:
    """A run under way, whoever started it. plan: where this machine planned it."""

    def __init__(
        self,
        record: RunRecord,
        folder: RunFolder,
        sessions: Mapping[str, Session],
        runtime: Runtime,
        plan: Plan | None = None,
    ) -> None:
        self.record, self.folder, self.runtime = record, folder, runtime
        self.gang = gang_of(record)
        self.logs: dict[str, NodeLogs] = {host.name: folder.node(host.name) for host in record.hosts}
        self.incomplete: list[str] = []
        # not a SimpleQueue: a signal handler that outlasts get()'s timeout makes that one wait for good
        self._heard: queue.Queue[Heard] = queue.Queue()
        self._followers = {host.name: self._follower(host, sessions.get(host.name)) for host in record.hosts}
        self._elastic = None
        if isinstance(self.gang, ElasticGang):
            self._elastic = Elastic(
                self.gang, record, plan, folder, runtime, self._followers, self.say, self._heard.put
            )
        self._handlers: dict[str, Callable[[Heard], None]] = {
            "message": self._on_message,
            **dict.fromkeys(REMARKS, self._on_remark),
            "advice": self._on_advice,
            "over": self._on_over,
            "back": self._on_back,
            "broken": self._on_broken,
        }
        self._advised: set[Advice] = set()
        self._stalls = Stalls(record, self.gang, folder, runtime.transport, self.say, self._end_stalled)
        self._stop_by: float | None = None
        self._killed = False
        self._silence = Silence(record.node_timeout, record.lease)
        self._began = time.time()

    def _follower(self, host: Host, session: Session | None) -> Follower:
        return Follower(
            self.record.run_id,
            host,
            session,
            self.runtime.transport,
            self.logs[host.name],
            self._heard.put,
            self.runtime.emit,
            self.record.node_timeout,
            lease=self.record.lease,
            attempt=None if self.record.least else self.record.attempt,
        )

    def follow(self) -> Report:
        """Until the end of this attempt, whatever it is."""
        for follower in self._followers.values():
            if self.record.lease is None:
                follower.detach()  # it may have had one when it was started
            follower.start()
        while not all(node.ended for node in self.gang.nodes.values()):
            if self.runtime.detach.is_set():
                return self._leave()
            try:
                heard = self._heard.get(timeout=TICK)
            except queue.Empty:
                pass
            else:
                self._handlers[heard.what](heard)
            self._watch_silence()
            if self._elastic is not None:
                self._elastic.watch()
            self._watch_stalls()
            self._watch_interrupts()
            self._watch_stop()
            self.folder.sign()
            if self.runtime.cancel.count >= LEAVE:
                break
        self._stalls.close()
        self._clean_up()
        return summarise(self.record, self.gang, self.logs, self.incomplete, self._seconds())

    def _seconds(self) -> float:
        """How long it ran: it may have been over before it was looked at."""
        nodes = self.gang.nodes.values()
        last = max((node.clock.on_head(node.status.get("time", 0.0)) for node in nodes), default=0.0)
        was_over = all(node.state in FINAL for node in nodes) and 0 < last < self._began
        return max(0.0, (last if was_over else time.time()) - (self.record.started or self._began))

    def _leave(self) -> Report:
        """Let it go on without this process."""
        for follower in self._followers.values():
            follower.detach()
        self.close()
        return left_alone(self.record)

    def close(self) -> None:
        """No thread of it writes any more."""
        if self._elastic is not None:
            self._elastic.close()
        for follower in self._followers.values():
            follower.give_up()
        for follower in self._followers.values():
            follower.join(JOIN_SECONDS)

    # -- what is heard ------------------------------------------------------------------------------------
    def say(
        self,
        level: Level,
        message: str,
        event: str,
        host: str | None = None,
        hint: str | None = None,
        **data: Any,
    ) -> None:
        """One event: a line of events.jsonl, and a Notice for whoever looks on."""
        record = self.folder.event(event, host=host, message=message, **data)
        self.runtime.emit(Notice(level, message, host, hint, record))

    def _on_message(self, heard: Heard) -> None:
        node = self.gang.nodes[heard.host]
        message: News = heard.data
        if message["event"] == "failed":
            self._stop_if(self.gang.node_status(heard.host, {"state": "lost", "reason": message["message"]}))
            return
        if "sent" in message:
            node.clock.heard(message["sent"], heard.time)
        if message["event"] == "rank":
            self._on_rank(heard.host, message)
        elif message.get("builds"):
            what, remedy = of_locks(heard.host, message["builds"])
            self.say(
                "warning",
                f"{heard.host}: {what}",
                "build-lock",
                heard.host,
                locks=message["builds"],
                hint=f"end this run, then: {remedy}",
            )
        elif message.get("state") == "running" and "disk_full" in message:
            self._on_disk(heard.host, bool(message["disk_full"]))
        else:
            state: dict[str, Any] = {name: value for name, value in message.items() if name in STATUS_FIELDS}
            self.say("info", f"{heard.host}: {message.get('state')}", "status", heard.host, **state)
            self._stop_if(self.gang.node_status(heard.host, message))

    def _on_disk(self, host: str, full: bool) -> None:
        if full:
            what = _of(host, ": the disk of ~/.fleet/runs is full there: what its ranks write is lost")
            self.say("error", what, "full", host, hint=f"make room there: 'fleet exec -w {host} -- df -h' shows where")
        else:
            self.say("info", _of(host, ": there is room again for what its ranks write"), "room", host)

    def _on_rank(self, host: str, message: RankEnded) -> None:
        end = RankEnd.of(host, self.gang.nodes[host].node_rank, message)
        how = f"signal {end.signal}" if end.signal is not None else f"exit code {end.status}"
        reason = self.gang.rank_ended(end)
        level: Level = "error" if reason else "info"
        self.say(
            level,
            f"rank {end.rank} on {host} (node rank {end.node_rank}) ended: {how}",
            "rank",
            host,
            **{name: getattr(end, name) for name in ("rank", "node_rank", "local_rank", "status", "signal", "attempt")},
        )
        self._stop_if(reason)
        self._stalls.rank_ended(end)
        if self.gang.all_well({node.host.name: node.ranks for node in self.record.nodes}):
            for follower in self._followers.values():
                follower.over()
        if self.gang.stopped_at is not None and self._has_no_rank_left(host):
            self._followers[host].stop(min(ENGINE_GRACE, self.record.grace), str(self.gang.reason))

    def _on_remark(self, heard: Heard) -> None:
        level, text, hint = REMARKS[heard.what]
        details = {"folder": str(self.folder.path), **heard.data}
        self.say(level, _of(heard.host, fill(text, details)), heard.what, heard.host, hint=hint and fill(hint, details))

    def _on_advice(self, heard: Heard) -> None:
        advice: Advice = heard.data
        if advice not in self._advised:
            self._advised.add(advice)
            self._advise(advice.id, heard.host, f"{heard.host}: {advice.message}", advice.remedy)

    def _advise(self, name: str, host: str, message: str, remedy: str) -> None:
        self.say("warning", message, "advice", host, hint=remedy, id=name, remedy=remedy)

    def _on_broken(self, heard: Heard) -> None:
        if self.gang.nodes[heard.host].lost is None:
            self._lose(heard.host, heard.time, heard.data["error"])

    def _on_over(self, heard: Heard) -> None:
        node = self.gang.nodes[heard.host]
        node.ended = True
        if not heard.data["complete"]:
            self.incomplete.append(heard.host)
        if not heard.data["complete"] and node.lost is None:
            self.say(
                "error",
                _of(heard.host, ": its logs are not complete here"),
                "incomplete",
                heard.host,
                hint=f"the node has them all: 'fleet attach {self.record.run_id}' brings the rest",
            )

    def _on_back(self, heard: Heard) -> None:
        assert self._elastic is not None
        host = self.record.node(heard.host).host
        self.logs[host.name] = self.folder.node(host.name)
        self.incomplete = [name for name in self.incomplete if name != host.name]
        self._elastic.back(host.name, self._follower(host, heard.data))
        if self.gang.stopped_at is not None:
            self._followers[host.name].stop(self.record.grace, str(self.gang.reason))

    # -- what is done about it ----------------------------------------------------------------------------
    def _stop_if(self, reason: str | None) -> None:
        if reason is not None and self.gang.stop(reason, time.time()):
            self._tell_all(self.record.grace, reason)

    def _tell_all(self, grace: float, reason: str) -> None:
        self.say("info", f"stopping all nodes: {reason}", "stop", reason=reason, grace=grace)
        self._stop_by = time.monotonic() + grace + STUBBORN_SECONDS
        for host, follower in self._followers.items():
            if not self.gang.nodes[host].ended:
                follower.stop(min(grace, ENGINE_GRACE) if self._has_no_rank_left(host) else grace, reason)

    def _has_no_rank_left(self, host: str) -> bool:
        return not self.gang.restarts and not self.gang.unaccounted(host, self.record.node(host).ranks)

    def _watch_silence(self) -> None:
        live = {
            host: follower
            for host, follower in self._followers.items()
            if not self.gang.nodes[host].ended and self.gang.nodes[host].lost is None
        }
        replaceable = len(live) == 1 and self.record.spares > 0  # better in vain than not at all
        wait = self.gang.stopped_at is None and not replaceable and not any(each.shut for each in live.values())
        known = self._silence.alone
        since = {host: follower.silent_since for host, follower in live.items()}
        for host, silent in self._silence.over(since, time.monotonic(), wait=wait).items():
            shut = live[host].shut
            self._lose(
                host,
                time.time() - silent,
                ConnectError(
                    f"silent for {silent:.0f} s" + (f": {shut.message}" if shut else ""),
                    kind="lost",
                    hint=shut.hint if shut else "the host hangs, or the link to it is cut",
                ),
            )
        if self._silence.alone and not known:
            self.say("warning", alone(len(live), self.record.lease), "alone")

    def _lose(self, host: str, when: float, error: FleetError) -> None:
        self._followers[host].give_up()
        reason = self.gang.node_lost(host, when, error)
        self.say("error", _of(host, f" is lost: {error.message}"), "lost", host, hint=error.hint, kind=error.kind)
        self._stop_if(reason)

    def _watch_stalls(self) -> None:
        live = [self._followers[host] for host, node in self.gang.nodes.items() if not node.ended]
        self._stalls.look(
            max((follower.spoke for follower in self._followers.values()), default=0.0),
            blind=any(follower.silent_since is not None or follower.logs.blocked for follower in live),
        )

    def _end_stalled(self, failure: Failure) -> None:
        self.gang.stall = failure
        self._stop_if(f"no rank wrote anything for {self.record.stall_timeout or 0:g} s")

    def _watch_interrupts(self) -> None:
        if self.runtime.cancel.count >= GENTLY:
            self._stop_if(INTERRUPTED)
        if self.runtime.cancel.count >= AT_ONCE and not self._killed:
            self._killed = True
            self._tell_all(0.0, f"{INTERRUPTED} twice")

    def _watch_stop(self) -> None:
        if self._stop_by is None or time.monotonic() < self._stop_by:
            return
        for host, follower in self._followers.items():
            node = self.gang.nodes[host]
            if not node.ended and node.lost is None:
                follower.give_up()
                self.gang.node_lost(host, time.time(), ConnectError("it did not stop in time", kind="stubborn"))
                self.say("error", _of(host, " did not stop in time"), "stubborn", host)

    def _clean_up(self) -> None:
        """Whatever could not be reached is left to the janitor, who goes on after this process has ended."""
        if self._elastic is not None:
            self._elastic.close()
        nodes = self.gang.nodes
        left = [host for host in self.record.hosts if nodes[host.name].lost is not None or not nodes[host.name].ended]
        if not left:
            return
        for host in left:
            self._followers[host.name].give_up()
            if host.name not in self.incomplete:
                self.incomplete.append(host.name)
        pid = send_janitor(self.record, left, self.runtime.transport)
        ends = fate(self.record.lease, pid)
        for host in left:
            self.say("warning", f"{host.name}: {ends}", "janitor", host.name)
