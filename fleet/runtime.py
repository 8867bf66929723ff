"""Defines the Runtime that executes plans: how hosts are reached, where events are sent, when to stop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.events import Emit, silent
from fleet.model import Report
from fleet.node.base.clock import CLOCK, Clock
from fleet.requests.request import Reach
from fleet.transport.base import Cancel, Transport


@dataclass
class Runtime:
    """Holds the means of execution. transport: reaches hosts. fanout: number of hosts at once. emit: receives events.
    cancel: set on Ctrl-C. ask: asks the user a yes-or-no question, and returns None if there is no user. clock: for
    timeouts.

    detach: set when the run is to go on without this process. stay: if it is given, this process goes on to lead the
    run without a terminal after a detach, and `stay` is called with the report to show. background: no caller waits for
    this process, which stays as long as its run needs it."""

    transport: Transport
    fanout: int = Reach.fanout
    emit: Emit = silent
    cancel: Cancel = field(default_factory=Cancel)
    ask: Callable[[str], bool | None] = lambda question: None
    detach: Cancel = field(default_factory=Cancel, kw_only=True)
    stay: Callable[[Report], None] | None = field(default=None, kw_only=True)
    clock: Clock = field(default=CLOCK, kw_only=True)
    background: bool = field(default=False, kw_only=True)
