"""Plans and runs tasks: one step after another, each on up to --fanout of its hosts at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from fabric.exceptions import GroupException
from invoke.context import Context
from invoke.exceptions import AuthFailure, CommandTimedOut, Exit, ThreadException, UnexpectedExit

from fleet import fanout
from fleet.answers.hosts import TaskEnded
from fleet.codec import T
from fleet.each import failed, for_each_host
from fleet.errors import EXIT_OK, DeadlineError, FleetError, HostFailed, Interrupted, Reason
from fleet.events import Started
from fleet.model import Host, Report, Result, exit_code_of
from fleet.ops.plans import Line
from fleet.runtime import Runtime
from fleet.spool import Spool
from fleet.tasks import connection
from fleet.tasks.files import Step, TaskFile, where_of
from fleet.tasks.ground import Sink, printed_by_host, printing_to, task_state

OnStep = Callable[[Step, Report], None]


@dataclass(frozen=True)
class TasksPlan:
    file: TaskFile
    steps: tuple[Step, ...]

    @property
    def hosts(self) -> tuple[Host, ...]:
        found = {host.name: host for step in self.steps for host in step.hosts}
        return tuple(found.values())

    def describe(self) -> dict[str, Any]:
        return {
            "file": str(self.file.path),
            "tasks": [
                {"task": step.name, "call": step.as_typed, "where": step.where, "hosts": [h.name for h in step.hosts]}
                for step in self.steps
            ],
        }

    def lines(self) -> Iterator[Line]:
        from fleet.inventory.nodeset import fold

        for step in self.steps:
            names = fold(host.name for host in step.hosts)
            on = {"here": "here, once", "each": f"on {names}", "group": f"once, with a group of {names}"}
            yield f"would run {step.as_typed} {on[step.where]}"


def run(plan: TasksPlan, runtime: Runtime, on_step: OnStep = lambda step, report: None) -> Report:
    """Runs the steps, up to the first one that fails. on_step: is called with each step and its report, when the step
    has ended."""
    results: dict[str, Result] = {}
    reports: list[Report] = []
    with printed_by_host():
        for step in plan.steps:
            running = _Running(plan.file, step, runtime)
            try:
                found = running.run()
            finally:
                task_state().close()
            results |= {result.host: result for result in found}
            report = Report("play", found, exit_code_of(found))
            reports.append(report)
            on_step(step, report)
            if running.over or not report.ok:
                break
    tasks = [
        {"task": step.name, "exit_code": report.exit_code, "hosts": report.as_json()["hosts"]}
        for step, report in zip(plan.steps, reports, strict=False)
    ]
    return Report("play", tuple(results.values()), reports[-1].exit_code if reports else EXIT_OK, {"tasks": tasks})


class _Running:
    """Runs one step. over: whether its task ended the whole play, by raising invoke's Exit."""

    def __init__(self, file: TaskFile, step: Step, runtime: Runtime) -> None:
        self.file, self.step, self.runtime = file, step, runtime
        self.spool = Spool()
        self.over = False
        self.config = file.config.clone()
        self.config.load_collection(file.tasks.configuration(step.call.called_as))
        self.config.load_shell_env()

    def run(self) -> tuple[Result, ...]:
        """Returns a result for each host of the step."""
        hosts = self.step.hosts
        # a step may have the same host twice, for two users
        made = {id(host): each for host, each in zip(hosts, self.step.connections, strict=True)}
        if self.step.where == "each":
            return for_each_host(hosts, self.runtime, lambda host: self._one(host, made[id(host)]), self.step.name)
        if self.step.where == "group":
            return self._bounded(lambda: self._group(hosts, made))
        self._bounded(self._here)
        return ()

    def _bounded(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`. A task's own loop may wait for anything, so fleet waits for it only for a short
        time after a Ctrl-C."""
        ((_, outcome),) = fanout.run([None], lambda _: work(), cancel=self.runtime.cancel)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _sink(self, host: Host) -> Sink:
        return Sink(host.name, self.runtime.emit, self.spool)

    def _one(self, host: Host, made: dict[str, Any]) -> Result:
        sink = self._sink(host)
        self.runtime.emit(Started(host.name, self.step.name))
        try:
            with printing_to(sink), connection.Connection(**made, config=self.config) as c:
                c._set(many=len(self.step.connections) > 1)
                self._call(c)
        except (Exception, SystemExit) as error:
            return self._ended(host, error, sink)
        return Result(host.name, True, 0, *sink.whole())

    def _group(self, hosts: tuple[Host, ...], made: dict[int, dict[str, Any]]) -> tuple[Result, ...]:
        call = self.step.call
        ended: dict[str, BaseException] = {}
        each: list[tuple[Host, Sink]] = [(host, self._sink(host)) for host in hosts]
        connections = []
        for host, sink in each:
            with printing_to(sink):  # the connection writes to this sink from now on
                connections.append(connection.Connection(**made[id(host)], config=self.config))
        with connection.Group.from_connections(connections) as group:
            try:
                call.task.body(group, *call.args, **call.kwargs)
            except GroupException as error:
                here = error.__traceback__  # an error of a connection has the traceback of its own thread
                ended = {c.known.name: what.with_traceback(here) for c, what in error.result.failed.items()}
            except (Exception, SystemExit) as error:
                raise self._as_error(error) from error
        return tuple(
            self._ended(host, ended[host.name], sink)
            if host.name in ended
            else Result(host.name, True, 0, *sink.whole())
            for host, sink in each
        )

    def _call(self, context: Context) -> None:
        call = self.step.call
        value = call.task(context, *call.args, **call.kwargs)
        if call.autoprint:
            print(value)

    def _here(self) -> None:
        try:
            self._call(Context(self.config))
        except Exit as error:
            if error.code:
                raise self._as_error(error) from error
            self.over = True
            print(error.message or "", file=sys.stderr, end="\n" if error.message else "")
        except (Exception, SystemExit) as error:
            raise self._as_error(error) from error

    # -- how it ended --------------------------------------------------------------------------------------
    def _ended(self, host: Host, error: BaseException, sink: Sink) -> Result:
        status = None if self.runtime.cancel.is_set() else _status(error)
        if status is None:
            out, err = sink.whole()
            return replace(failed(host, self._as_error(error, host.name)), stdout=out, stderr=err)
        where = where_of(error, self.file.path.resolve())
        ended = TaskEnded(where)
        if isinstance(error, UnexpectedExit):
            ended = replace(ended, command=error.result.command)
            if error.result.hide:
                sink.write("stderr", str(error).strip() + "\n")
        elif isinstance(error, Exit):
            self.over = True
            if error.message:
                sink.write("stderr", error.message + "\n")
        elif isinstance(error, SystemExit) and isinstance(error.code, str):
            sink.write("stderr", error.code + "\n")
        return Result(host.name, status == 0, status, *sink.whole(), answer=ended)

    def _as_error(self, error: BaseException, host: str | None = None) -> FleetError:
        """Returns the error that ended a task, as one of fleet's."""
        if isinstance(error, FleetError):
            reported = error
        else:
            reported = Interrupted("interrupted") if self.runtime.cancel.is_set() else self._as_fleet_error(error)
            reported.__cause__ = error
        if host is not None and reported.host not in (None, host):  # the task opened a connection to another host
            return reported.but(message=Reason("{there}: ", there=reported.host) + reported.message, host=host)
        return reported

    def _as_fleet_error(self, error: BaseException) -> FleetError:
        if isinstance(error, ThreadException) and error.exceptions:  # raised by threads that read a command's output
            error = error.exceptions[0].value
        where = where_of(error, self.file.path.resolve())
        if isinstance(error, CommandTimedOut):
            return DeadlineError(
                f"{error.result.command}: still running after {error.timeout:g} s; ended there", where=where
            )
        if isinstance(error, AuthFailure):
            return HostFailed(
                "sudo does not take the password",
                where=where,
                kind="sudo",
                hint="sudo.password in fabric.yaml, $FABRIC_SUDO_PASSWORD, or --prompt-for-sudo-password",
            )
        if isinstance(error, GroupException):
            names = ", ".join(c.original_host for c in error.result.failed)
            first = next(iter(error.result.failed.values()))
            if isinstance(first, FleetError):
                return first
            return HostFailed(f"a group failed on {names}: {first!r}", where=where, kind="task")
        status = _status(error)
        if status is not None:
            message = error.message if isinstance(error, Exit) else str(error)
            return HostFailed(message or f"exit status {status}", where=where, kind="task").but(exit_code=status or 1)
        return HostFailed(
            f"{type(error).__name__}: {error}".strip().partition("\n")[0],
            where=where,
            kind="task",
            hint="-v shows its traceback",
        )


def _status(error: BaseException) -> int | None:
    """Returns the exit status that an error stands for, or None for an error without one."""
    if isinstance(error, UnexpectedExit):
        return int(error.result.exited)
    if isinstance(error, Exit):
        return int(error.code)
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else 1 if error.code else 0
    return None
