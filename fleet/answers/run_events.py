"""The events of a run: a class a kind, whose fields are its JSON. docs/json.md is made from their docstrings.

A new kind is a class here; its docstring names its fields, in backticks. Kinds and fields may be added while
PROTOCOL stays; what is taken away, or means something else, makes another PROTOCOL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fleet.answers.event import FILE, KINDS, STREAM, Refused, RunEvent
from fleet.answers.runs import FirstFailure
from fleet.codec import from_json, where_known
from fleet.protocol.state import PROTOCOL
from fleet.version import __version__

COMMON = ("event", "time", "level", "host", "message")


def of_record(record: Mapping[str, Any]) -> RunEvent:
    """Returns the event of which as_json() made the record. KeyError, ValueError for what is no event."""
    made: RunEvent = from_json(KINDS[record["event"]], record)
    known = {*COMMON, *(it.name for it in fields(made))}
    return replace(made, more={name: value for name, value in record.items() if name not in known})


# -- the way to running ranks ------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Version(RunEvent, event="version"):
    """the first: `version` of these events, `fleet`'s own"""

    version: int = PROTOCOL
    fleet: str = __version__


@dataclass(frozen=True, kw_only=True)
class Submitted(RunEvent, event="submitted"):
    """a batch system starts it by and by: `on` (as `--on` has it), `job` (its number there), `by`, `script`, `logs`,
    `asked` (the queue's options, which `--again` uses once more), `seal` (by which the user's fleet knows that it
    made the request)"""

    on: str
    job: str
    by: str
    script: str
    logs: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    seal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting(RunEvent, event="waiting", place=STREAM):
    """its job waits in the queue: `job`, `state` and `reason` as the queue names them, `begins` (when that is
    expected, or null)"""

    job: str
    state: str
    reason: str
    begins: float | None


@dataclass(frozen=True, kw_only=True)
class Planned(RunEvent, event="plan"):
    """what is started where: as `--dry-run` shows it"""

    lease: float | None


@dataclass(frozen=True, kw_only=True)
class Differs(RunEvent, event="differs"):
    """something is not as it was in the `run` that this one repeats: `hint`"""

    run: str
    hint: str | None


@dataclass(frozen=True, kw_only=True)
class Begun(RunEvent):
    """Base: ranks run from now on. first_ranks: of each host. started: when the run was, in seconds since the epoch."""

    world_size: int
    first_ranks: Mapping[str, int]
    started: float | None = where_known()


@dataclass(frozen=True, kw_only=True)
class Running(Begun, event="running"):
    """all nodes have started: `world_size`, `first_ranks` (of each host), `logs`"""

    logs: str


@dataclass(frozen=True, kw_only=True)
class Attached(Begun, event="attached"):
    """a head follows it that did not start it: `version`, `engine`, `world_size`, `first_ranks`, `logs`, `state`,
    `started` (when), `lease`, `leads`
    (else it only looks on)"""

    version: int = PROTOCOL
    engine: str | None = where_known()
    logs: str
    state: str
    lease: float | None
    leads: bool = False


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
class Advised(RunEvent, event="advice"):
    """the run reports a mistake that ends nothing, or its silence: `id`, `remedy`"""

    id: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class Stalled(RunEvent, event="stalled"):
    """no rank has written anything for as long as --stall-timeout: `seconds`, `ranks` (that run)"""

    seconds: float
    ranks: Sequence[int]


@dataclass(frozen=True, kw_only=True)
class StacksTaken(RunEvent, event="stacks"):
    """the places of ranks that are silent, or that others waited for in vain: `places`, each with its `ranks`, `hosts`,
    `at`, `odd`; `file`: their stacks"""

    file: str | None = None
    places: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True, kw_only=True)
class WentOn(RunEvent, event="went-on"):
    """a run that was reported as stalled goes on"""


@dataclass(frozen=True, kw_only=True)
class BuildLock(RunEvent, event="build-lock"):
    """ranks wait for `locks` that no process holds any more"""

    locks: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Remark(RunEvent):
    """Base: of a node's connection, or of this machine's disk."""

    reason: str | None = where_known()


