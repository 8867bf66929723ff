"""The end of a run as one Report: exit code, what failed first and why, and where the logs are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import cast

from fleet.answers.runs import FirstFailure, KernelSays, LeftAlone, LeftEarly, NodeEnd, RunSummary, TracebackOf
from fleet.errors import EXIT_CONNECT, EXIT_OK, ConnectError, FleetError, Interrupted
from fleet.inventory.nodeset import fold
from fleet.model import Node, Report, Result
from fleet.node.gang import verdict
from fleet.node.gang.ends import SIGTERM, Failure, RankEnd, run_end
from fleet.node.gang.gang import Gang
from fleet.node.gang.verdict import About, Words, is_well, killed, rank_ends, status_of
from fleet.ops.run.end.failure import (
    before_stop,
    elsewhere,
    left_early,
    not_sent,
    noted,
)
from fleet.ops.run.end.failure import hint as plain_hint
from fleet.ops.run.end.next_steps import next_steps
from fleet.ops.run.kept.logs import NodeLogs
from fleet.ops.run.kept.record import RunRecord
from fleet.protocol.messages.run import Verdict
from fleet.rules.advice import UNEVEN
from fleet.rules.ended import ended_by
from fleet.rules.hints import TAIL_BYTES
from fleet.rules.left_behind import undying
from fleet.rules.signals import SIGKILL
from fleet.rules.tracebacks import exception_of, identity, states
from fleet.rules.waited import who_waited
from fleet.rules.worked_out import disagreed

Tail = Callable[..., str]
TAIL_LINES = 12


class Written(Words):
    """Holds what the ranks of an attempt wrote, as far as it is on this machine."""

    def __init__(self, gang: Gang, logs: Mapping[str, NodeLogs]) -> None:
        self.gang, self.logs, self.tail = gang, logs, tails(gang, logs)

    def answers(self, end: RankEnd) -> bool:
        """Returns whether a rank failed because of another one, or of a stop: it only reports the other's death, or got
        SIGTERM before it raised anything of its own."""
        cause = before_stop(end, self.tail)
        return cause is None or cause.collateral

    def blamed(self, failure: Failure, gang: Gang) -> Failure:
        """Returns the failure of a rank that raised an error of its own before a stop reached it, but ended later than
        the ranks that it left: a rank may hang in its clean-up for as long as it likes."""
        mine = [end for end in gang.last_attempts() if (end.host, end.rank) == (failure.host, failure.rank)]
        if failure.what != "rank" or not any(map(self.answers, mine)):
            return failure
        ends = sorted(gang.last_attempts(), key=lambda end: gang.nodes[end.host].clock.here(end.time))
        own = (it for it in ends if it.failed and (cause := before_stop(it, self.tail)) is not None and cause.own)
        end = next(own, None)
        if end is None:
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
        return _last(failure, self.gang, self.logs, self.tail)[1]


def decide(run: RunRecord, gang: Gang, logs: Mapping[str, NodeLogs]) -> Verdict | None:
    """Returns how the run ended, by what its nodes sent; None where some have not answered, and none has a verdict."""
    about = About(run.run_id, run.about["engine"], run.attempt, run.without, run.end)
    return verdict.decide(about, gang, Written(gang, logs))


def drafted(report: Report) -> Verdict | None:
    """The verdict of a report."""
    return cast("Verdict | None", report.read(RunSummary).end)


def summarise(
    run: RunRecord,
    gang: Gang,
    logs: Mapping[str, NodeLogs],
    incomplete: list[str],
    seconds: float,
    verdict: Verdict | None,
) -> Report:
    """Pure but for reading the logs' tails. `incomplete`: hosts of which log bytes are missing on the head. verdict:
    None where the run's end is not known yet."""
    tail = tails(gang, logs)
    results = _results(run, gang)
    failure = verdict and verdict["first"]
    first = describe(verdict, gang.named(failure), run, logs, gang, tail) if verdict and failure else None
    code = verdict["code"] if verdict else EXIT_CONNECT
    summary = RunSummary(
        run=run.run_id,
        world_size=run.world_size,
        seconds=round(seconds, 3),
        logs=str(run.logs),
        stopped=verdict["message"] if verdict and verdict["by"] != "done" else None,
        end=verdict,
        first_failure=first,
        next=next_steps(first, run, chain(*(_outputs(node, tail) for node in run.nodes))) if first else [],
        tracebacks=_tracebacks(run, gang, logs, tail) if code != EXIT_OK else [],
        incomplete_logs=incomplete,
        unknown=verdict["unknown"] if verdict else sorted(gang.unknown),
        killed=killed(gang),
    )
    return Report("launch", results, code, answer=summary)


def _unfit(failure: Failure, verdict: Verdict, gang: Gang) -> str | None:
    """The hosts that a next run should do without, as they are: lost, or with a full disk."""
    if failure.what in ("node", "frozen"):
        return fold({failure.host, *verdict["unknown"]})
    return failure.host if gang.nodes[failure.host].status.get("disk_full") else None


def not_started(error: FleetError, run: RunRecord) -> Report:
    """Returns the report of a run that was stopped again before all of its nodes had started."""
    results = [Result(host.name, False, error=error.hosts.get(host.name)) for host in run.hosts]
    why = {**error.as_json(), "message": str(error)}
    end = run_end("interrupt" if isinstance(error, Interrupted) else "failure", error.message, error.exit_code)
    summary = RunSummary(run.run_id, run.world_size, 0.0, str(run.logs), stopped=error.message, end=end, error=why)
    return Report("launch", tuple(results), error.exit_code, answer=summary)


