"""Judges the facts of a preflight by the rules of `fleet check`, and reports the findings for a launch."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from fleet.answers.run_start_events import Found, Unreachable
from fleet.codec import plain
from fleet.delivery.ignore import missed, why_not_sent
from fleet.each import as_one
from fleet.engines import engine
from fleet.errors import EXIT_PREFLIGHT, FleetError, Interrupted, Occupied, PreflightError
from fleet.events import Emit, Event, Notice, silent
from fleet.model import Job
from fleet.ops.run.plan.here import HeadCode, names_of
from fleet.ops.run.plan.placement import NodePlan
from fleet.ops.run.plan.plan import Plan
from fleet.protocol.messages.run import LiveRun
from fleet.protocol.state import meet
from fleet.rules.judge import applied, by_cause_and_severity, causes_of, ignored, in_full, silenced
from fleet.rules.neighbours import LIVE
from fleet.rules.rule import Finding, Part, Want
from fleet.rules.units import counted
from fleet.rules.view import view

DEADLINE_SECONDS = 20.0  # time limit of the probe's steps on a node
SCRIPT = "script-missing"  # id of the rule about a script that is not on a node
# with these findings no start can succeed, so the hint does not propose --no-preflight
NEVER = frozenset((SCRIPT, "python-missing", "module-missing", "workdir-missing", "runs-folder"))


def findings(
    plan: Plan, facts: Mapping[str, Mapping[str, Any]], complete: bool = True, emit: Emit = silent
) -> list[Finding]:
    """Returns the findings of a launch. facts: host name -> the report of node/preflight/probe.py. complete: all nodes
    answered; if not, a failed connection to the master is no finding. emit: receives a notice of the findings that the
    inventory ignores."""
    here = HeadCode(plan)
    known = [(node.host.name, node) for node in plan.nodes if node.host.name in facts]
    views = {name: view(facts[name], want(plan, node, complete, here)) for name, node in known}
    quiet = silenced(views)
    _show_silenced([each for each in quiet if each.severity != "info"], emit)
    return [
        replace(each, remedy=_script_hint(plan) or each.remedy) if each.id == SCRIPT else each
        for each in causes_of(applied(views), quiet)
        if each.severity != "info"
    ]


def _show_silenced(quiet: Sequence[Finding], emit: Emit) -> None:
    """Emits one line about silenced findings."""
    if quiet:
        ids = ", ".join(dict.fromkeys(finding.id for finding in quiet))
        emit(Notice("warning", f"silenced: {counted(len(quiet), 'finding')} ({ids})", None, "'fleet check' says more"))


def _script_hint(plan: Plan) -> str | None:
    """Returns a hint about a script that is on no node; None if the current folder does not show why."""
    script, here, names = plan.job.script, Path(plan.request.cwd).absolute(), names_of(plan)
    for hint in filter(None, (missed(here, name) for name in names)):
        return hint
    found = any((here / name).exists() for name in names)
    there = os.path.normpath(here / script)
    if found and script.startswith("../"):
        above = os.path.commonpath([here, there])
        return f"a sync sends {here}, and it is not in there; cd {above}, and launch {os.path.relpath(there, above)}"
    if found and script.startswith("/"):
        below = os.path.relpath(script, here)
        return "that is a path of this machine" + f"; name it from {here} on: {below}" * (below[:3] != "../")
    if found or _on_path(plan.job):
        return None
    folder, siblings = os.path.dirname(names[0]), list[str]()
    with suppress(OSError):
        siblings = [os.path.join(folder, name) for name in sorted(os.listdir(here / folder))]
    near = get_close_matches(names[0], siblings, n=1)
    nowhere = f"it is not below {here} either" if names == [script] else None
    return f"it is not here either, did you mean {near[0]}?" if near else nowhere


def _on_path(job: Job) -> bool:
    """Returns whether the script is the name of a program on the PATH."""
    return "/" not in job.script and engine(job.engine).kind(job) == "program"


def unsent(plan: Plan, tokens: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields (argument, why) for arguments that name files of the current folder which a sync does not send."""
    here = Path(plan.request.cwd).absolute()
    for arg in dict.fromkeys(tokens):
        name = os.path.relpath(here / arg.rpartition("=")[2], here)
        if not name.startswith("../") and (why := why_not_sent(here, name)) is not None:
            yield name, str(why)


def late_findings(plan: Plan, host: str, facts: Mapping[str, Any]) -> list[Finding]:
    """Returns the findings about a host that joins a live run, compared with the facts of the others. After a --sync
    the code is not compared: the folder has a runs/ by now, and so another digest."""
    others: dict[str, Mapping[str, Any]] = {}
    for name, known in plan.facts.items():
        code = {} if plan.request.sync else {"code": known.code and {"digest": known.code[1]}}
        others[name] = {**{fact: value for fact, value in known.seen.items() if fact != "code"}, **code}
    found = in_full(findings(plan, {**others, host: facts}, complete=False))
    return [each for each in found if host in each.hosts]


