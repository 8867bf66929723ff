"""`launch --sync`: the code to every node before its part begins, unless a live run is in the way."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shlex import quote

from fleet.answers.run_events import NotSynced
from fleet.answers.sync import Synced
from fleet.each import as_one
from fleet.errors import HostFailed
from fleet.events import Notice
from fleet.inventory.nodeset import fold
from fleet.model import Host, grouped
from fleet.ops.run.plan.findings import beside, refuse, unsent
from fleet.ops.run.plan.plan import Plan
from fleet.ops.sessions import START_SECONDS, Sessions
from fleet.protocol.messages.run import LiveRun, Neighbours, NeighboursSpec
from fleet.requests.sync import Sync
from fleet.runtime import Runtime
from fleet.transport.program import call


def sync_code(plan: Plan, runtime: Runtime) -> None:
    """--sync: the head's current folder to every node's workdir; raises the first host's error, nothing starts."""
    from fleet.ops import sync

    leave_alone(plan, runtime)
    request = plan.request
    where = {n.host.name: n.workdir for n in plan.nodes}
    report = sync.run(
        sync.SyncPlan(
            plan.hosts,
            Path(request.cwd),
            where,
            Sync(force=request.force, max_delete=request.max_delete),
            hint="'fleet launch --sync --force' replaces it; --workdir names another folder",
            command=("fleet launch --sync" + " --force" * request.force, f" {quote(request.script)}"),
        ),
        runtime,
    )
    errors = {r.host: r.error or HostFailed("sync failed there", host=r.host) for r in report.results if not r.ok}
    if errors:
        every = {r.host: errors.get(r.host) for r in report.results}
        raise as_one(errors, runtime.emit, NotSynced, "; nothing was started anywhere", every)
    for text, hosts in grouped((lost(r.read(Synced)), r.host) for r in report.results).items():
        if request.force and text:
            runtime.emit(Notice("warning", f"--force: {fold(hosts)}: {text}"))
    for name, why in unsent(plan, plan.job.args):
        runtime.emit(Notice("warning", f"the command names {name}, which is not sent, by {why}"))


def lost(done: Synced) -> str:
    """Returns what a sync removed on a host, as text."""
    return f"{done.deleted or 0} deleted, {done.overwritten or 0} replaced in {done.to}" if done.changed else ""


def leave_alone(plan: Plan, runtime: Runtime) -> None:
    """Before anything is replaced under a live run: what preflight would refuse for it."""
    if plan.request.share or not plan.request.preflight:
        return

    def ask(host: Host) -> list[LiveRun]:
        devices = None if host.devices is None else list(host.devices)
        spec: NeighboursSpec = {"run": plan.run_id, "devices": devices}
        return call(sessions.get(host), "run.neighbours", spec, Neighbours, timeout=START_SECONDS)["runs"]

    with closing(Sessions(runtime)) as sessions:
        runs, errors = sessions.each(plan.hosts, ask, "looking for other runs")
    if errors:
        every = {host.name: errors.get(host.name) for host in plan.hosts}
        raise as_one(errors, runtime.emit, NotSynced, "; nothing was started anywhere", every)
    refuse(plan, beside(plan, runs), {}, runtime.emit)
