"""The end of a run as one Report: exit code, what failed first and why, and where the logs are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet.errors import EXIT_HOST_FAILED, EXIT_INTERRUPTED, EXIT_OK, ConnectError
from fleet.model import Report, Result
from fleet.ops.launch.gang import Failure, Gang, NodeState, RankEnd
from fleet.ops.launch.logs import NodeLogs
from fleet.ops.launch.plan import Plan
from fleet.rules.hints import TAIL_BYTES, hint_for, traceback_of

TAIL_LINES = 12
INTERRUPTED = "interrupted"


def summarise(plan: Plan, gang: Gang, logs: Mapping[str, NodeLogs], incomplete: list[str], seconds: float) -> Report:
    """Pure but for reading the logs' tails. `incomplete`: hosts of which log bytes are missing on the head."""

    def collateral(end: RankEnd) -> bool:
        hint = hint_for(logs[end.host].tail(f"rank{end.rank}.err", TAIL_BYTES))
        return hint is not None and hint.collateral

    interrupted = gang.reason is not None and gang.reason.startswith(INTERRUPTED)
    failure = None if interrupted else gang.first(collateral)
    missing = {n.node.host.name: ranks for n in plan.nodes
               if (ranks := gang.unaccounted(n.node.host.name, n.node.ranks))}
    if failure is None and not interrupted and missing and not plan.job.max_restarts:
        host = next(iter(missing))
        failure = Failure(host, gang.nodes[host].node_rank, EXIT_HOST_FAILED, 0.0, missing[host][0], what="vanished")
    code = EXIT_OK
    if interrupted:
        code = EXIT_INTERRUPTED
    elif failure is not None:
        code = failure.exit_code or EXIT_HOST_FAILED
    elif incomplete or any(node.status.get("left") for node in gang.nodes.values()):
        code = EXIT_HOST_FAILED
    results = tuple(_result(gang.nodes[host.name], plan) for host in plan.hosts)
    return Report("launch", results, code, {
        "run": plan.run_id,
        "world_size": plan.world.size,
        "seconds": round(seconds, 3),
        "logs": str(plan.options.runs_dir / plan.run_id),
        "stopped": gang.reason,
        "first_failure": describe(failure, plan, logs) if failure else None,
        "incomplete_logs": incomplete,
    })


def _result(node: NodeState, plan: Plan) -> Result:
    ends = sorted(node.ranks.values(), key=lambda e: (e.rank, e.attempt))
    ranks = {e.rank: {"status": e.status, "signal": e.signal, "attempt": e.attempt} for e in ends}
    failed = [e.exit_code for e in sorted(ends, key=lambda e: e.time) if e.failed and not plan.job.max_restarts]
    known = node.state in ("exited", "stopped", "lost")
    status = (failed or [node.engine_code])[0] if known else None
    error = None
    if node.lost is not None:
        error = ConnectError(f"silent for {plan.options.node_timeout:g} s", host=node.host, kind="lost",
                             hint="the host hangs, or the link to it is cut")
    ok = error is None and node.state == "exited" and not status and not node.status.get("left")
    return Result(node.host, ok, status, error=error, data={
        "node_rank": node.node_rank, "state": "lost" if node.lost is not None else node.state, "ranks": ranks,
        "reason": node.status.get("reason"), "left": node.status.get("left") or [],
    })


def describe(failure: Failure, plan: Plan, logs: Mapping[str, NodeLogs]) -> dict[str, Any]:
    """The first failure as JSON: who, how, its traceback or last lines, a hint, and the log that tells more."""
    name = "node.log" if failure.rank is None else f"rank{failure.rank}.err"
    text = logs[failure.host].tail(name, TAIL_BYTES)
    if failure.rank is not None and not text.strip():
        text = logs[failure.host].tail(f"rank{failure.rank}.out", TAIL_BYTES)
    # of a line that a progress bar rewrote, its last state
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.rstrip().split("\n")]
    text = "\n".join(lines)
    hint = hint_for(text)
    trace = traceback_of(text)
    return {
        "host": failure.host,
        "node_rank": failure.node_rank,
        "rank": failure.rank,
        "local_rank": failure.local_rank,
        "exit_code": failure.exit_code,
        "signal": failure.signal,
        "what": failure.what,
        "message": _message(failure, plan),
        "traceback": trace,
        "tail": None if trace else "\n".join(lines[-TAIL_LINES:]) or None,
        "hint": hint.remedy if hint else _plain_hint(failure),
        "log": str(logs[failure.host].folder / name),
    }


def _message(failure: Failure, plan: Plan) -> str:
    where = f"{failure.host} (node rank {failure.node_rank})"
    if failure.what == "node":
        return f"{where} was lost"
    if failure.what == "vanished":
        return f"rank {failure.rank} on {where} left no word of how it ended"
    how = f"exit code {failure.exit_code}" if failure.signal is None else f"signal {failure.signal}"
    if failure.what == "engine":
        return f"{plan.job.engine} on {where} failed: {how}"
    return f"rank {failure.rank} on {where} failed: {how}"


def _plain_hint(failure: Failure) -> str | None:
    """What the way it ended says where no log line does."""
    if failure.what == "node":
        return "the host hangs, or the link to it is cut; 'fleet exec -w HOST -- uptime' tells when it is back"
    if failure.signal == 9:
        return "killed from outside: out of memory? 'fleet exec -- dmesg' may say"
    if failure.signal in (7, 11):
        return "a crash in native code: PYTHONFAULTHANDLER=1 (--env) shows where"
    if failure.exit_code in (126, 127):
        return "the program could not be started there: is it on that node, and executable?"
    return None
