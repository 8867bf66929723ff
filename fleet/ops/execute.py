"""`fleet exec`: one argv, or one shell line, on every host."""

from __future__ import annotations

import shlex
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.each import on_each
from fleet.errors import DeadlineError, FleetError, Interrupted, Reason
from fleet.events import Output
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.plans import Line, PerHost, around
from fleet.protocol.frames import EXIT, MESSAGE, OUTPUT
from fleet.protocol.messages.execute import Cut
from fleet.runtime import Runtime
from fleet.spool import Spool, Stream
from fleet.transport.base import Session
from fleet.transport.program import Program

STREAMS = ("stdout", "stderr")
SILENCE_SECONDS = 15.0
NODE_SILENCE_SECONDS = 60.0
END_SECONDS = 8.0  # behind the grace, what is killed has 5 s to go


@dataclass(frozen=True)
class ExecOptions:
    """Exactly one of argv and line. timeout: seconds the command may run on each host, None for ever. keep: have what
    it prints in the results, too."""

    argv: tuple[str, ...] | None = None
    line: str | None = None
    timeout: float | None = None
    grace: float = 2.0
    keep: bool = True


@dataclass(frozen=True)
class ExecPlan:
    """specs: host name -> what fleet/node/run/execute.py is fed."""

    hosts: tuple[Host, ...]
    options: ExecOptions
    specs: Mapping[str, Mapping[str, Any]]

    def describe(self) -> dict[str, Any]:
        """What --dry-run shows: values of variables stay out of it."""
        return {
            name: {
                **{k: spec[k] for k in ("argv", "line", "activate") if spec.get(k) is not None},
                "env": sorted(spec["env"]),
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


def plan(inventory: Inventory, options: ExecOptions) -> ExecPlan:
    """Pure: what each host is to run. `mark` tags the processes, so that they can be found and ended."""
    return ExecPlan(
        inventory.hosts,
        options,
        {
            host.name: {
                "argv": None if options.argv is None else list(options.argv),
                "line": options.line,
                "env": inventory.env_for(host),
                "activate": host.activate,
                "grace": options.grace,
                "silence": NODE_SILENCE_SECONDS,
                "timeout": options.timeout,
            }
            for host in inventory.hosts
        },
    )


def run(plan: ExecPlan, runtime: Runtime) -> Report:
    """Run the plan everywhere; Output events as bytes come, results in inventory order."""
    options = plan.options
    mark = f"exec-{uuid.uuid4().hex}"
    spool = Spool()

    def task(session: Session, host: Host) -> Result:
        streams = (Stream(spool), Stream(spool))
        status: int | None = None
        error: FleetError | None = None
        deadline = None if options.timeout is None else time.monotonic() + options.timeout + options.grace + END_SECONDS
        with Program(session, "run.execute", {**plan.specs[host.name], "mark": mark}) as program:
            # in a thread of its own: a signal handler waits for no node
            undo = runtime.cancel.on_set(
                lambda: threading.Thread(target=program.send, args=({"op": "end"},), daemon=True).start()
            )
            try:
                for frame in program.frames(silence=SILENCE_SECONDS, deadline=deadline):
                    if error is not None:
                        break
                    if frame.kind == OUTPUT:
                        if options.keep:
                            streams[bool(frame.stream)].add(frame.payload)
                        runtime.emit(Output(host.name, "stderr" if frame.stream else "stdout", frame.payload))
                    elif frame.kind == EXIT:
                        status = frame.json()["exit_status"]
                    elif frame.kind == MESSAGE:
                        error = _cut_short(frame.decode(Cut), options, host.name)
            except DeadlineError:
                error = DeadlineError(
                    f"still running after {options.timeout:g} s; whether it ended there is not known",
                    host=host.name,
                    hint=_look(host.name),
                )
            finally:
                undo()
        return Result(host.name, status == 0, status, streams[0].whole(), streams[1].whole(), error)

    results = on_each(plan.hosts, runtime, task, drain=options.grace + END_SECONDS)
    return Report("exec", results, exit_code_of(results))


def _cut_short(said: Cut, options: ExecOptions, host: str) -> FleetError:
    """What a node says of the end that it made of the command."""
    left = said["left"]
    timed = said["why"] == "timeout" and options.timeout is not None
    begin = f"still running after {options.timeout:g} s; " if timed else "interrupted; "
    kind = DeadlineError if timed else Interrupted
    if not left:
        return kind(begin + "ended there", host=host, hint="give it longer with --timeout" if timed else None)
    names = ", ".join(f"pid {pid} ({command[:100]})" for pid, command in left)
    return kind(
        Reason.of_node(f"{begin}not all of it could be ended, there is left: {names}"), host=host, hint=_look(host)
    )


def _look(host: str) -> str:
    return f"another user's, or stuck in the kernel? fleet exec -w {host} -- ps -ef"
