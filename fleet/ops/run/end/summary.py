"""The end of a run as one Report: exit code, what failed first and why, and where the logs are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import cast

from fleet.answers.runs import FirstFailure, KernelSays, LeftAlone, LeftEarly, NodeEnd, RunSummary, TracebackOf
from fleet.errors import EXIT_CONNECT, EXIT_HOST_FAILED, EXIT_OK, ConnectError, FleetError, Interrupted
from fleet.inventory.nodeset import fold
from fleet.model import Node, Report, Result
from fleet.ops.run.end.ends import Failure, run_end
from fleet.ops.run.end.failure import (
    Evidence,
    answers,
    blamed,
    evidence,
    is_collateral,
    left_behind,
    left_early,
    message,
    own_link,
    raised,
)
from fleet.ops.run.end.failure import hint as plain_hint
from fleet.ops.run.end.gang import Gang
from fleet.ops.run.end.next_steps import next_steps
from fleet.ops.run.kept.logs import NodeLogs
from fleet.ops.run.kept.record import RunRecord
from fleet.protocol.messages.run import Verdict
from fleet.protocol.state import FINAL
from fleet.rules.advice import UNEVEN
from fleet.rules.hints import TAIL_BYTES, hint_for
from fleet.rules.kernel import SIGKILL
from fleet.rules.launch import undying
from fleet.rules.stacks import odd_one_out
from fleet.rules.tracebacks import cause_in, exception_of, identity, last_of
from fleet.rules.worked_out import disagreed

Tail = Callable[..., str]
TAIL_LINES = 12


def decide(run: RunRecord, gang: Gang, logs: Mapping[str, NodeLogs]) -> Verdict | None:
    """Returns how the run ended, by what its nodes sent; None where some have not answered, and none has a verdict."""
    lost = {host for host, node in gang.nodes.items() if node.lost is not None}
    unknown, why = sorted(gang.unknown | lost - gang.away), gang.end
    end = why if why is not None and (gang.by_hand or run.end is not None) else _found(run, gang, logs)
    return end and {**end, "who": (why or end)["who"], "attempt": run.attempt, "unknown": unknown}


def _found(run: RunRecord, gang: Gang, logs: Mapping[str, NodeLogs]) -> Verdict | None:
    tail = tails(gang, logs)
    failure = own_link(gang) or gang.first(lambda end: answers(end, tail)) or _vanished(run, gang)
    if gang.unknown and (failure is None or gang.unknown - run.without):
        return None
    if failure is None and gang.end is not None:
        return gang.end
    if failure is None:
        odd = [result.host for result in _results(run, gang) if not result.ok and result.host not in gang.away]
        behind = left_behind(node.status for node in gang.nodes.values())
        said = behind or f"not all ended well on {fold(odd)}"
        return run_end("failure", said, EXIT_HOST_FAILED, odd[0]) if odd else run_end("done", "done", EXIT_OK)
    failure = blamed(failure, gang, tail)
    needed = gang.needed if gang.end is not None and gang.end["host"] == failure.host else ""
    return replace(failure, tail=_last(failure, logs, tail)[1]).reason(message(failure, run) + needed)


def drafted(report: Report) -> Verdict | None:
    """The verdict of a report."""
    return cast("Verdict | None", report.read(RunSummary).end)


def _vanished(run: RunRecord, gang: Gang) -> Failure | None:
    nodes = [node for node in run.nodes if node.host.name not in gang.unknown and not run.elastic]
    ranks = ((node, rank) for node in nodes for rank in gang.unaccounted(node.host.name, node.ranks))
    found = (Failure(it.host.name, it.node_rank, EXIT_HOST_FAILED, 0.0, rank, what="vanished") for it, rank in ranks)
    return next(found, None)


def summarise(
    run: RunRecord,
    gang: Gang,
    logs: Mapping[str, NodeLogs],
    incomplete: list[str],
    seconds: float,
    verdict: Verdict | None,
) -> Report:
    """Pure but for reading the logs' tails. `incomplete`: hosts of which log bytes are missing on the head. verdict:
    None where nobody has said yet how the run ended."""
    tail = tails(gang, logs)
    results = _results(run, gang)
    told = verdict and verdict["first"]
    first = describe(verdict, gang.told(told), run, logs, gang, tail) if verdict and told else None
    code = verdict["code"] if verdict else EXIT_CONNECT
    summary = RunSummary(
        run=run.run_id,
        world_size=run.world_size,
        seconds=round(seconds, 3),
        logs=str(run.logs),
        stopped=verdict["message"] if verdict and verdict["by"] != "done" else None,
        end=verdict,
        first_failure=first,
        next=next_steps(first, run, chain(*(_words(node, tail) for node in run.nodes))) if first else [],
        tracebacks=_tracebacks(run, logs, tail) if code != EXIT_OK else [],
        incomplete_logs=incomplete,
        unknown=verdict["unknown"] if verdict else sorted(gang.unknown),
        killed=sorted({rank for node in gang.nodes.values() for rank in node.status.get("killed", ())}),
    )
    return Report("launch", results, code, answer=summary)


def _unfit(failure: Failure, verdict: Verdict, gang: Gang, kernel: Evidence | None) -> str | None:
    """The hosts that a next run should do without, as they are: lost, with failed hardware or a full disk."""
    if kernel is not None and kernel.rule.broken:
        return kernel.host
    if failure.what in ("node", "frozen"):
        return fold({failure.host, *verdict["unknown"]})
    return failure.host if gang.nodes[failure.host].status.get("disk_full") else None


def not_started(error: FleetError, run: RunRecord) -> Report:
    """Of a run that was stopped again before all of its nodes had started."""
    results = [Result(host.name, False, error=error.hosts.get(host.name)) for host in run.hosts]
    why = {**error.as_json(), "message": str(error)}
    end = run_end("interrupt" if isinstance(error, Interrupted) else "failure", error.message, error.exit_code)
    summary = RunSummary(run.run_id, run.world_size, 0.0, str(run.logs), stopped=error.message, end=end, error=why)
    return Report("launch", tuple(results), error.exit_code, answer=summary)


def left_alone(run: RunRecord, led: bool = True) -> Report:
    """Of a run that goes on without this process: nothing has failed yet. led: by this one, until now."""
    answer = LeftAlone(run.run_id, run.world_size, str(run.logs), led=led)
    return Report("launch", tuple(Result(host.name, True) for host in run.hosts), EXIT_OK, answer=answer)


def tails(gang: Gang, logs: Mapping[str, NodeLogs]) -> Tail:
    """The end of what a rank's last attempt wrote, by host, rank and stream; a log is read once. before: of its stderr,
    what was there when SIGTERM came."""

    @cache
    def tail(host: str, rank: int, stream: str = "err", before: bool = False) -> str:
        ends = [end for end in gang.nodes[host].ranks.values() if end.rank == rank]
        last = max(ends, key=lambda end: end.attempt, default=None)
        begins = last.begins if last else (0, 0)
        until = last.until if last and before else None
        return logs[host].tail(f"rank{rank}.{stream}", TAIL_BYTES, begins[stream == "err"], until)

    return tail


def _words(node: Node, tail: Tail) -> Iterator[str]:
    """What the first rank of a node wrote last: where scripts tell of their checkpoints."""
    return (tail(node.host.name, node.ranks[0], stream) for stream in ("out", "err"))


def _own(host: str, rank: int, tail: Tail) -> str:
    """The end of a rank's stderr; where it had raised an error of its own before it was told to end, until then."""
    before = tail(host, rank, before=True)
    return before if raised(before) else tail(host, rank)


