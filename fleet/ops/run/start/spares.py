"""Replaces hosts of a run by spares, if they fail before the start or are lost; an elastic run goes on without them."""

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
    """Returns the nodes that an attempt lost: given up, or frozen for longer than the head waits."""
    failure = report.read(RunSummary).first_failure
    frozen = {failure.host: FleetError(failure.message)} if failure and failure.what == "frozen" else {}
    lost = [r for r in report.results if r.error is not None and r.read(NodeEnd).state == "lost"]
    return {**frozen, **{r.host: r.error for r in lost if r.error is not None}}


def go_on(plan: Plan, error: FleetError) -> tuple[Plan, Failed]:
    """Returns (the plan without the hosts that failed, host -> error of these hosts). error: names the hosts that
    failed. Raises it if too few hosts are left."""
    hosts = error.hosts or ({error.host: error} if error.host else {})
    failed = {name: each for name, each in hosts.items() if each is not None}
    if isinstance(error, Interrupted) or not failed:
        raise error
    if plan.request.least:  # a host that does not answer may join later; any other error is raised
        after = plan.beginning_without(failed)
        if len(after.hosts) >= plan.request.least and all(isinstance(each, ConnectError) for each in failed.values()):
            return after, failed
    elif len(failed) <= len(plan.spares):
        return plan.without(failed), failed
    raise error


def with_enough(plan: Plan, runtime: Runtime, work: Callable[[Plan], T]) -> tuple[Plan, T, Failed]:
    """Runs `work` for hosts and spares. If hosts fail and enough others remain, runs `work` again without the failed
    hosts, because it compares hosts with each other. Returns (the plan that worked, the result of `work`, host -> error
    of the hosts that were left out)."""
    out, emit, held = dict[str, FleetError](), runtime.emit, list[Event]()  # notices are held until `work` ended well
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
    """Returns (the plan with the facts of hosts and spares, host -> error of the hosts that were left out)."""
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
    """Writes a line of events.jsonl. Returns the notice to print. spare: the host that takes the place of `host`."""
    text = left_out(host, why) + (f"; {spare} takes its place" if spare else "")
    return folder.notice("warning", text, LeftOut(kind=why.kind, spare=spare), host, why.hint)