def want(plan: Plan, node: NodePlan, met: bool, here: HeadCode) -> Want:
    """Returns what the plan requires of a host. met: all nodes answered. here: the code on the head. If the command
    line sets the number of ranks, the inventory's slots do not count."""
    host, job, chosen = node.host, plan.job, engine(plan.job.engine)
    by_slots = plan.request.ranks is None and plan.request.counted == "slots" and not chosen.ranks(job)
    ranks = None if by_slots else node.local_world_size
    on_gpus = plan.world.size > 1 and chosen.on_gpus(job)
    part = Part(
        node_rank=node.node_rank,
        ranks=ranks,
        kind=chosen.kind(job),
        met=met,
        program=job.script if _on_path(job) else None,
        on_gpus=on_gpus,
        share=plan.request.share,
        here=None if plan.request.as_there else here.script,
        ours=here.is_ours,
    )
    return Want(
        host.name,
        host.slots if by_slots else None,
        host.devices,
        chosen.needs(job),
        DEADLINE_SECONDS,
        part,
        ignored(host),
    )


def of_live_runs(plan: Plan, runs: Mapping[str, Sequence[LiveRun]]) -> list[Finding]:
    """Returns the findings about live runs alone. runs: host name -> live runs there."""
    found = findings(plan, {name: {"runs": there} for name, there in runs.items()}, complete=False)
    return [finding for finding in found if finding.id == LIVE]


def in_the_way(plan: Plan, runs: Mapping[str, Iterable[Mapping[str, Any]]]) -> frozenset[tuple[str, str]]:
    """Returns (host, run) of each live run whose devices the plan needs. runs: host name -> live runs there."""
    devices = {host.name: host.devices for host in (*plan.hosts, *plan.spares)}
    them = ((name, run) for name, there in runs.items() for run in there)
    return frozenset((name, run["run"]) for name, run in them if meet(devices.get(name), run["devices"]))


def _event(of: Finding) -> Found:
    return Found(id=of.id, severity=of.severity, hosts=of.hosts, message=of.message, hint=of.remedy)


def also_keeping(keep: Callable[[Notice], object], emit: Emit) -> Emit:
    """Returns an emit that also calls `keep` with findings of preflight."""

    def both(event: Event) -> None:
        if isinstance(event, Notice) and event.has(Found):
            keep(event)
        emit(event)

    return both


def refuse(
    plan: Plan,
    found: list[Finding],
    errors: Mapping[str, FleetError],
    emit: Emit,
    taken: Collection[str] = (LIVE,),
    held: frozenset[tuple[str, str]] = frozenset(),
) -> None:
    """Reports all findings. Raises PreflightError if one of them forbids the start. Raises the error of a host that
    could not be reached. With --wait, raises Occupied and reports nothing if only live runs forbid the start. errors:
    host -> why it could not be reached. taken: ids of rules about live runs. held: (host, run) of these runs."""
    if any(isinstance(error, Interrupted) for error in errors.values()):
        raise Interrupted("interrupted in preflight; nothing was started")
    full = in_full(found)
    causes = by_cause_and_severity(full)
    fatal = sum(severity == "error" for severity, _ in causes) if plan.request.preflight else 0
    wrong: dict[str, FleetError | None] = dict.fromkeys(host.name for host in plan.hosts)
    for finding in found if fatal else ():
        for name in finding.hosts if finding.severity == "error" else ():
            wrong[name] = wrong[name] or PreflightError(finding.message, hint=finding.remedy, host=name)
    wrong.update(errors)
    if plan.request.wait and fatal and not errors and all(f.id in taken for f in found if f.severity == "error"):
        occupied = Occupied("; ".join(cause.message for severity, cause in causes if severity == "error"))
        occupied.hosts, occupied.held = wrong, held
        raise occupied
    for severity, cause in causes:
        level = severity if plan.request.preflight else "warning"
        emit(Notice(level, cause.message, None, cause.hint, tuple(map(_event, cause.whose))))
    if rest := [finding for finding in found if finding not in full]:
        ids = ", ".join(dict.fromkeys(finding.id for finding in rest))
        what, hint = f"{counted(len(rest), 'finding')} that may slow or spoil the run: {ids}", "'fleet check' says more"
        emit(Notice("warning", what, None, hint, tuple(map(_event, rest))))
    if errors:
        ordered = dict(sorted(errors.items(), key=lambda it: it[1].exit_code == EXIT_PREFLIGHT))
        raise as_one(ordered, emit, Unreachable, "; nothing was started anywhere").but(hosts=wrong)
    if fatal:
        refusal = PreflightError(
            f"preflight refused, {counted(fatal, 'finding')}; nothing was started anywhere",
            hint=None if any(each.id in NEVER for each in full) else "--no-preflight starts in spite of them",
        )
        refusal.hosts = wrong
        refusal.findings = [plain(finding) for finding in found if finding.severity == "error"]
        raise refusal
