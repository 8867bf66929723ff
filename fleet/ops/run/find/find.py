"""Finds runs by the records of their nodes. Another head may have started a run, and this head may have no record of
that run."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fleet import fanout
from fleet.answers.runs import RunNode, RunSeen
from fleet.codec import Misfit, decode
from fleet.each import for_each_host as over_all
from fleet.each import on_each
from fleet.errors import FleetError
from fleet.events import Emit, Notice
from fleet.inventory.fields import NAME
from fleet.inventory.nodeset import fold
from fleet.model import Host, Inside, Inventory, Node, Result, grouped
from fleet.node.gang.ends import BY_HAND, OWN_CAUSES
from fleet.ops.run.follow.follow import PING_MOST
from fleet.ops.run.kept.record import RunRecord, about_of
from fleet.ops.sessions import ANSWER_SECONDS, ASK, Sessions
from fleet.protocol.messages.run import About, RunHere, RunsHere, SomeRun, Verdict
from fleet.protocol.state import FINAL, PROTOCOL, RESTARTING, STARTING
from fleet.runtime import Runtime
from fleet.transport.base import Session
from fleet.transport.program import Program, last_message

UNATTENDED_SECONDS = 3 * PING_MOST  # without a message of a head, until a run counts as unattended


@dataclass(frozen=True)
class FoundRun:
    """Holds a run as its nodes report it. hosts: the hosts that reported it, by name. parts: host name -> the node's
    report, in node-rank order. replaced: hosts on which an earlier attempt is still live. inventory: all hosts that
    were queried, by name. answered: the names of those that responded. kept: the description of the run in this
    machine's folder of it, or None."""

    run_id: str
    hosts: Mapping[str, Host]
    parts: Mapping[str, RunHere]
    replaced: tuple[Host, ...] = ()
    inventory: Mapping[str, Host] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()
    kept: About | None = None

    @property
    def reported(self) -> About | None:
        """Returns the description of the run that a node reported. If there is none, returns `kept`."""
        parts = sorted(self.parts.values(), key=attempt_of)
        return next((part["about"] for part in parts if part["about"]), self.kept)

    @property
    def about(self) -> About:
        """Returns the description of the run, with default values if there is none."""
        return self.reported or about_of({}, nnodes=len(self.parts))

    @property
    def unknown(self) -> tuple[Node, ...]:
        """Returns the nodes of the run that have not reported it. An elastic run has none, because it needs no
        particular node."""
        known = {part["node_rank"] for part in self.parts.values()}
        rest = enumerate(() if self.about["least"] else self.about["hosts"].items())
        return tuple(
            Node(self._host(name, node_rank), node_rank, ranks, first)
            for node_rank, (name, (first, ranks)) in rest
            if node_rank not in known
        )

    def _host(self, name: str, node_rank: int) -> Host:
        """Returns the host of an unknown node. name: its name on the head that started the run."""
        if name in self.parts or not NAME.fullmatch(name):
            return Host(f"node{node_rank}", "")
        return self.inventory.get(name) or Host(name, name)

    @property
    def is_partial(self) -> bool:
        """Returns whether some of its nodes are not known."""
        return len(self.parts) < self.about["nnodes"]

    @property
    def attempt(self) -> int:
        """Returns the number of the last known attempt."""
        if self.verdict:
            return self.verdict["attempt"]
        return max(map(attempt_of, self.parts.values()), default=self.about["attempt"])

    @property
    def live(self) -> bool:
        """Returns whether the run still lives on at least one of the nodes that reported it."""
        return any(not over(part) for part in self.parts.values())

    @property
    def lease(self) -> float | None:
        """Returns the lease of a live run in seconds; None if the run has no lease, or is over."""
        return next((part["lease"] for part in self.parts.values() if not over(part)), None)

    @property
    def unattended(self) -> float | None:
        """Returns for how many seconds the run has had no head. Returns None if it has one, or if a lease would end
        it."""
        unheard = [part["unheard"] for part in self.parts.values() if part["unheard"] is not None]
        alone = min(unheard, default=0.0)
        return alone if self.lease is None and self.live and alone > UNATTENDED_SECONDS else None

    @property
    def state(self) -> str:
        """Returns "running", "stopping", "done", "stopped", "failed", or one of the following. "restarting": the head
        waits before the next attempt. "starting": an attempt begins, and runs on no node yet. "lost": on a node, the
        run has no supervisor any more. "unknown": the run is over on all nodes that reported it, but other nodes did
        not report it. "open": the run is over on all nodes, but none reported how it ended."""
        states = [part["status"].get("state") for part in self.parts.values()]
        if self.live:
            forgotten = any(not over(part) and not part["alive"] for part in self.parts.values())
            known = ("stopping", RESTARTING, "running", STARTING)
            return "lost" if forgotten else next((it for it in known if it in states), "running")
        if (verdict := self.verdict or self.end) is not None:
            return "stopped" if verdict["by"] in BY_HAND else "failed" if verdict["code"] else "done"
        own = any(part["status"].get("cause") in OWN_CAUSES for part in self.parts.values())
        silent = {node.host.name for node in self.unknown} - self.answered
        return "failed" if own and not silent else "unknown" if self.unknown else "open"

    @property
    def end(self) -> Verdict | None:
        """Returns the verdict with which a head stopped the run; None if the run is live, or if no head stopped it."""
        ends = [end for part in self.parts.values() if (end := part["status"].get("end")) is not None]
        return min(ends, key=lambda end: end["by"] not in BY_HAND, default=None) if not self.live else None

    @property
    def verdict(self) -> Verdict | None:
        """Returns the verdict of the first node that has one, or None."""
        return next((part["verdict"] for part in self.parts.values() if part["verdict"]), None)

    def record(self, runs_dir: Path) -> RunRecord:
        """Returns the record by which this machine can follow the run."""
        part = next(iter(self.parts.values()), None)
        nodes = [
            Node(self.hosts[name], each["node_rank"], len(each["ranks"]), min(each["ranks"], default=0))
            for name, each in self.parts.items()
        ]
        unknown = self.unknown
        return RunRecord(
            run_id=self.run_id,
            nodes=tuple(sorted([*nodes, *unknown], key=lambda node: node.node_rank)),
            logs=runs_dir / self.run_id,
            about=self.about,
            lease=self.lease,
            grace=part["grace"] if part else RunRecord.grace,
            node_timeout=max(1.0, part["node_timeout"] if part else RunRecord.node_timeout),
            unknown=frozenset(node.host.name for node in unknown),
            hosts_without_run=frozenset(node.host.name for node in unknown) & self.answered,
            stop_reason=self.end,
            verdict=self.verdict,
            term=1 + max((part["term"] for part in self.parts.values()), default=0),
        ).but(attempt=self.attempt)

    @property
    def seen(self) -> RunSeen:
        up = {name: min(part["up"], len(part["ranks"])) for name, part in self.parts.items()}
        ended = {
            name: min(len({end["rank"] for end in part["ended"]}), len(part["ranks"]) - up[name])
            for name, part in self.parts.items()
        }
        spoke = [(part["silent"], part["last"]) for part in self.parts.values() if part["silent"] is not None]
        silent, last = min(spoke, key=lambda it: it[0] or 0.0, default=(None, ""))
        started = self.about["started"]
        return RunSeen(
            run=self.run_id,
            state=self.state,
            about=self.reported or {},
            age=round(time.time() - started, 1) if started else None,
            lease=self.lease,
            unattended=self.unattended,
            ranks_up=sum(up.values()),
            ranks_ended=sum(ended.values()),
            silent=silent,
            last=last,
            nodes={
                name: RunNode(
                    node_rank=part["node_rank"],
                    ranks=part["ranks"],
                    ranks_up=up[name],
                    ranks_ended=ended[name],
                    state=part["status"].get("state"),
                    reason=part["status"].get("reason"),
                    alive=part["alive"],
                    silent=part["silent"],
                    last=part["last"],
                )
                for name, part in self.parts.items()
            },
        )


