"""Plans and runs `fleet exec`: one argv, or one shell line, on every host."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from fleet.background import background
from fleet.each import on_each
from fleet.errors import DeadlineError, FleetError, Interrupted, Reason
from fleet.events import Event, Finished, Output
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.outdir import Outdir
from fleet.ops.plans import Line, PerHost, around
from fleet.requests.exec import Exec
from fleet.runtime import Runtime
from fleet.spool import Spool, Stream
from fleet.transport.base import Session
from fleet.transport.command import Command, Words
from fleet.transport.input import Feed, distribute

STREAMS: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")
SILENCE_SECONDS = 15.0  # after which a host is lost
END_SECONDS = 8.0  # beyond the grace period: command.sh waits 5 s for killed processes to be gone


@dataclass(frozen=True)
class ExecPlan:
    """Describes what runs where. specs: host name -> the command."""

    hosts: tuple[Host, ...]
    request: Exec
    specs: Mapping[str, Words]

    def describe(self) -> dict[str, Any]:
        """Returns what --dry-run shows: values of variables are left out."""
        return {
            name: {
                **({"argv": list(spec.argv)} if spec.argv is not None else {"line": spec.line}),
                **({} if spec.activate is None else {"activate": spec.activate}),
                **({} if spec.within is None else {"env_of": spec.within[0] or "python3"}),
                "env": sorted(spec.env),
            }
            for name, spec in self.specs.items()
        }

    def lines(self) -> Iterator[Line]:
        yield PerHost(
            {
                name: [
                    f"would run {shlex.join(spec['argv'])}"
                    if "argv" in spec
                    else f"would run, in its shell: {spec['line']}",
                    *around(spec),
                ]
                for name, spec in self.describe().items()
            }
        )


def plan(inventory: Inventory, request: Exec) -> ExecPlan:
    """Returns the command for each host. Contacts none."""
    return ExecPlan(
        inventory.hosts,
        request,
        {
            host.name: Words(
                request.argv or None,
                request.shell,
                inventory.env_for(host),
                host.activate,
                (host.python or "", host.workdir or "~") if request.env_of else None,
            )
            for host in inventory.hosts
        },
    )


def run(plan: ExecPlan, runtime: Runtime) -> Report:
    """Runs the plan on all hosts. Emits Output events as bytes arrive; returns results in inventory order. With
    standard input it ignores the fan-out and starts all hosts at once: no part of the input can wait for a later
    host."""
    request = plan.request
    # 16 chunks: how far the input of one host may be ahead of another's
    feeds = {name: Feed(16) for name in plan.specs if request.stdin is not None}
    places = {name: place for place, name in enumerate(plan.specs)}
    spool, outdir = Spool(), Outdir(request.outdir, plan.specs) if request.outdir else None
    if request.stdin is not None:
        background("input", partial(distribute, request.stdin, feeds.values()))

    def task(session: Session, host: Host) -> Result:
        streams = (Stream(spool), Stream(spool))
        error: FleetError | None = None
        mark = f"exec-{uuid.uuid4().hex}"  # its own for each host: two names may lead to one machine
        spec = plan.specs[host.name]
        words = replace(spec, env={**spec.env, "FLEET_HOST": host.name, "FLEET_RANK": str(places[host.name])})
        with Command(session, words, mark, request.grace, feeds.get(host.name)) as command:
            # in a thread: the signal handler must not wait for a node
            undo = runtime.cancel.on_set(lambda: background("end", command.end))
            try:
                for number, data in command.output(
                    silence=SILENCE_SECONDS, timeout=request.timeout, patience=request.grace + END_SECONDS
                ):
                    if outdir is not None:
                        outdir.add(host.name, number, data)
                    if request.keep:
                        streams[number].add(data)
                    runtime.emit(Output(host.name, STREAMS[number], data))
                if command.left is not None:
                    error = _cut_short(command.left, request, host.name, asked=runtime.cancel.is_set())
            except DeadlineError:
                error = DeadlineError(
                    f"still running after {request.timeout:g} s; whether it ended there is not known",
                    host=host.name,
                    hint=_look(host.name),
                )
            finally:
                undo()
        status = command.status
        return Result(host.name, status == 0, status, streams[0].whole(), streams[1].whole(), error)

    def emit(event: Event) -> None:
        if isinstance(event, Finished) and event.result.host in feeds:  # also where the host was never reached
            feeds[event.result.host].over = True
        runtime.emit(event)

    wide = replace(runtime, emit=emit, fanout=max(runtime.fanout, len(feeds)))
    results = on_each(plan.hosts, wide, task, drain=request.grace + END_SECONDS)
    return Report("exec", results, exit_code_of(results))


def _cut_short(left: Sequence[tuple[int, str]], request: Exec, host: str, asked: bool) -> FleetError:
    """Returns the error of a command that was ended early. left: (pid, command) of each process that could not be
    ended. asked: Ctrl-C ended it, not --timeout."""
    timed = request.timeout is not None and not asked
    begin = f"still running after {request.timeout:g} s; " if timed else "interrupted; "
    kind = DeadlineError if timed else Interrupted
    if not left:
        return kind(begin + "ended there", host=host, hint="give it longer with --timeout" if timed else None)
    names = ", ".join(f"pid {pid} ({command[:100]})" for pid, command in left)
    return kind(
        Reason.of_node(f"{begin}not all of it could be ended, there is left: {names}"), host=host, hint=_look(host)
    )


def _look(host: str) -> str:
    return f"another user's, or stuck in the kernel? fleet exec -w {host} -- ps -ef"
