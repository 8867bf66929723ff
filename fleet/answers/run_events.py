"""Defines the events of a run, a class for each kind. The fields are its JSON; docs/json.md is made from the
docstrings.

A new kind is a class here; its docstring names its fields, in backticks. Kinds and fields may be added without a new
PROTOCOL. Removing one, or changing its meaning, needs a new PROTOCOL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from fleet.answers import run_start_events as run_start_events  # whose kinds of_record reads, too
from fleet.answers.event import FILE, KINDS, Begun, RunEvent
from fleet.answers.runs import FirstFailure
from fleet.codec import from_json, where_known

COMMON = ("event", "time", "level", "host", "message")


def of_record(record: Mapping[str, Any]) -> RunEvent:
    """Returns the event of a record that as_json() made. Raises KeyError or ValueError for a record that is no
    event."""
    made: RunEvent = from_json(KINDS[record["event"]], record)
    known = {*COMMON, *(it.name for it in fields(made))}
    return replace(made, more={name: value for name, value in record.items() if name not in known})


# -- while they run ----------------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Status(RunEvent, event="status"):
    """a node's state changed: `state`; after its end `reason`, `engine_status`, `signal`, `left` (pids that would not
    die), `disk_full`"""

    state: str | None = None
    reason: str | None = None
    engine_status: int | None = None
    signal: int | None = None
    left: Sequence[int] = ()
    disk_full: bool | None = where_known()


@dataclass(frozen=True, kw_only=True)
class RankOver(RunEvent, event="rank"):
    """a rank ended: `rank`, `node_rank`, `local_rank`, `status`, `signal`, `attempt`"""

    rank: int
    node_rank: int
    local_rank: int | None
    status: int | None
    signal: int | None
    attempt: int


@dataclass(frozen=True, kw_only=True)
class SlowHost(RunEvent, event="slow-host"):
    """the others wait for the host in `hosts`, or, of two, for the link from the first to the second: `evidence`"""

    hosts: Sequence[str]
    evidence: str


@dataclass(frozen=True, kw_only=True)
class Advised(RunEvent, event="advice"):
    """the run reports a mistake that ends nothing, or its silence: `id`, `remedy`"""

    id: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Stalled(RunEvent, event="stalled"):
    """no rank has written anything for the time of --stall-timeout: `seconds`; `ranks`: those that run"""

    seconds: float
    ranks: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class StacksTaken(RunEvent, event="stacks"):
    """the places of ranks that are silent, or that others waited for in vain: `places`, each with its `ranks`, `hosts`,
    `at`, `odd`; `file`: their stacks; `hang`: the collective that ranks wait in, where flight recorders show it"""

    file: str | None = None
    places: Sequence[Mapping[str, Any]] = ()
    hang: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class WentOn(RunEvent, event="went-on"):
    """a run that was reported as stalled goes on"""


@dataclass(frozen=True, kw_only=True)
class BuildLock(RunEvent, event="build-lock"):
    """ranks wait for `locks` that no process holds any more"""

    locks: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Remark(RunEvent):
    """The base of events about a node's connection, or about this machine's disk."""

    reason: str | None = where_known()


@dataclass(frozen=True, kw_only=True)
class Dropped(Remark, event="dropped"):
    """the connection to a node was lost: `reason`; it is tried again"""


@dataclass(frozen=True, kw_only=True)
class Resumed(Remark, event="resumed"):
    """the connection to a node is back"""


@dataclass(frozen=True, kw_only=True)
class Blocked(Remark, event="blocked"):
    """this machine's disk takes no logs: `reason`"""


@dataclass(frozen=True, kw_only=True)
class Unblocked(Remark, event="unblocked"):
    """this machine's disk takes logs again"""


@dataclass(frozen=True, kw_only=True)
class Full(RunEvent, event="full"):
    """a node's disk is full: what its ranks write waits for room, and is lost if that lasts"""


@dataclass(frozen=True, kw_only=True)
class Room(RunEvent, event="room"):
    """a node's disk has room again"""


@dataclass(frozen=True, kw_only=True)
class Gap(RunEvent, event="gap"):
    """so many `bytes` that a `rank` wrote are in no log, as its node's disk did not take them; or so many of a log
    (`file`) are not here, as its node keeps no more"""

    bytes: int
    rank: int | None = where_known()
    file: str | None = where_known()


