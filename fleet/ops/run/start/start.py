"""Starts the supervisor of a run on each node. If one does not start, the others are stopped."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import replace

from fleet.answers.run_start_events import NotStarted, StepDone
from fleet.each import as_one
from fleet.errors import EXIT_INTERRUPTED, HostFailed, Interrupted, Occupied, PreflightError, Reason, UsageError
from fleet.events import Notice, Round
from fleet.inventory.nodeset import fold
from fleet.model import Host
from fleet.node.base.errors import Refused
from fleet.node.facts.containers import of_step
from fleet.node.facts.environment import working_folder
from fleet.node.facts.runtimes import file_runtime
from fleet.node.gang.ends import INTERRUPTED, run_end
from fleet.node.run.start.containers import mounted
from fleet.ops.run.follow.background import stop_in_background
from fleet.ops.run.kept.record import RunRecord
from fleet.ops.run.plan.findings import in_the_way, of_live_runs, refuse
from fleet.ops.run.plan.placement import NodePlan
from fleet.ops.run.plan.plan import Plan
from fleet.ops.sessions import START, START_SECONDS, STOP_SECONDS, Sessions
from fleet.protocol.messages import run, run_specs
from fleet.protocol.state import COMMAND, OF_RANKS
from fleet.rules.units import counted
from fleet.runtime import Runtime
from fleet.transport.base import Cancel, Transport
from fleet.transport.program import Program, call, last_message, text_of

NOT_BEGUN = "not-begun"  # kind of the error of a node that did not start because the first node failed
STOPPED_BEFORE = f"{INTERRUPTED}: 'fleet stop', before it began"
VERDICT_SECONDS = 8.0  # time limit for a node to record a verdict
SETTLE_SECONDS = 10.0  # no sync replaces the code for so long after the start, while ranks import it


@contextmanager
def step(runtime: Runtime, name: str, hosts: int, out: Sized = ()) -> Iterator[None]:
    """Reports how long a step before the start of ranks took, and removes its progress line. out: hosts that the step
    left out."""
    began = time.monotonic()
    yield
    hosts -= len(out)
    seconds = round(time.monotonic() - began, 3)
    runtime.emit(Round("", ()))
    runtime.emit(
        Notice(
            "info",
            f"{name}: {counted(hosts, 'host')}, {seconds:.1f} s",
            happened=(StepDone(step=name, hosts=hosts, seconds=seconds),),
        )
    )


def nothing_left(answer: run.Ready, host: Host) -> None:
    """Raises HostFailed if processes of the last attempt outlive SIGKILL."""
    if answer["left"]:
        raise HostFailed(f"processes that would not die: {answer['left'][:20]}", host=host.name, kind="stubborn")


def part_of(node: NodePlan, record: RunRecord) -> run_specs.Part:
    """Returns the description of the run that the node records, so that other heads can find and follow the run."""
    return {
        "host": node.host.name,
        "node_rank": node.node_rank,
        "ranks": list(node.ranks),
        "devices": None if node.host.devices is None else list(node.host.devices),
        "cwd": node.workdir,
        "lease": record.lease,
        "grace": record.grace,
        "node_timeout": record.node_timeout,
        "about": record.about,
    }


def supervise_spec(plan: Plan, node: NodePlan, record: RunRecord) -> run_specs.StartSpec:
    """Returns the spec of fleet/node/run/supervise.py. Values of variables are sent in it and nowhere else."""
    facts = plan.facts.get(node.host.name)
    code = facts.code if facts is not None and plan.request.preflight else None
    image = None if plan.contained else node.container
    return {
        **part_of(node, record),
        "lease": plan.request.lease,  # for --detach, the coordinator removes it later
        "run": plan.run_id,
        "argv": [arg if isinstance(arg, str) else arg.as_spec() for arg in node.start.argv],
        "env": dict(node.env),
        "env_expand": dict(node.env_expand),
        "unset": plan.request.unset,
        "python": plan.request.training_of(node.host)[0],
        "activate": node.activate,
        "container": {"image": image, "args": [*plan.request.container_args]} if image else None,
        "time": time.time(),
        "code": code and {"state": code[0], "digest": code[1], "settle": SETTLE_SECONDS},
        "files": {
            **plan.job.files,
            COMMAND: node.start.command_file(),
            **{name: (text_of(f"fleet.node.run.rank.{module}") or b"").decode() for name, module in OF_RANKS.items()},
        },
        "sample": plan.request.sample,
        "alone": plan.request.preflight and not plan.request.share and not record.attempt,
    }


def contained(plan: Plan, transport: Transport) -> Plan:
    """Returns the plan, with `contained` set if the transport starts the container. Slurm does: the whole step runs in
    the container. With other transports, supervisors start containers. Raises UsageError for a folder that cannot be
    mounted."""
    request, contain = plan.request, getattr(transport, "contain", None)
    if contain is None or not request.container:
        return plan
    folders = [working_folder(node.workdir) for node in plan.nodes]
    image, home = request.container, os.path.join(working_folder(None), "")
    if file_runtime(image):
        image = os.path.join(folders[0], os.path.expanduser(image))
    mounts = dict.fromkeys(path for folder in dict.fromkeys(folders) for path in mounted(folder))
    try:
        outside = [path for path in mounts if not os.path.join(path, "").startswith(home)]
        contain(of_step(image, [*request.container_args], outside))
    except Refused as error:
        raise UsageError(error.message, hint=error.hint) from None
    return replace(plan, contained=True)


def started(program: Program) -> run.Started | run.Neighbours:
    """Returns the first message of a supervisor. Raises HostFailed if the supervisor did not start. Raises Interrupted
    if `fleet stop` had forbidden the start."""
    answer = last_message(program, run.Started | run.Neighbours | run.NotStarted, timeout=START_SECONDS)
    if answer["event"] != "failed":
        return answer
    if answer.get("forbidden"):
        raise Interrupted(STOPPED_BEFORE)
    raise HostFailed(Reason.of_node(answer["message"]), host=program.host.name, hint=answer["hint"])


def start_all(plan: Plan, record: RunRecord, sessions: Sessions) -> Mapping[str, run.Started]:
    """Starts the supervisors. Returns host -> its "started" message. If a supervisor does not start, stops the others
    and raises."""
    occupied: dict[str, list[run.LiveRun]] = {}
    # The first node listens for the others. A rank or agent of torch that connects too early tries again after 0.25 to
    # 0.75 s, and all wait for it. So the others start after the first node, and only if that started.
    first_is_there, begun = threading.Event(), list[run.Started]()

    def start(host: Host) -> run.Started:
        if host.name != plan.hosts[0].name:
            program = Program(sessions.get(host), START, None)
            first_is_there.wait()
            if not begun:
                raise HostFailed("the first node did not begin", host=host.name, kind=NOT_BEGUN)
            return start_one(host, program)
        try:
            begun.append(start_one(host, Program(sessions.get(host), START, None)))
            return begun[0]
        finally:
            first_is_there.set()

    def start_one(host: Host, program: Program) -> run.Started:
        program.go_on(supervise_spec(plan, plan.node(host.name), record))
        sessions.keep(program)
        answer = started(program)
        if answer["event"] == "neighbours":
            occupied[host.name] = answer["runs"]
            raise PreflightError("another run is live there", host=host.name)
        return answer

    # an interrupt does not break off starts under way: fleet could not be sure to stop a node in an unknown state
    answers, errors = sessions.each(plan.hosts, start, "start")
    errors = {name: error for name, error in errors.items() if error.kind != NOT_BEGUN}
    if errors or sessions.runtime.cancel.is_set():
        end = run_end("interrupt", INTERRUPTED, EXIT_INTERRUPTED, who=record.about["owner"])
        if errors:
            host, error = max(errors.items(), key=lambda it: it[1].exit_code)
            end = run_end("failure", "another node did not start", error.exit_code, host, record.about["owner"])
        left = stop_all(plan, sessions, end)
        if left:  # the run may have started on these hosts, and with --detach it would go on without a head
            ends = stop_in_background(record, left, sessions.runtime, end)
            sessions.runtime.emit(Notice("warning", f"{fold(host.name for host in left)}: {ends}"))
        if sessions.runtime.cancel.is_set():
            raise Interrupted("interrupted while starting; everything was stopped again")
        for error in errors.values():
            if isinstance(error, Interrupted):
                raise error
        if occupied:  # another run started since preflight
            others = {name: error for name, error in errors.items() if name not in occupied}
            found, held = of_live_runs(plan, occupied), in_the_way(plan, occupied)
            try:
                refuse(plan, found, others, sessions.runtime.emit, held=held)
            except Occupied as error:
                error.may_run = bool(left)
                raise
        ordered = sorted(errors.items(), key=lambda it: -it[1].exit_code)
        names = [host.name for host in plan.hosts]
        raise as_one(dict(ordered), sessions.runtime.emit, NotStarted, "; everything was stopped again", names)
    return answers


def stop_all(plan: Plan, sessions: Sessions, end: run.Verdict) -> list[Host]:
    """Stops the run on all nodes. Forbids supervisors that have not started yet to start. Returns the hosts that could
    not be reached."""
    spec: run_specs.StopSpec = {"run": plan.run_id, "grace": 0.0, "reason": end["message"], "end": end}
    return _stop({**spec, "attempt": plan.attempt}, plan.hosts, sessions)[1]


def _stop(
    spec: run_specs.StopSpec, hosts: tuple[Host, ...], sessions: Sessions
) -> tuple[Mapping[str, run.Stopped], list[Host]]:
    def stop(host: Host) -> run.Stopped:
        limit = (
            VERDICT_SECONDS if spec.get("verdict") else STOP_SECONDS
        )  # a batch job at its time limit has few seconds left
        return call(sessions.get(host), "run.stop", spec, run.Stopped, timeout=spec["grace"] + limit)

    answers, errors = sessions.each(hosts, stop, "stop", Cancel())
    return answers, [host for host in hosts if host.name in errors]


def agree(
    run_id: str, verdict: run.Verdict, hosts: tuple[Host, ...], sessions: Sessions, attempt: int | None
) -> tuple[run.Verdict, list[Host]]:
    """Records a verdict on all nodes of a run that is over. If another head recorded one first, the first node's
    verdict counts. Returns (the verdict that counts, hosts that could not be reached). attempt: the last attempt to
    stop; None: no other attempt may follow."""
    spec: run_specs.StopSpec = {
        "run": run_id,
        "grace": 0.0,
        "reason": verdict["message"],
        "end": verdict,
        "verdict": verdict,
    }
    if attempt is not None:
        spec["attempt"] = attempt
    missed: list[Host] = []
    answers: Mapping[str, run.Stopped] = {}
    while hosts and not answers:
        answers, left = _stop(spec, hosts[:1], sessions)
        missed, hosts = missed + left, hosts[1:]
    for answer in answers.values():
        spec["verdict"] = answer.get("verdict") or verdict
    return spec["verdict"] or verdict, missed + _stop(spec, hosts, sessions)[1]
