"""Runs `fleet attach RUN`, which follows a run that was detached, that lost its head, or that another head started."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, TypedDict

from fleet.answers.run_start_events import Attached
from fleet.answers.runs import LeftAlone, NodeEnd, RunSummary
from fleet.codec import decode, from_json
from fleet.errors import ConnectError, FleetError, Interrupted, UsageError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.inventory.select import select
from fleet.model import Inventory, Report, Result
from fleet.ops.plans import RequestPlan
from fleet.ops.run.end.failure import typed_here
from fleet.ops.run.end.summary import left_alone
from fleet.ops.run.find.again import Text, recorded
from fleet.ops.run.find.find import FoundRun, check_protocol, find, no_answer, warn_of_missing
from fleet.ops.run.find.here import chosen_here
from fleet.ops.run.kept.documents import SUMMARY, RunState, read_object, restarts_of
from fleet.ops.run.kept.folder import MOMENT_SECONDS, RunFolder, led_already
from fleet.ops.run.kept.job import run_here
from fleet.ops.run.kept.reader import Onlooker, look_until
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.launch.attempts import follow_run
from fleet.ops.run.launch.begin import Course
from fleet.ops.run.plan.plan import plan_of
from fleet.ops.sessions import START_SECONDS, Sessions
from fleet.protocol.messages.run import Whole
from fleet.requests.runs import Attach, Logs
from fleet.rules.units import counted
from fleet.runtime import Runtime

# fields of a summary.json that RunSummary lacks
_Error = TypedDict("_Error", {"message": Text, "hint": Text | None})
_Rest = TypedDict("_Rest", {"exit_code": Whole, "error": _Error | None}, total=False)
ASK_AGAIN_SECONDS = 1.0


def run(plan: RequestPlan[Attach], runtime: Runtime) -> Report:
    """Follows the run, and returns the report of its end, as launch does. If runtime.detach is set, the run goes on
    without this process."""
    with ExitStack() as at_end:
        sessions, runs_dir = at_end.enter_context(closing(Sessions(runtime))), plan.request.runs
        try:
            found, answers = _known(plan, runtime, sessions)
        except (ConnectError, UsageError):
            run_id = run_here(plan.request.run, runs_dir)
            if run_id is None or (known := report_of(RunFolder(runs_dir / run_id))) is None:
                raise
            return known  # the run is over, and its nodes have pruned it
        check_protocol(found)
        plan = replace(plan, request=replace(plan.request, run=found.run_id))  # "latest" may name another run later
        folder, record = RunFolder.open(runs_dir, found.run_id), found.record(runs_dir)
        at_end.callback(folder.release)
        known = None if found.live else report_of(folder)
        if known is not None and _is_final(known, found):
            runtime.emit(_attached(found, record))
            return replace(known, answer=replace(known.read(RunSummary), logs=str(record.logs)))
        warn_of_missing(found, answers, runtime.emit)
        if plan.request.detach:
            runtime.detach.set()
        if waited := not folder.held:
            folder.request_lock()
        if waited and not folder.hold(MOMENT_SECONDS):  # another process coordinates the run already
            if RunState(folder.path).leader_lives is None:
                raise led_already(folder)
            runtime.emit(_attached(found, record))
            onlooker = Onlooker(folder.path, Logs(found.run_id, runs_dir=runs_dir, tail=0), runtime.emit)
            # looks on until the user detaches or interrupts, or until this process gets the lock, as its holder is gone
            look_until(
                lambda: runtime.detach.is_set() or runtime.cancel.is_set() or folder.hold(),
                onlooker.look,
                runtime.detach,
            )
            if not folder.held:
                return left_alone(record, led=False)
            if (known := report_of(folder)) is not None:
                return known
        if waited:  # the earlier coordinator is gone, and may have begun other attempts
            found, _ = _known(plan, runtime, sessions)
            record = found.record(runs_dir)
        decides, leads = False, folder.was_launched_here
        while True:
            folder.begin(record.attempt)
            goes_on = RunState(folder.path).without_head
            folder.lead(record.lease, leads=leads and found.verdict is None)
            runtime.emit(folder.keep(_attached(found, record, leads)))
            course = _course(record, plan.inventory, runtime) if leads and goes_on and record.restartable else None
            waiting = sessions.take_all(found.hosts)
            report = follow_run(record, folder, waiting, runtime, course, decides=decides, leads=leads)
            if not isinstance(report.answer, LeftAlone) or runtime.cancel.is_set() or runtime.detach.is_set():
                return report
            attempt = record.attempt
            found, _ = _known(plan, runtime, sessions, begins=True)
            record = found.record(runs_dir)
            decides = not found.live and record.attempt == attempt  # no process has started another attempt


def _known(
    plan: RequestPlan[Attach], runtime: Runtime, sessions: Sessions, *, begins: bool = False
) -> tuple[FoundRun, tuple[Result, ...]]:
    """Returns (the run, the result of the request to each host). begins: another attempt begins. If it, or the run, has
    just begun, queries the nodes again that do not know the run yet. Without that, the end of the known nodes would
    count as the end of the run."""
    until = time.monotonic() + START_SECONDS
    while True:
        runs, answers = find(plan.inventory, runtime, live=False, sessions=sessions)
        found = chosen_here(plan.request.run, runs, answers, plan.request.runs, plan.inventory, runtime.ask)
        soon = (
            found.live and (begins or time.time() - found.about["started"] < START_SECONDS) and time.monotonic() < until
        )
        if not found.parts:
            hint = f"'fleet stop {found.run_id}', where its hosts are gone for good"
            text = ": ".join(filter(None, [f"no host knows of run {found.run_id}", no_answer(answers)]))
            raise ConnectError(text, hint=hint, kind="unknown")
        if not found.is_partial or not soon or found.about["least"] or not all(result.ok for result in answers):
            return found, answers
        if runtime.cancel.wait(ASK_AGAIN_SECONDS):
            raise Interrupted("interrupted")


def _is_final(known: Report, found: FoundRun) -> bool:
    """Returns whether the report on this machine has the run's end and all logs, so that no node is needed any more."""
    summary = known.read(RunSummary)
    decided = summary.end is not None and (summary.end == found.verdict or summary.error is not None)
    return decided and not {*summary.incomplete_logs} & set(found.hosts)