def _tracebacks(run: RunRecord, logs: Mapping[str, NodeLogs], tail: Tail) -> list[TracebackOf]:
    """The last traceback of every rank, equal ones once: whose it is, the exception, the first one's log."""
    groups: dict[str, TracebackOf] = {}
    for node in run.nodes:
        host = node.host.name
        for rank in node.ranks:
            name = f"rank{rank}.err"
            trace, before = last_of(_own(host, rank, tail)), last_of(tail(host, rank, before=True))
            answered = trace != before and exception_of(trace or "") == "KeyboardInterrupt"  # Ctrl-C
            # a rank that was ended while it wrote it is a victim
            if trace is not None and exception_of(trace) and not answered:
                follows = is_collateral(trace) or trace != before
                new = TracebackOf((), (), exception_of(trace), follows, str(logs[host].folder / name))
                old = groups.get(identity(trace), new)
                hosts = dict.fromkeys([*old.hosts, host])
                groups[identity(trace)] = replace(old, ranks=(*old.ranks, rank), hosts=(*hosts,))
    return list(groups.values())


def _results(run: RunRecord, gang: Gang) -> tuple[Result, ...]:
    return tuple(_result(gang, host.name, run) for host in run.hosts)


def _result(gang: Gang, host: str, run: RunRecord) -> Result:
    node = gang.nodes[host]
    ends = sorted(node.ranks.values(), key=lambda e: (e.rank, e.attempt))
    ranks = {e.rank: {"status": e.status, "signal": e.signal, "attempt": e.attempt} for e in ends}
    failed = [e.exit_code for e in sorted(ends, key=lambda e: e.time) if e.failed and not run.elastic]
    known = node.state in FINAL
    status = (failed or [node.engine_code])[0] if known else None
    error = node.why
    if host in gang.unknown:
        hint = f"when it answers: fleet attach {run.run_id}"
        why = "it knows of no such run" if host in run.without else "no answer"
        error = ConnectError(f"how the run ended there is not known: {why}", host=host, kind="unknown", hint=hint)
    elif error is None and node.lost is not None:
        error = ConnectError("the host was lost", host=node.host, kind="lost")
    whole = not node.status.get("left") and not node.status.get("behind")
    ok = error is None and node.state == "exited" and not status and whole
    return Result(
        node.host,
        ok,
        status,
        error=error,
        answer=NodeEnd(
            node_rank=node.node_rank,
            state="lost" if node.lost is not None else "unknown" if host in gang.unknown else node.state,
            ranks=ranks,
            reason=node.status.get("reason"),
            left=node.status.get("left") or [],
            undying=undying(node.status) or None,
        ),
    )


