"""Makes one Report of the end of a run: its exit code, the first failure and its cause, and the path of the logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path

from fleet.answers.runs import FirstFailure, KernelSays, LeftAlone, LeftEarly, NodeEnd, RunSummary, TracebackOf
from fleet.errors import EXIT_CONNECT, EXIT_OK, ConnectError, FleetError, Interrupted, PreflightError
from fleet.inventory.nodeset import fold
from fleet.model import Host, Node, Report, Result
from fleet.node.gang import verdict
from fleet.node.gang.ends import SIGTERM, Failure, RankEnd, run_end
from fleet.node.gang.gang import Gang
from fleet.node.gang.timed_out import timed_out
from fleet.node.gang.verdict import About, Outputs, is_well, killed, rank_ends, status_of
from fleet.ops.run.end.failure import (
    before_stop,
    cause_on_other_host,
    kernel_lines,
    left_early,
    next_steps,
    not_sent,
)
from fleet.ops.run.end.failure import hint as plain_hint
from fleet.ops.run.kept.logs import NodeLogs
from fleet.ops.run.kept.record import RunRecord
from fleet.protocol.messages.run import Verdict
from fleet.rules.advice import UNEVEN
from fleet.rules.ended import ended_by
from fleet.rules.hints import TAIL_BYTES
from fleet.rules.left_behind import survivors_text
from fleet.rules.signals import SIGKILL
from fleet.rules.tracebacks import exception_of, identity, states
from fleet.rules.waited import who_waited
from fleet.rules.worked_out import disagreed
from fleet.transport.base import JobEnd

TAIL_LINES = 12  # the last lines of a log that a first failure shows
MOST_FINDINGS = 3  # the most findings of a preflight that one sentence names


class Written(Outputs):
    """Reads the output of an attempt's ranks from the logs on this machine, each log once. logs: by host name."""

    def __init__(self, gang: Gang, logs: Mapping[str, NodeLogs]) -> None:
        self.gang, self.logs, self.tail = gang, logs, cache(self._tail)

    def _tail(self, host: str, rank: int, stream: str = "err", before: bool = False) -> str:
        """Returns the end of a rank's output in its last attempt. stream: "out" or "err". before: returns only what the
        rank wrote before SIGTERM."""
        last = _last_end(self.gang, host, rank)
        begins = last.begins if last else (0, 0)
        until = last.until if last and before else None
        return self.logs[host].tail(f"rank{rank}.{stream}", TAIL_BYTES, begins[stream == "err"], until)

    def outputs(self, node: Node) -> Iterator[str]:
        """Yields the ends of stdout and stderr of a node's first rank: scripts report checkpoints there."""
        return (self.tail(node.host.name, node.ranks[0], stream) for stream in ("out", "err"))

    def last_log(self, failure: Failure) -> tuple[str, str, int | None]:
        """Returns (the log that shows most, its last text, the exit code by which to judge that text, or None). If the
        rank raised an error of its own before SIGTERM, the text ends at SIGTERM."""
        host, rank, status = failure.host, failure.rank, failure.exit_code
        if rank is None:
            return "node.log", self.logs[host].tail("node.log", TAIL_BYTES), status
        end = _last_end(self.gang, host, rank)
        before = end is not None and end.until is not None and before_stop(end, self.tail) is not None
        text = self.tail(host, rank, before=before)
        if not before and ended_by(text, status).why is None and (out := self.tail(host, rank, "out")):
            of_out = status if status > 1 else None  # sys.exit(MESSAGE) ends with 1, but it writes to stderr
            cause, last = ended_by(out, of_out), out.rstrip().rpartition("\n")[2]
            if not text.strip() or (cause.why and last in cause.why):
                return f"rank{rank}.out", out, of_out
        return f"rank{rank}.err", text, None if before or failure.what == "vanished" else status

    def answers(self, end: RankEnd) -> bool:
        """Returns whether a rank's failure is only a consequence. Such a rank only reports another rank's death, or
        received SIGTERM before it raised an error of its own."""
        cause = before_stop(end, self.tail)
        return cause is None or cause.collateral

    def blamed(self, failure: Failure, gang: Gang) -> Failure:
        """Returns `failure`. If it is only a consequence, returns that of the first rank that ended by an error of its
        own. That rank may end after others that failed because of it: a rank may hang in its cleanup."""
        mine = [end for end in gang.last_attempts() if (end.host, end.rank) == (failure.host, failure.rank)]
        if failure.what != "rank" or not any(map(self.answers, mine)):
            return failure
        ends = sorted(gang.last_attempts(), key=lambda end: gang.nodes[end.host].clock.here(end.time))
        waited = timed_out(self.tail(failure.host, failure.rank))
        own = (it for it in ends if it.failed and (cause := before_stop(it, self.tail)) and cause.explains(waited))
        if (end := next(own, None)) is None:
            return failure
        was_stopped = end.signal == SIGTERM or (end.until is not None and end.signal is not None)
        return failure._replace(
            host=end.host,
            node_rank=end.node_rank,
            rank=end.rank,
            local_rank=end.local_rank,
            signal=None if was_stopped else end.signal,
            exit_code=failure.exit_code if was_stopped else end.exit_code,
        )

    def last(self, failure: Failure) -> str:
        return self.last_log(failure)[1]


