"""Follows a run to its end, attempt by attempt. If another attempt may follow a failure (see begin.Course), the nodes
report whether processes of the last attempt are left. Then each node's part is started again, by the same functions as
for the first attempt. The run keeps its id.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from importlib import import_module
from typing import Any

from fleet.answers.run_events import Detached, NoRestart, Restart, RunOver
from fleet.answers.runs import LeftAlone, RunSummary
from fleet.best_effort import best_effort
from fleet.codec import from_json, to_json
from fleet.engines import engine
from fleet.errors import EXIT_INTERRUPTED, FleetError, Interrupted
from fleet.events import Notice, silent
from fleet.inventory.nodeset import fold
from fleet.model import Host, Report
from fleet.node.base.record import whoami
from fleet.node.gang.ends import run_end
from fleet.ops.run.end.notify import begins, notify, of_record
from fleet.ops.run.end.summary import left_alone, not_started
from fleet.ops.run.follow.background import LEADS, lead_in_background, opened
from fleet.ops.run.kept.documents import RUN, SUMMARY, read_object, restarts_of
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.launch.begin import Course, Ended, Left, begin
from fleet.ops.run.launch.loop import Run
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.spares import go_on, record_left_out
from fleet.ops.run.start.start import agree, contained
from fleet.ops.sessions import Sessions
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, ended
from fleet.transport.program import Program, read_all

GOES_ON = "run {} goes on; process {} collects its logs here"


def follow_run(
    record: RunRecord,
    folder: RunFolder,
    waiting: Mapping[str, Program],
    runtime: Runtime,
    course: Course | None = None,
    run: Run | None = None,
    ended: Ended | None = None,
    decides: bool = False,
    leads: bool = False,
) -> Report:
    """Follows a run to its end, attempt by attempt, and writes summary.json. waiting: host -> the program that started
    its part. run: the Run of the present attempt, if there is one already. ended: the present attempt, if it is over;
    `course` then describes the next one. leads: this process coordinates the run. decides: this process may decide on
    the run's end although it does not coordinate it, because no coordinator starts another attempt. If both are False,
    it leaves the run after an attempt that another one may follow."""
    read_all()
    nodes: dict[str, Host] = {}  # hosts of all attempts, those of the last one first
    last: Run | None = None
    restarts = restarts_of(read_object(folder.path / RUN))  # earlier ones, by other processes
    while True:
        if ended is None:
            began = runtime.clock.monotonic()
            run = run or Run(record, folder, waiting, runtime, course.plan if course else None, leads)
            report = run.follow()
            if isinstance(report.answer, LeftAlone):
                course = course and replace(course, plan=run.plan or course.plan)
                if run.leads:
                    run.unleash()
                    folder.set_state(lease=None)
                if runtime.stay is None or not run.leads:
                    run.close()
                    return _leave(record, folder, runtime, course) if run.leads else report
                record, runtime = _stay(record, folder, runtime, course)
                run.runtime = runtime
                report = run.follow()
            lasted = runtime.clock.monotonic() - began
            # each head sends the run's end to the nodes in the same order; the verdict that the first node has counts
            nodes = {host.name: host for host in record.hosts} | nodes
            after = course and course.after(report, lasted) if run.leads and run.gang.verdict is None else None
            if after is None and not (decides or run.may_decide(report)):
                run.leave()
                return left_alone(record, led=False)
            if after is None:
                line = (course.plan.request.notify if course else of_record(folder)) if run.leads else None
                return conclude(run.conclude(report, nodes), record, restarts, folder, runtime, line)
            run.leave()
            course, run, last = after, None, run
            # after an interrupt during the cleanup of the attempt, no restart is announced
            restart = {} if runtime.cancel.is_set() else _report_restart(after, report, record, lasted, folder, runtime)
            ended = Ended(report, restart)
        assert course is not None
        try:
            plan, record, waiting = begin(course, record, folder, runtime)
        except Left:
            if runtime.stay is None:
                return _leave(record, folder, runtime, course, ended)
            record, runtime = _stay(record, folder, runtime, course)
            continue
        except FleetError as error:
            nodes |= {host.name: host for host in course.plan.hosts}
            report = _not_again(error, ended.report, course.plan, tuple(nodes.values()), folder, runtime, last)
            return conclude(report, record, restarts, folder, runtime, course.plan.request.notify)
        course = replace(course, plan=plan)
        if ended.restart:
            ended.restart.update(attempt=record.attempt, hosts=[host.name for host in record.hosts])
        restarts.append(ended.restart)
        ended = None
        with best_effort("record the restarts in run.json", FleetError):  # events.jsonl has them, too
            folder.amend(RUN, restarts=restarts)


def _leave(
    record: RunRecord, folder: RunFolder, runtime: Runtime, course: Course | None, ended: Ended | None = None
) -> Report:
    """Detaches from the run, and has a background process coordinate it."""
    hosts = (*record.hosts, *((*course.plan.hosts, *course.plan.spares) if course is not None else ()))
    record, more = replace(record, lease=None), (to_json(course), to_json(ended))
    pid = lead_in_background(record, folder, runtime.transport, hosts, *more)
    runtime.emit(folder.notice("info", GOES_ON.format(record.run_id, pid), Detached(pid=pid)))
    return left_alone(record)


def _stay(record: RunRecord, folder: RunFolder, runtime: Runtime, course: Course | None) -> tuple[RunRecord, Runtime]:
    """Detaches the run from the terminal and from its lease. This process goes on to coordinate it, by the returned
    record and runtime."""
    assert runtime.stay is not None
    load_all(course)
    folder.lead(None, detached=True)
    record, pid = replace(record, lease=None), os.getpid()
    runtime.emit(folder.notice("info", GOES_ON.format(record.run_id, pid), Detached(pid=pid)))
    runtime.stay(left_alone(record))
    return record, replace(runtime, emit=silent, detach=Cancel(), stay=None, background=True)


def load_all(course: Course | None) -> None:
    """Loads all code that is needed up to the end of the run. fleet may be replaced by another version meanwhile."""
    read_all()
    if course is not None:
        engine(course.plan.job.engine)
        for module in course.plan.request.delivers:
            import_module(module)


def conclude(
    report: Report,
    record: RunRecord,
    restarts: list[dict[str, Any]],
    folder: RunFolder,
    runtime: Runtime,
    line: str | None,
) -> Report:
    """Writes and returns the report of the whole run, which is the report of its last attempt. line: the line of
    --notify, if this process coordinates the run. An earlier coordinator that died may have started that line
    already."""
    summary = replace(report.read(RunSummary), attempt=record.attempt, restarts=restarts)
    assert summary.end is None or summary.end["code"] == report.exit_code
    report = replace(report, answer=summary)
    folder.event(RunOver(exit_code=report.exit_code, first_failure=summary.first_failure))
    try:
        folder.write_json(SUMMARY, report.as_json())
    except FleetError as error:
        runtime.emit(Notice("error", error.message, None, error.hint))
    if line is not None and begins(folder, record.attempt):
        runtime.emit(notify(line, report.as_json(), folder, runtime.cancel))
    folder.set_state(leads=False)
    return report


def _report_restart(
    course: Course, report: Report, record: RunRecord, lasted: float, folder: RunFolder, runtime: Runtime
) -> dict[str, Any]:
    """Emits a notice of what ended the attempt, with the number of the restart, or with the replaced hosts. Returns the
    fields of the restart."""
    failure, attempts = report.read(RunSummary).first_failure, course.attempts
    assert failure is not None
    log = folder.aside(record.attempt) / failure.host / failure.log.rpartition("/")[2]
    which = f"restart {attempts.restarts} of {attempts.most}"
    if course.lost:
        spares = [host.name for host in course.plan.hosts if host not in record.hosts]
        which = f"restart with {fold(spares)} instead of {fold(course.lost)}"
    text = f"{which} in {attempts.pause:g} s: {failure.message}, after {lasted:.1f} s"
    event = Restart(
        attempt=course.plan.attempt,
        restart=attempts.restarts,
        max_restarts=attempts.most,
        rank=failure.rank,
        exit_code=failure.exit_code,
        signal=failure.signal,
        what=failure.what,
        replaced={name: error.message for name, error in course.lost.items()},
        seconds=round(lasted, 3),
        log=str(log),
    )
    notice = folder.notice("warning", text, event, failure.host)
    runtime.emit(notice)
    return {name: value for name, value in notice.data.items() if name not in ("event", "level")}


def _not_again(
    error: FleetError,
    report: Report,
    plan: Plan,
    hosts: tuple[Host, ...],
    folder: RunFolder,
    runtime: Runtime,
    last: Run | None,
) -> Report:
    """Records the end of the run on its nodes, because no attempt could follow the last one. Returns the report of the
    last attempt, with the verdict that counts. error: why no attempt could begin; an Interrupted makes the verdict a
    stop. last: the last attempt, if this process followed it."""
    verdict = report.read(RunSummary).end
    assert verdict is not None
    if by_hand := isinstance(error, Interrupted):
        end = run_end("stop" if error.kind == "stop" else "interrupt", error.message, EXIT_INTERRUPTED, who=whoami())
        verdict = {**end, "attempt": verdict["attempt"], "unknown": verdict["unknown"]}
    else:
        runtime.emit(folder.notice("error", f"no restart: {error}", NoRestart(), error.host, error.hint))
    with closing(Sessions(replace(runtime, cancel=Cancel(), emit=silent))) as sessions:
        verdict, _ = agree(plan.run_id, verdict, hosts, sessions, None if by_hand else plan.attempt)
    if last is not None:
        return last.report(verdict)
    summary = replace(report.read(RunSummary), end=verdict, unknown=verdict["unknown"])
    if verdict["first"] is None:
        summary = replace(summary, stopped=verdict["message"], first_failure=None, next=(), tracebacks=())
    return replace(report, exit_code=verdict["code"], answer=summary)


def begin_with_spares(
    plan: Plan, record: RunRecord, error: FleetError, folder: RunFolder, runtime: Runtime
) -> tuple[Plan, RunRecord, Mapping[str, Program]]:
    """Does what begin() does for a run whose first attempt did not begin: some hosts failed to start with `error`, and
    all were stopped again. If there are too few spares, writes the run's summary and raises FleetError."""
    try:
        if not plan.spares:
            raise error
        plan, failed = go_on(plan, error)
        for name, why in failed.items():
            runtime.emit(record_left_out(folder, name, why))
        # a request to detach takes effect once the run has begun
        return begin(
            Course(replace(plan, attempt=record.attempt + 1)),
            record,
            folder,
            replace(runtime, detach=Cancel()),
        )
    except FleetError as final:
        report = not_started(
            final, record.run_id, record.logs, record.world_size, record.hosts, ended(runtime.transport)
        )
        conclude(report, record, [], folder, runtime, plan.request.notify)
        raise


def lead(spec: dict[str, Any]) -> None:
    """Coordinates the run to its end, in a background process that has inherited the folder's lock."""
    record, folder, transport, _ = opened(spec)
    course = from_json(Course | None, spec["course"])
    ended = from_json(Ended | None, spec["ended"])
    if course is not None:
        course = replace(course, plan=contained(course.plan, transport))
    load_all(course)
    folder.take_over(spec["lock"])
    folder.lead(record.lease, detached=True)
    runtime = Runtime(transport, background=True)
    run = Run(record, folder, {}, runtime, course.plan if course else None, leads=True) if ended is None else None
    os.write(1, LEADS)
    os.dup2(2, 1)
    follow_run(record, folder, {}, runtime, course, run, ended)
    folder.release()
    transport.close()
