"""Each host: connect, do, close. What every verb that works host by host is built on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fleet import fanout
from fleet.answers.event import Refused
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
    """Run `task` on every host, `runtime.fanout` at a time; results in the order of `hosts`.

    Emits a Round, and Started and Finished for every host. what: what the task does, as text. A FleetError becomes
    Result.error; so does anything else, with kind "internal". The connection is closed as soon as a host is done.
    After a cancel a task has `drain` seconds to clean up before it is abandoned. Raises LimitError before the start
    when this machine cannot hold so many connections.
    """
    fanout.check_limits(len(hosts), runtime.fanout)

    def one(host: Host) -> Result:
        runtime.emit(Started(host.name, "connecting"))
        session = runtime.transport.connect(host, runtime.cancel)
        runtime.emit(Started(host.name, what))
        try:
            return task(session, host)
        finally:
            session.close()

    return over(hosts, runtime, one, what, drain)


def over(
    hosts: Sequence[Host],
    runtime: Runtime,
    one: Callable[[Host], Result],
    what: str,
    drain: float = fanout.DRAIN_SECONDS,
) -> tuple[Result, ...]:
    """Does what on_each does, where `one` makes the connection and emits Started."""
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


def failed(host: Host, error: BaseException) -> Result:
    """The Result of a host on which something was raised."""
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
    hosts: Mapping[str, FleetError | None] | None = None,
) -> FleetError:
    """Returns the error that refuses a verb as a whole: the first host's cause, with every host that shares it. Other
    causes are emitted first, as notices; JSON has an `event` for each host. more: what it led to. hosts: what is wrong
    with each, where that is not `errors`."""
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
        message=main.message + more, hint=main.hint, host=_names(main.whose), where=None, hosts=hosts or errors
    )


def _names(errors: Sequence[FleetError]) -> str:
    return fold(error.host for error in errors if error.host)