def _attached(found: FoundRun, record: RunRecord, leads: bool = False) -> Notice:
    size = f"{counted(record.world_size, 'rank')} on {counted(len(record.nodes), 'node')}"
    which = f", attempt {record.attempt}" * (record.attempt > 0)
    unknown = f" ({fold(record.unknown)} unknown from here)" * bool(record.unknown)
    text = f"run {record.run_id}: {found.state}{which}, {size}{unknown}, logs in {record.logs}"
    event = Attached(
        engine=found.reported and found.reported["engine"],
        world_size=record.world_size,
        first_ranks=record.first_ranks,
        logs=str(record.logs),
        state=found.state,
        started=record.about["started"],
        lease=record.lease,
        leads=leads,
        attempt=record.attempt or None,
    )
    return Notice("info", text, happened=(event,))


def _course(record: RunRecord, all_hosts: Inventory, runtime: Runtime) -> Course | None:
    """Returns the Course to restart a run whose planning process is gone, with the remaining restarts and spares.
    Returns None if values that the restart needs were not recorded."""
    try:
        known = recorded(record.run_id, record.logs.parent, runtime.ask)
        restarts, used = restarts_of(known.document), {host.name for host in record.hosts}
        gone = {name for each in restarts for name in each.get("replaced", ())}
        hosts = select(all_hosts, known.selected, None).hosts
        spares = [host.name for host in hosts if host.name not in used | gone][: record.about["spares"]]
        request = replace(
            known.request({}),
            runs_dir=record.logs.parent,
            claims=record.run_id,
            attempt=record.attempt,
            nnodes=str(len(used)),
            spares=len(spares),
        )
        chosen = tuple(host for host in hosts if host.name in used or host.name in spares)
        plan = plan_of(replace(all_hosts, hosts=chosen), request)
    except FleetError as error:
        runtime.emit(Notice("warning", f"what fails is not started again from here: {error.message}", None, error.hint))
        return None
    return Course(plan, sum(not each.get("replaced") for each in restarts))


def report_of(folder: RunFolder) -> Report | None:
    """Returns the report in a run's summary.json; None if there is none."""
    summary = read_object(folder.path / SUMMARY)
    if "exit_code" not in summary:
        return None
    try:
        decode(_Rest, summary)
        ended = from_json(RunSummary, summary)
        results = tuple(_result(name, host) for name, host in summary["hosts"].items())
        steps = [typed_here(step, folder.path.parent) for step in ended.next]
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
    ):  # edited, or cut off by a full disk: the nodes know better
        return None
    return Report("launch", results, summary["exit_code"], answer=replace(ended, next=steps))


def _result(name: str, host: dict[str, Any]) -> Result:
    failure = host.pop("error")
    error: FleetError | None = None
    if failure is not None:
        error = ConnectError(failure["message"], hint=failure["hint"], kind=failure["kind"], host=name)
    return Result(name, host["ok"], host["exit_status"], error=error, answer=from_json(NodeEnd, host))