def decide(run: RunRecord, gang: Gang, logs: Mapping[str, NodeLogs]) -> Verdict | None:
    """Returns how the run ended, by its nodes' messages; None while nodes are unknown and no node has a verdict."""
    about = About(run.run_id, run.about["engine"], run.attempt, run.hosts_without_run, run.stop_reason)
    return verdict.decide(about, gang, Written(gang, logs))


def summarise(
    run: RunRecord,
    gang: Gang,
    logs: Mapping[str, NodeLogs],
    incomplete: list[str],
    seconds: float,
    verdict: Verdict | None,
) -> Report:
    """Returns the report of a run's end. Pure, except that it reads the ends of logs. incomplete: hosts whose logs are
    not complete on the head. verdict: None if the run's end is not known yet."""
    written = Written(gang, logs)
    results = tuple(_result(gang, host.name, run) for host in run.hosts)
    failure = verdict and verdict["first"]
    first = describe(verdict, gang.named(failure), run, written) if verdict and failure else None
    code = verdict["code"] if verdict else EXIT_CONNECT
    summary = RunSummary(
        run=run.run_id,
        world_size=run.world_size,
        seconds=round(seconds, 3),
        logs=str(run.logs),
        stopped=verdict["message"] if verdict and verdict["by"] != "done" else None,
        end=verdict,
        first_failure=first,
        next=next_steps(first, run, chain.from_iterable(map(written.outputs, run.nodes))) if first else [],
        tracebacks=_tracebacks(run, written, first) if code != EXIT_OK else [],
        incomplete_logs=incomplete,
        unknown=verdict["unknown"] if verdict else sorted(gang.unknown),
        killed=killed(gang),
    )
    return Report("launch", results, code, answer=summary)


def _unfit(failure: Failure, verdict: Verdict, gang: Gang) -> str | None:
    """Returns the hosts that the next run should leave out, as a node set: lost hosts, or one with a full disk."""
    if failure.what in ("node", "frozen"):
        return fold({failure.host, *verdict["unknown"]})
    return failure.host if gang.nodes[failure.host].status.get("disk_full") else None


def not_started(
    error: FleetError,
    run_id: str,
    logs: Path,
    world_size: int = 0,
    hosts: Sequence[Host] = (),
    ended: JobEnd | None = None,
) -> Report:
    """Returns the report of a run that was stopped before all of its nodes had started. ended: how its queue ended it.
    That is no failure of the run, because the queue may start the run again."""
    why, text, code, by = {**error.as_json(), "message": str(error)}, error.message, error.exit_code, "failure"
    if isinstance(error, PreflightError) and error.findings:
        found = [f"{fold(it['hosts'])}: {it['message']}" for it in error.findings[:MOST_FINDINGS]]
        text = "; ".join([*found, text])
        why |= {"message": text, "hint": error.hint or error.findings[0]["remedy"]}
    if ended is not None:
        text, code, by = ended.why, ended.code, ended.by
    elif isinstance(error, Interrupted):
        by = "interrupt"
    results = tuple(Result(host.name, False, error=error.hosts.get(host.name)) for host in hosts)
    end, began = run_end(by, text, code), why if ended is None else None
    answer = RunSummary(run_id, world_size, 0.0, str(logs), stopped=text, end=end, error=began)
    return Report("launch", results, code, answer=answer)


def left_alone(run: RunRecord, led: bool = True) -> Report:
    """Returns the report of a run that continues without this process; it has not failed so far. led: this process has
    coordinated the run until now."""
    answer = LeftAlone(run.run_id, run.world_size, str(run.logs), led=led)
    return Report("launch", tuple(Result(host.name, True) for host in run.hosts), EXIT_OK, answer=answer)


def _last_end(gang: Gang, host: str, rank: int | None) -> RankEnd | None:
    ends = [end for end in gang.nodes[host].ends.values() if end.rank == rank]
    return max(ends, key=lambda end: end.attempt, default=None)