def left_alone(run: RunRecord, led: bool = True) -> Report:
    """Returns the report of a run that continues without this process: nothing has failed yet. led: by this one, until
    now."""
    answer = LeftAlone(run.run_id, run.world_size, str(run.logs), led=led)
    return Report("launch", tuple(Result(host.name, True) for host in run.hosts), EXIT_OK, answer=answer)


def tails(gang: Gang, logs: Mapping[str, NodeLogs]) -> Tail:
    """The end of what a rank's last attempt wrote, by host, rank and stream; a log is read once. before: of its stderr,
    what was there when SIGTERM came."""

    @cache
    def tail(host: str, rank: int, stream: str = "err", before: bool = False) -> str:
        last = _last_end(gang, host, rank)
        begins = last.begins if last else (0, 0)
        until = last.until if last and before else None
        return logs[host].tail(f"rank{rank}.{stream}", TAIL_BYTES, begins[stream == "err"], until)

    return tail


def _outputs(node: Node, tail: Tail) -> Iterator[str]:
    """Returns what the first rank of a node wrote last, where scripts report their checkpoints."""
    return (tail(node.host.name, node.ranks[0], stream) for stream in ("out", "err"))


def _last_end(gang: Gang, host: str, rank: int | None) -> RankEnd | None:
    ends = [end for end in gang.nodes[host].ends.values() if end.rank == rank]
    return max(ends, key=lambda end: end.attempt, default=None)


def _tracebacks(run: RunRecord, gang: Gang, logs: Mapping[str, NodeLogs], tail: Tail) -> list[TracebackOf]:
    """The traceback that each rank ended with, equal ones once: whose it is, the exception, the first one's log."""
    groups: dict[str, TracebackOf] = {}
    for node in run.nodes:
        host = node.host.name
        for rank in node.ranks:
            name, end = f"rank{rank}.err", _last_end(gang, host, rank)
            own = before_stop(end, tail) if end else None
            cause = own or ended_by(tail(host, rank), end.exit_code if end else None)
            answered = own is None and end is not None  # a stop
            if cause.traceback is not None and not (answered and exception_of(cause.traceback) == "KeyboardInterrupt"):
                follows = cause.collateral or answered
                new = TracebackOf((), (), exception_of(cause.traceback), follows, str(logs[host].folder / name))
                old = groups.get(identity(cause.traceback), new)
                hosts = dict.fromkeys([*old.hosts, host])
                groups[identity(cause.traceback)] = replace(old, ranks=(*old.ranks, rank), hosts=(*hosts,))
    return list(groups.values())


def _results(run: RunRecord, gang: Gang) -> tuple[Result, ...]:
    return tuple(_result(gang, host.name, run) for host in run.hosts)


def _result(gang: Gang, host: str, run: RunRecord) -> Result:
    node = gang.nodes[host]
    error = None
    if host in gang.unknown:
        hint = f"when it answers: fleet attach {run.run_id}"
        why = "it knows of no such run" if host in run.without else "no answer"
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
            undying=undying(node.status) or None,
        ),
    )


def _last(failure: Failure, gang: Gang, logs: Mapping[str, NodeLogs], tail: Tail) -> tuple[str, str, int | None]:
    """(the name of the log that shows more, its end, the exit code that goes with it, None where none does). What a
    rank had raised of its own before its stop is its end."""
    host, rank, status = failure.host, failure.rank, failure.exit_code
    if rank is None:
        return "node.log", logs[host].tail("node.log", TAIL_BYTES), status
    end = _last_end(gang, host, rank)
    before = end is not None and end.until is not None and before_stop(end, tail) is not None
    text = tail(host, rank, before=before)
    if not text.strip() and (text := tail(host, rank, "out")):
        return f"rank{rank}.out", text, status if status > 1 else None  # the last line there is none of sys.exit()
    return f"rank{rank}.err", text, None if before or failure.what == "vanished" else status


def describe(
    verdict: Verdict, failure: Failure, run: RunRecord, logs: Mapping[str, NodeLogs], gang: Gang, tail: Tail
) -> FirstFailure:
    """The first failure: who, how, its traceback or last lines, a hint, and the log that shows more."""
    name, text, status = _last(failure, gang, logs, tail)
    text = text or failure.tail
    # else its log shows only what its node did to it, but for a thread that others of a stalled rank wait for
    ran = failure.what in ("rank", "engine", "vanished") or (failure.what == "stalled" and status is None)
    if not ran:
        text, status = "", 128 + SIGKILL if failure.what == "supervisor" else None
    host, cause = elsewhere(ended_by(text, status, noted(failure, gang)), failure, gang)
    message, why = verdict["message"], cause.why
    hint = cause.remedy or (None if why else plain_hint(failure, run))
    early, waited, missing = None, None, list[int]()
    if cause.collateral and cause.kernel is None:
        early = left_early(failure, gang)
        waited = who_waited({rank: tail(node.host.name, rank) for node in run.nodes for rank in node.ranks})
    if early is not None:
        end, seconds = early
        why = f"rank {end.rank} on {end.host} had ended with exit code 0, {seconds:.1f} s before"
        outputs = {node.host.name: "".join(_outputs(node, tail)) for node in run.nodes}
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
        log=str(logs[failure.host].folder / name),
    )