def _last(failure: Failure, logs: Mapping[str, NodeLogs], tail: Tail) -> tuple[str, str]:
    """(the name of the log that tells more, its end)."""
    if failure.rank is None:
        return "node.log", logs[failure.host].tail("node.log", TAIL_BYTES)
    text = _own(failure.host, failure.rank, tail)
    if not text.strip() and (text := tail(failure.host, failure.rank, "out")):
        return f"rank{failure.rank}.out", text
    return f"rank{failure.rank}.err", text


def describe(
    verdict: Verdict, failure: Failure, run: RunRecord, logs: Mapping[str, NodeLogs], gang: Gang, tail: Tail
) -> FirstFailure:
    """The first failure: who, how, its traceback or last lines, a hint, and the log that tells more."""
    name, text = _last(failure, logs, tail)
    text = text or failure.tail
    # of a line that a progress bar rewrote, its last state
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")]
    text = "\n".join(lines)
    ran = failure.what in ("rank", "engine", "vanished")  # else its log tells only what its node did to it
    rule = hint_for(text, failure.exit_code) if ran else None
    trace = last_of(text) if ran else None
    said, hint = verdict["message"], rule.remedy if rule else plain_hint(failure, run)
    why = cause_in(trace or "\n".join(lines[-TAIL_LINES:])) if ran else None
    victim = rule is not None and rule.collateral
    if victim:
        why = odd_one_out({rank: tail(node.host.name, rank) for node in run.nodes for rank in node.ranks}) or why
    early = left_early(failure, gang) if victim else None
    if early is not None:
        end, seconds = early
        why = f"rank {end.rank} on {end.host} had ended with exit code 0, {seconds:.1f} s before"
        words = {node.host.name: "".join(_words(node, tail)) for node in run.nodes}
        hint = f"{why}: did the others still need it? {disagreed(words) or f'Then {UNEVEN}'}"
    elif ran and gang.nodes[failure.host].status.get("disk_full"):
        said += "; the disk of ~/.fleet/runs is full there, so its log may lack the reason"
        hint = f"make room there: 'fleet exec -w {failure.host} -- df -h' shows where"
    kernel = evidence(failure, gang, text if ran else "", victim)
    if kernel is not None:
        on = f"on {kernel.host}: " if kernel.host != failure.host else ""
        why, hint = on + kernel.rule.meaning, kernel.remedy
    elif failure.signal == SIGKILL and gang.nodes[failure.host].status.get("kernel") is not None:
        why = "killed by SIGKILL, and not by the kernel for want of memory"
        hint = f"a 'kill -9' or 'pkill' there? 'fleet exec -w {failure.host} -- last -x' may say who was on it"
    return FirstFailure(
        host=failure.host,
        node_rank=failure.node_rank,
        rank=failure.rank,
        local_rank=failure.local_rank,
        exit_code=failure.exit_code,
        signal=failure.signal,
        what=failure.what,
        message=said,
        why=why,
        left_early=early and LeftEarly(early[0].rank, early[0].host, round(early[1], 3)),
        kernel=KernelSays(kernel.host, kernel.line) if kernel else None,
        traceback=trace,
        tail=None if trace or not ran else "\n".join(lines[-TAIL_LINES:]) or None,
        hint=hint,
        unfit=_unfit(failure, verdict, gang, kernel) or (failure.host if rule is not None and rule.unfit else None),
        log=str(logs[failure.host].folder / name),
    )
