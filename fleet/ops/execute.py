"""`fleet exec`: one argv, or one shell line, on every host."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fleet.errors import DeadlineError
from fleet.events import Output
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.ops.each import on_each
from fleet.ops.runtime import Runtime
from fleet.spool import Spool, Stream
from fleet.transport.base import Session
from fleet.transport.program import Program

STREAMS = ("stdout", "stderr")
SILENCE_SECONDS = 15.0
NODE_SILENCE_SECONDS = 60.0


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
    """host name -> the spec that fleet/remote/execute.py is fed."""

    specs: Mapping[str, Mapping[str, Any]]

    def describe(self) -> dict[str, Any]:
        """What --dry-run shows: values of variables stay out of it."""
        return {
            name: {**{k: spec[k] for k in ("argv", "line", "activate") if spec.get(k) is not None},
                   "env": sorted(spec["env"])}
            for name, spec in self.specs.items()
        }


def make_plan(inventory: Inventory, options: ExecOptions) -> ExecPlan:
    """Pure: what each host is to run. `mark` tags the processes, so that they can be found and ended."""
    return ExecPlan({
        host.name: {
            "argv": None if options.argv is None else list(options.argv),
            "line": options.line,
            "env": inventory.env_for(host),
            "activate": host.activate,
            "grace": options.grace,
            "silence": NODE_SILENCE_SECONDS,
        }
        for host in inventory.hosts
    })


def execute(inventory: Inventory, plan: ExecPlan, options: ExecOptions, runtime: Runtime) -> Report:
    """Run the plan everywhere; Output events as bytes come, results in inventory order."""
    mark = f"exec-{uuid.uuid4().hex}"
    spool = Spool()

    def task(session: Session, host: Host) -> Result:
        streams = (Stream(spool), Stream(spool))
        status: int | None = None
        error: DeadlineError | None = None
        deadline = None if options.timeout is None else time.monotonic() + options.timeout
        with Program(session, "execute", {**plan.specs[host.name], "mark": mark}) as program:
            try:
                for frame in program.frames(silence=SILENCE_SECONDS, deadline=deadline, cancel=runtime.cancel):
                    if frame.kind == "O":
                        if options.keep:
                            streams[bool(frame.stream)].add(frame.payload)
                        runtime.emit(Output(host.name, "stderr" if frame.stream else "stdout", frame.payload))
                    elif frame.kind == "X":
                        status = frame.json()["exit_status"]
            except DeadlineError:
                error = DeadlineError(
                    f"still running after {options.timeout:g} s; ended there", host=host.name,
                    hint="give it longer with --timeout",
                )
        return Result(host.name, status == 0, status, streams[0].whole(), streams[1].whole(), error)

    results = on_each(inventory.hosts, runtime, task)
    return Report("exec", results, exit_code_of(results))
