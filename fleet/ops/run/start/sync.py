"""Delivers code and packages to every node before its part begins, for `launch --sync` and `--wheels`. Refuses the
delivery if a live run is in the way."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from fleet.answers.run_start_events import NotSynced
from fleet.answers.sync import Synced
from fleet.each import as_one
from fleet.errors import HostFailed
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Host, Report, grouped
from fleet.ops.run.plan.findings import in_the_way, of_live_runs, refuse, unsent
from fleet.ops.run.plan.plan import Plan
from fleet.ops.sessions import START_SECONDS, Sessions
from fleet.protocol.messages.run import LiveRun, Neighbours
from fleet.protocol.messages.run_specs import NeighboursSpec
from fleet.requests.sync import Sync, SyncWheels
from fleet.runtime import Runtime
from fleet.transport.program import call

if TYPE_CHECKING:
    from fleet.ops.wheels import WheelsPlan


def deliver(plan: Plan, runtime: Runtime) -> None:
    """Delivers code for --sync, and packages for --wheels, to every node. If it fails on a host, raises an error, so
    that nothing is started."""
    packages = wheels_of(plan, plan.request.wheels) if plan.request.wheels else None  # raises before anything is sent
    refuse_live_runs(plan, runtime)
    if plan.request.sync:
        sync_code(plan, runtime)
    if packages is not None:
        from fleet.ops import wheels

        check_all(wheels.run(packages, runtime), runtime)


def wheels_of(plan: Plan, source: str) -> WheelsPlan:
    """Returns the plan by which --wheels installs into the Python of every node's ranks. Raises UsageError if the
    wheels are missing."""
    from fleet.ops import wheels

    request, script = plan.request, quote(plan.request.script)
    hosts = [replace(n.host, python=request.python or n.host.python) for n in plan.nodes if n.host in plan.hosts]
    install = SyncWheels(source, yes=request.force, force=request.force)
    hint = f"to replace it: fleet launch --wheels={quote(source)} --force {script}"
    return replace(wheels.plan(plan.inventory.only(hosts), install), hint=hint)


def check_all(report: Report, runtime: Runtime) -> None:
    """Raises an error if the delivery failed on a host."""
    # kind "held": the host did nothing, because another host failed
    errors = {r.host: r.error or HostFailed("sync failed there", host=r.host) for r in report.results if not r.ok}
    if errors := {it: error.but(host=it) for it, error in errors.items() if error.kind != "held"}:
        names = [r.host for r in report.results]
        raise as_one(errors, runtime.emit, NotSynced, "; nothing was started anywhere", names)


def sync_code(plan: Plan, runtime: Runtime) -> None:
    """Syncs the head's current folder to every node's workdir, for --sync."""
    from fleet.ops import sync

    request = plan.request
    where = {n.host.name: n.workdir for n in plan.nodes}
    report = sync.run(
        sync.SyncPlan(
            plan.hosts,
            Path(request.cwd),
            where,
            Sync(force=request.force, max_delete=request.max_delete),
            hint="'fleet launch --sync --force' replaces it; --workdir names another folder",
            command=("fleet launch --sync", f" {quote(request.script)}"),
        ),
        runtime,
    )
    check_all(report, runtime)
    for text, hosts in grouped((loss_text(r.read(Synced)), r.host) for r in report.results).items():
        if request.force and text:
            runtime.emit(Notice("warning", f"--force: {fold(hosts)}: {text}"))
    for name, why in unsent(plan, plan.job.args):
        runtime.emit(Notice("warning", f"the command names {name}, which is not sent, by {why}"))


def loss_text(done: Synced) -> str:
    """Returns a text about the files that a sync removed on a host; "" if there are none."""
    return f"{done.deleted or 0} deleted, {done.overwritten or 0} replaced in {done.to}" if done.changed else ""


def refuse_live_runs(plan: Plan, runtime: Runtime) -> None:
    """Raises an error if a live run uses the hosts. Preflight would refuse the launch, too, but only after the files of
    that run were replaced."""
    if plan.request.share or not plan.request.preflight:
        return

    def ask(host: Host) -> list[LiveRun]:
        devices = None if host.devices is None else list(host.devices)
        spec: NeighboursSpec = {"run": plan.run_id, "devices": devices}
        return call(sessions.get(host), "run.neighbours", spec, Neighbours, timeout=START_SECONDS)["runs"]

    with closing(Sessions(runtime)) as sessions:
        runs, errors = sessions.each(plan.hosts, ask, "looking for other runs")
    if errors:
        names = [host.name for host in plan.hosts]
        raise as_one(errors, runtime.emit, NotSynced, "; nothing was started anywhere", names)
    refuse(plan, of_live_runs(plan, runs), {}, runtime.emit, held=in_the_way(plan, runs))