def _tracebacks(run: RunRecord, written: Written, first: FirstFailure | None) -> list[TracebackOf]:
    """Returns the last tracebacks of the ranks, equal ones as one. If the rank that failed first had survived a
    traceback, stopped ranks with the same one are left out: it did not end them either."""
    groups: dict[str, TracebackOf] = {}
    survived = written.tail(first.host, first.rank) if first and first.rank is not None and not first.traceback else ""
    survived = f"{identity(survived)}\n"
    for node in run.nodes:
        host = node.host.name
        for rank in node.ranks:
            name, end = f"rank{rank}.err", _last_end(written.gang, host, rank)
            own = before_stop(end, written.tail) if end else None
            cause = own or ended_by(written.tail(host, rank), end.exit_code if end else None)
            answered = own is None and end is not None  # the rank ended because of a stop
            trace = cause.traceback
            by_itself = end is not None and end.until is None and end.exit_code == 1
            if trace and not by_itself and f"{identity(trace)}\n" in survived:
                continue
            if trace and not (answered and exception_of(trace) == "KeyboardInterrupt"):
                follows = cause.collateral or answered
                new = TracebackOf((), (), exception_of(trace), follows, str(written.logs[host].folder / name))
                old = groups.get(identity(trace), new)
                hosts = dict.fromkeys([*old.hosts, host])
                groups[identity(trace)] = replace(old, ranks=(*old.ranks, rank), hosts=(*hosts,))
    return list(groups.values())


def _result(gang: Gang, host: str, run: RunRecord) -> Result:
    node = gang.nodes[host]
    error = None
    if host in gang.unknown:
        hint = f"when it answers: fleet attach {run.run_id}"
        why = "it knows of no such run" if host in run.hosts_without_run else "no answer"
        error = ConnectError(f"how the run ended there is not known: {why}", host=host, kind="unknown", hint=hint)
    elif node.why is not None:
        error = ConnectError(node.why["message"], host=host, kind=node.why["kind"], hint=node.why["hint"])
    elif node.lost is not None:
        error = ConnectError("the host was lost", host=host, kind="lost")
    return Result(
        host,
        is_well(gang, node),
        status_of(gang, node),
        error=error,
        answer=NodeEnd(
            node_rank=node.node_rank,
            state="lost" if node.lost is not None else "unknown" if host in gang.unknown else node.state,
            ranks=rank_ends(node),
            reason=node.status.get("reason"),
            left=node.status.get("left") or [],
            undying=survivors_text(node.status) or None,
        ),
    )


def describe(verdict: Verdict, failure: Failure, run: RunRecord, written: Written) -> FirstFailure:
    """Returns the first failure: its rank, its end, its traceback or last lines, a hint, and the log with more."""
    gang, tail = written.gang, written.tail
    name, text, status = written.last_log(failure)
    text = text or failure.tail
    # of other failures the log shows only how the node ended the rank. A stalled rank may log an error of one thread
    ran = failure.what in ("rank", "engine", "vanished") or (failure.what == "stalled" and status is None)
    if not ran:
        text, status = "", 128 + SIGKILL if failure.what == "supervisor" else None
    cause, early, waited, missing = ended_by(text, status, kernel_lines(failure, gang)), None, None, list[int]()
    if cause.collateral and cause.kernel is None:
        early = left_early(failure, gang)
        texts = {rank: tail(node.host.name, rank) for node in run.nodes for rank in node.ranks}
        waited = who_waited(texts, gang.at)
        if gang.collective and (waited is None or not waited[2] or gang.collective[2]):
            waited = gang.collective
    host, cause = cause_on_other_host(cause, failure, gang, waited[2] if waited else (), tail)
    if cause.kernel is not None:
        early = waited = None
    message, why = verdict["message"], cause.why
    hint = cause.remedy or (None if why else plain_hint(failure, run))
    if early is not None:
        end, seconds = early
        why = f"rank {end.rank} on {end.host} had ended with exit code 0, {seconds:.1f} s before"
        outputs = {node.host.name: "".join(written.outputs(node)) for node in run.nodes}
        hint = f"{why}: did the others still need it? {disagreed(outputs) or f'Then {UNEVEN}'}"
    elif failure.why is not None and failure.kind == "network":
        why, hint = failure.why["message"], failure.why["hint"]
    elif waited is not None:
        why, hint, missing = waited
    elif cause.kernel is None and ran and gang.nodes[failure.host].status.get("disk_full"):
        message += "; the disk of ~/.fleet/runs is full there, so its log may lack the reason"
        hint = f"make room there: 'fleet exec -w {failure.host} -- df -h' shows where"
    if ran and not cause.collateral and cause.kernel is None:
        hint = not_sent(text, run) or hint
    shown = "\n".join(states(text.rstrip())[-TAIL_LINES:])
    return FirstFailure(
        host=failure.host,
        node_rank=failure.node_rank,
        rank=failure.rank,
        local_rank=failure.local_rank,
        exit_code=failure.exit_code,
        signal=failure.signal,
        what=failure.what,
        message=message,
        why=why,
        left_early=early and LeftEarly(early[0].rank, early[0].host, round(early[1], 3)),
        missing=missing,
        kernel=KernelSays(host, cause.kernel) if cause.kernel else None,
        traceback=cause.traceback,
        tail=None if cause.traceback else shown or None,
        hint=hint and hint.replace("{host}", host),
        unfit=host if cause.unfit else _unfit(failure, verdict, gang),
        log=str(written.logs[failure.host].folder / name),
    )