def attempt_of(part: RunHere) -> int:
    """Returns the attempt of the whole run. It is 0 for an elastic run, in which each node counts its own starts."""
    return 0 if part["about"] and part["about"]["least"] else part["attempt"]


def over(part: RunHere) -> bool:
    """Returns whether the run has ended on that node."""
    return part["status"].get("state") in FINAL


def find(
    inventory: Inventory, runtime: Runtime, *, live: bool, sessions: Sessions | None = None
) -> tuple[list[FoundRun], tuple[Result, ...]]:
    """Returns (the runs on these hosts, newest first; the result of the request to each host). live: only runs that
    have not ended. sessions: receives the connections to hosts that know a run, and a program on each that waits for
    the spec of run.follow."""

    odd: list[tuple[str, str]] = []

    def ask(session: Session, host: Host) -> Result:
        spec = {"prefix": "", "live": live}
        program = Program(session, "run.list_runs" if sessions is None else ASK, spec)
        answer = last_message(program, RunsHere, timeout=ANSWER_SECONDS, cancel=runtime.cancel)
        known, unread = read(answer["runs"])
        odd.extend((name, host.name) for name in unread)
        if sessions is not None and known:
            sessions.keep(program)
        elif sessions is not None:
            sessions.drop(host)
        return Result(host.name, True, 0, answer=Inside(known))

    what = "asking for runs"
    if sessions is None:
        results = on_each(inventory.hosts, runtime, ask, what=what)
    else:
        fanout.check_limits(len(inventory.hosts), len(inventory.hosts))
        results = over_all(inventory.hosts, runtime, lambda host: ask(sessions.get(host), host), what)
    for name, where in grouped(odd).items():
        text = f"{fold(where)}: ~/.fleet/runs/{name} makes no sense there, so it is passed over"
        runtime.emit(Notice("warning", text, hint=f"if nothing of it runs, remove it: ~/.fleet/runs/{name}"))
    parts: dict[str, dict[str, RunHere]] = {}
    for result in results:
        for part in result.answer.value if isinstance(result.answer, Inside) else ():
            parts.setdefault(part["run"], {})[result.host] = part
    hosts = {host.name: host for host in inventory.hosts}
    answered = frozenset(result.host for result in results if result.ok)
    runs = []
    for run_id, of in parts.items():
        attempts = [part["verdict"]["attempt"] for part in of.values() if part["verdict"]]
        last = min([*attempts[:1], max(map(attempt_of, of.values()))])
        # a node that was replaced knows only an earlier attempt. If the last attempt could not begin, the one before it
        # counts
        current = [(name, part) for name, part in of.items() if attempt_of(part) >= last]
        ordered = dict(sorted(current, key=lambda item: item[1]["node_rank"]))
        replaced = tuple(hosts[name] for name, part in of.items() if name not in ordered and not over(part))
        mine = {name: hosts[name] for name in ordered}
        runs.append(FoundRun(run_id, mine, ordered, replaced, hosts, answered))
    return sorted(runs, key=lambda run: (run.about["started"], run.run_id), reverse=True), results


