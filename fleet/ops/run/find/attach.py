"""`fleet attach RUN`: follows a run that was detached, that lost its head, or that another head started."""

from __future__ import annotations

import os
import signal
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from fleet.answers.run_events import Attached
from fleet.answers.runs import LeftAlone, NodeEnd, RunSummary
from fleet.codec import decode, from_json
from fleet.errors import ConnectError, FleetError, Interrupted, UsageError
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Report, Result
from fleet.node.base.processes import lives
from fleet.ops.plans import Asked
from fleet.ops.run.end.next_steps import typed_here
from fleet.ops.run.end.summary import drafted, left_alone
from fleet.ops.run.find.again import Text, course_of
from fleet.ops.run.find.find import FoundRun, check_protocol, find, warn_of_missing
from fleet.ops.run.find.here import chosen_here
from fleet.ops.run.follow.fetch import POLL_SECONDS
from fleet.ops.run.kept.documents import read_object
from fleet.ops.run.kept.folder import HANDOVER_SECONDS, RunFolder, led_already
from fleet.ops.run.kept.job import run_here
from fleet.ops.run.kept.reader import LogsPlan, Onlooker
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.kept.state import state_of, without_head
from fleet.ops.run.launch.attempts import follow_run
from fleet.ops.run.launch.course import Course
from fleet.ops.sessions import START_SECONDS, Sessions
from fleet.protocol.messages.run import Verdict, Whole
from fleet.requests.runs import Attach, Logs
from fleet.rules.units import counted
from fleet.runtime import Runtime

_Error = TypedDict("_Error", {"message": Text, "hint": Text | None})
# of a summary.json: what is not of one of fleet's classes
_Told = TypedDict("_Told", {"exit_code": Whole, "end": Verdict | None, "error": _Error | None}, total=False)
ASK_AGAIN_SECONDS = 1.0
MOMENT_SECONDS = 1.0  # for which a folder may be held by who only looks, or is at its end


def run(plan: Asked[Attach], runtime: Runtime) -> Report:
    """The run's own end, as launch reports it. With runtime.detach set it goes on without this process."""
    with closing(Sessions(runtime)) as sessions:
        return _follow(plan, runtime, sessions)


def _follow(plan: Asked[Attach], runtime: Runtime, sessions: Sessions) -> Report:
    try:
        found, answers = _known(plan, runtime, sessions)
    except (ConnectError, UsageError):
        run_id = run_here(plan.request.run, plan.request.runs)
        if run_id is None or (known := report_of(RunFolder(plan.request.runs / run_id))) is None:
            raise
        return known  # it is over, and its nodes have pruned it
    check_protocol(found)
    plan = replace(plan, request=replace(plan.request, run=found.run_id))  # "latest" may be another one later
    folder = RunFolder.open(plan.request.runs, found.run_id)
    record = found.record(plan.request.runs)
    known = None if found.live else report_of(folder)
    if known is not None and _is_final(known, found):
        folder.release()
        runtime.emit(_attached(found, record))
        return replace(known, answer=replace(known.read(RunSummary), logs=str(plan.request.runs / found.run_id)))
    warn_of_missing(found, answers, runtime.emit)
    if plan.request.detach:
        runtime.detach.set()
    if waited := not folder.held:
        folder.ask_for()
    if not folder.held and not folder.hold(MOMENT_SECONDS):  # it is led already
        if lives(state_of(folder.path).get("leader")) is None:
            raise led_already(folder)
        runtime.emit(_attached(found, record))
        report = watch(
            LogsPlan(plan.inventory, Logs(found.run_id, runs_dir=plan.request.runs, tail=0)), folder, runtime
        )
        if report is not None or not folder.held:
            folder.release()
            return report or left_alone(record, led=False)
    if waited:  # who led it is gone, and may have begun other attempts
        found, _ = _known(plan, runtime, sessions)
        record = found.record(plan.request.runs)
    decides, leads = False, folder.was_launched_here
    try:
        while True:
            folder.begin(record.attempt)
            goes_on = without_head(folder.path)
            folder.lead(record.lease, leads=leads and found.verdict is None)
            runtime.emit(folder.keep(_attached(found, record, leads)))
            course = _course(record, plan, runtime) if leads and goes_on and record.restartable else None
            waiting = sessions.take_all(found.hosts)
            report = follow_run(record, folder, waiting, runtime, course, decides=decides, leads=leads)
            if not isinstance(report.answer, LeftAlone) or runtime.cancel.is_set() or runtime.detach.is_set():
                return report
            attempt = record.attempt
            found, _ = _known(plan, runtime, sessions, begins=True)
            record = found.record(plan.request.runs)
            decides = not found.live and record.attempt == attempt  # no process starts it again
    finally:
        folder.release()


