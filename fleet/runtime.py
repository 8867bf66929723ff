"""Holds what every verb's execution is given: how to reach hosts, how many at once, where events are sent, when to
stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.events import Emit, silent
from fleet.model import Report
from fleet.node.base.clock import CLOCK, Clock
from fleet.requests.reach import Reach
from fleet.transport.base import Cancel, Transport


@dataclass
class Runtime:
    """transport: reaches hosts. fanout: hosts worked on at once. emit: takes events. cancel: set on Ctrl-C. detach: set
    when a run is to go on without this process, or, with `stay`, without a terminal: that is called, with what to show,
    and this process leads the run on. ask: puts a question that is answered by yes or no, None where no user can be
    reached. clock: by which what lasts too long is given up. background: no caller waits for this process, which stays
    as long as there is anything to do for its run."""

    transport: Transport
    fanout: int = Reach.fanout
    emit: Emit = silent
    cancel: Cancel = field(default_factory=Cancel)
    ask: Callable[[str], bool | None] = lambda question: None
    detach: Cancel = field(default_factory=Cancel, kw_only=True)
    stay: Callable[[Report], None] | None = field(default=None, kw_only=True)
    clock: Clock = field(default=CLOCK, kw_only=True)
    background: bool = field(default=False, kw_only=True)