def read(reports: Iterable[SomeRun]) -> tuple[list[RunHere], list[str]]:
    """Returns (a node's valid reports of runs, the ids of runs with invalid reports)."""
    known: list[RunHere] = []
    odd: list[str] = []
    for run in reports:
        try:
            known.append(decode(RunHere, run))
        except Misfit:
            odd.append(run["run"])
    return known, odd


def no_answer(results: Iterable[Result]) -> str:
    """Returns a text with the hosts that did not answer, "" if all did."""
    silent = [result.host for result in results if not result.ok]
    return f"no answer from {fold(silent)}" if silent else ""


def check_protocol(run: FoundRun) -> None:
    """Raises FleetError if a version of fleet with another protocol started the run. The versions then share only a
    run's name, state, processes and logs."""
    others = [part["protocol"] for part in run.parts.values() if part["protocol"] != PROTOCOL]
    if others:
        raise FleetError(
            f"run {run.run_id} was started by another version of fleet: of protocol {others[0]}, not {PROTOCOL}",
            hint=f"use that fleet; here 'fleet logs -f {run.run_id}' shows its logs, 'fleet stop {run.run_id}' ends it",
            kind="another-version",
        )


def warn_of_missing(run: FoundRun, results: Iterable[Result], emit: Emit) -> None:
    """Emits a warning if some nodes of a run are not known."""
    if run.is_partial:
        where = no_answer(results) or "is the inventory the one that it was started with?"
        known = f"{len(run.parts)} of its {run.about['nnodes']} nodes are known here"
        emit(Notice("warning", f"run {run.run_id}: {known}; {where}"))
