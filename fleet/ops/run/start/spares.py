"""Spare hosts: what a run goes on with when one of its own fails before it starts, or is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from fleet.answers.run_events import LeftOut
from fleet.answers.runs import NodeEnd, RunSummary
from fleet.codec import T
from fleet.errors import ConnectError, FleetError, Interrupted
from fleet.events import Event, Notice
from fleet.model import Report
from fleet.ops.run.kept.folder import RunFolder
from fleet.ops.run.plan.plan import Plan
from fleet.ops.run.start.preflight import preflight
from fleet.ops.sessions import Sessions
from fleet.runtime import Runtime

Failed = Mapping[str, FleetError]


def lost_hosts(report: Report) -> Failed:
    """The nodes that an attempt ended without: given up, or frozen for longer than the head waits."""
    failure = report.read(RunSummary).first_failure
    frozen = {failure.host: FleetError(failure.message)} if failure and failure.what == "frozen" else {}
    lost = [r for r in report.results if r.error is not None and r.read(NodeEnd).state == "lost"]
    return {**frozen, **{r.host: r.error for r in lost if r.error is not None}}


def go_on(plan: Plan, error: FleetError) -> tuple[Plan, Failed]:
    """The plan without the hosts that an error names; raises it where that leaves too few."""
    hosts = error.hosts or ({error.host: error} if error.host else {})
    failed = {name: each for name, each in hosts.items() if each is not None}
    if isinstance(error, Interrupted) or not failed:
        raise error
    if plan.request.least:  # who does not answer may come later; what is wrong with others, no wait mends
        after = plan.beginning_without(failed)
        if len(after.hosts) >= plan.request.least and all(isinstance(each, ConnectError) for each in failed.values()):
            return after, failed
    elif len(failed) <= len(plan.spares):
        return plan.without(failed), failed
    raise error


def with_enough(plan: Plan, runtime: Runtime, work: Callable[[Plan], T]) -> tuple[Plan, T, Failed]:
    """Do what comes before the start for hosts and spares alike. Those that fail are left out as long as enough remain;
    then it is done again, for all must fit together. The plan with which it went well, its answer, and who was left
    out."""
    out, emit, held = dict[str, FleetError](), runtime.emit, list[Event]()  # held until it is known whether they matter
    while plan.spares or plan.request.least:
        runtime.emit = lambda event: held.append(event) if isinstance(event, Notice) else emit(event)
        try:
            return plan, work(plan.whole()), out
        except FleetError as error:
            plan, failed = go_on(plan, error)
            out.update(failed)
            held[:] = _remarks(plan, failed)
        finally:
            runtime.emit = emit
            while held:
                emit(held.pop(0))
    return plan, work(plan), out


def preflight_all(draft: Plan, sessions: Sessions) -> tuple[Plan, Failed]:
    """The plan with what was found, of the spares as well; who was left out."""
    plan, whole, out = with_enough(draft, sessions.runtime, lambda each: preflight(each, sessions))
    if not draft.spares:
        return whole, out
    return plan.refine(whole.facts, (whole.world.master_addr, whole.world.master_port)), out


def _remarks(plan: Plan, failed: Failed) -> Iterator[Notice]:
    for name, why in failed.items():
        fewer = f"starts with {len(plan.hosts)} of {len(plan.nodes)} nodes ({name}: {why.message})"
        yield Notice("warning", fewer if plan.request.least else left_out(name, why), name, why.hint)


def left_out(host: str, why: FleetError) -> str:
    return f"{host} is left out: {why.message}"


def record_left_out(folder: RunFolder, host: str, why: FleetError, spare: str | None = None) -> Notice:
    """A line of events.jsonl; returns what is printed of it. spare: takes its place."""
    text = left_out(host, why) + (f"; {spare} takes its place" if spare else "")
    return folder.notice("warning", text, LeftOut(kind=why.kind, spare=spare), host, why.hint)
