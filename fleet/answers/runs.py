"""Holds the answers of `fleet launch` and of the verbs about runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.codec import spread, where_known
from fleet.errors import EXIT_HOST_FAILED
from fleet.protocol.messages.run import Verdict
from fleet.protocol.messages.stacks import RankStack, Recorded


@dataclass(frozen=True)
class LeftEarly:
    """Describes a rank that had ended with 0 before others failed, and the seconds between."""

    rank: int
    host: str
    seconds: float


@dataclass(frozen=True)
class KernelSays:
    host: str
    line: str


@dataclass(frozen=True)
class FirstFailure:
    """Describes the first failure of a run: the host and rank, how it ended, its traceback or last lines, a hint, and
    the log.

    what: see gang.Failure. missing: ranks that did not come to the place where the others waited. unfit: node set of
    the hosts that a next run should leave out."""

    host: str
    node_rank: int = 0
    rank: int | None = None
    local_rank: int | None = None
    exit_code: int = EXIT_HOST_FAILED
    signal: int | None = None
    what: str = "rank"
    message: str = ""
    why: str | None = None
    left_early: LeftEarly | None = None
    missing: Sequence[int] = ()
    kernel: KernelSays | None = None
    traceback: str | None = None
    tail: str | None = None
    hint: str | None = None
    unfit: str | None = None
    log: str = ""


@dataclass(frozen=True)
class TracebackOf:
    """Describes one traceback, and the ranks that have it. follows: it is a consequence of another failure."""

    ranks: Sequence[int]
    hosts: Sequence[str]
    exception: str
    follows: bool
    log: str


@dataclass(frozen=True)
class HostUse:
    """Holds the means of a host's samples. use: percent of its GPUs. power: watts of all of them. cpu: percent of all
    CPUs."""

    samples: int
    use: float | None = None
    power: float | None = None
    cpu: float | None = None

    @property
    def has_gpus(self) -> bool:
        return self.use is not None or self.power is not None


@dataclass(frozen=True)
class Slow:
    """Names the host that the others waited for; or two hosts, if the link from the first to the second is slow.
    evidence: what shows it."""

    hosts: Sequence[str]
    evidence: str

    @property
    def where(self) -> str:
        return self.hosts[0] if len(self.hosts) == 1 else "the link from " + " to ".join(self.hosts)


@dataclass(frozen=True)
class RunSummary:
    """Describes how a run ended. stopped: a sentence. end: the verdict (protocol.messages.run); None: not known yet.

    next: lines to copy. incomplete_logs: hosts whose logs are incomplete here. unknown: hosts whose end is not known.
    killed: ranks that did not end in time. used: host -> its use, if there are samples. slow: what the others waited
    for. restarts: the event of each restart. error: why the run did not begin, or only in part."""

    run: str = ""
    world_size: int = 0
    seconds: float = 0.0
    logs: str = ""
    stopped: str | None = None
    end: Verdict | None = None
    first_failure: FirstFailure | None = None
    next: Sequence[str] = ()
    tracebacks: Sequence[TracebackOf] = ()
    incomplete_logs: Sequence[str] = ()
    unknown: Sequence[str] = ()
    killed: Sequence[int] = ()
    used: Mapping[str, HostUse] | None = where_known()
    slow: Slow | None = where_known()
    error: Mapping[str, Any] | None = where_known()
    attempt: int | None = where_known()
    restarts: Sequence[Mapping[str, Any]] | None = where_known()


@dataclass(frozen=True)
class LeftAlone:
    """Describes a run that goes on without this process. led: this process led it until now. runs: number of runs that
    were requested at once; this is the first."""

    run: str
    world_size: int
    logs: str
    detached: bool = True
    led: bool = True
    runs: int = 1


@dataclass(frozen=True)
class NodeEnd:
    """Describes the end of a run on a host. ranks: rank -> {"status", "signal", "attempt"}; left: process ids. undying:
    processes that could not be ended."""

    node_rank: int = 0
    state: str = ""
    ranks: Mapping[Any, Any] = field(default_factory=dict)
    reason: str | None = None
    left: Sequence[int] = ()
    undying: str | None = where_known()


@dataclass(frozen=True)
class RankSeen:
    """Describes a rank of an attempt. ended: when. known: its end is recorded; if not, `ended` is the end of its
    attempt."""

    rank: int
    host: str
    ended: float
    status: int | None
    signal: int | None
    known: bool


@dataclass(frozen=True)
class AttemptSeen:
    """Describes an attempt. began, ended: seconds since the epoch. why: the reason for the next attempt, if there is
    one."""

    attempt: int
    began: float
    ended: float
    why: str | None
    ranks: Sequence[RankSeen]


@dataclass(frozen=True, kw_only=True)
class ReportedRun:
    """Describes a run by its folder on this machine. ranks: by host. notices: the last warnings and errors.

    metrics: host -> means of its samples; odd_samples: number of samples from outside the run's time."""

    run: str
    state: str
    exit_code: int | None
    started: float
    seconds: float
    owner: str
    command: Sequence[str]
    code: str | None
    engine: str | None
    world_size: int
    ranks: Mapping[str, Sequence[int]]
    versions: Mapping[str, str]
    attempts: Sequence[AttemptSeen]
    first_failure: FirstFailure | None
    tracebacks: Sequence[TracebackOf]
    notices: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Mapping[str, float]]
    odd_samples: int
    next: Sequence[str]
    logs: str
    broken: str | None


@dataclass(frozen=True)
class RunStopped:
    """Names a stopped run. restartable: another attempt might have followed without this stop."""

    run: str
    restartable: bool | None = where_known()


@dataclass(frozen=True)
class StoppedThere:
    """Describes a stop on a host. was: "running", "gone" or "unknown"; left: process ids."""

    was: str
    left: Sequence[int] = ()


@dataclass(frozen=True)
class GivenUp:
    given_up: bool


@dataclass(frozen=True)
class RunNode:
    node_rank: int
    ranks: Sequence[int]
    ranks_up: int
    ranks_ended: int
    state: str | None
    reason: str | None
    alive: bool
    silent: float | None
    last: str


@dataclass(frozen=True, kw_only=True)
class RunSeen:
    """Describes a run as its nodes report it. about: what each node keeps of it (protocol.messages.run.About)."""

    run: str
    state: str
    about: Mapping[str, Any] = spread()
    age: float | None
    lease: float | None
    unattended: float | None
    ranks_up: int
    ranks_ended: int
    silent: float | None
    last: str
    nodes: Mapping[str, RunNode]


@dataclass(frozen=True)
class RunsSeen:
    runs: Sequence[RunSeen] = ()


@dataclass(frozen=True)
class LogsHere:
    """Names a run, and the folder of its logs on this machine."""

    run: str
    logs: str


@dataclass(frozen=True)
class StacksTaken:
    """Holds the stacks of a run. places: rules.stacks.Place, as JSON. summary: the places in one sentence. absent:
    ranks without a process. hang: rules.collectives.Hang, as JSON."""

    run: str
    summary: str
    places: Sequence[Mapping[str, Any]] = ()
    absent: Sequence[int] = ()
    hang: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class StacksThere:
    ranks: Sequence[RankStack] = ()
    own_master: str | None = None
    calls: Sequence[Recorded] = ()
    ras: str = ""
