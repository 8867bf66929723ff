"""Plans and runs `fleet exec`: one argv, or one shell line, on every host."""

from __future__ import annotations

import os
import shlex
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fleet.background import background
from fleet.each import on_each
from fleet.errors import DeadlineError, FleetError, Interrupted, LimitError, Reason, UsageError
from fleet.events import Event, Finished, Output
from fleet.inventory.fields import FieldError, host_name
from fleet.model import Host, Inventory, Report, Result, exit_code_of
from fleet.node.base.errors import on_os_error
from fleet.ops.plans import Line, PerHost, around
from fleet.own import given_folder, private
from fleet.requests.hosts import Exec
from fleet.runtime import Runtime
from fleet.spool import Spool, Stream
from fleet.transport.base import Session
from fleet.transport.command import Command, CommandSpec
from fleet.transport.input import Feed, distribute
from fleet.transport.program import SILENCE_SECONDS

STREAMS: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")
OUTDIR_ENDINGS = ("out", "err")  # endings of the files of STREAMS
END_SECONDS = 8.0  # time after the grace period, because command.sh waits 5 s for killed processes to be gone


@dataclass(frozen=True)
class ExecPlan:
    """Describes the commands. specs: host name -> its command."""

    hosts: tuple[Host, ...]
    request: Exec
    specs: Mapping[str, CommandSpec]

    def describe(self) -> dict[str, Any]:
        """Returns the plan as JSON, with the names of variables only."""
        return {
            name: {
                **({"argv": list(spec.argv)} if spec.argv is not None else {"line": spec.line}),
                **({} if spec.activate is None else {"activate": spec.activate}),
                **({} if spec.interpreter is None else {"env_of": spec.interpreter[0] or "python3"}),
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
    """Returns the command for each host. Contacts no host."""
    return ExecPlan(
        inventory.hosts,
        request,
        {
            host.name: CommandSpec(
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
    """Runs the plan on all hosts. Emits Output events as bytes arrive. Returns the results in inventory order. With
    standard input, it starts all hosts at once, whatever the fan-out, because the input cannot wait for later hosts."""
    request = plan.request
    # the input of one host may be 16 chunks ahead of another host's
    feeds = {name: Feed(16) for name in plan.specs if request.stdin is not None}
    places = {name: place for place, name in enumerate(plan.specs)}
    spool, outdir = Spool(), Outdir(request.outdir, plan.specs) if request.outdir else None
    if request.stdin is not None:
        background("input", partial(distribute, request.stdin, feeds.values()))

    def task(session: Session, host: Host) -> Result:
        streams = (Stream(spool), Stream(spool))
        error: FleetError | None = None
        mark = f"exec-{uuid.uuid4().hex}"  # unique to each host: two names may mean one machine
        spec = plan.specs[host.name]
        env = {**spec.env, "FLEET_HOST": host.name, "FLEET_RANK": str(places[host.name])}
        with (
            Command(session, replace(spec, env=env), mark, request.grace, feeds.get(host.name)) as command,
            # in another thread, because the signal handler must not wait for a node
            runtime.cancel.calling(lambda: background("end", command.end)),
        ):
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
                    error = _cut_short(command.left, request, host.name, interrupted=runtime.cancel.is_set())
            except DeadlineError:
                error = DeadlineError(
                    f"still running after {request.timeout:g} s; whether it ended there is not known",
                    host=host.name,
                    hint=_look(host.name),
                )
        status = command.status
        return Result(host.name, status == 0, status, streams[0].whole(), streams[1].whole(), error)

    def emit(event: Event) -> None:
        if isinstance(event, Finished) and event.result.host in feeds:  # also if the host was not reached
            feeds[event.result.host].over = True
        runtime.emit(event)

    wide = replace(runtime, emit=emit, fanout=max(runtime.fanout, len(feeds)))
    results = on_each(plan.hosts, wide, task, drain=request.grace + END_SECONDS)
    return Report("exec", results, exit_code_of(results))


def _cut_short(left: Sequence[tuple[int, str]], request: Exec, host: str, interrupted: bool) -> FleetError:
    """Returns the error of a command that was ended early. left: (pid, command) of each process that could not be
    ended. interrupted: whether Ctrl-C ended it, and not --timeout."""
    timed = request.timeout is not None and not interrupted
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


class Outdir:
    """Writes each host's output to its own files in a folder of this machine. Makes empty files first. If another user
    has put a file or a link in the place of one, it is replaced and not written through. Raises UsageError."""

    def __init__(self, folder: str | os.PathLike[str], hosts: Iterable[str]) -> None:
        self._folder = Path(folder)
        try:
            given_folder(self._folder, "--outdir")
            for name in hosts:
                for ending in OUTDIR_ENDINGS:
                    place = self._folder / f"{host_name(name)}.{ending}"
                    place.unlink(missing_ok=True)
                    place.open("xb").close()
        except FieldError as error:
            raise UsageError(f"--outdir: no file can be called so: {error.message}") from None
        except OSError as error:
            raise UsageError(f"--outdir: {error.filename}: {error.strerror}", hint="name a folder of yours") from None

    def add(self, host: str, stream: int, data: bytes) -> None:
        """Appends a host's output to its file. Raises LimitError if there is no room for it."""
        text, hint = f"{self._folder} takes no more output", "--outdir DIR writes elsewhere"
        with (
            on_os_error(LimitError, text, kind="room", hint=hint),
            open(self._folder / f"{host}.{OUTDIR_ENDINGS[stream]}", "ab", opener=private) as file,
        ):
            file.write(data)
