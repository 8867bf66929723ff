"""Defines the events before a run begins, or when it cannot begin; run_events.py has the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.answers.event import FILE, STREAM, Begun, Refused, RunEvent
from fleet.codec import where_known
from fleet.protocol.state import PROTOCOL
from fleet.version import __version__


@dataclass(frozen=True, kw_only=True)
class Version(RunEvent, event="version"):
    """the first event: `version` of these events, `fleet`: the version of fleet"""

    version: int = PROTOCOL
    fleet: str = __version__


@dataclass(frozen=True, kw_only=True)
class Submitted(RunEvent, event="submitted"):
    """a batch system will start the run: `on` (as `--on` has it), `job` (its number there; empty if it is not
    confirmed), `by`, `script`, `logs`, `asked` (the queue's options, for `--again`); `seal` (shows that the user's own
    fleet made the request)"""

    on: str
    job: str
    by: str
    script: str
    logs: str
    asked: Mapping[str, Any] = field(default_factory=dict)
    seal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Waiting(RunEvent, event="waiting", place=STREAM):
    """the job of the run waits in the queue: `job`, `state` and `reason` as the queue names them, `begins` (when that
    is expected, or null)"""

    job: str
    state: str
    reason: str
    begins: float | None


@dataclass(frozen=True, kw_only=True)
class WaitsFor(RunEvent, event="occupied", place=STREAM):
    """with `--wait`: live runs have the hosts, or launches of this machine that came before wait for them: `launches`
    (the ids of these)"""

    launches: Sequence[str] = ()


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
class Running(Begun, event="running"):
    """all nodes have started: `world_size`, `first_ranks` (of each host), `logs`; `attempt` where it is not the
    first"""

    logs: str
    attempt: int | None = where_known()


@dataclass(frozen=True, kw_only=True)
class Attached(Begun, event="attached"):
    """a head that did not start the run follows it: `version`, `engine`, `world_size`, `first_ranks`, `logs`, `state`,
    `started` (when), `lease`, `leads` (else it only watches), `attempt` where it is not the first"""

    version: int = PROTOCOL
    engine: str | None = where_known()
    logs: str
    state: str
    lease: float | None
    leads: bool = False
    attempt: int | None = where_known()


@dataclass(frozen=True, kw_only=True)
class Found(RunEvent, event="finding"):
    """preflight found something: the rule's `id`, `severity`, `hosts`, `message`, `hint`"""

    id: str
    severity: str
    hosts: Sequence[str]
    message: str
    hint: str


# -- only on stdout, with --json ---------------------------------------------------------------------------
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


# -- only in events.jsonl ----------------------------------------------------------------------------------
@dataclass(frozen=True, kw_only=True)
class NodeStarted(RunEvent, event="started", place=FILE):
    """a node has started: `pid` of its supervisor, `folder` there, `attempt` where it is not the first"""

    pid: int
    folder: str
    attempt: int | None = where_known()
