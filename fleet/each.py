"""Runs a task on each host: connects, runs the task, closes the connection. All verbs that work host by host use this
module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing

from fleet import fanout
from fleet.answers.event import Refused
from fleet.codec import T
from fleet.errors import FleetError, Interrupted
from fleet.events import Emit, Finished, Notice, Round, Started
from fleet.inventory.nodeset import fold
from fleet.model import Host, Result
from fleet.rules.causes import by_cause
from fleet.runtime import Runtime
from fleet.transport.base import Session

Task = Callable[[Session, Host], Result]


def on_each(
    hosts: Sequence[Host],
    runtime: Runtime,
    task: Task,
    *,
    what: str = "",
    drain: float = fanout.DRAIN_SECONDS,
) -> tuple[Result, ...]:
    """Runs `task` on every host, on `runtime.fanout` hosts at a time. Returns the results in the order of `hosts`.

    Emits a Round, and Started and Finished for every host. what: the task, as text. An exception becomes Result.error.
    The error's kind is "internal" if the exception is no FleetError. After a cancel, a task has `drain` seconds to
    clean up before it is abandoned. Raises LimitError, before the start, if this machine cannot hold so many
    connections.
    """
    fanout.check_limits(len(hosts), runtime.fanout)

    def one(host: Host) -> Result:
        runtime.emit(Started(host.name, "connecting"))
        with closing(runtime.transport.connect(host, runtime.cancel)) as session:
            runtime.emit(Started(host.name, what))
            return task(session, host)

    return for_each_host(hosts, runtime, one, what, drain)


def for_each_host(
    hosts: Sequence[Host],
    runtime: Runtime,
    one: Callable[[Host], Result],
    what: str,
    drain: float = fanout.DRAIN_SECONDS,
) -> tuple[Result, ...]:
    """Runs `one` on every host, as on_each() does. `one` opens the connection and emits Started."""
    runtime.emit(Round(what, tuple(host.name for host in hosts)))
    results: dict[int, Result] = {}
    numbered = list(enumerate(hosts))
    for (index, host), outcome in fanout.run(
        numbered, lambda item: one(item[1]), limit=runtime.fanout, cancel=runtime.cancel, drain=drain
    ):
        result = outcome if isinstance(outcome, Result) else failed(host, outcome)
        results[index] = result
        runtime.emit(Finished(result))
    return tuple(results[index] for index in range(len(hosts)))


def answers_of(
    hosts: Sequence[Host], runtime: Runtime, work: Callable[[Host], T], what: str
) -> tuple[dict[str, T], dict[str, Result]]:
    """Returns (host -> the value that `work` returned, host -> the failed result), in the order of `hosts`."""
    answers: dict[str, T] = {}

    def one(host: Host) -> Result:
        runtime.emit(Started(host.name, what))
        answers[host.name] = work(host)
        return Result(host.name, ok=True)

    results = for_each_host(hosts, runtime, one, what)
    failures = {result.host: result for result in results if not result.ok}
    return {result.host: answers[result.host] for result in results if result.ok}, failures


def failed(host: Host, error: BaseException) -> Result:
    """Returns the Result of a host whose task raised an error."""
    if isinstance(error, KeyboardInterrupt):
        error = Interrupted("interrupted")
    if not isinstance(error, FleetError):
        error = FleetError(
            f"{type(error).__name__}: {error}", hint="a fault in fleet itself; -v shows where", kind="internal"
        ).with_traceback(error.__traceback__)
    if error.host is None:
        error.host = host.name
    return Result(host.name, ok=False, error=error)


def as_one(
    errors: Mapping[str, FleetError],
    emit: Emit,
    event: type[Refused],
    more: str = "",
    names: Iterable[str] = (),
) -> FleetError:
    """Returns the error that refuses a verb as a whole: the first host's cause, with all hosts that have the same
    cause.

    Emits the other causes as notices. In JSON, a notice has an `event` for each host. more: the consequence, as text.
    names: all hosts of the verb, also those without an error."""
    first = next(iter(errors.values()))
    main, *others = by_cause([(e, e.reason, e.hint) for e in errors.values()])
    for cause in others:
        emit(
            Notice(
                "error",
                f"host {_names(cause.whose)}: {cause.message}",
                None,
                cause.hint,
                tuple(event(host=e.host, kind=e.kind, message=e.reason, hint=e.hint) for e in cause.whose),
            )
        )
    return first.but(
        message=main.message + more,
        hint=main.hint,
        host=_names(main.whose),
        where=None,
        hosts={**dict.fromkeys(names), **errors},
    )


def _names(errors: Sequence[FleetError]) -> str:
    return fold(error.host for error in errors if error.host)
