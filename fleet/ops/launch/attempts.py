"""A run as a row of attempts: after a failure the whole gang is started again, as often as --max-restarts says; after
the loss of a node with a spare in its place, as long as there are spares.

An attempt is a start like the first, with a port and so a store of its own; the run keeps its id. What it takes
(`Course`) is known to the process that planned the run, or to the keeper that it left behind.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.each import as_one
from fleet.errors import EXIT_INTERRUPTED, ConnectError, FleetError, HostFailed, Interrupted
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Host, Report
from fleet.ops.launch.folder import RunFolder, read_object
from fleet.ops.launch.gang import INTERRUPTED
from fleet.ops.launch.keeper import send_keeper
from fleet.ops.launch.loop import Run
from fleet.ops.launch.origin import RUN
from fleet.ops.launch.plan import Plan
from fleet.ops.launch.preflight import preflight
from fleet.ops.launch.record import RunRecord
from fleet.ops.launch.spares import Failed, go_on, lost_hosts, record_left_out
from fleet.ops.launch.start import START_SECONDS, Sessions, start_all, step, stop_all
from fleet.ops.launch.summary import left_alone
from fleet.protocol.messages.run import Ready, ReadySpec
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Session
from fleet.transport.program import call

PAUSE_SECONDS, MAX_PAUSE_SECONDS = 1.0, 30.0
LONG_SECONDS = 60.0  # who failed after that long was no quick failure
READY_SECONDS, RETRY_SECONDS = 30.0, 0.5
BETWEEN = f"{INTERRUPTED} between two attempts"
STOPPED_MEANWHILE = f"{INTERRUPTED}: 'fleet stop', between two attempts"


def pause_before(attempt: int) -> float:
    """Seconds of waiting, where those before it were quick to fail."""
    return min(MAX_PAUSE_SECONDS, PAUSE_SECONDS * float(2 ** max(0, attempt - 1)))


@dataclass(frozen=True)
class Course:
    """What starting a run again takes. plan: of the attempt under way. restarts: failures so far. quick: those in a row
    that came soon after a start. lost: the hosts that others replace for this attempt."""

    plan: Plan
    restarts: int = 0
    quick: int = 0
    lost: Failed = field(default_factory=dict)

    def after(self, report: Report, lasted: float) -> Course | None:
        """What is to be started after an attempt that ended so, and lasted so many seconds; None: nothing."""
        failure, lost = report.data["first_failure"], lost_hosts(report)
        if failure is None or failure["what"] == "link" or self.plan.world.least:  # an elastic engine restarts
            return None
        quick = 0 if lasted >= LONG_SECONDS else self.quick + 1
        plan = replace(self.plan, attempt=self.plan.attempt + 1)
        if 0 < len(lost) <= len(plan.spares):
            return Course(plan.without(lost), self.restarts, quick, lost)
        return Course(plan, self.restarts + 1, quick) if self.restarts < self.most else None

    @property
    def goes_on(self) -> bool:
        """Whether a failure need not be the end."""
        return self.plan.world.least > 0 or self.restarts < self.most or bool(self.plan.spares)

    @property
    def most(self) -> int:
        """Restarts."""
        return self.plan.job.max_restarts

    @property
    def pause(self) -> float:
        """Seconds before the attempt begins: a script that fails at once is not started again and again at once."""
        return pause_before(self.quick)


@dataclass(frozen=True)
class Ended:
    """An attempt that another one is to follow. told: what was said of that."""

    report: Report
    told: dict[str, Any]


class Left(Interrupted):
    """Between two attempts: the run is to go on without this process."""


def follow_run(
    record: RunRecord,
    folder: RunFolder,
    sessions: Mapping[str, Session],
    runtime: Runtime,
    course: Course | None = None,
    run: Run | None = None,
    ended: Ended | None = None,
) -> Report:
    """To the end of the run, attempt by attempt; writes summary.json. run: of the attempt under way, where it was made
    already. ended: that one is over, and `course` is what follows."""
    restarts: list[dict[str, Any]] = list(read_object(folder.path / RUN).get("restarts", []))  # others' before us
    while True:
        if ended is None:
            began = time.monotonic()
            run = run or Run(record, folder, sessions, runtime, course.plan if course else None)
            report = run.follow()
            if report.data.get("detached"):
                course = course and replace(course, plan=run.plan or course.plan)
                return _leave(record, folder, runtime, course)
            lasted = time.monotonic() - began
            after = course and course.after(report, lasted)
            if after is None:
                return conclude(report, record, restarts, folder, runtime)
            run.close()
            course, run = after, None
            # an interrupt while what was left of the attempt was ended: no restart is announced
            told = {} if runtime.cancel.is_set() else _tell(after, report, record, lasted, folder, runtime)
            ended = Ended(report, told)
        assert course is not None
        try:
            plan, record, sessions = begin(course, record, folder, runtime)
        except Left:
            return _leave(record, folder, runtime, course, ended)
        except FleetError as error:
            return conclude(_not_again(error, ended.report, folder, runtime), record, restarts, folder, runtime)
        course = replace(course, plan=plan)
        restarts.append(ended.told)
        ended = None
        with suppress(FleetError):  # on a full disk; the events tell it, too
            folder.write_json(RUN, {**read_object(folder.path / RUN), "restarts": restarts})


def _leave(
    record: RunRecord, folder: RunFolder, runtime: Runtime, course: Course | None, ended: Ended | None = None
) -> Report:
    """It goes on without this process."""
    pid = send_keeper(replace(record, lease=None), folder, runtime.transport, course, ended)
    said = f"run {record.run_id} goes on; process {pid} collects its logs here"
    runtime.emit(folder.notice("info", said, "detached", pid=pid))
    return left_alone(record)


def conclude(
    report: Report, record: RunRecord, restarts: list[dict[str, Any]], folder: RunFolder, runtime: Runtime
) -> Report:
    """The report of the whole run is that of the attempt that ended it."""
    report = replace(report, data={**report.data, "attempt": record.attempt, "restarts": restarts})
    folder.event("summary", exit_code=report.exit_code, first_failure=report.data["first_failure"])
    try:
        folder.write_json("summary.json", report.as_json())
    except FleetError as error:
        runtime.emit(Notice("error", error.message, None, error.hint))
    return report


def _tell(
    course: Course, report: Report, record: RunRecord, lasted: float, folder: RunFolder, runtime: Runtime
) -> dict[str, Any]:
    """One line, and its event: what ended the attempt, and which restart that makes, or who is replaced."""
    failure, most = report.data["first_failure"], course.most
    log = folder.aside(record.attempt) / failure["host"] / failure["log"].rpartition("/")[2]
    which = f"restart {course.restarts} of {most}"
    if course.lost:
        spares = [host.name for host in course.plan.hosts if host not in record.hosts]
        which = f"restart with {fold(spares)} instead of {fold(course.lost)}"
    said = f"{which} in {course.pause:g} s: {failure['message']}, after {lasted:.1f} s"
    notice = folder.notice(
        "warning",
        said,
        "restart",
        failure["host"],
        attempt=course.plan.attempt,
        restart=course.restarts,
        max_restarts=most,
        **{name: failure[name] for name in ("rank", "exit_code", "signal", "what")},
        replaced={name: error.message for name, error in course.lost.items()},
        seconds=round(lasted, 3),
        log=str(log),
    )
    runtime.emit(notice)
    assert isinstance(notice.data, dict)
    return {name: value for name, value in notice.data.items() if name not in ("event", "level")}


def _not_again(error: FleetError, report: Report, folder: RunFolder, runtime: Runtime) -> Report:
    """The report of the attempt that was the last, for no other could begin."""
    if isinstance(error, Interrupted):
        data = {**report.data, "stopped": error.message, "first_failure": None, "next": [], "tracebacks": []}
        return replace(report, exit_code=EXIT_INTERRUPTED, data=data)
    said = f"no restart: {error}"
    runtime.emit(folder.notice("error", said, "no-restart", error.host, error.hint))
    return report


def begin(
    course: Course, last: RunRecord, folder: RunFolder, runtime: Runtime
) -> tuple[Plan, RunRecord, Mapping[str, Session]]:
    """Start the attempt: its plan and record, and a connection to each node. Spares take the place of hosts where it
    cannot begin. FleetError where that leaves too few, Interrupted where it is not to be."""
    if runtime.cancel.is_set():
        raise Interrupted(BETWEEN)
    plan, until = course.plan, time.monotonic() + course.pause
    with closing(Sessions(runtime)) as sessions:
        while True:
            try:
                return _begin(plan, last, folder, sessions, until)
            except FleetError as error:
                plan, failed = go_on(plan, error)
                plan = replace(plan, attempt=plan.attempt + 1)  # the one that began on some hosts is over
            for name, why in failed.items():
                runtime.emit(record_left_out(folder, name, why))


def _begin(
    plan: Plan, last: RunRecord, folder: RunFolder, sessions: Sessions, until: float
) -> tuple[Plan, RunRecord, Mapping[str, Session]]:
    runtime = sessions.runtime
    plan = check(plan, sessions, until)
    with step(runtime, "restart", len(plan.hosts)):
        if plan.hosts != last.hosts:
            plan = preflight(plan, sessions)
        record = replace(plan.record(last.started), lease=last.lease, owner=last.owner)
        started = start_all(plan, record, sessions)
    try:
        folder.begin(record.attempt)
    except FleetError:
        stop_all(plan, sessions, 0.0, "the head has no room for its logs")
        raise
    for host, answer in started.items():
        folder.event("started", host=host, pid=answer["pid"], folder=answer["dir"], attempt=record.attempt)
    where = f"logs of the last one are in {folder.aside(last.attempt)}"
    text = f"attempt {record.attempt}: ranks meet at {record.master}; {where}"
    notice = folder.notice(
        "info",
        text,
        "attempt",
        attempt=record.attempt,
        master=record.master,
        world_size=record.world_size,
        first_ranks=record.first_ranks,
        started=record.started,
    )
    runtime.emit(notice)
    return plan, record, sessions.take_all(host.name for host in plan.hosts)


def check(plan: Plan, sessions: Sessions, until: float) -> Plan:
    """That every host is there and nothing of earlier attempts is left; the plan with a port that is free. Until then,
    by time.monotonic(), nodes wait, and know of the run. Left, Interrupted: as soon as it is asked for."""
    runtime, first, ports = sessions.runtime, plan.hosts[0].name, plan.ports
    hurry = Cancel()
    for latch in (runtime.cancel, runtime.detach):
        latch.on_set(hurry.set)

    def ask(host: Host) -> Ready:
        pause = max(0.0, until - time.monotonic())
        spec: ReadySpec = {
            "run": plan.run_id,
            "attempt": plan.attempt,
            "ports": ports if host.name == first else [],
            "pause": pause,
        }
        timeout = pause + READY_SECONDS + START_SECONDS
        try:
            answer = call(sessions.get(host), "run.ready", spec, Ready, timeout=timeout, cancel=hurry)
        except ConnectError:
            sessions.drop(host)
            if time.monotonic() >= until or hurry.wait(min(RETRY_SECONDS, pause)):
                raise
            return ask(host)
        if answer["forbidden"]:
            hurry.set()
        if answer["left"]:
            raise HostFailed(f"processes that would not die: {answer['left'][:20]}", host=host.name, kind="stubborn")
        return answer

    answers, errors = sessions.each(plan.hosts, ask, "pause", hurry)
    if any(answer["forbidden"] for answer in answers.values()):
        raise Interrupted(STOPPED_MEANWHILE)
    if runtime.cancel.is_set():
        raise Interrupted(BETWEEN)
    if runtime.detach.is_set():
        raise Left("left between two attempts")
    if errors:
        raise as_one(errors, runtime.emit, "not-ready", "")
    port = answers[first]["port"]
    if port is None:
        what = f"port {ports[0]} is taken" if plan.job.master_port else f"ports {ports} are all taken"
        raise HostFailed(what, host=first, hint=f"'fleet kill-port -w {first} {ports[0]}' shows who listens")
    return plan.refine(plan.facts, (plan.world.master_addr, port))