@dataclass(frozen=True, kw_only=True)
class Dropped(Remark, event="dropped"):
    """the connection to a node was lost: `reason`; it is tried again"""


@dataclass(frozen=True, kw_only=True)
class Resumed(Remark, event="resumed"):
    """it is back"""


@dataclass(frozen=True, kw_only=True)
class Blocked(Remark, event="blocked"):
    """this machine's disk takes no logs: `reason`"""


@dataclass(frozen=True, kw_only=True)
class Unblocked(Remark, event="unblocked"):
    """it does again"""


@dataclass(frozen=True, kw_only=True)
class Full(RunEvent, event="full"):
    """a node's disk is full: what its ranks write waits for room, and is lost if that lasts"""


@dataclass(frozen=True, kw_only=True)
class Room(RunEvent, event="room"):
    """there is room again"""


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
    """a node is silent, and who only looks on ends nothing for that: `kind` of the error"""

    kind: str


@dataclass(frozen=True, kw_only=True)
class Away(RunEvent, event="away"):
    """an elastic run goes on without a node: `left`, how many there are now"""

    left: int | None = where_known()


@dataclass(frozen=True, kw_only=True)
class Back(RunEvent, event="back"):
    """that node takes part again: `attempt` of its part of the run"""

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
    """they have been: `attempt`, `master`, `world_size`, `first_ranks`, `started` (when the run was)"""

    attempt: int
    master: str


@dataclass(frozen=True, kw_only=True)
class NoRestart(RunEvent, event="no-restart"):
    """they could not be"""


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
    """another process, elsewhere, leads the run now; this one only looks on"""


@dataclass(frozen=True, kw_only=True)
class Detached(RunEvent, event="detached"):
    """the run goes on by itself; process `pid` collects its logs"""

    pid: int


# -- on stdout with --json alone ---------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class Found(RunEvent, event="finding", place=STREAM):
    """preflight found something: the rule's `id`, `severity`, `hosts`, `message`, `hint`"""

    id: str
    severity: str
    hosts: Sequence[str]
    message: str
    hint: str


@dataclass(frozen=True, kw_only=True)
class Unreachable(Refused, event="unreachable", place=STREAM):
    """nothing was started, as a host did not answer: `kind` of the error, `message`, `hint`"""


@dataclass(frozen=True, kw_only=True)
class NotSynced(Refused, event="not-synced", place=STREAM):
    """nothing was started, as a host did not take the code: `kind`, `message`, `hint`"""


@dataclass(frozen=True, kw_only=True)
class NotStarted(Refused, event="not-started", place=STREAM):
    """everything was stopped again, as a host did not start: `kind`, `message`, `hint`"""


@dataclass(frozen=True, kw_only=True)
class NotReady(Refused, event="not-ready", place=STREAM):
    """no other attempt begins, as a host is not ready for it: `kind`, `message`, `hint`"""


@dataclass(frozen=True, kw_only=True)
class StepDone(RunEvent, event="step", place=STREAM):
    """sync, preflight, start are through: `step`, `hosts`, `seconds`"""

    step: str
    hosts: int
    seconds: float


# -- in events.jsonl alone ---------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class NodeStarted(RunEvent, event="started", place=FILE):
    """a node has started: `pid` of its supervisor, `folder` there, `attempt` where it is not the first"""

    pid: int
    folder: str
    attempt: int | None = where_known()


@dataclass(frozen=True, kw_only=True)
class Cleaned(RunEvent, event="cleaned", place=FILE):
    """a process that went on in the background has ended the run on a node: `complete` where its logs are, too"""

    complete: bool


@dataclass(frozen=True, kw_only=True)
class RunOver(RunEvent, event="summary", place=FILE):
    """the run is over: `exit_code`, `first_failure`"""

    exit_code: int
    first_failure: FirstFailure | None


# of stdout, and of no class here
OTHERS = {
    "notice": "something else worth saying: `level`, `message`, `hint`",
    "summary": "the last line, with all that is below",
}