# -- nodes that are lost, runs that end or begin again -----------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Alone(RunEvent, event="alone"):
    """all nodes are silent at once, and are waited for"""


@dataclass(frozen=True, kw_only=True)
class Lost(RunEvent, event="lost"):
    """a node is given up: `kind` of the error"""

    kind: str


@dataclass(frozen=True, kw_only=True)
class UnknownNode(RunEvent, event="unknown"):
    """a node is silent; this process only watches the run, and so ends nothing: `kind` of the error"""

    kind: str


@dataclass(frozen=True, kw_only=True)
class Away(RunEvent, event="away"):
    """an elastic run goes on without a node: `left`, how many there are now"""

    left: int | None = where_known()


@dataclass(frozen=True, kw_only=True)
class Back(RunEvent, event="back"):
    """a node that was away takes part again: `attempt` of its part of the run"""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class StopAll(RunEvent, event="stop"):
    """all nodes are being stopped: `reason`, `grace`"""

    reason: str
    grace: float | None


@dataclass(frozen=True, kw_only=True)
class Restart(RunEvent, event="restart"):
    """all ranks will be started again: `attempt`, which of `max_restarts` it is (`restart`), and what ended the last
    one: `rank`, `exit_code`, `signal`, `what`, `seconds`, `log`; `replaced`: the hosts in whose place spares are, each
    with the reason"""

    attempt: int
    restart: int
    max_restarts: int
    rank: int | None
    exit_code: int
    signal: int | None
    what: str
    replaced: Mapping[str, str]
    seconds: float
    log: str


@dataclass(frozen=True, kw_only=True)
class LeftOut(RunEvent, event="left-out"):
    """a host is not fit for the run, or for another attempt: a spare takes its place, or an elastic run begins without
    it; `kind` of the error; `spare`: who takes its place"""

    kind: str
    spare: str | None


@dataclass(frozen=True, kw_only=True)
class Attempt(Begun, event="attempt"):
    """all ranks have been started again: `attempt`, `master`, `world_size`, `first_ranks`, `started` (when the run
    was)"""

    attempt: int
    master: str


@dataclass(frozen=True, kw_only=True)
class NoRestart(RunEvent, event="no-restart"):
    """all ranks were to be started again, and could not be"""


@dataclass(frozen=True, kw_only=True)
class Stubborn(RunEvent, event="stubborn"):
    """a node did not stop in time"""


@dataclass(frozen=True, kw_only=True)
class Incomplete(RunEvent, event="incomplete"):
    """a node's logs are not complete here"""


@dataclass(frozen=True, kw_only=True)
class Stays(RunEvent, event="stays"):
    """a background process ends the run on a node, once that answers"""


@dataclass(frozen=True, kw_only=True)
class Superseded(RunEvent, event="superseded"):
    """a process on another machine leads the run now; this one only watches it"""


@dataclass(frozen=True, kw_only=True)
class Notifies(RunEvent, event="notifies", place=FILE):
    """the line of `--notify` starts, after the end of this `attempt`: it is started no other time"""

    attempt: int


@dataclass(frozen=True, kw_only=True)
class Notified(RunEvent, event="notified"):
    """the line of `--notify` has ended: `exit_code`, -n for signal n, null where it did not end by itself"""

    exit_code: int | None


@dataclass(frozen=True, kw_only=True)
class Detached(RunEvent, event="detached"):
    """the run goes on by itself; process `pid` collects its logs"""

    pid: int


# -- only in events.jsonl ----------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Cleaned(RunEvent, event="cleaned", place=FILE):
    """a process that went on in the background has ended the run on a node: `complete` where its logs are, too"""

    complete: bool


@dataclass(frozen=True, kw_only=True)
class RunOver(RunEvent, event="summary", place=FILE):
    """the run is over: `exit_code`, `first_failure`"""

    exit_code: int
    first_failure: FirstFailure | None


# events on stdout that have no class here
OTHERS = {
    "notice": "something else worth saying: `level`, `message`, `hint`",
    "summary": "the last line, with all that is below",
}