def _known(
    plan: Asked[Attach], runtime: Runtime, sessions: Sessions, *, begins: bool = False
) -> tuple[FoundRun, tuple[Result, ...]]:
    """Returns the run, and how asking each host went. Where it has only just begun, or an attempt begins, nodes that do
    not know of that yet are queried again: who followed the others alone would take their end for the run's."""
    until = time.monotonic() + START_SECONDS
    while True:
        runs, answers = find(plan.inventory, runtime, live=False, sessions=sessions)
        found = chosen_here(plan.request.run, runs, answers, plan.request.runs, plan.inventory, runtime.ask)
        soon = (
            found.live and (begins or time.time() - found.about["started"] < START_SECONDS) and time.monotonic() < until
        )
        if not found.parts:
            silent = [result for result in answers if result.error is not None]
            hint = f"'fleet stop {found.run_id}', where its hosts are gone for good"
            where = f": no answer from {fold(result.host for result in silent)}" if silent else ""
            raise ConnectError(f"no host knows of run {found.run_id}{where}", hint=hint, kind="unknown")
        if not found.is_partial or not soon or found.about["least"] or not all(result.ok for result in answers):
            return found, answers
        if runtime.cancel.wait(ASK_AGAIN_SECONDS):
            raise Interrupted("interrupted")


def _is_final(known: Report, found: FoundRun) -> bool:
    """Returns whether what is known here is the run's end, and its nodes can add nothing."""
    summary = known.read(RunSummary)
    decided = drafted(known) is not None and (drafted(known) == found.verdict or summary.error is not None)
    return decided and not {*summary.incomplete_logs} & set(found.hosts)


def _attached(found: FoundRun, record: RunRecord, leads: bool = False) -> Notice:
    size = f"{counted(record.world_size, 'rank')} on {counted(len(record.nodes), 'node')}"
    which = f", attempt {record.attempt}" * (record.attempt > 0)
    unknown = f" ({fold(record.unknown)} unknown from here)" * bool(record.unknown)
    text = f"run {record.run_id}: {found.state}{which}, {size}{unknown}, logs in {record.logs}"
    event = Attached(
        engine=found.told and found.told["engine"],
        world_size=record.world_size,
        first_ranks=record.first_ranks,
        logs=str(record.logs),
        state=found.state,
        started=record.about["started"],
        lease=record.lease,
        leads=leads,
    )
    return Notice("info", text, happened=(event,))


def _course(record: RunRecord, plan: Asked[Attach], runtime: Runtime) -> Course | None:
    try:
        return course_of(record, plan.inventory, runtime.ask)
    except FleetError as error:
        text = f"what fails is not started again from here: {error.message}"
        runtime.emit(Notice("warning", text, None, error.hint))
        return None


def take(found: FoundRun, runs_dir: Path) -> RunFolder:
    """Returns the folder of a run that no node knows, for us to write to: a leader without a terminal makes room.
    UsageError where another fleet command follows it."""
    folder = RunFolder.open(runs_dir, found.run_id)
    if folder.held:
        return folder
    state = state_of(folder.path)
    who, alive = state.get("leader"), lives(state.get("leader"))
    makes_room = state.get("detached") and alive is not None and folder.is_ours
    if makes_room and alive and who:
        with suppress(ProcessLookupError):  # the run is over, and so it is just now
            os.kill(who["pid"], signal.SIGTERM)
    if folder.hold(HANDOVER_SECONDS if makes_room else MOMENT_SECONDS):
        return folder
    raise led_already(folder)


# -- looking on while a process of this machine follows it: its events and logs from its folder, its report
def watch(plan: LogsPlan, folder: RunFolder, runtime: Runtime) -> Report | None:
    """Looks on until the run is over: its report. None: it is left, or no process follows it any more; then the folder
    is ours. plan: its tail is 0."""
    onlooker = Onlooker(folder.path, plan, runtime.emit)
    while not runtime.detach.is_set() and not runtime.cancel.is_set():
        free = folder.hold()
        onlooker.look()
        if free:
            return report_of(folder)
        runtime.detach.wait(POLL_SECONDS)
    return None


def report_of(folder: RunFolder) -> Report | None:
    """Returns the report that its summary.json has; None while there is none."""
    summary = read_object(folder.path / "summary.json")
    if "exit_code" not in summary:
        return None
    try:
        decode(_Told, summary)
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
