"""Begins another attempt of a run. The nodes report whether processes of the last attempt are left. Then their parts
are started again, by the code of the first start. A Course holds the data for that. The process that planned the run
has the Course, and passes it to the process that coordinates the run after it. Each attempt has a port of its own, and
so a store of torch of its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

from fleet.answers.run_events import Attempt
from fleet.answers.run_start_events import NodeStarted, NotReady
from fleet.answers.runs import RunSummary
from fleet.each import as_one
from fleet.errors import EXIT_HOST_FAILED, ConnectError, FleetError, HostFailed, Interrupted
from fleet.model import Host, Report
from fleet.node.base.record import whoami
from fleet.node.gang.ends import INTERRUPTED, run_end
from fleet.node.gang.verdict import Attempts
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.plan.findings import also_keeping
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.preflight import preflight
from fleet.ops.run.start.spares import Failed, go_on, lost_hosts, record_left_out
from fleet.ops.run.start.start import nothing_left, part_of, start_all, step, stop_all
from fleet.ops.sessions import ANSWER_SECONDS, START_SECONDS, Sessions
from fleet.protocol.messages.run import Ready
from fleet.protocol.messages.run_specs import ReadySpec
from fleet.runtime import Runtime
from fleet.transport.base import Cancel
from fleet.transport.program import Program, first_message

RETRY_SECONDS = 0.5  # between two tries to connect to a host
CONNECT_SECONDS = 10.0  # after the pause: so long a busy host may refuse connections
BETWEEN = f"{INTERRUPTED} between two attempts"
STOPPED_MEANWHILE = f"{INTERRUPTED}: 'fleet stop', between two attempts"


@dataclass(frozen=True)
class Course:
    """Holds the state of a run's restarts. plan: of the present attempt. restarts, quick: see Attempts. lost: host ->
    error; spares replace these hosts in this attempt."""

    plan: Plan
    restarts: int = 0
    quick: int = 0
    lost: Failed = field(default_factory=dict)

    def after(self, report: Report, lasted: float) -> Course | None:
        """Returns the Course of the next attempt; None if no attempt follows. report, lasted: the report of the attempt
        that ended, and its seconds."""
        lost, plan = lost_hosts(report), replace(self.plan, attempt=self.plan.attempt + 1)
        after = self.attempts.after(
            report.read(RunSummary).end, len(lost), len(plan.spares), lasted, plan.request.least
        )
        if after is None:
            return None
        return Course(
            plan.without(lost) if after.replaces else plan, after.restarts, after.quick, lost if after.replaces else {}
        )

    @property
    def attempts(self) -> Attempts:
        return Attempts(self.plan.job.max_restarts, self.restarts, self.quick)


@dataclass(frozen=True)
class Ended:
    """Holds the report of an attempt that another attempt follows. restart: the fields of the Restart event; {} if none
    was emitted."""

    report: Report
    restart: dict[str, Any]


class Left(Interrupted):
    """Is raised if the user detaches between two attempts: the run goes on without this process."""


def begin(
    course: Course, last: RunRecord, folder: RunFolder, runtime: Runtime
) -> tuple[Plan, RunRecord, Mapping[str, Program]]:
    """Starts the attempt. Returns its plan, its record, and the program that waits on each node. Spares replace hosts
    on which the attempt cannot begin. Raises FleetError if too few hosts are left. Raises Interrupted if the user stops
    the run."""
    if runtime.cancel.is_set():
        raise Interrupted(BETWEEN)
    plan, until = course.plan, runtime.clock.monotonic() + course.attempts.pause
    with closing(Sessions(replace(runtime, emit=also_keeping(folder.keep, runtime.emit)))) as sessions:
        while True:
            before, checked = plan, False
            try:
                with ExitStack() as waiting:
                    plan, checked = check(plan, last, sessions, until, waiting), True
                    return _begin(plan, last, folder, sessions)
            except FleetError as error:
                plan, failed = go_on(plan, error)
                if checked:
                    plan = replace(plan, attempt=plan.attempt + 1)  # that attempt has begun on some hosts
            spares = dict(zip(failed, (host.name for host in plan.hosts if host not in before.hosts), strict=False))
            for name, why in failed.items():
                runtime.emit(record_left_out(folder, name, why, spares.get(name)))


def _begin(
    plan: Plan, last: RunRecord, folder: RunFolder, sessions: Sessions
) -> tuple[Plan, RunRecord, Mapping[str, Program]]:
    runtime = sessions.runtime
    with step(runtime, "restart", len(plan.hosts)):
        if plan.hosts != last.hosts or not plan.facts:
            plan = preflight(plan, sessions)
        record = replace(
            plan.record(last.about["started"]).but(owner=last.about["owner"]), lease=last.lease, term=last.term
        )
        started = start_all(plan, record, sessions)
    try:
        folder.begin(record.attempt)
    except FleetError:
        why = "the head has no room for its logs"
        stop_all(plan, sessions, run_end("failure", why, EXIT_HOST_FAILED, who=whoami()))
        raise
    for host, answer in started.items():
        folder.event(NodeStarted(pid=answer["pid"], folder=answer["dir"], attempt=record.attempt), host=host)
    before = folder.aside(last.attempt)
    where = f"; logs of the last one are in {before}" if before.is_dir() else ""
    text = f"attempt {record.attempt}: ranks meet at {plan.world.master}{where}"
    event = Attempt(
        attempt=record.attempt,
        master=plan.world.master,
        world_size=record.world_size,
        first_ranks=record.first_ranks,
        started=record.about["started"],
    )
    runtime.emit(folder.notice("info", text, event))
    return plan, record, sessions.take_all(host.name for host in plan.hosts)


def check(plan: Plan, last: RunRecord, sessions: Sessions, until: float, waiting: ExitStack) -> Plan:
    """Checks that every host can be reached and that nothing of earlier attempts is left. Returns the plan with a free
    port. until: when the nodes' pause ends, by the runtime's clock. waiting: until it is closed, the nodes know of the
    run. Raises Left as soon as the user detaches. Raises Interrupted as soon as the user stops the run."""
    runtime, first, ports = sessions.runtime, plan.hosts[0].name, plan.ports
    hurry = Cancel()
    for latch in (runtime.cancel, runtime.detach):
        latch.on_set(hurry.set)

    def ask(host: Host) -> Ready:
        pause = max(0.0, until - runtime.clock.monotonic())
        spec: ReadySpec = {
            "run": plan.run_id,
            "attempt": plan.attempt,
            "ports": ports if host.name == first else [],
            "pause": pause,
            "part": part_of(plan.node(host.name), last),
        }
        timeout = pause + ANSWER_SECONDS + START_SECONDS
        try:
            program = waiting.enter_context(Program(sessions.get(host), "run.ready", spec))
            answer = first_message(program, Ready, timeout=timeout, cancel=hurry)
        except ConnectError:
            sessions.drop(host)
            late = runtime.clock.monotonic() >= until + CONNECT_SECONDS
            if late or runtime.clock.wait(hurry, RETRY_SECONDS):
                raise
            return ask(host)
        if answer["forbidden"]:
            hurry.set()
        nothing_left(answer, host)
        return answer

    answers, errors = sessions.each(plan.hosts, ask, "pause", hurry)
    if any(answer["forbidden"] for answer in answers.values()):
        raise Interrupted(STOPPED_MEANWHILE, kind="stop")
    if runtime.cancel.is_set():
        raise Interrupted(BETWEEN)
    if runtime.detach.is_set():
        raise Left("left between two attempts")
    if errors:
        raise as_one(errors, runtime.emit, NotReady, "")
    port = answers[first]["port"]
    if port is None:
        what = f"port {ports[0]} is taken" if plan.request.master_port else f"ports {ports} are all taken"
        raise HostFailed(what, host=first, hint=f"'fleet kill-port -w {first} {ports[0]}' shows who listens")
    return plan.refine(plan.facts, (plan.world.master_addr, port))
